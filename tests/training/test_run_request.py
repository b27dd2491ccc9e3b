"""From flags to a request: which settings apply, what is refused, and that a run resumes as what it was."""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import nanogpt_files as ckpt
import pytest
import torch
from tiny import (
    CPU_CHOICES,
    MakeConfig,
    assert_same_tensors,
    capture_learners,
    choices,
    files_under,
    last_tensors,
    records,
    run_losses,
    run_task,
    run_until_crash,
)

from glassgpt.config import TrainConfig
from glassgpt.data.dataset import open_dataset
from glassgpt.data.prepare import prepare
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.errors import UserError
from glassgpt.recipe import Recipe, find_recipe, read_recipe, to_toml
from glassgpt.record import journal
from glassgpt.record.run_dir import CHECKPOINTS_DIR, CONFIG_FILE
from glassgpt.schedule import learning_rate
from glassgpt.training.run_request import resolve_request
from glassgpt.training.session import resume, train

SETTINGS: dict[str, Any] = {"eval_interval": 4, "max_iters": 12, "keep_checkpoints": 9, "dropout": 0.1}


@pytest.fixture
def mine(here: Path, tiny: MakeConfig) -> TrainConfig:
    """A run of 12 updates at runs/mine, with its checkpoints @4, @8 and @12."""
    config = replace(tiny(**SETTINGS), out_dir="runs/mine")
    train(config)
    return config


def refused(recipe: Recipe | None, **flags: Any) -> list[str]:
    before = list(files_under(Path()))
    with pytest.raises(UserError) as caught:
        run_task(resolve_request(recipe, flags))
    assert list(files_under(Path())) == before
    return caught.value.problems


# --- a new run from another ---


def test_without_a_recipe_a_fork_has_the_settings_of_its_run(mine: TrainConfig) -> None:
    request = resolve_request(None, {"init_from": "runs/mine@8", "max_iters": "16"})
    changed = {"init_from": "runs/mine@8", "max_iters": 16, "out_dir": ""}
    decided = {"activation": "gelu", **CPU_CHOICES}
    assert asdict(request.config) == asdict(mine) | changed | decided
    assert (request.resume_dir, request.name) == (None, "mine")
    assert run_task(request).out_dir == Path("runs/mine-2")
    # And so it is from the fork, which is one of the same family.
    again = resolve_request(None, {"init_from": "mine-2"})
    assert (again.name, again.config.max_iters) == ("mine", 16)


def test_a_recipe_that_is_named_has_its_own_settings(mine: TrainConfig, tiny_data: Path) -> None:
    settings = to_toml(
        TrainConfig(learning_rate=0.5, max_iters=9, data_dir=str(tiny_data), n_layer=7, seed=3)
    )
    Path("other.toml").write_text(settings)
    request = resolve_request(find_recipe("other.toml"), {"init_from": "mine"})
    config = request.config
    assert (config.learning_rate, config.max_iters, config.seed, config.dropout) == (0.5, 9, 3, 0.0)
    assert request.name == "other"
    # But the weights decide what they are.
    assert (config.n_layer, config.n_head, config.n_embd, config.block_size) == (2, 2, 16, 8)
    notes = {note.name: (note.value, note.reason) for note in request.choices}
    assert notes["n_layer"] == (2, "as runs/mine/checkpoints/00000012 has it, not 7")
    preset = resolve_request(find_recipe("quickstart"), {"init_from": "mine", "data_dir": str(tiny_data)})
    assert (preset.config.sample_tokens, preset.config.arch) == (400, "gpt2")


def test_flags_that_contradict_the_weights_are_all_named(mine: TrainConfig) -> None:
    flags = {
        "n_layer": "3",
        "n_head": "4",
        "n_embd": "32",
        "bias": "True",
        "arch": "modern",
        "block_size": "9",
    }
    what = f"runs/mine/{CHECKPOINTS_DIR}/00000012"
    assert refused(None, init_from="mine", **flags) == [
        f"--n_layer=3 does not fit {what}, which has n_layer=2: leave it out",
        f"--n_head=4 does not fit {what}, which has n_head=2: leave it out",
        f"--n_embd=32 does not fit {what}, which has n_embd=16: leave it out",
        f"--bias=True does not fit {what}, which has bias=False: leave it out",
        f"--arch=modern does not fit {what}, which has arch=gpt2: leave it out",
        f"--block_size=9 is more context than {what} has: at most 8",
    ]
    fitting = {"n_layer": "2", "n_head": "2", "bias": "False", "arch": "gpt2", "block_size": "8"}
    assert resolve_request(None, {"init_from": "mine", **fitting}).config.n_layer == 2


