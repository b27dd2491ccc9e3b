"""The curve of validation losses: where it rises or stands still, and whether its noise hides progress."""

from __future__ import annotations

import math

import numpy as np

from glassgpt.explain.rules.loss_plausibility import has_leaked_data
from glassgpt.explain.rules.overfitting import metric_still_better, overfitting
from glassgpt.i18n import say
from glassgpt.record.finding import Finding, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.curve_statistics import median_stderr
from glassgpt.runs.noise import CLEAR_STANDARD_ERRORS, VISIBLE_STANDARD_ERRORS
from glassgpt.runs.past_best import MIN_EVALS, MIN_GAP_GROWTH_NATS, MIN_TRAIN_LOSSES, clear_rise
from glassgpt.runs.trajectory import shows_run_start, val_metric_name

MIN_WORSE_EVALS, MIN_WORSE_SHARE = 5, 0.05  # evaluations, and how far all later ones are above the first

# The last evaluation over the best; where that is the one before the first update.
MIN_VAL_RISE_RATIO, MIN_ABOVE_START_RATIO = 1.25, 1.02

# Steps from one evaluation to the next, compared with the noise of their difference.
MIN_VISIBLE_SHARE = 0.01  # of the loss: nobody chooses between runs by less
MIN_STEP_TO_VISIBLE = 1 / 6  # a curve that moves less is a plateau; 36 times as many batches are no advice

# Evaluations with one and the same result, and the fall of the training loss meanwhile, as a share of it.
MIN_STUCK_EVALS, MIN_STUCK_FALL_SHARE = 3, 0.02


def worse_than_first(analysis: Analysis) -> Finding | None:
    """Every later evaluation is clearly worse than the first one after an update, and the training loss did
    not fall either: else it is overfitting."""
    run_log = analysis.log
    at, values = analysis.trajectory.val_curve()
    at, values = at[at > 0], values[at > 0]
    if len(values) < MIN_WORSE_EVALS or analysis.loss_rise or analysis.explosions:
        return None
    if not run_log.loss_measures_learning:
        return None
    first, later = float(values[0]), float(values[1:].min())
    if not later > (1 + MIN_WORSE_SHARE) * first > 0 or has_leaked_data(analysis):
        return None
    if not shows_run_start(run_log) or overfitting(analysis) or not run_log.has_iteration_numbers:
        return None
    losses = analysis.trajectory.finite_losses()[1]
    if len(losses) < 2 or losses[-1] < losses[0]:
        return None
    return make_finding(
        "worse-than-first",
        "warning",
        title=say("worse-than-first.title", metric=val_metric_name(run_log)),
        evidence=say(
            "worse-than-first.evidence",
            metric=val_metric_name(run_log),
            first_loss=first,
            first_iteration=int(at[0]),
            later=len(values) - 1,
            lowest_later_loss=later,
        ),
        explanation=say("worse-than-first.explanation"),
        advice=say("worse-than-first.advice"),
        at=int(at[0]),
        lines=analysis.eval_lines_at([int(at[0]), int(at[-1])]),
        claims={"evaluations after the first": "worse"},  # the training loss may be flat
    )


def val_rise(analysis: Analysis) -> Finding | None:
    """The last evaluation is far above the best one, and nothing above says why: too few losses of training,
    or these rise, too. Or it is above the one before the first update, as is every other."""
    run_log, facts = analysis.log, analysis.facts
    best, last, at = facts.best_val_loss, facts.final_val_loss, facts.best_val_step
    is_start = at == 0 and run_log.has_iteration_numbers
    least = MIN_ABOVE_START_RATIO if is_start else MIN_VAL_RISE_RATIO
    if best is None or last is None or not 0 < least * best < last < math.inf:
        return None
    if not run_log.loss_measures_learning:
        return None
    is_told = analysis.loss_rise or analysis.loss_jump or analysis.explosions or facts.nan_step is not None
    if is_told or overfitting(analysis) or worse_than_first(analysis) or has_leaked_data(analysis):
        return None
    values = analysis.trajectory.val_curve()[1]
    lowest, count = int(np.argmin(values)) if len(values) else 0, len(values)
    if count >= MIN_EVALS and not clear_rise(values, lowest, count - 1, analysis.eval_noise):
        return None  # by chance, as far as the others scatter
    if (is_start and count < MIN_EVALS) or (at is not None and metric_still_better(analysis, at)):
        return None
    metric = val_metric_name(run_log)
    return make_finding(
        "val-rise",
        "warning",
        title=say("val-rise.title.start", metric=metric)
        if is_start
        else say("val-rise.title", metric=metric),
        evidence=say("val-rise.evidence", metric=metric, best_loss=best, end_loss=last),
        explanation=say("val-rise.explanation.start") if is_start else say("val-rise.explanation"),
        advice=say("val-rise.advice.start") if is_start else say("val-rise.advice"),
        at=at if run_log.has_iteration_numbers else None,
        lines=analysis.eval_lines_at([] if at is None else [at]),
    )


