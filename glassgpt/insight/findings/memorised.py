"""A training loss that no text has, of a run that evaluated nothing."""

from __future__ import annotations

import numpy as np

from glassgpt.figures import loss, whole
from glassgpt.insight.findings.finding import Case, Finding
from glassgpt.words import say

OF_TEXT = ("nanogpt", "build-nanogpt", "llm.c", "modded-nanogpt")  # others may be tuned to anything
FEWEST_ROWS = 20
TOO_LOW = 0.1  # nats per token; the largest models leave several times that open


def memorised_data(case: Case) -> Finding | None:
    at, losses = case.course.losses()
    if case.history.format.name not in OF_TEXT or case.history.evals or len(losses) < FEWEST_ROWS:
        return None
    end = float(np.median(losses[-max(5, len(losses) // 10) :]))
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
