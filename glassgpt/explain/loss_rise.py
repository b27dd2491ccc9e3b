"""A training loss that rose and stayed up: where it was lowest, and where it ended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glassgpt.runs.curve import block_medians
from glassgpt.runs.trajectory import Trajectory

MIN_LOGGED_STEPS = 25
MAX_BLOCKS = 120  # of three rows at least: a median of fewer is no smoothing
# What has to be lost again, so that neither noise nor a harder stretch of the data looks like it.
MIN_SHARE_OF_GAIN = 0.04
MIN_SHARE_OF_LOWEST = 0.05
MIN_STANDARD_ERRORS = 6.0
MIN_SUSTAINED_SHARE = 0.5  # of that, in every part of the last fifth


@dataclass(frozen=True)
class LossRise:
    """A training loss that ended far above its lowest."""

    first_loss: float
    lowest_loss: float
    lowest_iteration: int
    end_loss: float
    end_iteration: int


def find_loss_rise(course: Trajectory) -> LossRise | None:
    """Of the smoothed training loss; None unless it stayed up and lost a part of what had been learnt."""
    at, losses = course.finite_losses()
    if len(losses) < MIN_LOGGED_STEPS:
        return None
    with np.errstate(over="ignore", invalid="ignore"):  # losses of 1e308 have been seen
        smooth = block_medians(at, losses, min(MAX_BLOCKS, len(losses) // 3))
        low = int(np.argmin(smooth.medians))
        lowest = float(smooth.medians[low])
        tail = smooth.medians[-max(2, len(smooth) // 5) :]
        end, first = float(np.median(tail)), float(losses[0])
        enough = max(
            MIN_SHARE_OF_GAIN * (first - lowest),
            MIN_SHARE_OF_LOWEST * abs(lowest),
            MIN_STANDARD_ERRORS * float(np.median(smooth.stderrs)),
        )
        stays = float(tail.min()) - lowest > MIN_SUSTAINED_SHARE * enough and low < len(smooth) - len(tail)
    if not stays or not end - lowest > enough:
        return None
    return LossRise(first, lowest, round(float(smooth.centers[low])), end, int(at[-1]))
