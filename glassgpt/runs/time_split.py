"""Where the time of a run went: every logged millisecond is training, evaluation, a stall or start-up.

    split = split_time(run_log, regimes)
    split.total_s, split.seconds_by_phase()

An iteration's own share is the steady time of its regime (regimes.py), and an iteration without a line counts
as that. What an evaluation takes when nothing interrupts it is its typical time: the rest of an evaluation
during which a laptop slept is a stall, as is an iteration that no line explains. Totals, shares, findings,
charts and tables all come from here, so that one quantity has one value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.runs.curve_statistics import robust_std
from glassgpt.runs.regimes import Regime, local_steady_ms
from glassgpt.runs.run_log import Bools, Floats, Ints, RunLog, Steps

MIN_SPIKE_RATIO = 5.0  # times a steady iteration of its regime
MIN_SPIKE_STDS = 6.0  # standard deviations of the logarithm of steady times above their median
MAX_SPIKE_SHARE = 0.1  # of the steady iterations; more are usual, and no spikes
MIN_SPIKE_STEPS = 5  # steady iterations, to look for spikes
STARTUP_STEPS = 10  # first iterations of a process, which may still compile something

MIN_STALLED_RATIO = 2.5  # an evaluation's time over the fast ones'
FAST_EVAL_PERCENTILE = 10  # evaluations do the same work each time: the fast ones were not interrupted
MIN_EVALS = 5  # to tell stalled ones; a fifth of so few is a whole one


@dataclass(frozen=True)
class TimeSplit:
    """ms by row of RunLog.steps, and of evaluations and checkpoints that are in no row's time."""

    train_ms: Floats  # with the iterations without a line before it
    pause_ms: Floats  # evaluations and checkpoints
    stall_ms: Floats
    startup_ms: Floats  # a journal's ledger has it instead
    apart_iteration: Ints
    apart_ms: Floats
    is_spike: Bools  # rows that no line explains
    is_stalled_eval: Bools
    spike_period: int | None  # the spikes come at this interval: they are pauses, not stalls
    typical_eval_ms: float | None  # what an evaluation adds to an iteration, if nothing interrupts it
    startup_includes_eval: bool  # the first iteration evaluates, and nothing says how long that takes
    is_complete: bool  # False: the log has evaluations whose time is nowhere

    @property
    def pauses_s(self) -> float:
        return float(self.pause_ms.sum() + self.apart_ms.sum()) / 1000

    @property
    def periodic_s(self) -> float:
        """Of the pauses, those that come at a regular interval and that no line names."""
        return float(self.pause_ms[self.is_spike].sum()) / 1000

    @property
    def stall_s(self) -> float:
        return float(self.stall_ms.sum()) / 1000

    @property
    def startup_s(self) -> float:
        return float(self.startup_ms.sum()) / 1000

    @property
    def total_s(self) -> float:
        return float(self.train_ms.sum()) / 1000 + self.pauses_s + self.stall_s + self.startup_s