def gap_growth(analysis: Analysis) -> Finding | None:
    """The gap between both losses grew, by too little for overfitting, or while the validation loss fell."""
    growth = analysis.gap_growth
    is_unstable = bool(analysis.loss_rise or analysis.explosions)
    if growth is None or is_unstable or has_leaked_data(analysis) or overfitting(analysis):
        return None
    if growth.last_gap - max(0.0, growth.first_gap) < MIN_GAP_GROWTH_NATS:
        return None  # lines before an evaluation are of earlier weights: at first, their loss is higher
    return make_finding(
        "gap-growth",
        "info",
        title=say("gap-growth.title", first_gap=growth.first_gap, last_gap=growth.last_gap),
        evidence=say(
            "gap-growth.evidence",
            evals=growth.evals,
            first_iteration=growth.first_iteration,
            last_iteration=growth.last_iteration,
        ),
        explanation=say("gap-growth.explanation"),
        at=growth.last_iteration,
        lines=analysis.eval_lines_at([growth.first_iteration, growth.last_iteration]),
    )


def stuck_eval(analysis: Analysis) -> Finding | None:
    """The validation loss is the same number, to all printed digits, while the training loss falls."""
    at, values = analysis.trajectory.val_curve()
    if len(values) < MIN_STUCK_EVALS:
        return None
    changes = np.flatnonzero(np.diff(values) != 0) + 1
    begins, ends = [0, *changes.tolist()], [*changes.tolist(), len(values)]
    begin, end = max(zip(begins, ends, strict=True), key=lambda span: span[1] - span[0])
    if end - begin < MIN_STUCK_EVALS or round(float(values[begin]), 2) == values[begin]:
        return None  # so few digits hide a change
    iterations, losses = analysis.trajectory.finite_losses()
    meanwhile = losses[(iterations >= at[begin]) & (iterations <= at[end - 1])]
    half = len(meanwhile) // 2
    if half < MIN_TRAIN_LOSSES:
        return None
    earlier, later = (float(np.median(part)) for part in (meanwhile[:half], meanwhile[-half:]))
    error = math.hypot(median_stderr(meanwhile[:half]), median_stderr(meanwhile[-half:]))
    if earlier - later < max(MIN_STUCK_FALL_SHARE * earlier, CLEAR_STANDARD_ERRORS * error):
        return None  # as where the learning rate has run out
    return make_finding(
        "stuck-eval",
        "warning",
        title=say("stuck-eval.title", metric=val_metric_name(analysis.log), evaluations=end - begin),
        evidence=[
            say(
                "stuck-eval.evidence",
                metric=val_metric_name(analysis.log),
                val_loss=float(values[begin]),
                first_iteration=int(at[begin]),
                last_iteration=int(at[end - 1]),
            ),
            say("overfitting.evidence.training_loss", train_loss_at_best=earlier, train_loss_at_end=later),
        ],
        explanation=say("stuck-eval.explanation"),
        advice=say("stuck-eval.advice"),
        at=int(at[begin]) if analysis.log.has_iteration_numbers else None,
        lines=analysis.eval_lines_at([int(at[begin]), int(at[end - 1])]),
    )


def eval_noise(analysis: Analysis) -> Finding | None:
    """Neighbouring evaluations differ by less than two standard errors of their difference."""
    noise, trainer = analysis.eval_noise, analysis.log.trainer
    _, values = analysis.trajectory.val_curve()
    recent = values[-max(4, len(values) // 3) :]
    if noise is None or len(recent) < 4 or analysis.past_best:  # a rise of several is not noise
        return None
    if noise.source == "scatter":
        if not trainer.evaluates_random_batches:
            return None  # the others evaluate the same tokens every time: the scatter is the model's
        if np.all(np.diff(values[len(values) // 3 :]) < 0):
            return None  # the curve falls at every evaluation: the scatter is its bend
    steps = np.abs(np.diff(recent))
    usual_step = float(np.median(steps))
    visible = noise.difference(VISIBLE_STANDARD_ERRORS)
    if not MIN_STEP_TO_VISIBLE * visible <= usual_step < visible:
        return None
    if visible < MIN_VISIBLE_SHARE * float(recent[-1]):
        return None
    factor = (visible / usual_step) ** 2  # the error falls with the square root of the tokens
    if noise.eval_batches:
        advice = say(
            "eval-noise.advice.raise_eval_iters",
            eval_iters=int(noise.eval_batches),
            enough_eval_iters=math.ceil(noise.eval_batches * factor - 1e-6),
        )
    else:
        advice = say("eval-noise.advice.more_tokens", token_factor=math.ceil(factor - 1e-6))
    return make_finding(
        "eval-noise",
        "advice",
        title=say("eval-noise.title"),
        evidence=[
            say(
                "eval-noise.evidence.median_change",
                changes=len(steps),
                metric=val_metric_name(analysis.log),
                median_change=usual_step,
                min_visible=visible,
            ),
        ],
        explanation=say("eval-noise.explanation", min_visible=visible),
        advice=advice,
    )
