"""Whether iterations that do the same work take the same time: regimes, drift, jitter."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from glassgpt.explain.rules.stalls import find_pause_interval
from glassgpt.i18n import say
from glassgpt.record.finding import Finding, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.curve_statistics import MEDIAN_TO_MEAN_STDERR, SIGMA_PER_MAD
from glassgpt.runs.regimes import MIN_CHANGE, Regime
from glassgpt.runs.run_log import Floats, Ints
from glassgpt.runs.time_split import MIN_SPIKE_RATIO

MIN_ADVICE_SHARE = 0.05  # of the run's time, lost in slow regimes
MAX_LISTED = 5  # regimes or batch sizes shown

# Regimes: what slow ones cost, compared with the fastest of the same batch size.
MIN_REGIME_COST_SHARE = 0.02  # of the run
REGIME_WARNING_SHARE = 0.2
MIN_OTHER_DEVICE_RATIO = 4.0  # at once and for good: no heat, no clock and no neighbour does that
MIN_REFERENCE_SHARE = 0.005  # of the iterations, in the regime that others are compared with

# Drift: the median time of the last quarter of the run, compared with that of the first.
MIN_DRIFT_STEPS = 40
MIN_DRIFT_RATES = 12  # of tokens per second
MIN_DRIFT_SHARE = 0.10  # change over the time of the first quarter
MIN_DRIFT_STANDARD_ERRORS = 4.0
DRIFT_PARTS = 8
# Of the steps between two parts, over the change from first to last: the largest, and one backwards.
MAX_DRIFT_STEP_SHARE, MAX_BACKWARD_SHARE = 0.7, 0.05

# Jitter: the 95th percentile over the median, after the median of each part of the run is divided out.
MIN_JITTER_STEPS = 20
MIN_JITTER_RATIO = 1.5
# A regular pattern of work (accumulating iterations, then an update) is not jitter.
MAX_PERIOD = 16
MAX_PATTERN_STEPS = 10_000  # enough to show a pattern
# 95th percentile over median after the pattern is divided out: half of the jitter, on a log scale.
MAX_PATTERN_RESIDUAL_RATIO = MIN_JITTER_RATIO**0.5


# --- regimes ---


@dataclass(frozen=True)
class RegimeCost:
    """What slow regimes cost, compared with the fastest of the same batch size."""

    slow: tuple[Regime, ...]
    worst: Regime  # that cost most
    fast_ms: float  # what it is compared with
    lost_s: float


def find_regime_cost(analysis: Analysis) -> RegimeCost | None:
    """None where no regime is clearly slower than another with the same batch size."""
    groups: list[list[Regime]] = []
    for regime in analysis.regimes:
        if not groups or regime.cause == "batch":
            groups.append([])
        groups[-1].append(regime)
    count = sum(regime.iterations for regime in analysis.regimes)
    slow: list[tuple[float, Regime, float]] = []  # lost ms, regime, fastest of its group
    for group in groups:
        long = [one.steady_ms for one in group if one.iterations >= MIN_REFERENCE_SHARE * count]
        fastest = min(long or [one.steady_ms for one in group])
        slower = [one for one in group if one.steady_ms >= (1 + MIN_CHANGE) * fastest]
        slow += [(one.iterations * (one.steady_ms - fastest), one, fastest) for one in slower]
    if not slow:
        return None
    _, worst, fast_ms = max(slow, key=lambda one: one[0])
    return RegimeCost(
        tuple(one for _, one, _ in slow), worst, fast_ms, sum(lost for lost, _, _ in slow) / 1000
    )


def throughput_drift(analysis: Analysis) -> Finding | None:
    """Slow regimes, and what they cost; or iterations that get slower, or faster, little by little."""
    # Lines quoted in a text may come from different runs. In reinforcement learning answers have any length.
    run_log = analysis.log
    if run_log.is_excerpt or run_log.trainer.step_work_grows or not run_log.loss_measures_learning:
        return None
    if len(analysis.regimes) < 2:
        return _gradual_drift(analysis)
    cost, total_s = find_regime_cost(analysis), analysis.total_s
    if cost is None or not total_s or not cost.lost_s >= MIN_REGIME_COST_SHARE * total_s:
        return None
    regimes, share = analysis.regimes, min(1.0, cost.lost_s / total_s)
    shown = [
        say("throughput-drift.phrase.regime", regime_ms=one.steady_ms, last_iteration=one.last_iteration)
        for one in regimes[:MAX_LISTED]
    ]
    changes = [one for one in regimes[1:] if one.cause != "batch"]
    unexplained = [one for one in changes if one.cause is None]
    largest = max(
        max(old.steady_ms, new.steady_ms) / min(old.steady_ms, new.steady_ms)
        for old, new in pairwise(regimes)
    )
    if largest >= MIN_OTHER_DEVICE_RATIO and len(regimes) == 2:
        explanation = say("throughput-drift.explanation.other_device", ratio=largest)
    elif not unexplained:
        explanation = say("throughput-drift.explanation.new_process")
    else:
        explanation = say("throughput-drift.explanation.regimes")
    return make_finding(
        "throughput-drift",
        "warning" if share >= REGIME_WARNING_SHARE else "advice" if share >= MIN_ADVICE_SHARE else "info",
        title=say(
            "throughput-drift.title.regimes",
            lost_s=cost.lost_s,
            slow_ms=cost.worst.steady_ms,
            fast_ms=cost.fast_ms,
        ),
        evidence=[
            say(
                "throughput-drift.evidence.regimes",
                regimes=shown,
                more_regimes=len(regimes) - MAX_LISTED,
            )
            if len(regimes) > MAX_LISTED
            else say("throughput-drift.evidence.all_regimes", regimes=shown),
        ],
        explanation=explanation,
        advice=say(
            "throughput-drift.advice.regimes",
            changes=[one.first_iteration for one in (unexplained or changes)[:MAX_LISTED]],
            saving=share,
        ),
        at=cost.worst.first_iteration,
        lines=analysis.lines_at(one.first_iteration for one in changes or regimes[1:]),
    )


# --- drift ---


@dataclass(frozen=True)
class ThroughputDrift:
    """The last quarter of the run compared with its first, in ms."""

    first_ms: float
    last_ms: float
    mean_ms: float
    quarter_bounds: tuple[int, int, int, int]  # iterations: of the first quarter, of the last


def find_throughput_drift(analysis: Analysis) -> ThroughputDrift | None:
    rows = _uniform_rows(analysis)
    if len(rows) < MIN_DRIFT_STEPS:
        return None
    at, ms = analysis.log.steps.iteration[rows], analysis.log.steps.ms[rows]
    quarter = len(ms) // 4
    first_ms, last_ms = float(np.median(ms[:quarter])), float(np.median(ms[-quarter:]))
    mean_ms, change = float(np.mean(ms)), last_ms - first_ms
    # Noise from one iteration to the next, in which a slow change hardly shows.
    noise = SIGMA_PER_MAD * float(np.median(np.abs(np.diff(ms)))) / math.sqrt(2)
    error = MEDIAN_TO_MEAN_STDERR * noise * math.sqrt(2 / quarter)
    min_change = max(MIN_DRIFT_SHARE * first_ms, noise, MIN_DRIFT_STANDARD_ERRORS * error)
    if first_ms <= 0 or abs(change) <= min_change:
        return None
    if not _is_gradual(ms, noise):
        return None
    bounds = (int(at[0]), int(at[quarter - 1]), int(at[-quarter]), int(at[-1]))
    return ThroughputDrift(first_ms, last_ms, mean_ms, bounds)


def _is_gradual(ms: Floats, noise: float) -> bool:
    """Whether the medians of eighths of the run go from the first to the last in several steps, none of them
    clearly backwards: a step time that wanders turns around on its way."""
    parts = np.array_split(ms, DRIFT_PARTS)
    medians = np.array([np.median(part) for part in parts])
    change = float(medians[-1] - medians[0])
    steps = np.diff(medians) * math.copysign(1.0, change)
    error = MEDIAN_TO_MEAN_STDERR * noise * math.sqrt(2 / len(parts[-1]))
    is_forward = float(steps.min()) >= -max(2 * error, MAX_BACKWARD_SHARE * abs(change))
    return is_forward and float(steps.max()) <= MAX_DRIFT_STEP_SHARE * abs(change)


def _gradual_drift(analysis: Analysis) -> Finding | None:
    if analysis.steady_ms is None:
        return _rate_drift(analysis)
    drift = find_throughput_drift(analysis)
    if drift is None or drift.last_ms < drift.first_ms:
        return None
    first_begin, first_end, last_begin, last_end = drift.quarter_bounds
    return make_finding(
        "throughput-drift",
        "advice",
        title=say("throughput-drift.title.slower", change=drift.last_ms / drift.first_ms - 1),
        evidence=say(
            "throughput-drift.evidence",
            first_quarter_ms=drift.first_ms,
            first_quarter_from=first_begin,
            first_quarter_to=first_end,
            last_quarter_ms=drift.last_ms,
            last_quarter_from=last_begin,
            last_quarter_to=last_end,
        ),
        explanation=say("throughput-drift.explanation.slower"),
        advice=say("throughput-drift.advice", saving=max(1 - drift.first_ms / drift.mean_ms, 0.0)),
    )


def _rate_drift(analysis: Analysis) -> Finding | None:
    """By the tokens per second, where no time is logged: nearly all lines of the last quarter are slower than
    nearly all of the first, whatever the lengths of their texts."""
    rates, at = analysis.log.steps.tokens_per_s, analysis.log.steps.iteration
    known = (
        np.isfinite(rates) & (rates > 0) & ~analysis.log.is_first_of_process()
    )  # whose rate has the start-up
    rates, at = rates[known], at[known]
    quarter = len(rates) // 4
    if len(rates) < MIN_DRIFT_RATES or not analysis.log.has_iteration_numbers:
        return None
    early, late = rates[:quarter], rates[-quarter:]
    first, last = float(np.median(early)), float(np.median(late))
    if np.percentile(late, 90) > np.percentile(early, 10) or first < (1 + MIN_DRIFT_SHARE) * last:
        return None
    if 4 * quarter < MIN_DRIFT_STEPS and first - last < np.ptp(early) + np.ptp(late):
        return None  # so few are in this order by chance, too, unless the change exceeds their scatter
    return make_finding(
        "throughput-drift",
        "advice",
        title=say("throughput-drift.title.tokens", first_rate=first, last_rate=last),
        evidence=say(
            "throughput-drift.evidence.tokens",
            first_quarter_to=int(at[quarter - 1]),
            last_quarter_from=int(at[-quarter]),
        ),
        explanation=say("throughput-drift.explanation.tokens"),
    )


def _uniform_rows(analysis: Analysis) -> Ints:
    """The steps whose times should be equal: of the regime with the most lines, without spikes; of its
    longest process."""
    steps, split = analysis.log.steps, analysis.time_split
    if split is None:
        return np.empty(0, dtype=np.int64)
    uniform = analysis.log.is_steady() & ~split.is_spike & (np.nan_to_num(steps.ms, nan=0.0) > 0)
    longest = max(analysis.regimes, key=lambda one: np.count_nonzero(uniform[one.begin : one.end]))
    rows = longest.begin + np.flatnonzero(uniform[longest.begin : longest.end])
    if len(rows):
        rows = rows[steps.segment[rows] == np.argmax(np.bincount(steps.segment[rows]))]
    return rows


def batch_changed(analysis: Analysis) -> Finding | None:
    """The batch size changed during the run, by schedule or by a resume: unequal times are no fault."""
    batches = analysis.log.batch_size_changes
    segment = analysis.log.steps.segment
    changed = [
        (old, new)
        for old, new in pairwise(analysis.regimes)
        if new.cause == "batch" and segment[old.end - 1] == segment[new.begin]
    ]
    if len(batches) >= 2 and len(analysis.log.segments) == 1:
        shown = [f"{at:,}: {size:,}" for at, size in batches[:MAX_LISTED]]
        if len(batches) > MAX_LISTED:
            shown.append("…")
        evidence, at = say("batch-changed.evidence", batches=shown), batches[1][0]
    elif changed:
        old, new = changed[0]
        evidence = say(
            "batch-changed.evidence.tokens_per_s",
            old_ms=old.steady_ms,
            new_ms=new.steady_ms,
            iteration=new.first_iteration,
            changes=len(changed),
        )
        at = new.first_iteration
    else:
        return None
    return make_finding(
        "batch-changed",
        "info",
        title=say("batch-changed.title"),
        evidence=evidence,
        explanation=say("batch-changed.explanation"),
        at=at,
        lines=analysis.lines_at([at]),
    )


# --- jitter ---


def jitter(analysis: Analysis) -> Finding | None:
    """Times vary from one iteration to the next: one in twenty takes over 1.5 times the median."""
    rows = _uniform_rows(analysis)
    if len(rows) < MIN_JITTER_STEPS or analysis.log.trainer.iterations_are_epochs:
        return None
    at, ms = analysis.log.steps.iteration[rows], analysis.log.steps.ms[rows]
    parts = np.array_split(ms, min(16, max(1, len(ms) // MIN_JITTER_STEPS)))
    # Each part relative to its own median: that takes out any drift.
    relative = ms / np.concatenate([np.full(len(part), np.median(part)) for part in parts])
    p95_ratio = _p95_over_median(relative)
    if not p95_ratio > MIN_JITTER_RATIO or _is_periodic(at, relative):
        return None
    speed = analysis.log.steps.tokens_per_s[np.isfinite(analysis.log.steps.tokens_per_s)]
    if len(speed) >= MIN_JITTER_STEPS and _p95_over_median(np.median(speed) / speed) < MIN_JITTER_RATIO:
        return None  # iterations differ in their tokens, and the speed does not
    p10_ms, median_ms, p95_ms = (float(value) for value in np.percentile(ms, (10, 50, 95)))
    pauses = find_pause_interval(at, relative > (1 + p95_ratio) / 2)
    return make_finding(
        "jitter",
        "info",
        title=say("jitter.title.periodic", period=pauses.period) if pauses else say("jitter.title"),
        evidence=say(
            "jitter.evidence.percentiles",
            iterations=len(ms),
            median_ms=median_ms,
            p10_ms=p10_ms,
            p95_ms=p95_ms,
        ),
        explanation=say("silent-spike.explanation.periodic", period=pauses.period)
        if pauses
        else say("jitter.explanation"),
    )


def _p95_over_median(relative: Floats) -> float:
    median, p95 = np.percentile(relative, (50, 95))
    return float(p95 / median) if median > 0 else math.nan


def _is_periodic(at: Ints, relative: Floats) -> bool:
    """Whether the times follow a pattern: some iterations accumulate, others update too. An update does not
    cost five micro-batches: a regular iteration that does, without a line, is a wait."""
    at, relative = at[:MAX_PATTERN_STEPS], relative[:MAX_PATTERN_STEPS]
    for period in range(2, MAX_PERIOD + 1):
        phase = at % period
        pattern = np.ones(len(relative))
        for offset in np.unique(phase):
            pattern[phase == offset] = np.median(relative[phase == offset])
        is_work = (
            len(relative) >= MIN_JITTER_STEPS * period // 4
            and np.all(pattern > 0)
            and np.max(pattern) < MIN_SPIKE_RATIO
        )
        if is_work and _p95_over_median(relative / pattern) <= MAX_PATTERN_RESIDUAL_RATIO:
            return True
    return False
