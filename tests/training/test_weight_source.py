"""Starting from the weights of another run: exactly those, and no file of that run changes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import (
    Crash,
    MakeConfig,
    assert_same_tensors,
    choices,
    crash_before,
    file_contents,
    last_tensors,
    learner_before_first_update,
    records,
    run_evals,
    run_losses,
    weights,
)

from glassgpt.config import TrainConfig
from glassgpt.data.dataset import open_dataset
from glassgpt.data.prepare import prepare
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.errors import UserError
from glassgpt.model.gpt import GPT
from glassgpt.model.weights import crop_block_size, load_weights
from glassgpt.record.run_dir import CHECKPOINTS_DIR
from glassgpt.training import weight_source
from glassgpt.training.checkpoint.checkpoints import (
    Checkpoint,
    TensorsByFile,
    committed_paths,
    list_checkpoints,
    load_tensors,
    read_checkpoint,
)
from glassgpt.training.session import train
from glassgpt.training.weight_source import load_init_from

# Everything that could differ, and a checkpoint every five updates; the last one is of the 30th.
HARD: dict[str, Any] = {
    "max_iters": 30,
    "dropout": 0.1,
    "gradient_accumulation_steps": 2,
    "grad_clip": 0.5,
    "eval_interval": 8,
    "checkpoint_interval": 5,
    "keep_checkpoints": 99,
    "patience": 50,
}
Fork = Callable[..., TrainConfig]


@pytest.fixture(scope="module")
def whole(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainConfig]:
    """The run that all forks start from. None of its files may change."""
    config = TrainConfig(
        out_dir=str(tmp_path_factory.mktemp("whole") / "run"),
        data_dir=str(tiny_data),
        n_layer=2,
        n_head=2,
        n_embd=16,
        block_size=8,
        batch_size=4,
        learning_rate=1e-2,
        warmup_iters=3,
        device="cpu",
        compile="off",
        probe_seconds=0.0,
        **HARD,
    )
    train(config)
    before = file_contents(config.out_dir)
    yield config
    assert file_contents(config.out_dir) == before


@pytest.fixture
def fork(whole: TrainConfig, tmp_path: Path) -> Fork:
    """`fork("@10", max_iters=5)`: settings of a run in tmp_path/fork that starts from the one above."""

    def make(suffix: str = "", **changes: Any) -> TrainConfig:
        return replace(
            whole, **{"out_dir": str(tmp_path / "fork"), "init_from": whole.out_dir + suffix} | changes
        )

    return make


def tensors_at(run_dir: str, update: int) -> TensorsByFile:
    return load_tensors(read_checkpoint(Path(run_dir) / CHECKPOINTS_DIR / f"{update:08d}"))


@pytest.fixture(scope="module")
def other_data(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another dataset in the same characters: the same lines, from the last to the first."""
    folder = tmp_path_factory.mktemp("other")
    lines = (tiny_data.parent / "tiny.txt").read_text().splitlines()
    (folder / "other.txt").write_text("\n".join(reversed(lines)) + "\n")
    out = folder / "other"
    prepare(PrepareOptions(str(folder / "other.txt"), out_dir=str(out)), print_line=lambda line: None)
    assert open_dataset(out).hash != open_dataset(tiny_data).hash
    return out


# --- a run's checkpoint ---


def assert_resumed(fork: TrainConfig, whole: TrainConfig, update: int) -> None:
    """From there on one run did what the other did, to the last bit."""
    assert_same_tensors(last_tensors(fork.out_dir), last_tensors(whole.out_dir))
    losses = {at: loss for at, loss in run_losses(whole.out_dir).items() if at > update}
    assert run_losses(fork.out_dir) == losses
    evals = {key: loss for key, loss in run_evals(whole.out_dir).items() if key[0] > update}
    assert run_evals(fork.out_dir) == evals
    value, reason = choices(fork.out_dir)["init_from"]
    assert value == str(Path(whole.out_dir) / CHECKPOINTS_DIR / f"{update:08d}")
    assert reason == f"resumes at update {update} with its optimizer"


