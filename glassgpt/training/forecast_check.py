"""What was forecast, beside what happens: is this speed normal, and was the plan right."""

from __future__ import annotations

from dataclasses import dataclass, field

from glassgpt.cgroup import usable_cores
from glassgpt.estimate.forecast import Forecast
from glassgpt.estimate.loss_check import compare
from glassgpt.estimate.loss_law import Expectation
from glassgpt.format import count, duration, size
from glassgpt.record import machine
from glassgpt.record.finding import Severity, finding_record
from glassgpt.record.journal import Record
from glassgpt.record.machine import CpuTimes

SETTLED_S = 5.0  # of updates: from then on a pace is a pace
_LONG_S = 60.0  # of a run: shorter ones are mostly start-up, which differs from day to day
_MISS = 0.10
_LITTLE_BYTES = 2**28  # of a card: no tensors of ours, but what cuBLAS works in
_ENOUGH_UPDATES = 200  # for a loss to be on a course
_LOOK_S = 5.0  # between two looks at who uses the cores
_SLOWED = 1.5  # times: so much slower than it was is no noise
_STARVED = (
    0.5  # of a core for each thread; threads that wait for each other spin, so alone they use all of it
)


@dataclass
class Crowding:
    """The last look at who uses the cores, and what was measured up to then."""

    times: CpuTimes
    tokens: int = 0
    seconds: float = 0.0
    best: float = 0.0  # tokens/s between two looks
    was_told: bool = False


@dataclass
class Outcome:
    """What is measured on the way, for the forecast to be held against."""

    forecast: Forecast
    expectation: Expectation | None = None  # of the loss; None: it begins with weights that learned before
    tokens: int = 0  # of the updates that were timed
    seconds: float = 0.0  # that they took
    waited_s: float = 0.0  # of them, for data
    held_before: int = 0  # on the card, by what this process did before the run
    most_memory: int = 0
    was_told: bool = False  # whether the pace is normal
    tuning_s: float = 0.0  # that --tune took before: in the ledger it is start-up, but nobody forecast it
    crowding: Crowding = field(default_factory=lambda: Crowding(machine.cpu_times()))

    def add(self, tokens: int, seconds: float, waited_s: float, memory: dict[str, int]) -> None:
        """An interval of updates, and the memory at its end."""
        self.tokens += tokens
        self.seconds += seconds
        self.waited_s += min(waited_s, seconds)
        if self.forecast.on_card:
            self.most_memory = max(self.most_memory, memory["allocated_peak"] - self.held_before)
        elif "allocated_peak" not in memory:  # Apple's GPU keeps no peak: nothing to compare with
            self.most_memory = max(self.most_memory, memory["rss"])

    @property
    def tokens_per_s(self) -> float | None:
        return self.tokens / self.seconds if self.seconds > 0 and self.tokens else None

    def as_dict(self, wall_s: float, finished: bool) -> Record:
        """Each figure as it was expected and as it was; None where it is not known."""
        expected = self.forecast.as_dict()
        return {
            "memory_bytes": {"expected": expected["memory_bytes"], "measured": self.most_memory or None},
            "tokens_per_s": {"expected": expected["tokens_per_s"], "measured": self.tokens_per_s},
            "total_s": {
                "expected": expected["total_s"],
                "measured": wall_s - self.tuning_s if finished else None,
                "tuning_s": self.tuning_s,
            },
        }


def pace_finding(outcome: Outcome, iteration: int, one_thread: str = "") -> Record | None:
    """Whether the speed is normal; said once, when updates have gone on for a while. `one_thread`: the
    command that resumes a run of several CPU threads with one."""
    pace, found = outcome.forecast.pace, outcome.tokens_per_s
    if outcome.was_told or pace is None or found is None or outcome.seconds < SETTLED_S:
        return None
    outcome.was_told = True
    expected = f"expected {count(pace.low)} to {count(pace.high)}: {pace.why}"
    if found > pace.high:
        title = f"this is faster than expected: {count(found)} tokens/s"
        why = "The expectation rests on few measurements; yours is better."
        return finding_record(iteration, "pace", "info", title, evidence=expected, explanation=why, advice="")
    if found >= pace.low:
        title = f"this speed is normal here: {count(found)} tokens/s"
        why = "Runs like this one on machines like this one are about as fast."
        return finding_record(iteration, "pace", "info", title, evidence=expected, explanation=why, advice="")
    cause, advice = _likely_cause(outcome, one_thread)
    title = f"this is slower than expected: {count(found)} tokens/s"
    return finding_record(
        iteration, "pace", "advice", title, evidence=expected, explanation=cause, advice=advice
    )


