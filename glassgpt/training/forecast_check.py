"""How a run compares with its forecast: memory, speed, time, the loss curve."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from glassgpt.cgroup import usable_cores
from glassgpt.estimate.forecast import RunForecast
from glassgpt.estimate.loss_law import MIN_UPDATES_FOR_LOSS, ExpectedLossCurve, compare_with_expected
from glassgpt.estimate.measured_speed import LowMidHigh, band_from_repeats, group_means
from glassgpt.i18n import Message, say
from glassgpt.record import machine
from glassgpt.record.finding import Severity, finding_record
from glassgpt.record.journal import Record
from glassgpt.record.machine import CpuTimes
from glassgpt.record.run_dir import resume_command

_MIN_PACE_SECONDS = 5.0  # of updates, before the speed is compared with the forecast
_MIN_INTERVALS = 3  # log intervals, before the forecast is revised by the measured speed
_MIN_RUN_SECONDS = 60.0  # of a run: shorter ones are mostly start-up, which varies
_MISS_TOLERANCE = 0.10  # of the forecast
_IGNORED_MISS_BYTES = 2**28  # of a card's memory: cuBLAS workspaces, which are not forecast
_MIN_DATA_WAIT_SHARE = 0.1  # of the time of updates, to name it as the cause of a slow run
_MIN_LOAD_PER_CORE = 1.5  # to name other programs as the cause of a slow run
_CPU_CHECK_INTERVAL_S = 5.0  # between two checks of who uses the cores
_MIN_SLOWDOWN_RATIO = 1.5  # best speed so far / speed now: less is noise
_STARVED_CORES_PER_THREAD = 0.5  # threads that wait for each other spin: undisturbed, each uses a whole core


# --- during the run ---


@dataclass
class CpuContention:
    """The last check of who uses the cores, and the totals up to then."""

    cpu_times: CpuTimes
    tokens: int = 0
    seconds: float = 0.0
    best_tokens_per_s: float = 0.0  # between two checks
    was_reported: bool = False


@dataclass
class ForecastCheck:
    """Running totals, compared with the forecast during the run and at its end."""

    forecast: RunForecast
    expectation: ExpectedLossCurve | None = None  # None: the run starts from trained weights
    tokens: int = 0  # of the updates that were timed
    seconds: float = 0.0  # that they took
    data_wait_s: float = 0.0  # of these, waiting for data
    first_intervals: list[tuple[int, float]] = field(default_factory=list)  # tokens, seconds; until revised
    revised_total_s: LowMidHigh | None = None  # by the measured speed of the first updates
    memory_before_bytes: int = 0  # allocated on the card by this process before the run
    peak_memory_bytes: int = 0
    pace_was_reported: bool = False
    tuning_s: float = 0.0  # of --tune before the run: start-up in the ledger, but not in the forecast
    process_peak_before_bytes: int = field(default_factory=machine.peak_resident_bytes)
    cpu_times_before: CpuTimes = field(default_factory=machine.read_cpu_times)
    cpu_contention: CpuContention = field(default_factory=lambda: CpuContention(machine.read_cpu_times()))

    def add(self, tokens: int, seconds: float, data_wait_s: float, memory: dict[str, int]) -> None:
        """Adds an interval of updates, and the memory in use at its end."""
        self.tokens += tokens
        self.seconds += seconds
        self.data_wait_s += min(data_wait_s, seconds)
        if self.revised_total_s is None and tokens:
            self.first_intervals.append((tokens, seconds))
        self.add_memory(memory)

    def add_memory(self, memory: dict[str, int]) -> None:
        if self.forecast.on_card:
            self.peak_memory_bytes = max(
                self.peak_memory_bytes, memory["allocated_peak"] - self.memory_before_bytes
            )
        elif "allocated_peak" not in memory:  # Apple's GPU keeps no peak: nothing to compare with
            self.peak_memory_bytes = max(self.peak_memory_bytes, memory["rss"])

    @property
    def measured_memory_bytes(self) -> int:
        """0: unknown. On a CPU memory peaks inside an update, between two log lines. So this is the system's
        count of the process's peak, unless that peak is from before the run."""
        if self.forecast.on_card or not self.peak_memory_bytes:
            return self.peak_memory_bytes
        process_peak = machine.peak_resident_bytes()
        is_of_this_run = process_peak > self.process_peak_before_bytes
        return max(self.peak_memory_bytes, process_peak if is_of_this_run else 0)

    def measured_band(self, device_type: str) -> LowMidHigh | None:
        """Tokens per second by the first updates; None: too few so far, or used already."""
        intervals = self.first_intervals
        if self.revised_total_s is not None or len(intervals) < _MIN_INTERVALS:
            return None
        if sum(seconds for _, seconds in intervals) < _MIN_PACE_SECONDS:
            return None
        per_token = group_means([seconds / tokens for tokens, seconds in intervals])
        return band_from_repeats([1 / seconds for seconds in per_token], device_type)

    @property
    def tokens_per_s(self) -> float | None:
        return self.tokens / self.seconds if self.seconds > 0 and self.tokens else None

    def as_dict(self, wall_s: float, finished: bool) -> Record:
        """Each figure as expected and as measured; None where unknown."""
        expected = self.forecast.as_dict()
        return {
            "memory_bytes": {
                "expected": expected["memory_bytes"],
                "measured": self.measured_memory_bytes or None,
            },
            "tokens_per_s": {"expected": expected["tokens_per_s"], "measured": self.tokens_per_s},
            "total_s": {
                "expected": expected["total_s"],
                "revised": None if self.revised_total_s is None else list(self.revised_total_s),
                "measured": wall_s - self.tuning_s if finished else None,
                "tuning_s": self.tuning_s,
            },
        }


