"""Whether iterations that do the same work take the same time: stalls, drift, jitter."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from glassgpt.explain.rule import Case, Finding
from glassgpt.format import count, duration, milliseconds, percent, times
from glassgpt.i18n import say
from glassgpt.runs.curve import MEDIAN_ERROR, SIGMA_PER_MAD
from glassgpt.runs.run_log import Bools, Floats, Ints

SPIKE = 5.0  # times a steady iteration
MOST_SPIKES = 0.1  # of the steady iterations; more are a habit, not spikes
FEWEST = 20  # iterations from which scatter can be told
FEWEST_TO_DRIFT = 40
DRIFT = 0.10  # of the time at the beginning
JITTER = 1.5  # the slowest twentieth over the median
LONGEST_PERIOD = 16  # of work that differs regularly: accumulating iterations and the update after them
MANY = 10_000  # iterations that show a pattern well enough
NAMED = 5  # spikes to list
STARTING = 10  # iterations of a process that may still compile something
# Of an iteration that evaluates: so far a spike may be from it and still look like one more.
AS_LONG = (0.7, 1.3)
# Of the first iteration, which holds an evaluation and a start-up of unknown length.
WITHIN_FIRST = (0.3, 1.0)
MUCH = 0.05  # of the run
AT_ONCE = 0.7  # of the whole change, from one stretch to the next: that is a step and no drift
EVEN = JITTER**0.5  # what is left when a pattern is taken out; half of the jitter, on a scale of factors


def silent_spike(case: Case) -> Finding | None:
    """Slow iterations that no line explains."""
    history, facts = case.history, case.facts
    steady_ms = facts.steady_ms
    spikes = _spikes(case)
    if not steady_ms or not np.any(spikes):
        return None
    at, ms = history.steps.iteration[spikes], history.steps.ms[spikes]
    with np.errstate(over="ignore", invalid="ignore"):  # times of 1e308 have been seen
        lost_s = float(np.sum(ms - steady_ms)) / 1000
    if not math.isfinite(lost_s):
        return None
    share = min(1.0, lost_s / facts.estimated_total_s) if facts.estimated_total_s else None
    why = _evaluation_signs(case, at, ms)
    much = share is not None and share >= MUCH
    severity: Literal["info", "advice", "warning"] = "info"
    if much:
        severity = "advice" if why else "warning"
    return Finding(
        "silent-spike",
        severity,
        say(
            "Slow iterations without a line that explains them: {count}, up to {ratio} times a steady one",
            count=len(at),
            ratio=times(float(np.max(ms)) / steady_ms),
        ),
        _spike_evidence(at, ms, steady_ms, lost_s, share),
        why
        or say("No evaluation or checkpoint is logged there, and the times fit none: the run stood still."),
        _spike_advice(bool(why), lost_s, share),
    )


def _spikes(case: Case) -> Bools:
    steady, ms = case.history.steady(), case.history.steps.ms
    nothing = np.zeros(len(steady), dtype=bool)
    if not case.facts.steady_ms or np.count_nonzero(steady) < FEWEST // 4:
        return nothing
    spikes: Bools = steady & (np.nan_to_num(ms, nan=0.0) >= SPIKE * case.facts.steady_ms)
    spikes &= ~_at_start(case)
    return spikes if np.count_nonzero(spikes) <= max(1, MOST_SPIKES * np.count_nonzero(steady)) else nothing


def _at_start(case: Case) -> Bools:
    """The first iterations of a process: other shapes, and the backward pass, are compiled then."""
    steps, first = case.history.steps, case.history.first_of_process()
    if not np.any(first):
        return first
    begins = np.full(len(case.history.segments), np.iinfo(np.int64).min // 2, dtype=np.int64)
    begins[steps.segment[first]] = steps.iteration[first]
    early: Bools = steps.iteration - begins[steps.segment] < STARTING
    return early


def _evaluation_signs(case: Case, at: Ints, ms: Floats) -> str:
    """Why the spikes look like evaluations whose lines are missing; "" where they do not."""
    history, facts = case.history, case.facts
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
        if not np.all((ratios >= AS_LONG[0]) & (ratios <= AS_LONG[1])):
            return ""
        return say(
            "They are as long as iterations that evaluate ({spike}): it looks like an evaluation whose "
            "line is missing.",
            spike=milliseconds(facts.eval_overhead_ms + (facts.steady_ms or 0.0)),
        )
    first = history.first_of_process() & history.holds_eval() & np.isfinite(history.steps.ms)
    ratios = ms / history.steps.ms[first][0] if np.any(first) else np.zeros(1)
    if not np.all((ratios >= WITHIN_FIRST[0]) & (ratios <= WITHIN_FIRST[1])):
        return ""
    return say(
        "The first iteration, which holds an evaluation and the start-up, took {first}: it looks like an "
        "evaluation whose line is missing.",
        first=milliseconds(float(history.steps.ms[first][0])),
    ) + _not_repeated(case, at)


def _period(at: Ints, log_interval: int) -> int | None:
    """The distance of the spikes, where it is one and the same and the first is at a multiple of it."""
    distances = np.diff(at)
    if not len(distances) or np.any(distances != distances[0]):
        return None
    period = int(distances[0])
    return period if period >= 2 * log_interval and int(at[0]) % period == 0 else None


def _not_repeated(case: Case, at: Ints) -> str:
    """A spike at 100 that an evaluation every 100 iterations explains should come again at 200."""
    steps = case.history.steps
    again = case.history.steady() & (steps.iteration == 2 * int(at[0])) & (int(at[0]) > 0)
    if len(at) != 1 or not np.any(again):
        return ""
    return " " + say(
        "But iteration {iteration} took {ms}, so it does not come every {period} iterations.",
        iteration=2 * int(at[0]),
        ms=milliseconds(float(steps.ms[again][0])),
        period=int(at[0]),
    )


def _spike_evidence(at: Ints, ms: Floats, steady_ms: float, lost_s: float, share: float | None) -> str:
    largest = np.sort(np.argsort(-ms, kind="stable")[:NAMED])
    named = ", ".join(f"{at[index]}: {milliseconds(float(ms[index]))}" for index in largest)
    values = {"named": named, "steady": milliseconds(steady_ms), "time": duration(lost_s)}
    if share is None:
        return say("Iteration {named}; a steady one takes {steady}. Together {time} more.", **values)
    return say(
        "Iteration {named}; a steady one takes {steady}. Together {time} more, {share} of the run.",
        share=percent(share),
        **values,
    )


def _spike_advice(is_evaluation: bool, lost_s: float, share: float | None) -> str:
    if share is None:
        return ""
    gain = {"time": duration(lost_s), "share": percent(share)}
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
class Drift:
    """The last quarter of the run against its first, in ms."""

    begin: float
    end: float
    mean: float
    bounds: tuple[int, int, int, int]  # iterations: of the first quarter, of the last
    step_at: int | None  # where it changed, if it did at once


def throughput_drift(case: Case) -> Finding | None:
    drift = _drift(case)
    # Pieces that a text quotes may be of anything.
    if drift is None or case.history.quoted or case.history.trainer.step_work_grows:
        return None
    is_slower = drift.end > drift.begin
    change = percent(drift.end / drift.begin - 1 if is_slower else 1 - drift.end / drift.begin)
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
            share=percent(max(1 - drift.begin / drift.mean, 0.0)),
        )
        if is_slower
        else "",
    )


def _drift(case: Case) -> Drift | None:
    at, ms = _even_work(case)
    if len(ms) < FEWEST_TO_DRIFT:
        return None
    quarter = len(ms) // 4
    with np.errstate(over="ignore", invalid="ignore"):  # times of 1e308 have been seen
        begin, end = float(np.median(ms[:quarter])), float(np.median(ms[-quarter:]))
        # Scatter from one iteration to the next; a slow change hardly shows in it.
        noise = SIGMA_PER_MAD * float(np.median(np.abs(np.diff(ms)))) / math.sqrt(2)
        mean = float(np.mean(ms))
    change = abs(end - begin)
    doubt = max(noise, 4 * MEDIAN_ERROR * noise * math.sqrt(2 / quarter))
    if not (math.isfinite(mean) and begin > 0 and change > max(DRIFT * begin, doubt)):
        return None
    bounds = (int(at[0]), int(at[quarter - 1]), int(at[-quarter]), int(at[-1]))
    return Drift(begin, end, mean, bounds, _step(at, ms, end - begin))


def _step(at: Ints, ms: Floats, change: float) -> int | None:
    """The iteration near which nearly all of the change came."""
    stretches = np.array_split(np.arange(len(ms)), min(16, len(ms) // 5))
    levels = np.array([float(np.median(ms[stretch])) for stretch in stretches])
    jumps = (levels[2:] - levels[:-2]) / change  # past the stretch that the step lies in
    largest = int(np.argmax(jumps))
    return int(at[stretches[largest + 1][0]]) if jumps[largest] >= AT_ONCE else None


def _drift_evidence(drift: Drift) -> str:
    first, second, third, last = drift.bounds
    return say(
        "Median of the first quarter {begin} (iterations {first} to {second}), of the last {end} ({third} "
        "to {last}).",
        begin=milliseconds(drift.begin),
        end=milliseconds(drift.end),
        first=first,
        second=second,
        third=third,
        last=last,
    )


def _drift_cause(drift: Drift) -> str:
    if drift.step_at is not None:
        return say(
            "It changed at once, near iteration {at}: another program began or ended then, the machine "
            "changed its power limit, or the work itself changed (batch, context).",
            at=drift.step_at,
        )
    if drift.end < drift.begin:
        return say("The work is the same, so the machine had less to do beside it later, or warmed up late.")
    return say(
        "The work is the same, so the machine slowed down: heat limits, other programs, or growing memory "
        "use."
    )


def batch_changed(case: Case) -> Finding | None:
    """Unequal times that are no fault: the work changed, and the log says so."""
    batches = case.history.batches
    if len(batches) < 2 or len(case.history.segments) > 1:
        return None
    named = [f"{at:,}: {size:,}" for at, size in batches[:NAMED]]
    return Finding(
        "batch-changed",
        "info",
        say("The batch changed on the way"),
        say(
            "Sequences per iteration, from which iteration on: {batches}.",
            batches=", ".join([*named, "…"] if len(batches) > NAMED else named),
        ),
        say(
            "Iterations before and after do unlike work, so their times cannot be compared, nor what one of "
            "them teaches."
        ),
        "",
    )


def jitter(case: Case) -> Finding | None:
    """Scatter from one iteration to the next, beside any drift and any regular pattern."""
    at, ms = _even_work(case)
    if len(ms) < FEWEST:
        return None
    with np.errstate(over="ignore", invalid="ignore"):  # times of 1e308 have been seen
        level = ms / _slow_level(ms)
        ratio = _tail(level)
        fast, usual, slow = (float(value) for value in np.percentile(ms, (10, 50, 95)))
        mean = float(np.mean(ms))
    if not ratio > JITTER or not math.isfinite(mean) or _is_regular(at, level):
        return None
    lost = 1 - fast / mean
    evidence = say(
        "Of {count} steady iterations half take under {usual}, one in ten under {fast}, one in twenty "
        "over {slow}.",
        count=f"{len(ms):,}",
        usual=milliseconds(usual),
        fast=milliseconds(fast),
        slow=milliseconds(slow),
    )
    if case.facts.tokens_per_iteration:
        evidence += " " + say(
            "That is {mean} tokens/s on average, {best} in the fastest tenth.",
            mean=count(1000 * case.facts.tokens_per_iteration / mean),
            best=count(1000 * case.facts.tokens_per_iteration / fast),
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
            share=percent(lost),
        ),
    )


def _even_work(case: Case) -> tuple[Ints, Floats]:
    """The steady iterations of the longest process, without the spikes that have their own finding."""
    steps = case.history.steps
    good = case.history.steady() & ~_spikes(case) & (np.nan_to_num(steps.ms, nan=0.0) > 0)
    if not np.any(good):
        return steps.iteration[:0], steps.ms[:0]
    longest = int(np.argmax(np.bincount(steps.segment[good])))
    good &= steps.segment == longest
    if len(case.history.batches) > 1:  # likewise those of the batch that most of them have
        changes = np.array([at for at, _ in case.history.batches])
        part = np.searchsorted(changes, steps.iteration, side="right")
        good &= part == int(np.argmax(np.bincount(part[good])))
    return steps.iteration[good], steps.ms[good]


def _slow_level(ms: Floats) -> Floats:
    """The median of each stretch of the run: what drift does."""
    stretches = np.array_split(ms, min(16, max(1, len(ms) // FEWEST)))
    return np.concatenate([np.full(len(stretch), np.median(stretch)) for stretch in stretches])


def _tail(level: Floats) -> float:
    middle, slow = np.percentile(level, (50, 95))
    return float(slow / middle) if middle > 0 else math.nan


def _is_regular(at: Ints, level: Floats) -> bool:
    """Whether the scatter is a pattern: some iterations accumulate, others update too. An update costs no
    five micro-batches: what does, comes regularly, and has no line is a wait."""
    at, level = at[:MANY], level[:MANY]
    for period in range(2, LONGEST_PERIOD + 1):
        phase = at % period
        usual = np.ones(len(level))
        for one in range(period):
            if np.any(phase == one):
                usual[phase == one] = np.median(level[phase == one])
        is_work = len(level) >= FEWEST * period // 4 and np.all(usual > 0) and np.max(usual) < SPIKE
        if is_work and _tail(level / usual) <= EVEN:
            return True
    return False
