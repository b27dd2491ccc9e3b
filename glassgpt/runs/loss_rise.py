"""A training loss that rises: slowly and for good, or in an explosion, which it may come back from.

    explosion = find_explosions(iterations, losses, process_starts)[0]
    explosion.peak_loss, explosion.recovered_iteration  # None: it did not come back

Single odd batches are neither: an explosion lasts for several logged losses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.runs.curve_statistics import (
    MEDIAN_TO_MEAN_STDERR,
    block_medians,
    detrended_std,
    leading_median,
    mad,
    trailing_median,
    turning_row,
)
from glassgpt.runs.run_log import Floats, Ints

# A loss rise: how far the smoothed training loss has to end above its lowest value. These are compared with
# the rise, so that neither noise nor a harder part of the data counts as one.
MIN_LOSS_RISE_STEPS = 25  # logged losses; of fewer, a turn that lost so much of what was gained is one
MIN_FEW_LOST_SHARE = 0.5
MAX_LOSS_RISE_BLOCKS = 120  # blocks of at least three losses: a median of fewer does not smooth
MIN_RISE_SHARE_OF_GAIN = 0.08  # of first loss - lowest loss
MIN_RISE_SHARE_OF_LOWEST = 0.08  # of the lowest loss
MIN_RISE_STANDARD_ERRORS = 6.0  # of a block's median
MIN_BLOCKS_WITH_LUCK = 30
MIN_SUSTAINED_RISE_SHARE = 0.5  # of the required rise, in every block of the last fifth
# A loss that left its first value at once, and is not on its way back: the later ones over the first, and the
# last over those after the first.
MIN_LEFT_START_RATIO, MIN_END_TO_EARLY = 5.0, 0.9
MIN_EVALS = 3  # that contradict a rise


@dataclass(frozen=True)
class LossRise:
    """A training loss that ended far above its lowest value."""

    first_loss: float
    lowest_loss: float
    lowest_iteration: int
    end_loss: float
    end_iteration: int
    block_lines: int  # the losses are medians of so many lines; 1: they are as logged

    def is_contradicted(self, at: Floats, val_losses: Floats, least: float) -> bool:
        """Whether the validation loss falls meanwhile, by more than `least`, to its end: then the training
        loss is of another scale, or has a term that grows. `at`: of the evaluations."""
        values = val_losses[max(0, int(np.searchsorted(at, self.lowest_iteration, side="right")) - 1) :]
        return len(values) >= MIN_EVALS and values[0] - values[-1] > least > values[-1] - values.min()


def find_loss_rise(at: Ints, losses: Floats) -> LossRise | None:
    """None unless the smoothed loss stayed up until the end. `at`: the iterations."""
    if len(losses) < MIN_LOSS_RISE_STEPS:
        row = turning_row(losses)
        if row is None or losses[-1] - losses[row] < MIN_FEW_LOST_SHARE * (losses[0] - losses[row]):
            return None
        return LossRise(float(losses[0]), float(losses[row]), int(at[row]), float(losses[-1]), int(at[-1]), 1)
    if 0 < MIN_LEFT_START_RATIO * losses[0] < losses[1:].min():
        fifth = len(losses) // 5
        early, late = float(np.median(losses[1 : 1 + fifth])), float(np.median(losses[-fifth:]))
        if late > MIN_END_TO_EARLY * early:
            return LossRise(float(losses[0]), float(losses[0]), int(at[0]), late, int(at[-1]), 1)
    smooth = block_medians(at, losses, min(MAX_LOSS_RISE_BLOCKS, len(losses) // 3))
    lowest_block = int(np.argmin(smooth.medians))
    lowest, first = float(smooth.medians[lowest_block]), max(float(losses[0]), float(smooth.medians[0]))
    last_fifth = smooth.medians[-max(2, len(smooth) // 5) :]
    end = float(np.median(last_fifth))
    # A block has few losses, so its own error is uncertain: that of all losses counts, too.
    std = (detrended_std(losses) or 0.0) * MEDIAN_TO_MEAN_STDERR / math.sqrt(len(losses) / len(smooth))
    required = max(
        MIN_RISE_SHARE_OF_GAIN * (first - lowest),
        MIN_RISE_SHARE_OF_LOWEST * abs(lowest),
        MIN_RISE_STANDARD_ERRORS * max(std, float(np.median(smooth.stderrs))),
    )
    stays_up = (
        lowest_block < len(smooth) - len(last_fifth)
        and float(last_fifth.min()) - lowest > MIN_SUSTAINED_RISE_SHARE * required
    )
    if not stays_up or not end - lowest > required:
        return None
    # The lowest of many blocks is low by luck, too: their neighbours say what the level was.
    around = smooth.medians[max(0, lowest_block - 1) : lowest_block + 2]
    if len(smooth) >= MIN_BLOCKS_WITH_LUCK and not end - float(np.median(around)) > required:
        return None
    lowest_at, lines = round(float(smooth.centers[lowest_block])), len(losses) // len(smooth)
    return LossRise(first, lowest, lowest_at, end, int(at[-1]), lines)


# A jump: the loss is higher from one line to the next, and stays there. So many losses on both sides of it.
JUMP_LOSSES = 20
MIN_JUMP_SHARE = 0.05  # of the loss before
EDGE_LOSSES, MIN_EDGE_SHARE = 5, 0.5  # on both sides of the jump, and how much of it lies between them
MAX_JUMP_OVERLAP = 0.1  # of the losses on both sides: those beyond the middle between both levels


@dataclass(frozen=True)
class LossJump:
    """A training loss that rose within a few lines and stayed there."""

    iteration: int  # the first of the higher ones
    loss_before: float
    loss_after: float


def find_loss_jump(at: Ints, losses: Floats, process_starts: Ints) -> LossJump | None:
    """The highest one after which no stretch of losses is back. `process_starts`: as of find_explosions."""
    if len(losses) < 3 * JUMP_LOSSES:
        return None
    medians = trailing_median(losses, JUMP_LOSSES)  # of those before each row
    rows = np.arange(JUMP_LOSSES, len(losses) - JUMP_LOSSES)
    after = leading_median(losses, JUMP_LOSSES)
    jumps = after[rows] - medians[rows]
    best = int(np.argmax(jumps))
    row, size = int(rows[best]), float(jumps[best])
    before = float(medians[row])
    middle = before + size / 2
    if not size > MIN_JUMP_SHARE * abs(before) or float(after[row:].min()) < middle:
        return None
    near = np.arange(row - JUMP_LOSSES // 2, row + JUMP_LOSSES // 2)  # the line that parts them best
    begin, end = row - JUMP_LOSSES, row + JUMP_LOSSES
    wrong = [np.sum(losses[begin:one] > middle) + np.sum(losses[one:end] < middle) for one in near]
    row = int(near[int(np.argmin(wrong))])
    not_long_before = losses[max(0, row - 3 * JUMP_LOSSES) : row]
    if min(wrong) > MAX_JUMP_OVERLAP * 2 * JUMP_LOSSES or np.mean(not_long_before > middle) > 0.5:
        return None
    if _begins_process(process_starts, at[row - 3], at[row]):
        return None
    edge = float(np.median(losses[row : row + EDGE_LOSSES]) - np.median(losses[row - EDGE_LOSSES : row]))
    if edge < MIN_EDGE_SHARE * size:
        return None  # it rises slowly
    return LossJump(int(at[row]), before, float(np.median(losses[row:])))


def _begins_process(process_starts: Ints, first: int, last: int) -> bool:
    """Whether one began at these iterations: then a jump there is the resume's."""
    return bool(((process_starts >= first) & (process_starts <= last)).any())


