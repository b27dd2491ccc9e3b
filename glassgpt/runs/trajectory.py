"""The course that a run took: its iterations and evaluations in order, without what a resume did over again.

A log can hold several runs, and a run several processes. Findings about learning look at the longest run,
along the line that led to its last weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.runs.run_log import Floats, Ints, LoggedCheckpoint, LoggedEvaluation, RunLog


@dataclass(frozen=True)
class Trajectory:
    segments: tuple[int, ...]  # indices into History.segments
    rows: Ints  # of History.steps, that count
    iteration: Ints  # of these rows
    loss: Floats  # NaN: said to be so, or not said
    ms: Floats
    evals: tuple[LoggedEvaluation, ...]  # with an iteration and a finite validation loss, in order
    saves: tuple[LoggedCheckpoint, ...]  # with an iteration, in order

    @property
    def last_iteration(self) -> int | None:
        """The last iteration that is known of."""
        ends = [int(self.iteration[-1])] if len(self.iteration) else []
        ends += [done.iteration for done in self.evals[-1:] if done.iteration is not None]
        return max(ends, default=None)

    def finite_losses(self) -> tuple[Ints, Floats]:
        """The finite training losses and their iterations."""
        finite = np.isfinite(self.loss)
        return self.iteration[finite], self.loss[finite]

    def val_curve(self) -> tuple[Floats, Floats]:
        at = np.array([done.iteration for done in self.evals], dtype=float)
        return at, np.array([done.val_loss for done in self.evals], dtype=float)


def trajectory_of(history: RunLog) -> Trajectory:
    chain = _longest_run(history)
    limits = _limits(history, chain)
    steps = history.steps
    limit_of = np.full(len(history.segments), -1, dtype=np.int64)  # -1: not part of this run
    for segment, limit in limits.items():
        limit_of[segment] = limit
    rows = np.flatnonzero(steps.iteration < limit_of[steps.segment]) if len(steps) else np.arange(0)
    return Trajectory(
        segments=chain,
        rows=rows,
        iteration=steps.iteration[rows],
        loss=np.where(steps.has_loss[rows], steps.loss[rows], np.nan),
        ms=steps.ms[rows],
        evals=_evals(history, limits),
        saves=tuple(
            save
            for save in history.saves
            if save.iteration is not None and save.iteration <= limits.get(save.segment, -1)
        ),
    )


def continues_previous(history: RunLog, segment: int) -> bool:
    """Whether this process went on with what the one before it did, rather than starting anew."""
    if segment == 0:
        return False
    here = history.segments[segment]
    begin = here.first_iteration
    counts_on = begin is not None and begin > history.trainer.first_iteration and history.numbered
    return here.resumed or counts_on


def _longest_run(history: RunLog) -> tuple[int, ...]:
    """Segments that belong together: the ones with the most logged iterations, the latest of equals."""
    count = len(history.segments)
    if not count:
        return ()
    sizes = np.bincount(history.steps.segment, minlength=count) if len(history.steps) else np.zeros(count)
    runs: list[list[int]] = []
    for segment in range(count):
        if continues_previous(history, segment) and runs:
            runs[-1].append(segment)
        else:
            runs.append([segment])
    best = max(enumerate(runs), key=lambda run: (sum(sizes[part] for part in run[1]), run[0]))
    return tuple(best[1])


def _limits(history: RunLog, chain: tuple[int, ...]) -> dict[int, int]:
    """The iteration at which a later process took over, per segment; past it nothing of this one counts."""
    limit = int(np.iinfo(np.int64).max)
    limits = {}
    for segment in reversed(chain):
        limits[segment] = limit
        begin = history.segments[segment].first_iteration
        if begin is not None:
            limit = min(limit, begin)
    return limits


def _evals(history: RunLog, limits: dict[int, int]) -> tuple[LoggedEvaluation, ...]:
    """One per iteration: a resume evaluates again where its checkpoint was made, and the last word counts."""
    kept: dict[int, LoggedEvaluation] = {}
    for done in history.evals:
        known = done.iteration is not None and done.val_loss is not None and math.isfinite(done.val_loss)
        if known and done.iteration is not None and done.iteration <= limits.get(done.segment, -1):
            kept[done.iteration] = done
    return tuple(kept[iteration] for iteration in sorted(kept))


# --- time ---


def seconds_between(course: Trajectory, after: int, until: int, steady_ms: float | None) -> float | None:
    """Logged times of the iterations past `after`, up to `until`; unlogged ones count as steady ones."""
    if steady_ms is None or not math.isfinite(steady_ms):
        return None
    inside = (course.iteration > after) & (course.iteration <= until)
    ms = course.ms[inside]
    logged = np.isfinite(ms)
    unlogged = max(0, until - after - int(logged.sum()))
    with np.errstate(over="ignore"):  # times of 1e308 have been seen
        seconds = (float(ms[logged].sum()) + unlogged * steady_ms) / 1000
    return seconds if math.isfinite(seconds) else None


# --- settings ---


def numeric_setting(history: RunLog, name: str) -> float | None:
    """A setting that is a finite number, or None."""
    value = history.setup.settings.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def positive_int_setting(history: RunLog, name: str) -> int | None:
    """A setting that is a positive whole number, or None."""
    value = history.setup.settings.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def planned_end_iteration(history: RunLog) -> int | None:
    """The last iteration of the run as planned, where that is known."""
    if history.setup.planned_iterations:
        return history.setup.planned_iterations
    wanted = numeric_setting(history, "max_iters")
    return int(wanted) if wanted and wanted > 0 else None


def val_metric_name(history: RunLog) -> str:
    """As trainers print it."""
    return "val loss" if history.val_metric == "loss" else "val bpb"


def takes_known_settings(history: RunLog) -> bool:
    """Whether the run has the settings that advice names. Evaluations alone, `step 500: train loss 1.9, val
    loss 2.0`, are also what loops print that have other settings, and no schedule."""
    if not history.trainer.takes_known_settings or not history.trainer.eval_line_is_common:
        return history.trainer.takes_known_settings
    return bool(np.isfinite(history.steps.ms).any()) or history.setup.tokens_per_iteration is not None
