"""Losses that are not what they should be: summed instead of averaged, of other data, or exactly 0."""

from __future__ import annotations

import math

import numpy as np

from glassgpt.explain.rules.loss_plausibility import MAX_VOCAB_SIZE
from glassgpt.explain.rules.nonfinite import MIN_LOSS_BEFORE_ZERO, trailing_zero_losses
from glassgpt.i18n import say
from glassgpt.record.finding import Finding, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.past_best import logged_train_loss
from glassgpt.runs.trajectory import numeric_setting

MIN_EVALS = 2
MIN_SCALE_RATIO = 2.0  # training loss over validation loss, at every evaluation: dropout does less
# The same at the last evaluation, where it was about 1 before; and the fall of the validation loss to it.
MIN_LAST_RATIO, MAX_EARLIER_RATIO, MIN_LAST_FALL_SHARE = 1.5, 1.2, 0.25
MIN_LOSSES = 10
MIN_ZEROS_BETWEEN = 2  # losses of exactly 0 after a usual one
MIN_RATIO_TO_CHANCE = 1.2  # the loss at the end over that of a uniform guess


def loss_scale(analysis: Analysis) -> Finding | None:
    """The training loss is a multiple of the validation loss: at every evaluation, or at the last alone."""
    run_log = analysis.log
    if run_log.val_metric != "loss" or not run_log.has_iteration_numbers or analysis.explosions:
        return None
    pairs, of_lines = [], None
    for one in analysis.trajectory.evals:
        at, val_loss, train_loss = one.iteration, one.val_loss, one.train_loss
        if train_loss is None and at:
            train_loss, of_lines = logged_train_loss(run_log, analysis.trajectory, at)
        if at and val_loss is not None and val_loss > 0 and train_loss is not None and train_loss > 0:
            pairs.append((at, train_loss, val_loss))
    ratios = np.array([train_loss / val_loss for _, train_loss, val_loss in pairs])
    if len(pairs) < MIN_EVALS:
        return None
    at, train_loss, val_loss = pairs[-1]
    values = {"eval_iteration": at, "train_loss": train_loss, "val_loss": val_loss}
    lines = analysis.eval_lines_at([at])
    if ratios.min() >= MIN_SCALE_RATIO:
        return make_finding(
            "loss-scale",
            "warning",
            title=say("loss-scale.title.other", ratio=float(ratios[-1])),
            evidence=[
                say("loss-scale.evidence.other", **values),
                say("loss-scale.evidence.medians", lines=of_lines) if (of_lines or 1) > 1 else None,
                say(
                    "loss-scale.evidence.ratios",
                    count=len(pairs),
                    least=float(ratios.min()),
                    most=float(ratios.max()),
                ),
            ],
            explanation=say("loss-scale.explanation.other"),
            advice=say("loss-scale.advice.other"),
            at=at,
            lines=lines,
        )
    fall = 1 - val_loss / pairs[-2][2]
    if ratios[-1] < MIN_LAST_RATIO or ratios[:-1].max() > MAX_EARLIER_RATIO or fall < MIN_LAST_FALL_SHARE:
        return None
    return make_finding(
        "loss-scale",
        "warning",
        title=say("loss-scale.title.last", fall=fall),
        evidence=say("loss-scale.evidence.last", earlier_val_loss=pairs[-2][2], **values),
        explanation=say("loss-scale.explanation.last"),
        advice=say("loss-scale.advice.last"),
        at=at,
        lines=lines,
    )


def loss_above_chance(analysis: Analysis) -> Finding | None:
    """The training loss ends above that of a uniform guess, for the vocabulary or for any."""
    run_log = analysis.log
    at, losses = analysis.trajectory.finite_losses()
    vocab_size = numeric_setting(run_log, "vocab_size")
    if len(losses) < MIN_LOSSES or run_log.trainer.loss_base != math.e or analysis.explosions:
        return None
    if run_log.trainer.reads_any_log and not vocab_size:
        return None  # it may be a loss of anything
    chance = math.log(vocab_size if vocab_size and vocab_size > 1 else MAX_VOCAB_SIZE)
    lines = max(MIN_LOSSES, len(losses) // 10)
    end = float(np.median(losses[-lines:]))
    if end < MIN_RATIO_TO_CHANCE * chance or analysis.loss_rise or analysis.loss_jump:
        return None
    return make_finding(
        "loss-scale",
        "warning",
        title=say("loss-scale.title.above_chance"),
        evidence=say("loss-scale.evidence.above_chance", end_loss=end, lines=lines, chance_loss=chance),
        explanation=say("loss-scale.explanation.above_chance"),
        advice=say("loss-scale.advice.above_chance"),
        lines=analysis.lines_at([int(at[-1])]),
    )


def zeros_between(analysis: Analysis) -> Finding | None:
    """Lines with a loss of exactly 0, where no other is low."""
    at, losses = analysis.trajectory.finite_losses()
    nonzero = np.flatnonzero(losses != 0)
    if not len(nonzero) or losses[nonzero].min() <= MIN_LOSS_BEFORE_ZERO or trailing_zero_losses(analysis):
        return None
    before = np.searchsorted(nonzero, np.arange(len(losses))) - 1  # the last one that is not 0
    zeros = np.flatnonzero((losses == 0) & (before >= 0) & (losses[nonzero[before]] > MIN_LOSS_BEFORE_ZERO))
    if len(zeros) < MIN_ZEROS_BETWEEN:
        return None
    return make_finding(
        "loss-nan",
        "problem",
        title=say("loss-nan.title.zeros_between", zero_losses=len(zeros), logged_losses=len(losses)),
        evidence=say(
            "loss-nan.evidence.zeros_between",
            loss_before=float(losses[zeros[0] - 1]),
            zero_iteration=int(at[zeros[0]]),
        ),
        explanation=say("loss-nan.explanation.zero_loss"),
        advice=say("loss-nan.advice.zeros_between"),
        at=int(at[zeros[0]]) if analysis.log.has_iteration_numbers else None,
        lines=analysis.lines_at(at[zeros].tolist()),
    )
