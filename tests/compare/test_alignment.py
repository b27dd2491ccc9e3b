"""Two curves read at equal points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassgpt.compare.loss_curve import LossCurve, align, find_lowest_common_loss, interpolate_loss


def curve(points: Sequence[tuple[float, float]]) -> LossCurve:
    at = np.array([x for x, _ in points])
    return LossCurve(np.array([y for _, y in points]), at.astype(np.int64), {"iterations": at})


def test_losses_between_two_evaluations_are_interpolated() -> None:
    interpolated = interpolate_loss(curve([(0, 4.0), (100, 2.0)]), "iterations", 25)
    assert interpolated is not None
    assert (interpolated.loss, interpolated.low, interpolated.high, interpolated.is_exact) == (
        3.5,
        2.0,
        4.0,
        False,
    )


def test_losses_are_never_extrapolated() -> None:
    line = curve([(10, 4.0), (100, 2.0)])
    assert interpolate_loss(line, "iterations", 9) is None
    assert interpolate_loss(line, "iterations", 101) is None


@given(st.lists(st.floats(0.1, 12), min_size=2, max_size=20), st.floats(0, 1))
def test_an_interpolated_loss_lies_between_its_neighbours(losses: list[float], share: float) -> None:
    line = curve([(10.0 * i, value) for i, value in enumerate(losses)])
    interpolated = interpolate_loss(line, "iterations", share * 10 * (len(losses) - 1))
    assert interpolated is not None
    assert min(losses) - 1e-9 <= interpolated.low <= interpolated.high <= max(losses) + 1e-9
    assert interpolated.low - 1e-9 <= interpolated.loss <= interpolated.high + 1e-9


def test_the_largest_common_point_is_where_the_shorter_ends() -> None:
    alignment = align("iterations", [curve([(0, 4.0), (100, 2.0)]), curve([(0, 4.0), (1000, 1.0)])])
    assert alignment.points[-1].at == 100


def test_no_common_stretch_no_points() -> None:
    alignment = align("iterations", [curve([(0, 4.0), (100, 2.0)]), curve([(200, 4.0), (300, 1.0)])])
    assert not alignment.points
    assert alignment.reason


def test_position_of_the_lowest_common_loss() -> None:
    common = find_lowest_common_loss([curve([(0, 4.0), (100, 2.0)]), curve([(0, 4.0), (100, 1.0)])])
    assert common is not None
    assert common.loss == 2.0
    first, other = common.at["iterations"]
    assert first == 100
    assert other == pytest.approx(66.67, abs=0.01)
