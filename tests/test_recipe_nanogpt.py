"""nanoGPT's config files: what theirs mean here, and the preset that one stands for that is not there."""

from __future__ import annotations

import dataclasses
import textwrap
from pathlib import Path
from typing import Any

import pytest

from glassgpt.errors import UserError
from glassgpt.recipe import build_config, find_recipe

# What nanoGPT 3adf61e trains with if nobody says anything; device, dtype and compile are ours to choose.
NANOGPT_TRAIN_PY: dict[str, Any] = {
    "out_dir": "out",
    "eval_interval": 2000,
    "log_interval": 1,
    "eval_iters": 200,
    "eval_only": False,
    "always_save_checkpoint": True,
    "init_from": "scratch",
    "wandb_log": False,
    "dataset": "openwebtext",
    "gradient_accumulation_steps": 40,
    "batch_size": 12,
    "block_size": 1024,
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "dropout": 0.0,
    "bias": False,
    "learning_rate": 6e-4,
    "max_iters": 600_000,
    "weight_decay": 0.1,
    "beta1": 0.9,
    "beta2": 0.95,
    "grad_clip": 1.0,
    "decay_lr": True,
    "warmup_iters": 2000,
    "lr_decay_iters": 600_000,
    "min_lr": 6e-5,
}


def written_python(folder: Path, text: str, name: str = "train_mine.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def python_complaints(path: Path) -> list[str]:
    with pytest.raises(UserError) as caught:
        find_recipe(str(path))
    return caught.value.problems


def test_an_empty_python_file_means_what_nanogpt_does_by_itself(tmp_path: Path) -> None:
    recipe = find_recipe(str(written_python(tmp_path, "")))
    config = dataclasses.asdict(build_config(recipe, {}))
    assert {name: config[name] for name in NANOGPT_TRAIN_PY} == NANOGPT_TRAIN_PY
    assert (config["device"], config["dtype"], config["compile"]) == ("auto", "auto", "auto")


def test_a_python_file_over_nanogpts_defaults(tmp_path: Path) -> None:
    text = """
        import time
        out_dir = 'out-mine'
        wandb_log = False # override via command line if you like
        wandb_run_name = 'run-' + str(time.time())
        gradient_accumulation_steps = 5 * 8
        max_iters = 5000
        lr_decay_iters = max_iters
        learning_rate = 1e-3
        min_lr = learning_rate / 10
        compile = False
    """
    recipe = find_recipe(str(written_python(tmp_path, textwrap.dedent(text))))
    said = {
        "out_dir": "out-mine",
        "wandb_log": False,
        "wandb_run_name": "'run-' + str(time.time())",
        "gradient_accumulation_steps": 40,
        "max_iters": 5000,
        "lr_decay_iters": 5000,
        "learning_rate": 1e-3,
        "min_lr": 1e-4,
        "compile": "off",
    }
    config = dataclasses.asdict(build_config(recipe, {}))
    assert {name: config[name] for name in NANOGPT_TRAIN_PY | said} == NANOGPT_TRAIN_PY | said


@pytest.mark.parametrize(
    ("name", "expected"),
    [("train_mine.py", "mine"), ("mine.py", "mine"), ("eval_gpt2.py", "eval_gpt2"), ("train_.py", "train_")],
)
def test_a_python_file_gives_the_recipe_its_name(tmp_path: Path, name: str, expected: str) -> None:
    assert find_recipe(str(written_python(tmp_path, "", name))).name == expected


def test_a_python_file_takes_back_defaults_that_say_the_same_in_another_way(tmp_path: Path) -> None:
    recipe = find_recipe(str(written_python(tmp_path, "eval_tokens = 4096\nbatch_tokens = 8192\n")))
    config = build_config(recipe, {})
    assert (config.eval_tokens, config.eval_iters) == (4096, None)
    assert (config.batch_tokens, config.batch_size, config.gradient_accumulation_steps) == (8192, None, None)
    assert build_config(recipe, {"eval_iters": "7"}).eval_tokens is None
    both = written_python(tmp_path, "eval_tokens = 4096\neval_iters = 7\n")
    assert python_complaints(both) == [
        f"--eval_tokens and --eval_iters in {both} say the same thing twice: give one of them"
    ]


def test_all_problems_of_a_python_file_at_once_in_the_order_of_the_lines(tmp_path: Path) -> None:
    text = "n_layr = 1\nprint('hello')\nn_head = 'x'\nseed = int(5)\nlr = 1\nmax_iters = 2.5\n"
    path = written_python(tmp_path, text)
    assert python_complaints(path) == [
        f"unknown setting --n_layr in {path}, line 1; did you mean --n_layer?",
        f"{path}, line 2: `print('hello')` would have to be executed, and a config file is only parsed; "
        "write the value itself, or leave the line out",
        f"--n_head=x is not a number in {path}, line 3",
        f"{path}, line 4: `seed = int(5)` would have to be executed, and a config file is only parsed; "
        "write the value itself, or leave the line out",
        f"unknown setting --lr in {path}, line 5; did you mean --learning_rate?",
        f"--max_iters=2.5 is not a whole number in {path}, line 6",
    ]


@pytest.mark.parametrize(
    ("file", "preset", "out_dir"),
    [
        ("train_shakespeare_char", "shakespeare_char", "out-shakespeare-char"),
        ("train_gpt2", "gpt2_124m", "out"),
        ("finetune_shakespeare", "finetune_shakespeare", "out-shakespeare"),
        ("eval_gpt2", "eval_gpt2", "out"),
        ("eval_gpt2_medium", "eval_gpt2_medium", "out"),
        ("eval_gpt2_large", "eval_gpt2_large", "out"),
        ("eval_gpt2_xl", "eval_gpt2_xl", "out"),
        ("train_shakespeare_char_cpu", "shakespeare_char_cpu", None),
        ("train_quickstart", "quickstart", None),
    ],
)
def test_a_file_of_nanogpts_that_is_not_there_is_a_preset(
    file: str, preset: str, out_dir: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = find_recipe(preset)
    for folder in ("", "config/", "./config/", "config\\", "C:\\nanoGPT\\config\\"):
        recipe = find_recipe(f"{folder}{file}.py")
        assert (recipe.name, recipe.about, recipe.by_device) == (preset, expected.about, expected.by_device)
        said = {} if out_dir is None else {"out_dir": out_dir}
        assert recipe.settings == {**expected.settings, **said}, folder


@pytest.mark.parametrize("name", ["config/train_gpt2.py", "config\\train_gpt2.py"])
def test_a_file_that_is_there_wins_over_the_preset(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config").mkdir()
    written_python(Path("config"), "max_iters = 7", "train_gpt2.py")
    assert find_recipe(name).settings["max_iters"] == 7


def test_an_unknown_file_gets_the_nearest_preset(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("config/train_shakespear_char.py", "did you mean shakespeare_char"),
        ("quickstart.py", "did you mean quickstart?"),
        ("config/zzz.py", "presets: eval_gpt2, "),
        ("a" * 300 + ".py", "presets: eval_gpt2, "),
        ("a\0.py", "presets: eval_gpt2, "),
    ]
    for name, hint in cases:
        with subtests.test(name):
            with pytest.raises(UserError) as caught:
                find_recipe(name)
            (problem,) = caught.value.problems
            assert problem.startswith(f"there is no config file {name}, and no preset in its place; {hint}")
