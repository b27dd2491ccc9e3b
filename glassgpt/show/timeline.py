"""Where the time of a run went: in total, and over its iterations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from glassgpt.record.ledger import PHASES
from glassgpt.runs.facts import Facts
from glassgpt.runs.run_log import Floats, Ints, RunLog

TARGET_BINS = 40
MIN_BINS, MAX_BINS = 10, 60


@dataclass(frozen=True)
class Timeline:
    """Seconds by kind, in bins of equally many iterations."""

    bin_start: Ints  # the first iteration of each bin
    iterations_per_bin: int
    train_s: Floats
    eval_and_save_s: Floats  # evaluations and checkpoints
    startup_s: Floats
    is_complete: bool  # False: the log has evaluations or saves without their time

    @property
    def total_s(self) -> float:
        return float(self.train_s.sum() + self.eval_and_save_s.sum() + self.startup_s.sum())


def build_timeline(run_log: RunLog, facts: Facts) -> Timeline | None:
    """None if the log does not say how long its iterations took."""
    steps, steady_ms = run_log.steps, facts.steady_ms
    if len(steps) < 2 or steady_ms is None or not math.isfinite(steady_ms):
        return None
    is_first = run_log.is_first_of_process()
    ms = np.where(np.isfinite(steps.ms), steps.ms, steady_ms)
    # What evaluations and saves add to the iterations that include them.
    excess_ms = np.maximum(ms - steady_ms, 0)
    eval_ms = np.where(is_first, np.minimum(excess_ms, facts.eval_overhead_ms or 0.0), excess_ms)
    pauses_ms: Floats = np.where(run_log.includes_eval(), eval_ms, 0.0)
    # A journal's ledger knows the start-up; elsewhere it is the excess of the first iteration.
    startup_ms = np.zeros(len(ms)) if run_log.ledger else np.where(is_first, excess_ms - pauses_ms, 0)
    is_interval_mean = run_log.trainer.step_time_is_interval_mean
    unlogged_ms = run_log.unlogged_before() * (ms if is_interval_mean else steady_ms)
    train_ms = ms - pauses_ms - startup_ms + unlogged_ms
    first_iteration, width, count = _choose_bins(run_log, facts)
    # A line every ten iterations stands for the nine before it too: then a bin ends with its line.
    offset = 0 if facts.log_interval == 1 else 1

    def seconds_by_bin(values_ms: Floats, iterations: Ints = steps.iteration) -> Floats:
        index = np.clip((iterations - first_iteration - offset) // width, 0, count - 1)
        return np.bincount(index, weights=values_ms, minlength=count).astype(float) / 1000

    startup_s = seconds_by_bin(startup_ms)
    if run_log.ledger and len(run_log.segments) == 1:
        startup_s[0] += run_log.ledger.get("startup", 0.0) + run_log.ledger.get("compile", 0.0)
    elif run_log.ledger:  # the start-up of each process, before its first iteration
        process_startup_s = np.array([segment.startup_s or 0.0 for segment in run_log.segments])
        startup_s += seconds_by_bin(1000 * process_startup_s, run_log.process_start_iterations() + offset)
    timed_iterations, timed_ms = _separately_timed_pauses(run_log)
    return Timeline(
        bin_start=first_iteration + width * np.arange(count),
        iterations_per_bin=width,
        train_s=seconds_by_bin(train_ms),
        eval_and_save_s=seconds_by_bin(pauses_ms) + seconds_by_bin(timed_ms, timed_iterations),
        startup_s=startup_s,
        is_complete=run_log.trainer.step_time_includes_eval
        or all(evaluation.ms is not None for evaluation in run_log.evals),
    )


def seconds_by_phase(run_log: RunLog, timeline: Timeline | None) -> dict[str, float]:
    """Seconds by phase of the ledger, or without one by what a timeline distinguishes; empty if unknown."""
    seconds_by_name: dict[str, float] = {}
    if run_log.ledger is not None:
        seconds_by_name = dict.fromkeys(PHASES, 0.0)
        for phase, seconds in run_log.ledger.items():
            if math.isfinite(seconds) and seconds > 0:
                # Phases that this version does not know are counted as `other`.
                seconds_by_name[phase if phase in PHASES else "other"] += seconds
    elif timeline is not None and timeline.is_complete:
        seconds_by_name = {
            "startup": float(timeline.startup_s.sum()),
            "train": float(timeline.train_s.sum()),
            "pauses": float(timeline.eval_and_save_s.sum()),
        }
    return {phase: seconds for phase, seconds in seconds_by_name.items() if seconds > 0}


def _separately_timed_pauses(run_log: RunLog) -> tuple[Ints, Floats]:
    """Evaluations and saves that the log times separately from its steps: iteration, ms."""
    if run_log.trainer.step_time_includes_eval:
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    durations = [(evaluation.iteration, evaluation.ms) for evaluation in run_log.evals]
    durations += [(save.iteration, save.blocking_ms) for save in run_log.checkpoints]
    timed = [
        (iteration, ms)
        for iteration, ms in durations
        if iteration is not None and ms is not None and math.isfinite(ms)
    ]
    iterations = np.array([iteration for iteration, _ in timed], dtype=np.int64)
    return iterations, np.array([ms for _, ms in timed], dtype=float)


def _choose_bins(run_log: RunLog, facts: Facts) -> tuple[int, int, int]:
    """First iteration, width, and number of bins.

    A bin holds a whole number of evaluations where these come at equal intervals and often enough, else of
    log lines. Otherwise bars would differ only because some of them hold one evaluation more.
    """
    iterations = run_log.steps.iteration
    first = int(iterations.min())
    if run_log.trainer.lines_count_updates:
        first = min(first, int(run_log.process_start_iterations().min()))
    span = int(iterations.max()) - first
    eval_iterations = sorted(set(facts.eval_steps or ()))
    eval_intervals = {later - earlier for earlier, later in pairwise(eval_iterations)}
    if len(eval_intervals) == 1 and span >= MIN_BINS * min(eval_intervals):
        unit = min(eval_intervals)
    else:
        log_interval = max(facts.log_interval or 1, 1)
        unit = max(log_interval, math.ceil(span / TARGET_BINS / log_interval) * log_interval)
    width = unit if span <= MAX_BINS * unit else math.ceil(span / TARGET_BINS / unit) * unit
    logs_every_iteration = facts.log_interval == 1
    return first, width, max(1, math.ceil((span + logs_every_iteration) / width))
