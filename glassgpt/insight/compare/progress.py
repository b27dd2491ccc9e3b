"""How far a run had come by iterations, tokens, time and arithmetic, and what its loss was there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from glassgpt.insight.compare.derived import Derived
from glassgpt.insight.facts import Facts
from glassgpt.insight.history import Bools, Floats, History, Ints

Axis = Literal["iterations", "tokens", "time", "flops"]
AXES: tuple[Axis, ...] = ("iterations", "tokens", "time", "flops")

_BUCKETS = 60  # points of a curve made of training losses


@dataclass(frozen=True)
class Progress:
    """Losses in the order of training, and where on each axis they were measured."""

    losses: Floats
    iterations: Ints
    along: dict[Axis, Floats]  # an axis that the log cannot support is missing
    scatter: float | None = None  # of one point, for training losses

    def __len__(self) -> int:
        return len(self.losses)


def validation_progress(history: History, facts: Facts, derived: Derived) -> Progress:
    """The evaluations that the run ended up with: what a resume or restart made void is left out."""
    numbered = [
        (done.iteration, done.val_loss, done.segment)
        for done in history.evals
        if done.iteration is not None and done.val_loss is not None and np.isfinite(done.val_loss)
    ]
    iterations = np.array([row[0] for row in numbered], dtype=np.int64)
    losses = np.array([row[1] for row in numbered], dtype=np.float64)
    segments = np.array([row[2] for row in numbered], dtype=np.int64)
    kept = _lasting(iterations)
    return _progress(history, facts, derived, iterations[kept], losses[kept], segments[kept])


def training_progress(history: History, facts: Facts, derived: Derived) -> Progress:
    """Training losses, averaged over stretches of the run: one batch by itself says little."""
    steps = history.steps
    kept = np.flatnonzero(_lasting(steps.iteration) & history.numbered)
    kept = kept[steps.has_loss[kept] & np.isfinite(steps.loss[kept])]
    parts = [part for part in np.array_split(kept, min(_BUCKETS, len(kept) // 5 or 1)) if len(part)]
    iterations = np.array([round(float(np.mean(steps.iteration[part]))) for part in parts], dtype=np.int64)
    losses = np.array([float(np.mean(steps.loss[part])) for part in parts], dtype=np.float64)
    segments = np.array([steps.segment[part[-1]] for part in parts], dtype=np.int64)
    progress = _progress(history, facts, derived, iterations, losses, segments)
    last = parts[-1] if parts else np.array([], dtype=np.int64)
    if len(last) < 3:
        return progress
    scatter = float(np.std(steps.loss[last], ddof=1)) / float(np.sqrt(len(last)))
    return Progress(progress.losses, progress.iterations, progress.along, scatter)


def _lasting(iterations: Ints) -> Bools:
    """True where nothing later has the same iteration or an earlier one."""
    if not len(iterations):
        return np.zeros(0, dtype=bool)
    later = np.full(len(iterations), np.iinfo(np.int64).max)
    later[:-1] = np.minimum.accumulate(iterations[::-1])[::-1][1:]
    kept: Bools = iterations < later
    return kept


def _progress(
    history: History, facts: Facts, derived: Derived, iterations: Ints, losses: Floats, segments: Ints
) -> Progress:
    along: dict[Axis, Floats] = {"iterations": iterations.astype(np.float64)}
    tokens, flops = derived.tokens_per_iteration, derived.size.flops_per_token
    if tokens:
        along["tokens"] = along["iterations"] * tokens
        if flops:
            along["flops"] = along["tokens"] * flops
    seconds = _seconds_at(history, facts, segments, iterations)
    if seconds is not None:
        along["time"] = seconds
    return Progress(losses, iterations, along)


def _seconds_at(history: History, facts: Facts, segments: Ints, iterations: Ints) -> Floats | None:
    """Seconds from the start of the log to those iterations: logged times, the unlogged ones at the usual."""
    steps, steady = history.steps, facts.steady_ms
    if steady is None or not len(steps) or not len(iterations) or not _begins_at_the_start(history):
        return None
    ms = np.where(np.isfinite(steps.ms), steps.ms, steady)
    gaps = np.diff(steps.iteration)
    unlogged = np.where(steps.segment[1:] == steps.segment[:-1], np.maximum(gaps - 1, 0), 0)
    ms[1:] += unlogged * steady
    elapsed = np.cumsum(ms) / 1000
    places = _places(history, steps.segment, steps.iteration)
    order = np.argsort(places, kind="stable")
    wanted = _places(history, segments, iterations)
    seconds = np.interp(wanted, places[order], elapsed[order])
    past_the_log = np.maximum(iterations - steps.iteration[-1], 0) * (segments == steps.segment[-1])
    seconds += past_the_log * steady / 1000
    seconds += _evaluation_seconds(history, wanted)
    rest = (facts.estimated_total_s or 0.0) - float(elapsed[-1]) - _all_evaluation_seconds(history)
    # What the times of iterations do not hold, and the whole does, is mostly what comes before the first.
    return np.asarray(seconds + max(0.0, rest) * (not history.format.times_hold_eval), dtype=np.float64)


def _begins_at_the_start(history: History) -> bool:
    """A log whose beginning is missing does not say how long that took."""
    first = int(history.steps.iteration[0])
    gaps = np.diff(history.steps.iteration[:50])
    usual = int(np.median(gaps[gaps > 0])) if np.any(gaps > 0) else 1
    return first <= history.format.first_iteration + usual


def _places(history: History, segments: Ints, iterations: Ints) -> Floats:
    """One growing number for each iteration of each process."""
    stride = float(history.steps.iteration.max(initial=0)) + 1e9
    return np.asarray(segments * stride + iterations, dtype=np.float64)


def _evaluation_seconds(history: History, wanted: Floats) -> Floats:
    """Spent evaluating up to those places, where the times of iterations leave it out."""
    if history.format.times_hold_eval:
        return np.zeros(len(wanted))
    timed = [done for done in history.evals if done.iteration is not None and done.ms]
    places = _places(
        history,
        np.array([done.segment for done in timed], dtype=np.int64),
        np.array([done.iteration for done in timed], dtype=np.int64),
    )
    spent = np.concatenate([[0.0], np.cumsum([done.ms or 0.0 for done in timed])]) / 1000
    order = np.sort(places)
    return np.asarray(spent[np.searchsorted(order, wanted, side="right")], dtype=np.float64)


def _all_evaluation_seconds(history: History) -> float:
    if history.format.times_hold_eval:
        return 0.0
    return sum(done.ms or 0.0 for done in history.evals) / 1000
