"""A model that gets better on its training data and worse on others: by the validation loss, another metric,
or the gap between both losses."""

from __future__ import annotations

import math

import numpy as np

from glassgpt.explain.rules.loss_plausibility import has_leaked_data
from glassgpt.i18n import Message, say
from glassgpt.record.finding import Finding, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.curve_statistics import detrended_std, median_stderr
from glassgpt.runs.metric_columns import is_of_eval
from glassgpt.runs.noise import CLEAR_STANDARD_ERRORS, VISIBLE_STANDARD_ERRORS, clear_difference
from glassgpt.runs.past_best import (
    MIN_EVALS,
    MIN_GAP_GROWTH_NATS,
    MIN_RISE_SHARE,
    MIN_TRAIN_LOSSES,
    PastBest,
    logged_train_loss,
)
from glassgpt.runs.trajectory import (
    last_iteration_done,
    shows_run_start,
    takes_known_settings,
    val_metric_name,
)

WARNING_RISE_SHARE = 0.02  # of the best loss: then the last weights are not worth keeping

# A metric besides the loss: so many values at the best loss and at the end, and its gain between them.
MAX_METRIC_NEIGHBOURS, MIN_METRIC_GAIN_SHARE = 2, 0.003

# Where the first losses are near 0 already, the task was learnt before: a smaller rise is of no account.
MAX_LEARNT_LOSS, MIN_LEARNT_RISE = 0.1, 0.01

# The same where no validation loss is logged: how far the end is below the best, and lines at both.
MIN_METRIC_FALL_SHARE, MAX_METRIC_LINES = 0.03, 20


def overfitting(analysis: Analysis) -> Finding | None:
    """The validation loss rose after its best while the training loss fell; or it is far above the training
    loss, whatever came before."""
    past = analysis.past_best
    is_exploded = bool(analysis.explosions) and analysis.explosions[-1].recovered_iteration is None
    if has_leaked_data(analysis) or analysis.loss_rise or is_exploded:
        return None  # then its losses say nothing about unseen text
    if not analysis.log.loss_measures_learning and analysis.facts.best_val_loss is not None:
        return None  # of a policy: an evaluation's is not lower where it is better
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
    if better := metric_still_better(analysis, past.best_iteration):
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


def _unread_of_evaluations(analysis: Analysis) -> list[str]:
    """Columns of a table that measure evaluations in a way that is not known: they may still improve."""
    notes = (note for note in analysis.log.notes if note.key.startswith("table.columns_left_out"))
    return [name for note in notes for name in str(note.values["columns"]).split(", ") if is_of_eval(name)]


def _was_learnt(analysis: Analysis) -> bool:
    """Before the run: its first losses are near 0 already."""
    losses, values = analysis.trajectory.finite_losses()[1], analysis.trajectory.val_curve()[1]
    first = np.append(losses[:MIN_TRAIN_LOSSES], values[0])
    return analysis.log.val_metric == "loss" and float(first.max()) < MAX_LEARNT_LOSS


def metric_still_better(analysis: Analysis, best_iteration: int) -> tuple[str, int, float, float] | None:
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
        noise = detrended_std(one.value)  # of few values: what they scatter, slope and all
        error = math.sqrt(float(before.var() + after.var() if noise is None else 2 * noise**2) / count)
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
    if metric_still_better(analysis, start):
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
    elif analysis.log.live:
        rise = effect["rise"]
        advice.append(say("overfitting.advice.stop_now", best_iteration=best_iteration, rise=rise))
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
