"""A measured loss is on the expected curve or not, and causes come likeliest first."""

from __future__ import annotations

import math

import pytest
from reference_curves import CURVES, SHAKESPEARE

from glassgpt.estimate.loss_law import compare_with_expected, predict_loss_curve


@pytest.mark.parametrize(
    ("loss", "side", "words"),
    [
        (1.52, "on", "on the expected curve: 1.52 at iteration 1,000"),
        (2.30, "above", "above: 2.30 at iteration 1,000, where 1.4"),
        (0.90, "below", "below: 0.90 at iteration 1,000, where 1.4"),
        (math.nan, "above", "above: not a number"),
        (math.inf, "above", "above: inf"),
    ],
)
def test_a_measured_loss_is_on_the_course_or_not(loss: float, side: str, words: str) -> None:
    verdict = compare_with_expected(predict_loss_curve(SHAKESPEARE), 1000, loss)
    assert verdict.position == side
    assert verdict.sentence.startswith(words)
    assert bool(verdict.causes) == (side != "on")


def test_causes_come_likeliest_first() -> None:
    ahead = predict_loss_curve(SHAKESPEARE)
    assert "overfits" in compare_with_expected(ahead, 4000, 2.5).causes[0]
    assert "learning rate" in compare_with_expected(ahead, 50, 4.0).causes[0]
    assert "diverged" in compare_with_expected(ahead, 1000, 9.0).causes[0]
    assert "diverged" in compare_with_expected(ahead, 1000, math.nan).causes[0]
    assert "easier" in compare_with_expected(ahead, 1000, 0.5).causes[0]


def test_a_run_on_its_course_stays_on_it() -> None:
    for setup, curve in CURVES.values():
        sides = [compare_with_expected(predict_loss_curve(setup), at, loss).position for at, loss in curve]
        assert sides.count("on") >= 0.9 * len(sides)
