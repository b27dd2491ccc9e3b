"""How far training came: still improving at the end, stuck on a plateau, or limited by the model's size."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.explain.rules.loss_plausibility import has_leaked_data
from glassgpt.explain.rules.nonfinite import trailing_zero_losses
from glassgpt.explain.rules.val_curve import find_past_best, has_overfitted
from glassgpt.format import (
    format_count,
    format_integer,
    format_loss,
    format_loss_difference,
    format_percent,
)
from glassgpt.i18n import say
from glassgpt.record.finding import Finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.curve import BlockMedians, LossForecast, block_medians, forecast_loss
from glassgpt.runs.run_log import Floats, RunLog
from glassgpt.runs.trajectory import (
    numeric_setting,
    planned_end_iteration,
    takes_known_settings,
    val_metric_name,
)

# Still improving: a power law is fitted to the losses past the warm-up and the first tenth.
MIN_EVALS_TO_FIT, MIN_TRAIN_LOSSES_TO_FIT = 4, 120
MAX_FORECAST_FACTOR = 3.0  # target over iterations done: a fit says nothing about what lies beyond
MAX_RESIDUAL_TO_RANGE = 0.2  # residual of the fit over the range of the losses
# Residual of the fit over the fall in the last third: above this the law has another slope than the curve at
# its end, as where a schedule bends it, and its forecast is worth nothing. Residuals within noise are fine.
MAX_RESIDUAL_TO_LATE_FALL, MIN_RESIDUAL_TO_NOISE = 0.15, 3.0
MIN_GAIN_SHARE = 0.01  # predicted gain over the loss at the end

# Plateau: gain of the last third over the one before, as a share of the loss. A tenth of what is usual.
MIN_PLATEAU_STEPS = 50
MAX_TRAIN_GAIN_SHARE, MAX_EVAL_GAIN_SHARE = 0.002, 0.003
# Nothing learnt: last against first loss, and the range of the whole curve, as shares of the first loss.
MAX_END_CHANGE_SHARE, MAX_RANGE_SHARE = 0.01, 0.02
# Hardly learnt: the loss over ln(vocab_size). Token frequencies alone bring a model below 0.9 in one or two
# hundred iterations.
MIN_SHARE_OF_CHANCE_LOSS, MIN_HARDLY_LEARNT_ITERATIONS = 0.9, 300

# Capacity: tokens per parameter where compute is best spent (Hoffmann et al. 2022).
CHINCHILLA_TOKENS_PER_PARAMETER = 20.0
MIN_OVERTRAINING_FACTOR = 5.0  # times that: beyond what people choose to make a model cheap to run
MIN_EVALUATIONS = 6
MAX_TRAIN_VAL_GAP = 0.03  # |val - train| over train loss: the model does not overfit
MAX_LATE_IMPROVEMENT = 0.01  # change of the val loss over the last third, as a share of it


# --- still improving ---


def still_improving(analysis: Analysis) -> Finding | None:
    """The loss was still falling at the end; a fitted power law says what more training would bring."""
    run_log, last = analysis.log, analysis.trajectory.last_iteration
    points = _points_to_fit(analysis)
    if (
        run_log.live
        or not run_log.has_iteration_numbers
        or last is None
        or points is None
        or analysis.loss_rise
    ):
        return None
    at, losses, noise, name = points
    planned = planned_end_iteration(run_log)
    unfinished = analysis.facts.ended != "finished" or (planned is not None and planned > 1.1 * last)
    targets: tuple[float, ...] = (1.5 * last, 2.0 * last)
    if planned is not None and 1.1 * last < planned <= MAX_FORECAST_FACTOR * last:
        targets = (float(planned),)
    fit = forecast_loss(at, losses, targets)
    if fit is None:
        return None
    law, forecasts = fit
    now = law.at(float(at[-1]))
    gain, error = now - forecasts[-1].value, forecasts[-1].error
    if (
        not law.residual < MAX_RESIDUAL_TO_RANGE * float(np.ptp(losses))
        or not losses[-1] < np.min(losses) + 2 * noise
        or not gain >= max(2 * noise, MIN_GAIN_SHARE * now, 1.5 * error)
    ):
        return None
    third = min(int(np.searchsorted(at, at[-1] * 2 / 3)), len(at) - 2)  # where the last third begins
    late_fall = float(losses[third] - losses[-1])
    fits_end = law.residual <= max(MAX_RESIDUAL_TO_LATE_FALL * late_fall, MIN_RESIDUAL_TO_NOISE * noise)
    residual = format_loss_difference(law.residual)
    if fits_end:
        explanation = say(
            "A power law in the iteration number fits the curve to within {residual}; the forecast follows "
            "from it.",
            residual=residual,
        )
        if not unfinished:
            explanation += " " + say(
                "Be careful: near the end of a schedule the falling learning rate itself lowers the loss, "
                "so the forecast holds only if the schedule is stretched as well, and the model does not "
                "overfit."
            )
    else:
        explanation = say(
            "No power law in the iteration number fits this curve: the best one is off by {residual}. So "
            "there is no forecast for longer training.",
            residual=residual,
        )
    return Finding(
        "still-improving",
        "info" if unfinished or not fits_end else "advice",
        say("The {name} was still falling at the end", name=name),
        say(
            "{name}: {then} at iteration {early}, {now} at iteration {late}.",
            name=name,
            then=format_loss(losses[third]),
            early=format_integer(at[third]),
            now=format_loss(losses[-1]),
            late=format_integer(at[-1]),
        ),
        explanation,
        _forecast_advice(run_log, forecasts, name, unfinished) if fits_end else "",
    )


def _points_to_fit(analysis: Analysis) -> tuple[Floats, Floats, float, str] | None:
    """Iterations, losses, the noise of one loss, and their name: evaluations, or smoothed training losses
    where there are few. Only from after the warm-up and the first tenth, where the law does not hold yet."""
    run_log, trajectory = analysis.log, analysis.trajectory
    begin = max(0.1 * (trajectory.last_iteration or 0), numeric_setting(run_log, "warmup_iters") or 0.0, 1)
    at, val_losses = trajectory.val_curve()
    at, val_losses = at[at >= begin], val_losses[at >= begin]
    if len(val_losses) >= MIN_EVALS_TO_FIT:
        noise = analysis.eval_noise
        std = noise.std if noise else 0.003 * float(val_losses[-1])
        return at, val_losses, std, val_metric_name(run_log)
    iterations, losses = trajectory.finite_losses()
    late = iterations >= begin
    if late.sum() < MIN_TRAIN_LOSSES_TO_FIT or find_past_best(analysis):
        return None
    smooth = block_medians(iterations[late], losses[late], 24)
    return smooth.centers, smooth.medians, float(np.median(smooth.stderrs)), "train loss"


def _forecast_advice(run_log: RunLog, forecasts: list[LossForecast], name: str, unfinished: bool) -> str:
    if len(forecasts) == 1:
        return say(
            "Continuing to the planned {last} iterations should bring the {name} to about {value} ± {error}.",
            last=format_integer(forecasts[0].t),
            name=name,
            value=f"{forecasts[0].value:.2f}",
            error=f"{forecasts[0].error:.2f}",
        )
    values = {
        "name": name,
        "half": format_integer(forecasts[0].t),
        "first": f"{forecasts[0].value:.2f}",
        "doubt": f"{forecasts[0].error:.2f}",
        "double": format_integer(forecasts[1].t),
        "second": f"{forecasts[1].value:.2f}",
        "more": f"{forecasts[1].error:.2f}",
    }
    if unfinished:
        return say(
            "Continuing: about {first} ± {doubt} at {half} iterations, {second} ± {more} at {double} (the "
            "{name}).",
            **values,
        )
    if takes_known_settings(run_log):
        return say(
            "Raise max_iters and lr_decay_iters together: about {first} ± {doubt} at {half} iterations, "
            "{second} ± {more} at {double} (the {name}).",
            **values,
        )
    return say(
        "Train longer, with the schedule stretched: about {first} ± {doubt} at {half} iterations, {second} ± "
        "{more} at {double} (the {name}).",
        **values,
    )


# --- plateau ---


def plateau(analysis: Analysis) -> Finding | None:
    """Nothing was learnt at all, or nothing more in the last third of the run."""
    run_log = analysis.log
    at, losses = analysis.trajectory.finite_losses()
    min_iterations = max(
        numeric_setting(run_log, "warmup_iters") or 0, 1000 if run_log.trainer.steps_are_micro_batches else 50
    )
    if len(losses) < MIN_PLATEAU_STEPS or at[-1] < min_iterations:
        return None
    if analysis.loss_rise or analysis.facts.nan_step is not None:
        return None
    if has_leaked_data(analysis) or trailing_zero_losses(analysis):
        return None
    smooth = block_medians(at, losses, 30)
    from_start = run_log.has_iteration_numbers and int(at[0]) <= run_log.trainer.first_iteration + 1
    if from_start and (nothing := _nothing_learnt(analysis, smooth, min_iterations)):
        return nothing
    evidence = _plateau_evidence(analysis, smooth)
    if not evidence or _find_too_small_model(analysis) or has_overfitted(analysis):
        return None
    last = int(at[-1])
    saved = analysis.seconds_and_share_after(last * 2 // 3, last)
    share = format_percent(saved[1] if saved else 1 / 3)
    return Finding(
        "plateau",
        "advice",
        say("The loss did not improve in the last third of the run"),
        evidence,
        say(
            "Neither the training loss nor the validation loss changed by more than its noise. The model "
            "has learnt what it can with this size, data and learning rate."
        ),
        say(
            "Stopping at iteration {at} would have saved {share} of the run. For a lower loss change "
            "something else: a larger model, more data, or another learning rate.",
            at=format_integer(last * 2 // 3),
            share=share,
        )
        if run_log.has_iteration_numbers
        else say(
            "Stopping there would have saved {share} of the run. For a lower loss change something else: a "
            "larger model, more data, or another learning rate.",
            share=share,
        ),
    )


def _nothing_learnt(analysis: Analysis, smooth: BlockMedians, min_iterations: float) -> Finding | None:
    """The loss at the end is the loss at the start, or hardly below that of uniform guessing."""
    at, losses = analysis.trajectory.finite_losses()
    vocab_size = numeric_setting(analysis.log, "vocab_size")
    chance = math.log(vocab_size) if vocab_size and vocab_size > 1 else None
    first, end = losses[0], float(smooth.medians[-1])
    evidence = say(
        "The training loss was {first} at iteration {start} and {last} at iteration {end}.",
        first=format_loss(first),
        start=format_integer(at[0]),
        last=format_loss(losses[-1]),
        end=format_integer(at[-1]),
    )
    chance_evidence = ""
    if chance is not None and vocab_size:
        chance_evidence = " " + say(
            "ln({vocabulary}) = {chance} is the loss of a uniform guess.",
            vocabulary=int(vocab_size),
            chance=format_loss(chance),
        )
    tenth = format_loss_difference(0.1 * float(first))
    is_unchanged = abs(end - float(first)) <= MAX_END_CHANGE_SHARE * first
    if is_unchanged and np.ptp(smooth.medians) <= MAX_RANGE_SHARE * first:
        if chance is not None and abs(losses[-1] - chance) < 0.02 * losses[-1]:
            evidence += chance_evidence
        return Finding(
            "plateau",
            "problem",
            say("Nothing was learnt"),
            evidence,
            say(
                "The weights hardly change: the learning rate (times its schedule) is close to zero, the "
                "gradients do not reach the weights, or the run is too short for its warm-up."
            ),
            say(
                "Print the learning rate and the gradient norm of a few iterations. In a healthy run the "
                "loss falls by a tenth, here {tenth}, within the first hundred iterations.",
                tenth=tenth,
            ),
        )
    if chance is None or at[-1] < max(MIN_HARDLY_LEARNT_ITERATIONS, 2 * min_iterations):
        return None
    if (
        abs(first / chance - 1) > 1 - MIN_SHARE_OF_CHANCE_LOSS
        or not MIN_SHARE_OF_CHANCE_LOSS * chance < end <= first
    ):
        return None
    return Finding(
        "plateau",
        "problem",
        say("Hardly anything was learnt"),
        evidence + chance_evidence,
        say(
            "Unigram frequencies alone reach a lower loss. The learning rate is far too low, nearly all of "
            "the run is warm-up, or the targets do not match the inputs."
        ),
        say(
            "Try ten times the learning rate for a few hundred iterations. In a healthy run the loss falls "
            "by a tenth, here {tenth}, within the first hundred iterations.",
            tenth=tenth,
        ),
    )


def _plateau_evidence(analysis: Analysis, smooth: BlockMedians) -> str:
    """Evidence that the last third improved nothing; empty if it did, or if there is too little data."""
    third = len(smooth) // 3
    before, after = (
        float(np.median(part)) for part in (smooth.medians[-2 * third : -third], smooth.medians[-third:])
    )
    error = float(np.median(smooth.stderrs[-third:])) / math.sqrt(max(1, third))
    if third < 5 or abs(before - after) > max(2 * error, MAX_TRAIN_GAIN_SHARE * after):
        return ""
    evidence = say(
        "Training loss {before} in the second third of the run, {after} in the last.",
        before=format_loss(before),
        after=format_loss(after),
    )
    at, val_losses = analysis.trajectory.val_curve()
    is_late = at > smooth.centers[-third]
    if np.all(is_late) or not np.any(is_late):
        return evidence
    best_before, best_late = val_losses[~is_late].min(), val_losses[is_late].min()
    noise = analysis.eval_noise
    min_gain = max(2 * noise.std if noise else 0.0, MAX_EVAL_GAIN_SHARE * float(best_before))
    if float(best_before - best_late) > min_gain:
        return ""
    return f"{evidence} " + say(
        "Best {metric} {before} before the last third, {after} in it.",
        metric=val_metric_name(analysis.log),
        before=format_loss(best_before),
        after=format_loss(best_late),
    )


# --- capacity ---


@dataclass(frozen=True)
class CapacityFit:
    """How a model's size fits what it was trained on."""

    train_loss: float
    val_loss: float
    earlier_val_loss: float  # two thirds through the run
    parameters: int
    tokens: float

    @property
    def tokens_per_parameter(self) -> float:
        return self.tokens / self.parameters


