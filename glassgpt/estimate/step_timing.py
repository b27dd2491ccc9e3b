"""From seconds and tokens to step time, tokens/s, FLOP/s, MFU and ETA.

Pure arithmetic, so that every figure is tested with a fake clock. The identities hold by construction:
tokens/s x FLOPs/token = FLOP/s, and FLOP/s / peak = MFU.
"""

from __future__ import annotations

from dataclasses import dataclass

from glassgpt.estimate.peak import PeakFlops, mfu_percent
from glassgpt.record.ledger import Ledger, phase_seconds_between

STEP_PHASES = ("data", "train")  # the phases of the ledger that count as step time


@dataclass(frozen=True)
class Rates:
    """All None if there was no timed update."""

    step_ms: float | None
    tokens_per_s: float | None
    flops_per_s: float | None
    mfu: float | None


def compute_rates(
    updates: int,
    seconds: float,
    tokens_per_update: int,
    flops_per_token: int,
    peak: PeakFlops,
    ranks: int = 1,
) -> Rates:
    """`ranks`: devices that shared the updates; `peak` is of one."""
    if updates == 0 or seconds <= 0:
        return Rates(None, None, None, None)
    tokens_per_s = updates * tokens_per_update / seconds
    flops_per_s = tokens_per_s * flops_per_token
    return Rates(seconds / updates * 1000, tokens_per_s, flops_per_s, mfu_percent(flops_per_s / ranks, peak))


class LogInterval:
    """The time between two log lines.

    The first update of a process includes compiling and warming up. Its whole time goes into the phase
    `compile`, and not into the step time. Once steady updates are timed, one step is moved back to `train`.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._opened = self._timed_from = self._data_split_at = ledger.seconds()
        self._compile_includes_step = False
        self.updates = 0  # that count for the step time
        self.first_update_s: float | None = None  # if the process's first update is in this interval

    @property
    def opened(self) -> dict[str, float]:
        """Seconds by phase when it began: of the first one, since the process was created."""
        return self._opened

    def count_update(self, first_s: float | None = None) -> None:
        """`first_s`: its time, if it was the first of this process."""
        if first_s is None:
            self.updates += 1
        else:
            self.first_update_s = first_s
            self._timed_from = self._ledger.seconds()
            self._compile_includes_step = True

    def exclude_last_update(self, before: dict[str, float]) -> None:
        """The last update was profiled, which is slow: its time goes to `log`, not into the step time.
        `before`: the ledger when it began."""
        spent = phase_seconds_between(before, self._ledger.seconds())
        for name in STEP_PHASES:
            self._ledger.reassign(name, "log", spent[name])
        self.updates -= 1
        self._data_split_at = self._ledger.seconds()

    def correct_data_wait(self, waited_s: float | None) -> None:
        """Replaces the host's time in `data` by how long the device waited for data, if that is known."""
        now = self._ledger.seconds()
        if waited_s is not None:
            by_host = now["data"] - self._data_split_at["data"]
            self._ledger.reassign("data", "train", by_host - waited_s)
            self._ledger.reassign("train", "data", waited_s - by_host)
        self._data_split_at = self._ledger.seconds()

    def close(self) -> tuple[float, dict[str, float]]:
        """Seconds of the timed updates, and seconds per phase of everything; begins the next interval."""
        now = self._ledger.seconds()
        timed = phase_seconds_between(self._timed_from, now)
        seconds = sum(timed[name] for name in STEP_PHASES)
        phases = phase_seconds_between(self._opened, now)
        if self._compile_includes_step and self.updates:
            steady = seconds / self.updates
            self._ledger.reassign("compile", "train", steady)
            self._compile_includes_step = False
            if phases["compile"] > steady:  # the first update was in this very interval
                phases["compile"] -= steady
                phases["train"] += steady
        self._opened = self._timed_from = self._ledger.seconds()
        self.updates, self.first_update_s = 0, None
        return seconds, phases


@dataclass
class RunningMean:
    """For the ETA: the mean time of an evaluation or a save."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else 0.0


@dataclass(frozen=True)
class RemainingWork:
    """What a run still has to do."""

    updates: int
    evaluations: float  # of both splits; the closing one counts as a part or a multiple of such
    saves: int


def remaining_work(
    done: int,
    max_iters: int,
    eval_interval: int,
    checkpoint_interval: int | None = None,
    is_evaluated: bool = False,
    closing_eval: float = 0.0,
) -> RemainingWork:
    """After `done` updates. `is_evaluated`: the evaluation that is due at that update is over.
    `checkpoint_interval`: None if each evaluation saves. `closing_eval`: the pass over the whole validation
    split at the end, in evaluations of both splits."""
    evaluated = done if is_evaluated else done - 1
    evaluations = _multiples_between(evaluated, max_iters, eval_interval)
    saves = evaluations
    if checkpoint_interval is not None:
        saves = _multiples_between(evaluated, max_iters, checkpoint_interval)
    return RemainingWork(max(0, max_iters - done), evaluations + closing_eval, saves)


def _multiples_between(start: int, end: int, interval: int) -> int:
    """How many multiples of `interval` come after `start`, up to `end`. The end always counts as one."""
    return end // interval - start // interval + (end % interval != 0) if start < end else 0


def eta_s(work: RemainingWork, step_s: float | None, eval_s: float, save_s: float) -> float | None:
    """Seconds until the end of the run, with evaluations and checkpoints."""
    if step_s is None:
        return None
    return work.updates * step_s + work.evaluations * eval_s + work.saves * save_s
