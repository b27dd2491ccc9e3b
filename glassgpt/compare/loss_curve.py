"""Loss curves: losses over iterations, tokens, time and FLOPs, and several curves read at equal points.

    alignment = align("tokens", [curve_a, curve_b])
    alignment.points[-1].losses    # both losses at the largest token count where both were evaluated

Only measured losses are compared. Between two evaluations a loss is not known: the curve is not a line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from glassgpt.format import format_count, format_duration, format_flops, format_integer
from glassgpt.i18n import translate
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.curve_statistics import detrended_std
from glassgpt.runs.run_log import Floats, Ints, RunLog

Axis = Literal["iterations", "tokens", "time", "flops"]
LossKind = Literal["validation", "training"]
AXES: tuple[Axis, ...] = ("iterations", "tokens", "time", "flops")

_MAX_ELAPSED_S = 1e12  # a longer sum of step times comes from broken log lines
_POSITION_TOLERANCE = 0.02  # relative, between two evaluations that count as made at one position
_BATCH_WINDOW = 0.1  # of the position: logged batches before it are averaged over this share
_MIN_BATCHES = 20  # whose scatter is the noise of one of them
_MAX_TRIED_LINES = 500
_TRAINING_CURVE_POINTS = 60  # that training losses are averaged to
# Shares of the largest common position: early differences matter as much as late ones.
_SAMPLED_SHARES = (1 / 16, 1 / 4, 1 / 2, 1.0)


@dataclass(frozen=True)
class LossCurve:
    """Losses in the order of training, and their position on each axis."""

    losses: Floats
    iterations: Ints
    positions: dict[Axis, Floats]  # without the axes that the log does not say enough for
    point_std: float | None = None  # of one point, for training losses

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
    if analysis.explosions and analysis.explosions[-1].recovered_iteration is None:  # lost from there on
        rows = rows[steps.iteration[rows] < analysis.explosions[-1].iteration]
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
    # The noise of its lowest point: the last one may be of a loss that exploded.
    lowest = [stretch for stretch, is_kept in zip(stretches, finite, strict=True) if is_kept]
    rows = lowest[int(np.argmin(losses))] if len(losses) else np.empty(0, dtype=np.int64)
    if len(rows) < 3:
        return curve
    error = float(np.std(steps.loss[rows], ddof=1)) / math.sqrt(len(rows))
    return replace(curve, point_std=finite_positive(error))


def batch_curve(analysis: Analysis) -> LossCurve:
    """Every logged training loss of the trajectory."""
    run_log, trajectory = analysis.log, analysis.trajectory
    rows = trajectory.rows[np.isfinite(trajectory.loss) & run_log.has_iteration_numbers]
    iterations, segments = run_log.steps.iteration[rows], run_log.steps.segment[rows]
    return LossCurve(run_log.steps.loss[rows], iterations, _positions(analysis, segments, iterations))


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
    is_late = steps.iteration[0] > run_log.trainer.first_iteration + (run_log.log_interval() or 1)
    if is_late and not run_log.trainer.lines_count_updates:  # a journal says where each process started
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
    if all(segment.startup_s is not None for segment in run_log.segments):
        startups_s = np.cumsum([segment.startup_s or 0.0 for segment in run_log.segments])
        return np.asarray(seconds + startups_s[segments], dtype=np.float64)
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
class MeasuredLoss:
    """A loss as it was logged: of one evaluation, or the mean of a few logged batches."""

    loss: float
    at: float  # its own position, at most _POSITION_TOLERANCE from the point's
    std: float | None = None  # of a mean of batches


@dataclass(frozen=True)
class AlignedPoint:
    at: float
    losses: tuple[MeasuredLoss | None, ...]  # None: this run has no losses at all


@dataclass(frozen=True)
class Alignment:
    axis: Axis
    points: tuple[AlignedPoint, ...]  # the last is the largest that all runs have in common
    reason: str = ""  # why there are no points
    kind: LossKind = "validation"


@dataclass(frozen=True)
class LowestCommonLoss:
    """The lowest loss that all runs reached, and the positions of the first evaluation of each that shows it.
    `after`: of the evaluation before, where the run had not reached it; None: there is none."""

    loss: float
    at: dict[Axis, tuple[float | None, ...]]
    after: dict[Axis, tuple[float | None, ...]]


def align_all(
    curves: Sequence[LossCurve], batches: Sequence[LossCurve] = (), kind: LossKind = "validation"
) -> dict[Axis, Alignment]:
    """On each axis at evaluations that all runs made there; where there are none late enough, at logged
    training losses. `batches`: the logged losses of each run, `kind`: that of the curves."""
    aligned = {}
    for axis in AXES:
        alignment = align(axis, curves)
        if batches and (kind == "training" or not _reaches_far(alignment, curves)):
            by_batches = align_batches(axis, batches)
            alignment = by_batches if by_batches.points or kind == "training" else alignment
        aligned[axis] = alignment
    return aligned


def _reaches_far(alignment: Alignment, curves: Sequence[LossCurve]) -> bool:
    """Whether the last common evaluation is in the later half of what all runs have done."""
    ends = [
        float(curve.positions[alignment.axis][-1])
        for curve in curves
        if alignment.axis in curve.positions and len(curve)
    ]
    return bool(alignment.points) and alignment.points[-1].at >= min(ends, default=0.0) / 2


def align(axis: Axis, curves: Sequence[LossCurve]) -> Alignment:
    """The losses of all curves at a few positions that all of them have, up to a small tolerance."""
    present = [curve for curve in curves if len(curve)]
    if len(present) < 2:
        return Alignment(axis, (), translate("compare.alignment.no_losses"))
    if any(axis not in curve.positions for curve in present):
        return Alignment(axis, (), _missing_axis(axis))
    grid = min(present, key=lambda curve: float(curve.positions[axis][-1])).positions[axis]
    measured = [
        (float(at), tuple(loss_near(curve, axis, float(at)) if len(curve) else None for curve in curves))
        for at in grid
    ]
    common = {
        at: losses
        for at, losses in measured
        if at > 0 and all(loss is not None for loss, curve in zip(losses, curves, strict=True) if len(curve))
    }
    if not common:
        return Alignment(axis, (), translate("compare.alignment.no_common"))
    last = max(common)
    nearest = {min(common, key=lambda at: abs(at - share * last)) for share in _SAMPLED_SHARES}
    return Alignment(axis, tuple(AlignedPoint(at, common[at]) for at in sorted(nearest)))


def _missing_axis(axis: Axis) -> str:
    reasons = {
        "tokens": translate("compare.alignment.no_tokens"),
        "flops": translate("compare.alignment.no_flops"),
    }
    return reasons.get(axis) or translate("compare.alignment.no_times")


def loss_near(curve: LossCurve, axis: Axis, at: float) -> MeasuredLoss | None:
    """The loss measured at this position, or so close that the run had hardly changed. Never between two."""
    positions = curve.positions[axis]
    nearest = int(np.argmin(np.abs(positions - at)))
    own = float(positions[nearest])
    if abs(own - at) > _POSITION_TOLERANCE * abs(at):
        return None
    return MeasuredLoss(float(curve.losses[nearest]), own, curve.point_std)


def align_batches(axis: Axis, curves: Sequence[LossCurve]) -> Alignment:
    """Logged training losses at equal positions: of each run the mean over the last tenth before it."""
    if any(axis not in curve.positions or not len(curve) for curve in curves):
        return Alignment(axis, (), _missing_axis(axis), "training")
    last = min(float(curve.positions[axis][-1]) for curve in curves)
    lines = np.concatenate([curve.positions[axis] for curve in curves])
    lines = np.unique(lines[(lines > 0) & (lines <= last)])
    points = {}
    for share in _SAMPLED_SHARES:
        # From the share of the whole backwards: the first line before it where all runs have logged batches.
        for at in lines[lines <= share * last][::-1][:_MAX_TRIED_LINES]:
            losses = tuple(mean_of_batches(curve, axis, float(at)) for curve in curves)
            if all(loss is not None for loss in losses):
                points[float(at)] = AlignedPoint(float(at), losses)
                break
    reason = "" if points else translate("compare.alignment.no_common")
    return Alignment(axis, tuple(points[at] for at in sorted(points)), reason, "training")


def mean_of_batches(curve: LossCurve, axis: Axis, at: float) -> MeasuredLoss | None:
    """The mean of the logged training losses over the last tenth before the position."""
    positions = curve.positions.get(axis, np.empty(0))
    rows = np.flatnonzero((positions > (1 - _BATCH_WINDOW) * at) & (positions <= at))
    if not len(rows):
        return None
    middle = int(rows[len(rows) // 2])
    around = curve.losses[max(0, middle - _MIN_BATCHES // 2) : middle + _MIN_BATCHES // 2]
    scatter = detrended_std(around) if len(around) >= _MIN_BATCHES // 2 else None
    std = None if scatter is None else scatter / math.sqrt(len(rows))
    return MeasuredLoss(float(np.mean(curve.losses[rows])), float(positions[rows[-1]]), std)


def find_lowest_common_loss(curves: Sequence[LossCurve]) -> LowestCommonLoss | None:
    if len(curves) < 2 or not all(len(curve) for curve in curves):
        return None
    target = max(float(curve.losses.min()) for curve in curves)
    first = [int(np.argmax(curve.losses <= target)) for curve in curves]
    at: dict[Axis, tuple[float | None, ...]] = {}
    after: dict[Axis, tuple[float | None, ...]] = {}
    for axis in AXES:
        columns = [curve.positions.get(axis) for curve in curves]
        pairs = list(zip(columns, first, strict=True))
        at[axis] = tuple(None if column is None else float(column[index]) for column, index in pairs)
        after[axis] = tuple(
            None if column is None or not index else float(column[index - 1]) for column, index in pairs
        )
    return LowestCommonLoss(target, at, after)


def format_axis_value(axis: Axis, at: float) -> str:
    formats = {"iterations": format_integer, "tokens": format_count, "time": format_duration}
    return formats.get(axis, format_flops)(at)
