"""What the loss of a run that is under way, or was cut short, will be at its planned end.

    forecast = forecast_final_loss(run_log, trajectory, past_best, planned=5000)

The validation loss, where there are enough evaluations; else the training loss, smoothed over the last
twentieth of the run. Nothing is said in the first quarter of the plan, before the warm-up is well over, from
few or wild losses, and of a run that overfits: when a validation loss turns cannot be known before it does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.estimate.loss_forecast import LAW, ForecastLaw, LossCurve, forecast_loss_at_end
from glassgpt.runs.curve_statistics import MEDIAN_TO_MEAN_STDERR, block_medians, detrended_std
from glassgpt.runs.lr_course import LrCourse, lr_course
from glassgpt.runs.past_best import PastBest
from glassgpt.runs.run_log import Floats, RunLog
from glassgpt.runs.trajectory import Trajectory, numeric_setting, val_metric_name

MIN_SHARE_OF_PLAN, MAX_SHARE_OF_PLAN = 0.25, 0.95  # iterations done over planned ones
MIN_WARMUPS = 1.5  # iterations done over those until the learning rate was highest
SKIPPED_SHARE = 0.1  # of the iterations done: the first fall follows another law
MIN_EVALS, MIN_TRAIN_LOSSES = 5, 16
MIN_LOSSES_PER_BLOCK, MAX_BLOCKS = 3, 32
SMOOTHED_SHARE = 0.05  # of the run: the training loss at the end is the median over so much of it
# Overfitting ahead: validation less training loss, over the validation loss, and how much that has grown.
MAX_GAP_SHARE, MAX_GAP_GROWTH = 0.15, 0.08


@dataclass(frozen=True)
class FinalLossForecast:
    """The loss at an iteration ahead: an expected value and an 80% band."""

    metric: str  # as trainers print it: "val loss", "val bpb" or "train loss"
    at_iteration: int
    expected: float
    low: float
    high: float
    runs: int  # that the band was calibrated on
    is_schedule_known: bool  # of the learning rate ahead


@dataclass(frozen=True)
class ForecastInputs:
    curve: LossCurve
    course: LrCourse
    metric: str
    at_iteration: int


def forecast_final_loss(
    run_log: RunLog, trajectory: Trajectory, past_best: PastBest | None, planned: int | None
) -> FinalLossForecast | None:
    """None where there is too little to say."""
    last = trajectory.last_iteration
    if not planned or last is None or not run_log.has_iteration_numbers:
        return None
    if not MIN_SHARE_OF_PLAN * planned <= last <= MAX_SHARE_OF_PLAN * planned:
        return None
    inputs = forecast_inputs(run_log, trajectory, past_best, planned, planned)
    return None if inputs is None else forecast_from(inputs)


def forecast_from(inputs: ForecastInputs, law: ForecastLaw = LAW) -> FinalLossForecast | None:
    forecast = forecast_loss_at_end(inputs.curve, law)
    if forecast is None:
        return None
    return FinalLossForecast(
        inputs.metric,
        inputs.at_iteration,
        forecast.expected,
        forecast.low,
        forecast.high,
        forecast.runs,
        inputs.course.is_known_ahead,
    )


def forecast_inputs(
    run_log: RunLog, trajectory: Trajectory, past_best: PastBest | None, planned: int, target: int
) -> ForecastInputs | None:
    """The curve so far; `target` is the iteration to forecast, at most the planned end."""
    course = lr_course(run_log, trajectory, planned)
    last = trajectory.last_iteration or 0
    warmup = max(numeric_setting(run_log, "warmup_iters") or 0.0, course.first_peak_iteration)
    if last < MIN_WARMUPS * warmup:
        return None
    begin = max(SKIPPED_SHARE * last, warmup, 1.0)
    at, losses = trajectory.val_curve()
    at, losses = at[at >= begin], losses[at >= begin]
    is_validation, end, end_noise, metric = len(losses) >= MIN_EVALS, float(target), 0.0, "train loss"
    if is_validation:
        if past_best is not None or _gap_grows(run_log, trajectory, begin):
            return None
        metric = val_metric_name(run_log)
    else:
        iterations, train_losses = trajectory.finite_losses()
        train_losses, iterations = train_losses[iterations >= begin], iterations[iterations >= begin]
        if len(train_losses) < MIN_TRAIN_LOSSES:
            return None
        blocks = block_medians(
            iterations, train_losses, min(MAX_BLOCKS, len(train_losses) // MIN_LOSSES_PER_BLOCK)
        )
        at, losses = blocks.centers, blocks.medians
        end -= SMOOTHED_SHARE / 2 * target  # the middle of what is smoothed
        per_iteration = len(train_losses) / max(1.0, float(iterations[-1] - iterations[0]))
        end_losses = max(1.0, SMOOTHED_SHARE * target * per_iteration)
        std = detrended_std(train_losses[len(train_losses) // 2 :]) or 0.0
        end_noise = MEDIAN_TO_MEAN_STDERR * std / math.sqrt(end_losses)
    now = float(course.summed_to(at[-1]))
    if now <= 0 or end <= at[-1]:
        return None
    curve = LossCurve(
        progress=np.maximum(course.summed_to(at) / now, 1e-6),
        lr_share=course.share_at(at),
        loss=losses,
        end_progress=float(course.summed_to(end)) / now,
        end_lr_share=float(course.share_at(end)),
        is_schedule_known=course.is_known_ahead,
        is_validation=is_validation,
        is_fine_tuning=run_log.trainer.often_finetunes,
        end_noise=end_noise,
    )
    return ForecastInputs(curve, course, metric, target)


def _gap_grows(run_log: RunLog, trajectory: Trajectory, begin: float) -> bool:
    """Whether the validation loss is far above the training loss, and further than it was."""
    if run_log.val_metric != "loss":
        return False
    evals = [one for one in trajectory.evals if one.iteration is not None and one.iteration >= begin]
    at, train_losses = trajectory.finite_losses()
    ends = np.searchsorted(at, [one.iteration or 0 for one in evals], side="right").tolist()
    gaps = []
    for one, first, end in zip(evals, [0, *ends], ends, strict=False):
        train = one.train_loss
        if train is None or not math.isfinite(train):  # that of the iterations since the previous one
            train = float(np.median(train_losses[first:end])) if end > first else math.nan
        val = one.val_loss or math.nan
        gaps.append((val - train) / abs(val))
    known: Floats = np.array([gap for gap in gaps if math.isfinite(gap)])
    if len(known) < MIN_EVALS:
        return False
    third = max(2, len(known) // 3)
    early, late = float(np.median(known[:third])), float(np.median(known[-third:]))
    return late > MAX_GAP_SHARE and late - early > MAX_GAP_GROWTH
