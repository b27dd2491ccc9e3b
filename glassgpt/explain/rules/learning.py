"""How far training came: still improving at the end, or on a plateau."""

from __future__ import annotations

import math

import numpy as np

from glassgpt.explain.rules.loss_plausibility import (
    MAX_VOCAB_SIZE,
    MIN_WORD_VOCAB,
    constant_loss,
    has_leaked_data,
)
from glassgpt.explain.rules.nonfinite import find_nonfinite_loss, trailing_zero_losses
from glassgpt.i18n import Message, say
from glassgpt.record.finding import Finding, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.curve_statistics import BlockMedians, block_medians, detrended_std, forecast_loss
from glassgpt.runs.final_loss import FinalLossForecast
from glassgpt.runs.lr_course import lr_course
from glassgpt.runs.noise import CLEAR_STANDARD_ERRORS, EvalNoise, falls_clearly
from glassgpt.runs.run_log import Floats, Ints
from glassgpt.runs.trajectory import (
    numeric_setting,
    planned_end_iteration,
    shows_run_start,
    starts_from_scratch,
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

# Plateau: gain of the last third over the one before, as a share of the loss. A tenth of what is usual.
MIN_PLATEAU_STEPS = 50
MAX_TRAIN_GAIN_SHARE, MAX_EVAL_GAIN_SHARE = 0.002, 0.003
MIN_STEADY_FALL_TO_NOISE = 20.0  # a fall of so many times the noise of one line is none
MAX_LEVEL_RANGE = 0.1  # of the medians of blocks, without the outermost tenths: more is no plateau
MIN_FLAT_SHARE = 0.5  # of the run: a level so long is told with its beginning
MAX_PLATEAU_ERROR_SHARE = 0.015  # two standard errors of a third: more hides the usual gain of 0.02
# Nothing learnt: last against first loss, and the range of the whole curve, as shares of the first loss.
MAX_END_CHANGE_SHARE, MAX_RANGE_SHARE = 0.01, 0.02
# Hardly learnt: the loss over ln(vocab_size). Token frequencies alone bring a model below 0.9 in one or two
# hundred iterations.
MIN_SHARE_OF_CHANCE_LOSS, MIN_HARDLY_LEARNT_ITERATIONS = 0.9, 300
# Where nobody says that it is a language model, nor whether iterations are micro-batches.
MIN_HARDLY_LEARNT_LINES, MIN_HARDLY_LEARNT_UNKNOWN = 10, 5000

# Capacity: tokens per parameter where compute is best spent (Hoffmann et al. 2022).
CHINCHILLA_TOKENS_PER_PARAMETER = 20.0
MIN_OVERTRAINING_FACTOR = 5.0  # times that
MIN_EVALUATIONS = 6
MAX_TRAIN_VAL_GAP = 0.03  # |val - train| over train loss: the model does not overfit
MAX_LATE_IMPROVEMENT = 0.01  # change of the val loss over the last third, as a share of it


# --- still improving ---


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
    lr_share = _last_lr_share(analysis)
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


def _last_lr_share(analysis: Analysis) -> float | None:
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
    if analysis.loss_rise or analysis.loss_jump or analysis.explosions or analysis.facts.nan_step is not None:
        return None
    if has_leaked_data(analysis) or trailing_zero_losses(analysis) or analysis.has_overfitted:
        return None
    if constant_loss(analysis):
        return None
    smooth = block_medians(at, losses, 30)
    from_start = run_log.has_iteration_numbers and int(at[0]) <= run_log.trainer.first_iteration + 1
    if (
        from_start
        and starts_from_scratch(run_log)
        and (nothing := _nothing_learnt(analysis, smooth, min_iterations))
    ):
        return nothing
    if zeros := _nothing_left(analysis):
        return zeros
    evidence = _plateau_evidence(analysis, smooth)
    if not evidence or underfit_capacity(analysis):
        return None
    last = int(at[-1])
    stop = last * 2 // 3
    warmup, planned = numeric_setting(run_log, "warmup_iters") or 0, planned_end_iteration(run_log)
    if stop < 2 * warmup:
        return None
    if analysis.facts.ended != "finished" and planned and planned > 1.1 * last:
        # The schedule goes on: the loss usually falls once the learning rate does.
        return make_finding(
            "plateau",
            "info",
            title=say("plateau.title.flat_so_far"),
            evidence=[
                *evidence,
                say("plateau.evidence.of_planned", last_iteration=last, planned_iterations=planned),
            ],
            explanation=say("plateau.explanation.high_lr"),
            at=stop if run_log.has_iteration_numbers else None,
            claims={"learning at the end": "plateau"},
        )
    saved = analysis.seconds_and_share_after(stop, last)
    saving = saved[1] if saved else 1 / 3
    was_evaluated = len(evidence) > 1  # a training loss alone does not tell when to stop
    advice = (
        say("plateau.advice.stop_at_iteration", stop_iteration=stop, saving=saving)
        if run_log.has_iteration_numbers
        else say("plateau.advice.stop_there", saving=saving)
    )
    return make_finding(
        "plateau",
        "advice" if was_evaluated else "info",
        title=say("plateau.title.no_late_improvement")
        if shows_run_start(run_log) and not run_log.live
        else say("plateau.title.no_late_improvement_here"),
        evidence=evidence + (_flat_since(at, smooth) if run_log.has_iteration_numbers else []),
        explanation=[
            say("plateau.explanation.within_noise")
            if was_evaluated
            else say("plateau.explanation.train_within_noise"),
            say("plateau.explanation.decay") if _last_lr_share(analysis) is not None else None,
        ],
        advice=advice if was_evaluated else None,
        at=stop if run_log.has_iteration_numbers else None,
        lines=analysis.lines_at([last]),
        claims={"learning at the end": "plateau"},
    )


def _nothing_left(analysis: Analysis) -> Finding | None:
    """Most losses of the last third are exactly 0: none is lower."""
    at, losses = analysis.trajectory.finite_losses()
    late = losses[at > at[0] + (at[-1] - at[0]) * 2 / 3]
    if 2 * np.count_nonzero(late == 0) <= len(late):
        return None
    first = int(at[np.argmax(losses == 0)])
    counts = {"zero_losses": int(np.count_nonzero(losses == 0)), "logged_losses": len(losses)}
    numbered = analysis.log.has_iteration_numbers
    return make_finding(
        "plateau",
        "advice",
        title=say("loss-nan.title.zeros_between", **counts),
        evidence=say("plateau.evidence.first_zero", zero_iteration=first) if numbered else None,
        explanation=say("plateau.explanation.nothing_left"),
        advice=say("plateau.advice.nothing_left"),
        at=first if numbered else None,
        lines=analysis.lines_at([first]),
        claims={"learning at the end": "plateau"},
    )


def hardly_learnt(analysis: Analysis) -> Finding | None:
    """The training loss begins at that of a guess among the tokens of a usual tokenizer, and is hardly below
    it after many iterations; of lines too few for a plateau, or where the vocabulary is not known."""
    run_log, (at, losses) = analysis.log, analysis.trajectory.finite_losses()
    if len(losses) < MIN_HARDLY_LEARNT_LINES or at[-1] < MIN_HARDLY_LEARNT_UNKNOWN or plateau(analysis):
        return None
    if analysis.loss_rise or analysis.loss_jump or analysis.explosions or constant_loss(analysis):
        return None
    first, end = float(losses[0]), float(np.median(losses[-MIN_END_LOSSES:]))
    is_guess = math.log(MIN_WORD_VOCAB) <= first <= math.log(MAX_VOCAB_SIZE)
    is_from_start = run_log.has_iteration_numbers and at[0] <= max(1, run_log.log_interval() or 1)
    if not is_guess or not is_from_start or not starts_from_scratch(run_log):
        return None
    if not MIN_SHARE_OF_CHANCE_LOSS * first < end <= first or not run_log.loss_measures_learning:
        return None
    return make_finding(
        "plateau",
        "warning",
        title=say("plateau.title.hardly_learnt"),
        evidence=say(
            "plateau.evidence.first_and_last",
            first_loss=first,
            first_iteration=at[0],
            end_loss=losses[-1],
            end_iteration=at[-1],
        ),
        explanation=say("plateau.explanation.worse_than_unigram"),
        advice=say("plateau.advice.raise_lr", tenth_of_loss=0.1 * first),
        lines=analysis.lines_at([int(at[-1])]),
    )


def _nothing_learnt(analysis: Analysis, smooth: BlockMedians, min_iterations: float) -> Finding | None:
    """The loss at the end is the loss at the start, or hardly below that of uniform guessing."""
    at, losses = analysis.trajectory.finite_losses()
    vocab_size = numeric_setting(analysis.log, "vocab_size")
    chance = math.log(vocab_size) if vocab_size and vocab_size > 1 else None
    first, end = losses[0], float(smooth.medians[-1])
    evidence = [
        say(
            "plateau.evidence.first_and_last",
            first_loss=first,
            first_iteration=at[0],
            end_loss=losses[-1],
            end_iteration=at[-1],
        )
    ]
    chance_evidence = []
    if chance is not None and vocab_size:
        chance_evidence = [
            say("plateau.evidence.uniform_guess", vocab_size=int(vocab_size), chance_loss=chance)
        ]
    tenth = 0.1 * float(first)
    is_unchanged = abs(end - float(first)) <= MAX_END_CHANGE_SHARE * first
    if is_unchanged and np.ptp(smooth.medians) <= MAX_RANGE_SHARE * first:
        if chance is not None and abs(losses[-1] - chance) < 0.02 * losses[-1]:
            evidence += chance_evidence
        return make_finding(
            "plateau",
            "problem",
            title=say("plateau.title.nothing_learnt"),
            evidence=evidence,
            explanation=say("plateau.explanation.weights_hardly_change"),
            advice=say("plateau.advice.print_lr", tenth_of_loss=tenth),
            claims={"learning at the end": "plateau"},
        )
    if chance is None or at[-1] < max(MIN_HARDLY_LEARNT_ITERATIONS, 2 * min_iterations):
        return None
    if (
        abs(first / chance - 1) > 1 - MIN_SHARE_OF_CHANCE_LOSS
        or not MIN_SHARE_OF_CHANCE_LOSS * chance < end <= first
    ):
        return None
    return make_finding(
        "plateau",
        "problem",
        title=say("plateau.title.hardly_learnt"),
        evidence=evidence + chance_evidence,
        explanation=say("plateau.explanation.worse_than_unigram"),
        advice=say("plateau.advice.raise_lr", tenth_of_loss=tenth),
    )


def _plateau_evidence(analysis: Analysis, smooth: BlockMedians) -> list[Message]:
    """Evidence that the last third improved nothing; empty if it did, or if there is too little data."""
    third = len(smooth) // 3
    at, losses = analysis.trajectory.finite_losses()
    second, last = (at[0] + (at[-1] - at[0]) * part / 3 for part in (1, 2))
    if third < 5 or not len(middle := losses[(at > second) & (at <= last)]):
        return []
    before, after = float(np.median(middle)), float(np.median(losses[at > last]))
    error = _block_error(smooth) / math.sqrt(third)
    if abs(before - after) > max(2 * error, MAX_TRAIN_GAIN_SHARE * after):
        return []
    if 2 * error > MAX_PLATEAU_ERROR_SHARE * after:
        return []  # too noisy to see whether it improved
    late_medians = smooth.medians[-2 * third :]
    if np.ptp(np.percentile(late_medians, (10, 90))) > MAX_LEVEL_RANGE * after:
        return []  # its level changes on the way
    late = losses[at > second]
    changes = np.abs(np.diff(late))
    noise = max(detrended_std(late) or 0.0, float(changes[changes > 0].min(initial=np.inf)))
    if before - after > MIN_STEADY_FALL_TO_NOISE * noise:
        return []  # slow, but steady
    thirds = {"earlier_train_loss": before, "late_train_loss": after}
    evidence = [
        say("plateau.evidence.train_thirds", **thirds)
        if shows_run_start(analysis.log) and not analysis.log.live
        else say("plateau.evidence.train_thirds_here", **thirds)
    ]
    evaluated, val_losses = analysis.trajectory.val_curve()
    is_late = evaluated > last
    if np.all(is_late) or not np.any(is_late):
        return evidence
    best_before, best_late = val_losses[~is_late].min(), val_losses[is_late].min()
    if float(best_before - best_late) > MAX_EVAL_GAIN_SHARE * float(best_before):
        return []
    evidence.append(
        say(
            "plateau.evidence.best_val",
            metric=val_metric_name(analysis.log),
            earlier_val_loss=best_before,
            late_val_loss=best_late,
        )
    )
    return evidence


def _block_error(smooth: BlockMedians) -> float:
    """The standard error of a late block: of its lines, or by the scatter of blocks, if lines are alike."""
    late = len(smooth) // 3
    medians = smooth.medians[-2 * late :]
    scatter = float(np.std(medians[1:-1] - (medians[:-2] + medians[2:]) / 2)) / math.sqrt(1.5)
    return max(float(np.median(smooth.stderrs[-late:])), scatter)


def _flat_since(at: Ints, smooth: BlockMedians) -> list[Message]:
    """From which iteration on no block is off the level of the last third, if that is most of the run."""
    level = float(np.median(smooth.medians[-(len(smooth) // 3) :]))
    off = np.flatnonzero(np.abs(smooth.medians - level) > CLEAR_STANDARD_ERRORS * _block_error(smooth))
    begin = int(off[-1]) + 1 if len(off) else 0
    first, last = int(at[0]), int(at[-1])
    # Between the middle of this block and of the one before.
    since = first if not begin else float(np.mean(smooth.centers[begin - 1 : begin + 1]))
    share = (last - since) / max(1, last - first)
    if share < MIN_FLAT_SHARE:
        return []
    return [say("plateau.evidence.flat_since", flat_iteration=round(since), share=share)]


# --- capacity ---


def underfit_capacity(analysis: Analysis) -> Finding | None:
    """A finished run from scratch, 100 tokens per parameter or more, both losses close and flat: its size may
    be the limit. Not an advice: a learning rate that ran out flattens the curve, too."""
    facts, last = analysis.facts, analysis.trajectory.last_iteration
    evals = [
        (one.iteration, one.train_loss, one.val_loss)
        for one in analysis.trajectory.evals
        if one.iteration is not None and one.val_loss and one.train_loss and math.isfinite(one.train_loss)
    ]
    if len(evals) < MIN_EVALUATIONS or not facts.parameters or not facts.tokens_per_iteration or not last:
        return None
    if facts.ended != "finished" or not starts_from_scratch(analysis.log) or analysis.explosions:
        return None  # a flat curve of weights that were trained before, or before the schedule's end
    (_, train_loss, val_loss), earlier = evals[-1], [val for at, _, val in evals if at <= last * 2 / 3]
    tokens = analysis.log.tokens_seen_at(np.array([last]), facts.tokens_per_iteration)
    if not earlier or tokens is None:
        return None
    gap, tokens_per_parameter = abs(val_loss - train_loss) / train_loss, float(tokens[0]) / facts.parameters
    is_flat = abs(earlier[-1] - val_loss) < MAX_LATE_IMPROVEMENT * val_loss
    is_overtrained = tokens_per_parameter >= MIN_OVERTRAINING_FACTOR * CHINCHILLA_TOKENS_PER_PARAMETER
    if gap >= MAX_TRAIN_VAL_GAP or not is_flat or not is_overtrained:
        return None
    return make_finding(
        "underfit-capacity",
        "info",
        title=say("underfit-capacity.title"),
        evidence=say(
            "underfit-capacity.evidence",
            train_loss=train_loss,
            metric=val_metric_name(analysis.log),
            val_loss=val_loss,
            train_val_gap=gap,
            earlier_val_loss=earlier[-1],
            parameters=facts.parameters,
            tokens=float(tokens[0]),
            tokens_per_parameter=tokens_per_parameter,
        ),
        explanation=say(
            "underfit-capacity.explanation", best_tokens_per_parameter=CHINCHILLA_TOKENS_PER_PARAMETER
        ),
        claims={"learning at the end": "plateau", "parameters": facts.parameters},
    )
