"""A training loss that rose and stayed up: where it was lowest, and where it ended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glassgpt.runs.curve import blocks
from glassgpt.runs.trajectory import Course

FEWEST_ROWS = 25
MOST_BLOCKS = 120  # of three rows at least: a median of fewer is no smoothing
# What has to be lost again, so that neither noise nor a harder stretch of the data looks like it.
OF_WHAT_WAS_LEARNT = 0.04
OF_THE_LOWEST = 0.05
STANDARD_ERRORS = 6.0
STAYS = 0.5  # of that, in every part of the last fifth


@dataclass(frozen=True)
class Rise:
    """A training loss that ended far above its lowest."""

    first: float
    lowest: float
    lowest_at: int
    end: float
    end_at: int


def rise_of(course: Course) -> Rise | None:
    """Of the smoothed training loss; None unless it stayed up and lost a part of what had been learnt."""
    at, losses = course.losses()
    if len(losses) < FEWEST_ROWS:
        return None
    with np.errstate(over="ignore", invalid="ignore"):  # losses of 1e308 have been seen
        smooth = blocks(at, losses, min(MOST_BLOCKS, len(losses) // 3))
        low = int(np.argmin(smooth.value))
        lowest = float(smooth.value[low])
        tail = smooth.value[-max(2, len(smooth) // 5) :]
        end, first = float(np.median(tail)), float(losses[0])
        enough = max(
            OF_WHAT_WAS_LEARNT * (first - lowest),
            OF_THE_LOWEST * abs(lowest),
            STANDARD_ERRORS * float(np.median(smooth.error)),
        )
        stays = float(tail.min()) - lowest > STAYS * enough and low < len(smooth) - len(tail)
    if not stays or not end - lowest > enough:
        return None
    return Rise(first, lowest, round(float(smooth.at[low])), end, int(at[-1]))
