"""How far a run is, what it is doing, and when it will be done: the page, `glass watch` and the list of runs
ask it.

    progress = progress_of(Analysis(run_log), run_log, now=time.time(), changed_at=path.stat().st_mtime)
    progress.state, progress.done, progress.planned, progress.eta_s
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Literal

from glassgpt.estimate.step_timing import eta_s, remaining_work
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.exit_status import infer_exit_status, says_it_is_over
from glassgpt.runs.run_log import ExitStatus, RunLog
from glassgpt.runs.trajectory import last_iteration_done, numeric_setting, planned_end_iteration

RunState = Literal["starting", "training", "evaluating", "stalled"] | ExitStatus

MIN_STALL_S = 30.0  # without a new line
MIN_STALL_GAPS = 10.0  # usual distances between two lines, without a new one
MIN_GROWTH_S = 180.0  # since a foreign log last grew: until then its trainer counts as running
_RECENT = 20  # evaluations and checkpoints, whose usual cost is meant


@dataclass(frozen=True)
class Progress:
    state: RunState
    done: int | None  # the last iteration; None: there is none yet
    planned: int | None  # the last one planned, where that is known
    eta_s: float | None  # until the end, with evaluations and checkpoints
    loss: float | None  # the latest
    quiet_s: float | None = None  # since the last line, of a run that is not over
    usual_gap_s: float | None = None  # between two lines
    counts_evaluations: bool = False  # in eta_s

    @property
    def is_over(self) -> bool:
        return self.state in ("finished", "interrupted", "crashed", "oom", "cut")

    @property
    def share(self) -> float | None:
        if self.done is None or not self.planned:
            return None
        return min(1.0, max(0.0, self.done / self.planned))


def progress_of(run: Analysis, run_log: RunLog, now: float, changed_at: float) -> Progress:
    """`run` may be of an earlier snapshot than `run_log`: usual times change little, and are costly to find.

    `now`, `changed_at`: seconds since the epoch; when the last line was written."""
    done, planned = last_iteration_done(run_log), planned_end_iteration(run_log)
    losses = run_log.steps.loss[run_log.steps.has_loss]
    progress = Progress(
        state=infer_exit_status(run_log) or "training",
        done=done,
        planned=planned,
        eta_s=None,
        loss=float(losses[-1]) if len(losses) else None,
    )
    if not run_log.live:
        return progress
    costs = _usual_costs(run)
    gap_s = line_gap_s(run)
    quiet_s = max(0.0, now - changed_at)
    # An evaluation and a checkpoint come between two lines, too.
    pauses_s = costs.eval_s + costs.save_s
    stalls_after_s = math.inf if gap_s is None else max(MIN_STALL_S, MIN_STALL_GAPS * gap_s + 3 * pauses_s)
    state: RunState = "training"
    if not len(run_log.steps):
        state = "starting"
    elif quiet_s > stalls_after_s:
        state = "stalled"
    elif _is_evaluating(run_log):
        state = "evaluating"
    left_s = _remaining_s(run_log, costs, done, planned)
    if left_s is not None and state != "stalled":
        left_s = max(0.0, left_s - quiet_s)  # it went on since that line
    return replace(
        progress,
        state=state,
        eta_s=left_s,
        quiet_s=quiet_s,
        usual_gap_s=gap_s,
        counts_evaluations=costs.eval_s > 0,
    )


def is_growing(run: Analysis | None, run_log: RunLog | None, now: float, changed_at: float) -> bool:
    """Whether the trainer that writes this log is still at work, as far as can be told: the log grew a short
    while ago, and nothing in it says that the run is over."""
    if run_log is not None and says_it_is_over(run_log):
        return False
    gap_s = None if run is None else line_gap_s(run)
    pauses_s = 0.0 if run is None else _usual_costs(run).eval_s
    return now - changed_at < max(MIN_GROWTH_S, 2 * MIN_STALL_GAPS * (gap_s or 0.0) + 5 * pauses_s)


def line_gap_s(run: Analysis) -> float | None:
    """The usual time between two lines, without evaluations."""
    steady_ms = run.regimes[-1].steady_ms if run.regimes else None
    if steady_ms is None:
        return None
    return steady_ms / 1000 * (run.log.log_interval() or 1)


@dataclass(frozen=True)
class _UsualCosts:
    """Seconds of an update, an evaluation and a checkpoint, and how often the last two come; 0: not known."""

    step_s: float | None
    eval_s: float
    eval_interval: int
    save_s: float
    save_interval: int


def _usual_costs(run: Analysis) -> _UsualCosts:
    """Of the present regime. Where step times include evaluations, their cost includes that of saving."""
    log = run.log
    step_s = run.regimes[-1].steady_ms / 1000 if run.regimes else None
    eval_at = [one.iteration for one in run.trajectory.evals if one.iteration is not None]
    save_at = [one.iteration for one in run.trajectory.checkpoints if one.iteration is not None]
    save_s = 0.0
    if log.trainer.step_time_includes_eval:
        eval_s = (run.eval_overhead_typical_ms or 0.0) / 1000
    else:
        eval_ms = [one.ms for one in log.evals[-_RECENT:] if one.ms is not None]
        save_ms = [one.blocking_ms for one in log.checkpoints[-_RECENT:] if one.blocking_ms is not None]
        eval_s, save_s = (median(times) / 1000 if times else 0.0 for times in (eval_ms, save_ms))
    eval_interval = _interval(log, "eval_interval", eval_at)
    save_interval = _interval(log, "checkpoint_interval", save_at) or eval_interval
    return _UsualCosts(step_s, max(0.0, eval_s), eval_interval, max(0.0, save_s), save_interval)


def _interval(run_log: RunLog, setting: str, at: list[int]) -> int:
    """As set, else the most usual distance; 0: not known."""
    if interval := numeric_setting(run_log, setting):
        return max(0, int(interval))
    distances = [later - earlier for earlier, later in pairwise(at[-_RECENT:]) if later > earlier]
    return int(median(distances)) if distances else 0


def _remaining_s(run_log: RunLog, costs: _UsualCosts, done: int | None, planned: int | None) -> float | None:
    if run_log.setup.budget_s and run_log.setup.remaining_s is not None:
        return run_log.setup.remaining_s
    if done is None or planned is None or costs.step_s is None or not run_log.has_iteration_numbers:
        return None
    never = planned + 1  # nothing is known of the interval: only the last one is sure
    work = remaining_work(
        done,
        planned,
        costs.eval_interval or never,
        costs.save_interval or never,
        # A step is logged before the evaluation at its iteration.
        is_evaluated=any(one.iteration == done for one in run_log.evals[-2:]),
    )
    return eta_s(work, costs.step_s, costs.eval_s, costs.save_s)


def _is_evaluating(run_log: RunLog) -> bool:
    """GlassGPT: the updates until an evaluation are done, and the evaluation is not."""
    interval = numeric_setting(run_log, "eval_interval")
    if not run_log.trainer.lines_count_updates or not interval or interval < 1 or not len(run_log.steps):
        return False
    done = int(run_log.steps.iteration[-1])
    return done % int(interval) == 0 and not any(one.iteration == done for one in run_log.evals[-2:])
