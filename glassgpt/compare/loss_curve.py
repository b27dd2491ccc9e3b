"""How far a run had come by iterations, tokens, time and arithmetic, and what its loss was there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from glassgpt.compare.derived import DerivedMetrics, finite_positive
from glassgpt.runs.facts import Facts
from glassgpt.runs.run_log import Floats, Ints, RunLog
from glassgpt.runs.trajectory import Trajectory

Axis = Literal["iterations", "tokens", "time", "flops"]
AXES: tuple[Axis, ...] = ("iterations", "tokens", "time", "flops")

_MAX_ELAPSED_S = 1e12  # seconds; what adds up to more was not measured
_TRAINING_CURVE_POINTS = 60  # points of a curve made of training losses


@dataclass(frozen=True)
class LossCurve:
    """Losses in the order of training, and where on each axis they were measured."""

    losses: Floats
    iterations: Ints
    positions: dict[Axis, Floats]  # an axis that the log cannot support is missing
    point_std: float | None = None  # of one point, for training losses

    def __len__(self) -> int:
        return len(self.losses)


def validation_curve(history: RunLog, course: Trajectory, facts: Facts, derived: DerivedMetrics) -> LossCurve:
    """The evaluations that the run ended up with: what a resume made void is left out."""
    iterations = np.array([done.iteration for done in course.evals], dtype=np.int64)
    losses = np.array([done.val_loss for done in course.evals], dtype=np.float64)
    segments = np.array([done.segment for done in course.evals], dtype=np.int64)
    return _build_curve(history, facts, derived, iterations, losses, segments)


def training_curve(history: RunLog, course: Trajectory, facts: Facts, derived: DerivedMetrics) -> LossCurve:
    """Training losses, averaged over stretches of the run: one batch by itself says little."""
    steps = history.steps
    kept = course.rows[np.isfinite(course.loss) & history.numbered]
    parts = [
        part for part in np.array_split(kept, min(_TRAINING_CURVE_POINTS, len(kept) // 5 or 1)) if len(part)
    ]
    iterations = np.array([round(float(np.mean(steps.iteration[part]))) for part in parts], dtype=np.int64)
    losses = np.array([float(np.mean(steps.loss[part])) for part in parts], dtype=np.float64)
    segments = np.array([steps.segment[part[-1]] for part in parts], dtype=np.int64)
    finite = np.isfinite(losses)
    progress = _build_curve(history, facts, derived, iterations[finite], losses[finite], segments[finite])
    last = parts[-1] if parts else np.array([], dtype=np.int64)
    if len(last) < 3:
        return progress
    scatter = finite_positive(float(np.std(steps.loss[last], ddof=1)) / float(np.sqrt(len(last))))
    return LossCurve(progress.losses, progress.iterations, progress.positions, scatter)


def _build_curve(
    history: RunLog, facts: Facts, derived: DerivedMetrics, iterations: Ints, losses: Floats, segments: Ints
) -> LossCurve:
    along: dict[Axis, Floats] = {"iterations": iterations.astype(np.float64)}
    tokens, flops = derived.tokens_per_iteration, derived.size.flops_per_token
    seen = history.tokens_seen_at(iterations, tokens) if tokens else None
    if seen is not None:
        along["tokens"] = seen
        if flops:
            along["flops"] = seen * flops
    seconds = _seconds_at(history, facts, segments, iterations)
    if seconds is not None and (seconds < _MAX_ELAPSED_S).all() and (np.diff(seconds) >= 0).all():
        along["time"] = seconds
    return LossCurve(losses, iterations, along)


def _seconds_at(history: RunLog, facts: Facts, segments: Ints, iterations: Ints) -> Floats | None:
    """Seconds from the start of the log to those iterations: logged times, the unlogged ones at the usual."""
    steps, steady = history.steps, finite_positive(facts.steady_ms)
    if steady is None or not len(steps) or not len(iterations) or not _begins_at_the_start(history):
        return None
    places, elapsed = _elapsed(history, steady)
    order = np.argsort(places, kind="stable")
    wanted = _order_keys(history, segments, iterations)
    seconds = np.interp(wanted, places[order], elapsed[order])
    past_the_log = np.maximum(iterations - steps.iteration[-1], 0) * (segments == steps.segment[-1])
    seconds += past_the_log * steady / 1000
    seconds += _evaluation_seconds(history, wanted)
    rest = (facts.estimated_total_s or 0.0) - float(elapsed[-1]) - _all_evaluation_seconds(history)
    if history.trainer.step_time_includes_eval:
        return np.asarray(seconds, dtype=np.float64)
    # What the times of iterations do not hold, and the whole does, is mostly what comes before the first; but
    # not the start-ups of later processes.
    startups = np.array([part.startup_s or 0.0 for part in history.segments])
    later = startups.sum() - np.cumsum(startups)
    return np.asarray(seconds + np.maximum(0.0, rest - later[segments]), dtype=np.float64)


def _elapsed(history: RunLog, steady: float) -> tuple[Floats, Floats]:
    """Places of the log, and the seconds of iterations up to each."""
    steps = history.steps
    ms = np.where(np.isfinite(steps.ms) & (steps.ms >= 0), steps.ms, steady)
    # A journal's step time is the mean since the line before; a console's is that of one iteration.
    ms += history.unlogged_before() * (ms if history.ledger else steady)
    elapsed = np.cumsum(ms) / 1000
    places = _order_keys(history, steps.segment, steps.iteration)
    if not history.ledger:
        return places, elapsed
    # A journal tells where each process began, which is before its first line.
    begins = np.concatenate(([True], np.diff(steps.segment) != 0))
    processes = steps.segment[begins]
    first = _order_keys(history, processes, history.process_start_iterations()[processes])
    return np.concatenate((first, places)), np.concatenate(((elapsed - ms / 1000)[begins], elapsed))


def _begins_at_the_start(history: RunLog) -> bool:
    """A log whose beginning is missing does not say how long that took."""
    first = int(history.steps.iteration[0])
    gaps = np.diff(history.steps.iteration[:50])
    usual = int(np.median(gaps[gaps > 0])) if np.any(gaps > 0) else 1
    return first <= history.trainer.first_iteration + usual


def _order_keys(history: RunLog, segments: Ints, iterations: Ints) -> Floats:
    """One growing number for each iteration of each process."""
    stride = float(history.steps.iteration.max(initial=0)) + 1e9
    return np.asarray(segments * stride + iterations, dtype=np.float64)


def _evaluation_seconds(history: RunLog, wanted: Floats) -> Floats:
    """Spent evaluating up to those places, where the times of iterations leave it out."""
    if history.trainer.step_time_includes_eval:
        return np.zeros(len(wanted))
    timed = [done for done in history.evals if done.iteration is not None and done.ms]
    places = _order_keys(
        history,
        np.array([done.segment for done in timed], dtype=np.int64),
        np.array([done.iteration for done in timed], dtype=np.int64),
    )
    spent = np.concatenate([[0.0], np.cumsum([done.ms or 0.0 for done in timed])]) / 1000
    order = np.sort(places)
    return np.asarray(spent[np.searchsorted(order, wanted, side="right")], dtype=np.float64)


def _all_evaluation_seconds(history: RunLog) -> float:
    if history.trainer.step_time_includes_eval:
        return 0.0
    return sum(done.ms or 0.0 for done in history.evals) / 1000
