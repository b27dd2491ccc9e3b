"""The size of a model, read back from how fast its trainer says it was.

    MFU = FLOPs per token x tokens per second / peak       so the FLOPs per token follow from the other three,
    FLOPs per token = 6 N + 12 x layers x width x context  and the parameters N from those and the shape.

N is all parameters but positions. A log rounds its MFU, so what is read back
has an error; where that is above MAX_ERROR nothing is inferred.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from glassgpt.runs.run_log import Floats, RunLog

if TYPE_CHECKING:  # facts may ask here, so this module must not ask there
    pass

MAX_FLOPS_ERROR = 0.02  # of the FLOPs per token: a model size is told apart from the next one well above this

_MFU_EMA_DECAY = 0.9  # of the last value, in a running average
_MIN_DEAVERAGED_ROWS = (
    8  # iterations from which on taking the running average apart beats reading it as it is
)
_MIN_PARAMETER_MISMATCH = 0.07  # of the parameters: further apart than rounding and conventions explain
_INTEGER_TOLERANCE = 0.03  # of an integer
_MAX_SETTING = 10**15  # a setting beyond is no size of anything, and its products are no floats


@dataclass(frozen=True)
class InferredFlops:
    flops_per_token: float
    relative_error: float  # relative: what rounding and scatter leave open


@dataclass(frozen=True)
class IterationFlops:
    """What an iteration computes, on all devices that the log knows of."""

    flops: float
    relative_error: float  # relative


def flops_per_iteration(history: RunLog) -> IterationFlops | None:
    """By the log's own MFU and times; the tokens of an iteration need not be known."""
    peak = stated_peak_flops(history)
    if not peak:
        return None
    with np.errstate(all="ignore"):  # times and MFUs of 1e308 have been seen
        products, errors = _mfu_ms_products(history)
        if not len(products):
            return None
        middle = float(np.median(products))
        if not (math.isfinite(middle) and middle > 0):
            return None
        error = _error(products, errors, middle)
    # MFU is about one device.
    return IterationFlops(middle * peak / 100 / 1000 * device_count(history), error)


def infer_flops_per_token(history: RunLog, tokens_per_iteration: int | None) -> InferredFlops | None:
    work = flops_per_iteration(history) if tokens_per_iteration and tokens_per_iteration > 0 else None
    if work is None or not tokens_per_iteration:
        return None
    return InferredFlops(work.flops / tokens_per_iteration, work.relative_error)


def mismatching_parameters(history: RunLog, claimed: int | None, found: InferredFlops) -> int | None:
    """The parameters that MFU and times imply, where these are not those claimed; None where they agree, or
    where something else explains why they do not.

    Tokens are of all devices and MFU is of one, so devices that the log does not mention make a model look
    smaller. An integer is the mark of such devices, or of micro-steps that are not counted.
    """
    attention = attention_flops(history)
    implied = parameters_from_flops(found.flops_per_token, history)
    if not claimed or attention is None or implied is None or found.relative_error > MAX_FLOPS_ERROR:
        return None
    ratio = (6 * claimed + attention) / found.flops_per_token
    if (
        nearest_multiple(ratio)
        or nearest_multiple(1 / ratio)
        or (history.setup.world_size is None and ratio > 1.5)
    ):
        return None
    # Attention is part of what was measured, so its share makes the rest less certain.
    uncertain = found.relative_error * found.flops_per_token / (6 * implied)
    return implied if abs(implied / claimed - 1) > max(_MIN_PARAMETER_MISMATCH, 2 * uncertain) else None


def nearest_multiple(ratio: float) -> int | None:
    """The integer from 2 on that this is, within what rounding allows."""
    if not (math.isfinite(ratio) and ratio > 1.5):
        return None
    nearest = round(ratio)
    return nearest if abs(ratio / nearest - 1) <= _INTEGER_TOLERANCE else None


