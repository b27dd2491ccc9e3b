"""Trials in a process of their own: what fails is replaced, and nothing stays behind."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import psutil  # type: ignore[import-untyped]
import pytest
from conftest import MakeConfig
from tune_machines import SMALL, cpu_machine

from glassgpt.errors import UserError
from glassgpt.tune.speed_settings import SpeedSettings
from glassgpt.tune.worker import TrialServer
from glassgpt.tune.worker_process import TrialRunner, TrialWorker, WorkerDied, WorkerHung

SETTING = SpeedSettings(micro_batch=4)
_FIRST = "import json, os, sys, time\nfor line in sys.stdin:\n    asked = json.loads(line)\n"


def worker(body: str) -> type[TrialWorker]:
    """A worker that does `body` at every request; `asked` is the request, `say` answers."""
    say = "    say = lambda answer: print(json.dumps(answer), flush=True)\n"
    lines = "".join(f"    {line}\n" for line in body.splitlines())

    class Scripted(TrialWorker):
        command = (sys.executable, "-c", _FIRST + say + lines)

    return Scripted


@pytest.fixture
def opened() -> Iterator[Callable[[type[TrialWorker]], TrialWorker]]:
    workers: list[TrialWorker] = []

    def open_worker(kind: type[TrialWorker]) -> TrialWorker:
        workers.append(kind())
        return workers[-1]

    yield open_worker
    for one in workers:
        one.close()


def pid_of(one: TrialWorker) -> int:
    return one._process.pid


def is_gone(pid: int, within_s: float = 10.0) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


# --- a worker ---


def test_it_answers_one_after_the_other(opened: Callable[[type[TrialWorker]], TrialWorker]) -> None:
    one = opened(worker("say({'twice': 2 * asked['n']})"))
    assert [one.send_request({"n": n}, 20)["twice"] for n in range(3)] == [0, 2, 4]


def test_a_user_error_is_raised(opened: Callable[[type[TrialWorker]], TrialWorker]) -> None:
    one = opened(worker("say({'problems': ['--n_head is wrong', '--n_embd too']})"))
    with pytest.raises(UserError) as error:
        one.send_request({}, 20)
    assert error.value.problems == ["--n_head is wrong", "--n_embd too"]


def test_a_worker_that_hangs_is_abandoned(opened: Callable[[type[TrialWorker]], TrialWorker]) -> None:
    one = opened(worker("time.sleep(60)"))
    with pytest.raises(WorkerHung):
        one.send_request({}, 0.3)
    one.close()
    assert is_gone(pid_of(one))


def test_a_worker_that_dies_reports_why(opened: Callable[[type[TrialWorker]], TrialWorker]) -> None:
    one = opened(worker("print('a line\\nSegmentation fault', file=sys.stderr)\nsys.exit(7)"))
    with pytest.raises(WorkerDied, match=r"Segmentation fault \(exit code 7\)"):
        one.send_request({}, 20)
    with pytest.raises(WorkerDied):
        one.send_request({}, 20)
    other = opened(worker("os.abort()"))
    with pytest.raises(WorkerDied, match="signal 6"):
        other.send_request({}, 20)


def test_its_children_end_with_it(opened: Callable[[type[TrialWorker]], TrialWorker]) -> None:
    """The compiler starts processes of its own."""
    one = opened(
        worker(
            "import subprocess\n"
            "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
            "say({'child': child.pid})"
        )
    )
    child = int(one.send_request({}, 20)["child"])
    assert psutil.pid_exists(child)
    one.close()
    assert is_gone(child)


def test_threads_are_set_before_the_start() -> None:
    kind = worker("say({'threads': os.environ.get('OMP_NUM_THREADS')})")
    for threads in (1, 3):
        one = kind(threads)
        try:
            assert one.send_request({}, 20)["threads"] == str(threads)
        finally:
            one.close()


# --- the runner ---


class Scripted(TrialWorker):
    """Answers from a list, in the test's own process; what is no dictionary is raised."""

    answers: ClassVar[list[Any]] = []
    made: ClassVar[list[int | None]] = []
    closed: ClassVar[int] = 0

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads
        Scripted.made.append(threads)

    def send_request(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
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
        (WorkerHung(), "hung", "no answer after 10 s"),
        (WorkerDied("exit code 7"), "crashed", "exit code 7"),
        (WorkerDied("killed"), "out of memory", "killed"),  # which the kernel does when there is none left
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
        (WorkerHung(), "--budget=5s is too short to compare anything here: try --budget=90s"),
        (WorkerDied("no torch"), "cannot be started: no torch"),
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
    """It survives what prints to its output, and does a trial after one that is not possible."""
    with TrialRunner() as runner:
        runner.timed_s = 0.1
        context = runner.inspect_machine(tiny(batch_size=4), None, 60, 60)
        assert context.sequences == 4
        impossible = runner.measure(SpeedSettings(micro_batch=4, attention="cudnn"), 30)
        trial = runner.measure(SpeedSettings(micro_batch=2, threads=1), 60)
        pid = pid_of(runner._worker_with_threads(1))
    assert impossible.outcome == "impossible"
    assert (trial.outcome, trial.micro_steps) == ("ran", 2)
    assert trial.wall_s > 0.15
    assert is_gone(pid)


def test_a_worker_ends_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import time\nfrom glassgpt.tune.worker_process import TrialWorker\n"
        "one = TrialWorker()\nprint(one._process.pid, flush=True)\ntime.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert psutil.pid_exists(pid)
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    assert is_gone(pid)