@pytest.mark.parametrize("update", [5, 10, 16, 25])  # 16 was saved with an evaluation
def test_a_fork_continues_as_the_run_itself_would_have(whole: TrainConfig, fork: Fork, update: int) -> None:
    config = fork(f"@{update}")
    run = train(config)
    assert (run.iter, run.reason, run.out_dir) == (30, "finished", Path(config.out_dir))
    assert_resumed(config, whole, update)


@pytest.mark.parametrize(
    "changes", [{"arch": "modern", "log_interval": 7}, {"dtype": "bfloat16", "bias": True}]
)
def test_so_does_a_fork_with_other_settings(tiny: MakeConfig, changes: dict[str, Any]) -> None:
    settings = HARD | changes
    whole = tiny("whole", **settings)
    train(whole)
    config = tiny("fork", init_from=f"{whole.out_dir}@15", **settings)
    train(config)
    assert_resumed(config, whole, 15)


def test_without_a_number_it_is_the_last_checkpoint(whole: TrainConfig, fork: Fork) -> None:
    config = fork(max_iters=31)
    learner = learner_before_first_update(config)
    assert_same_tensors({"model": weights(learner)}, {"model": last_tensors(whole.out_dir)["model"]})
    assert records(config.out_dir, "resume")[0]["from_iter"] == 30
    with pytest.raises(UserError, match="has done its 30 updates; --max_iters=60 would continue it"):
        train(fork(out_dir=config.out_dir + "-2"))
    assert not Path(config.out_dir + "-2").exists()


