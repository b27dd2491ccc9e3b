"""Whether a run went past its best evaluation: the last ones are above it by more than noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.runs.noise import EvalNoise
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trajectory import Trajectory

# The rise after the best evaluation has to exceed each of these.
MIN_RISE_STANDARD_ERRORS = 3.0  # of a difference of two evaluations
DEFAULT_NOISE_SHARE = 0.01  # of the best loss: replaces the above where the noise is not known
MIN_RISE_SHARE = 0.01  # of the best loss: less is no reason to stop
MIN_RISE_SHARE_SINGLE_EVAL = 0.03  # of the best loss, where only one evaluation came after the best
MIN_TRAIN_LOSSES = 5  # for the training loss at one point of the run


@dataclass(frozen=True)
class PastBest:
    best_loss: float
    best_iteration: int
    end_loss: float
    end_iteration: int
    start_iteration: int
    train_losses: tuple[float, float] | None  # at the best evaluation and at the end, if it fell: overfitting

    @property
    def share_after_best(self) -> float:
        return (self.end_iteration - self.best_iteration) / max(1, self.end_iteration - self.start_iteration)


def visible_rise(noise: EvalNoise) -> float:
    """The smallest difference of two evaluations that is not noise."""
    return MIN_RISE_STANDARD_ERRORS * math.sqrt(2) * noise.std


def find_past_best(run_log: RunLog, trajectory: Trajectory, noise: EvalNoise | None) -> PastBest | None:
    """None where the last evaluations are not clearly above the best one."""
    at, values = trajectory.val_curve()
    if len(values) < 3:
        return None
    best = int(np.argmin(values))
    evals_after = len(values) - 1 - best
    lowest = float(values[best])
    min_rise = visible_rise(noise) if noise else DEFAULT_NOISE_SHARE * lowest
    low, end = lowest, float(values[-1])
    if evals_after >= 2:  # the lowest of many is low by luck too: take the median with its neighbours
        low = float(np.median(values[max(0, best - 1) : best + 2]))
        end = float(np.mean(values[-min(evals_after, 3) :]))
    else:  # a single evaluation past the best may be an accident
        min_rise = max(min_rise, MIN_RISE_SHARE_SINGLE_EVAL * lowest)
    if evals_after < 1 or at[best] <= 0 or not end - low > max(min_rise, MIN_RISE_SHARE * low):
        return None
    start = int(at[0])
    if trajectory.segments and run_log.segments[trajectory.segments[0]].has_startup:
        start = 0
    elif len(trajectory.iteration):
        start = min(start, int(trajectory.iteration[0]))
    best_iteration, end_iteration = int(at[best]), int(at[-1])
    train_losses = _fallen_train_losses(trajectory, best_iteration, end_iteration, start)
    return PastBest(lowest, best_iteration, float(values[-1]), end_iteration, start, train_losses)


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