def test_the_name_of_a_dataset_goes_before_the_folder_that_the_run_had(mine: TrainConfig) -> None:
    request = resolve_request(None, {"init_from": "mine", "dataset": "other"})
    assert (request.config.dataset, request.config.data_dir) == ("other", "")
    resumed = resolve_request(None, {"init_from": "resume", "out_dir": "runs/mine", "dataset": "other"})
    assert (resumed.config.dataset, resumed.config.data_dir) == ("other", "")
    both = resolve_request(None, {"init_from": "mine", "dataset": "other", "data_dir": "elsewhere"})
    assert (both.config.dataset, both.config.data_dir) == ("other", "elsewhere")


def test_a_folder_that_a_file_names_begins_a_row_and_one_from_a_flag_must_be_new(mine: TrainConfig) -> None:
    Path("mine.toml").write_text(to_toml(replace(mine, max_iters=1)))
    for number in (2, 3):
        request = resolve_request(find_recipe("mine.toml"), {})
        assert [note.value for note in request.choices] == [f"runs/mine-{number}"]
        assert run_task(request).out_dir == Path(f"runs/mine-{number}")
    (problem,) = refused(find_recipe("mine.toml"), out_dir="runs/mine")
    assert "--out_dir=runs/mine holds a run already" in problem


# --- a run that goes on ---


def test_larger_max_iters_are_a_jump_of_the_rate_and_it_is_told_before_the_first_update(
    mine: TrainConfig,
) -> None:
    resume("runs/mine", max_iters=24)
    (finding,) = records("runs/mine", "finding")
    longer = replace(mine, max_iters=24)
    last, following = learning_rate(mine, 11), learning_rate(longer, 12)
    assert following > 2 * last
    assert (finding["id"], finding["iter"]) == ("rate-jump", 12)
    values = finding["values"]
    assert (values["last_lr"], values["next_lr"], values["update"]) == (last, following, 13)
    assert finding["evidence"] == "max_iters 12 -> 24"
    assert f"--learning_rate={last:.3g} " in finding["advice"]
    # These are the rates that the updates really had.
    rates = {step["iter"]: step["lr"] for step in records("runs/mine", "step")}
    assert (rates[12], rates[13]) == (last, following)
    kinds = [
        record["kind"]
        for record in journal.read(Path("runs/mine", journal.FILE_NAME))
        if record["process"] == 1
    ]
    assert kinds.index("finding") < kinds.index("step")


def test_a_fork_is_told_of_a_jump_too(mine: TrainConfig) -> None:
    run = run_task(resolve_request(None, {"init_from": "mine@8", "learning_rate": "0.001"}))
    (finding,) = records(run.out_dir, "finding")
    numbers = learning_rate(mine, 7), learning_rate(replace(mine, learning_rate=0.001), 8)
    values = finding["values"]
    assert (values["last_lr"], values["next_lr"], values["update"], finding["iter"]) == (*numbers, 9, 8)
    assert finding["evidence"] == "learning_rate 0.01 -> 0.001"


@pytest.mark.parametrize(
    "changes",
    [
        {"decay_lr": False},
        {"schedule": "wsd", "lr_decay_iters": 100},  # long before its fall
        {"schedule": "wsd", "max_iters": 40},  # which begins with update 32
        {"lr_decay_iters": 30},  # the same curve, whatever max_iters is
    ],
)
def test_where_the_rate_does_not_jump_none_is_told(tiny: MakeConfig, changes: dict[str, Any]) -> None:
    config = tiny(**{"eval_interval": 5, "max_iters": 10} | changes)
    run_until_crash(config, 9)
    assert resume(config.out_dir, max_iters=60 if config.max_iters == 40 else 20).exit_code == 0
    assert records(config.out_dir, "finding") == []
    rates = [step["lr"] for step in records(config.out_dir, "step")]
    assert rates[4:8] == [learning_rate(config, update) for update in range(4, 8)]


def test_where_a_named_file_differs_from_the_run_that_is_noted(mine: TrainConfig) -> None:
    differs = {"learning_rate": 0.5, "n_layer": 3, "max_iters": 99, "beta1": mine.beta1}
    lines = [f"{name} = {value}" for name, value in differs.items()]
    Path("mine.toml").write_text("\n".join(['out_dir = "runs/mine"', *lines]))
    request = resolve_request(find_recipe("mine.toml"), {"init_from": "resume", "max_iters": "16"})
    assert (request.resume_dir, request.config.learning_rate, request.config.max_iters) == (
        Path("runs/mine"),
        0.01,
        16,
    )
    run_task(request)
    noted = choices("runs/mine")
    reason = "as the run has it, not 0.5 as mine says; --learning_rate=0.5 would change it"
    assert noted["learning_rate"] == (0.01, reason)
    assert noted["n_layer"] == (2, "as the run has it, not 3 as mine says")  # which no flag can change
    assert not {"max_iters", "beta1", "out_dir"} & noted.keys()


