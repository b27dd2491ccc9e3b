"""Trials, and the probe of `glass plan`, run in a separate process, so that one that runs out of memory,
crashes or hangs ends alone. Does not import torch.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from contextlib import closing

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.estimate.measured_speed import ProbeResult
from glassgpt.isolate import IsolatedProcess, JsonObject, ProcessDied, ProcessHung
from glassgpt.tune.results import Trial
from glassgpt.tune.search import budget_too_short_message
from glassgpt.tune.speed_settings import SpeedSettings, TuneContext, context_from_document


def start_worker(threads: int | None = None) -> IsolatedProcess:
    """`threads`: OpenMP reads the count at start-up."""
    names = () if threads is None else ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    return IsolatedProcess("glassgpt.tune.trial_server", dict.fromkeys(names, str(threads)))


class TrialRunner:
    """Keeps one worker ready, and replaces it after a failure.

    `with TrialRunner() as runner:` starts it: importing torch takes seconds, which the caller can use.
    """

    def __init__(self, start: Callable[[int | None], IsolatedProcess] = start_worker) -> None:
        self._start = start
        self._threads: int | None = None  # of the worker
        self._worker: IsolatedProcess | None = start(None)
        self._base_request: JsonObject = {}
        self._context: TuneContext | None = None
        self.timed_s = 1.0  # of timed updates in a trial

    def __enter__(self) -> TrialRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self._discard_worker()

    def device_type(self, requested: str, limit_s: float) -> str:
        """The device type here, which selects the tables of a preset."""
        return str(
            self._request_or_fail({"kind": "device", "requested": requested}, limit_s, limit_s)["type"]
        )

    def inspect_machine(
        self, config: TrainConfig, vocab_size: int | None, limit_s: float, budget_s: float
    ) -> TuneContext:
        """`limit_s`: what is left of the budget."""
        self._base_request = {"config": dataclasses.asdict(config), "vocab_size": vocab_size}
        document = self._request_or_fail({"kind": "inspect", **self._base_request}, limit_s, budget_s)
        self._context = context_from_document(document)
        return self._context

    def _request_or_fail(self, request: JsonObject, limit_s: float, budget_s: float) -> JsonObject:
        """A request without which there is nothing to tune."""
        try:
            answer = self._ask(request, None, limit_s)
        except ProcessHung:
            raise UserError(budget_too_short_message(budget_s)) from None
        except ProcessDied as error:
            raise UserError(f"the trial process cannot be started: {error}") from None
        if answer.get("outcome"):
            raise UserError(f"no trial can run: {answer['why']}")
        return answer

    def measure(self, setting: SpeedSettings, limit_s: float) -> Trial:
        """Runs one trial and returns its outcome, whatever that is."""
        begin = time.monotonic()
        assert self._context is not None, "inspect_machine comes first"
        request = {
            "kind": "trial",
            **self._base_request,
            "setting": dataclasses.asdict(setting),
            "sequences": self._context.sequences,
            "micro_steps": self._context.trial_micro_steps(setting),
            "seconds": self.timed_s,
        }
        trial = self._request_trial(request, setting.threads, limit_s)
        # The compiler stays in memory, and would count in the peak of later trials.
        if trial.outcome not in ("ran", "impossible") or setting.compile:
            self._discard_worker()
        return dataclasses.replace(trial, wall_s=time.monotonic() - begin)

    def _request_trial(self, request: JsonObject, threads: int | None, limit_s: float) -> Trial:
        try:
            answer = self._ask(request, threads, limit_s)
        except UserError as error:
            return Trial(outcome="impossible", why=error.problems[0])
        except ProcessHung:
            return Trial(outcome="hung", why=f"no answer after {limit_s:.0f} s")
        except ProcessDied as error:
            if error.was_killed:
                return Trial(outcome="out of memory", why="killed")
            return Trial(outcome="crashed", why=str(error))
        return Trial(**answer | {"update_s": tuple(answer.get("update_s", ()))})

    def _ask(self, request: JsonObject, threads: int | None, limit_s: float) -> JsonObject:
        if self._threads != threads:
            self._discard_worker()
        if self._worker is None:
            self._worker, self._threads = self._start(threads), threads
        answer = self._worker.ask(request, limit_s)
        if "problems" in answer:
            raise UserError(answer["problems"])
        return answer

    def _discard_worker(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


# --- the probe of a plan ---

PROBE_TIMED_S = 3.0  # of updates; with start-up, warm-up and evaluation some ten seconds in all
_PROBE_LIMIT_S = 180.0  # compiling a large model takes a minute and more


def probe_plan(
    config: TrainConfig, start: Callable[[], IsolatedProcess] = start_worker, limit_s: float = _PROBE_LIMIT_S
) -> ProbeResult:
    """`glass plan --probe`: a few updates of a run here. Whatever goes wrong there is an answer too: a run
    that is out of memory here will be so when it is started."""
    begin = time.monotonic()
    request = {"kind": "probe", "config": dataclasses.asdict(config), "seconds": PROBE_TIMED_S}
    with closing(start()) as worker:
        try:
            answer = worker.ask(request, limit_s)
        except ProcessHung:
            result = ProbeResult("hung", f"did not finish within {limit_s:.0f} s")
        except ProcessDied as error:
            if error.was_killed:
                result = ProbeResult("out of memory", "was killed, as Linux does when memory runs out")
            else:
                result = ProbeResult("crashed", f"crashed: {error}")
        else:
            if "problems" in answer:
                result = ProbeResult("not here", f"was refused: {'; '.join(answer['problems'])}")
            elif answer.get("outcome") == "crashed" and "took_s" not in answer:
                result = ProbeResult("crashed", f"crashed: {answer['why']}")
            else:
                result = ProbeResult(**answer | {"update_s": tuple(answer.get("update_s", ()))})
    return dataclasses.replace(result, took_s=time.monotonic() - begin)
