"""Loss curves as numbers: noise, smoothing, and extrapolation by a power law. numpy only.

    law, (forecast,) = forecast_loss(iterations, losses, targets=(2.0 * iterations[-1],))

A loss that is still falling follows `L_inf + A t^-b` well enough to extrapolate by a factor of two. The error
of a forecast comes from leaving points out, from the residuals, and from a fit of the later points alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

if TYPE_CHECKING:  # run_log asks metric_series, which asks this
    from glassgpt.runs.run_log import Floats, Ints

SIGMA_PER_MAD = 1.4826  # of a normal distribution
MEDIAN_TO_MEAN_STDERR = 1.2533  # the standard error of a median, over that of a mean
_CHUNK_ROWS = 65_536  # rows at a time, so that a million of them need no window matrix in memory
_EXPONENTS = np.geomspace(0.05, 2.0, 60)
# Of the predicted gain. A learning rate that decays to its end makes the last points steeper than further
# training would be, which the scatter of the points does not show.
EXTRAPOLATION_ERROR_SHARE = 1 / 3
# Lines at each end of a curve: so few say where it began. Where their means differ by less than so many
# standard errors, a tenth of all lines is taken.
_MAX_END_LINES, _CLEAR_END_ERRORS = 10, 3.0
# A trend: two tests of ranks over at most so many blocks; or nearly all go one way, by so many of the
# standard deviations of the late changes; or a step from the first to those of the second half, in their
# standard deviations and as a share of it; of few values both are uncertain.
_TREND_BLOCKS, _MIN_TREND_VALUES, _MIN_TREND_ERRORS, _MIN_BLOCK = 60, 4, 2.5, 5
_MIN_STEADY_SHARE, _MIN_STEADY_TO_SCATTER = 0.8, 5.0
_MIN_STEP_TO_SCATTER, _MIN_STEP_SHARE, _FEW_VALUES = 4.0, 0.02, 3.0
_MIN_AUTOCORRELATION, _MAX_AUTOCORRELATION = 1.64, 0.95  # the former over sqrt(values): less may be chance
# A fall and a rise that a few lines show: so many, and both as a share of the lowest and of a usual step.
_MIN_TURN_LINES, _MIN_TURN_SHARE, _MIN_TURN_STEPS = 8, 0.15, 3.0
# Losses that come again: over so many periods at least, of so many values at least, compared with the median
# of those before, by so high a correlation.
_PERIODS, _MIN_PERIOD, _RECURRENCE_WINDOW, _MIN_RECURRENCE, _MIN_PEAK_RATIO = 2.5, 50, 25, 0.5, 3.0
_MIN_NOISE_VALUES, _MIN_COMPARED_LINES = 8, 4  # for is_noise: values, and those at each end
_MAX_EVEN_RATIO = 2.0  # of iterations in a line: up to this they count alike
_MAX_FIT_POINTS = 64  # enough for a fit of three numbers


# --- noise and smoothing ---


def mad(values: Floats) -> float:
    """Median absolute deviation from the median; 0 for no values."""
    if not len(values):
        return 0.0
    return float(np.median(np.abs(values - np.median(values))))


def robust_std(values: Floats) -> float:
    """The standard deviation, estimated from the MAD, which outliers do not move."""
    return SIGMA_PER_MAD * mad(values)


def median_by_iteration(values: Floats, iterations: Floats) -> float | None:
    """The median over iterations, of which each value is the mean of so many. The plain median where the
    numbers are about equal; None for no values."""
    if not len(values):
        return None
    few, many = np.percentile(iterations, (10, 90))  # a single short interval at the end changes nothing
    if many <= _MAX_EVEN_RATIO * few:
        return float(np.median(values))
    order = np.argsort(values, kind="stable")
    covered = np.cumsum(iterations[order])
    return float(values[order][np.searchsorted(covered, covered[-1] / 2)])


def median_stderr(values: Floats) -> float:
    """The standard error of the median, estimated the same way; infinite for no values."""
    return MEDIAN_TO_MEAN_STDERR * robust_std(values) / math.sqrt(len(values)) if len(values) else math.inf


def detrended_std(values: Floats) -> float | None:
    """The standard deviation around a smooth curve: of each value minus the mean of its neighbours. Outliers,
    slope and constant curvature do not change it."""
    if len(values) < 5:
        return None
    differences = values[1:-1] - (values[:-2] + values[2:]) / 2
    return robust_std(differences) / math.sqrt(1.5)


@dataclass(frozen=True)
class EndMeans:
    """A curve at both ends: the means of its first and of its last values, so many of each."""

    first: float
    last: float
    lines: int


def end_means(values: Floats) -> EndMeans | None:
    """A single line of a noisy curve says little. Of a short curve there is nothing to average."""
    if len(values) < 2:
        return None
    lines = max(1, min(_MAX_END_LINES, len(values) // 5))
    if not _ends_differ(values, lines):
        lines = max(lines, len(values) // 10)
    return EndMeans(float(np.mean(values[:lines])), float(np.mean(values[-lines:])), lines)


def _ends_differ(values: Floats, lines: int) -> bool:
    first, last = values[:lines], values[-lines:]
    with np.errstate(over="ignore"):  # of a loss of 1e200
        error = math.sqrt(float(np.var(first) + np.var(last)) / lines)
    return abs(float(np.mean(first) - np.mean(last))) > _CLEAR_END_ERRORS * error


def is_level(values: Floats) -> bool:
    """Whether neither all values together nor the means of both ends show a change."""
    ends = end_means(values)
    return ends is not None and trend(values) is None and not _ends_differ(values, ends.lines)


def is_noise(values: Floats) -> bool:
    """Whether nothing in their order is more than chance: no trend, and neighbours differ as much as any two
    (von Neumann's ratio, which is 2 then). Of few values it cannot be said."""
    if len(values) < _MIN_NOISE_VALUES or trend(values) is not None:
        return False
    ends = end_means(values)
    if ends is not None and ends.lines >= _MIN_COMPARED_LINES and _ends_differ(values, ends.lines):
        return False
    least = 2 - _MIN_TREND_ERRORS * 2 / math.sqrt(len(values))
    return float(np.mean(np.diff(values) ** 2)) > max(0.0, least) * float(np.var(values))


def trend(values: Floats) -> Literal["falls", "rises"] | None:
    """What all values show together; None: no clear trend.

    Outliers do not move the medians of blocks, nor the ranks that are compared. Where neighbours are alike,
    the tests are the less sure of it (Hamed and Rao 1998). A curve that falls at once and is level from there
    on shows in the step between its beginning and its second half."""
    count = min(_TREND_BLOCKS, len(values))
    if count < _MIN_TREND_VALUES:
        return None
    medians = np.array([float(np.median(block)) for block in np.array_split(values, count)])
    late = medians[count // 2 :]
    early = medians[: 1 if len(values) >= _MIN_BLOCK * count else 2]  # a single value may be odd
    step = float(np.median(late)) - early
    least = max(
        _MIN_STEP_TO_SCATTER * (1 + _FEW_VALUES / len(late)) * float(np.std(late, ddof=1)),
        _MIN_STEP_SHARE * abs(float(medians[0])),
    )
    errors = _rank_errors(medians)
    steps = np.diff(medians)
    late_steps = steps[count // 2 :]  # a single one has no scatter: then its size counts
    scatter = float(np.std(late_steps)) if len(late_steps) > 1 else float(np.abs(late_steps).max())
    rises = float(np.mean(medians[-2:])) > float(np.mean(medians[:2]))
    sign = 1 if rises else -1
    is_steady = (
        np.count_nonzero(sign * steps > 0) >= _MIN_STEADY_SHARE * len(steps)
        and abs(float(medians[-1] - medians[0])) > _MIN_STEADY_TO_SCATTER * scatter
    )
    if is_steady or sign * errors >= _MIN_TREND_ERRORS or float((sign * step).min()) > least:
        return "rises" if rises else "falls"
    return None


def _rank_errors(values: Floats) -> float:
    """How many standard errors the order of the values is from that of no trend, the further of two tests;
    below 0 where they fall. Kendall's S sees a change all the way. That of the first quarter and the second
    half (Mann and Whitney's U) sees one that ends early."""
    count = len(values)
    signs = np.sign(values[None, :] - values[:, None])
    kendall = float(np.triu(signs, 1).sum()) / math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    early, late = count // 4, count - count // 2
    ends = float(signs[:early, -late:].sum()) / 2
    ends /= math.sqrt(max(1, early * late) * (early + late + 1) / 12)
    ranks, at = np.argsort(np.argsort(values, kind="stable")).astype(float), np.arange(count)
    rest = ranks - np.polyval(np.polyfit(at, ranks, 2), at)
    squares = float(rest @ rest)
    alike = float(rest[1:] @ rest[:-1]) / squares if squares > 1e-9 else 0.0
    errors = max(kendall, ends, key=abs)
    if alike > _MIN_AUTOCORRELATION / math.sqrt(count):
        alike = min(alike, _MAX_AUTOCORRELATION)
        errors /= math.sqrt((1 + alike) / (1 - alike))
    return errors


def turning_row(values: Floats) -> int | None:
    """The row of the lowest of a few values that fell far and rose far again, to their end; else None."""
    if len(values) < _MIN_TURN_LINES:
        return None
    row = int(np.argmin(values))
    if not 2 <= row <= len(values) - 3:
        return None
    least = max(
        _MIN_TURN_SHARE * abs(float(values[row])),
        _MIN_TURN_STEPS * float(np.median(np.abs(np.diff(values)))),
    )
    low = float(np.median(values[row - 1 : row + 2]))  # a single low value is no turn
    return row if min(values[:2].min(), values[-2:].min()) - low > least else None


def recurrence(values: Floats) -> int | None:
    """After how many values their ups and downs come again, by the correlation of those that are so far
    apart: as where each epoch has the same batches in the same order. None where they do not."""
    count = len(values)
    if count < _PERIODS * _MIN_PERIOD or (values <= 0).any():
        return None
    logs = np.log(values)
    rest = (logs - trailing_median(logs, _RECURRENCE_WINDOW))[_RECURRENCE_WINDOW:]
    rest = np.clip(rest, *np.percentile(rest, (1, 99)))  # a single spike is no pattern
    rest -= rest.mean()
    count = len(rest)
    power = np.abs(np.fft.rfft(rest, 2 * count)) ** 2
    last = int(count / _PERIODS)
    if last < _MIN_PERIOD:
        return None
    alike = np.fft.irfft(power)[: last + 1] / (count - np.arange(last + 1))
    period = _MIN_PERIOD + int(np.argmax(alike[_MIN_PERIOD:]))
    one, other = rest[:-period], rest[period:]
    # Other distances are not as alike: else it is a slow course, not a pattern.
    stands_out = alike[period] > _MIN_PEAK_RATIO * float(np.median(np.abs(alike[_MIN_PERIOD:])))
    if not stands_out or not one.std() > 0 < other.std():
        return None
    return period if np.corrcoef(one, other)[0, 1] >= _MIN_RECURRENCE else None


@dataclass(frozen=True)
class BlockMedians:
    """A series in equal blocks: the center of each, its median, and the standard error of that."""

    centers: Floats
    medians: Floats
    stderrs: Floats

    def __len__(self) -> int:
        return len(self.medians)


def block_medians(at: Ints | Floats, values: Floats, parts: int) -> BlockMedians:
    """At most that many blocks, none empty."""
    parts = max(1, min(parts, len(values)))
    blocks = [block for block in np.array_split(np.arange(len(values)), parts) if len(block)]
    centers = np.array([float(np.mean(at[block])) for block in blocks])
    medians = np.array([float(np.median(values[block])) for block in blocks])
    stderrs = np.array([median_stderr(values[block]) for block in blocks])
    return BlockMedians(centers, medians, stderrs)


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


def leading_median(values: Floats, width: int) -> Floats:
    """The median of each value and those after it, `width` in all; of the last ones none."""
    return np.append(trailing_median(values, width)[width:], np.median(values[-width:]))


# --- extrapolation ---

_MIN_T, _MAX_T = 1e-9, 1e18  # updates and tokens are between; powers of others overflow


@dataclass(frozen=True)
class PowerLaw:
    """floor + scale * t ** -exponent"""

    floor: float
    scale: float
    exponent: float
    residual: float  # root mean square

    def at(self, t: float) -> float:
        return self.floor + self.scale * math.pow(t, -self.exponent)


@dataclass(frozen=True)
class LossForecast:
    t: float
    value: float
    error: float  # about one standard deviation


def fit_power_law(t: Floats, values: Floats) -> PowerLaw | None:
    """Least squares with Huber weights; None where the values do not fall, or there are too few."""
    t, values = _usable(t, values)
    if len(np.unique(t)) < 4:
        return None
    weights = np.ones(len(t))
    law = None
    for _ in range(3):  # weights from the residuals of the previous fit
        law = _fit_weighted(t, values, weights)
        if law is None:
            return None
        residuals = np.abs(values - np.array([law.at(x) for x in t]))
        limit = 1.5 * SIGMA_PER_MAD * float(np.median(residuals))
        if limit <= 0:
            break
        weights = np.minimum(1.0, limit / np.maximum(residuals, 1e-12))
    return law


def _usable(t: Floats, values: Floats) -> tuple[Floats, Floats]:
    keep = np.isfinite(values) & (t > _MIN_T) & (t < _MAX_T)
    return t[keep], values[keep]


def _fit_weighted(t: Floats, values: Floats, weights: Floats) -> PowerLaw | None:
    """For a given exponent, floor and scale are a linear fit, so only the exponent is searched, on a grid."""
    unit = t / t[-1]  # keeps the powers near 1
    powers = unit[None, :] ** -_EXPONENTS[:, None]
    total_weight = weights.sum()
    mean_power = powers @ weights / total_weight
    mean_value = float(values @ weights) / total_weight
    centered_powers = powers - mean_power[:, None]
    variance = (centered_powers**2) @ weights
    covariance = (centered_powers * (values - mean_value)) @ weights
    scale = covariance / np.where(variance > 0, variance, np.inf)
    floor = mean_value - scale * mean_power
    # A loss cannot be below 0: there the floor is 0, and only the scale is fitted.
    below = floor < 0
    scale_through_zero = (powers * values) @ weights / ((powers**2) @ weights)
    floor, scale = np.where(below, 0.0, floor), np.where(below, scale_through_zero, scale)
    squares = (values - floor[:, None] - scale[:, None] * powers) ** 2 @ weights
    squares = np.where(scale > 0, squares, np.inf)
    best = int(np.argmin(squares))
    if not math.isfinite(squares[best]):
        return None
    exponent = float(_EXPONENTS[best])
    residual = math.sqrt(float(squares[best]) / total_weight)
    return PowerLaw(float(floor[best]), float(scale[best]) * float(t[-1]) ** exponent, exponent, residual)


def forecast_loss(
    t: Floats, values: Floats, targets: tuple[float, ...]
) -> tuple[PowerLaw, list[LossForecast]] | None:
    """The power law, and its values at later times. Their error includes the residuals, the choice of points
    (jackknife), and the doubt whether one law fits the whole run."""
    t, values = _usable(t, values)
    if len(t) > _MAX_FIT_POINTS:  # evenly picked, the last one included
        picked = np.linspace(0, len(t) - 1, _MAX_FIT_POINTS).round().astype(int)
        t, values = t[picked], values[picked]
    law = fit_power_law(t, values)
    if law is None:
        return None
    fits = (fit_power_law(np.delete(t, i), np.delete(values, i)) for i in range(len(t)))
    jackknife = [fit for fit in fits if fit is not None]
    count = len(jackknife)
    late_law = fit_power_law(t[len(t) // 3 :], values[len(t) // 3 :])
    forecasts = []
    for target in targets:
        value = law.at(target)
        moved = np.array([fit.at(target) - value for fit in jackknife])
        points_error = math.sqrt((count - 1) / count * float(moved @ moved)) if count else math.inf
        late_error = abs(late_law.at(target) - value) / 2 if late_law else 0.0
        law_error = EXTRAPOLATION_ERROR_SHARE * (law.at(float(t[-1])) - value)
        error = math.hypot(points_error, late_error, law_error, law.residual)
        forecasts.append(LossForecast(target, value, error))
    return law, forecasts
