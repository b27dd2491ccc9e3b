"""Where a loss curve is heading, and how much of it is noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from learning_logs import CPU_VAL

from glassgpt.runs.curve_statistics import (
    block_medians,
    detrended_std,
    fit_power_law,
    forecast_loss,
    is_level,
    mad,
    recurrence,
    trailing_median,
    trend,
    turning_row,
)
from glassgpt.runs.log_numbers import clamp_loss


@pytest.mark.parametrize(("floor", "scale", "exponent"), [(1.5, 6.0, 0.4), (0.0, 8.0, 0.1), (2.9, 30.0, 0.9)])
def test_a_power_law_is_found_again(floor: float, scale: float, exponent: float) -> None:
    t = np.arange(250.0, 5001, 250)
    law = fit_power_law(t, floor + scale * t**-exponent)
    assert law is not None
    assert law.at(10_000) == pytest.approx(floor + scale * 10_000**-exponent, abs=0.01)


def test_one_outlier_does_not_bend_it() -> None:
    t = np.arange(250.0, 5001, 250)
    values = 1.5 + 6 * t**-0.4
    values[10] += 0.5
    law = fit_power_law(t, values)
    assert law is not None
    assert law.at(10_000) == pytest.approx(1.5 + 6 * 10_000**-0.4, abs=0.02)


def test_what_rises_is_no_power_law() -> None:
    t = np.arange(1.0, 20)
    assert fit_power_law(t, t) is None
    assert fit_power_law(t[:3], -t[:3]) is None


def test_the_error_grows_with_the_noise_and_the_distance() -> None:
    t = np.arange(250.0, 5001, 250)
    clean = 1.5 + 6 * t**-0.4
    noise = np.random.default_rng(0).normal(0, 0.03, len(t))
    sure, unsure = (
        forecast_loss(t, clean, (7500.0, 10_000.0)),
        forecast_loss(t, clean + noise, (7500.0, 10_000.0)),
    )
    assert sure is not None
    assert unsure is not None
    assert sure[1][0].error < sure[1][1].error < unsure[1][1].error


def test_the_readme_run_twice_as_long() -> None:
    """GlassGPT trained the same model for 4000 iterations, the schedule stretched: 1.726 at the end."""
    t = np.arange(250.0, 2001, 250)
    forecast = forecast_loss(t, np.array(CPU_VAL[1:]), (4000.0,))
    assert forecast is not None
    (ahead,) = forecast[1]
    assert abs(ahead.value - 1.726) < ahead.error < 0.1


def test_scatter_sees_noise_and_no_slope() -> None:
    line = np.linspace(5, 1, 400)
    assert detrended_std(line) == pytest.approx(0, abs=1e-9)
    assert detrended_std(line + np.random.default_rng(0).normal(0, 0.1, 400)) == pytest.approx(0.1, rel=0.2)
    assert detrended_std(line[:4]) is None


def test_blocks_are_medians() -> None:
    made = block_medians(np.arange(9), np.array([1.0, 2, 99, 4, 5, 6, 7, 8, 9]), 3)
    assert made.medians.tolist() == [2, 5, 8]
    assert made.centers.tolist() == [1, 4, 7]
    assert len(block_medians(np.arange(2), np.array([1.0, 2]), 30)) == 2


def test_the_trailing_median_looks_back_only() -> None:
    out = trailing_median(np.array([1.0, 2, 3, 100, 4]), 3)
    assert out[3:].tolist() == [2, 3]
    assert np.isnan(out[:3]).all()
    assert np.isnan(trailing_median(np.ones(3), 3)).all()
    assert mad(np.array([])) == 0


@given(st.lists(st.floats(-1e6, 1e6), max_size=30), st.integers(1, 10))
def test_the_trailing_median_is_a_median(values: list[float], width: int) -> None:
    out = trailing_median(np.array(values), width)
    for i in range(width, len(values)):
        assert out[i] == pytest.approx(float(np.median(values[i - width : i])))


@pytest.mark.filterwarnings("error::RuntimeWarning")
@given(st.lists(st.tuples(st.floats(), st.floats().map(clamp_loss)), max_size=12))
@example([(1.0, 0.0), (2.0, 0.0), (3.3e-189, 0.0), (7.4e-193, 1.0)])
@example([(1e200, 3.0), (1e201, 2.0), (1e202, 1.5), (1e203, 1.2)])
def test_any_points_are_survived(points: list[tuple[float, float]]) -> None:
    t, losses = (np.array([point[index] for point in points]) for index in (0, 1))
    result = forecast_loss(t, losses, targets=(100.0,))
    assert result is None or len(result[1]) == 1


def test_a_few_values_that_fell_and_rose_again() -> None:
    values = np.array([10.47, 10.67, 10.09, 10.18, 9.18, 8.24, 7.73, 7.82, 8.00, 9.69, 9.95])
    assert turning_row(values) == 6
    assert turning_row(values[:9]) is None  # not far up yet
    single = np.array([10.4, 10.6, 10.1, 10.2, 10.3, 7.7, 10.2, 10.1, 9.9, 10.0])
    assert turning_row(single) is None
    assert turning_row(np.linspace(10.0, 2.0, 11)) is None


def test_four_values_show_a_fall_that_is_far_beyond_their_last_step() -> None:
    assert trend(np.array([8.3368, 1.2565, 0.4951, 0.4270])) == "falls"
    assert trend(np.array([2.0, 1.9, 2.0, 1.8])) is None
    assert trend(np.array([8.3368, 1.2565, 0.4951])) is None


def test_a_trend_is_of_all_values() -> None:
    """Ten values at each end of a noisy curve say less than all of them."""
    rng = np.random.default_rng(0)
    slow = np.linspace(1.2, 1.0, 2000) + rng.normal(0, 0.45, 2000)
    assert trend(slow) == "falls"
    assert trend(slow[::-1]) == "rises"
    at_once = np.append(np.linspace(6.0, 1.0, 20), 1 + rng.normal(0, 0.05, 980))
    assert trend(at_once) == "falls"  # and level from there on
    noisy = np.linspace(3.3, 2.9, 12) + rng.normal(0, 0.05, 12)
    assert trend(noisy) == "falls"
    outlier = np.append(np.full(50, 2.0) + rng.normal(0, 0.05, 50), 90.0)
    assert trend(outlier) is None


def test_noise_has_no_trend() -> None:
    """Neither independent noise nor one whose neighbours are alike."""
    rng = np.random.default_rng(1)
    for share, most in ((0.0, 0.03), (0.8, 0.06)):
        found = 0
        for _ in range(200):
            noise = rng.normal(0, 0.1, 1000)
            for row in range(1, len(noise)):
                noise[row] += share * noise[row - 1]
            found += trend(2 + noise) is not None
        assert found <= most * 200


def test_ends_that_differ_by_less_than_they_scatter() -> None:
    noisy = [1.95, 0.77, 1.38, 0.62, 0.57, *[0.8] * 40, 0.75, 1.38, 0.61, 2.51, 1.04]
    assert is_level(np.array(noisy))
    assert not is_level(np.array([one + 3 for one in noisy[:10]] + noisy[10:]))
    assert not is_level(np.array([2.0]))


def test_a_curve_whose_ups_and_downs_come_again() -> None:
    rng = np.random.default_rng(0)
    epoch, noise = rng.normal(0, 0.1, 120), rng.normal(0, 0.05, 480)
    falling = np.linspace(4, 2, 480)
    assert recurrence(falling + np.tile(epoch, 4) + noise) == 120
    assert recurrence(falling + noise) is None
    assert recurrence(falling) is None  # alike at any distance
    assert recurrence((falling + noise)[:125]) is None  # the shortest, less what the median takes
    assert recurrence((falling + np.tile(epoch, 4))[:250]) is None  # two epochs