def split_time(run_log: RunLog, regimes: tuple[Regime, ...]) -> TimeSplit | None:
    """None where the log does not say how long an iteration takes."""
    steps = run_log.steps
    if not regimes:
        return None
    local_ms = local_steady_ms(regimes, len(steps))
    is_first, includes_eval = run_log.is_first_of_process(), run_log.includes_eval()
    is_timed = np.isfinite(steps.ms)
    ms = np.where(is_timed, steps.ms, local_ms)
    if run_log.trainer.step_time_is_interval_mean:
        ms = np.where(is_timed, ms, _later_time(steps, local_ms))
    excess_ms = np.maximum(ms - local_ms, 0.0)
    is_spike = _is_spike(run_log, local_ms)
    is_eval = includes_eval & ~is_first & is_timed
    is_stalled_eval = _is_stalled_eval(run_log, is_eval, excess_ms / local_ms)
    awake_ms = excess_ms[is_eval & ~is_stalled_eval]
    typical_eval_ms = float(np.median((ms - local_ms)[is_eval & ~is_stalled_eval])) if len(awake_ms) else None

    pause_ms = np.where(is_eval, excess_ms, 0.0)
    # A process's first iteration: its evaluation as usual, the rest is start-up.
    first_evaluates = is_first & (includes_eval | run_log.trainer.evaluates_before_first_step)
    pause_ms = np.where(first_evaluates, np.minimum(excess_ms, max(typical_eval_ms or 0.0, 0.0)), pause_ms)
    pause_ms = np.where(is_stalled_eval, np.minimum(excess_ms, max(typical_eval_ms or 0.0, 0.0)), pause_ms)
    spike_period = _regular_interval(run_log, steps.iteration[is_spike])
    if spike_period:
        pause_ms = np.where(is_spike, excess_ms, pause_ms)
    stall_ms = np.where(is_stalled_eval | is_spike, excess_ms - pause_ms, 0.0)
    startup_ms = np.where(is_first, excess_ms - pause_ms, 0.0)
    if run_log.ledger:
        startup_ms = np.zeros(len(ms))
    return TimeSplit(
        train_ms=ms - pause_ms - stall_ms - startup_ms + _unlogged_ms(run_log, ms, local_ms),
        pause_ms=pause_ms,
        stall_ms=stall_ms,
        startup_ms=startup_ms,
        **_apart(run_log, typical_eval_ms),
        is_spike=is_spike,
        is_stalled_eval=is_stalled_eval,
        spike_period=spike_period,
        typical_eval_ms=typical_eval_ms,
        startup_includes_eval=typical_eval_ms is None and bool(first_evaluates.any()),
        is_complete=run_log.trainer.step_time_includes_eval
        or all(evaluation.ms is not None for evaluation in run_log.evals),
    )


def _later_time(steps: Steps, local_ms: Floats) -> Floats:
    """By row, the next logged time of the same process: a clock's mean covers the rows before it that have
    none. After the last one, the steady time."""
    rows = np.arange(len(steps))
    timed = np.where(np.isfinite(steps.ms), rows, len(steps))
    following = np.minimum.accumulate(timed[::-1])[::-1]
    has_later = following < len(steps)
    later = np.where(has_later, following, 0)
    is_same = has_later & (steps.segment[later] == steps.segment)
    return np.where(is_same, steps.ms[later], local_ms)


def _unlogged_ms(run_log: RunLog, ms: Floats, local_ms: Floats) -> Floats:
    """By row, the time of iterations before it without a line, or that a very long log leaves out; with the
    last one, of those after it."""
    unlogged = run_log.unlogged_before()
    if run_log.iterations_done is not None and run_log.has_iteration_numbers and len(unlogged):
        unlogged[-1] += max(0, run_log.iterations_done - int(run_log.steps.iteration[-1]))
    if run_log.trainer.step_time_is_interval_mean:
        at = run_log.steps.iteration
        is_of_start = len(at) > 1 and at[0] <= at[1] - at[0] and bool(np.isfinite(run_log.steps.ms[0]))
        if is_of_start and run_log.has_iteration_numbers and not run_log.trainer.lines_count_updates:
            unlogged[0] = max(unlogged[0], at[0] - 1)  # the mean of all iterations before the first line
        return unlogged * ms
    count, left_out = float(unlogged.sum()), run_log.left_out
    if not left_out.lines or not count:
        return unlogged * local_ms
    # Lines left out are among these iterations, and their time is known.
    untimed = max(0.0, count - left_out.timed)
    return unlogged * (local_ms * untimed / count + left_out.ms / count)


def _apart(run_log: RunLog, typical_eval_ms: float | None) -> dict[str, np.ndarray]:
    """Evaluations and saves that the log times separately from its steps; and where step times include
    them, evaluations at an iteration without a line, which took the typical time."""
    durations: list[tuple[int | None, float | None]] = []
    if not run_log.trainer.step_time_includes_eval:
        durations = [(evaluation.iteration, evaluation.ms) for evaluation in run_log.evals]
        durations += [(save.iteration, save.blocking_ms) for save in run_log.checkpoints]
    elif typical_eval_ms is not None and typical_eval_ms > 0:
        steps, later = run_log.steps, run_log.trainer.eval_timed_in_later_step
        for segment in range(len(run_log.segments)):
            of_segment = {one.iteration for one in run_log.evals if one.segment == segment}
            evaluated = np.array(sorted(at for at in of_segment if at is not None), dtype=np.int64)
            without_line = ~np.isin(evaluated + later, steps.iteration[steps.segment == segment])
            durations += [(at, typical_eval_ms) for at in evaluated[without_line].tolist()]
    timed = [
        (iteration, ms)
        for iteration, ms in durations
        if iteration is not None and ms is not None and math.isfinite(ms)
    ]
    return {
        "apart_iteration": np.array([iteration for iteration, _ in timed], dtype=np.int64),
        "apart_ms": np.array([ms for _, ms in timed], dtype=float),
    }


