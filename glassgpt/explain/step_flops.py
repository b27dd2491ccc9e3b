"""The arithmetic of one iteration, read back from the MFU that the log prints."""

from __future__ import annotations

import math
from dataclasses import dataclass

from glassgpt.runs.facts import Facts
from glassgpt.runs.inference import MAX_FLOPS_ERROR, device_count, flops_per_iteration, stated_peak_flops
from glassgpt.runs.run_log import RunLog


@dataclass(frozen=True)
class DeviceThroughput:
    """Of one iteration on one device, as the MFU has it."""

    flops: float
    relative_error: float  # relative
    mfu_percent: float  # percent, of a steady iteration
    flops_per_s: float  # FLOP/s


def infer_device_throughput(history: RunLog, facts: Facts) -> DeviceThroughput | None:
    """None where the log does not tell, or rounds too much."""
    peak, steady_ms = stated_peak_flops(history), facts.steady_ms
    if (
        not peak
        or not steady_ms
        or not history.trainer.mfu_peak
        or not history.trainer.mfu_is_running_average
    ):
        return None
    whole = flops_per_iteration(history)
    if whole is None or not whole.relative_error <= MAX_FLOPS_ERROR:
        return None
    one_device = whole.flops / device_count(history)
    rate = one_device / (steady_ms / 1000)
    return (
        DeviceThroughput(one_device, whole.relative_error, 100 * rate / peak, rate)
        if math.isfinite(rate)
        else None
    )
