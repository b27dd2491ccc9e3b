"""The curve of validation losses: where the run should have stopped, and whether its noise hides progress."""

from __future__ import annotations

import math

import numpy as np

from glassgpt.explain.rules.loss_plausibility import has_leaked_data
from glassgpt.i18n import Message, say
from glassgpt.record.finding import Finding, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.curve_statistics import median_stderr
from glassgpt.runs.metric_columns import is_of_eval
from glassgpt.runs.noise import CLEAR_STANDARD_ERRORS, VISIBLE_STANDARD_ERRORS, clear_difference
from glassgpt.runs.past_best import (
    MIN_EVALS,
    MIN_GAP_GROWTH_NATS,
    MIN_RISE_SHARE,
    MIN_TRAIN_LOSSES,
    PastBest,
    clear_rise,
    logged_train_loss,
)
from glassgpt.runs.trajectory import (
    last_iteration_done,
    shows_run_start,
    takes_known_settings,
    val_metric_name,
)

WARNING_RISE_SHARE = 0.02  # of the best loss: then the last weights are not worth keeping

MIN_WORSE_EVALS, MIN_WORSE_SHARE = 5, 0.05  # evaluations, and how far all later ones are above the first

MIN_VAL_RISE_RATIO = 1.25  # the last evaluation over the best

# A metric besides the loss: so many values at the best loss and at the end, and its gain between them.
MAX_METRIC_NEIGHBOURS, MIN_METRIC_GAIN_SHARE = 2, 0.003

# Where the first losses are near 0 already, the task was learnt before: a smaller rise is of no account.
MAX_LEARNT_LOSS, MIN_LEARNT_RISE = 0.1, 0.01

# The same where no validation loss is logged: how far the end is below the best, and lines at both.
MIN_METRIC_FALL_SHARE, MAX_METRIC_LINES = 0.03, 20

# Steps from one evaluation to the next, compared with the noise of their difference.
MIN_VISIBLE_SHARE = 0.01  # of the loss: nobody chooses between runs by less
MIN_STEP_TO_VISIBLE = 1 / 6  # a curve that moves less is a plateau; 36 times as many batches are no advice

# Evaluations with one and the same result, and the fall of the training loss meanwhile, as a share of it.
MIN_STUCK_EVALS, MIN_STUCK_FALL_SHARE = 3, 0.02


def overfitting(analysis: Analysis) -> Finding | None:
    """The validation loss rose after its best while the training loss fell; or it is far above the training
    loss, whatever came before."""
    past = analysis.past_best
    is_exploded = bool(analysis.explosions) and analysis.explosions[-1].recovered_iteration is None
    if has_leaked_data(analysis) or analysis.loss_rise or is_exploded:
        return None  # then its losses say nothing about unseen text
    if past is not None and past.end_loss - past.best_loss < MIN_LEARNT_RISE and _was_learnt(analysis):
        return None
    gap = analysis.train_val_gap
    if analysis.facts.best_val_loss is None:
        return _overfitting_by_metric(analysis)
    if past is None or past.is_earliest or (past.train_losses is None and gap is None):
        return _overfitting_in_part(analysis)
    run_log, rise = analysis.log, past.end_loss - past.best_loss
    compared = {
        "metric": val_metric_name(run_log),
        "best_loss": past.best_loss,
        "end_loss": past.end_loss,
        "rise": rise,
    }
    claims: dict[str, object] = {"learning at the end": "overfitting"}
    if run_log.has_iteration_numbers:
        claims["best iteration"] = past.best_iteration
        title = say("overfitting.title.since_iteration", best_iteration=past.best_iteration)
        comparison = say(
            "overfitting.evidence.best_end_numbered",
            best_iteration=past.best_iteration,
            last_iteration=past.end_iteration,
            **compared,
        )
    else:
        title = say("overfitting.title.last_share", share_after_best=past.share_after_best)
        comparison = say("overfitting.evidence.best_end", **compared)
    evidence = [comparison]
    if past.train_losses is not None:
        at_best, at_end = past.train_losses
        evidence.append(
            say("overfitting.evidence.training_loss", train_loss_at_best=at_best, train_loss_at_end=at_end)
        )
    elif gap is not None and (gap.is_of_lines or (gap.train_lines or 1) > 1):
        evidence.append(say("overfitting.evidence.train_loss_median", train_loss=gap.train_loss))
    elif gap is not None:
        evidence.append(say("overfitting.evidence.train_loss", train_loss=gap.train_loss))
    if better := _metric_still_better(analysis, past.best_iteration):
        name, count, before, after = better
        return make_finding(
            "overfitting",
            "info",
            title=say("overfitting.title.loss_only", metric=compared["metric"], name=name),
            evidence=[
                *evidence,
                say(
                    "overfitting.evidence.metric",
                    name=name,
                    count=count,
                    metric_before=before,
                    metric_after=after,
                ),
            ],
            explanation=say("overfitting.explanation.loss_only"),
            at=past.best_iteration if run_log.has_iteration_numbers else None,
            lines=analysis.eval_lines_at([past.best_iteration, past.end_iteration]),
        )
    unread = _unread_of_evaluations(analysis)
    if unread:
        evidence.append(say("overfitting.evidence.unread", names=unread))
    last = max(last_iteration_done(run_log) or 0, past.end_iteration)  # the last evaluation may be before it
    saving = (last - past.best_iteration) / max(1, last - past.start_iteration)
    if wasted := analysis.seconds_and_share_after(past.best_iteration, past.end_iteration):
        saving = wasted[1]
    return make_finding(
        "overfitting",
        "warning" if rise > WARNING_RISE_SHARE * past.best_loss and not unread else "advice",
        title=title,
        evidence=evidence,
        explanation=say("overfitting.explanation"),
        advice=_overfitting_advice(analysis, past, saving),
        at=past.best_iteration if run_log.has_iteration_numbers else None,
        lines=analysis.eval_lines_at([past.best_iteration, past.end_iteration]),
        claims=claims,
    )


