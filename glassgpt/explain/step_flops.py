"""The arithmetic of one iteration, read back from the MFU that the log prints."""

from __future__ import annotations

import math
from dataclasses import dataclass

from glassgpt.runs.facts import Facts
from glassgpt.runs.inference import MAX_ERROR, devices, stated_peak, work_per_iteration
from glassgpt.runs.run_log import History


@dataclass(frozen=True)
class Work:
    """Of one iteration on one device, as the MFU has it."""

    flops: float
    error: float  # relative
    mfu: float  # percent, of a steady iteration
    rate: float  # FLOP/s


def work_of(history: History, facts: Facts) -> Work | None:
    """None where the log does not tell, or rounds too much."""
    peak, steady_ms = stated_peak(history), facts.steady_ms
    if (
        not peak
        or not steady_ms
        or not history.trainer.mfu_peak
        or not history.trainer.mfu_is_running_average
    ):
        return None
    whole = work_per_iteration(history)
    if whole is None or not whole.error <= MAX_ERROR:
        return None
    one_device = whole.flops / devices(history)
    rate = one_device / (steady_ms / 1000)
    return Work(one_device, whole.error, 100 * rate / peak, rate) if math.isfinite(rate) else None
