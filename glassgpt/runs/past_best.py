"""Whether a run went past its best evaluation, or overfits by the gap between both losses of one."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import numpy as np

from glassgpt.runs.curve_statistics import detrended_std, trend
from glassgpt.runs.noise import CLEAR_STANDARD_ERRORS, EvalNoise, clear_difference
from glassgpt.runs.run_log import Floats, RunLog
from glassgpt.runs.trajectory import Trajectory, shows_run_start

# The rise after the best evaluation has to exceed the noise, and these.
MIN_RISE_SHARE = 0.01  # of the best loss: less is no reason to stop
MIN_RISE_SHARE_SINGLE_EVAL = 0.03  # of the best loss, where only one evaluation came after the best
MIN_EVALS = 3
NEIGHBOURS = 5  # evaluations on either side of the best that it is compared with
MAX_STD_TO_SCATTER = 1.5  # of these, from one to the next: more is a trend
MIN_TRAIN_LOSSES = 5  # for the training loss at one point of the run

# The gap between both losses of one evaluation, from which on it is overfitting whatever came before. At the
# best evaluation of a small text it is a third of the training loss.
MIN_GAP_NATS, MIN_GAP_SHARE, MAX_REQUIRED_GAP = 0.4, 0.5, 1.0
MIN_GAP_STANDARD_ERRORS = 10.0
# Of a gap that grows: a smaller growth is that of a usual run of new data.
MIN_GROWTH_EVALS, MIN_GAP_GROWTH_NATS = 6, 0.1


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


@dataclass(frozen=True)
class ChanceOfBest:
    below: float  # the median of the evaluations around it, minus the lowest
    std: float  # the standard deviation of those around it
    count: int  # of them


def chance_of_best(values: Floats) -> ChanceOfBest | None:
    """How far the lowest of many evaluations is below those around it, where it seems to be the better one by
    much, and may be by luck alone. Not where these follow a trend: their standard deviation is no noise."""
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    best = int(np.argmin(values))
    around = np.append(values[max(0, best - NEIGHBOURS) : best], values[best + 1 : best + NEIGHBOURS + 1])
    if len(around) < NEIGHBOURS:
        return None
    below, std = float(np.median(around) - values[best]), float(np.std(around, ddof=1))
    is_noise = std < MAX_STD_TO_SCATTER * (detrended_std(around) or 0.0)
    if not is_noise or not MIN_RISE_SHARE * values[best] <= below <= CLEAR_STANDARD_ERRORS * std:
        return None
    return ChanceOfBest(below, std, len(around))


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
    """Both losses at the last evaluation, far apart."""

    iteration: int
    train_loss: float
    val_loss: float
    # The training loss is not of an evaluation, but of the log lines before it: so many.
    train_lines: int | None = None
    is_of_lines: bool = False  # many iterations have both: these are the medians of the last ones
    is_alone: bool = False  # of these the only evaluation: the gap may have been there from the start

    @property
    def gap(self) -> float:
        return self.val_loss - self.train_loss


def find_train_val_gap(
    run_log: RunLog, trajectory: Trajectory, noise: EvalNoise | None, epochs: float | None
) -> TrainValGap | None:
    """A gap that only memorising explains, at the last evaluation. One that was there before training,
    because the two texts differ, does not count; nor does one behind which the val loss still falls. Where
    evaluations are of validation text alone, they are compared with the log lines before them."""
    if not trajectory.evals or not trajectory.evals[-1].iteration:
        return None
    last, first = trajectory.evals[-1], trajectory.evals[0]
    train_loss, train_lines, val_loss = last.train_loss, None, last.val_loss or 0.0
    if train_loss is None and any(one.train_loss is not None for one in trajectory.evals):
        return None
    earlier_gap, is_alone, is_of_lines = 0.0, False, False
    if train_loss is None:
        if run_log.val_metric != "loss" or (epochs is not None and epochs <= 1):
            return None  # not the same measure; or the data are new, and cannot have been memorised
        train_loss, train_lines = logged_train_loss(run_log, trajectory, last.iteration or 0)
        trained = [one for one in trajectory.evals if one.iteration]
        is_alone = len(trained) == 1
        gaps = (
            (one.val_loss or 0.0) - before
            for one in trained[:-1]
            if (before := logged_train_loss(run_log, trajectory, one.iteration or 0)[0]) is not None
        )
        first_gap = next(gaps, None)  # of a long log there are thousands: the first alone is looked for
        if first_gap is None and not is_alone:
            return None
        earlier_gap = max(0.0, first_gap or 0.0)
    elif first.iteration == 0 and first.train_loss is not None and math.isfinite(first.train_loss):
        earlier_gap = max(0.0, (first.val_loss or 0.0) - first.train_loss)
    if train_loss is None or not math.isfinite(train_loss):
        return None
    if train_lines is not None and (both := _last_of_lines(trajectory)) is not None:
        train_loss, val_loss, is_of_lines = *both, True
    gap = val_loss - train_loss - earlier_gap
    if gap < max(MIN_GAP_NATS, min(MAX_REQUIRED_GAP, MIN_GAP_SHARE * train_loss)):
        return None
    if noise and gap < noise.difference(MIN_GAP_STANDARD_ERRORS):
        return None
    _, values = trajectory.val_curve()
    late = (values[1:] if first.iteration == 0 else values)[-2:]
    if len(late) == 2 and late[0] - late[1] > clear_difference(noise, val_loss):
        return None  # still improving on unseen text
    if train_lines is not None and len(values) >= MIN_EVALS and int(np.argmin(values)) == len(values) - 1:
        return None  # slowly, but it was never better
    return TrainValGap(last.iteration or 0, train_loss, val_loss, train_lines, is_of_lines, is_alone)


@dataclass(frozen=True)
class GapGrowth:
    """Medians over the first and the last evaluations, of so many each."""

    first_gap: float
    last_gap: float
    evals: int
    first_iteration: int  # of the first and of the last evaluation
    last_iteration: int


def find_gap_growth(run_log: RunLog, trajectory: Trajectory) -> GapGrowth | None:
    """Validation minus training loss, where that has grown from evaluation to evaluation."""
    if run_log.val_metric != "loss" or not run_log.has_iteration_numbers:
        return None
    gaps, at = [], []
    for one in trajectory.evals:
        train_loss = one.train_loss
        if one.iteration and train_loss is None:
            train_loss, _ = logged_train_loss(run_log, trajectory, one.iteration)
        if one.iteration and one.val_loss is not None and train_loss is not None:
            gaps.append(one.val_loss - train_loss)
            at.append(one.iteration)
    values = np.array(gaps)[np.isfinite(gaps)]
    if len(values) < MIN_GROWTH_EVALS or len(values) < len(gaps):
        return None
    third = len(values) // 3
    first, last = float(np.median(values[:third])), float(np.median(values[-third:]))
    least = max(
        MIN_GAP_GROWTH_NATS, CLEAR_STANDARD_ERRORS * math.sqrt(2 / third) * (detrended_std(values) or 0.0)
    )
    if last <= 0 or last - first < least or trend(values) != "rises":
        return None
    return GapGrowth(first, last, third, at[0], at[-1])


def _last_of_lines(trajectory: Trajectory) -> tuple[float, float] | None:
    """The medians of both losses over the last twentieth of the lines, where these have both."""
    at, losses = trajectory.finite_losses()
    evaluated, values = trajectory.val_curve()
    count = len(values) // 20
    late = np.isin(at, evaluated[-count:])
    if count < MIN_TRAIN_LOSSES or np.count_nonzero(late) < count:
        return None
    return float(np.median(losses[late])), float(np.median(values[-count:]))


def logged_train_loss(
    run_log: RunLog, trajectory: Trajectory, iteration: int
) -> tuple[float | None, int | None]:
    """The training loss by the last lines up to this iteration, and of how many: one, where it is the mean of
    many iterations. None where they are too few, or too long before."""
    at, losses = trajectory.finite_losses()
    end = int(np.searchsorted(at, iteration, side="right"))
    interval = run_log.log_interval() or 1
    trainer = run_log.trainer
    is_mean = trainer.iterations_are_epochs or (
        trainer.loss_is_interval_mean and interval >= MIN_TRAIN_LOSSES
    )
    count = 1 if is_mean else MIN_TRAIN_LOSSES
    if end < count or iteration - int(at[end - 1]) > interval:
        return None, None
    return statistics.median(losses[end - count : end].tolist()), count  # of a few: np.median takes 20 us


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
        # The medians decide. What the rows of both iterations say themselves is shown, where it agrees.
        own = dict(zip(at.tolist(), losses.tolist(), strict=True))
        own_best, own_end = own.get(best_iteration), own.get(end_iteration)
        if at_end < at_best and own_best is not None and own_end is not None and own_end < own_best:
            return own_best, own_end
    return (at_best, at_end) if at_end < at_best else None
