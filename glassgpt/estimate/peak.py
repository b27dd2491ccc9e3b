"""The peak FLOP/s of a device, from the card table or measured (training/probe.py), and MFU.

A card that is not in the table has a measured peak only: an MFU relative to a guessed card is worse than
none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

MAX_MISSING_CORES = 0.25  # that other programs took from the threads of a measurement; fewer do not slow it
MAX_SPREAD = 0.3  # of its repeats

RepeatOperation = Callable[[int], None]  # does that many matmuls, and waits for the device
PrepareMatmul = Callable[[int], RepeatOperation]  # for a matrix size
Clock = Callable[[], float]


@dataclass(frozen=True)
class PeakFlops:
    """The FLOP/s that count as 100 % MFU, and where they come from."""

    table: float | None = None
    table_source: str | None = None
    measured: float | None = None
    measured_how: str | None = None
    # Only of a CPU, which other programs slow: what the measurement depends on.
    threads: int | None = None
    cores: float | None = None  # that the process may use
    busy_cores: float | None = None  # of them used by other programs meanwhile
    load_average: float | None = None  # runnable processes over the last minute
    spread: float | None = None  # of the repeats: the fastest over the slowest, minus 1

    @property
    def value(self) -> float | None:
        """The table's if there is one, so that runs on equal cards are comparable; else the measured one."""
        return self.table if self.table is not None else self.measured

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs slowed the measurement that the MFU is relative to: it is too high then, and
        cannot be compared with that of another run."""
        missing_cores = (self.busy_cores or 0.0) + (self.threads or 0) - (self.cores or math.inf)
        return self.table is None and (missing_cores > MAX_MISSING_CORES or (self.spread or 0.0) > MAX_SPREAD)

    @property
    def source(self) -> str:
        if self.table is not None:
            return self.table_source or "card table"
        return self.measured_how or "unknown: not in the card table, not measured"


def measure_best_rate(prepare: PrepareMatmul, sizes: Sequence[int], seconds: float, clock: Clock) -> float:
    """FLOP/s of the fastest matrix size. Stops when a size is slower, or would not fit in the time left."""
    prepare(sizes[0])(1)  # the first call loads libraries; it is not in the time budget
    deadline = clock() + seconds
    best = 0.0
    for index, size in enumerate(sizes):
        flops = 2 * size**3
        left = deadline - clock()
        if best and 2 * flops / best > left:  # a slow machine: even a warm-up and one run would overrun
            break
        rate = measure_rate(prepare(size), flops, left / (len(sizes) - index), clock)
        best = max(best, rate)
        if rate < 0.95 * best:  # past the best size; a smaller dip is noise
            break
    return best


def measure_rate(run: RepeatOperation, flops: float, seconds: float, clock: Clock) -> float:
    """Median FLOP/s over about `seconds`; `flops`: of one matmul. Several matmuls share one synchronisation,
    so that its time does not count much."""
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
    """None if speed or peak is unknown. Never 0, negative or infinite."""
    if not peak.value or not (math.isfinite(flops_per_s) and flops_per_s > 0):
        return None
    return 100 * flops_per_s / peak.value


def mfu_note(percent: float | None, peak: PeakFlops | None = None) -> str | None:
    """An explanation of an MFU above 100 %; None below."""
    if percent is None or percent <= 100:
        return None
    if peak is not None and peak.is_disturbed:
        return f"MFU {percent:.0f}%: other programs slowed the probe that it is relative to"
    if peak is not None and peak.table is None:
        return f"MFU {percent:.0f}%: training was faster than the probe, which a busy or cold machine slows"
    if percent > 130:
        return f"MFU {percent:.0f}% is more than a fast clock explains: suspect the timing or the FLOP count"
    return f"MFU {percent:.0f}%: this card runs above the boost clock that its table peak assumes"
