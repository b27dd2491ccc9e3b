"""Infers FLOPs per token and parameters from a log's MFU and step times.

    MFU = FLOPs per token x tokens per second / peak       so the FLOPs per token follow from the other three,
    FLOPs per token = 6 N + 12 x layers x width x context  and the parameters N from those and the shape.

N is all parameters but positions. A log rounds its MFU, so the result has an error; above MAX_FLOPS_ERROR it
is not used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.runs.curve import robust_std
from glassgpt.runs.run_log import Floats, RunLog
from glassgpt.runs.trajectory import settings_product

MAX_FLOPS_ERROR = 0.02  # relative; two model sizes differ by much more
MFU_EMA_DECAY = 0.9  # weight of the previous value, where the logged MFU is a running average
MIN_PARAMETER_MISMATCH = 0.07  # relative, inferred over stated; rounding and conventions explain less

_MIN_DEAVERAGED_ROWS = 8  # with fewer, the running average itself is more accurate than undoing it
_INTEGER_TOLERANCE = 0.03  # relative


@dataclass(frozen=True)
class InferredFlops:
    flops_per_token: float
    relative_error: float  # from rounding and scatter


@dataclass(frozen=True)
class IterationFlops:
    """On all devices that the log mentions."""

    flops: float
    relative_error: float


def flops_per_iteration(run_log: RunLog) -> IterationFlops | None:
    """From the log's MFU and step times; the tokens per iteration need not be known."""
    peak = stated_peak_flops(run_log)
    if not peak:
        return None
    products, roundings = _mfu_ms_products(run_log)
    middle = float(np.median(products)) if len(products) else 0.0
    if middle <= 0:
        return None
    # Of few values the error is that of rounding; of many it is their scatter, which the median averages out.
    error = float(np.median(roundings)) / middle
    if len(products) >= _MIN_DEAVERAGED_ROWS:
        scatter = robust_std(products) / middle
        error = min(error, max(scatter, error / 2) / math.sqrt(len(products)) * 2)
    # MFU is of one device.
    return IterationFlops(middle * peak / 100 / 1000 * device_count(run_log), error)


def infer_flops_per_token(run_log: RunLog, tokens_per_iteration: int | None) -> InferredFlops | None:
    work = flops_per_iteration(run_log) if tokens_per_iteration and tokens_per_iteration > 0 else None
    if work is None or not tokens_per_iteration:
        return None
    return InferredFlops(work.flops / tokens_per_iteration, work.relative_error)


def mismatching_parameters(run_log: RunLog, claimed: int | None, inferred: InferredFlops) -> int | None:
    """The parameters that MFU and times imply, where these are not the claimed ones. None where they agree,
    or where something else explains the difference.

    Tokens are of all devices and MFU is of one, so devices that the log does not mention make a model look
    smaller. An integer ratio is a sign of such devices, or of micro-steps that are not counted.
    """
    attention = attention_flops(run_log)
    implied = parameters_from_flops(inferred.flops_per_token, run_log)
    if not claimed or attention is None or implied is None or inferred.relative_error > MAX_FLOPS_ERROR:
        return None
    ratio = (6 * claimed + attention) / inferred.flops_per_token
    if (
        nearest_multiple(ratio)
        or nearest_multiple(1 / ratio)
        or (run_log.setup.world_size is None and ratio > 1.5)
    ):
        return None
    # The error is of all FLOPs; relative to 6N, which is less, it is larger.
    uncertain = inferred.relative_error * inferred.flops_per_token / (6 * implied)
    return implied if abs(implied / claimed - 1) > max(MIN_PARAMETER_MISMATCH, 2 * uncertain) else None


def nearest_multiple(ratio: float) -> int | None:
    """The integer of at least 2 that the ratio is close to."""
    if not (math.isfinite(ratio) and ratio > 1.5):
        return None
    nearest = round(ratio)
    return nearest if abs(ratio / nearest - 1) <= _INTEGER_TOLERANCE else None


def parameters_from_flops(flops_per_token: float, run_log: RunLog) -> int | None:
    """N = (F - 12 x layers x width x context) / 6"""
    attention = attention_flops(run_log)
    if (
        attention is None
        or not attention < flops_per_token < math.inf
        or not run_log.trainer.mfu_counts_palm_flops
    ):
        return None
    return round((flops_per_token - attention) / 6)


def attention_flops(run_log: RunLog) -> int | None:
    """FLOPs per token of attention's two matrix products, where the log has the shape."""
    product = settings_product(run_log, "n_layer", "n_embd", "block_size")
    return None if product is None else 12 * product


def stated_peak_flops(run_log: RunLog) -> float | None:
    """The FLOP/s of one device that the log's MFU calls 100 %."""
    return run_log.setup.peak_flops or run_log.trainer.mfu_peak


def device_count(run_log: RunLog) -> int:
    """As the log says, or 1."""
    return run_log.setup.world_size or 1


def _mfu_ms_products(run_log: RunLog) -> tuple[Floats, Floats]:
    """MFU in percent x ms of the steady iterations, the same for each, and the rounding error of each."""
    steps = run_log.steps
    usable = run_log.is_steady() & (steps.mfu > 0) & (steps.ms > 0)
    mfu, ms = steps.mfu[usable], steps.ms[usable]
    # Half of the last digit that the log prints: 0.005 for 12.93, 0.05 for 12.9, 0.5 for 13. Of up to three
    # values, all may end in a zero by chance: then at least one decimal is assumed.
    exact = (digits for digits in range(4) if np.all(np.abs(np.round(mfu, digits) - mfu) < 1e-9))
    decimals = next(exact, None)
    if decimals is not None and len(mfu) <= 3:
        decimals = max(decimals, 1)
    rounding = 0.0 if decimals is None else 0.5 * 10.0**-decimals
    if not run_log.trainer.mfu_is_running_average:
        return mfu * ms, ms * rounding

    # Undo the running average, where the previous line is the previous logged iteration.
    single = np.full(len(steps), np.nan)
    if len(steps) > 1:
        gaps = np.diff(steps.iteration)
        interval = int(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 1
        follows = (steps.segment[1:] == steps.segment[:-1]) & (gaps == interval)
        added = (steps.mfu[1:] - MFU_EMA_DECAY * steps.mfu[:-1]) / (1 - MFU_EMA_DECAY)
        single[1:] = np.where(follows, added, np.nan)
    rows = usable & np.isfinite(single)
    if np.count_nonzero(rows) >= _MIN_DEAVERAGED_ROWS:
        ms = steps.ms[rows]
        return single[rows] * ms, ms * rounding * (1 + MFU_EMA_DECAY) / (1 - MFU_EMA_DECAY)
    # A running average belongs to the typical time of an iteration, not to that of its line.
    typical_ms = np.full(len(ms), float(np.median(ms)) if len(ms) else np.nan)
    return mfu * typical_ms, typical_ms * rounding
