"""Losses at equal iterations, tokens, time and FLOPs: read between two evaluations, never beyond them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glassgpt import format
from glassgpt.compare.loss_curve import AXES, Axis, LossCurve
from glassgpt.i18n import say

_SAMPLED_SHARES = (
    1 / 16,
    1 / 4,
    1 / 2,
    1.0,
)  # of the largest common point: early differences matter as late ones do


@dataclass(frozen=True)
class InterpolatedLoss:
    """A loss on a curve. Between two evaluations the line through them is taken, and both are kept."""

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
    reason: str = ""  # why there are none


@dataclass(frozen=True)
class LowestCommonLoss:
    """Where each run first had a loss that all of them reached."""

    loss: float
    at: dict[Axis, tuple[float | None, ...]]


def align_all(curves: Sequence[LossCurve]) -> dict[Axis, Alignment]:
    return {axis: align(axis, curves) for axis in AXES}


def align(axis: Axis, curves: Sequence[LossCurve]) -> Alignment:
    present = [curve for curve in curves if len(curve)]
    if len(present) < 2:
        return Alignment(axis, (), say("fewer than two runs have losses"))
    if any(axis not in curve.positions for curve in present):
        return Alignment(axis, (), _missing(axis))
    starts = [float(curve.positions[axis][0]) for curve in present]
    ends = [float(curve.positions[axis][-1]) for curve in present]
    first, last = max(starts), min(ends)
    if first > last:
        return Alignment(axis, (), say("the evaluations of one end before those of another begin"))
    grid = present[ends.index(last)].positions[axis]
    points = [_point(axis, at, curves) for at in _chosen(grid, first, last)]
    return Alignment(axis, tuple(points))


def _missing(axis: Axis) -> str:
    if axis == "tokens":
        return say("not every log says how many tokens an iteration has")
    if axis == "flops":
        return say("not every log says enough to count FLOPs")
    return say("not every log says how long iterations took, from the first on")


def _chosen(grid: np.ndarray, first: float, last: float) -> list[float]:
    """A few places where the run that ends first was evaluated: only the others are read between."""
    inside = grid[(grid >= first) & (grid <= last)]
    if not len(inside):
        return [last]
    nearest = {float(inside[np.argmin(np.abs(inside - share * last))]) for share in _SAMPLED_SHARES}
    return sorted(at for at in nearest if at > 0 or len(nearest) == 1)


def _point(axis: Axis, at: float, curves: Sequence[LossCurve]) -> AlignedPoint:
    return AlignedPoint(
        at, tuple(interpolate_loss(curve, axis, at) if len(curve) else None for curve in curves)
    )


def interpolate_loss(curve: LossCurve, axis: Axis, at: float) -> InterpolatedLoss | None:
    """The loss there; None before the first evaluation and after the last."""
    places, losses = curve.positions[axis], curve.losses
    if not len(curve) or not places[0] <= at <= places[-1]:
        return None
    after = int(np.searchsorted(places, at, side="left"))
    if places[after] == at:
        exact = float(losses[after])
        return InterpolatedLoss(exact, exact, exact)
    left, right = float(losses[after - 1]), float(losses[after])
    share = (at - places[after - 1]) / (places[after] - places[after - 1])
    return InterpolatedLoss(left + float(share) * (right - left), min(left, right), max(left, right))


def find_lowest_common_loss(curves: Sequence[LossCurve]) -> LowestCommonLoss | None:
    """The lowest loss that every run reached, and when each did."""
    if len([curve for curve in curves if len(curve)]) < len(curves) or len(curves) < 2:
        return None
    target = max(float(curve.losses.min()) for curve in curves)
    at = {axis: tuple(_first_below(curve, axis, target) for curve in curves) for axis in AXES}
    return LowestCommonLoss(target, at)


def _first_below(curve: LossCurve, axis: Axis, target: float) -> float | None:
    places = curve.positions.get(axis)
    if places is None:
        return None
    index = int(np.argmax(curve.losses <= target))
    if index == 0:
        return float(places[0])
    high, low = float(curve.losses[index - 1]), float(curve.losses[index])
    share = (high - target) / (high - low)
    return float(places[index - 1] + share * (places[index] - places[index - 1]))


def format_axis_value(axis: Axis, at: float) -> str:
    if axis == "iterations":
        return format.format_integer(at)
    if axis == "tokens":
        return format.format_count(at)
    return format.format_duration(at) if axis == "time" else format.format_flops(at)
