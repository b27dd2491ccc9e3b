"""Where the loss of a run that is under way will be at its planned end: an expected value and an 80% band.

    forecast = forecast_loss_at_end(curve)          # curve: a LossCurve, made by runs/final_loss.py
    forecast.low, forecast.expected, forecast.high

The law has one shape for all runs. Two numbers are fitted to the curve of each run so far:

    loss = now + slope * ((s^-ALPHA - 1) / ALPHA + KAPPA * (lr - lr now))

s is progress: updates weighted by their learning rate, over those done by now. lr is the learning rate over
its peak. The first term is a power law in s; the second is what a falling learning rate brings at once. The
form follows Tissue et al. 2024, "Scaling law with learning rate annealing": there, too, the loss is a power
law of the summed learning rate less a term of how far the rate has fallen. From one unfinished curve the
second term cannot be fitted, because the fall is still to come; that it is proportional to the slope of the
first is what the runs of docs/forecasts.md show.

All constants are fitted to those runs, the width of the band included, by `python -m bench.forecasts`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MIN_POINTS = 5  # of the curve, in the window that is fitted
MAX_WIDTH_SHARE = 0.3  # of the expected loss: a wider band says nothing
_MAX_RISE_ERRORS = 2.0  # standard errors of the slope: a curve that rises by more does rise
_HUBER_ROUNDS, _HUBER_LIMIT = 4, 1.5  # robust standard deviations
_SIGMA_PER_MAD = 1.4826


@dataclass(frozen=True)
class LossCurve:
    """A loss curve after its warm-up, up to now, in the coordinates of the law."""

    progress: Floats  # 1 at the last point
    lr_share: Floats  # learning rate over its peak
    loss: Floats
    end_progress: float  # at the iteration to forecast
    end_lr_share: float
    is_schedule_known: bool  # else the two above assume the present rate, until the end
    is_validation: bool  # else training losses, each the median of several
    is_fine_tuning: bool = False  # or may be: of trained weights, on other text
    end_noise: float = 0.0  # standard error of the loss that will be measured there


@dataclass(frozen=True)
class ForecastLaw:
    """Constants of all runs; the comment of each says of what it is a share or a multiple."""

    alpha: float
    kappa: float
    window: float  # the fit takes the points from the progress 1 / window on
    # A slope is drawn towards a typical one, more so if the curve is noisy. Shares of the loss.
    typical_slope: float
    slope_spread: float
    unknown_decay: float  # share of the present rate that an unknown schedule will take away
    # One standard deviation of the error is the root of the summed squares of these:
    val_share: float  # of the predicted change, validation loss
    train_share: float  # the same, training loss
    unknown_factor: float  # times these, if the schedule is not known
    residual_factor: float  # times the residual of the fit
    fit_factor: float  # times the standard error of the fit at the end
    level_share: float  # of the loss
    fine_tuning_factor: float  # times all of these but the noise at the end, if trained weights are tuned
    # The 80% band, in such standard deviations: a tenth of the runs is below it, a tenth above.
    band_below: float
    band_above: float
    runs: int  # that the constants were fitted to


LAW = ForecastLaw(
    alpha=0.25, kappa=0.719, window=1.41, typical_slope=0.0399, slope_spread=0.391, unknown_decay=0.0438,
    val_share=0.252, train_share=0.342, unknown_factor=1.8, residual_factor=0.351, fit_factor=0.512,
    level_share=0.00516, fine_tuning_factor=1.01, band_below=2.03, band_above=1.26,
    runs=87,
)  # fmt: skip


@dataclass(frozen=True)
class LossForecast:
    expected: float
    low: float
    high: float
    runs: int  # that the band was calibrated on


@dataclass(frozen=True)
class LossFit:
    """The law's two numbers for one run."""

    now: float
    slope: float  # fall of the loss by progress x e, were the learning rate to stay
    residual: float  # standard deviation of the points around the law
    end_error: float  # standard error of the law at the end, from that residual
    change: float  # from now to the end, before the limit at 0


