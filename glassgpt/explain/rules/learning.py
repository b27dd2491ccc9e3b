"""Whether the loss was still improving at the end, and what longer training would bring."""

from __future__ import annotations

import numpy as np

from glassgpt.explain.rules.loss_plausibility import has_leaked_data
from glassgpt.explain.rules.nonfinite import find_nonfinite_loss
from glassgpt.i18n import Message, say
from glassgpt.record.finding import Finding, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.curve_statistics import block_medians, forecast_loss
from glassgpt.runs.final_loss import FinalLossForecast
from glassgpt.runs.lr_course import lr_course
from glassgpt.runs.noise import CLEAR_STANDARD_ERRORS, EvalNoise, falls_clearly
from glassgpt.runs.run_log import Floats
from glassgpt.runs.trajectory import (
    numeric_setting,
    planned_end_iteration,
    takes_known_settings,
    val_metric_name,
)

# Still improving: losses past the warm-up and the first tenth. A power law is fitted to them where there is
# no forecast (runs/final_loss.py): of a finished run, or where the log supports none.
MIN_EVALS_TO_FIT, MIN_TRAIN_LOSSES_TO_FIT = 4, 120
MAX_RESIDUAL_TO_RANGE = 0.2  # residual of the fit over the range of the losses
# Residual of the fit over the fall in the last third: above this the law has another slope than the curve at
# its end, as where a schedule bends it, and gives no advice. Residuals within noise are fine.
MAX_RESIDUAL_TO_LATE_FALL, MIN_RESIDUAL_TO_NOISE = 0.15, 3.0
DEFAULT_NOISE_SHARE = 0.003  # standard deviation of an evaluation over its loss, where it is not known
MIN_GAIN_SHARE = 0.01  # predicted gain over the loss at the end

# The fall in the last twentieth, which is 0.15 of the last third, over the fall in the last third.
END_SHARE, END_SHARE_OF_THIRD, MAX_FLAT_FALL_SHARE = 0.05, 0.15, 0.04
MIN_END_LOSSES = 3
MAX_SLOWING_SHARE = 0.6  # the fall in the last twentieth over that at the slope of the last third
TRAIN_LOSS = "train loss"
MIN_REPEATED_EPOCHS = 2.0  # passes over the data: from there on a falling training loss may be memorising
# The last learning rate over the highest: below the first it has run out, above the second it can fall
# much further, from the third on it has not fallen at all.
MAX_DECAYED_LR_SHARE, MIN_UNDECAYED_LR_SHARE, MAX_PEAK_LR_SHARE = 0.105, 0.3, 0.995
MIN_PLAN_SHARE = 0.9  # of the planned iterations: a run that finished before has another plan
END_QUARTER = 0.25  # of the losses: these, too, have to fall by more than their noise