def _likely_cause(outcome: Outcome, one_thread: str) -> tuple[str, str]:
    """And an advice that is understood without it: the console prints only that."""
    waiting = outcome.waited_s / outcome.seconds
    if waiting > 0.1:
        return (
            f"Updates wait {waiting:.0%} of the time for data.",
            "updates wait for data: put it on a local disk, or in memory",
        )
    load, cores = machine.load(), usable_cores()
    if load > 1.5 * cores:
        return (
            f"Other programs keep the machine busy: load {load:.1f} on {cores:g} cores.",
            _with_less(one_thread),
        )
    return (
        "A card that is shared, hot or limited in power is slow, and so is a CPU with other work.",
        "`glass doctor` looks at the machine, `glass tune` tries settings",
    )


def _with_less(one_thread: str) -> str:
    stopping = "stop the other programs that keep this machine busy"
    return f"{stopping}, or stop this run and resume with `{one_thread}`" if one_thread else stopping


def cores_finding(
    outcome: Outcome, iteration: int, threads: int, one_thread: str, now: CpuTimes
) -> Record | None:
    """If a run on several CPU threads became slow because other programs took its cores; said once."""
    last, cores = outcome.crowding, usable_cores()
    if last.was_told or now.clock - last.times.clock < _LOOK_S or outcome.seconds <= last.seconds:
        return None
    speed = (outcome.tokens - last.tokens) / (outcome.seconds - last.seconds)
    others, best = machine.others_cores(last.times, now), max(last.best, speed)
    got = (now.own - last.times.own) / (now.clock - last.times.clock)  # cores that this process had
    is_slow = speed * _SLOWED < best or got < _STARVED * threads
    is_crowded = is_slow and others + threads > cores + 0.5
    outcome.crowding = Crowding(now, outcome.tokens, outcome.seconds, best, is_crowded)
    if not is_crowded:
        return None
    return finding_record(
        iteration, "cores-taken", "advice",
        f"other programs take the cores: {count(speed)} tokens/s, {count(best)} at best",
        evidence=f"they keep {others:.1f} of {cores:g} cores busy; our {threads} threads got {got:.1f}",
        explanation="Threads wait for each other at every operation: one on a taken core holds up all.",
        advice=_with_less(one_thread),
    )  # fmt: skip


def course_finding(outcome: Outcome, iteration: int, val_loss: float | None) -> Record | None:
    """Whether a run's validation loss is what such a run usually has there."""
    if outcome.expectation is None or val_loss is None or iteration < _ENOUGH_UPDATES:
        return None
    verdict = compare(outcome.expectation, iteration, val_loss)
    severity: Severity = "advice" if verdict.side == "above" else "info"
    basis = "; ".join(outcome.expectation.basis)
    if verdict.side == "on":
        title, advice = f"the validation loss is normal here: {val_loss:.4f}", ""
    else:
        title = f"the validation loss is {verdict.side} what is usual: {val_loss:.4f}"
        advice = f"maybe {'; or '.join(verdict.causes)}"
    return finding_record(
        iteration, "loss-course", severity, title,
        evidence=verdict.sentence, explanation=f"{basis}.", advice=advice,
    )  # fmt: skip


def miss_finding(outcome: Outcome, iteration: int, wall_s: float, finished: bool) -> Record | None:
    """Where a run was not as forecast, by more than a tenth."""
    took_s = wall_s - outcome.tuning_s
    is_telling = finished and took_s >= _LONG_S
    forecast, misses = outcome.forecast, []
    expected = forecast.as_dict()["memory_bytes"]
    off = outcome.most_memory - expected if outcome.most_memory else 0
    is_much = abs(off) > max(_MISS * expected, _LITTLE_BYTES if forecast.on_card else 0)
    # A card's memory is what it is, however short the run; less of it may be because a run was stopped.
    if is_much and (is_telling or (forecast.on_card and off > 0)):
        misses.append(f"memory {size(outcome.most_memory)} instead of {size(expected)}")
    if forecast.total_s is not None and is_telling:
        low, _, high = forecast.total_s
        if not (1 - _MISS) * low <= took_s <= (1 + _MISS) * high:
            tuning = f", the {duration(outcome.tuning_s)} of --tune left out" if outcome.tuning_s else ""
            misses.append(f"{duration(took_s)} instead of {duration(low)} to {duration(high)}{tuning}")
    if not misses:
        return None
    return finding_record(
        iteration, "forecast-missed", "info", "the run was not as forecast",
        evidence=", ".join(misses),
        explanation="The forecast counts tensors and rests on measured speeds of similar runs.",
        advice="`glass plan` shows what it is made of",
    )  # fmt: skip