def take_speed_findings(check: ForecastCheck, iteration: int, run_dir: Path, threads: int) -> list[Record]:
    """`threads`: of a run in one process on the CPU; 1 for any other run."""
    one_thread = resume_command(run_dir, "--threads=1") if threads > 1 else ""
    findings = [take_pace_finding(check, iteration, one_thread)]
    if one_thread:
        now = machine.read_cpu_times()
        findings.append(take_cpu_contention_finding(check, iteration, threads, one_thread, now))
    return [finding for finding in findings if finding is not None]


def take_pace_finding(check: ForecastCheck, iteration: int, one_thread: str = "") -> Record | None:
    """Whether the speed is as forecast; once, after some seconds of updates. `one_thread`: the command that
    resumes a run of several CPU threads with one."""
    pace, measured = check.forecast.throughput, check.tokens_per_s
    if check.pace_was_reported or pace is None or measured is None or check.seconds < _MIN_PACE_SECONDS:
        return None
    check.pace_was_reported = True
    severity: Severity = "info"
    advice = None
    # The mean so far: later lines, and the median of the whole run, are other numbers.
    speed = {"tokens_per_s": measured, "iteration": iteration}
    if measured > pace.high:
        title, explanation = say("pace.title.fast", **speed), say("pace.explanation.fast")
    elif measured >= pace.low:
        title, explanation = say("pace.title.normal", **speed), say("pace.explanation.normal")
    else:
        severity, title = "advice", say("pace.title.slow", **speed)
        data_wait_share = check.data_wait_s / check.seconds
        load, cores = machine.load_average(), usable_cores()
        # The console prints the advice alone: it has to be understood without the explanation.
        if data_wait_share > _MIN_DATA_WAIT_SHARE:
            explanation = say("pace.explanation.data_wait", data_wait_share=data_wait_share)
            advice = say("pace.advice.data_wait")
        elif load > _MIN_LOAD_PER_CORE * cores:
            explanation = say("pace.explanation.busy", load=load, cores=cores)
            advice = _free_cores_advice(one_thread)
        else:
            explanation = say("pace.explanation.unknown")
            advice = say("pace.advice.unknown")
    evidence = say("pace.evidence", expected_low=pace.low, expected_high=pace.high)
    explanations = (explanation, say("pace.explanation.basis", why=pace.why))  # the basis is in English only
    return finding_record(
        iteration, "pace", severity, title=title, evidence=evidence, explanation=explanations, advice=advice
    )


def _free_cores_advice(one_thread: str) -> Message:
    if one_thread:
        return say("pace.advice.busy_or_one_thread", command=one_thread)
    return say("pace.advice.busy")