def parameters_from_flops(flops_per_token: float, history: RunLog) -> int | None:
    """N = (F - 12 x layers x width x context) / 6"""
    attention = attention_flops(history)
    if (
        attention is None
        or not attention < flops_per_token < math.inf
        or not history.trainer.mfu_counts_palm_flops
    ):
        return None
    return round((flops_per_token - attention) / 6)


def attention_flops(history: RunLog) -> int | None:
    """What attention's two products cost per token, where the log says the shape."""
    sides = [history.setup.settings.get(name) for name in ("n_layer", "n_embd", "block_size")]
    whole = [side for side in sides if isinstance(side, int) and not isinstance(side, bool)]
    known = [side for side in whole if 0 < side < _MAX_SETTING]
    return 12 * math.prod(known) if len(known) == 3 else None


def stated_peak_flops(history: RunLog) -> float | None:
    """The FLOP/s of one device that the log's MFU calls 100 %."""
    said = history.setup.peak_flops
    return said if said and 0 < said < 1e30 else history.trainer.mfu_peak


def device_count(history: RunLog) -> int:
    """That the log knows of."""
    said = history.setup.world_size
    return said if said and 0 < said < _MAX_SETTING else 1


def _mfu_ms_products(history: RunLog) -> tuple[Floats, Floats]:
    """Percent x ms of the steady iterations, the same for each, and what rounding may change of it."""
    steps = history.steps
    usable = history.is_steady() & np.isfinite(steps.mfu) & (steps.mfu > 0) & (steps.ms > 0)
    rounding = _rounding(steps.mfu[usable])
    if history.trainer.mfu_is_running_average:
        apart = _undo_running_average(history)
        single = usable & np.isfinite(apart)
        if np.count_nonzero(single) >= _MIN_DEAVERAGED_ROWS:
            ms = steps.ms[single]
            return apart[single] * ms, ms * rounding * (1 + _MFU_EMA_DECAY) / (1 - _MFU_EMA_DECAY)
    ms = steps.ms[usable]
    # A running average goes with the usual time of an iteration, not with its own.
    if history.trainer.mfu_is_running_average and len(ms):
        ms = np.full(len(ms), float(np.median(ms)))
    return steps.mfu[usable] * ms, ms * rounding


def _undo_running_average(history: RunLog) -> Floats:
    """The MFU of each iteration by itself: what the running average took in. NaN where a line is missing."""
    steps = history.steps
    apart = np.full(len(steps), np.nan)
    if len(steps) < 2:
        return apart
    gaps = np.diff(steps.iteration)
    ahead = gaps[gaps > 0]
    interval = int(np.median(ahead)) if len(ahead) else 1
    follows = (steps.segment[1:] == steps.segment[:-1]) & (gaps == interval)
    took_in = (steps.mfu[1:] - _MFU_EMA_DECAY * steps.mfu[:-1]) / (1 - _MFU_EMA_DECAY)
    apart[1:] = np.where(follows, took_in, np.nan)
    return apart


def _rounding(mfu: Floats) -> float:
    """Half of the last digit that the log prints: 0.005 for 12.93, 0.05 for 12.9, 0.5 for 13."""
    for digits in range(4):
        if np.all(np.abs(np.round(mfu, digits) - mfu) < 1e-9):
            # Two lines may both end in a zero by chance; many do not.
            return float(0.5 * 10.0**-digits if len(mfu) > 3 else 0.5 * 10.0 ** -max(digits, 1))
    return 0.0


def _error(products: Floats, errors: Floats, middle: float) -> float:
    """Rounding alone where there are few values; with many, their scatter, which the median averages out."""
    rounding = float(np.median(errors)) / middle
    if len(products) < _MIN_DEAVERAGED_ROWS:
        return rounding
    spread = 1.4826 * float(np.median(np.abs(products - middle))) / middle
    return min(rounding, max(spread, rounding / 2) / math.sqrt(len(products)) * 2)
