"""Trials in a separate process: one that fails is replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from conftest import MakeConfig
from tune_machines import SMALL, cpu_machine

from glassgpt.errors import UserError
from glassgpt.isolate import IsolatedProcess, ProcessDied, ProcessHung
from glassgpt.tune import trial_runner
from glassgpt.tune.speed_settings import SpeedSettings
from glassgpt.tune.trial_runner import TrialRunner
from glassgpt.tune.trial_server import TrialServer

SETTING = SpeedSettings(micro_batch=4)

# --- the runner ---


class Scripted(IsolatedProcess):
    """Answers from a list, in the test's own process; what is no dictionary is raised."""

    answers: ClassVar[list[Any]] = []
    made: ClassVar[list[int | None]] = []
    closed: ClassVar[int] = 0

    def __init__(self, threads: int | None = None) -> None:
        Scripted.made.append(threads)

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        answer = Scripted.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    def close(self) -> None:
        Scripted.closed += 1


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Iterator[TrialRunner]:
    monkeypatch.setattr(Scripted, "answers", [dataclasses.asdict(cpu_machine())])
    monkeypatch.setattr(Scripted, "made", [])
    monkeypatch.setattr(Scripted, "closed", 0)
    with TrialRunner(Scripted) as made:
        made.inspect_machine(SMALL, None, 10, 90)
        yield made


RAN = {"outcome": "ran", "update_s": [0.1, 0.2], "micro_steps": 1, "first_s": 1.0, "peak_bytes": 5}


def test_one_worker_does_many_trials(runner: TrialRunner) -> None:
    Scripted.answers += [RAN, RAN, {"outcome": "impossible", "why": "no"}, RAN]
    outcomes = [runner.measure(SETTING, 10).outcome for _ in range(4)]
    assert outcomes == ["ran", "ran", "impossible", "ran"]
    assert Scripted.made == [None]


@pytest.mark.parametrize(
    ("answer", "outcome", "why"),
    [
        ({"outcome": "out of memory", "why": "CUDA out of memory"}, "out of memory", "CUDA out of memory"),
        ({"outcome": "crashed", "why": "RuntimeError: bad"}, "crashed", "RuntimeError: bad"),
        (ProcessHung(), "hung", "no answer after 10 s"),
        (ProcessDied(7, "bad\n"), "crashed", "bad (exit code 7)"),
        (ProcessDied(-9), "out of memory", "killed"),  # which the kernel does when there is none left
    ],
)
def test_a_worker_that_failed_is_replaced(runner: TrialRunner, answer: Any, outcome: str, why: str) -> None:
    Scripted.answers += [answer, RAN]
    trial = runner.measure(SETTING, 10)
    assert (trial.outcome, trial.why) == (outcome, why)
    assert Scripted.closed == 1
    assert runner.measure(SETTING, 10).outcome == "ran"
    assert Scripted.made == [None, None]


def test_a_worker_that_compiled_is_replaced(runner: TrialRunner) -> None:
    Scripted.answers += [RAN] * 2
    runner.measure(SpeedSettings(micro_batch=4, compile=True), 10)
    runner.measure(SETTING, 10)
    assert Scripted.made == [None, None]


def test_another_number_of_threads_is_another_process(runner: TrialRunner) -> None:
    Scripted.answers += [RAN] * 4
    for threads in (None, 1, 1, None):
        runner.measure(SpeedSettings(micro_batch=4, threads=threads), 10)
    assert Scripted.made == [None, 1, None]
    assert Scripted.closed == 2


def test_a_machine_that_cannot_be_inspected(monkeypatch: pytest.MonkeyPatch) -> None:
    for answer, said in (
        (ProcessHung(), "--budget=5s is too short to compare anything here: try --budget=90s"),
        (ProcessDied(1, "no torch"), r"cannot be started: no torch \(exit code 1\)"),
        ({"outcome": "crashed", "why": "RuntimeError: no"}, "no trial can run: RuntimeError: no"),
        (UserError("--device=cuda is not available here"), "--device=cuda is not available here"),
    ):
        monkeypatch.setattr(Scripted, "answers", [answer])
        with TrialRunner(Scripted) as made, pytest.raises(UserError, match=said):
            made.inspect_machine(SMALL, None, 5, 5)


# --- the work itself ---


def test_out_of_memory_errors_are_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    for error, outcome in (
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "out of memory"),
        (MemoryError(), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "out of memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), "out of memory"),
        (RuntimeError("mat1 and mat2"), "crashed"),
    ):
        work = TrialServer()

        def fail(request: Any, error: Exception = error) -> Any:
            raise error

        monkeypatch.setattr(work, "_answer", fail)
        assert work.answer({})["outcome"] == outcome


# --- for real ---


def test_a_real_worker(tiny: MakeConfig) -> None:
    """It does a trial after one that is not possible, and ends."""
    with TrialRunner() as runner:
        runner.timed_s = 0.1
        context = runner.inspect_machine(tiny(batch_size=4), None, 60, 60)
        assert context.sequences == 4
        impossible = runner.measure(SpeedSettings(micro_batch=4, attention="cudnn"), 30)
        trial = runner.measure(SpeedSettings(micro_batch=2, threads=1), 60)
    assert impossible.outcome == "impossible"
    assert (trial.outcome, trial.micro_steps) == ("ran", 2)
    assert trial.wall_s > 0.15


def test_threads_are_set_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(trial_runner, "IsolatedProcess", lambda *given: started.append(given))
    for threads in (None, 3):
        trial_runner.start_worker(threads)
    assert started == [
        ("glassgpt.tune.trial_server", {}),
        ("glassgpt.tune.trial_server", {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"}),
    ]
