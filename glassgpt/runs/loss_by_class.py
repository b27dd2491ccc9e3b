"""The loss of an evaluation, apart: by kind of token, frequency, script and position, and on the passage.

`training/loss_parts.py` measures it, an `eval` record holds it, this reads it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glassgpt.runs.run_log import LoggedEvaluation

PARTITIONS = ("by_kind", "by_frequency", "by_script")


@dataclass(frozen=True)
class LossByClass:
    """Only what the journal has."""

    iteration: int
    loss: float
    classes: Mapping[str, Mapping[str, tuple[int, float]]]  # by partition: tokens and mean loss of a class
    by_position: tuple[tuple[int, int, int, float], ...]  # from, to, tokens, mean loss
    passage_losses: tuple[float, ...] = ()  # of each token of the run's passage


def read_loss_parts(evaluation: LoggedEvaluation) -> LossByClass | None:
    """None where its record has no parts, or they are no numbers."""
    parts = evaluation.parts
    if evaluation.iteration is None or evaluation.val_loss is None:
        return None
    try:
        classes = {
            partition: {str(name): (int(tokens), _loss(loss)) for name, (tokens, loss) in rows.items()}
            for partition in PARTITIONS
            if (rows := parts.get(partition)) is not None
        }
        positions = tuple(
            (int(first), int(last), int(tokens), _loss(loss))
            for first, last, tokens, loss in parts["by_position"]
        )
        passage = tuple(map(_loss, parts.get("passage_losses", ())))
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
    return LossByClass(evaluation.iteration, evaluation.val_loss, classes, positions, passage)


def _loss(value: Any) -> float:
    """A journal writes NaN and infinities as words."""
    number = float(value)
    if math.isnan(number) or abs(number) > 1e6:
        raise ValueError("not a loss")
    return number


def passage_texts(data: Mapping[str, Any]) -> tuple[int, list[str]] | None:
    """Of a `run` record's `data`: where its passage begins in the validation split, and each token's text."""
    passage = data.get("passage")
    if not isinstance(passage, dict):
        return None
    start, tokens = passage.get("start"), passage.get("tokens")
    if not isinstance(start, int) or not isinstance(tokens, list) or not tokens:
        return None
    return (start, tokens) if all(isinstance(one, str) for one in tokens) else None