def _find_too_small_model(analysis: Analysis) -> CapacityFit | None:
    """Train and val loss are close together and flat, after far more tokens than are worth the size."""
    facts, last = analysis.facts, analysis.trajectory.last_iteration
    evals = [done for done in analysis.trajectory.evals if done.train_loss and math.isfinite(done.train_loss)]
    if len(evals) < MIN_EVALUATIONS or not facts.parameters or not facts.tokens_per_iteration or not last:
        return None
    earlier = [done.val_loss or 0.0 for done in evals if (done.iteration or 0) <= last * 2 / 3]
    if not earlier:
        return None
    tokens = analysis.log.tokens_seen_at(np.array([last]), facts.tokens_per_iteration)
    assert tokens is not None
    fit = CapacityFit(
        evals[-1].train_loss or 0.0,
        evals[-1].val_loss or 0.0,
        earlier[-1],
        facts.parameters,
        float(tokens[0]),
    )
    is_close = abs(fit.val_loss - fit.train_loss) < MAX_TRAIN_VAL_GAP * fit.train_loss
    is_flat = abs(fit.earlier_val_loss - fit.val_loss) < MAX_LATE_IMPROVEMENT * fit.val_loss
    is_overtrained = fit.tokens_per_parameter >= MIN_OVERTRAINING_FACTOR * CHINCHILLA_TOKENS_PER_PARAMETER
    return fit if is_close and is_flat and is_overtrained else None


