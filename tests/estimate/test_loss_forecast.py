"""Forecasts of the final loss: a law that is found again, a band that holds the truth, and silence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glassgpt.estimate.loss_forecast import (
    LAW,
    MAX_WIDTH_SHARE,
    LossCurve,
    expect_loss_at_end,
    fit_loss_curve,
    forecast_loss_at_end,
)


def lawful_curve(
    now: float = 3.3,
    slope: float = 0.25,
    *,
    points: int = 20,
    lr_now: float = 1.0,
    end_progress: float = 1.4,
    end_lr: float = 0.0,
    noise: float = 0.0,
    seed: int = 0,
) -> tuple[LossCurve, float]:
    """A curve of the law itself, and its loss at the end."""
    progress = np.linspace(0.1, 1.0, points)
    lr_share = np.linspace(1.0, lr_now, points)

    def loss(s: np.ndarray | float, lr: np.ndarray | float) -> np.ndarray:
        return np.asarray(now + slope * ((s**-LAW.alpha - 1) / LAW.alpha + LAW.kappa * (lr - lr_now)))

    losses = loss(progress, lr_share) + np.random.default_rng(seed).normal(0, noise, points)
    curve = LossCurve(progress, lr_share, losses, end_progress, end_lr, True, True)
    return curve, float(loss(end_progress, end_lr))


@pytest.mark.parametrize(("lr_now", "end_lr"), [(1.0, 1.0), (1.0, 0.0), (0.6, 0.1), (0.2, 0.0)])
def test_a_curve_of_the_law_is_continued(lr_now: float, end_lr: float) -> None:
    curve, truth = lawful_curve(lr_now=lr_now, end_lr=end_lr)
    fit = fit_loss_curve(curve)
    assert fit is not None
    assert fit.now == pytest.approx(3.3, abs=1e-6)
    assert fit.slope == pytest.approx(0.25, rel=1e-4)
    expected, _ = expect_loss_at_end(curve) or (0.0, 0.0)
    # Large falls are shares of what is left, so that no loss falls below 0: a second-order difference.
    assert expected == pytest.approx(truth, abs=(3.3 - truth) ** 2 / 3.3)


def test_a_falling_learning_rate_lowers_the_forecast() -> None:
    stays, falls = (forecast_loss_at_end(lawful_curve(end_lr=share)[0]) for share in (1.0, 0.0))
    assert stays is not None
    assert falls is not None
    assert stays.expected - falls.expected == pytest.approx(0.25 * LAW.kappa, rel=0.1)


def test_a_forecast_is_never_negative() -> None:
    curve, _ = lawful_curve(now=0.02, slope=0.05, end_progress=3.0)
    expected, _ = expect_loss_at_end(curve) or (-1.0, 0.0)
    assert 0 < expected < 0.02
    assert forecast_loss_at_end(curve) is None  # the band is wider than the loss


def test_one_outlier_hardly_moves_it() -> None:
    curve, _ = lawful_curve(points=40)
    losses = curve.loss.copy()
    losses[-8] += 1.0
    clean, dirty = expect_loss_at_end(curve), expect_loss_at_end(replace(curve, loss=losses))
    assert clean is not None
    assert dirty is not None
    assert dirty[0] == pytest.approx(clean[0], abs=0.02)


def test_the_band_widens_with_what_is_not_known() -> None:
    curve, _ = lawful_curve(noise=0.003, end_lr=1.0)
    noisy, _ = lawful_curve(noise=0.05, end_lr=1.0)
    widths = [
        forecast.high - forecast.low
        for one in (
            curve,
            noisy,
            replace(curve, is_schedule_known=False),
            replace(curve, is_fine_tuning=True),
            replace(curve, end_noise=0.05),
            replace(curve, end_progress=2.5),
        )
        if (forecast := forecast_loss_at_end(one))
    ]
    assert len(widths) == 6
    assert all(width > widths[0] for width in widths[1:])


def test_what_rises_or_is_too_short_or_too_wild_gets_none() -> None:
    curve, _ = lawful_curve()
    assert forecast_loss_at_end(replace(curve, loss=curve.loss[::-1])) is None
    short, _ = lawful_curve(points=4)
    assert forecast_loss_at_end(short) is None
    wild, _ = lawful_curve(now=0.5, slope=0.02, noise=0.2)
    estimate = expect_loss_at_end(wild)
    assert estimate is None or 2 * LAW.band_below * estimate[1] > MAX_WIDTH_SHARE * estimate[0]
    assert forecast_loss_at_end(wild) is None


def test_a_flat_noisy_curve_stays_where_it_is() -> None:
    curves = [lawful_curve(slope=0.0, noise=0.01, end_progress=1.2, points=40, seed=n)[0] for n in range(10)]
    forecasts = [forecast for curve in curves if (forecast := forecast_loss_at_end(curve))]
    assert len(forecasts) >= 6  # of the others the slope seems to rise
    assert sum(forecast.low < 3.3 < forecast.high for forecast in forecasts) >= 0.8 * len(forecasts)
    assert all(forecast.expected == pytest.approx(3.3, abs=0.05) for forecast in forecasts)


def test_the_band_holds_other_laws_about_as_often() -> None:
    """Power laws with other exponents, and other gains of the annealing, around those of the constants."""
    rng = np.random.default_rng(1)
    hits = said = 0
    for _ in range(200):
        cut = rng.uniform(0.3, 0.8)
        end_progress = (cut + (1 - cut) / 2) / cut  # linear decay from the cut on
        alpha, gain = rng.uniform(0.2, 0.8), rng.uniform(0.4, 1.1)
        now, slope, noise = rng.uniform(1.5, 4.0), rng.uniform(0.1, 0.5), rng.uniform(0.001, 0.01)
        progress = np.linspace(0.1, 1.0, 25)
        losses = now + slope * (progress**-alpha - 1) / alpha + rng.normal(0, noise, 25)
        truth = now + slope * ((end_progress**-alpha - 1) / alpha - gain) + rng.normal(0, noise)
        forecast = forecast_loss_at_end(
            LossCurve(progress, np.ones(25), losses, end_progress, 0.0, True, True)
        )
        if forecast is not None:
            said += 1
            hits += forecast.low <= truth <= forecast.high
    assert said > 180
    assert 0.7 < hits / said < 0.99
