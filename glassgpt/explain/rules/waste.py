"""What a part of a run took, in seconds and as a share of the whole."""

from __future__ import annotations

import math
from dataclasses import replace

from glassgpt.explain.rule import RunAnalysis
from glassgpt.runs.run_log import Ints
from glassgpt.runs.trajectory import seconds_between


def seconds_and_share_after(
    case: RunAnalysis, after: int, until: int, rows: Ints | None = None
) -> tuple[float, float] | None:
    """Of the iterations past `after`, up to `until`: seconds, and their share of the run. `rows`: of these
    lines only, where it is not about the course of the run."""
    steps, total = case.log.steps, case.facts.estimated_total_s
    course = case.trajectory
    if rows is not None:
        course = replace(course, iteration=steps.iteration[rows], ms=steps.ms[rows])
    seconds = seconds_between(course, after, until, case.facts.steady_ms)
    if not total or not seconds or not math.isfinite(total) or not 0 < seconds <= total:
        return None
    return seconds, seconds / total
