"""Where the time of a run went, over its iterations. How much of it is what: runs/time_split.py."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from glassgpt.runs.analysis import Analysis
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
    stall_s: Floats  # that no line explains
    startup_s: Floats
    is_complete: bool  # False: the log has evaluations or saves without their time

    @property
    def total_s(self) -> float:
        return float((self.train_s + self.eval_and_save_s + self.stall_s + self.startup_s).sum())


def build_timeline(run_log: RunLog, facts: Facts) -> Timeline | None:
    """None if the log does not say how long its iterations took."""
    steps, split = run_log.steps, Analysis(run_log).time_split
    if len(steps) < 2 or split is None or not math.isfinite(split.total_s):
        return None
    first_iteration, width, count = _choose_bins(run_log, facts)
    # A line every ten iterations stands for the nine before it too: then a bin ends with its line.
    offset = 0 if facts.log_interval == 1 else 1

    def seconds_by_bin(values_ms: Floats, iterations: Ints = steps.iteration) -> Floats:
        index = np.clip((iterations - first_iteration - offset) // width, 0, count - 1)
        return np.bincount(index, weights=values_ms, minlength=count).astype(float) / 1000

    startup_s = seconds_by_bin(split.startup_ms)
    if run_log.ledger and len(run_log.segments) == 1:
        startup_s[0] += run_log.ledger.get("startup", 0.0) + run_log.ledger.get("compile", 0.0)
    elif run_log.ledger:  # the start-up of each process, before its first iteration
        process_startup_s = np.array([segment.startup_s or 0.0 for segment in run_log.segments])
        startup_s += seconds_by_bin(1000 * process_startup_s, run_log.process_start_iterations() + offset)
    return Timeline(
        bin_start=first_iteration + width * np.arange(count),
        iterations_per_bin=width,
        train_s=seconds_by_bin(split.train_ms),
        eval_and_save_s=seconds_by_bin(split.pause_ms)
        + seconds_by_bin(split.apart_ms, split.apart_iteration),
        stall_s=seconds_by_bin(split.stall_ms),
        startup_s=startup_s,
        is_complete=split.is_complete,
    )


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
