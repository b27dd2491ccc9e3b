"""What a trainer's clock really measured, and what a stopwatch beside it said."""

from __future__ import annotations

import math

from glassgpt.explain.rule import Finding, RunAnalysis
from glassgpt.format import format_duration, format_ms, format_percent
from glassgpt.i18n import say

CLOCK_TOLERANCE = 0.02  # of the wall time: below that the two clocks agree


def clock_before_sync(case: RunAnalysis) -> Finding | None:
    """A clock that is read when the work is launched, not when it is done, except at logged iterations."""
    history, facts = case.log, case.facts
    if not history.trainer.clock_reads_before_sync or history.setup.settings.get("device") == "cpu":
        return None
    interval, steady_ms = facts.log_interval, facts.steady_ms
    if not interval or interval < 2 or not steady_ms or case.log.iteration_count() <= facts.iterations_logged:
        return None
    evidence = [
        say(
            "{logged} of {count} iterations have a time, one in {interval}; {steady} is the median of those.",
            logged=f"{facts.iterations_logged:,}",
            count=f"{case.log.iteration_count():,}",
            interval=interval,
            steady=format_ms(steady_ms),
        )
    ]
    explanation = [
        say(
            "On a GPU, {trainer} reads its clock without waiting for the work, except at logged iterations, "
            "where it fetches the loss. So each time is a sample, and work of the iterations before may "
            "be waited for in it.",
            trainer=history.trainer.name,
        )
    ]
    wall_s, estimated_s = _both_clocks(case)
    is_too_long = estimated_s > (1 + CLOCK_TOLERANCE) * wall_s
    if not math.isnan(wall_s):
        evidence.append(_compared(estimated_s, wall_s))
        explanation.append((_too_long if is_too_long else _rest)(case, estimated_s, wall_s))
    advice = say(
        "Judge speed by wall time over many iterations; with log_interval=1 every time waits for the GPU."
    )
    return Finding(
        "clock-before-sync",
        "warning" if is_too_long else "info",
        say("Iteration times are samples, read before the GPU has finished"),
        " ".join(evidence),
        " ".join(explanation),
        advice if is_too_long else "",
    )


def _both_clocks(case: RunAnalysis) -> tuple[float, float]:
    """The wall clock and the sum of the logged times, in seconds; NaN where one of them is not known."""
    wall_s, estimated_s = case.log.setup.wall_s, case.facts.estimated_total_s
    is_one_process = len(case.log.segments) == 1
    if not (is_one_process and wall_s and wall_s > 0 and estimated_s and math.isfinite(estimated_s + wall_s)):
        return math.nan, math.nan
    return wall_s, estimated_s


def _compared(estimated_s: float, wall_s: float) -> str:
    return say(
        "The logged times, with the others taken as steady, add up to {estimate}; the wall clock said "
        "{wall}, a difference of {difference} ({share}).",
        estimate=format_duration(estimated_s),
        wall=format_duration(wall_s),
        difference=format_duration(abs(wall_s - estimated_s)),
        share=format_percent(abs(wall_s - estimated_s) / wall_s),
    )


def _max_unlogged_ms(case: RunAnalysis, estimated_s: float, wall_s: float) -> float:
    """What the wall clock leaves for an iteration that was not logged."""
    unlogged = case.log.iteration_count() - case.facts.iterations_logged
    return (case.facts.steady_ms or 0.0) + 1000 * (wall_s - estimated_s) / unlogged


def _rest(case: RunAnalysis, estimated_s: float, wall_s: float) -> str:
    if wall_s - estimated_s <= CLOCK_TOLERANCE * wall_s:
        return say("Here both clocks agree.")
    return say(
        "The rest of the wall time went before the first iteration (imports, data, model set-up) or into "
        "iterations that were not logged: on average no more than {room} each.",
        room=format_ms(_max_unlogged_ms(case, estimated_s, wall_s)),
    )


def _too_long(case: RunAnalysis, estimated_s: float, wall_s: float) -> str:
    room_ms = _max_unlogged_ms(case, estimated_s, wall_s)
    if room_ms <= 0:
        return say("The logged times hold more than one iteration each: the run was faster than they say.")
    return say(
        "The logged times hold waiting for the iterations before: those that were not logged took on "
        "average no more than {room} each.",
        room=format_ms(room_ms),
    )
