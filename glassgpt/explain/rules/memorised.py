"""Losses that no text has: of training alone, of validation too, or exactly nothing."""

from __future__ import annotations

import numpy as np

from glassgpt.explain.rule import Finding, RunAnalysis
from glassgpt.format import format_integer, format_loss
from glassgpt.i18n import say
from glassgpt.runs.run_log import Floats

MIN_LOGGED_STEPS = 20
MIN_ZERO_LOSSES = 3
IMPLAUSIBLE_LOSS = 0.1  # nats per token; the largest models leave several times that open


def memorised_data(case: RunAnalysis) -> Finding | None:
    at, losses = case.trajectory.finite_losses()
    if not case.log.trainer.trains_on_plain_text or case.log.evals or len(losses) < MIN_LOGGED_STEPS:
        return None
    end = _final_loss(losses)
    if not 0 <= end < IMPLAUSIBLE_LOSS or not losses[0] > 10 * IMPLAUSIBLE_LOSS:
        return None
    return Finding(
        "memorised-data",
        "advice",
        say("The model has learnt its training data by heart"),
        say(
            "The training loss went from {first} to {end} (median of the last tenth) in {count} iterations, "
            "and nothing was evaluated.",
            first=format_loss(float(losses[0])),
            end=format_loss(end),
            count=format_integer(int(at[-1]) - int(at[0]) + 1),
        ),
        say(
            "Ordinary text cannot be predicted so well: the data are few and read over and over, or follow a "
            "simple rule."
        ),
        say("Hold back a part of the data and evaluate on it: only that says what the model can do."),
    )


def leaked_data(case: RunAnalysis) -> Finding | None:
    """The validation loss too: that text was not learnt by heart."""
    if not has_leaked_data(case):
        return None
    last = case.trajectory.evals[-1]
    _, losses = case.trajectory.finite_losses()
    return Finding(
        "leaked-data",
        "warning",
        say("The validation loss is lower than any ordinary text allows"),
        say(
            "val loss {val} at iteration {at}, training loss {train} (median of the last tenth).",
            val=format_loss(float(last.val_loss or 0.0)),
            at=format_integer(last.iteration or 0),
            train=format_loss(_final_loss(losses)),
        ),
        say(
            "A model that has not seen a text cannot predict it so well. It sees the answers (targets that "
            "are not shifted, attention that is not causal), the validation text is in the training text, "
            "or the data follow a simple rule."
        ),
        say(
            "Check that the targets are the inputs shifted by one, that the attention is causal, and that "
            "no part of the validation text is in the training text. Let it write something: a model that "
            "saw the answers writes nonsense."
        ),
    )


def has_leaked_data(case: RunAnalysis) -> bool:
    history, course = case.log, case.trajectory
    _, losses = course.finite_losses()
    values = [done.val_loss for done in course.evals if done.val_loss is not None and done.iteration]
    if (
        not history.trainer.trains_on_plain_text
        or history.val_metric != "loss"
        or not values
        or not len(losses)
    ):
        return False
    return (
        0 <= values[-1] < IMPLAUSIBLE_LOSS
        and 0 <= _final_loss(losses) < IMPLAUSIBLE_LOSS
        and losses[0] > 10 * IMPLAUSIBLE_LOSS
    )


def loss_zero(case: RunAnalysis) -> Finding | None:
    """A loss that is exactly 0 to the end: it is not computed, or stands for one that is no number."""
    count = trailing_zero_losses(case)
    if not count:
        return None
    _, losses = case.trajectory.finite_losses()
    evidence = say(
        "The last {count} of {all} logged losses are exactly 0; the one before is {before}.",
        count=f"{count:,}",
        all=f"{len(losses):,}",
        before=format_loss(float(losses[-count - 1])),
    )
    norms = case.log.steps.grad_norm[case.trajectory.rows]
    if np.all(np.isnan(norms[-count:])) and np.any(np.isfinite(norms[:-count])):
        evidence += " " + say("Their gradient norms are not numbers.")
    return Finding(
        "loss-nan",
        "problem",
        say("The loss is exactly 0 at the end"),
        evidence,
        say(
            "Nothing is learnt so well. The loss is not a number and is written as 0, as transformers "
            "does (logging_nan_inf_filter), or every label is ignored."
        ),
        say(
            "Train in bfloat16 or float32 instead of float16, with a lower learning rate, and count the "
            "labels of a batch that are not -100. Go back to a checkpoint from before."
        ),
    )


def trailing_zero_losses(case: RunAnalysis) -> int:
    """How many losses at the end are exactly 0, where there were usual ones before; else 0."""
    _, losses = case.trajectory.finite_losses()
    above = np.flatnonzero(losses != 0)
    count = len(losses) - 1 - int(above[-1]) if len(above) else 0
    return count if count >= MIN_ZERO_LOSSES and losses[above[-1]] > 10 * IMPLAUSIBLE_LOSS else 0


def _final_loss(losses: Floats) -> float:
    return float(np.median(losses[-max(5, len(losses) // 10) :]))
