"""Real processes: killed, interrupted, two at once; and what a run says when it has ended."""

from __future__ import annotations

import dataclasses
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_processes import config_file
from tiny import (
    CPU_CHOICES,
    MakeConfig,
    assert_same_tensors,
    choices,
    file_contents,
    inject_non_finite,
    last_tensors,
    records,
    resume,
    run_evals,
    run_losses,
    run_until_crash,
)

from glassgpt import cli
from glassgpt.config import TrainConfig
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.errors import UserError
from glassgpt.recipe import build_config, read_recipe
from glassgpt.record.journal import FILE_NAME, Record
from glassgpt.training import loop, session
from glassgpt.training.checkpoint import checkpoints, saver
from glassgpt.training.checkpoint.checkpoints import load_latest_intact
from glassgpt.training.evaluate import EvalResult, EvalWindows
from glassgpt.training.session import train
from glassgpt.training.train_state import TrainSetup, TrainState

PATIENCE_S = 60  # how long a test waits for another process before it fails

# A process that waits before update 22 until checkpoint 17 is there, and before update 25 for its death.
_TO_BE_KILLED = """
import sys, time
from pathlib import Path
from glassgpt.recipe import build_config, read_recipe
from glassgpt.training.learner import Learner
from glassgpt.training.session import train
from glassgpt.training.train_state import TrainSetup, TrainState

config = build_config(read_recipe(Path(sys.argv[1])), {})
original = Learner.update

def update(learner, number, first_sequence):
    while number == 22 and not (Path(config.out_dir) / "checkpoints" / "00000017").exists():
        time.sleep(0.01)
    if number == 25:
        time.sleep(600)
    original(learner, number, first_sequence)

Learner.update = update
train(config)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts processes, and sees to it that none outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def popen(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=tmp_path,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        started.append(process)
        return process

    yield popen
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[str], happened: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        if process.poll() is not None:
            pytest.fail(f"it ended with {process.returncode}:\\n{process.communicate()[0]}")
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)


def has(config: TrainConfig, kind: str, iteration: int) -> bool:
    if not (Path(config.out_dir) / FILE_NAME).exists():
        return False
    return any(record["iter"] >= iteration for record in records(config.out_dir, kind))


# --- killed ---


@pytest.mark.parametrize("intervals", [{}, {"log_interval": 3, "eval_interval": 7}])
def test_killed_and_resumed_it_is_the_run_that_was_never_killed(
    tiny: MakeConfig, start: Start, intervals: dict[str, int]
) -> None:
    settings: dict[str, Any] = {
        "max_iters": 40,
        "dropout": 0.1,
        "gradient_accumulation_steps": 2,
        "grad_clip": 0.5,
        "eval_interval": 15,
        "checkpoint_interval": 17,
    }
    whole, config = tiny("whole", **settings), tiny("killed", **settings)
    train(whole)
    assert sum(step["clipped"] for step in records(whole.out_dir, "step")) > 10

    process = start("-c", _TO_BE_KILLED, config_file(config))
    wait_for(process, lambda: has(config, "step", 25) and has(config, "checkpoint", 17))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert records(config.out_dir, "end") == []
    assert [record["iter"] for record in records(config.out_dir, "step")] == list(range(1, 26))

    run = resume(config, **intervals)
    assert (run.reason, run.iter) == ("finished", 40)
    assert records(config.out_dir, "resume")[-1]["from_iter"] == 17
    one, other = last_tensors(config.out_dir), last_tensors(whole.out_dir)
    for file in ("model", "optimizer"):
        assert_same_tensors({file: one[file]}, {file: other[file]})
    losses, evals = run_losses(config.out_dir), run_evals(config.out_dir)
    if not intervals:
        assert losses == run_losses(whole.out_dir)
        assert evals == run_evals(whole.out_dir)
    assert losses.items() <= run_losses(whole.out_dir).items()
    shared = evals.keys() & run_evals(whole.out_dir).keys()
    assert shared >= {(0, "val"), (15, "val"), (40, "train"), (40, "val")}
    assert {key: evals[key] for key in shared} == {key: run_evals(whole.out_dir)[key] for key in shared}


# --- interrupted, through the command line ---


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_a_run_that_goes_on(
    tiny: MakeConfig, start: Start, number: signal.Signals, code: int
) -> None:
    config = tiny(max_iters=10**7, lr_decay_iters=1000, eval_interval=10**6, log_interval=5)
    process = start("-m", "glassgpt", "train", config_file(config))
    wait_for(process, lambda: has(config, "step", 20))

    # While it lives nobody else may write there.
    with pytest.raises(UserError, match="another process is training in"):
        resume(config)
    with pytest.raises(UserError, match="holds a run already"):
        train(config)

    process.send_signal(number)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, output
    assert "Traceback" not in output
    end = records(config.out_dir)[-1]
    assert (end["kind"], end["reason"], end["exit_code"]) == ("end", "interrupted", code)
    stopped_at = end["iter"]
    assert load_latest_intact(Path(config.out_dir))[0].iter == stopped_at >= 20
    # From the creation of the process: importing torch alone takes longer than these steps.
    assert sum(end["ledger"].values()) == pytest.approx(end["wall_s"], rel=1e-9)
    run_record = records(config.out_dir, "run")[0]
    assert end["ledger"]["startup"] > 0.3
    assert end["time"] - run_record["time"] < end["wall_s"]
    assert end["ledger"]["other"] < 0.02 * end["wall_s"]

    run = resume(config, max_iters=stopped_at + 10)
    assert (run.reason, run.iter) == ("finished", stopped_at + 10)
    steps = [step["iter"] for step in records(config.out_dir, "step")]
    assert steps == sorted(set(steps))


# --- through the command line, in this process ---


def command(config: TrainConfig) -> list[str]:
    return ["train", config_file(config)]


def test_the_exit_code_is_the_runs(tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(max_iters=3)
    assert cli.main(command(config)) == 0
    assert cli.main([*command(config), f"--out_dir={config.out_dir}"]) == 2  # a run is never overwritten
    assert records(config.out_dir)[-1]["exit_code"] == 0


def test_a_file_that_names_a_folder_starts_a_row_of_runs(tiny: MakeConfig) -> None:
    config = tiny(max_iters=3)
    for number in ("", "-2", "-3"):
        assert cli.main(command(config)) == 0
        assert len(records(config.out_dir + number, "end")) == 1
    value, reason = choices(config.out_dir + "-3")["out_dir"]
    assert value == config.out_dir + "-3"
    assert "never overwritten" in reason
    # Going on means the newest of the row.
    assert cli.main([*command(config), "--init_from=resume", "--max_iters=5"]) == 0
    assert records(config.out_dir + "-3", "end")[-1]["iter"] == 5


def test_the_end_record_has_the_programs_exit_code(tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saver, "write_packed", fail)
    config = tiny(max_iters=20)
    code = cli.main(command(config))
    assert records(config.out_dir)[-1]["exit_code"] == code


def test_what_a_run_returns(tiny: MakeConfig) -> None:
    config = tiny(max_iters=20)
    run = train(config)
    end = records(config.out_dir)[-1]
    assert run.out_dir == Path(config.out_dir)
    assert run.best_val_loss == end["best_val_loss"] < math.log(21)
    assert run.best_iter == end["best_iter"]


def test_a_crash_is_recorded_and_not_swallowed(tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassgpt.training.loop.update", lambda run, state: 1 / 0)
    config = tiny()
    with pytest.raises(ZeroDivisionError):
        train(config)
    end = records(config.out_dir)[-1]
    assert (end["reason"], end["exit_code"]) == ("crashed", 1)
    assert end["error"] == "ZeroDivisionError: division by zero"
    # The lock is gone, so that the folder can be used at once.
    monkeypatch.undo()
    assert resume(config).exit_code == 0


def test_the_same_settings_give_the_same_run(tiny: MakeConfig) -> None:
    for name in ("a", "b"):
        train(tiny(name, dropout=0.1))
    train(tiny("c", dropout=0.1, seed=1))
    a, b, c = (tiny(name).out_dir for name in "abc")
    assert run_losses(a) == run_losses(b)
    assert_same_tensors(last_tensors(a), last_tensors(b))
    assert run_losses(a) != run_losses(c)


def test_the_written_config_asks_for_the_same_run(tiny: MakeConfig) -> None:
    config = tiny(dropout=0.1)
    train(config)
    again = build_config(
        read_recipe(Path(config.out_dir) / "config.toml"), {"out_dir": config.out_dir + "-again"}
    )
    assert again == dataclasses.replace(config, out_dir=again.out_dir, **CPU_CHOICES)
    train(again)
    assert run_losses(again.out_dir) == run_losses(config.out_dir)


# --- going on with a run ---


def test_resuming_from_python_keeps_the_settings_of_the_run(tiny: MakeConfig) -> None:
    config = tiny(max_iters=4, learning_rate=0.02, seed=5)
    train(config)
    run = session.resume(config.out_dir, max_iters=8)
    assert (run.reason, run.iter) == ("finished", 8)
    last = records(config.out_dir, "run")[-1]["config"]
    assert (last["learning_rate"], last["seed"], last["max_iters"]) == (0.02, 5, 8)


def test_a_stop_during_the_closing_pass_can_be_made_good(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(max_iters=4, eval_tokens=32)
    original = loop.evaluate_split

    def stopping(
        run: TrainSetup, state: TrainState, split: str, windows: EvalWindows, closing: bool = False
    ) -> EvalResult | None:
        if closing:
            state.signals.signal = signal.SIGINT
        return original(run, state, split, windows, closing)

    monkeypatch.setattr(loop, "evaluate_split", stopping)
    run = train(config)
    assert (run.reason, run.exit_code) == ("interrupted", 130)
    assert not any(record["closing"] for record in records(config.out_dir, "eval"))
    monkeypatch.undo()
    assert session.resume(config.out_dir).reason == "finished"
    assert [record["closing"] for record in records(config.out_dir, "eval")][-1]


def test_a_finished_run_that_is_resumed_unchanged_is_left_alone(
    tiny: MakeConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    """`until glass train --init_from=resume …` ends, whenever the run was killed."""
    config = tiny(max_iters=8, eval_interval=4)
    first = train(config)
    before = file_contents(config.out_dir)
    for changes in ({}, {"max_iters": 8}, {"max_iters": 3}, {"compile": "auto"}, {"learning_rate": 1e-2}):
        assert session.resume(config.out_dir, **changes) == dataclasses.replace(first, was_over=True)
    assert resume(config) == dataclasses.replace(first, was_over=True)
    for flags in ([], ["--max_iters=8"], ["--device=auto"], ["--eval_iters=none"]):
        assert cli.main(["train", "--init_from=resume", f"--out_dir={config.out_dir}", *flags]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert f"{first.best_val_loss:.4f}" in line
        assert "--max_iters=16" in line
    with pytest.raises(UserError, match="--max_iters=16"):
        session.resume(config.out_dir, learning_rate=0.5)
    assert file_contents(config.out_dir) == before
    assert session.resume(config.out_dir, eval_only=True).reason == "evaluated"
    before = file_contents(config.out_dir)
    assert session.resume(config.out_dir).was_over
    with pytest.raises(UserError, match="--max_iters=16"):
        session.resume(config.out_dir, learning_rate=0.5)
    assert file_contents(config.out_dir) == before
    longer = session.resume(config.out_dir, max_iters=10)
    assert (longer.reason, longer.iter, longer.was_over) == ("finished", 10, False)


def test_a_run_that_stopped_early_and_is_resumed_unchanged_is_left_alone(tiny: MakeConfig) -> None:
    config = tiny(max_iters=50, eval_interval=1, patience=1, learning_rate=1e-9, min_lr=0.0)
    first = train(config)
    assert first.reason == "stopped early"
    before = file_contents(config.out_dir)
    assert session.resume(config.out_dir) == dataclasses.replace(first, was_over=True)
    assert file_contents(config.out_dir) == before
    longer = session.resume(config.out_dir, patience=0, max_iters=first.iter + 1)
    assert (longer.reason, longer.iter) == ("finished", first.iter + 1)


def test_a_finished_run_that_lost_its_end_or_its_last_checkpoint_is_finished_again(tiny: MakeConfig) -> None:
    config = tiny(max_iters=8, eval_interval=4, keep_checkpoints=2)
    train(config)
    path = Path(config.out_dir) / FILE_NAME
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    run = session.resume(config.out_dir)
    assert (run.reason, run.iter, run.was_over) == ("finished", 8, False)
    tensors = Path(config.out_dir) / "checkpoints" / "00000008" / "model.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"?")
    run = session.resume(config.out_dir)
    assert (run.reason, run.iter, run.was_over) == ("finished", 8, False)
    assert records(config.out_dir, "resume")[-1]["from_iter"] == 4


def test_losses_on_other_tokens_do_not_compete(tiny: MakeConfig) -> None:
    config = tiny(max_iters=6, eval_interval=3, eval_tokens=32, keep_checkpoints=1)
    first = train(config)
    run = session.resume(config.out_dir, max_iters=8, eval_tokens=64, learning_rate=1e-6, min_lr=1e-7)
    (complaint,) = records(config.out_dir, "resume")[-1]["complaints"]
    assert "is not comparable" in complaint
    assert run.best_iter is not None
    assert run.best_iter > 6
    kept_iters = {
        checkpoints.read_checkpoint(path).iter for path in checkpoints.committed_paths(Path(config.out_dir))
    }
    assert kept_iters == {first.best_iter, run.best_iter, 8}


def test_a_look_at_a_run_does_not_change_its_settings(tiny: MakeConfig) -> None:
    config = tiny(max_iters=4)
    train(config)
    before = (Path(config.out_dir) / "config.toml").read_bytes()
    assert session.resume(config.out_dir, eval_only=True, eval_tokens=48).reason == "evaluated"
    assert (Path(config.out_dir) / "config.toml").read_bytes() == before


def test_what_led_up_to_a_bad_update_is_on_record(tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(max_iters=80, log_interval=60, eval_interval=100)
    inject_non_finite(monkeypatch, 7, "loss")
    run = train(config)
    assert (run.exit_code, run.iter) == (3, 7)
    end = records(config.out_dir, "end")[-1]
    assert end["bad_iter"] == 8
    norms = end["recent_grad_norms"]
    assert len(norms) == 8
    assert all(math.isfinite(norm) for norm in norms[:7])
    (step,) = records(config.out_dir, "step")
    assert (step["iter"], step["updates"]) == (8, 8)
    assert math.isnan(step["loss"])


def test_half_a_team_is_refused_rather_than_trained_side_by_side(
    tiny: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    config = tiny()
    with pytest.raises(
        UserError, match="lacks RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT: start them with torch"
    ):
        train(config)
    assert not Path(config.out_dir).exists()


def test_a_run_with_muon_goes_on_exactly(tiny: MakeConfig) -> None:
    whole, cut = (
        tiny(name, optimizer="muon", arch="modern", tie_embeddings=False, dropout=0.1)
        for name in ("whole", "cut")
    )
    train(whole)
    run_until_crash(cut, 13)
    resume(cut)
    assert run_losses(cut.out_dir) == run_losses(whole.out_dir)
    assert_same_tensors(last_tensors(cut.out_dir), last_tensors(whole.out_dir))


def test_threads_are_this_runs_only(tiny: MakeConfig) -> None:
    before = torch.get_num_threads()
    config = tiny(threads=1)
    train(config)
    choice = next(one for one in records(config.out_dir, "run")[0]["choices"] if one["name"] == "threads")
    assert (choice["value"], choice["reason"]) == (1, "asked for")
    assert records(config.out_dir, "run")[0]["machine"]["cpu"]["torch_threads"] == 1
    assert torch.get_num_threads() == before


# --- from Python ---


def test_a_preset_or_a_file_by_name(tiny: MakeConfig, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {name: value for name, value in vars(tiny(max_iters=2)).items() if name != "out_dir"}
    run = train("quickstart", **small)
    assert (run.out_dir, run.iter) == (Path("runs/quickstart"), 2)
    path = Path(config_file(tiny("file", max_iters=3, eval_interval=3)))
    assert train(path, max_iters=1, out_dir=here / "mine", sample_tokens=2).out_dir == here / "mine"
    assert train(str(path), "mine", out_dir="").out_dir == Path("runs/mine")
    assert train(tiny("config", max_iters=9), max_iters=1, data_dir=Path(small["data_dir"])).iter == 1
    assert train("quickstart", init_from="resume", max_iters=4).iter == 4
    prepared = []

    def prepare(options: PrepareOptions, *_: Any, **__: Any) -> None:
        prepared.append(options.dataset)
        raise UserError("as far as this test goes")

    monkeypatch.setattr("glassgpt.data.prepare.prepare", prepare)
    with pytest.raises(UserError, match="this test"):
        train("quickstart")
    assert prepared == ["pylib"]


def test_wrong_types_are_mistakes_like_any_other_and_all_are_said(tiny: MakeConfig) -> None:
    wrong = tiny(n_layer="4", max_iters=1.5, dropout=None, sample_start=3, bias="False", n_head=-1, seed=[1])
    with pytest.raises(UserError) as caught:
        train(wrong, 7, print, learning_rate="x", max_iter=1)  # type: ignore[arg-type]
    problems = " ".join(caught.value.problems)
    names = ("n_layer", "max_iters", "dropout", "sample_start", "bias", "n_head", "seed", "learning_rate")
    assert len(caught.value.problems) == len(names) + 3
    for name in (*(f"--{name}" for name in names), "name=7", "listeners=", "--max_iter;"):
        assert name in problems
    for config in (None, {"n_layer": 4}, 5, b"quickstart", TrainConfig, "quikstart"):
        with pytest.raises(UserError):
            train(config)  # type: ignore[arg-type]
    for out_dir in (None, 5, ""):
        with pytest.raises(UserError) as caught:
            session.resume(out_dir, max_iters="a")  # type: ignore[arg-type]
        assert len(caught.value.problems) == 2
    assert train(tiny(max_iters=np.int64(2), compile=False, learning_rate=np.float32(0.01))).iter == 2


def random_states() -> tuple[Any, ...]:
    cuda = [state.tolist() for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else []
    return torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate(), cuda


def test_the_callers_random_numbers_are_left_alone(tiny: MakeConfig) -> None:
    torch.manual_seed(5)
    torch.rand(3)
    before = random_states()
    train(tiny(max_iters=2, dropout=0.1))
    session.resume(tiny().out_dir, max_iters=3)
    with pytest.raises(UserError):
        train(tiny(max_iters=2))
    assert random_states() == before


@pytest.mark.gpu
def test_the_callers_random_numbers_on_a_card_are_left_alone(tiny: MakeConfig) -> None:
    torch.manual_seed(5)
    torch.rand(3, device="cuda")
    before = random_states()
    for graph in ("on", "off"):
        train(tiny(graph, max_iters=12, dropout=0.1, device="cuda", graph=graph))
        assert random_states() == before


def test_a_second_run_in_another_thread_is_refused(tiny: MakeConfig) -> None:
    alone, config = tiny("alone", dropout=0.2, max_iters=6), tiny(dropout=0.2, max_iters=6)
    train(alone)
    refused: list[UserError] = []

    def second(record: Record) -> None:
        if record["kind"] == "step" and not refused:
            try:
                train(tiny("second", max_iters=1))
            except UserError as error:
                refused.append(error)

    train(config, listeners=[second])
    assert len(refused) == 1
    assert not Path(tiny("second").out_dir).exists()
    assert run_losses(config.out_dir) == run_losses(alone.out_dir)
    assert train(tiny("second", max_iters=1)).iter == 1
