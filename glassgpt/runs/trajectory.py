"""The steps and evaluations that led to a run's last weights, in order.

A run can have several processes. A Trajectory is without the iterations that a resume repeated. Rules about
learning look only at it. Below are also the readers of a run's settings, which every rule and comparison
uses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from glassgpt.runs.run_log import Floats, Ints, LoggedCheckpoint, LoggedEvaluation, RunLog


@dataclass(frozen=True)
class Trajectory:
    segments: tuple[int, ...]  # indices into RunLog.segments
    rows: Ints  # indices into RunLog.steps
    iteration: Ints  # of these rows, as the next two
    loss: Floats  # NaN: logged as NaN, or not in the line
    ms: Floats
    evals: tuple[LoggedEvaluation, ...]  # with an iteration and a finite validation loss, in order
    checkpoints: tuple[LoggedCheckpoint, ...]  # with an iteration, in order

    @property
    def last_iteration(self) -> int | None:
        """The iteration of the last step or evaluation."""
        ends = [int(self.iteration[-1])] if len(self.iteration) else []
        ends += [evaluation.iteration for evaluation in self.evals[-1:] if evaluation.iteration is not None]
        return max(ends, default=None)

    def finite_losses(self) -> tuple[Ints, Floats]:
        """The finite training losses and their iterations."""
        return self._finite_losses

    @cached_property
    def _finite_losses(self) -> tuple[Ints, Floats]:
        finite = np.isfinite(self.loss)
        if finite.all():
            return self.iteration, self.loss  # of a million rows, copies are 16 MB
        return self.iteration[finite], self.loss[finite]

    def val_curve(self) -> tuple[Floats, Floats]:
        at = np.array([evaluation.iteration for evaluation in self.evals], dtype=float)
        return at, np.array([evaluation.val_loss for evaluation in self.evals], dtype=float)


def untrained_loss(run_log: RunLog) -> tuple[int, float] | None:
    """The first iteration and the loss of weights before any update, as far as the log shows. The mean of an
    epoch is none."""
    steps, process = run_log.steps, run_log.segments[0] if run_log.segments else None
    if process is None or process.resumed:
        return None
    states_start = run_log.trainer.lines_count_updates and process.first_iteration == 0
    if not process.has_startup and not states_start:
        return None
    if run_log.setup.settings.get("init_from", "scratch") != "scratch":
        return None
    for evaluation in run_log.evals[:1]:
        if evaluation.iteration == 0 and evaluation.val_loss is not None and run_log.val_metric == "loss":
            return (0, evaluation.val_loss) if math.isfinite(evaluation.val_loss) else None
    first = run_log.trainer.first_iteration
    if run_log.trainer.iterations_are_epochs:
        return None
    is_first = len(steps) and steps.iteration[0] <= first  # a trainer that is not known may count from 0
    has_loss = is_first and steps.has_loss[0] and math.isfinite(steps.loss[0]) and steps.loss[0] >= 0
    return (int(steps.iteration[0]), float(steps.loss[0])) if has_loss else None


def last_iteration_done(run_log: RunLog) -> int | None:
    """Of the last step or evaluation, or as a progress bar or a closing row says: lines are `log_interval`
    apart."""
    if not run_log.has_iteration_numbers:
        return None
    rows = run_log.steps
    steps = [(int(rows.iteration[-1]), int(rows.segment[-1]))] if len(rows) else []
    evals = [(one.iteration, one.segment) for one in run_log.evals[-1:] if one.iteration is not None]
    last_segment = max((segment for _, segment in (*steps, *evals)), default=0)
    ends = [at for at, segment in (*steps, *evals) if segment == last_segment]
    return max(ends + [done for done in (run_log.iterations_done,) if done is not None], default=None)


def epochs_done(run_log: RunLog) -> float | None:
    """Passes over the training data, where the log counts them."""
    counted = run_log.setup.epochs
    return (
        last_iteration_done(run_log) if counted is None and run_log.trainer.iterations_are_epochs else counted
    )


def mean_iteration_time(
    run_log: RunLog, last_iteration: int | None = None
) -> tuple[float, float, bool | None] | None:
    """Of a process that says how long it took in all: that in seconds, the mean milliseconds of an iteration,
    and whether its evaluations are in these: None where there are none. They are left out where the time of
    each is known, and predictions on test data. `last_iteration`: where the run ended, if that is known."""
    wall_s, rows = run_log.setup.wall_s, run_log.steps
    done = last_iteration_done(run_log) if last_iteration is None else last_iteration
    is_one = len(run_log.segments) == 1 and not run_log.segments[0].resumed and not run_log.is_excerpt
    if not (wall_s and math.isfinite(wall_s) and done and len(rows) and is_one):
        return None
    begins_late = rows.iteration[0] > run_log.trainer.first_iteration + (run_log.log_interval() or 1)
    if run_log.trainer.iterations_are_epochs or begins_late:
        return None  # of a resumed process the whole time is of its own iterations
    times = [one.ms for one in run_log.evals if one.ms is not None and math.isfinite(one.ms)]
    eval_s = sum(times) / 1000
    train_s = wall_s - (run_log.setup.prediction_s or 0.0)
    if eval_s >= train_s:
        return None
    are_apart = len(times) == len(run_log.evals)
    ms = 1000 * (train_s - eval_s if are_apart else train_s) / done
    return wall_s, ms, None if not run_log.evals else not are_apart


def trajectory_of(run_log: RunLog) -> Trajectory:
    steps, segments = run_log.steps, list(range(len(run_log.segments)))
    ends = _segment_ends(run_log, segments)
    row_ends = np.array([ends.get(index, -1) for index in range(len(run_log.segments))])[steps.segment]
    rows = np.flatnonzero(steps.iteration < row_ends)
    taken = slice(None) if len(rows) == len(steps) else rows  # of all, a view instead of a copy
    measures_learning = run_log.loss_measures_learning and not run_log.placeholder_loss
    # A resume evaluates again where its checkpoint was made: the later evaluation counts.
    evals = {
        evaluation.iteration: evaluation
        for evaluation in run_log.evals
        if evaluation.iteration is not None
        and evaluation.iteration <= ends.get(evaluation.segment, -1)
        and evaluation.val_loss is not None
        and math.isfinite(evaluation.val_loss)
    }
    return Trajectory(
        segments=tuple(segments),
        rows=rows,
        iteration=steps.iteration[taken],
        loss=np.where(steps.has_loss[taken] & measures_learning, steps.loss[taken], np.nan),
        ms=steps.ms[taken],
        evals=tuple(evals[iteration] for iteration in sorted(evals)),
        checkpoints=tuple(
            save
            for save in run_log.checkpoints
            if save.iteration is not None and save.iteration <= ends.get(save.segment, -1)
        ),
    )


def _segment_ends(run_log: RunLog, segments: list[int]) -> dict[int, int]:
    """By segment of a run, the iteration from which a later segment repeats it."""
    ends: dict[int, int] = {}
    end = int(np.iinfo(np.int64).max)
    for segment in reversed(segments):
        ends[segment] = end
        start = run_log.segments[segment].first_iteration
        end = end if start is None else min(end, start)
    return ends


def continues_previous(run_log: RunLog, segment: int) -> bool:
    """Whether this process resumed the run of the previous one, instead of starting a new one."""
    if segment == 0:
        return False
    process = run_log.segments[segment]
    start = process.first_iteration
    counts_on = (
        start is not None and start > run_log.trainer.first_iteration and run_log.has_iteration_numbers
    )
    return process.resumed or counts_on


# --- time ---


def has_trained(run_log: RunLog) -> bool:
    """Whether the log shows an iteration, or an evaluation after one."""
    return bool(len(run_log.steps)) or any(evaluation.iteration != 0 for evaluation in run_log.evals)


def shows_run_start(run_log: RunLog) -> bool:
    """Whether the log begins where the run does; else it is a tail, or an excerpt."""
    evaluated_first = any(evaluation.iteration == 0 for evaluation in run_log.evals[:1])
    begins = bool(run_log.segments) and run_log.segments[0].has_startup
    interval = run_log.log_interval()
    if begins and interval and run_log.steps.iteration[0] > run_log.trainer.first_iteration + 2 * interval:
        return False  # of the first process, the first lines are not there
    # A row of a table comes at the end of its interval: the first one at the first interval's.
    begins = begins or (
        bool(run_log.columns) and len(run_log.steps) > 0 and run_log.steps.iteration[0] == interval
    )
    return not run_log.is_excerpt and (begins or evaluated_first)


def seconds_between(trajectory: Trajectory, after: int, until: int, steady_ms: float | None) -> float | None:
    """The time of the iterations past `after`, up to `until`. Those without a logged time count as
    steady_ms."""
    if steady_ms is None or not math.isfinite(steady_ms):
        return None
    inside = (trajectory.iteration > after) & (trajectory.iteration <= until)
    ms = trajectory.ms[inside]
    logged = np.isfinite(ms)
    unlogged = max(0, until - after - int(logged.sum()))
    return (float(ms[logged].sum()) + unlogged * steady_ms) / 1000


# --- settings ---


def numeric_setting(run_log: RunLog, name: str) -> float | None:
    """A setting that is a finite number, or None."""
    value = run_log.setup.settings.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def positive_int_setting(run_log: RunLog, name: str) -> int | None:
    """A setting that is a positive whole number, or None."""
    value = run_log.setup.settings.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def settings_product(run_log: RunLog, *names: str) -> int | None:
    """The product of these settings, or None where one of them is not a positive whole number."""
    values = [value for name in names if (value := positive_int_setting(run_log, name))]
    return math.prod(values) if len(values) == len(names) else None


def planned_end_iteration(run_log: RunLog) -> int | None:
    """The last iteration that the run was planned to have, where that is known."""
    if run_log.setup.planned_iterations:
        return run_log.setup.planned_iterations
    max_iters = numeric_setting(run_log, "max_iters")
    return int(max_iters) if max_iters and max_iters > 0 else None


def planned_iteration_count(run_log: RunLog, last: int) -> int:
    """How many iterations a run has whose last one is `last`. nanoGPT makes one more than its max_iters, and
    is asked for max_iters all the same."""
    counts_from_zero = run_log.trainer.first_iteration == 0 and not run_log.trainer.loop_includes_max_iters
    return last + counts_from_zero


def clips_gradients(run_log: RunLog) -> bool:
    """Whether its gradients are clipped, as far as is known: by its settings, or as its trainer does."""
    clip = numeric_setting(run_log, "grad_clip")
    return run_log.trainer.clips_gradients if clip is None else clip > 0


def starts_from_scratch(run_log: RunLog) -> bool:
    """Whether the weights were new, as far as is known: not pretrained, and not those of another log."""
    if run_log.setup.settings.get("init_from", "scratch") != "scratch" or run_log.trainer.often_finetunes:
        return False
    return not run_log.segments or not run_log.segments[0].resumed


def val_metric_name(run_log: RunLog) -> str:
    """For messages, as trainers print it."""
    return "val loss" if run_log.val_metric == "loss" else "val bpb"


def takes_known_settings(run_log: RunLog) -> bool:
    """Whether advice can name TrainConfig's settings to the user.

    An evaluation line alone, `step 500: train loss 1.9, val loss 2.0`, is also printed by loops that have
    other settings and no schedule, so a time or a batch size in tokens is needed, too."""
    if not run_log.trainer.takes_known_settings or not run_log.trainer.eval_line_is_common:
        return run_log.trainer.takes_known_settings
    return bool(np.isfinite(run_log.steps.ms).any()) or run_log.setup.tokens_per_iteration is not None
