"""Losses that no text has: of training alone, of validation too, or exactly nothing."""

from __future__ import annotations

import numpy as np

from glassgpt.explain.rule import Case, Finding
from glassgpt.format import loss, whole
from glassgpt.i18n import say
from glassgpt.runs.run_log import Floats

FEWEST_ROWS = 20
FEWEST_ZEROS = 3
TOO_LOW = 0.1  # nats per token; the largest models leave several times that open


def memorised_data(case: Case) -> Finding | None:
    at, losses = case.course.losses()
    if not case.history.trainer.trains_on_plain_text or case.history.evals or len(losses) < FEWEST_ROWS:
        return None
    end = _end(losses)
    if not 0 <= end < TOO_LOW or not losses[0] > 10 * TOO_LOW:
        return None
    return Finding(
        "memorised-data",
        "advice",
        say("The model has learnt its training data by heart"),
        say(
            "The training loss went from {first} to {end} (median of the last tenth) in {count} iterations, "
            "and nothing was evaluated.",
            first=loss(float(losses[0])),
            end=loss(end),
            count=whole(int(at[-1]) - int(at[0]) + 1),
        ),
        say(
            "Ordinary text cannot be predicted so well: the data are few and read over and over, or follow a "
            "simple rule."
        ),
        say("Hold back a part of the data and evaluate on it: only that says what the model can do."),
    )


def leaked_data(case: Case) -> Finding | None:
    """The validation loss too: that text was not learnt by heart."""
    if not is_leaked(case):
        return None
    last = case.course.evals[-1]
    _, losses = case.course.losses()
    return Finding(
        "leaked-data",
        "warning",
        say("The validation loss is lower than any ordinary text allows"),
        say(
            "val loss {val} at iteration {at}, training loss {train} (median of the last tenth).",
            val=loss(float(last.val_loss or 0.0)),
            at=whole(last.iteration or 0),
            train=loss(_end(losses)),
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


def is_leaked(case: Case) -> bool:
    history, course = case.history, case.course
    _, losses = course.losses()
    values = [done.val_loss for done in course.evals if done.val_loss is not None and done.iteration]
    if (
        not history.trainer.trains_on_plain_text
        or history.val_metric != "loss"
        or not values
        or not len(losses)
    ):
        return False
    return 0 <= values[-1] < TOO_LOW and 0 <= _end(losses) < TOO_LOW and losses[0] > 10 * TOO_LOW


def loss_zero(case: Case) -> Finding | None:
    """A loss that is exactly 0 to the end: it is not computed, or stands for one that is no number."""
    count = zeros_at_end(case)
    if not count:
        return None
    _, losses = case.course.losses()
    evidence = say(
        "The last {count} of {all} logged losses are exactly 0; the one before is {before}.",
        count=f"{count:,}",
        all=f"{len(losses):,}",
        before=loss(float(losses[-count - 1])),
    )
    norms = case.history.steps.grad_norm[case.course.rows]
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


def zeros_at_end(case: Case) -> int:
    """How many losses at the end are exactly 0, where there were usual ones before; else 0."""
    _, losses = case.course.losses()
    above = np.flatnonzero(losses != 0)
    count = len(losses) - 1 - int(above[-1]) if len(above) else 0
    return count if count >= FEWEST_ZEROS and losses[above[-1]] > 10 * TOO_LOW else 0


def _end(losses: Floats) -> float:
    return float(np.median(losses[-max(5, len(losses) // 10) :]))