def _overfitting_by_metric(analysis: Analysis) -> Finding | None:
    """Where no validation loss is logged: an accuracy or a score of held-out data is below its best, beyond
    noise, and the training loss fell meanwhile."""
    log, (at, losses) = analysis.log, analysis.trajectory.finite_losses()
    for course in log.metric_courses:
        is_known = course.is_eval and course.kind in ("accuracy", "error_rate", "score", "perplexity")
        best_at, fall = course.best_iteration, abs(course.best - course.last)
        if not is_known or best_at is None or not log.has_iteration_numbers:
            continue
        if not course.stderr or fall < max(course.noise, MIN_METRIC_FALL_SHARE * abs(course.best)):
            continue
        before, after = losses[at <= best_at][-MAX_METRIC_LINES:], losses[at > best_at][-MAX_METRIC_LINES:]
        error = math.hypot(median_stderr(before), median_stderr(after))
        if min(len(before), len(after)) < MIN_TRAIN_LOSSES or not log.loss_measures_learning:
            continue
        train_losses = float(np.median(before)), float(np.median(after))
        if train_losses[0] - train_losses[1] < CLEAR_STANDARD_ERRORS * error:
            continue
        values = {"name": course.name, "best_iteration": best_at, "count": course.mean_of}
        compared = say("overfitting.evidence.metric_best", best=course.best, end=course.last, **values)
        fell = say(
            "overfitting.evidence.training_loss",
            train_loss_at_best=train_losses[0],
            train_loss_at_end=train_losses[1],
        )
        return make_finding(
            "overfitting",
            "warning",
            title=say("overfitting.title.metric", **values),
            evidence=[compared, fell],
            explanation=say("overfitting.explanation.metric"),
            advice=say("overfitting.advice.best_metric", **values),
            at=best_at,
            claims={"learning at the end": "overfitting", "best iteration": best_at},
        )
    return None


