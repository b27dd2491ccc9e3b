"""Whether iterations that do the same work take the same time: stalls, drift, jitter."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from glassgpt.explain.rule import Finding, RunAnalysis
from glassgpt.format import format_count, format_duration, format_ms, format_percent, format_ratio
from glassgpt.i18n import say
from glassgpt.runs.curve import MEDIAN_TO_MEAN_STDERR, SIGMA_PER_MAD
from glassgpt.runs.run_log import Bools, Floats, Ints

MIN_SPIKE_RATIO = 5.0  # times a steady iteration
MAX_SPIKE_SHARE = 0.1  # of the steady iterations; more are a habit, not spikes
MIN_STEPS = 20  # iterations from which scatter can be told
MIN_DRIFT_STEPS = 40
MIN_DRIFT_SHARE = 0.10  # of the time at the beginning
MIN_JITTER_RATIO = 1.5  # the slowest twentieth over the median
MAX_PERIOD = 16  # of work that differs regularly: accumulating iterations and the update after them
MAX_PATTERN_STEPS = 10_000  # iterations that show a pattern well enough
MAX_LISTED = 5  # spikes to list
STARTUP_STEPS = 10  # iterations of a process that may still compile something
# Of an iteration that evaluates: so far a spike may be from it and still look like one more.
EVAL_TIME_RATIO_RANGE = (0.7, 1.3)
# Of the first iteration, which holds an evaluation and a start-up of unknown length.
FIRST_STEP_RATIO_RANGE = (0.3, 1.0)
MIN_ADVICE_SHARE = 0.05  # of the run
MIN_ABRUPT_SHARE = 0.7  # of the whole change, from one stretch to the next: that is a step and no drift
MAX_PATTERN_RESIDUAL_RATIO = (
    MIN_JITTER_RATIO**0.5
)  # what is left when a pattern is taken out; half of the jitter, on a scale of factors


def silent_spike(case: RunAnalysis) -> Finding | None:
    """Slow iterations that no line explains."""
    history, facts = case.log, case.facts
    steady_ms = facts.steady_ms
    spikes = _is_time_spike(case)
    if not steady_ms or not np.any(spikes):
        return None
    at, ms = history.steps.iteration[spikes], history.steps.ms[spikes]
    with np.errstate(over="ignore", invalid="ignore"):  # times of 1e308 have been seen
        lost_s = float(np.sum(ms - steady_ms)) / 1000
    if not math.isfinite(lost_s):
        return None
    share = min(1.0, lost_s / facts.estimated_total_s) if facts.estimated_total_s else None
    why = _missing_eval_reason(case, at, ms)
    much = share is not None and share >= MIN_ADVICE_SHARE
    severity: Literal["info", "advice", "warning"] = "info"
    if much:
        severity = "advice" if why else "warning"
    return Finding(
        "silent-spike",
        severity,
        say(
            "Slow iterations without a line that explains them: {count}, up to {ratio} times a steady one",
            count=len(at),
            ratio=format_ratio(float(np.max(ms)) / steady_ms),
        ),
        _spike_evidence(at, ms, steady_ms, lost_s, share),
        why
        or say("No evaluation or checkpoint is logged there, and the times fit none: the run stood still."),
        _spike_advice(bool(why), lost_s, share),
    )


def _is_time_spike(case: RunAnalysis) -> Bools:
    steady, ms = case.log.is_steady(), case.log.steps.ms
    nothing = np.zeros(len(steady), dtype=bool)
    if not case.facts.steady_ms or np.count_nonzero(steady) < MIN_STEPS // 4:
        return nothing
    spikes: Bools = steady & (np.nan_to_num(ms, nan=0.0) >= MIN_SPIKE_RATIO * case.facts.steady_ms)
    spikes &= ~_at_start(case)
    return (
        spikes if np.count_nonzero(spikes) <= max(1, MAX_SPIKE_SHARE * np.count_nonzero(steady)) else nothing
    )


def _at_start(case: RunAnalysis) -> Bools:
    """The first iterations of a process: other shapes, and the backward pass, are compiled then."""
    steps, first = case.log.steps, case.log.is_first_of_process()
    if not np.any(first):
        return first
    begins = np.full(len(case.log.segments), np.iinfo(np.int64).min // 2, dtype=np.int64)
    begins[steps.segment[first]] = steps.iteration[first]
    early: Bools = steps.iteration - begins[steps.segment] < STARTUP_STEPS
    return early


def _missing_eval_reason(case: RunAnalysis, at: Ints, ms: Floats) -> str:
    """Why the spikes look like evaluations whose lines are missing; "" where they do not."""
    history, facts = case.log, case.facts
    if not history.trainer.step_time_includes_eval:
        return ""
    if period := _period(at, facts.log_interval or 1):
        return say(
            "They come every {period} iterations: it looks like an evaluation or a checkpoint whose line "
            "is missing.",
            period=period,
        )
    if facts.eval_overhead_ms is not None:
        with np.errstate(divide="ignore"):
            ratios = ms / (facts.eval_overhead_ms + (facts.steady_ms or 0.0))
        if not np.all((ratios >= EVAL_TIME_RATIO_RANGE[0]) & (ratios <= EVAL_TIME_RATIO_RANGE[1])):
            return ""
        return say(
            "They are as long as iterations that evaluate ({spike}): it looks like an evaluation whose "
            "line is missing.",
            spike=format_ms(facts.eval_overhead_ms + (facts.steady_ms or 0.0)),
        )
    first = history.is_first_of_process() & history.includes_eval() & np.isfinite(history.steps.ms)
    ratios = ms / history.steps.ms[first][0] if np.any(first) else np.zeros(1)
    if not np.all((ratios >= FIRST_STEP_RATIO_RANGE[0]) & (ratios <= FIRST_STEP_RATIO_RANGE[1])):
        return ""
    return say(
        "The first iteration, which holds an evaluation and the start-up, took {first}: it looks like an "
        "evaluation whose line is missing.",
        first=format_ms(float(history.steps.ms[first][0])),
    ) + _not_repeated(case, at)


def _period(at: Ints, log_interval: int) -> int | None:
    """The distance of the spikes, where it is one and the same and the first is at a multiple of it."""
    distances = np.diff(at)
    if not len(distances) or np.any(distances != distances[0]):
        return None
    period = int(distances[0])
    return period if period >= 2 * log_interval and int(at[0]) % period == 0 else None


def _not_repeated(case: RunAnalysis, at: Ints) -> str:
    """A spike at 100 that an evaluation every 100 iterations explains should come again at 200."""
    steps = case.log.steps
    again = case.log.is_steady() & (steps.iteration == 2 * int(at[0])) & (int(at[0]) > 0)
    if len(at) != 1 or not np.any(again):
        return ""
    return " " + say(
        "But iteration {iteration} took {ms}, so it does not come every {period} iterations.",
        iteration=2 * int(at[0]),
        ms=format_ms(float(steps.ms[again][0])),
        period=int(at[0]),
    )


def _spike_evidence(at: Ints, ms: Floats, steady_ms: float, lost_s: float, share: float | None) -> str:
    largest = np.sort(np.argsort(-ms, kind="stable")[:MAX_LISTED])
    named = ", ".join(f"{at[index]}: {format_ms(float(ms[index]))}" for index in largest)
    values = {"named": named, "steady": format_ms(steady_ms), "time": format_duration(lost_s)}
    if share is None:
        return say("Iteration {named}; a steady one takes {steady}. Together {time} more.", **values)
    return say(
        "Iteration {named}; a steady one takes {steady}. Together {time} more, {share} of the run.",
        share=format_percent(share),
        **values,
    )


def _spike_advice(is_evaluation: bool, lost_s: float, share: float | None) -> str:
    if share is None:
        return ""
    gain = {"time": format_duration(lost_s), "share": format_percent(share)}
    if is_evaluation:
        return say(
            "Look for their lines in the whole log; if they are evaluations, a wider eval_interval saves "
            "up to {time} ({share} of the run).",
            **gain,
        )
    return say(
        "Look at what else the machine did then (disk, swap, other programs, sleep); without it the run "
        "is {time} ({share}) shorter.",
        **gain,
    )


@dataclass(frozen=True)
class ThroughputDrift:
    """The last quarter of the run against its first, in ms."""

    first_ms: float
    last_ms: float
    mean_ms: float
    quarter_bounds: tuple[int, int, int, int]  # iterations: of the first quarter, of the last
    abrupt_at: int | None  # where it changed, if it did at once


def throughput_drift(case: RunAnalysis) -> Finding | None:
    drift = _find_drift(case)
    # Pieces that a text quotes may be of anything.
    if drift is None or case.log.is_excerpt or case.log.trainer.step_work_grows:
        return None
    is_slower = drift.last_ms > drift.first_ms
    change = format_percent(
        drift.last_ms / drift.first_ms - 1 if is_slower else 1 - drift.last_ms / drift.first_ms
    )
    return Finding(
        "throughput-drift",
        "advice" if is_slower else "info",
        say("Iterations became {share} slower over the run", share=change)
        if is_slower
        else say("Iterations became {share} faster over the run", share=change),
        _drift_evidence(drift),
        _drift_cause(drift),
        say(
            "Watch temperature, clock and memory; at the first quarter's speed the iterations take {share} "
            "less time.",
            share=format_percent(max(1 - drift.first_ms / drift.mean_ms, 0.0)),
        )
        if is_slower
        else "",
    )


def _find_drift(case: RunAnalysis) -> ThroughputDrift | None:
    at, ms = _uniform_steps(case)
    if len(ms) < MIN_DRIFT_STEPS:
        return None
    quarter = len(ms) // 4
    with np.errstate(over="ignore", invalid="ignore"):  # times of 1e308 have been seen
        begin, end = float(np.median(ms[:quarter])), float(np.median(ms[-quarter:]))
        # Scatter from one iteration to the next; a slow change hardly shows in it.
        noise = SIGMA_PER_MAD * float(np.median(np.abs(np.diff(ms)))) / math.sqrt(2)
        mean = float(np.mean(ms))
    change = abs(end - begin)
    doubt = max(noise, 4 * MEDIAN_TO_MEAN_STDERR * noise * math.sqrt(2 / quarter))
    if not (math.isfinite(mean) and begin > 0 and change > max(MIN_DRIFT_SHARE * begin, doubt)):
        return None
    bounds = (int(at[0]), int(at[quarter - 1]), int(at[-quarter]), int(at[-1]))
    return ThroughputDrift(begin, end, mean, bounds, _step(at, ms, end - begin))


def _step(at: Ints, ms: Floats, change: float) -> int | None:
    """The iteration near which nearly all of the change came."""
    stretches = np.array_split(np.arange(len(ms)), min(16, len(ms) // 5))
    levels = np.array([float(np.median(ms[stretch])) for stretch in stretches])
    jumps = (levels[2:] - levels[:-2]) / change  # past the stretch that the step lies in
    largest = int(np.argmax(jumps))
    return int(at[stretches[largest + 1][0]]) if jumps[largest] >= MIN_ABRUPT_SHARE else None


def _drift_evidence(drift: ThroughputDrift) -> str:
    first, second, third, last = drift.quarter_bounds
    return say(
        "Median of the first quarter {begin} (iterations {first} to {second}), of the last {end} ({third} "
        "to {last}).",
        begin=format_ms(drift.first_ms),
        end=format_ms(drift.last_ms),
        first=first,
        second=second,
        third=third,
        last=last,
    )


def _drift_cause(drift: ThroughputDrift) -> str:
    if drift.abrupt_at is not None:
        return say(
            "It changed at once, near iteration {at}: another program began or ended then, the machine "
            "changed its power limit, or the work itself changed (batch, context).",
            at=drift.abrupt_at,
        )
    if drift.last_ms < drift.first_ms:
        return say("The work is the same, so the machine had less to do beside it later, or warmed up late.")
    return say(
        "The work is the same, so the machine slowed down: heat limits, other programs, or growing memory "
        "use."
    )


def batch_changed(case: RunAnalysis) -> Finding | None:
    """Unequal times that are no fault: the work changed, and the log says so."""
    batches = case.log.batch_size_changes
    if len(batches) < 2 or len(case.log.segments) > 1:
        return None
    named = [f"{at:,}: {size:,}" for at, size in batches[:MAX_LISTED]]
    return Finding(
        "batch-changed",
        "info",
        say("The batch changed on the way"),
        say(
            "Sequences per iteration, from which iteration on: {batches}.",
            batches=", ".join([*named, "…"] if len(batches) > MAX_LISTED else named),
        ),
        say(
            "Iterations before and after do unlike work, so their times cannot be compared, nor what one of "
            "them teaches."
        ),
        "",
    )


def jitter(case: RunAnalysis) -> Finding | None:
    """Scatter from one iteration to the next, beside any drift and any regular pattern."""
    at, ms = _uniform_steps(case)
    if len(ms) < MIN_STEPS:
        return None
    with np.errstate(over="ignore", invalid="ignore"):  # times of 1e308 have been seen
        level = ms / _slow_level(ms)
        ratio = _p95_over_median(level)
        fast, usual, slow = (float(value) for value in np.percentile(ms, (10, 50, 95)))
        mean = float(np.mean(ms))
    if not ratio > MIN_JITTER_RATIO or not math.isfinite(mean) or _is_periodic(at, level):
        return None
    lost = 1 - fast / mean
    evidence = say(
        "Of {count} steady iterations half take under {usual}, one in ten under {fast}, one in twenty "
        "over {slow}.",
        count=f"{len(ms):,}",
        usual=format_ms(usual),
        fast=format_ms(fast),
        slow=format_ms(slow),
    )
    if case.facts.tokens_per_iteration:
        evidence += " " + say(
            "That is {mean} tokens/s on average, {best} in the fastest tenth.",
            mean=format_count(1000 * case.facts.tokens_per_iteration / mean),
            best=format_count(1000 * case.facts.tokens_per_iteration / fast),
        )
    return Finding(
        "jitter",
        "advice" if lost >= 0.1 else "info",
        say("Iterations that do the same work take unequal time"),
        evidence,
        say(
            "Something beside the training takes time now and then: other programs, loading of data, "
            "power limits."
        ),
        say(
            "If all were as fast as the fastest tenth, iterations would take {share} less time.",
            share=format_percent(lost),
        ),
    )


def _uniform_steps(case: RunAnalysis) -> tuple[Ints, Floats]:
    """The steady iterations of the longest process, without the spikes that have their own finding."""
    steps = case.log.steps
    good = case.log.is_steady() & ~_is_time_spike(case) & (np.nan_to_num(steps.ms, nan=0.0) > 0)
    if not np.any(good):
        return steps.iteration[:0], steps.ms[:0]
    longest = int(np.argmax(np.bincount(steps.segment[good])))
    good &= steps.segment == longest
    if len(case.log.batch_size_changes) > 1:  # likewise those of the batch that most of them have
        changes = np.array([at for at, _ in case.log.batch_size_changes])
        part = np.searchsorted(changes, steps.iteration, side="right")
        good &= part == int(np.argmax(np.bincount(part[good])))
    return steps.iteration[good], steps.ms[good]


def _slow_level(ms: Floats) -> Floats:
    """The median of each stretch of the run: what drift does."""
    stretches = np.array_split(ms, min(16, max(1, len(ms) // MIN_STEPS)))
    return np.concatenate([np.full(len(stretch), np.median(stretch)) for stretch in stretches])


def _p95_over_median(level: Floats) -> float:
    middle, slow = np.percentile(level, (50, 95))
    return float(slow / middle) if middle > 0 else math.nan


def _is_periodic(at: Ints, level: Floats) -> bool:
    """Whether the scatter is a pattern: some iterations accumulate, others update too. An update costs no
    five micro-batches: what does, comes regularly, and has no line is a wait."""
    at, level = at[:MAX_PATTERN_STEPS], level[:MAX_PATTERN_STEPS]
    for period in range(2, MAX_PERIOD + 1):
        phase = at % period
        usual = np.ones(len(level))
        for one in range(period):
            if np.any(phase == one):
                usual[phase == one] = np.median(level[phase == one])
        is_work = (
            len(level) >= MIN_STEPS * period // 4 and np.all(usual > 0) and np.max(usual) < MIN_SPIKE_RATIO
        )
        if is_work and _p95_over_median(level / usual) <= MAX_PATTERN_RESIDUAL_RATIO:
            return True
    return False