# An explosion: several losses in a row, compared with the median of those before.
MIN_LOSSES_BEFORE, MEDIAN_WINDOW = 5, 25
MIN_EXPLODED_LOSSES = 3  # in a row; fewer may be odd batches
MIN_RECOVERED_LOSSES = 6  # until it was back: fewer may be noise with long tails
MIN_EXPLOSION_RATIO = 2.0
MIN_EXPLOSION_NATS = 1.0  # a small loss doubles in a spike
MIN_EXPLOSION_MADS = 8.0  # median absolute deviations above it
# The median of so many losses is at most this ratio of the one before: the loss is back.
RECOVERY_LOSSES, MAX_RECOVERED_RATIO = 5, 1.25
MAX_EXPLOSIONS = 100


@dataclass(frozen=True)
class Explosion:
    """A training loss that rose to a multiple within a few iterations."""

    iteration: int  # the first above its usual loss
    loss_before: float  # the last loss before it, and its iteration
    iteration_before: int
    peak_loss: float
    peak_iteration: int
    recovered_iteration: int | None  # None: it did not come back
    end_loss: float  # the last of the run
    end_iteration: int

    @property
    def until(self) -> int:
        """The last iteration before the loss was back."""
        return self.end_iteration if self.recovered_iteration is None else self.recovered_iteration