def underfit_capacity(analysis: Analysis) -> Finding | None:
    """The model is too small for its tokens: 100 per parameter or more, both losses close and flat."""
    fit = _find_too_small_model(analysis)
    if fit is None or not analysis.log.has_iteration_numbers:
        return None
    # Compute is 6 x parameters x tokens; the best split of it has 20 tokens per parameter.
    best_parameters = math.sqrt(fit.parameters * fit.tokens / CHINCHILLA_TOKENS_PER_PARAMETER)
    return Finding(
        "underfit-capacity",
        "advice",
        say("The model is small for its training tokens"),
        say(
            "At the end, train loss {train} and {metric} {val} are {gap} apart; the {metric} was {then} "
            "before the last third. {parameters} parameters saw {tokens} tokens: {ratio} tokens per "
            "parameter.",
            train=format_loss(fit.train_loss),
            metric=val_metric_name(analysis.log),
            val=format_loss(fit.val_loss),
            gap=format_percent(abs(fit.val_loss - fit.train_loss) / fit.train_loss),
            then=format_loss(fit.earlier_val_loss),
            parameters=format_count(fit.parameters),
            tokens=format_count(fit.tokens),
            ratio=format_integer(fit.tokens_per_parameter),
        ),
        say(
            "The model neither overfits nor improves: its size is the limit. About {ratio} tokens per "
            "parameter are compute-optimal for text.",
            ratio=format_integer(CHINCHILLA_TOKENS_PER_PARAMETER),
        ),
        say(
            "The same compute trains {parameters} parameters on {tokens} tokens.",
            parameters=format_count(best_parameters),
            tokens=format_count(CHINCHILLA_TOKENS_PER_PARAMETER * best_parameters),
        ),
    )