def take_cpu_contention_finding(
    check: ForecastCheck, iteration: int, threads: int, one_thread: str, now: CpuTimes
) -> Record | None:
    """Whether a run on several CPU threads became slow because other programs use its cores; once."""
    last, cores = check.cpu_contention, usable_cores()
    interval_s = now.wall_s - last.cpu_times.wall_s
    if last.was_reported or interval_s < _CPU_CHECK_INTERVAL_S or check.seconds <= last.seconds:
        return None
    tokens_per_s = (check.tokens - last.tokens) / (check.seconds - last.seconds)
    best_tokens_per_s = max(last.best_tokens_per_s, tokens_per_s)
    other_cores = machine.cores_used_by_others(last.cpu_times, now)
    own_cores = (now.own_s - last.cpu_times.own_s) / interval_s
    is_slow = (
        tokens_per_s * _MIN_SLOWDOWN_RATIO < best_tokens_per_s
        or own_cores < _STARVED_CORES_PER_THREAD * threads
    )
    is_crowded = is_slow and other_cores + threads > cores + 0.5
    check.cpu_contention = CpuContention(now, check.tokens, check.seconds, best_tokens_per_s, is_crowded)
    if not is_crowded:
        return None
    return finding_record(
        iteration,
        "cores-taken",
        "advice",
        title=say("cores-taken.title", tokens_per_s=tokens_per_s, best_tokens_per_s=best_tokens_per_s),
        evidence=say(
            "cores-taken.evidence", other_cores=other_cores, cores=cores, threads=threads, own_cores=own_cores
        ),
        explanation=say("cores-taken.explanation"),
        advice=_free_cores_advice(one_thread),
    )


# --- at the end ---


def loss_curve_finding(check: ForecastCheck, iteration: int, val_loss: float | None) -> Record | None:
    """Whether the validation loss is what such a run usually has at this iteration."""
    if check.expectation is None or val_loss is None or iteration < MIN_UPDATES_FOR_LOSS:
        return None
    verdict = compare_with_expected(check.expectation, iteration, val_loss)
    severity: Severity = "advice" if verdict.position == "above" else "info"
    title = {
        "on": say("loss-course.title.on", val_loss=val_loss),
        "above": say("loss-course.title.above", val_loss=val_loss),
        "below": say("loss-course.title.below", val_loss=val_loss),
    }[verdict.position]
    return finding_record(
        iteration,
        "loss-course",
        severity,
        title=title,
        evidence=verdict.evidence,
        explanation=check.expectation.basis,
        advice=verdict.causes,
    )


def forecast_miss_finding(
    check: ForecastCheck, iteration: int, wall_s: float, finished: bool
) -> Record | None:
    """Where the run differs from its forecast by more than the tolerance."""
    forecast, misses = check.forecast, []
    run_s = wall_s - check.tuning_s
    is_comparable = finished and run_s >= _MIN_RUN_SECONDS
    expected_bytes = forecast.as_dict()["memory_bytes"]
    peak_bytes = check.measured_memory_bytes
    miss_bytes = peak_bytes - expected_bytes if peak_bytes else 0
    tolerance_bytes = max(_MISS_TOLERANCE * expected_bytes, _IGNORED_MISS_BYTES if forecast.on_card else 0)
    # Too much memory on a card counts for short runs too; too little may be because the run was stopped.
    if abs(miss_bytes) > tolerance_bytes and (is_comparable or (forecast.on_card and miss_bytes > 0)):
        misses.append(
            say("forecast-missed.phrase.memory", peak_bytes=peak_bytes, expected_bytes=expected_bytes)
        )
    if forecast.total_s is not None and is_comparable:
        low_s, _, high_s = forecast.total_s
        if not (1 - _MISS_TOLERANCE) * low_s <= run_s <= (1 + _MISS_TOLERANCE) * high_s:
            misses.append(say("forecast-missed.phrase.time", run_s=run_s, low_s=low_s, high_s=high_s))
            if check.tuning_s:
                misses.append(say("forecast-missed.phrase.tuning", tuning_s=check.tuning_s))
    if not misses:
        return None
    return finding_record(
        iteration,
        "forecast-missed",
        "info",
        title=say("forecast-missed.title"),
        evidence=say("forecast-missed.evidence", misses=misses),
        explanation=say("forecast-missed.explanation"),
        advice=say("forecast-missed.advice"),
    )
