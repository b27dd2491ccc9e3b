"""What was forecast, beside what happens: is this speed normal, and was the plan right."""

from __future__ import annotations

from dataclasses import dataclass, field

from glassgpt.cgroup import usable_cores
from glassgpt.estimate.forecast import RunForecast
from glassgpt.estimate.loss_law import ExpectedLossCurve, compare_with_expected
from glassgpt.format import format_bytes, format_count, format_duration
from glassgpt.record import machine
from glassgpt.record.finding import Severity, finding_record
from glassgpt.record.journal import Record
from glassgpt.record.machine import CpuTimes

MIN_PACE_SECONDS = 5.0  # of updates: from then on a pace is a pace
_MIN_RUN_SECONDS = 60.0  # of a run: shorter ones are mostly start-up, which differs from day to day
_MISS_TOLERANCE = 0.10
_IGNORED_MISS_BYTES = 2**28  # of a card: no tensors of ours, but what cuBLAS works in
_MIN_UPDATES_FOR_LOSS = 200  # for a loss to be on a course
_CPU_CHECK_INTERVAL_S = 5.0  # between two looks at who uses the cores
_MIN_SLOWDOWN_RATIO = 1.5  # times: so much slower than it was is no noise
_STARVED_CORES_PER_THREAD = (
    0.5  # of a core for each thread; threads that wait for each other spin, so alone they use all of it
)


@dataclass
class CpuContention:
    """The last look at who uses the cores, and what was measured up to then."""

    cpu_times: CpuTimes
    tokens: int = 0
    seconds: float = 0.0
    best_tokens_per_s: float = 0.0  # tokens/s between two looks
    was_reported: bool = False


@dataclass
class ForecastCheck:
    """What is measured on the way, for the forecast to be held against."""

    forecast: RunForecast
    expectation: ExpectedLossCurve | None = (
        None  # of the loss; None: it begins with weights that learned before
    )
    tokens: int = 0  # of the updates that were timed
    seconds: float = 0.0  # that they took
    data_wait_s: float = 0.0  # of them, for data
    memory_before_bytes: int = 0  # on the card, by what this process did before the run
    peak_memory_bytes: int = 0
    pace_was_reported: bool = False  # whether the pace is normal
    tuning_s: float = 0.0  # that --tune took before: in the ledger it is start-up, but nobody forecast it
    cpu_contention: CpuContention = field(default_factory=lambda: CpuContention(machine.read_cpu_times()))

    def add(self, tokens: int, seconds: float, waited_s: float, memory: dict[str, int]) -> None:
        """An interval of updates, and the memory at its end."""
        self.tokens += tokens
        self.seconds += seconds
        self.data_wait_s += min(waited_s, seconds)
        if self.forecast.on_card:
            self.peak_memory_bytes = max(
                self.peak_memory_bytes, memory["allocated_peak"] - self.memory_before_bytes
            )
        elif "allocated_peak" not in memory:  # Apple's GPU keeps no peak: nothing to compare with
            self.peak_memory_bytes = max(self.peak_memory_bytes, memory["rss"])

    @property
    def tokens_per_s(self) -> float | None:
        return self.tokens / self.seconds if self.seconds > 0 and self.tokens else None

    def as_dict(self, wall_s: float, finished: bool) -> Record:
        """Each figure as it was expected and as it was; None where it is not known."""
        expected = self.forecast.as_dict()
        return {
            "memory_bytes": {
                "expected": expected["memory_bytes"],
                "measured": self.peak_memory_bytes or None,
            },
            "tokens_per_s": {"expected": expected["tokens_per_s"], "measured": self.tokens_per_s},
            "total_s": {
                "expected": expected["total_s"],
                "measured": wall_s - self.tuning_s if finished else None,
                "tuning_s": self.tuning_s,
            },
        }


def pace_finding(outcome: ForecastCheck, iteration: int, one_thread: str = "") -> Record | None:
    """Whether the speed is normal; said once, when updates have gone on for a while. `one_thread`: the
    command that resumes a run of several CPU threads with one."""
    pace, found = outcome.forecast.throughput, outcome.tokens_per_s
    if outcome.pace_was_reported or pace is None or found is None or outcome.seconds < MIN_PACE_SECONDS:
        return None
    outcome.pace_was_reported = True
    expected = f"expected {format_count(pace.low)} to {format_count(pace.high)}: {pace.why}"
    if found > pace.high:
        title = f"this is faster than expected: {format_count(found)} tokens/s"
        why = "The expectation rests on few measurements; yours is better."
        return finding_record(iteration, "pace", "info", title, evidence=expected, explanation=why, advice="")
    if found >= pace.low:
        title = f"this speed is normal here: {format_count(found)} tokens/s"
        why = "Runs like this one on machines like this one are about as fast."
        return finding_record(iteration, "pace", "info", title, evidence=expected, explanation=why, advice="")
    cause, advice = _likely_cause(outcome, one_thread)
    title = f"this is slower than expected: {format_count(found)} tokens/s"
    return finding_record(
        iteration, "pace", "advice", title, evidence=expected, explanation=cause, advice=advice
    )