def find_early_explosion(at: Ints, losses: Floats, start_at: int, start_loss: float) -> Explosion | None:
    """One from the first updates on, compared with an evaluation before them."""
    first = int(np.searchsorted(at, start_at, side="right"))
    later, same_weights = losses[first:], losses[:first]
    is_other = (same_weights > MAX_RECOVERED_RATIO * start_loss) | (
        MAX_RECOVERED_RATIO * same_weights < start_loss
    )
    if is_other.any():
        return None  # the two are not of one scale
    least = max(MIN_EXPLOSION_RATIO * start_loss, start_loss + MIN_EXPLOSION_NATS)
    if len(later) < MIN_EXPLODED_LOSSES or later[:MIN_EXPLODED_LOSSES].min() <= least:
        return None
    medians, back_limit = leading_median(later, RECOVERY_LOSSES), MAX_RECOVERED_RATIO * start_loss
    back = np.flatnonzero((medians <= back_limit) & (later[: len(medians)] <= back_limit))
    if len(back) and back[0] < MIN_RECOVERED_LOSSES:
        return None
    peak = int(np.argmax(later[: back[0]] if len(back) else later))
    return Explosion(
        iteration=int(at[first]),
        loss_before=start_loss,
        iteration_before=start_at,
        peak_loss=float(later[peak]),
        peak_iteration=int(at[first + peak]),
        recovered_iteration=int(at[first + int(back[0])]) if len(back) else None,
        end_loss=float(losses[-1]),
        end_iteration=int(at[-1]),
    )


def find_explosions(at: Ints, losses: Floats, process_starts: Ints) -> list[Explosion]:
    """In order; only the last can be one without recovery. `process_starts`: the iterations at which later
    processes began; a jump there is the resume's."""
    count = len(losses)
    if count < MIN_LOSSES_BEFORE + MIN_EXPLODED_LOSSES:
        return []
    stays_above = losses[:-2].copy()  # the lowest of a loss and the two after it
    for offset in range(1, MIN_EXPLODED_LOSSES):
        np.minimum(stays_above, losses[offset : count - MIN_EXPLODED_LOSSES + 1 + offset], out=stays_above)
    lowest_so_far = np.minimum.accumulate(losses)[: len(stays_above)]
    least = np.maximum(MIN_EXPLOSION_RATIO * lowest_so_far, lowest_so_far + MIN_EXPLOSION_NATS)
    if not np.any(stays_above > least):
        return []
    usual = trailing_median(losses, MEDIAN_WINDOW)
    for row in range(MIN_LOSSES_BEFORE, min(count, MEDIAN_WINDOW + 1)):
        usual[row] = np.median(losses[:row])
    required = np.maximum(MIN_EXPLOSION_RATIO * usual, usual + MIN_EXPLOSION_NATS)[: len(stays_above)]
    forward_median = leading_median(losses, RECOVERY_LOSSES)
    explosions: list[Explosion] = []
    next_row = MIN_LOSSES_BEFORE
    for row in np.flatnonzero(stays_above > required).tolist():  # NaN where there is no usual loss
        before = losses[max(0, row - MEDIAN_WINDOW) : row]
        level = float(usual[row])
        if row < MEDIAN_WINDOW and not explosions:  # a tail: the rise may be a part of so few losses
            level = min(level, float(np.median(losses[: max(2, row // 2)])))
        if row < next_row or stays_above[row] <= level + MIN_EXPLOSION_MADS * mad(before):
            continue
        back_limit = MAX_RECOVERED_RATIO * level
        start = row
        first_row = next_row if explosions else 1
        while start > first_row and losses[start - 1] > back_limit:
            start -= 1
        back = np.flatnonzero(
            (forward_median[row:] <= back_limit) & (losses[row : len(forward_median)] <= back_limit)
        )
        recovered = row + int(back[0]) if len(back) else None
        end = count if recovered is None else recovered
        next_row = end + MIN_LOSSES_BEFORE
        if recovered is not None and recovered - start < MIN_RECOVERED_LOSSES:
            next_row = recovered
            continue
        if _begins_process(process_starts, at[max(0, start - 3)], at[row]):
            continue
        peak = start + int(np.argmax(losses[start:end]))
        explosions.append(
            Explosion(
                iteration=int(at[start]),
                loss_before=float(losses[start - 1]),
                iteration_before=int(at[start - 1]),
                peak_loss=float(losses[peak]),
                peak_iteration=int(at[peak]),
                recovered_iteration=None if recovered is None else int(at[recovered]),
                end_loss=float(losses[-1]),
                end_iteration=int(at[-1]),
            )
        )
        if recovered is None or len(explosions) == MAX_EXPLOSIONS:
            break
    return explosions