def still_improving(analysis: Analysis) -> Finding | None:
    """The loss was still falling at the end; where it should be at the planned end, if that is later."""
    run_log, last = analysis.log, analysis.trajectory.last_iteration
    points = _points_to_fit(analysis)
    if (
        run_log.live
        or not run_log.has_iteration_numbers
        or last is None
        or points is None
        or analysis.loss_rise
        or analysis.loss_jump
        or analysis.explosions
        or analysis.has_overfitted
        or has_leaked_data(analysis)
        or ((broken := find_nonfinite_loss(run_log)) and not broken.has_recovered)
    ):
        return None
    at, losses, noise, metric = points
    is_train_loss = metric == TRAIN_LOSS
    if is_train_loss and (analysis.epochs or 0.0) >= MIN_REPEATED_EPOCHS:
        return None  # what is seen again is known better, which says nothing about other text
    third = min(int(np.searchsorted(at, at[-1] * 2 / 3)), len(at) - 2)  # where the last third begins
    late_fall = float(losses[third] - losses[-1])
    if late_fall <= noise.difference(1.0) or not falls_clearly(at, losses, noise):
        return None
    lr_share = last_lr_share(analysis)
    is_flat = _is_flat_at_end(at, losses, late_fall, noise)
    has_decayed = lr_share is not None and lr_share <= MAX_DECAYED_LR_SHARE
    latest = 2 if is_train_loss else 1  # a median of lines may be the lowest by luck
    if is_flat:
        is_falling = has_decayed and losses[-1] < np.min(losses) + 2 * noise.std
    else:
        is_falling = falls_clearly(at, losses, noise, END_QUARTER) and np.argmin(losses) >= len(at) - latest
    if not is_falling:
        return None
    planned = planned_end_iteration(run_log)
    is_planned = planned is not None and planned > last + (analysis.facts.log_interval or 1)
    # A run that stopped itself has done what it meant to: it may have lowered its learning rate by the clock.
    unfinished = is_planned and analysis.facts.ended != "finished"
    forecast, fits_end = analysis.final_loss if unfinished else None, True
    if forecast is not None and forecast.metric == metric:
        if forecast.expected >= losses[-1]:
            return None
    else:  # would it fall, if it were trained for twice as long?
        fit = forecast_loss(at, losses, (2.0 * last,))
        if fit is None:
            return None
        law, (twice,) = fit
        now = law.at(float(at[-1]))
        if not law.residual < MAX_RESIDUAL_TO_RANGE * float(np.ptp(losses)) or not now - twice.value >= max(
            2 * noise.std, MIN_GAIN_SHARE * now, 1.5 * twice.error
        ):
            return None
        fits_end = law.residual <= max(
            MAX_RESIDUAL_TO_LATE_FALL * late_fall, MIN_RESIDUAL_TO_NOISE * noise.std
        )
    fits_end = fits_end and not _slows_at_end(at, losses, late_fall, noise)
    if forecast is not None and forecast.is_schedule_known:
        explanation = say("still-improving.explanation.band", runs=forecast.runs)
    elif forecast is not None:
        explanation = say("still-improving.explanation.band_unknown_schedule", runs=forecast.runs)
    elif unfinished:
        explanation = say("still-improving.explanation.no_forecast")
    elif lr_share is not None and lr_share >= MIN_UNDECAYED_LR_SHARE:
        explanation = (
            say("still-improving.explanation.lr_not_lowered")
            if lr_share >= MAX_PEAK_LR_SHARE
            else say("still-improving.explanation.lr_hardly_lowered", lr_share=lr_share)
        )
    elif lr_share is not None or takes_known_settings(run_log):
        explanation = say("still-improving.explanation.schedule_caveat")
    elif analysis.facts.ended == "finished":
        explanation = say("still-improving.explanation.schedule_unknown")
    else:
        explanation = None  # neither an end nor a schedule is known
    advice = _longer_training_advice(analysis, forecast, unfinished) if fits_end or forecast else None
    if is_train_loss and advice is None and explanation is None:
        return None  # an early stretch of a run falls, and nothing follows from it
    compared = {
        "metric": metric,
        "earlier_loss": losses[third],
        "earlier_iteration": round(at[third]),
        "end_loss": losses[-1],
        "end_iteration": round(at[-1]),
    }
    if is_train_loss:  # the lines nearest to the middle of each block
        logged = analysis.trajectory.finite_losses()[0]
        compared_lines = analysis.lines_at(
            int(logged[np.argmin(np.abs(logged - middle))]) for middle in (at[third], at[-1])
        )
    else:
        compared_lines = analysis.eval_lines_at([round(at[third]), round(at[-1])])
    return make_finding(
        "still-improving",
        "info" if advice is None or analysis.facts.ended != "finished" or unfinished else "advice",
        title=say("still-improving.title.until_lr_ran_out", metric=metric)
        if is_flat
        else say("still-improving.title", metric=metric),
        evidence=say("still-improving.evidence.medians", **compared)
        if is_train_loss
        else say("still-improving.evidence", **compared),
        explanation=explanation,
        advice=advice,
        at=last,
        lines=compared_lines if is_train_loss else (*analysis.lines_at([last]), *compared_lines),
        claims={"learning at the end": "improving"},
    )


