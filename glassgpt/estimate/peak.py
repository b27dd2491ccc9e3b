"""What 100 % is: the peak speed of this machine, from the card table and from a measurement.

    peak = find_peak("cuda", "NVIDIA GeForce RTX 4070 Ti", "bfloat16", memory_bytes)
    mfu_percent(48.0e12, peak)                                       # 59.9

A card that is not in the table has a measured peak only: an MFU against a guessed card is worse than none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from glassgpt.estimate.cards import find_card

Run = Callable[[int], None]  # does that many matmuls and returns when the device has finished them
Prepare = Callable[[int], Run]  # from a matrix size to its Run
Clock = Callable[[], float]


@dataclass(frozen=True)
class Peak:
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


def find_peak(
    device_type: str,
    device_name: str | None,
    dtype: str,
    memory_bytes: int | None = None,
    probe_seconds: float = 1.0,
) -> Peak:
    """Both peaks for one dtype: from the table, and from a probe of `probe_seconds` (0: do not measure)."""
    card = find_card(device_name, memory_bytes) if device_name else None
    label = "tf32" if device_type == "cuda" and dtype == "float32" and _tf32_allowed() else dtype
    table = card.peaks.get(label) if card else None
    table_source = card.source if card and table else None
    if probe_seconds <= 0:
        return Peak(table, table_source)
    try:
        measured = measure_peak(device_type, dtype, probe_seconds)
    except RuntimeError as error:  # a device without this dtype; the run itself will say so better
        return Peak(table, table_source, None, f"unknown: the {label} probe failed: {error}")
    return Peak(table, table_source, measured, f"measured: {label} matmuls for {probe_seconds:g} s")


def _tf32_allowed() -> bool:
    """Whether torch may use tensor cores for float32 matmuls. Reads the setting without the legacy getter,
    which raises when the new one was used to set it."""
    import torch

    matmul = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None)
    if precision is None:  # torch < 2.9
        return bool(matmul.allow_tf32)
    if precision == "none":  # not set here: the general setting holds
        precision = getattr(torch.backends, "fp32_precision", "none")
    return precision in {"tf32", "bf16"}


def measure_peak(
    device: str,
    dtype: str,
    seconds: float = 1.0,
    clock: Clock = time.perf_counter,
    prepare: Prepare | None = None,
    sizes: Sequence[int] | None = None,
) -> float:
    """The best FLOP/s of square matmuls that this device keeps up, found in about `seconds`."""
    on_cpu = device.partition(":")[0] == "cpu"
    sizes = sizes or ((256, 512, 1024, 2048) if on_cpu else (2048, 4096, 8192))
    best = best_rate(prepare or _torch_matmuls(device, dtype), sizes, seconds, clock)
    if prepare is None and device.startswith("cuda"):
        import torch

        torch.cuda.empty_cache()  # the probe's matrices must not show up in the run's memory record
        torch.cuda.reset_peak_memory_stats(device)
    return best


def best_rate(prepare: Prepare, sizes: Sequence[int], seconds: float, clock: Clock) -> float:
    """Grow the matrices until that no longer helps, or the next size would not fit in the time left."""
    prepare(sizes[0])(1)  # libraries load on the first call; that is not in the budget
    deadline = clock() + seconds
    best = 0.0
    for index, size in enumerate(sizes):
        flops = 2 * size**3
        left = deadline - clock()
        if best and 2 * flops / best > left:  # a slow machine: even a warm-up and one run would overrun
            break
        found = rate(prepare(size), flops, left / (len(sizes) - index), clock)
        best = max(best, found)
        if found < 0.95 * best:  # past the best size; a smaller dip is noise
            break
    return best


def rate(run: Run, flops: float, seconds: float, clock: Clock) -> float:
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


def _torch_matmuls(device: str, dtype: str) -> Prepare:
    import torch

    waits: dict[str, Callable[[], None]]
    waits = {"cuda": partial(torch.cuda.synchronize, device), "mps": torch.mps.synchronize}
    wait = waits.get(torch.device(device).type, lambda: None)
    generator = torch.Generator(device).manual_seed(0)  # our own: the run's random numbers stay as they are

    def prepare(size: int) -> Run:
        # Random, never zeros: multiplying zeros draws less power, so the card clocks higher than in training.
        options: dict[str, Any] = {"device": device, "dtype": getattr(torch, dtype), "generator": generator}
        a, b = torch.randn(size, size, **options), torch.randn(size, size, **options)
        out = torch.empty_like(a)

        def run(count: int) -> None:
            for _ in range(count):
                torch.matmul(a, b, out=out)
            wait()

        return run

    return prepare


def mfu_percent(flops_per_s: float, peak: Peak) -> float | None:
    """Achieved speed in percent of the peak; None where either is unknown. Never 0, negative or infinite."""
    if not peak.value or not (math.isfinite(flops_per_s) and flops_per_s > 0):
        return None
    return 100 * flops_per_s / peak.value


def mfu_note(percent: float | None, peak: Peak | None = None) -> str | None:
    """Why an MFU above 100 % can be true; None where there is nothing to explain."""
    if percent is None or percent <= 100:
        return None
    if peak is not None and peak.table is None:
        return f"MFU {percent:.0f}%: training was faster than the probe, which a busy or cold machine slows"
    if percent > 130:
        return f"MFU {percent:.0f}% is more than a fast clock explains: suspect the timing or the FLOP count"
    return f"MFU {percent:.0f}%: this card runs above the boost clock that its table peak assumes"
