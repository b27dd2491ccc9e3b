"""Where the time of a run went: in total, and over its iterations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from glassgpt.record.clock import PHASES
from glassgpt.runs.facts import Facts
from glassgpt.runs.run_log import Bools, Floats, Ints, RunLog

TARGET_BARS = 40  # about so many
MIN_BARS, MAX_BARS = 10, 60


@dataclass(frozen=True)
class Timeline:
    """Seconds by kind, in stretches of equally many iterations."""

    bin_start: Ints  # the first iteration of each stretch
    iterations_per_bin: int  # iterations in a stretch
    train_s: Floats
    eval_and_save_s: Floats  # evaluations and checkpoints
    startup_s: Floats
    is_complete: bool  # False: the log has evaluations or saves whose time it does not tell

    @property
    def total_s(self) -> float:
        return float(self.train_s.sum() + self.eval_and_save_s.sum() + self.startup_s.sum())


def build_timeline(history: RunLog, facts: Facts) -> Timeline | None:
    """None where the log does not say how long its iterations took."""
    steps, steady = history.steps, facts.steady_ms
    if len(steps) < 2 or steady is None or not math.isfinite(steady):
        return None
    first = history.is_first_of_process()
    ms = np.where(np.isfinite(steps.ms), steps.ms, steady)
    pauses = _pauses_ms(history, facts, ms, first)
    # A journal's ledger knows the start-up; elsewhere it is what the first iteration took too long.
    startup = np.zeros(len(ms)) if history.ledger else np.where(first, np.maximum(ms - steady, 0) - pauses, 0)
    # A journal's step time is the mean since the line before; a console's is that of one iteration.
    train = ms - pauses - startup + history.unlogged_before() * (ms if history.ledger else steady)
    lowest, width, count = _stretches(history, facts)
    # A line every ten iterations stands for the nine before it too: then a stretch ends with its line.
    late = 0 if facts.log_interval == 1 else 1

    def by_stretch(values: Floats, iterations: Ints = steps.iteration) -> Floats:
        place = np.clip((iterations - lowest - late) // width, 0, count - 1)
        return np.bincount(place, weights=values, minlength=count).astype(float) / 1000

    seconds = by_stretch(startup)
    if history.ledger and len(history.segments) == 1:
        seconds[0] += history.ledger.get("startup", 0.0) + history.ledger.get("compile", 0.0)
    elif history.ledger:
        spent = np.array([part.startup_s or 0.0 for part in history.segments])
        seconds += by_stretch(
            1000 * spent, history.process_start_iterations() + late
        )  # before a process's first iteration
    at, waited = _timed_pauses(history)
    return Timeline(
        bin_start=lowest + width * np.arange(count),
        iterations_per_bin=width,
        train_s=by_stretch(train),
        eval_and_save_s=by_stretch(pauses) + by_stretch(waited, at),
        startup_s=seconds,
        is_complete=history.trainer.step_time_includes_eval
        or all(done.ms is not None for done in history.evals),
    )


def seconds_by_phase(history: RunLog, timeline: Timeline | None) -> dict[str, float]:
    """Seconds by phase of the ledger, or by what can be told apart without one; empty where nothing can."""
    if history.ledger is not None:
        return merge_unknown_phases(history.ledger)
    if timeline is None or not timeline.is_complete:
        return {}
    sums = {
        "startup": float(timeline.startup_s.sum()),
        "train": float(timeline.train_s.sum()),
        "pauses": float(timeline.eval_and_save_s.sum()),
    }
    return {name: seconds for name, seconds in sums.items() if seconds > 0}


def merge_unknown_phases(ledger: Mapping[str, float]) -> dict[str, float]:
    """In the ledger's order; what it does not know belongs to `other`."""
    seconds = dict.fromkeys(PHASES, 0.0)
    for name, value in ledger.items():
        if math.isfinite(value) and value > 0:
            seconds[name if name in seconds else "other"] += value
    return {name: value for name, value in seconds.items() if value > 0}


def _pauses_ms(history: RunLog, facts: Facts, ms: Floats, first: Bools) -> Floats:
    """What evaluations and saves add to the iterations that hold them."""
    beyond = np.maximum(ms - (facts.steady_ms or 0.0), 0)
    beyond = np.where(first, np.minimum(beyond, facts.eval_overhead_ms or 0.0), beyond)
    result: Floats = np.where(history.includes_eval(), beyond, 0.0)
    return result


def _timed_pauses(history: RunLog) -> tuple[Ints, Floats]:
    """Evaluations and saves that the log times by themselves: iteration, ms."""
    if history.trainer.step_time_includes_eval:
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    durations = [(done.iteration, done.ms) for done in history.evals]
    durations += [(done.iteration, done.blocking_ms) for done in history.saves]
    timed = [
        (iteration, ms)
        for iteration, ms in durations
        if iteration is not None and ms is not None and math.isfinite(ms)
    ]
    at = np.array([iteration for iteration, _ in timed], dtype=np.int64)
    return at, np.array([ms for _, ms in timed], dtype=float)


def _stretches(history: RunLog, facts: Facts) -> tuple[int, int, int]:
    """First iteration, width, number."""
    iterations = history.steps.iteration
    known = np.concatenate((iterations, history.process_start_iterations())) if history.ledger else iterations
    lowest = int(known.min())
    span = int(iterations.max()) - lowest
    interval = _regular_interval(facts, span)
    width = interval if span <= MAX_BARS * interval else math.ceil(span / TARGET_BARS / interval) * interval
    every_line = facts.log_interval == 1
    return lowest, width, max(1, math.ceil((span + every_line) / width))


def _regular_interval(facts: Facts, span: int) -> int:
    """What a bar should hold a whole number of, lest it be higher than its neighbour for nothing: evaluations
    where they come at equal distances and often enough, else lines."""
    line = max(facts.log_interval or 1, 1)
    evals = sorted(set(facts.eval_steps or ()))
    distances = {later - earlier for earlier, later in pairwise(evals)}
    if len(distances) == 1 and span >= MIN_BARS * min(distances):
        return min(distances)
    return max(line, math.ceil(span / TARGET_BARS / line) * line)