def _is_flat_at_end(at: Floats, losses: Floats, late_fall: float, noise: EvalNoise) -> bool:
    """Whether the fall has stopped in the last twentieth, where one as before would be seen."""
    end = int(np.searchsorted(at, (1 - END_SHARE) * at[-1]))
    if len(losses) - end < MIN_END_LOSSES or END_SHARE_OF_THIRD * late_fall < noise.difference(
        CLEAR_STANDARD_ERRORS
    ):
        return False
    return bool(losses[end] - losses[-1] < MAX_FLAT_FALL_SHARE * late_fall)


def _slows_at_end(at: Floats, losses: Floats, late_fall: float, noise: EvalNoise) -> bool:
    """Whether the last twentieth fell by far less than it would at the slope of the last third, beyond noise:
    a schedule that was run to its end bends the curve so, and longer training is no advice."""
    before_end = float(np.interp((1 - END_SHARE) * at[-1], at, losses))
    expected, fall = END_SHARE_OF_THIRD * late_fall, before_end - float(losses[-1])
    return fall < MAX_SLOWING_SHARE * expected and expected - fall > noise.difference(CLEAR_STANDARD_ERRORS)


def last_lr_share(analysis: Analysis) -> float | None:
    """The last learning rate over the highest: as logged, or as the settings or the trainer say."""
    run_log, last = analysis.log, analysis.trajectory.last_iteration
    rates = run_log.steps.lr[analysis.trajectory.rows]
    rates = rates[np.isfinite(rates)]
    if len(rates) and rates.max() > 0:
        return float(rates[-1] / rates.max())
    end = planned_end_iteration(run_log)
    if end and last and last < MIN_PLAN_SHARE * end and analysis.facts.ended == "finished":
        return None  # it was planned by something else, such as the time
    course = lr_course(run_log, analysis.trajectory, end) if end else None
    return float(course.share_at(last)) if course and last and course.is_known_ahead else None


def _points_to_fit(analysis: Analysis) -> tuple[Floats, Floats, EvalNoise, str] | None:
    """Iterations, losses, the noise of one loss, and their name: evaluations, or smoothed training losses
    where there are few. Only from after the warm-up and the first tenth, where the law does not hold yet."""
    run_log, trajectory = analysis.log, analysis.trajectory
    begin = max(0.1 * (trajectory.last_iteration or 0), numeric_setting(run_log, "warmup_iters") or 0.0, 1)
    at, val_losses = trajectory.val_curve()
    at, val_losses = at[at >= begin], val_losses[at >= begin]
    if len(val_losses) >= MIN_EVALS_TO_FIT:
        noise = analysis.eval_noise or EvalNoise(DEFAULT_NOISE_SHARE * float(val_losses[-1]), "scatter")
        return at, val_losses, noise, val_metric_name(run_log)
    iterations, losses = trajectory.finite_losses()
    late = iterations >= begin
    if late.sum() < MIN_TRAIN_LOSSES_TO_FIT or analysis.past_best:
        return None
    smooth = block_medians(iterations[late], losses[late], 24)
    return (
        smooth.centers,
        smooth.medians,
        EvalNoise(float(np.median(smooth.stderrs)), "scatter"),
        TRAIN_LOSS,
    )


def _longer_training_advice(
    analysis: Analysis, forecast: FinalLossForecast | None, unfinished: bool
) -> Message | None:
    """Figures only for a run that has not reached its planned end: such runs the forecasts were tested on."""
    run_log = analysis.log
    if forecast is not None:
        return say(
            "still-improving.advice.continue_to_plan",
            planned_iterations=forecast.at_iteration,
            metric=forecast.metric,
            expected_loss=forecast.expected,
            low_loss=forecast.low,
            high_loss=forecast.high,
            command=run_log.resume_command,
        )
    is_stopped = analysis.facts.ended not in ("finished", "cut") and planned_end_iteration(run_log) is None
    if unfinished or is_stopped:
        return (
            say("still-improving.advice.continue", command=run_log.resume_command)
            if run_log.checkpoints
            else say("still-improving.advice.continue_if_saved")
        )
    # A log that only stops may be of a run that went on, or was done; and others have other settings.
    is_known = analysis.facts.ended == "finished" and takes_known_settings(run_log)
    return say("still-improving.advice.raise_max_iters") if is_known else None
