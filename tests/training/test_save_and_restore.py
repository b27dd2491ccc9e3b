"""A run that was stopped and resumed is, to the last bit, the run that was never stopped."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import (
    MakeConfig,
    assert_same_tensors,
    capture_learners,
    choices,
    last_tensors,
    records,
    resume,
    run_evals,
    run_losses,
    run_task,
    run_until_crash,
    tensor_bytes,
    weights,
)
from torch import Tensor

from glassgpt.data.prepare import prepare
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.errors import UserError
from glassgpt.record.journal import FILE_NAME, read
from glassgpt.record.run_dir import CHECKPOINTS_DIR
from glassgpt.training.checkpoint.checkpoints import load_latest_intact, read_checkpoint
from glassgpt.training.loader import BatchLoader
from glassgpt.training.run_request import resume_request
from glassgpt.training.session import train

# Everything that could differ: dropout, several micro-batches, clipping, a schedule, both kinds of interval.
HARD: dict[str, Any] = {
    "max_iters": 40,
    "dropout": 0.1,
    "gradient_accumulation_steps": 2,
    "grad_clip": 0.5,
    "eval_interval": 8,
    "checkpoint_interval": 17,
    "keep_checkpoints": 9,
}


def assert_same_run(one: str, other: str) -> None:
    assert run_losses(one) == run_losses(other)
    assert run_evals(one) == run_evals(other)
    assert_same_tensors(last_tensors(one), last_tensors(other))
    for field in ("loss_mean", "grad_norm", "lr", "clipped", "updates", "tokens"):
        assert [step[field] for step in records(one, "step")] == [
            step[field] for step in records(other, "step")
        ], field


@pytest.mark.parametrize(
    ("dtype", "arch", "stop_at"),
    [
        ("float32", "gpt2", 9),
        ("float32", "gpt2", 18),
        ("float32", "modern", 24),
        ("bfloat16", "gpt2", 23),
        ("bfloat16", "modern", 39),
    ],
)
def test_resuming_is_exact(tiny: MakeConfig, dtype: str, arch: str, stop_at: int) -> None:
    settings = HARD | {"dtype": dtype, "arch": arch}
    whole, config = tiny("whole", **settings), tiny("stopped", **settings)
    train(whole)
    assert sum(step["clipped"] for step in records(whole.out_dir, "step")) > 10
    run_until_crash(config, stop_at)
    run = resume(config)
    assert (run.reason, run.iter) == ("finished", 40)
    assert 8 <= records(config.out_dir, "resume")[-1]["from_iter"] <= stop_at
    assert_same_run(config.out_dir, whole.out_dir)


def test_stopped_before_the_first_checkpoint_it_begins_again(tiny: MakeConfig) -> None:
    whole, config = tiny("whole", **HARD), tiny("stopped", **HARD)
    train(whole)
    run_until_crash(config, 7)
    resume(config)
    value, reason = choices(config.out_dir)["resume"]
    assert value == "update 0"
    assert "no checkpoint yet" in reason
    assert_same_run(config.out_dir, whole.out_dir)


def test_any_number_of_stops(tiny: MakeConfig) -> None:
    whole, config = tiny("whole", **HARD), tiny("stopped", **HARD)
    train(whole)
    run_until_crash(config, 10)
    for stop in (12, 19, 26, 38):
        run_until_crash(dataclasses.replace(config, init_from="resume"), stop)
    resume(config)
    assert len(records(config.out_dir, "run")) == 6
    assert_same_run(config.out_dir, whole.out_dir)


@pytest.mark.parametrize(("log_interval", "eval_interval"), [(3, 8), (1, 5), (7, 3), (100, 100)])
def test_evaluating_at_other_iterations_after_a_resume_changes_nothing(
    tiny: MakeConfig, log_interval: int, eval_interval: int
) -> None:
    whole, config = tiny("whole", **HARD), tiny("stopped", **HARD)
    train(whole)
    run_until_crash(config, 23)
    resume(config, log_interval=log_interval, eval_interval=eval_interval)
    losses, evals = run_losses(config.out_dir), run_evals(config.out_dir)
    assert losses.items() <= run_losses(whole.out_dir).items()
    assert 40 in losses
    for key in evals.keys() & run_evals(whole.out_dir).keys():
        assert evals[key] == run_evals(whole.out_dir)[key]
    assert (40, "val") in evals
    one, other = last_tensors(config.out_dir), last_tensors(whole.out_dir)
    for file in ("model", "optimizer"):
        assert_same_tensors({file: one[file]}, {file: other[file]})


@pytest.mark.parametrize("log_interval", [4, 10, 16])
def test_an_interval_that_was_interrupted_is_logged_whole(tiny: MakeConfig, log_interval: int) -> None:
    settings = HARD | {"log_interval": log_interval}
    whole, config = tiny("whole", **settings), tiny("stopped", **settings)
    train(whole)
    run_until_crash(config, 23)
    resume(config)
    assert_same_run(config.out_dir, whole.out_dir)


def test_max_iters_can_be_raised(tiny: MakeConfig) -> None:
    settings = HARD | {"lr_decay_iters": 100, "eval_interval": 10}
    whole, config = tiny("whole", **settings), tiny("longer", **settings | {"max_iters": 20})
    train(whole)
    train(config)
    with pytest.raises(UserError, match="the run has done its 20 updates; --max_iters=40 would continue it"):
        resume(config, learning_rate=0.5)
    resume(config, max_iters=40)
    assert run_losses(config.out_dir) == run_losses(whole.out_dir)
    assert_same_tensors(last_tensors(config.out_dir), last_tensors(whole.out_dir))


def test_another_batch_size_reads_on_where_the_first_one_stopped(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_sequences: list[int] = []
    original = BatchLoader.micro_batch

    def note(stream: BatchLoader, first: int, following: int) -> tuple[Tensor, Tensor]:
        first_sequences.append(first)
        return original(stream, first, following)

    monkeypatch.setattr(BatchLoader, "micro_batch", note)
    config = tiny(max_iters=3, gradient_accumulation_steps=2)
    train(config)
    resume(config, batch_size=3, gradient_accumulation_steps=1, max_iters=5)
    assert first_sequences == [0, 4, 8, 12, 16, 20, 24, 27]
    assert [step["tokens"] for step in records(config.out_dir, "step")] == [64, 128, 192, 216, 240]


def test_the_folder_is_looked_at_again_once_it_is_locked(tiny: MakeConfig, tmp_path: Path) -> None:
    """Another process may have saved since the request was made."""
    config = tiny(max_iters=6, checkpoint_interval=3, keep_checkpoints=9)
    run_dir = train(config).out_dir
    for name, saved_later in (("some", ["00000006"]), ("none", ["00000003", "00000006"])):
        folder = shutil.copytree(run_dir, tmp_path / name) / CHECKPOINTS_DIR
        for path in [*folder.iterdir()]:
            path.rename(tmp_path / f"{name}-{path.name}" if path.name in saved_later else path)
        request = resume_request(folder.parent, {"max_iters": 8})
        for later in saved_later:
            (tmp_path / f"{name}-{later}").rename(folder / later)
        assert run_task(request).iter == 8
        assert records(folder.parent, "resume")[-1]["from_iter"] == 6
    request = resume_request(run_dir, {"max_iters": 8})
    shutil.rmtree(run_dir / CHECKPOINTS_DIR)
    with pytest.raises(UserError, match="has no checkpoint to resume from"):  # and no random weights instead
        run_task(request)


def test_the_journal_records_what_was_superseded(tiny: MakeConfig) -> None:
    config = tiny(**HARD)
    run_until_crash(config, 23)
    end = records(config.out_dir, "end")[-1]
    assert end["reason"] == "crashed"
    assert end["error"].startswith("Crash")
    resume(config)
    everything = list(read(Path(config.out_dir) / FILE_NAME))
    done_twice = [r["iter"] for r in everything if r["kind"] == "step" and r["process"] == 0]
    assert done_twice[-1] == 23
    steps = records(config.out_dir, "step")
    assert [step["iter"] for step in steps] == list(range(1, 41))
    start = records(config.out_dir, "resume")[-1]["from_iter"]
    assert [step["process"] for step in steps] == [0] * start + [1] * (40 - start)


def test_best_and_counters_come_back(tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(max_iters=20)
    first = train(config)
    state = load_latest_intact(first.out_dir)[0].state
    run = resume(config, eval_only=True)
    assert (run.best_val_loss, run.best_iter) == (first.best_val_loss, first.best_iter)
    assert state["progress"]["best_val_loss"] == first.best_val_loss
    assert state["val_loss"] == run_evals(config.out_dir)[20, "val"]


def test_a_state_is_plain_json(tiny: MakeConfig) -> None:
    config = tiny(max_iters=20, checkpoint_interval=5, eval_interval=100, keep_checkpoints=9)
    train(config)
    for path in sorted((Path(config.out_dir) / CHECKPOINTS_DIR).iterdir()):
        text = (path / "state.json").read_text()

        def refuse(constant: str) -> float:
            raise AssertionError(f"{constant} is not JSON")

        state = json.loads(text, parse_constant=refuse)["state"]
        assert state["iter"] == read_checkpoint(path).iter
        assert state["config"]["seed"] == 1337
        assert len(state["data_hash"]) == 64


def test_what_was_loaded_is_what_was_saved(tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(max_iters=11)
    learners = capture_learners(monkeypatch)
    train(config)
    resume(config, eval_only=True)
    before, after = learners
    assert_same_tensors({"model": weights(before)}, {"model": weights(after)})
    assert after.model.lm_head.weight is after.model.transformer.wte.weight
    names = dict(before.model.named_parameters())
    assert names.keys() == last_tensors(config.out_dir)["model"].keys()
    for (name, one), other in zip(names.items(), after.model.parameters(), strict=True):
        for key, value in before.optimizers[0].state[one].items():
            assert tensor_bytes(value) == tensor_bytes(after.optimizers[0].state[other][key]), f"{name}:{key}"


def test_a_resumed_run_does_not_depend_on_the_old_file(tiny: MakeConfig) -> None:
    # Were the optimizer's state still mapped from the file, truncating it would kill by a bus error.
    config = tiny(max_iters=5)
    train(config)
    with pytest.MonkeyPatch.context() as patch:
        learners = capture_learners(patch)
        resume(config, eval_only=True)
    mapped = Path("/proc/self/maps")
    if not mapped.exists():
        pytest.skip("reads /proc")
    assert learners[0].optimizers[0].state
    files = [line.split()[-1] for line in mapped.read_text().splitlines() if config.out_dir in line]
    assert files == []


# --- what does not fit ---


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"n_layer": 3}, "--n_layer=3 does not fit"),
        ({"n_embd": 32, "n_head": 4}, "--n_head=4 does not fit"),
        ({"arch": "modern"}, "--arch=modern does not fit"),
        ({"block_size": 4}, "--block_size=4 does not fit"),
        ({"activation": "relu2"}, "--activation=relu2 does not fit"),
        ({"bias": True}, "--bias=True does not fit"),
    ],
)
def test_another_model_is_refused(tiny: MakeConfig, changes: dict[str, Any], expected: str) -> None:
    config = tiny(max_iters=3)
    train(config)
    before = (Path(config.out_dir) / FILE_NAME).read_bytes()
    with pytest.raises(UserError) as caught:
        resume(config, **changes)
    assert expected in str(caught.value)
    assert len(caught.value.problems) >= len(changes)
    assert (Path(config.out_dir) / FILE_NAME).read_bytes() == before


def test_other_dropout_is_allowed(tiny: MakeConfig) -> None:
    config = tiny(max_iters=3)
    train(config)
    assert resume(config, dropout=0.5, max_iters=5).iter == 5


def other_data(folder: Path, text: str) -> str:
    (folder / "other.txt").write_text(text)
    out = folder / "other"
    options = PrepareOptions(str(folder / "other.txt"), out_dir=str(out))
    prepare(options, print_line=lambda line: None, progress=False)
    return str(out)


def test_another_alphabet_is_refused(tiny: MakeConfig, tmp_path: Path) -> None:
    config = tiny(max_iters=3)
    train(config)
    data_dir = other_data(tmp_path, "abc" * 200)
    with pytest.raises(UserError, match=r"has a vocabulary of 3, .*00000003 of 16"):
        resume(config, data_dir=data_dir)


def test_an_alphabet_of_the_same_size_is_refused_too(tiny: MakeConfig, tmp_path: Path) -> None:
    config = tiny(max_iters=3)
    train(config)
    size = records(config.out_dir, "run")[0]["model"]["vocab_size"]
    data_dir = other_data(tmp_path, "".join(chr(0x3B1 + i) for i in range(size)) * 40)
    with pytest.raises(UserError, match="numbers its tokens differently"):
        resume(config, data_dir=data_dir)


def test_before_any_evaluation_best_is_infinite_and_comes_back_so(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(max_iters=10, checkpoint_interval=3)
    monkeypatch.setattr("glassgpt.training.loop.evaluation_is_due", lambda config, state: False)
    assert train(config).best_val_loss == math.inf
    run = resume(config, max_iters=12)
    assert run.best_val_loss == math.inf
    assert run.best_iter is None


def test_what_was_drawn_before_a_start_does_not_show(tiny: MakeConfig) -> None:
    """The global random generator is not part of the state."""
    for name, seed in (("a", 1), ("b", 2)):
        torch.manual_seed(seed)
        train(tiny(name, max_iters=5, dropout=0.3))
    assert run_losses(tiny("a").out_dir) == run_losses(tiny("b").out_dir)