def _likely_cause(outcome: ForecastCheck, one_thread: str) -> tuple[str, str]:
    """And an advice that is understood without it: the console prints only that."""
    waiting = outcome.data_wait_s / outcome.seconds
    if waiting > 0.1:
        return (
            f"Updates wait {waiting:.0%} of the time for data.",
            "updates wait for data: put it on a local disk, or in memory",
        )
    load, cores = machine.load_average(), usable_cores()
    if load > 1.5 * cores:
        return (
            f"Other programs keep the machine busy: load {load:.1f} on {cores:g} cores.",
            _free_cores_advice(one_thread),
        )
    return (
        "A card that is shared, hot or limited in power is slow, and so is a CPU with other work.",
        "`glass doctor` looks at the machine, `glass tune` tries settings",
    )


def _free_cores_advice(one_thread: str) -> str:
    stopping = "stop the other programs that keep this machine busy"
    return f"{stopping}, or stop this run and resume with `{one_thread}`" if one_thread else stopping


def cpu_contention_finding(
    outcome: ForecastCheck, iteration: int, threads: int, one_thread: str, now: CpuTimes
) -> Record | None:
    """If a run on several CPU threads became slow because other programs took its cores; said once."""
    last, cores = outcome.cpu_contention, usable_cores()
    if (
        last.was_reported
        or now.wall_s - last.cpu_times.wall_s < _CPU_CHECK_INTERVAL_S
        or outcome.seconds <= last.seconds
    ):
        return None
    speed = (outcome.tokens - last.tokens) / (outcome.seconds - last.seconds)
    others, best = machine.cores_used_by_others(last.cpu_times, now), max(last.best_tokens_per_s, speed)
    got = (now.own_s - last.cpu_times.own_s) / (
        now.wall_s - last.cpu_times.wall_s
    )  # cores that this process had
    is_slow = speed * _MIN_SLOWDOWN_RATIO < best or got < _STARVED_CORES_PER_THREAD * threads
    is_crowded = is_slow and others + threads > cores + 0.5
    outcome.cpu_contention = CpuContention(now, outcome.tokens, outcome.seconds, best, is_crowded)
    if not is_crowded:
        return None
    return finding_record(
        iteration, "cores-taken", "advice",
        f"other programs take the cores: {format_count(speed)} tokens/s, {format_count(best)} at best",
        evidence=f"they keep {others:.1f} of {cores:g} cores busy; our {threads} threads got {got:.1f}",
        explanation="Threads wait for each other at every operation: one on a taken core holds up all.",
        advice=_free_cores_advice(one_thread),
    )  # fmt: skip


def loss_curve_finding(outcome: ForecastCheck, iteration: int, val_loss: float | None) -> Record | None:
    """Whether a run's validation loss is what such a run usually has there."""
    if outcome.expectation is None or val_loss is None or iteration < _MIN_UPDATES_FOR_LOSS:
        return None
    verdict = compare_with_expected(outcome.expectation, iteration, val_loss)
    severity: Severity = "advice" if verdict.position == "above" else "info"
    basis = "; ".join(outcome.expectation.basis)
    if verdict.position == "on":
        title, advice = f"the validation loss is normal here: {val_loss:.4f}", ""
    else:
        title = f"the validation loss is {verdict.position} what is usual: {val_loss:.4f}"
        advice = f"maybe {'; or '.join(verdict.causes)}"
    return finding_record(
        iteration, "loss-course", severity, title,
        evidence=verdict.sentence, explanation=f"{basis}.", advice=advice,
    )  # fmt: skip


def forecast_miss_finding(
    outcome: ForecastCheck, iteration: int, wall_s: float, finished: bool
) -> Record | None:
    """Where a run was not as forecast, by more than a tenth."""
    took_s = wall_s - outcome.tuning_s
    is_telling = finished and took_s >= _MIN_RUN_SECONDS
    forecast, misses = outcome.forecast, []
    expected = forecast.as_dict()["memory_bytes"]
    off = outcome.peak_memory_bytes - expected if outcome.peak_memory_bytes else 0
    is_much = abs(off) > max(_MISS_TOLERANCE * expected, _IGNORED_MISS_BYTES if forecast.on_card else 0)
    # A card's memory is what it is, however short the run; less of it may be because a run was stopped.
    if is_much and (is_telling or (forecast.on_card and off > 0)):
        misses.append(f"memory {format_bytes(outcome.peak_memory_bytes)} instead of {format_bytes(expected)}")
    if forecast.total_s is not None and is_telling:
        low, _, high = forecast.total_s
        if not (1 - _MISS_TOLERANCE) * low <= took_s <= (1 + _MISS_TOLERANCE) * high:
            tuning = (
                f", the {format_duration(outcome.tuning_s)} of --tune left out" if outcome.tuning_s else ""
            )
            misses.append(
                f"{format_duration(took_s)} instead of {format_duration(low)} to {format_duration(high)}{tuning}"
            )
    if not misses:
        return None
    return finding_record(
        iteration, "forecast-missed", "info", "the run was not as forecast",
        evidence=", ".join(misses),
        explanation="The forecast counts tensors and rests on measured speeds of similar runs.",
        advice="`glass plan` shows what it is made of",
    )  # fmt: skip
