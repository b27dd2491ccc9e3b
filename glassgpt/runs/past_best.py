"""Whether a run went past its best evaluation, or overfits by the gap between both losses of one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.runs.noise import EvalNoise, clear_difference
from glassgpt.runs.run_log import Floats, RunLog
from glassgpt.runs.trajectory import Trajectory, shows_run_start

# The rise after the best evaluation has to exceed the noise, and these.
MIN_RISE_SHARE = 0.01  # of the best loss: less is no reason to stop
MIN_RISE_SHARE_SINGLE_EVAL = 0.03  # of the best loss, where only one evaluation came after the best
MIN_EVALS = 3
MIN_TRAIN_LOSSES = 5  # for the training loss at one point of the run

# The gap between both losses of one evaluation, from which on it is overfitting whatever came before. At the
# best evaluation of a small text it is a third of the training loss.
MIN_GAP_NATS, MIN_GAP_SHARE = 0.4, 0.5
MIN_GAP_STANDARD_ERRORS = 10.0


@dataclass(frozen=True)
class PastBest:
    best_loss: float
    best_iteration: int
    end_loss: float
    end_iteration: int
    start_iteration: int
    train_losses: tuple[float, float] | None  # at the best evaluation and at the end, if it fell: overfitting
    is_earliest: bool = False  # the best is the first evaluation of a tail: there may be a better one before

    @property
    def share_after_best(self) -> float:
        return (self.end_iteration - self.best_iteration) / max(1, self.end_iteration - self.start_iteration)


def clear_rise(values: Floats, best: int, later: int, noise: EvalNoise | None) -> bool:
    """Whether the evaluation `later` is worse than the `best` one by more than noise.

    The lowest of many evaluations is low by luck, too. So the best is taken with its neighbours, and the
    later one with those before it. A single evaluation past the best may be an accident.
    """
    lowest, evals_after = float(values[best]), later - best
    if evals_after < 1:
        return False
    min_rise = max(clear_difference(noise, lowest), MIN_RISE_SHARE * lowest)
    if evals_after == 1:
        return float(values[later]) - lowest > max(min_rise, MIN_RISE_SHARE_SINGLE_EVAL * lowest)
    low = float(np.median(values[max(0, best - 1) : best + 2]))
    return float(np.mean(values[later + 1 - min(evals_after, 3) : later + 1])) - low > min_rise


def find_past_best(run_log: RunLog, trajectory: Trajectory, noise: EvalNoise | None) -> PastBest | None:
    """None where the last evaluations are not clearly above the best one."""
    at, values = trajectory.val_curve()
    if len(values) < MIN_EVALS:
        return None
    best = int(np.argmin(values))
    if at[best] <= 0 or not clear_rise(values, best, len(values) - 1, noise):
        return None
    start = int(at[0])
    if trajectory.segments and run_log.segments[trajectory.segments[0]].has_startup:
        start = 0
    elif len(trajectory.iteration):
        start = min(start, int(trajectory.iteration[0]))
    best_iteration, end_iteration = int(at[best]), int(at[-1])
    return PastBest(
        best_loss=float(values[best]),
        best_iteration=best_iteration,
        end_loss=float(values[-1]),
        end_iteration=end_iteration,
        start_iteration=start,
        train_losses=_fallen_train_losses(trajectory, best_iteration, end_iteration, start),
        is_earliest=best == 0 and not shows_run_start(run_log),
    )


@dataclass(frozen=True)
class TrainValGap:
    """Both losses of the last evaluation, far apart."""

    iteration: int
    train_loss: float
    val_loss: float

    @property
    def gap(self) -> float:
        return self.val_loss - self.train_loss


def find_train_val_gap(trajectory: Trajectory, noise: EvalNoise | None) -> TrainValGap | None:
    """A gap that only memorising explains, in the last evaluation. One that was there before training,
    because the two texts differ, does not count; nor does one behind which the val loss still falls."""
    evals = [one for one in trajectory.evals if one.train_loss is not None and math.isfinite(one.train_loss)]
    if not evals or not evals[-1].iteration or evals[-1] != trajectory.evals[-1]:
        return None
    last, first = evals[-1], evals[0]
    train_loss, val_loss = last.train_loss or 0.0, last.val_loss or 0.0
    gap = val_loss - train_loss
    if first.iteration == 0:
        gap -= max(0.0, (first.val_loss or 0.0) - (first.train_loss or 0.0))
    if gap < max(MIN_GAP_NATS, MIN_GAP_SHARE * train_loss):
        return None
    if noise and gap < noise.difference(MIN_GAP_STANDARD_ERRORS):
        return None
    _, values = trajectory.val_curve()
    trained = values[1:] if trajectory.evals[0].iteration == 0 else values
    if len(trained) >= 2 and trained[-2] - trained[-1] > clear_difference(noise, val_loss):
        return None  # still improving on unseen text
    return TrainValGap(last.iteration or 0, train_loss, val_loss)


def _fallen_train_losses(
    trajectory: Trajectory, best_iteration: int, end_iteration: int, start_iteration: int
) -> tuple[float, float] | None:
    """The training loss at the best evaluation and at the end, if it is lower at the end."""
    by_iteration = {evaluation.iteration: evaluation.train_loss for evaluation in trajectory.evals}
    at_best, at_end = by_iteration.get(best_iteration), by_iteration.get(end_iteration)
    if at_best is None or at_end is None:
        at, losses = trajectory.finite_losses()
        around = np.flatnonzero((at > best_iteration * 0.9) & (at <= best_iteration * 1.1))
        late = np.flatnonzero(at > end_iteration - 0.1 * (end_iteration - start_iteration))
        if len(around) < MIN_TRAIN_LOSSES:  # a large log interval: take the nearest lines
            around = np.sort(np.argsort(np.abs(at - best_iteration), kind="stable")[:MIN_TRAIN_LOSSES])
        if len(late) < MIN_TRAIN_LOSSES:
            late = np.arange(len(at))[-MIN_TRAIN_LOSSES:]
        if len(around) < MIN_TRAIN_LOSSES or around[-1] >= late[0]:
            return None
        at_best, at_end = float(np.median(losses[around])), float(np.median(losses[late]))
    return (at_best, at_end) if at_end < at_best else None
