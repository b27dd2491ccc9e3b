"""From presets, files and flags to one config: who wins, what is refused, and that it can be written down."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.flags import field_types, parse_flags
from glassgpt.recipe import Recipe, build_config, find_recipe, read_recipe, to_toml
from glassgpt.validate import find_config_problems

few = settings(max_examples=60, deadline=None)
NOTHING = Recipe("nothing", "", {})


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def complaints(path: Path) -> list[str]:
    with pytest.raises(UserError) as caught:
        read_recipe(path)
    return caught.value.problems


# --- files


def test_a_word_that_is_no_preset_but_means_something_is_told_how_to_say_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("data/mine/train.bin", "there/manifest.json", "runs/a/config.toml", "out/ckpt.pt"):
        Path(file).parent.mkdir(parents=True)
        Path(file).touch()
    Path("my diary.txt").touch()
    meant = {
        "my diary.txt": "to train on its text, run  glass prepare 'my diary.txt'  first",
        "data": "to train on its text, run  glass prepare data  first",
        "mine": "--dataset=mine trains on it",
        "there": "--dataset=there trains on it",
        "runs/a": "--init_from=resume --out_dir=runs/a resumes it, "
        "and its settings are in runs/a/config.toml",
        "out/ckpt.pt": "--init_from=out/ckpt.pt starts from its weights",
        "max_iters=5": "a setting is written --max_iters=5",
        "-max_iters=5": "a setting is written --max_iters=5",
    }
    for name, hint in meant.items():
        with pytest.raises(UserError) as caught:
            find_recipe(name)
        assert caught.value.problems == [f"{name} is neither a preset nor a .toml or .py file; {hint}"]


def test_another_dataset_is_not_begun_with_the_words_of_the_presets_own() -> None:
    preset = find_recipe("quickstart")
    assert build_config(preset, {}).sample_start == "\ndef "
    assert build_config(preset, {"dataset": "mine"}).sample_start == ""
    assert build_config(preset, {"dataset": "mine", "sample_start": "I"}).sample_start == "I"


def test_a_file_with_device_tables(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        'about = "mine"\nn_layer = 2\nbatch_size = "none"\ncompile = false\n'
        "[cpu]\nn_layer = 1\n[cuda]\nmax_iters = 1e3\n",
    )
    assert read_recipe(path) == Recipe(
        "mine",
        "mine",
        {"n_layer": 2, "batch_size": None, "compile": "off"},
        {"cpu": {"n_layer": 1}, "cuda": {"max_iters": 1000}},
    )
    assert find_recipe(str(path)) == read_recipe(path)


def test_toml_that_tries_to_be_clever(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("[gpu]\nn_layer = 1", "unknown setting --gpu"),
        ("cpu = 3", "unknown setting --cpu"),
        ("[cpu.fast]\nn_layer = 1", "unknown setting --fast in [cpu] of"),
        ("[cpu.n_layer]\nx = 1", "--n_layer={'x': 1} is not a number in [cpu] of"),
        ("[[cpu]]\nn_layer = 1", "unknown setting --cpu"),
        ("[n_layer]\nx = 1", "--n_layer={'x': 1} is not a number"),
        ("n_layer = [1, 2]", "--n_layer=[1, 2] is not a number"),
        ("n_layer = 2024-01-01", "--n_layer=2024-01-01 is not a number"),
        ("dataset = 2024-01-01T00:00:00Z", "--dataset is text, not datetime"),
        ("dataset = ['a']", "--dataset is text, not ['a']"),
        ("dataset = 5", "--dataset is text, not 5"),
        ("learning_rate = nan", "--learning_rate=nan is not a finite number"),
        ("bias = [true]", "--bias=[True] is neither True nor False"),
        ("bias = 07:32:00", "--bias=07:32:00 is neither True nor False"),
        ("compile = {a = 1}", "--compile={'a': 1} is not one of auto, on, off"),
        ("arch.gpt2 = 1", "--arch={'gpt2': 1} is not one of gpt2, modern"),
    ]
    for text, expected in cases:
        with subtests.test(text):
            path = written(tmp_path, text)
            (problem,) = complaints(path)
            assert problem.startswith(expected)
            assert str(path) in problem


def test_what_is_no_toml_is_refused_with_the_place(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for text in ("n_layer = ", "n_layer: 3", "n_layer = 1\nn_layer = 2", "[cpu\n", "\0"):
        with subtests.test(text):
            path = written(tmp_path, text)
            (problem,) = complaints(path)
            assert problem.startswith(f"{path} cannot be read as TOML: ")
            assert "(at " in problem


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "n_layer = 1" + "0" * 5000])
def test_toml_that_breaks_the_parser_is_refused(tmp_path: Path, text: str) -> None:
    assert "cannot be read as TOML" in complaints(written(tmp_path, text))[0]


def test_a_file_that_is_no_text_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert "cannot be read as TOML" in complaints(tmp_path / "binary.toml")[0]
    assert complaints(tmp_path / "none.toml") == [f"there is no config file {tmp_path / 'none.toml'}"]
    assert "cannot be read as TOML" in complaints(tmp_path)[0]


def test_all_problems_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, 'n_layr = 1\nn_head = "x"\nbias = 2\n[cuda]\nsed = 3\ndtype = "int8"\n')
    found = complaints(path)
    assert len(found) == 5
    assert all(str(path) in problem for problem in found)
    assert [f"[cuda] of {path}" in problem for problem in found] == [False] * 3 + [True] * 2


def test_a_file_is_data_and_never_code(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    path = written(tmp_path, f"dataset = \"__import__('pathlib').Path('{victim}').touch()\"\n")
    assert build_config(read_recipe(path), {}).dataset.startswith("__import__")
    assert not victim.exists()


def test_unknown_preset_gets_the_nearest() -> None:
    with pytest.raises(UserError, match=r"^quickstrat is neither a preset .*; did you mean quickstart\?$"):
        find_recipe("quickstrat")
    with pytest.raises(UserError, match=r"presets: eval_gpt2, .*, gpt2_124m, gpt2_124m_fast, quickstart"):
        find_recipe("zzz")


# --- layers


def test_each_layer_wins_over_the_one_before() -> None:
    assert TrainConfig().n_layer == 12
    preset = Recipe("r", "", {"n_layer": 2, "n_embd": 24, "seed": 3}, {"cpu": {"n_layer": 4, "n_embd": 48}})
    on_cpu = build_config(preset, {"n_layer": "5"}, "cpu")
    assert (on_cpu.n_layer, on_cpu.n_embd, on_cpu.seed, on_cpu.n_head) == (5, 48, 3, 12)
    assert build_config(preset, {}, "cpu").n_layer == 4
    for other in ("cuda", None):
        assert build_config(preset, {}, other).n_layer == 2


def test_none_on_the_command_line_takes_back_a_preset() -> None:
    assert build_config(Recipe("r", "", {"min_lr": 1e-5}), {"min_lr": "none"}).min_lr is None


PAIRS = [
    ("batch_tokens", 8192, "gradient_accumulation_steps", 3),
    ("eval_tokens", 100, "eval_iters", 7),
]
BOTH_WAYS = [*PAIRS, *((c, d, a, b) for a, b, c, d in PAIRS)]


@pytest.mark.parametrize(("earlier", "was", "later", "becomes"), BOTH_WAYS)
def test_a_later_layer_takes_back_the_other_way_to_say_it(
    earlier: str, was: int, later: str, becomes: int
) -> None:
    for recipe, flags in (
        (Recipe("r", "", {earlier: was}), {later: becomes}),
        (Recipe("r", "", {}, {"cpu": {earlier: was}}), {later: becomes}),
        (Recipe("r", "", {earlier: was}, {"cpu": {later: becomes}}), {}),
        (Recipe("r", "", {later: becomes + 1}, {"cpu": {earlier: was}}), {later: becomes}),
    ):
        config = build_config(recipe, flags, "cpu")
        assert getattr(config, earlier) is None
        assert getattr(config, later) == becomes


def test_both_on_the_command_line_win_over_a_preset_and_must_agree() -> None:
    preset = Recipe("r", "", {"batch_tokens": 1024, "block_size": 64})
    agreed = {"batch_tokens": "2048", "gradient_accumulation_steps": "4", "batch_size": "8"}
    config = build_config(preset, agreed)
    assert (config.batch_tokens, config.gradient_accumulation_steps, config.batch_size) == (2048, 4, 8)
    with pytest.raises(UserError, match="leave one of them out"):
        build_config(preset, agreed | {"batch_size": "7"})


def test_eval_tokens_and_eval_iters_at_once_are_refused() -> None:
    with pytest.raises(UserError, match="say the same thing twice"):
        build_config(NOTHING, {"eval_tokens": 64, "eval_iters": 2})


def test_eval_tokens_and_eval_iters_in_one_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="say the same thing twice"):
        read_recipe(written(tmp_path, "eval_tokens = 64\neval_iters = 2\n"))
    with pytest.raises(UserError, match="say the same thing twice"):
        read_recipe(written(tmp_path, "[cpu]\neval_tokens = 64\neval_iters = 2\n"))


@pytest.mark.parametrize(("kept", "value", "other", "_"), BOTH_WAYS)
def test_setting_one_of_a_pair_to_none_leaves_the_other(kept: str, value: int, other: str, _: int) -> None:
    assert getattr(build_config(Recipe("r", "", {kept: value}), {other: "none"}), kept) == value


def test_all_problems_of_all_kinds_at_once() -> None:
    with pytest.raises(UserError) as caught:
        build_config(
            Recipe("r", "", {"n_layer": 0}), {"n_hed": 1, "seed": "x", "eval_tokens": 1, "eval_iters": 1}
        )
    assert len(caught.value.problems) == 4


# --- writing it down


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))  # no path holds them
positive = st.integers(1, 10**9)
rates = st.floats(1e-9, 1.0)
FREE = {  # fields that none of the others restrict; the ranges are those of find_problems
    "dropout": st.floats(0, 1, exclude_max=True),
    "beta1": st.floats(0, 1, exclude_max=True),
    "beta2": st.floats(0, 1, exclude_max=True),
    "muon_momentum": st.floats(0, 1, exclude_max=True),
    "muon_steps": st.integers(3, 5),
    "profile": st.just(""),
    "track": st.sampled_from(["", "csv", "csv,wandb"]),
    "matrix_lr": rates,
    "embedding_lr": st.none() | rates,
    "wsd_decay_fraction": st.floats(0, 1, exclude_min=True),
    "weight_decay": st.floats(0, 1e9),
    "grad_clip": st.floats(0, 1e30),
    "probe_seconds": st.floats(0, 1e9),
    "warmup_iters": st.none() | st.integers(0, 10**9),
    "patience": st.integers(0, 100),
    "sample_tokens": st.integers(0, 10**6),
    "seed": st.integers(0, 2**62),
    "threads": st.none() | st.integers(1, 1024),
    "rank_timeout": st.floats(0, 1e9, exclude_min=True),
    "device": st.sampled_from(["auto", "cpu", "cuda", "cuda:1", "mps"]),
}


def strategy(name: str, kind: Any) -> st.SearchStrategy[Any]:
    if name in FREE:
        return FREE[name]
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    return {bool: st.booleans(), str: texts, int: positive, int | None: st.none() | positive}[kind]


@st.composite
def configs(draw: st.DrawFn) -> TrainConfig:
    """Any config that find_problems has nothing to say about."""
    linked = {"n_embd", "batch_tokens", "learning_rate", "min_lr", "eval_iters"}
    values = {
        name: draw(strategy(name, kind))
        for name, kind in field_types(TrainConfig).items()
        if name not in linked
    }
    values["n_head"] = draw(st.integers(1, 64))
    values["n_embd"] = values["n_head"] * 2 * draw(st.integers(1, 64))
    values["shard"] = values["shard"] and values["dtype"] != "float16" and not values["fp8"]
    if values["init_from"] == "scratch":
        values["init_state"] = "auto"
    values["learning_rate"] = draw(rates)
    values["min_lr"] = draw(st.none() | st.floats(0, values["learning_rate"]))
    if values["eval_tokens"] is None:
        values["eval_iters"] = draw(st.none() | positive)
    size, steps = values["batch_size"], values["gradient_accumulation_steps"]
    if draw(st.booleans()):
        factor = 1 if size and steps else draw(st.integers(1, 9))
        tokens = (size or 1) * (steps or 1) * factor * values["block_size"]
        values["batch_tokens"] = tokens if tokens < 2**63 else None
    return TrainConfig(**values)


@few
@given(configs())
def test_every_config_survives_being_written_and_read(config: TrainConfig) -> None:
    assert find_config_problems(config) == []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.toml")
        path.write_text(to_toml(config), encoding="utf-8", newline="")
        assert build_config(read_recipe(path), {}) == config
        flags = [f"--{name}={value}" for name, value in dataclasses.asdict(config).items()]
        words, settings_as_text, found = parse_flags(flags, TrainConfig)
        assert (words, found) == ([], [])
        assert build_config(NOTHING, settings_as_text) == config


def test_a_comment_of_several_lines_stays_a_comment() -> None:
    text = to_toml(TrainConfig(), "one\ntwo")
    assert text.startswith('# one\n# two\nout_dir = ""\n')
    assert "min_lr" not in text  # it is none


def test_names_with_characters_that_json_and_toml_escape_differently(tmp_path: Path) -> None:
    config = TrainConfig(out_dir="runs/\N{GRINNING FACE}")
    assert build_config(read_recipe(written(tmp_path, to_toml(config))), {}) == config


def test_a_file_that_is_too_large_for_settings_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    path = written(tmp_path, "# " + "x" * 1_000_000)
    with pytest.raises(UserError, match="1,000,002 bytes"):
        read_recipe(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match="pipe"):
        read_recipe(path)
