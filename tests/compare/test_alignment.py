"""Two curves read at equal points: only what was measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassgpt.compare.loss_curve import (
    LossCurve,
    align,
    align_all,
    align_batches,
    find_lowest_common_loss,
    loss_near,
)


def curve(points: Sequence[tuple[float, float]]) -> LossCurve:
    at = np.array([x for x, _ in points], dtype=float)
    return LossCurve(np.array([y for _, y in points]), at.astype(np.int64), {"iterations": at})


def test_between_two_evaluations_no_loss_is_known() -> None:
    line = curve([(0, 4.0), (100, 2.0)])
    assert loss_near(line, "iterations", 25) is None
    there = loss_near(line, "iterations", 100)
    assert there is not None
    assert (there.loss, there.at) == (2.0, 100)


def test_evaluations_two_percent_apart_are_at_one_point() -> None:
    line = curve([(0, 4.0), (100, 2.0)])
    assert loss_near(line, "iterations", 98.5) is not None
    assert loss_near(line, "iterations", 97) is None
    assert loss_near(line, "iterations", 103) is None


@given(st.lists(st.floats(0.1, 12), min_size=2, max_size=20), st.floats(0, 1))
def test_a_loss_at_a_point_is_one_of_the_curve(losses: list[float], share: float) -> None:
    line = curve([(10.0 * i, value) for i, value in enumerate(losses)])
    found = loss_near(line, "iterations", share * 10 * (len(losses) - 1))
    assert found is None or found.loss in losses


def test_the_largest_common_point_is_where_both_were_evaluated() -> None:
    longer = curve([(0, 4.0), (100, 1.9), (150, 1.8), (1000, 1.0)])
    alignment = align("iterations", [curve([(0, 4.0), (100, 2.0), (140, 1.9)]), longer])
    assert [point.at for point in alignment.points] == [100]
    assert [loss and loss.loss for loss in alignment.points[0].losses] == [2.0, 1.9]


def test_the_start_is_no_common_point() -> None:
    alignment = align("iterations", [curve([(0, 4.0), (100, 2.0)]), curve([(0, 4.0), (300, 1.0)])])
    assert not alignment.points
    assert alignment.reason


def test_without_common_evaluations_logged_batches_are_compared() -> None:
    """A straight line through B's evaluations would say 3.25 at 100; its batches say 2.0."""
    evals = [curve([(0, 4.0), (100, 2.0)]), curve([(0, 4.0), (400, 1.0)])]
    batches = [
        curve([(at, 4.0 - 0.02 * at) for at in range(0, 101, 10)]),
        curve([(at, 4.0 - 0.02 * min(at, 100)) for at in range(0, 401, 10)]),
    ]
    aligned = align_all(evals, batches)["iterations"]
    assert aligned.kind == "training"
    assert aligned.points[-1].at == 100
    assert [loss and loss.loss for loss in aligned.points[-1].losses] == [2.0, 2.0]


def test_batches_are_averaged_over_the_last_tenth() -> None:
    first = curve([(at, float(at)) for at in range(1, 101)])
    alignment = align_batches("iterations", [first, curve([(100, 7.0), (200, 5.0)])])
    (point,) = alignment.points
    assert point.at == 100
    assert [loss and loss.loss for loss in point.losses] == [np.mean(range(91, 101)), 7.0]


def test_the_noise_of_a_mean_of_batches_is_that_of_the_batches_around_it() -> None:
    generator = np.random.default_rng(0)
    noisy = curve([(at, 3.0 + generator.normal(0, 0.1)) for at in range(1, 1001)])
    measured = align_batches("iterations", [noisy, noisy]).points[-1].losses[0]
    assert measured is not None
    assert measured.std == pytest.approx(0.1 / np.sqrt(100), rel=0.6)


def test_the_lowest_common_loss_is_reached_at_an_evaluation() -> None:
    common = find_lowest_common_loss([curve([(0, 4.0), (100, 2.0)]), curve([(0, 4.0), (50, 3.0), (90, 1.0)])])
    assert common is not None
    assert common.loss == 2.0
    assert common.at["iterations"] == (100, 90)
    assert common.after["iterations"] == (0, 50)