@pytest.mark.parametrize("eval_iters", [2, 5])
def test_eval_iters_of_a_named_file_are_held_against_the_tokens_that_the_run_has(
    here: Path, tiny: MakeConfig, eval_iters: int
) -> None:
    config = replace(tiny(**SETTINGS), out_dir="runs/mine", batch_size=4, eval_iters=2, eval_tokens=None)
    train(config)
    Path("mine.toml").write_text(f'out_dir = "runs/mine"\neval_iters = {eval_iters}')
    request = resolve_request(find_recipe("mine.toml"), {"init_from": "resume", "max_iters": "16"})
    notes = [(note.name, note.value, note.reason) for note in request.choices]
    tokens = 2 * 4 * config.block_size
    reason = "as the run has it, not eval_iters=5 as mine says; --eval_iters=5 would change it"
    assert notes == ([] if eval_iters == 2 else [("eval_tokens", tokens, reason)])


def test_a_file_that_agrees_needs_no_words(mine: TrainConfig) -> None:
    request = resolve_request(
        find_recipe("runs/mine/config.toml"), {"init_from": "resume", "out_dir": "runs/mine"}
    )
    assert request.choices == ()


def test_another_dtype_and_back_again(mine: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = replace(mine, out_dir="runs/plain", max_iters=24, lr_decay_iters=12)
    train(plain)
    learners = capture_learners(monkeypatch)
    for dtype, end in (("bfloat16", 18), ("float32", 24)):
        # At lr_decay_iters the rate is at its floor, and stays there.
        assert resume("runs/mine", dtype=dtype, max_iters=end, lr_decay_iters=12).iter == end
        assert choices("runs/mine")["dtype"] == (dtype, "asked for")
        assert learners[-1].execution.dtype == dtype
        assert read_recipe(Path("runs/mine", CONFIG_FILE)).settings["dtype"] == dtype
    changed, unchanged = run_losses("runs/mine"), run_losses("runs/plain")
    assert list(changed) == list(range(1, 25))
    for at in range(1, 13):
        assert changed[at] == unchanged[at]
    for at in range(13, 25):
        assert changed[at] != unchanged[at]
        assert changed[at] == pytest.approx(unchanged[at], abs=0.05)


def test_another_device_opens_what_was_decided_for_the_old_one(mine: TrainConfig) -> None:
    same = resolve_request(None, {"init_from": "resume", "out_dir": "runs/mine", "device": "cpu"}).config
    assert (same.dtype, same.compile) == ("float32", "off")
    for other in ("auto", "cuda", "mps"):
        config = resolve_request(
            None, {"init_from": "resume", "out_dir": "runs/mine", "device": other}
        ).config
        assert (config.device, config.dtype, config.compile) == (other, "auto", "auto")
        fork = resolve_request(None, {"init_from": "mine", "device": other}).config
        assert (fork.device, fork.dtype, fork.compile) == (other, "auto", "auto")


# --- settings that were lost ---


@pytest.mark.parametrize(
    "content",
    # The last: cut off at the end of a line, which is good TOML.
    [None, b"", b"n_layer = ", b"\xff\xfe", b"n_layer = 'many'\n", b"# nothing\n", b"n_layer = 2\n"],
)
def test_settings_that_cannot_be_read_come_from_the_checkpoint(
    here: Path, tiny: MakeConfig, content: bytes | None
) -> None:
    changes = {**SETTINGS, "lr_decay_iters": 16, "beta1": 0.8, "weight_decay": 0.3, "grad_clip": 0.5}
    whole = tiny("whole", **changes | {"max_iters": 16})
    train(whole)
    train(replace(tiny(**changes), out_dir="runs/mine"))
    path = Path("runs/mine", CONFIG_FILE)
    path.write_bytes(content) if content is not None else path.unlink()
    fork = run_task(resolve_request(None, {"init_from": "mine@8", "max_iters": "16"}))
    resumed = resume("runs/mine", max_iters=16)
    assert (resumed.iter, fork.iter) == (16, 16)
    for run in (resumed, fork):
        assert_same_tensors(last_tensors(run.out_dir), last_tensors(whole.out_dir))
        (complaint,) = records(run.out_dir, "resume")[-1]["complaints"]
        assert str(path) in complaint
        assert complaint.endswith("; the settings are the checkpoint's")
    # The file is there again, and nothing is missing any more.
    resume("runs/mine", max_iters=18)
    assert records("runs/mine", "resume")[-1]["complaints"] == []


# --- stopped before the first checkpoint ---


@pytest.fixture
def other_data(tiny_data: Path, tmp_path: Path) -> str:
    """Another text in the same characters."""
    lines = (tiny_data.parent / "tiny.txt").read_text().splitlines()
    (tmp_path / "other.txt").write_text("\n".join(reversed(lines)) + "\n")
    prepare(
        PrepareOptions(str(tmp_path / "other.txt"), out_dir=str(tmp_path / "other")),
        print_line=lambda line: None,
    )
    return str(tmp_path / "other")


@pytest.fixture
def broken_off(here: Path, tiny: MakeConfig) -> TrainConfig:
    """A run at runs/mine whose last checkpoint, @10, is of no evaluation: who goes on saves none at once."""
    config = replace(tiny(**SETTINGS, checkpoint_interval=5), out_dir="runs/mine")
    run_until_crash(config, 11)
    return config


@pytest.mark.parametrize("meanwhile", [False, True], ids=["", "the original went on"])
@pytest.mark.parametrize("same_data", [True, False], ids=["same data", "other data"])
def test_a_fork_without_a_checkpoint_begins_again_from_where_it_began(
    broken_off: TrainConfig, other_data: str, same_data: bool, meanwhile: bool
) -> None:
    changes: dict[str, Any] = {"max_iters": 20, "eval_interval": 20, "checkpoint_interval": 20}
    changes |= {"init_from": "runs/mine"} | ({} if same_data else {"data_dir": other_data})
    whole, fork = (replace(broken_off, out_dir=f"runs/{name}", **changes) for name in ("whole", "fork"))
    train(whole)
    run_until_crash(fork, 15 if same_data else 3)
    assert not list(Path("runs/fork", CHECKPOINTS_DIR).glob("*"))
    if meanwhile:
        assert resume("runs/mine").iter == 12
    assert resume("runs/fork").iter == 20
    assert run_losses("runs/fork") == run_losses("runs/whole")
    assert list(run_losses("runs/fork")) == list(range(11 if same_data else 1, 21))
    assert_same_tensors(last_tensors("runs/fork"), last_tensors("runs/whole"))
    value, reason = choices("runs/fork")["resume"]
    assert value == "runs/mine@10"
    assert "no checkpoint yet" in reason


def test_a_fork_whose_origin_is_gone_says_so(broken_off: TrainConfig) -> None:
    fork = replace(
        broken_off, out_dir="runs/fork", init_from="mine", eval_interval=20, checkpoint_interval=20
    )
    run_until_crash(fork, 11)
    Path("runs/mine").rename("runs/elsewhere")
    before = Path("runs/fork", journal.FILE_NAME).read_bytes()
    with pytest.raises(UserError, match="runs/mine@10 is neither a run"):
        resume("runs/fork")
    assert Path("runs/fork", journal.FILE_NAME).read_bytes() == before


def test_a_run_that_began_from_nanogpts_weights_begins_again_from_them(
    here: Path, tiny: MakeConfig, tiny_data: Path
) -> None:
    size = open_dataset(tiny_data).manifest.vocab_size
    path = ckpt.write_nanogpt_ckpt(here / "out-theirs/ckpt.pt", size)
    changes = {"init_from": str(path), "init_state": "weights", "max_iters": 6}
    whole, stopped = tiny("whole", **changes), tiny("stopped", **changes)
    train(whole)
    run_until_crash(stopped, 4)
    resume(stopped.out_dir)
    assert choices(stopped.out_dir)["init_from"] == choices(whole.out_dir)["init_from"]
    assert_same_tensors(last_tensors(stopped.out_dir), last_tensors(whole.out_dir))


def test_a_checkpoint_without_an_optimizer_is_not_said_to_have_one(
    here: Path, tiny: MakeConfig, tiny_data: Path
) -> None:
    content = ckpt.make_nanogpt_ckpt(open_dataset(tiny_data).manifest.vocab_size)
    del content["optimizer"]
    (here / "out").mkdir()
    torch.save(content, "out/ckpt.pt")
    config = tiny(init_from="out", init_state="all", max_iters=5)
    train(config)
    reason = choices(config.out_dir)["init_from"][1]
    assert reason == "resumes at update 3 with a new optimizer: the checkpoint has none"
    assert list(run_losses(config.out_dir)) == [4, 5]


def test_a_preset_that_stands_in_for_a_file_says_so(here: Path) -> None:
    request = resolve_request(find_recipe("my/own/train_shakespeare_char.py"), {})
    (note,) = request.choices
    assert (note.name, note.value) == ("preset", "shakespeare_char")
    assert note.reason == "my/own/train_shakespeare_char.py is not on disk"


def test_settings_that_are_cut_off_and_no_checkpoint_are_refused(mine: TrainConfig) -> None:
    shutil.rmtree(Path("runs/mine", CHECKPOINTS_DIR))
    Path("runs/mine", CONFIG_FILE).write_text("n_layer = 2\n")
    with pytest.raises(UserError, match="no checkpoint"):
        resume("runs/mine")
