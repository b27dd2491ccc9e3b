"""One of the runs compared: what was read, what follows from it, and the letter it goes by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from glassgpt.compare.derived import Derived, derive, peaks
from glassgpt.compare.last_run import last_run, runs_in
from glassgpt.compare.loss_curve import Progress, training_progress, validation_progress
from glassgpt.estimate.cards import Card
from glassgpt.runs.facts import Facts
from glassgpt.runs.noise import (
    Noise,
    evaluated_tokens,
    evaluates_same_tokens,
    evaluation_noise,
    scatter_noise,
)
from glassgpt.runs.run_log import History
from glassgpt.runs.trajectory import Course, course_of

Measure = Literal["validation", "training"]


@dataclass(frozen=True)
class Side:
    label: str  # "A", as in the flags --a.n_layer=12
    history: History  # of the last run in the log
    facts: Facts
    course: Course
    derived: Derived
    progress: Progress
    noise: Noise | None
    shared_tokens: bool = False  # all of the runs are evaluated on the same ones
    runs_in_log: int = 1

    @property
    def best(self) -> tuple[float, int] | None:
        """The lowest loss and its iteration."""
        if not len(self.progress):
            return None
        index = int(self.progress.losses.argmin())
        return float(self.progress.losses[index]), int(self.progress.iterations[index])

    @property
    def tokens_at_best(self) -> float | None:
        """Seen up to there; None where the log does not tell."""
        seen = self.progress.along.get("tokens")
        return float(seen[self.progress.losses.argmin()]) if seen is not None and len(seen) else None

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
    counts = [runs_in(history) for history, _ in runs]
    lasts = [last_run(history, facts) for history, facts in runs]
    histories = [history for history, _ in lasts]
    courses = [course_of(history) for history in histories]
    derived = [
        derive(history, facts, peak)
        for (history, facts), peak in zip(lasts, peaks(histories, card), strict=True)
    ]
    measure, curves = _curves(lasts, courses, derived)
    shared = measure == "validation" and _same_tokens(histories)
    sides = []
    for index, (history, facts) in enumerate(lasts):
        curve, course = curves[index], courses[index]
        noise = scatter_noise(curve.losses) if shared else _noise(history, course, curve, measure)
        label = label_of(index)
        sides.append(Side(label, history, facts, course, derived[index], curve, noise, shared, counts[index]))
    return sides, measure


def _curves(
    runs: Sequence[tuple[History, Facts]], courses: Sequence[Course], derived: Sequence[Derived]
) -> tuple[Measure, list[Progress]]:
    parts = [(*run, course, more) for run, course, more in zip(runs, courses, derived, strict=True)]
    validation = [validation_progress(history, course, facts, more) for history, facts, course, more in parts]
    if all(len(curve) for curve in validation):
        return "validation", validation
    training = [training_progress(history, course, facts, more) for history, facts, course, more in parts]
    return ("training", training) if all(len(curve) for curve in training) else ("validation", validation)


def _same_tokens(histories: Sequence[History]) -> bool:
    """Whether all evaluate the very same tokens every time, as GlassGPT does. Then what is special about
    these is in all of the losses, and their differences are surer than each loss by itself."""
    hashes = {str(history.setup.data.get("hash") or "") for history in histories}
    evaluated = {evaluated_tokens(history) for history in histories}
    ours = all(evaluates_same_tokens(history) for history in histories)
    return ours and len(hashes) == 1 and "" not in hashes and len(evaluated) == 1 and None not in evaluated


def _noise(history: History, course: Course, curve: Progress, measure: Measure) -> Noise | None:
    if measure == "training":
        return None if curve.scatter is None else Noise(curve.scatter, "scatter")
    return evaluation_noise(history, course.evals, course.losses()[1])


def ratio(over: float | None, under: float | None) -> float | None:
    """None where either is unknown or nothing to divide by."""
    if over is None or not under:
        return None
    quotient = over / under
    return quotient if math.isfinite(quotient) and quotient > 0 else None