def test_a_run_is_found_by_path_and_by_its_name_in_runs(
    tiny: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train(tiny("runs/mine", max_iters=12, eval_interval=4, keep_checkpoints=9))
    checkpoints = [read_checkpoint(path) for path in committed_paths(Path("runs/mine"))]
    assert [checkpoint.iter for checkpoint in checkpoints] == [4, 8, 12]
    lowest = list_checkpoints(Path("runs/mine")).best
    assert lowest is not None
    for name in ("mine", "runs/mine", str(tmp_path / "runs/mine")):
        for suffix, number in (("", 12), ("@last", 12), ("@best", lowest.iter), ("@4", 4), ("@00000008", 8)):
            loaded = load_init_from(name + suffix)
            assert (loaded.iter, loaded.kind) == (number, "run")
            saved = load_tensors(read_checkpoint(Path("runs/mine") / CHECKPOINTS_DIR / f"{number:08d}"))[
                "model"
            ]
            assert_same_tensors({"model": saved}, {"model": {name: loaded.weights[name] for name in saved}})
            assert (
                loaded.val_loss
                == read_checkpoint(Path("runs/mine") / CHECKPOINTS_DIR / f"{number:08d}").val_loss
            )
    assert load_init_from("mine", which="best").iter == lowest.iter


def test_a_name_with_an_at_sign_is_a_name_first(tiny: MakeConfig, tmp_path: Path) -> None:
    train(tiny("me@home", max_iters=3))
    assert load_init_from(str(tmp_path / "me@home")).iter == 3
    assert load_init_from(str(tmp_path / "me@home@3")).iter == 3
    with pytest.raises(UserError, match="me@home has no checkpoint @4"):
        load_init_from(str(tmp_path / "me@home@4"))


@pytest.mark.parametrize("number", ["7", "31", "first", "-5", ""])
def test_of_a_checkpoint_that_is_not_there_those_that_are_get_listed(
    whole: TrainConfig, fork: Fork, number: str
) -> None:
    with pytest.raises(UserError) as caught:
        train(fork(f"@{number}"))
    listed = ", ".join(f"@{int(path.name)}" for path in committed_paths(Path(whole.out_dir)))
    assert listed.startswith("@5, @8, ")
    assert f"has no checkpoint @{number}: it has @last, @best, {listed}; " in str(caught.value)
    assert not Path(fork().out_dir).exists()


def test_what_is_nothing_of_the_kind_is_refused(tiny: MakeConfig, tmp_path: Path) -> None:
    for spec in ("nothing", "nothing@3", str(tmp_path), "gpt3"):
        with pytest.raises(UserError, match=r"is neither a run, nor nanoGPT's ckpt\.pt, nor one of gpt2, "):
            train(tiny(init_from=spec))
    assert not Path(tiny().out_dir).exists()


def test_a_run_without_a_checkpoint_is_reported(tiny: MakeConfig) -> None:
    config = tiny("young", max_iters=20)
    with pytest.MonkeyPatch.context() as patch:
        crash_before(patch, 3)
        with pytest.raises(Crash):
            train(config)
    for suffix in ("", "@best", "@3"):
        with pytest.raises(UserError, match="young has no checkpoint yet"):
            load_init_from(config.out_dir + suffix)


@pytest.fixture
def damaged(whole: TrainConfig, tmp_path: Path) -> Path:
    """A copy of the run, to be damaged."""
    return Path(shutil.copytree(whole.out_dir, tmp_path / "copy"))


def test_a_damaged_last_checkpoint_is_skipped_and_left_as_it_is(damaged: Path, fork: Fork) -> None:
    path = damaged / CHECKPOINTS_DIR / "00000030" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    before = file_contents(str(damaged))
    config = fork(init_from=str(damaged))
    train(config)
    record = records(config.out_dir, "resume")[0]
    assert record["from_iter"] == 25
    assert [str(path) in complaint for complaint in record["complaints"]] == [True]
    assert file_contents(str(damaged)) == before
    # Asked for by its number it must be whole.
    with pytest.raises(UserError, match="is damaged"):
        load_init_from(f"{damaged}@30")
    (path.parent / "state.json").write_text("{}")
    with pytest.raises(UserError, match="is damaged"):
        load_init_from(f"{damaged}@30")
    assert load_init_from(f"{damaged}@25").iter == 25


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_instead_of_a_damaged_best_checkpoint_a_whole_one_will_do(damaged: Path, file: str) -> None:
    lowest = list_checkpoints(damaged).best
    assert lowest is not None
    path = lowest.path / file
    path.write_bytes(path.read_bytes()[:-20])
    loaded = load_init_from(str(damaged), which="best")
    others = [read_checkpoint(other) for other in committed_paths(damaged) if other != lowest.path]
    measured = [checkpoint for checkpoint in others if checkpoint.val_loss is not None]
    second = min(measured, key=lambda checkpoint: checkpoint.val_loss or 0.0)
    # If it says itself that it was the best, no other is, and the last one is taken.
    assert loaded.iter == (second.iter if file == "state.json" else others[-1].iter)
    (complaint,) = loaded.warnings
    assert str(lowest.path) in complaint
    assert "is damaged" in complaint


def test_without_any_whole_checkpoint_all_warnings_are_in_the_error(damaged: Path) -> None:
    paths = committed_paths(damaged)
    for path in paths:
        (path / "model.safetensors").unlink()
    with pytest.raises(UserError) as caught:
        load_init_from(str(damaged), which="best")
    assert len(caught.value.problems) == len(paths) + 1
    assert "has no checkpoint to resume from" in caught.value.problems[-1]


# --- what is taken over ---


@pytest.mark.parametrize(
    ("same_data", "init_state", "everything", "reason"),
    [
        (True, "auto", True, "resumes at update 10 with its optimizer"),
        (True, "all", True, "resumes at update 10 with its optimizer"),
        (True, "weights", False, "weights only, as --init_state asks: starts at update 0"),
        (False, "auto", False, "weights only, because the dataset is different: starts at update 0"),
        (False, "all", True, "resumes at update 10 with its optimizer"),
        (False, "weights", False, "weights only, as --init_state asks: starts at update 0"),
    ],
)
def test_the_data_decides_which_state_is_restored_unless_a_flag_does(
    whole: TrainConfig,
    fork: Fork,
    other_data: Path,
    same_data: bool,
    init_state: str,
    everything: bool,
    reason: str,
) -> None:
    data_dir = whole.data_dir if same_data else str(other_data)
    config = fork("@10", init_state=init_state, data_dir=data_dir)
    learner, saved = learner_before_first_update(config), tensors_at(whole.out_dir, 10)
    assert choices(config.out_dir)["init_from"][1] == reason
    assert_same_tensors({"model": weights(learner)}, {"model": saved["model"]})
    state = {
        f"{name}:{key}": value
        for name, parameter in learner.model.named_parameters()
        for key, value in learner.optimizers[0].state[parameter].items()
    }
    assert_same_tensors({"optimizer": state}, {"optimizer": saved["optimizer"] if everything else {}})
    assert records(config.out_dir, "run")[0]["iter"] == (10 if everything else 0)
    # Other data is reported, and losses on other tokens do not compare.
    warnings = [text for record in records(config.out_dir, "resume") for text in record["complaints"]]
    assert len(warnings) == (2 if everything and not same_data else 0)


def test_weights_alone_train_from_update_0_to_the_end(fork: Fork, other_data: Path, tmp_path: Path) -> None:
    config = fork(data_dir=str(other_data), max_iters=12)
    scratch = replace(config, init_from="scratch", out_dir=str(tmp_path / "scratch"))
    assert (train(config).iter, train(scratch).iter) == (12, 12)
    assert list(run_losses(config.out_dir)) == list(range(1, 13))
    assert run_evals(config.out_dir)[0, "val"] < run_evals(scratch.out_dir)[0, "val"] - 0.3
    assert records(config.out_dir, "resume") == records(config.out_dir, "finding") == []


@pytest.mark.parametrize("arch", ["gpt2", "modern"])
def test_a_smaller_context_crops_positions_and_starts_at_update_0(tiny: MakeConfig, arch: str) -> None:
    whole = tiny("whole", arch=arch, max_iters=5)
    train(whole)
    fork = tiny("fork", arch=arch, block_size=3, init_from=whole.out_dir)
    learner = learner_before_first_update(fork)
    loaded = load_init_from(whole.out_dir)
    shape, cropped = crop_block_size(loaded.model_config, loaded.weights, 3)
    assert learner.model.config == shape
    model, original = GPT(shape).eval(), GPT(loaded.model_config).eval()
    load_weights(model, cropped, "cropped")
    load_weights(original, loaded.weights, "whole")
    assert_same_tensors({"model": weights(learner)}, {"model": dict(model.named_parameters())})
    tokens = torch.tensor([[3, 1, 4]])
    assert torch.equal(learner.model.eval()(tokens), original(tokens))
    reason = "context cut from 8 to 3: starts at update 0"
    assert choices(fork.out_dir)["init_from"][1] == reason
    with pytest.raises(UserError, match=r"--init_state=all is not possible: .* with more context"):
        train(replace(fork, out_dir=tiny("other").out_dir, init_state="all"))


def test_a_fork_of_a_fork(whole: TrainConfig, fork: Fork, tmp_path: Path) -> None:
    first = fork("@10", max_iters=20, lr_decay_iters=30)
    train(first)
    again = fork(init_from=first.out_dir, out_dir=str(tmp_path / "again"))
    train(again)
    assert records(again.out_dir, "resume")[0]["from_iter"] == 20
    assert_same_tensors(last_tensors(again.out_dir), last_tensors(whole.out_dir))


def test_a_run_that_trains_meanwhile_may_take_away_what_is_read(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`glass sample` of a live run: between looking and reading, a newer checkpoint replaced this one."""
    run_dir = train(tiny(max_iters=4, eval_interval=2, keep_checkpoints=9)).out_dir
    original = load_tensors
    taken: list[Path] = []

    def take_away(checkpoint: Checkpoint) -> TensorsByFile:
        if not taken:
            taken.append(checkpoint.path)
            shutil.rmtree(checkpoint.path)
        return original(checkpoint)

    monkeypatch.setattr(weight_source, "load_tensors", take_away)
    monkeypatch.setattr("glassgpt.training.checkpoint.checkpoints.load_tensors", take_away)
    for which in ("best", "last"):
        taken.clear()
        shutil.copytree(run_dir, run_dir.with_name(which))
        loaded = load_init_from(str(run_dir.with_name(which)), which)
        assert taken
        assert loaded.description != str(taken[0])
        assert loaded.warnings == ()
