"""One of the runs compared: what was read, what follows from it, and the letter it goes by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from glassgpt.compare.derived import DerivedMetrics, derive_metrics, mfu_peaks
from glassgpt.compare.last_run import count_runs, select_last_run
from glassgpt.compare.loss_curve import LossCurve, training_curve, validation_curve
from glassgpt.estimate.cards import Card
from glassgpt.runs.facts import Facts
from glassgpt.runs.noise import (
    EvalNoise,
    estimate_eval_noise,
    noise_from_scatter,
    tokens_per_eval,
    uses_fixed_eval_tokens,
)
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trajectory import Trajectory, trajectory_of

LossKind = Literal["validation", "training"]


@dataclass(frozen=True)
class ComparedRun:
    label: str  # "A", as in the flags --a.n_layer=12
    log: RunLog  # of the last run in the log
    facts: Facts
    trajectory: Trajectory
    metrics: DerivedMetrics
    curve: LossCurve
    noise: EvalNoise | None
    has_shared_eval_tokens: bool = False  # all of the runs are evaluated on the same ones
    runs_in_log: int = 1

    @property
    def best(self) -> tuple[float, int] | None:
        """The lowest loss and its iteration."""
        if not len(self.curve):
            return None
        index = int(self.curve.losses.argmin())
        return float(self.curve.losses[index]), int(self.curve.iterations[index])

    @property
    def tokens_at_best(self) -> float | None:
        """Seen up to there; None where the log does not tell."""
        seen = self.curve.positions.get("tokens")
        return float(seen[self.curve.losses.argmin()]) if seen is not None and len(seen) else None

    @property
    def last(self) -> tuple[float, int] | None:
        if not len(self.curve):
            return None
        return float(self.curve.losses[-1]), int(self.curve.iterations[-1])


def run_label(index: int) -> str:
    """A … Z, then AA, AB …"""
    head, tail = divmod(index, 26)
    return (run_label(head - 1) if head else "") + chr(ord("A") + tail)


def make_compared_runs(
    runs: Sequence[tuple[RunLog, Facts]], card: Card | None
) -> tuple[list[ComparedRun], LossKind]:
    """All measured alike: by validation losses where every run has them, else by training losses if those are
    what every run has."""
    counts = [count_runs(history) for history, _ in runs]
    lasts = [select_last_run(history, facts) for history, facts in runs]
    histories = [history for history, _ in lasts]
    courses = [trajectory_of(history) for history in histories]
    derived = [
        derive_metrics(history, facts, peak)
        for (history, facts), peak in zip(lasts, mfu_peaks(histories, card), strict=True)
    ]
    measure, curves = _curves(lasts, courses, derived)
    shared = measure == "validation" and _share_eval_tokens(histories)
    sides = []
    for index, (history, facts) in enumerate(lasts):
        curve, course = curves[index], courses[index]
        noise = noise_from_scatter(curve.losses) if shared else _noise(history, course, curve, measure)
        label = run_label(index)
        sides.append(
            ComparedRun(label, history, facts, course, derived[index], curve, noise, shared, counts[index])
        )
    return sides, measure


def _curves(
    runs: Sequence[tuple[RunLog, Facts]], courses: Sequence[Trajectory], derived: Sequence[DerivedMetrics]
) -> tuple[LossKind, list[LossCurve]]:
    parts = [(*run, course, more) for run, course, more in zip(runs, courses, derived, strict=True)]
    validation = [validation_curve(history, course, facts, more) for history, facts, course, more in parts]
    if all(len(curve) for curve in validation):
        return "validation", validation
    training = [training_curve(history, course, facts, more) for history, facts, course, more in parts]
    return ("training", training) if all(len(curve) for curve in training) else ("validation", validation)


def _share_eval_tokens(histories: Sequence[RunLog]) -> bool:
    """Whether all evaluate the very same tokens every time, as GlassGPT does. Then what is special about
    these is in all of the losses, and their differences are surer than each loss by itself."""
    hashes = {str(history.setup.data.get("hash") or "") for history in histories}
    evaluated = {tokens_per_eval(history) for history in histories}
    ours = all(uses_fixed_eval_tokens(history) for history in histories)
    return ours and len(hashes) == 1 and "" not in hashes and len(evaluated) == 1 and None not in evaluated


def _noise(history: RunLog, course: Trajectory, curve: LossCurve, measure: LossKind) -> EvalNoise | None:
    if measure == "training":
        return None if curve.point_std is None else EvalNoise(curve.point_std, "scatter")
    return estimate_eval_noise(history, course.evals, course.finite_losses()[1])


def safe_ratio(over: float | None, under: float | None) -> float | None:
    """None where either is unknown or nothing to divide by."""
    if over is None or not under:
        return None
    quotient = over / under
    return quotient if math.isfinite(quotient) and quotient > 0 else None
