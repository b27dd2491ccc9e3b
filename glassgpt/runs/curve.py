"""Loss curves as numbers: their noise, their smoothed course, and where they are heading. numpy only.

A loss that is still falling follows `L_inf + A t^-b` well enough to look ahead by a factor of two. How far
that can be trusted is measured here too: by leaving points out, by what the fit leaves over, and by fitting
the later points alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from glassgpt.runs.run_log import Floats, Ints

SIGMA_PER_MAD = 1.4826  # of a normal distribution
MEDIAN_TO_MEAN_STDERR = 1.2533  # the standard error of a median, over that of a mean
_CHUNK_ROWS = 65_536  # rows at a time, so that a million of them need no window matrix in memory
_EXPONENTS = np.geomspace(0.05, 2.0, 60)
# Of the predicted gain: a schedule that ends makes the last points steeper than more training would be, and
# no spread of points shows that.
EXTRAPOLATION_ERROR_SHARE = 1 / 3
_MAX_FIT_POINTS = 64  # more add nothing to a fit of three numbers


# --- noise and smoothing ---


def mad(values: Floats) -> float:
    """Median absolute deviation from the median; 0 for nothing."""
    if not len(values):
        return 0.0
    return float(np.median(np.abs(values - np.median(values))))


def robust_std(values: Floats) -> float:
    """The standard deviation, from a spread that outliers do not move."""
    return SIGMA_PER_MAD * mad(values)


def median_stderr(values: Floats) -> float:
    """The standard error of a median, likewise; of nothing it is infinite."""
    return MEDIAN_TO_MEAN_STDERR * robust_std(values) / math.sqrt(len(values)) if len(values) else math.inf


def detrended_std(values: Floats) -> float | None:
    """The standard deviation around a smooth course: each value against the middle of its neighbours. Robust,
    and blind to slope and steady curvature."""
    if len(values) < 5:
        return None
    off = values[1:-1] - (values[:-2] + values[2:]) / 2
    return robust_std(off) / math.sqrt(1.5)


@dataclass(frozen=True)
class BlockMedians:
    """A series in equal parts: the median of each, where it lies, and its standard error."""

    centers: Floats
    medians: Floats
    stderrs: Floats

    def __len__(self) -> int:
        return len(self.medians)


def block_medians(at: Ints | Floats, values: Floats, parts: int) -> BlockMedians:
    """At most that many parts, none empty."""
    parts = max(1, min(parts, len(values)))
    pieces = [piece for piece in np.array_split(np.arange(len(values)), parts) if len(piece)]
    middles = np.array([float(np.mean(at[piece])) for piece in pieces])
    medians = np.array([float(np.median(values[piece])) for piece in pieces])
    errors = np.array([median_stderr(values[piece]) for piece in pieces])
    return BlockMedians(middles, medians, errors)


def trailing_median(values: Floats, width: int) -> Floats:
    """The median of the `width` values before each one; NaN where there are fewer."""
    out = np.full(len(values), np.nan)
    if len(values) <= width:
        return out
    windows = sliding_window_view(values[:-1], width)
    for start in range(0, len(windows), _CHUNK_ROWS):
        part = windows[start : start + _CHUNK_ROWS]
        out[width + start : width + start + len(part)] = np.median(part, axis=1)
    return out


# --- where it is heading ---

_MIN_T, _MAX_T = 1e-9, 1e18  # updates and tokens are between; powers of what is not overflow


@dataclass(frozen=True)
class PowerLaw:
    """floor + scale * t ** -exponent"""

    floor: float
    scale: float
    exponent: float
    residual: float  # root mean square of what is left over

    def at(self, t: float) -> float:
        return self.floor + self.scale * math.pow(t, -self.exponent)


@dataclass(frozen=True)
class LossForecast:
    t: float
    value: float
    error: float  # about one standard deviation


def fit_power_law(t: Floats, values: Floats) -> PowerLaw | None:
    """Least squares, outliers weighed down; None where the values do not fall, or there are too few."""
    t, values = _usable(t, values)
    if len(np.unique(t)) < 4:
        return None
    weights = np.ones(len(t))
    found = None
    for _ in range(3):  # Huber's weights, from the residuals of the fit before
        with np.errstate(all="ignore"):  # losses of 1e300 have been seen; they fit nothing
            found = _fit_exponent(t, values, weights)
        if found is None:
            return None
        left = np.abs(values - np.array([found.at(x) for x in t]))
        limit = 1.5 * SIGMA_PER_MAD * float(np.median(left))
        if limit <= 0:
            break
        weights = np.minimum(1.0, limit / np.maximum(left, 1e-12))
    return found


def _usable(t: Floats, values: Floats) -> tuple[Floats, Floats]:
    keep = np.isfinite(values) & (t > _MIN_T) & (t < _MAX_T)
    return t[keep], values[keep]


def _fit_exponent(t: Floats, values: Floats, weights: Floats) -> PowerLaw | None:
    """For a given exponent floor and scale are linear, so one line of exponents is all there is to search."""
    unit = t / t[-1]  # keeps the powers near 1
    powers = unit[None, :] ** -_EXPONENTS[:, None]
    mass = weights.sum()
    mean_power = powers @ weights / mass
    mean_value = float(values @ weights) / mass
    off_power = powers - mean_power[:, None]
    off_value = values - mean_value
    spread = (off_power**2) @ weights
    scale = (off_power * off_value) @ weights / np.where(spread > 0, spread, np.inf)
    floor = mean_value - scale * mean_power
    # A loss below 0 is none: there the floor is 0, and only the scale is free.
    below = floor < 0
    through_zero = (powers * values) @ weights / ((powers**2) @ weights)
    floor, scale = np.where(below, 0.0, floor), np.where(below, through_zero, scale)
    left = (values - floor[:, None] - scale[:, None] * powers) ** 2 @ weights
    left = np.where(scale > 0, left, np.inf)
    best = int(np.argmin(left))
    if not math.isfinite(left[best]):
        return None
    exponent = float(_EXPONENTS[best])
    residual = math.sqrt(float(left[best]) / mass)
    return PowerLaw(float(floor[best]), float(scale[best]) * float(t[-1]) ** exponent, exponent, residual)


def forecast_loss(
    t: Floats, values: Floats, targets: tuple[float, ...]
) -> tuple[PowerLaw, list[LossForecast]] | None:
    """What the power law says of later times, with an error that holds the spread of the points, the choice
    of points, and the doubt whether one law covers the whole run."""
    t, values = (_thinned(numbers) for numbers in _usable(t, values))
    whole = fit_power_law(t, values)
    if whole is None:
        return None
    count = len(t)
    jackknife = [fit_power_law(np.delete(t, i), np.delete(values, i)) for i in range(count)]
    others = [law for law in jackknife if law is not None]
    late = fit_power_law(t[count // 3 :], values[count // 3 :])
    return whole, [_forecast_at(float(t[-1]), target, whole, others, late) for target in targets]


def _forecast_at(
    now: float, target: float, whole: PowerLaw, others: list[PowerLaw], late: PowerLaw | None
) -> LossForecast:
    value = whole.at(target)
    count = len(others)
    moved = np.array([law.at(target) - value for law in others])
    by_points = math.sqrt((count - 1) / count * float(moved @ moved)) if count else math.inf
    by_part = abs(late.at(target) - value) / 2 if late else 0.0
    by_law = EXTRAPOLATION_ERROR_SHARE * (whole.at(now) - value)
    return LossForecast(target, value, math.hypot(by_points, by_part, by_law, whole.residual))


def _thinned(values: Floats) -> Floats:
    """Evenly picked, the last one always kept."""
    if len(values) <= _MAX_FIT_POINTS:
        return values
    picked: Floats = values[np.linspace(0, len(values) - 1, _MAX_FIT_POINTS).round().astype(int)]
    return picked