def worse_than_first(analysis: Analysis) -> Finding | None:
    """Every later evaluation is clearly worse than the first one after an update, and the training loss did
    not fall either: else it is overfitting."""
    run_log = analysis.log
    at, values = analysis.trajectory.val_curve()
    at, values = at[at > 0], values[at > 0]
    if len(values) < MIN_WORSE_EVALS or analysis.loss_rise or analysis.explosions:
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
    or these rise, too."""
    run_log, facts = analysis.log, analysis.facts
    best, last = facts.best_val_loss, facts.final_val_loss
    if best is None or last is None or not 0 < MIN_VAL_RISE_RATIO * best < last < math.inf:
        return None
    is_told = analysis.loss_rise or analysis.loss_jump or analysis.explosions or facts.nan_step is not None
    if is_told or overfitting(analysis) or worse_than_first(analysis) or has_leaked_data(analysis):
        return None
    values = analysis.trajectory.val_curve()[1]
    lowest, count = int(np.argmin(values)) if len(values) else 0, len(values)
    if count >= MIN_EVALS and not clear_rise(values, lowest, count - 1, analysis.eval_noise):
        return None  # by chance, as far as the others scatter
    metric, at = val_metric_name(run_log), facts.best_val_step
    if at is not None and _metric_still_better(analysis, at):
        return None
    return make_finding(
        "val-rise",
        "warning",
        title=say("val-rise.title", metric=metric),
        evidence=say("val-rise.evidence", metric=metric, best_loss=best, end_loss=last),
        explanation=say("val-rise.explanation"),
        advice=say("val-rise.advice"),
        at=at if run_log.has_iteration_numbers else None,
        lines=analysis.eval_lines_at([] if at is None else [at]),
    )


def _unread_of_evaluations(analysis: Analysis) -> list[str]:
    """Columns of a table that measure evaluations in a way that is not known: they may still improve."""
    notes = (note for note in analysis.log.notes if note.key.startswith("table.columns_left_out"))
    return [name for note in notes for name in str(note.values["columns"]).split(", ") if is_of_eval(name)]


def _was_learnt(analysis: Analysis) -> bool:
    """Before the run: its first losses are near 0 already."""
    losses, values = analysis.trajectory.finite_losses()[1], analysis.trajectory.val_curve()[1]
    first = np.append(losses[:MIN_TRAIN_LOSSES], values[0])
    return analysis.log.val_metric == "loss" and float(first.max()) < MAX_LEARNT_LOSS


def _metric_still_better(analysis: Analysis, best_iteration: int) -> tuple[str, int, float, float] | None:
    """A metric of held-out data that is clearly better at the end than at the best loss: its name, and the
    means of how many values around it and at the end. A perplexity says the same as the loss."""
    # Those of an evaluation may be on the lines after it.
    next_line = min(
        (one.line for one in analysis.trajectory.evals if (one.iteration or 0) > best_iteration), default=0
    )
    evaluated = [one.iteration for one in analysis.trajectory.evals if one.iteration is not None]
    for one in analysis.log.own_metrics:
        # A BLEU beside the validation loss is of held-out data, whatever its name; an accuracy may be of any.
        is_eval = one.metric.is_eval or (
            one.metric.kind != "accuracy"
            and "train" not in one.name.lower()
            and bool(np.isin(one.iteration, evaluated).all())
        )
        if not is_eval or one.metric.kind not in ("accuracy", "error_rate", "score"):
            continue
        is_later = one.iteration > best_iteration
        if not analysis.log.has_iteration_numbers:
            is_later = one.line >= next_line
        row, later = int((~is_later).sum()) - 1, int(is_later.sum())
        if row < 0 or not later:
            continue
        near = min(
            MAX_METRIC_NEIGHBOURS, row, (later - 1) // 3
        )  # on either side of the best; the end is apart
        count = 2 * near + 1
        before, after = one.value[row - near : row + near + 1], one.value[-count:]
        gain = float(after.mean() - before.mean()) * (1 if one.metric.higher_is_better else -1)
        error = math.sqrt(float(before.var() + after.var()) / count)
        least = max(VISIBLE_STANDARD_ERRORS * error, MIN_METRIC_GAIN_SHARE * abs(float(before.mean())))
        if gain > least:
            return one.name, count, float(before.mean()), float(after.mean())
    return None


def _overfits_on_plateau(analysis: Analysis) -> bool:
    """Of a validation loss that does not rise, far above the training loss: whether the gap grew since it is
    on its plateau, and no metric got better. Else the two texts may be of different kinds."""
    at, values = analysis.trajectory.val_curve()
    lowest = float(values.min())
    is_near = values - lowest <= max(clear_difference(analysis.eval_noise, lowest), MIN_RISE_SHARE * lowest)
    start = int(at[np.argmax(is_near)])
    if _metric_still_better(analysis, start):
        return False
    gaps = []
    for one in analysis.trajectory.evals:
        if one.iteration is not None and one.iteration >= start and one.val_loss is not None:
            train_loss = one.train_loss
            if train_loss is None:
                train_loss, _ = logged_train_loss(analysis.log, analysis.trajectory, one.iteration)
            if train_loss is not None:
                gaps.append(one.val_loss - train_loss)
    is_long = len(gaps) >= 2 * MIN_EVALS
    if len(gaps) < 2 or (not is_long and start == at[0]):
        return True  # the plateau began before these lines, or has just begun
    half = len(gaps) // 2 if is_long else 1
    earlier, later = np.array(gaps[:half]), np.array(gaps[-half:])
    error = math.hypot(median_stderr(earlier), median_stderr(later))
    growth = float(np.median(later) - np.median(earlier))
    return growth >= max(MIN_GAP_GROWTH_NATS, CLEAR_STANDARD_ERRORS * error)


def _overfitting_in_part(analysis: Analysis) -> Finding | None:
    """From the last evaluations alone: by the gap between both losses, or by a rise in a tail. A gap at the
    only evaluation may have been there from the start."""
    gap, past, run_log = analysis.train_val_gap, analysis.past_best, analysis.log
    metric, numbered = val_metric_name(run_log), run_log.has_iteration_numbers
    if gap is not None and not gap.is_alone:
        if past is None and not _overfits_on_plateau(analysis):
            return None  # gap_growth tells it
        at, title = gap.iteration, say("overfitting.title.gap", metric=metric, gap=gap.gap)
        losses = {"metric": metric, "train_loss": gap.train_loss, "val_loss": gap.val_loss, "gap": gap.gap}
        explanation = say("overfitting.explanation.gap")
        if gap.is_of_lines:
            comparison = say("overfitting.evidence.gap_lines", **losses)
            explanation = say("overfitting.explanation.gap_lines")
        elif gap.train_lines is not None:
            comparison = say("overfitting.evidence.gap_logged", last_iteration=gap.iteration, **losses)
            explanation = say("overfitting.explanation.gap_logged")
        elif numbered:
            comparison = say("overfitting.evidence.gap_numbered", last_iteration=gap.iteration, **losses)
        else:
            comparison = say("overfitting.evidence.gap", **losses)
    elif past is not None and past.train_losses is not None:
        at, title = past.end_iteration, say("overfitting.title.rising", metric=metric)
        comparison = say(
            "overfitting.evidence.rising",
            metric=metric,
            earlier_loss=past.best_loss,
            end_loss=past.end_loss,
            train_loss_before=past.train_losses[0],
            train_loss_at_end=past.train_losses[1],
        )
        explanation = say("overfitting.explanation.rising")
    else:
        return None
    values = analysis.trajectory.val_curve()[1]
    shows_lowest = shows_run_start(run_log) or bool(np.argmin(values))  # not the first of these lines
    is_whole = shows_lowest and len(values) >= MIN_EVALS
    eval_line = run_log.trainer.eval_line
    earlier = (
        say("overfitting.advice.earlier_lines", eval_line=eval_line)
        if eval_line
        else say("overfitting.advice.earlier_evaluations")
    )
    return make_finding(
        "overfitting",
        "warning",
        title=title,
        evidence=[comparison, None if is_whole else say("overfitting.evidence.best_unknown")],
        explanation=explanation,
        advice=[None if is_whole else earlier, say("overfitting.advice.reduce_gap")],
        at=at if numbered else None,
        lines=analysis.eval_lines_at([at]),
        claims={"learning at the end": "overfitting"},
    )


def _overfitting_advice(analysis: Analysis, past: PastBest, saving: float) -> list[Message]:
    best_iteration = past.best_iteration
    effect = {"saving": saving, "rise": past.end_loss - past.best_loss}
    advice = []
    if unread := _unread_of_evaluations(analysis):
        advice.append(say("overfitting.advice.compare_unread", names=unread))
    elif not analysis.log.has_iteration_numbers:
        advice.append(say("overfitting.advice.stop_at_best", **effect))
    elif takes_known_settings(analysis.log):
        advice.append(say("overfitting.advice.set_max_iters", best_iteration=best_iteration, **effect))
        if any(
            save.iteration is not None and save.iteration > best_iteration
            for save in analysis.trajectory.checkpoints
        ):
            advice.append(say("overfitting.advice.keep_best_weights"))
    else:
        advice.append(say("overfitting.advice.stop_at_iteration", best_iteration=best_iteration, **effect))
    tuned = analysis.log.trainer.often_finetunes
    advice.append(
        say("overfitting.advice.more_examples", best_loss=past.best_loss)
        if tuned
        else say("overfitting.advice.more_text", best_loss=past.best_loss)
    )
    return advice


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
