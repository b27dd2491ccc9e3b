"""Loss curves: losses over iterations, tokens, time and FLOPs, and several curves read at equal points.

    alignment = align("tokens", [curve_a, curve_b])
    alignment.points[-1].losses    # both losses at the largest token count that both runs reached

Between two evaluations a loss is interpolated. It is never extrapolated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from glassgpt.format import format_count, format_duration, format_flops, format_integer
from glassgpt.i18n import translate
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.run_log import Floats, Ints, RunLog

Axis = Literal["iterations", "tokens", "time", "flops"]
AXES: tuple[Axis, ...] = ("iterations", "tokens", "time", "flops")

_MAX_ELAPSED_S = 1e12  # a longer sum of step times comes from broken log lines
_TRAINING_CURVE_POINTS = 60  # that training losses are averaged to
# Shares of the largest common position: early differences matter as much as late ones.
_SAMPLED_SHARES = (1 / 16, 1 / 4, 1 / 2, 1.0)


@dataclass(frozen=True)
class LossCurve:
    """Losses in the order of training, and their position on each axis."""

    losses: Floats
    iterations: Ints
    positions: dict[Axis, Floats]  # without the axes that the log does not say enough for
    point_std: float | None = None  # of the last point, for training losses

    def __len__(self) -> int:
        return len(self.losses)


def finite_positive(value: float | None) -> float | None:
    """The value if it can be divided by and printed: not NaN, infinite, negative or 0. Else None."""
    return value if value is not None and 1e-300 < value < 1e30 else None


# --- from a log to a curve ---


def validation_curve(analysis: Analysis) -> LossCurve:
    """The evaluations of the final trajectory, without those that a resume discarded."""
    evals = analysis.trajectory.evals
    iterations = np.array([evaluation.iteration for evaluation in evals], dtype=np.int64)
    losses = np.array([evaluation.val_loss for evaluation in evals], dtype=np.float64)
    segments = np.array([evaluation.segment for evaluation in evals], dtype=np.int64)
    positions = _positions(analysis, segments, iterations)
    return LossCurve(losses, iterations, positions)


def training_curve(analysis: Analysis) -> LossCurve:
    """Training losses, averaged over parts of the run, because the loss of one batch is noisy."""
    run_log, trajectory = analysis.log, analysis.trajectory
    steps = run_log.steps
    rows = trajectory.rows[np.isfinite(trajectory.loss) & run_log.has_iteration_numbers]
    count = min(_TRAINING_CURVE_POINTS, len(rows) // 5 or 1)
    stretches = [stretch for stretch in np.array_split(rows, count) if len(stretch)]
    iterations = np.array(
        [round(float(np.mean(steps.iteration[stretch]))) for stretch in stretches], dtype=np.int64
    )
    losses = np.array([float(np.mean(steps.loss[stretch])) for stretch in stretches], dtype=np.float64)
    segments = np.array([steps.segment[stretch[-1]] for stretch in stretches], dtype=np.int64)
    finite = np.isfinite(losses)
    iterations, losses, segments = iterations[finite], losses[finite], segments[finite]
    positions = _positions(analysis, segments, iterations)
    curve = LossCurve(losses, iterations, positions)
    if not stretches or len(stretches[-1]) < 3:
        return curve
    last = steps.loss[stretches[-1]]
    return replace(curve, point_std=finite_positive(float(np.std(last, ddof=1)) / float(np.sqrt(len(last)))))


def _positions(analysis: Analysis, segments: Ints, iterations: Ints) -> dict[Axis, Floats]:
    tokens_per_iteration, flops_per_token = analysis.tokens_per_iteration, analysis.size.flops_per_token
    positions: dict[Axis, Floats] = {"iterations": iterations.astype(np.float64)}
    tokens = None
    if tokens_per_iteration:
        tokens = analysis.log.tokens_seen_at(iterations, tokens_per_iteration)
    if tokens is not None:
        positions["tokens"] = tokens
        if flops_per_token:
            positions["flops"] = tokens * flops_per_token
    seconds = _elapsed_s(analysis, segments, iterations)
    if seconds is not None and (seconds < _MAX_ELAPSED_S).all() and (np.diff(seconds) >= 0).all():
        positions["time"] = seconds
    return positions


def _elapsed_s(analysis: Analysis, segments: Ints, iterations: Ints) -> Floats | None:
    """Seconds from the start of the log to each iteration. One that is not logged took the steady step time.

    None: the log has no step times, or does not start at the first iteration.
    """
    run_log, steps, steady_ms = analysis.log, analysis.log.steps, finite_positive(analysis.steady_ms)
    if steady_ms is None or not len(steps) or not len(iterations):
        return None
    if steps.iteration[0] > run_log.trainer.first_iteration + (run_log.log_interval() or 1):
        return None

    step_ms = np.where(np.isfinite(steps.ms) & (steps.ms >= 0), steps.ms, steady_ms)
    is_interval_mean = run_log.trainer.step_time_is_interval_mean
    step_ms += run_log.unlogged_before() * (step_ms if is_interval_mean else steady_ms)
    elapsed = np.cumsum(step_ms) / 1000
    keys = _order_keys(run_log, steps.segment, steps.iteration)
    if run_log.trainer.lines_count_updates:
        # A journal says at which iteration each process started, which is before its first line.
        is_first = np.concatenate(([True], np.diff(steps.segment) != 0))
        processes = steps.segment[is_first]
        start_keys = _order_keys(run_log, processes, run_log.process_start_iterations()[processes])
        keys = np.concatenate((start_keys, keys))
        elapsed = np.concatenate(((elapsed - step_ms / 1000)[is_first], elapsed))
    order = np.argsort(keys, kind="stable")
    wanted = _order_keys(run_log, segments, iterations)
    seconds = np.interp(wanted, keys[order], elapsed[order])
    after_last_step = np.maximum(iterations - steps.iteration[-1], 0) * (segments == steps.segment[-1])
    seconds += after_last_step * steady_ms / 1000
    if run_log.trainer.step_time_includes_eval:
        return np.asarray(seconds, dtype=np.float64)

    timed = [evaluation for evaluation in run_log.evals if evaluation.iteration is not None and evaluation.ms]
    eval_keys = _order_keys(
        run_log,
        np.array([evaluation.segment for evaluation in timed], dtype=np.int64),
        np.array([evaluation.iteration for evaluation in timed], dtype=np.int64),
    )
    eval_s = np.concatenate([[0.0], np.cumsum([evaluation.ms or 0.0 for evaluation in timed])]) / 1000
    seconds += eval_s[np.searchsorted(np.sort(eval_keys), wanted, side="right")]
    # The rest of the wall time is mostly the start-up of the first process. Later start-ups come later.
    all_eval_s = sum(evaluation.ms or 0.0 for evaluation in run_log.evals) / 1000
    rest_s = (analysis.total_s or 0.0) - float(elapsed[-1]) - all_eval_s
    startup_s = np.array([segment.startup_s or 0.0 for segment in run_log.segments])
    later_startup_s = startup_s.sum() - np.cumsum(startup_s)
    return np.asarray(seconds + np.maximum(0.0, rest_s - later_startup_s[segments]), dtype=np.float64)


def _order_keys(run_log: RunLog, segments: Ints, iterations: Ints) -> Floats:
    """A number for each iteration of each process that grows along the log."""
    stride = float(run_log.steps.iteration.max(initial=0)) + 1e9
    return np.asarray(segments * stride + iterations, dtype=np.float64)


# --- several curves at equal points ---


@dataclass(frozen=True)
class InterpolatedLoss:
    """A loss on a curve, and the lower and the higher of the two evaluations around it."""

    loss: float
    low: float
    high: float

    @property
    def is_exact(self) -> bool:
        return self.low == self.high


@dataclass(frozen=True)
class AlignedPoint:
    at: float
    losses: tuple[InterpolatedLoss | None, ...]  # None: this run has no losses at all


@dataclass(frozen=True)
class Alignment:
    axis: Axis
    points: tuple[AlignedPoint, ...]  # the last is the largest that all runs reached
    reason: str = ""  # why there are no points


@dataclass(frozen=True)
class LowestCommonLoss:
    """The lowest loss that all runs reached, and the position where each first did."""

    loss: float
    at: dict[Axis, tuple[float | None, ...]]


def align_all(curves: Sequence[LossCurve]) -> dict[Axis, Alignment]:
    return {axis: align(axis, curves) for axis in AXES}


def align(axis: Axis, curves: Sequence[LossCurve]) -> Alignment:
    """The losses of all curves at a few equal positions on this axis."""
    present = [curve for curve in curves if len(curve)]
    if len(present) < 2:
        return Alignment(axis, (), translate("compare.alignment.no_losses"))
    if any(axis not in curve.positions for curve in present):
        reasons = {
            "tokens": translate("compare.alignment.no_tokens"),
            "flops": translate("compare.alignment.no_flops"),
        }
        no_times = translate("compare.alignment.no_times")
        return Alignment(axis, (), reasons.get(axis, no_times))
    ends = [float(curve.positions[axis][-1]) for curve in present]
    first, last = max(float(curve.positions[axis][0]) for curve in present), min(ends)
    if first > last:
        return Alignment(axis, (), translate("compare.alignment.no_overlap"))
    # Evaluations of the run that ends first: only the other losses are interpolated.
    grid = present[ends.index(last)].positions[axis]
    inside = grid[(grid >= first) & (grid <= last)]
    nearest = {last}
    if len(inside):
        nearest = {float(inside[np.argmin(np.abs(inside - share * last))]) for share in _SAMPLED_SHARES}
    points = [
        AlignedPoint(at, tuple(interpolate_loss(curve, axis, at) if len(curve) else None for curve in curves))
        for at in sorted(nearest)
        if at > 0 or len(nearest) == 1
    ]
    return Alignment(axis, tuple(points))


def interpolate_loss(curve: LossCurve, axis: Axis, at: float) -> InterpolatedLoss | None:
    """None before the first evaluation and after the last."""
    positions, losses = curve.positions[axis], curve.losses
    if not len(curve) or not positions[0] <= at <= positions[-1]:
        return None
    after = int(np.searchsorted(positions, at, side="left"))
    if positions[after] == at:
        exact = float(losses[after])
        return InterpolatedLoss(exact, exact, exact)
    left, right = float(losses[after - 1]), float(losses[after])
    share = (at - positions[after - 1]) / (positions[after] - positions[after - 1])
    return InterpolatedLoss(left + float(share) * (right - left), min(left, right), max(left, right))


def find_lowest_common_loss(curves: Sequence[LossCurve]) -> LowestCommonLoss | None:
    if len(curves) < 2 or not all(len(curve) for curve in curves):
        return None
    target = max(float(curve.losses.min()) for curve in curves)
    at = {axis: tuple(_first_position_below(curve, axis, target) for curve in curves) for axis in AXES}
    return LowestCommonLoss(target, at)


def _first_position_below(curve: LossCurve, axis: Axis, target: float) -> float | None:
    """Where the curve first reaches the target loss, interpolated; None: it has no such axis."""
    positions = curve.positions.get(axis)
    if positions is None:
        return None
    index = int(np.argmax(curve.losses <= target))
    if index == 0:
        return float(positions[0])
    high, low = float(curve.losses[index - 1]), float(curve.losses[index])
    share = (high - target) / (high - low)
    return float(positions[index - 1] + share * (positions[index] - positions[index - 1]))


def format_axis_value(axis: Axis, at: float) -> str:
    if axis == "iterations":
        return format_integer(at)
    if axis == "tokens":
        return format_count(at)
    return format_duration(at) if axis == "time" else format_flops(at)
