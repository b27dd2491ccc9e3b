"""What 100 % is: the peak speed of a device, from the card table or measured (training/probe.py), and MFU.

A card that is not in the table has a measured peak only: an MFU against a guessed card is worse than none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

RepeatOperation = Callable[
    [int], None
]  # does that many matmuls and returns when the device has finished them
PrepareMatmul = Callable[[int], RepeatOperation]  # from a matrix size to its Run
Clock = Callable[[], float]


@dataclass(frozen=True)
class PeakFlops:
    """The speed that counts as 100 %, in FLOP/s, and where it came from."""

    table: float | None = None
    table_source: str | None = None
    measured: float | None = None
    measured_how: str | None = None

    @property
    def value(self) -> float | None:
        """The table's where there is one, so that runs on equal cards compare; else the measured one."""
        return self.table if self.table is not None else self.measured

    @property
    def source(self) -> str:
        if self.table is not None:
            return self.table_source or "card table"
        return self.measured_how or "unknown: not in the card table, not measured"


def measure_best_rate(prepare: PrepareMatmul, sizes: Sequence[int], seconds: float, clock: Clock) -> float:
    """Grow the matrices until that no longer helps, or the next size would not fit in the time left."""
    prepare(sizes[0])(1)  # libraries load on the first call; that is not in the budget
    deadline = clock() + seconds
    best = 0.0
    for index, size in enumerate(sizes):
        flops = 2 * size**3
        left = deadline - clock()
        if best and 2 * flops / best > left:  # a slow machine: even a warm-up and one run would overrun
            break
        found = measure_rate(prepare(size), flops, left / (len(sizes) - index), clock)
        best = max(best, found)
        if found < 0.95 * best:  # past the best size; a smaller dip is noise
            break
    return best


def measure_rate(run: RepeatOperation, flops: float, seconds: float, clock: Clock) -> float:
    """Median FLOP/s over about `seconds` of `run`, `flops` being one matmul's. Several matmuls share one wait
    for the device, so that the wait does not count against a fast one."""
    run(1)  # warm up
    begin = clock()
    run(1)
    now = clock()
    once = max(now - begin, 1e-9)
    count = max(1, int(seconds / 16 / once))
    rates = []
    while now - begin + count * once <= seconds:  # only batches that should end in time
        start = now
        run(count)
        now = clock()
        rates.append(count * flops / max(now - start, 1e-9))
    return median(rates or [flops / once])


def mfu_percent(flops_per_s: float, peak: PeakFlops) -> float | None:
    """Achieved speed in percent of the peak; None where either is unknown. Never 0, negative or infinite."""
    if not peak.value or not (math.isfinite(flops_per_s) and flops_per_s > 0):
        return None
    return 100 * flops_per_s / peak.value


def mfu_note(percent: float | None, peak: PeakFlops | None = None) -> str | None:
    """Why an MFU above 100 % can be true; None where there is nothing to explain."""
    if percent is None or percent <= 100:
        return None
    if peak is not None and peak.table is None:
        return f"MFU {percent:.0f}%: training was faster than the probe, which a busy or cold machine slows"
    if percent > 130:
        return f"MFU {percent:.0f}% is more than a fast clock explains: suspect the timing or the FLOP count"
    return f"MFU {percent:.0f}%: this card runs above the boost clock that its table peak assumes"
