"""One of the runs compared: what was read, what follows from it, and the letter it goes by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from glassgpt.account.hardware import Card
from glassgpt.insight.compare.derived import Derived, derive, peaks
from glassgpt.insight.compare.noise import (
    Noise,
    repeated_noise,
    same_tokens,
    training_noise,
    validation_noise,
)
from glassgpt.insight.compare.progress import Progress, training_progress, validation_progress
from glassgpt.insight.facts import Facts
from glassgpt.insight.history import History

Measure = Literal["validation", "training"]


@dataclass(frozen=True)
class Side:
    label: str  # "A", as in the flags --a.n_layer=12
    history: History
    facts: Facts
    derived: Derived
    progress: Progress
    noise: Noise | None
    shared_tokens: bool = False  # all of the runs are evaluated on the same ones

    @property
    def best(self) -> tuple[float, int] | None:
        """The lowest loss and its iteration."""
        if not len(self.progress):
            return None
        index = int(self.progress.losses.argmin())
        return float(self.progress.losses[index]), int(self.progress.iterations[index])

    @property
    def last(self) -> tuple[float, int] | None:
        if not len(self.progress):
            return None
        return float(self.progress.losses[-1]), int(self.progress.iterations[-1])


def label_of(index: int) -> str:
    """A … Z, then AA, AB …"""
    head, tail = divmod(index, 26)
    return (label_of(head - 1) if head else "") + chr(ord("A") + tail)


def make_sides(runs: Sequence[tuple[History, Facts]], card: Card | None) -> tuple[list[Side], Measure]:
    """All measured alike: by validation losses where every run has them, else by training losses if those are
    what every run has."""
    histories = [history for history, _ in runs]
    derived = [
        derive(history, facts, peak)
        for (history, facts), peak in zip(runs, peaks(histories, card), strict=True)
    ]
    validation = [
        validation_progress(history, facts, more)
        for (history, facts), more in zip(runs, derived, strict=True)
    ]
    measure: Measure = "validation"
    progress = validation
    if not all(len(curve) for curve in validation):
        training = [
            training_progress(history, facts, more)
            for (history, facts), more in zip(runs, derived, strict=True)
        ]
        if all(len(curve) for curve in training):
            measure, progress = "training", training
    shared = measure == "validation" and same_tokens(histories)
    sides = []
    for index, (history, facts) in enumerate(runs):
        curve = progress[index]
        noise = repeated_noise(curve) if shared else _noise(history, curve, measure)
        sides.append(Side(label_of(index), history, facts, derived[index], curve, noise, shared))
    return sides, measure


def _noise(history: History, curve: Progress, measure: Measure) -> Noise | None:
    return validation_noise(history, curve) if measure == "validation" else training_noise(curve)


def ratio(over: float | None, under: float | None) -> float | None:
    """None where either is unknown or nothing to divide by."""
    if over is None or not under:
        return None
    quotient = over / under
    return quotient if math.isfinite(quotient) and quotient > 0 else None