def _is_spike(run_log: RunLog, local_ms: Floats) -> Bools:
    """Iterations of five times the steady time of their regime, though no line shows an evaluation there."""
    steps, steady, first = run_log.steps, run_log.is_steady(), run_log.is_first_of_process()
    no_spikes = np.zeros(len(steady), dtype=bool)
    if np.count_nonzero(steady) < MIN_SPIKE_STEPS:
        return no_spikes
    ratio = np.nan_to_num(steps.ms, nan=0.0) / local_ms
    # Where batches differ in length there is no steady level: then a spike has to stand out of that spread.
    spread = robust_std(np.log(np.maximum(ratio[steady], 1e-9)))
    spikes: Bools = steady & (ratio >= max(MIN_SPIKE_RATIO, math.exp(min(MIN_SPIKE_STDS * spread, 50.0))))
    if np.any(first):  # the first iterations of a process compile the backward pass and other shapes
        starts = np.full(len(run_log.segments), np.iinfo(np.int64).min // 2, dtype=np.int64)
        starts[steps.segment[first]] = steps.iteration[first]
        spikes &= steps.iteration - starts[steps.segment] >= STARTUP_STEPS
    if (run_log.log_interval() or 1) > 1 and not first[0]:
        spikes[0] = False  # an excerpt: its time may be that of the lines before it, too
    max_spikes = max(1, MAX_SPIKE_SHARE * np.count_nonzero(steady))
    return spikes if np.count_nonzero(spikes) <= max_spikes else no_spikes


def _regular_interval(run_log: RunLog, at: Ints) -> int | None:
    """The interval at which these iterations come, all of them at a multiple of it or right after one: a
    trainer's own work, such as an evaluation or a checkpoint."""
    distances = np.diff(at)
    if not len(distances) or not run_log.has_iteration_numbers:
        return None
    period = int(distances.min())
    if period < max(1, 2 * (run_log.log_interval() or 1)) or np.any(distances % period):
        return None
    return period if int(at[0]) % period in (0, 1, period - 1) else None


def _is_stalled_eval(run_log: RunLog, is_eval: Bools, cost: Floats) -> Bools:
    """Iterations whose evaluation took far longer than others of the same kind, at no regular interval.

    `cost`: of each, in steady iterations of its regime. Evaluations that also save are a kind of their own;
    and if every fourth one is slow, it does more: a sample, a benchmark.
    """
    steps = run_log.steps
    stalled = np.zeros(len(steps), dtype=bool)
    saved = {(save.segment, save.iteration) for save in run_log.checkpoints}
    later = run_log.trainer.eval_timed_in_later_step
    rows = np.flatnonzero(is_eval)
    if len(rows) < MIN_EVALS:
        return stalled
    keys = zip(steps.segment[rows].tolist(), (steps.iteration[rows] - later).tolist(), strict=True)
    has_save = np.array([key in saved for key in keys], dtype=bool)
    groups = [rows[has_save], rows[~has_save]]
    if min(len(group) for group in groups) < MIN_EVALS:
        groups = [rows]
    for group in groups:
        fast = float(np.percentile(cost[group], FAST_EVAL_PERCENTILE))
        stalled[group] = cost[group] > MIN_STALLED_RATIO * fast if fast > 0 else False
    slow = np.flatnonzero(stalled[rows])
    distances = np.unique(np.diff(slow))
    is_regular = len(slow) > 2 and len(distances) == 1 and distances[0] > 1
    are_saves = len(groups) == 1 and np.array_equal(stalled[rows], has_save)
    return np.zeros(len(steps), dtype=bool) if is_regular or are_saves else stalled