def fit_loss_curve(curve: LossCurve, law: ForecastLaw = LAW) -> LossFit | None:
    """Least squares with Huber weights over the last part of the curve. None: too few points."""
    lr_now = float(curve.lr_share[-1])

    def shape(progress: Floats | float, lr_share: Floats | float) -> Floats:
        return np.asarray((progress**-law.alpha - 1) / law.alpha + law.kappa * (lr_share - lr_now))

    recent = curve.progress >= 1 / law.window
    recent[-MIN_POINTS:] = True
    x, y = shape(curve.progress[recent], curve.lr_share[recent]), curve.loss[recent]
    if len(y) < MIN_POINTS or not np.isfinite(x).all() or np.ptp(x) <= 0:
        return None
    end_progress, end_lr = curve.end_progress, curve.end_lr_share
    if not curve.is_schedule_known:  # it will fall by so much, evenly
        end_lr = lr_now * (1 - law.unknown_decay)
        end_progress = 1 + (end_progress - 1) * (1 - law.unknown_decay / 2)
    end_x = float(shape(end_progress, end_lr))

    weights = np.ones(len(y))
    for _ in range(_HUBER_ROUNDS):
        total = float(weights.sum())
        mean_x, mean_y = float(weights @ x) / total, float(weights @ y) / total
        spread_x = float(weights @ (x - mean_x) ** 2)
        slope = float(weights @ ((x - mean_x) * (y - mean_y))) / spread_x
        residuals = y - mean_y - slope * (x - mean_x)
        limit = _HUBER_LIMIT * _SIGMA_PER_MAD * float(np.median(np.abs(residuals))) + 1e-12
        variance = float(weights @ residuals**2) / max(1.0, total - 2)
        weights = np.minimum(1.0, limit / np.maximum(np.abs(residuals), 1e-12))

    typical, spread = law.typical_slope * abs(mean_y), (law.slope_spread * abs(mean_y)) ** 2 + 1e-18
    slope_variance = variance / spread_x
    slope = (slope * spread + typical * slope_variance) / (spread + slope_variance)
    slope_variance = slope_variance * spread / (spread + slope_variance)
    if 0 > slope > -_MAX_RISE_ERRORS * math.sqrt(slope_variance):
        slope = 0.0  # it may be flat
    now = mean_y - slope * mean_x
    end_error = math.sqrt(variance / total + slope_variance * (end_x - mean_x) ** 2)
    return LossFit(now, slope, math.sqrt(variance), end_error, slope * end_x)


def expect_loss_at_end(
    curve: LossCurve, law: ForecastLaw = LAW, fit: LossFit | None = None
) -> tuple[float, float] | None:
    """The expected loss and one standard deviation. None: the curve rises, or has too few points. `fit`: that
    of the same curve and law, if it is known."""
    fit = fit or fit_loss_curve(curve, law)
    if fit is None or fit.now <= 0 or fit.slope < 0:
        return None
    # A loss cannot fall below 0: large falls are shares of what is left.
    expected = fit.now * math.exp(fit.change / fit.now) if fit.change < 0 else fit.now + fit.change
    share = law.val_share if curve.is_validation else law.train_share
    if not curve.is_schedule_known:
        share *= law.unknown_factor
    law_error = math.hypot(
        share * (fit.now - expected),
        law.residual_factor * fit.residual,
        law.fit_factor * fit.end_error,
        law.level_share * fit.now,
    )
    factor = law.fine_tuning_factor if curve.is_fine_tuning else 1.0
    return expected, math.hypot(factor * law_error, curve.end_noise)


def forecast_loss_at_end(curve: LossCurve, law: ForecastLaw = LAW) -> LossForecast | None:
    """None where nothing is expected, or the band would be too wide to be of use."""
    estimate = expect_loss_at_end(curve, law)
    if estimate is None:
        return None
    expected, deviation = estimate
    low, high = max(0.0, expected - law.band_below * deviation), expected + law.band_above * deviation
    if not math.isfinite(high) or high - low > MAX_WIDTH_SHARE * expected:
        return None
    return LossForecast(expected, low, high, law.runs)
