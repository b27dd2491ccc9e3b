"""Whether iterations that do the same work take the same time: spikes, drift, jitter."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.format import format_ms
from glassgpt.i18n import Message, say
from glassgpt.record.finding import Finding, Severity, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.curve_statistics import MEDIAN_TO_MEAN_STDERR, SIGMA_PER_MAD
from glassgpt.runs.run_log import Bools, Floats, Ints

MIN_SPIKE_RATIO = 5.0  # times a steady iteration
MAX_SPIKE_SHARE = 0.1  # of the steady iterations; more are usual, and no spikes
MIN_SPIKE_STEPS = 5  # steady iterations, to look for spikes
STARTUP_STEPS = 10  # first iterations of a process, which may still compile something
MIN_ADVICE_SHARE = 0.05  # time lost in spikes over run time
MAX_LISTED = 5  # spikes or batch sizes shown
# Spike over an iteration that evaluates: within this range it may be an evaluation without a line.
EVAL_TIME_RATIO_RANGE = (0.7, 1.3)
# Spike over the first iteration, which includes an evaluation and a start-up of unknown length.
FIRST_STEP_RATIO_RANGE = (0.3, 1.0)

# Drift: the median time of the last quarter of the run, compared with that of the first.
MIN_DRIFT_STEPS = 40
MIN_DRIFT_SHARE = 0.10  # change over the time of the first quarter
MIN_DRIFT_STANDARD_ERRORS = 4.0
MIN_ABRUPT_SHARE = 0.7  # of the whole change, from one part of the run to the next: a step, not a drift

# Jitter: the 95th percentile over the median, after the median of each part of the run is divided out.
MIN_JITTER_STEPS = 20
MIN_JITTER_RATIO = 1.5
JITTER_ADVICE_SHARE = 0.1  # of the time, lost against the fastest tenth
# A regular pattern of work (accumulating iterations, then an update) is not jitter.
MAX_PERIOD = 16
MAX_PATTERN_STEPS = 10_000  # enough to show a pattern
# 95th percentile over median after the pattern is divided out: half of the jitter, on a log scale.
MAX_PATTERN_RESIDUAL_RATIO = MIN_JITTER_RATIO**0.5


# --- spikes ---


def _is_time_spike(analysis: Analysis) -> Bools:
    run_log, steps = analysis.log, analysis.log.steps
    steady, first = run_log.is_steady(), run_log.is_first_of_process()
    no_spikes = np.zeros(len(steady), dtype=bool)
    if not analysis.facts.steady_ms or np.count_nonzero(steady) < MIN_SPIKE_STEPS:
        return no_spikes
    spikes: Bools = steady & (np.nan_to_num(steps.ms, nan=0.0) >= MIN_SPIKE_RATIO * analysis.facts.steady_ms)
    if np.any(first):  # the first iterations of a process compile the backward pass and other shapes
        starts = np.full(len(run_log.segments), np.iinfo(np.int64).min // 2, dtype=np.int64)
        starts[steps.segment[first]] = steps.iteration[first]
        spikes &= steps.iteration - starts[steps.segment] >= STARTUP_STEPS
    max_spikes = max(1, MAX_SPIKE_SHARE * np.count_nonzero(steady))
    return spikes if np.count_nonzero(spikes) <= max_spikes else no_spikes


def silent_spike(analysis: Analysis) -> Finding | None:
    """Iterations of five times the steady time or more, where no line shows an evaluation or a checkpoint."""
    facts, steps = analysis.facts, analysis.log.steps
    spikes = _is_time_spike(analysis)
    if not facts.steady_ms or not np.any(spikes):
        return None
    at, ms = steps.iteration[spikes], steps.ms[spikes]
    lost_s = float(np.sum(ms - facts.steady_ms)) / 1000
    missing_eval = _missing_eval_explanation(analysis, at, ms)
    largest = np.sort(np.argsort(-ms, kind="stable")[:MAX_LISTED])
    slowest = [f"{at[index]}: {format_ms(float(ms[index]))}" for index in largest]
    times: dict[str, object] = {"slowest": slowest, "steady_ms": facts.steady_ms, "lost_s": lost_s}
    severity: Severity = "info"
    advice = None
    if not facts.estimated_total_s:
        evidence = say("silent-spike.evidence.extra_time", **times)
    else:
        share = min(1.0, lost_s / facts.estimated_total_s)
        if share >= MIN_ADVICE_SHARE:
            severity = "advice" if missing_eval else "warning"
        evidence = say("silent-spike.evidence.extra_time_share", lost_share=share, **times)
        advice = (
            say("silent-spike.advice.evaluate_less", lost_s=lost_s, lost_share=share)
            if missing_eval
            else say("silent-spike.advice.check_machine", lost_s=lost_s, lost_share=share)
        )
    return make_finding(
        "silent-spike",
        severity,
        title=say("silent-spike.title", spikes=len(at), max_ratio=float(np.max(ms)) / facts.steady_ms),
        evidence=evidence,
        explanation=missing_eval or say("silent-spike.explanation.stalled"),
        advice=advice,
        at=int(at[np.argmax(ms)]),
        claims={"steady ms": facts.steady_ms},
    )


def _missing_eval_explanation(analysis: Analysis, at: Ints, ms: Floats) -> list[Message]:
    """Why the spikes look like evaluations whose lines are missing; empty where they do not."""
    run_log, facts, steps = analysis.log, analysis.facts, analysis.log.steps
    if not run_log.trainer.step_time_includes_eval:
        return []
    distances = np.diff(at)
    if len(distances) and np.all(distances == distances[0]):
        period = int(distances[0])
        if period >= 2 * (facts.log_interval or 1) and int(at[0]) % period == 0:
            return [say("silent-spike.explanation.periodic", period=period)]
    if facts.eval_overhead_ms is not None:
        eval_step_ms = facts.eval_overhead_ms + (facts.steady_ms or 0.0)
        if not _all_within(ms, eval_step_ms, EVAL_TIME_RATIO_RANGE):
            return []
        return [say("silent-spike.explanation.eval_length", eval_step_ms=eval_step_ms)]
    first = run_log.is_first_of_process() & run_log.includes_eval() & np.isfinite(steps.ms)
    if not np.any(first) or not _all_within(ms, float(steps.ms[first][0]), FIRST_STEP_RATIO_RANGE):
        return []
    explanation = [say("silent-spike.explanation.like_first_iteration", first_ms=float(steps.ms[first][0]))]
    # If an evaluation every 100 iterations explains a spike at 100, there should be one at 200.
    period = int(at[0])
    is_next = run_log.is_steady() & (steps.iteration == 2 * period) & (period > 0)
    if len(at) == 1 and np.any(is_next):
        next_ms = float(steps.ms[is_next][0])
        explanation.append(
            say(
                "silent-spike.explanation.not_periodic",
                next_iteration=2 * period,
                next_ms=next_ms,
                period=period,
            )
        )
    return explanation


def _all_within(ms: Floats, reference_ms: float, ratio_range: tuple[float, float]) -> bool:
    low, high = ratio_range
    return bool(np.all((ms >= low * reference_ms) & (ms <= high * reference_ms)))


def _uniform_steps(analysis: Analysis) -> tuple[Ints, Floats]:
    """Iterations and times that should be equal: steady ones of the longest process and the most frequent
    batch size, without spikes."""
    steps, batch_changes = analysis.log.steps, analysis.log.batch_size_changes
    uniform = analysis.log.is_steady() & ~_is_time_spike(analysis) & (np.nan_to_num(steps.ms, nan=0.0) > 0)
    if not np.any(uniform):
        return steps.iteration[:0], steps.ms[:0]
    uniform &= steps.segment == int(np.argmax(np.bincount(steps.segment[uniform])))
    if len(batch_changes) > 1:
        part = np.searchsorted([at for at, _ in batch_changes], steps.iteration, side="right")
        uniform &= part == int(np.argmax(np.bincount(part[uniform])))
    return steps.iteration[uniform], steps.ms[uniform]


# --- drift ---


@dataclass(frozen=True)
class ThroughputDrift:
    """The last quarter of the run compared with its first, in ms."""

    first_ms: float
    last_ms: float
    mean_ms: float
    quarter_bounds: tuple[int, int, int, int]  # iterations: of the first quarter, of the last
    abrupt_at: int | None  # where it changed, if it did at once


def find_throughput_drift(analysis: Analysis) -> ThroughputDrift | None:
    at, ms = _uniform_steps(analysis)
    if len(ms) < MIN_DRIFT_STEPS:
        return None
    quarter = len(ms) // 4
    first_ms, last_ms = float(np.median(ms[:quarter])), float(np.median(ms[-quarter:]))
    mean_ms, change = float(np.mean(ms)), last_ms - first_ms
    # Noise from one iteration to the next, in which a slow change hardly shows.
    noise = SIGMA_PER_MAD * float(np.median(np.abs(np.diff(ms)))) / math.sqrt(2)
    error = MEDIAN_TO_MEAN_STDERR * noise * math.sqrt(2 / quarter)
    min_change = max(MIN_DRIFT_SHARE * first_ms, noise, MIN_DRIFT_STANDARD_ERRORS * error)
    if first_ms <= 0 or abs(change) <= min_change:
        return None
    # A step: nearly all of the change within three neighbouring parts; it may lie inside the middle one.
    parts = np.array_split(np.arange(len(ms)), min(16, len(ms) // 5))
    medians = np.array([float(np.median(ms[part])) for part in parts])
    jumps = (medians[2:] - medians[:-2]) / change
    largest = int(np.argmax(jumps))
    abrupt_at = int(at[parts[largest + 1][0]]) if jumps[largest] >= MIN_ABRUPT_SHARE else None
    bounds = (int(at[0]), int(at[quarter - 1]), int(at[-quarter]), int(at[-1]))
    return ThroughputDrift(first_ms, last_ms, mean_ms, bounds, abrupt_at)


def throughput_drift(analysis: Analysis) -> Finding | None:
    """Iterations of the last quarter take at least 10 % more, or less, time than those of the first."""
    drift = find_throughput_drift(analysis)
    # Lines quoted in a text may come from different runs.
    if drift is None or analysis.log.is_excerpt or analysis.log.trainer.step_work_grows:
        return None
    is_slower = drift.last_ms > drift.first_ms
    change = abs(drift.last_ms / drift.first_ms - 1)
    if is_slower:
        title = say("throughput-drift.title.slower", change=change)
        explanation = say("throughput-drift.explanation.slower")
        advice = say("throughput-drift.advice", saving=max(1 - drift.first_ms / drift.mean_ms, 0.0))
    else:
        title = say("throughput-drift.title.faster", change=change)
        explanation = say("throughput-drift.explanation.faster")
        advice = None
    if drift.abrupt_at is not None:
        explanation = say("throughput-drift.explanation.sudden", change_iteration=drift.abrupt_at)
    first_begin, first_end, last_begin, last_end = drift.quarter_bounds
    return make_finding(
        "throughput-drift",
        "advice" if is_slower else "info",
        title=title,
        evidence=say(
            "throughput-drift.evidence",
            first_quarter_ms=drift.first_ms,
            first_quarter_from=first_begin,
            first_quarter_to=first_end,
            last_quarter_ms=drift.last_ms,
            last_quarter_from=last_begin,
            last_quarter_to=last_end,
        ),
        explanation=explanation,
        advice=advice,
        at=drift.abrupt_at,
    )


def batch_changed(analysis: Analysis) -> Finding | None:
    """The batch size changed during the run, and the log says so: unequal times are no fault."""
    batches = analysis.log.batch_size_changes
    if len(batches) < 2 or len(analysis.log.segments) > 1:
        return None
    shown = [f"{at:,}: {size:,}" for at, size in batches[:MAX_LISTED]]
    if len(batches) > MAX_LISTED:
        shown.append("…")
    return make_finding(
        "batch-changed",
        "info",
        title=say("batch-changed.title"),
        evidence=say("batch-changed.evidence", batches=shown),
        explanation=say("batch-changed.explanation"),
        at=batches[1][0],
    )


# --- jitter ---


def jitter(analysis: Analysis) -> Finding | None:
    """Times vary from one iteration to the next: one in twenty takes over 1.5 times the median."""
    at, ms = _uniform_steps(analysis)
    if len(ms) < MIN_JITTER_STEPS:
        return None
    parts = np.array_split(ms, min(16, max(1, len(ms) // MIN_JITTER_STEPS)))
    # Each part relative to its own median: that takes out any drift.
    relative = ms / np.concatenate([np.full(len(part), np.median(part)) for part in parts])
    if not _p95_over_median(relative) > MIN_JITTER_RATIO or _is_periodic(at, relative):
        return None
    p10_ms, median_ms, p95_ms = (float(value) for value in np.percentile(ms, (10, 50, 95)))
    mean_ms = float(np.mean(ms))
    saving = 1 - p10_ms / mean_ms
    evidence = [
        say(
            "jitter.evidence.percentiles",
            iterations=len(ms),
            median_ms=median_ms,
            p10_ms=p10_ms,
            p95_ms=p95_ms,
        )
    ]
    if tokens := analysis.facts.tokens_per_iteration:
        evidence.append(
            say(
                "jitter.evidence.tokens_per_second",
                mean_tokens_per_s=1000 * tokens / mean_ms,
                best_tokens_per_s=1000 * tokens / p10_ms,
            )
        )
    return make_finding(
        "jitter",
        "advice" if saving >= JITTER_ADVICE_SHARE else "info",
        title=say("jitter.title"),
        evidence=evidence,
        explanation=say("jitter.explanation"),
        advice=say("jitter.advice", saving=saving),
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
