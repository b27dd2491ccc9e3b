"""The machine that is planned for: a card of the table, this machine's own, or a CPU."""

from __future__ import annotations

import math
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from glassgpt.account.choices import Traits, lacking_here
from glassgpt.account.hardware import Card, Run, best_rate, find_card, named_card
from glassgpt.account.machine import apple_gpu_name, cpu_model, output_of, read_text, usable_cores

_GPU_LINE = re.compile(r"(?P<name>[^,]+),\s*(?P<total>\d+)\s*(MiB)?")
# Of a card's memory, what a run may take: the driver, a desktop and gaps between tensors have the rest.
_USABLE = 0.94


@dataclass(frozen=True)
class Target:
    """Where the run shall be."""

    name: str
    device_type: str  # "cuda", "mps" or "cpu"
    memory: int  # bytes, of the card or of the machine
    peaks: dict[str, float]  # FLOP/s by dtype; empty: unknown
    peak_source: str
    how: str  # how it was found
    card: Card | None = None
    others: tuple[str, ...] = ()  # cards that the name could have meant too
    lacks: str | None = None  # what building code would need and does not find; of another machine unknown

    @property
    def room(self) -> int:
        """Bytes that a run may take."""
        return int(self.memory * _USABLE)

    @property
    def traits(self) -> Traits:
        """What of it decides, for the rules that the trainer asks too."""
        capability = None if self.card is None else self.card.capability
        return Traits(self.device_type, capability, "bfloat16" in self.peaks, self.lacks)

    def peak(self, dtype: str) -> float | None:
        if dtype == "float32" and self.device_type == "cuda":
            return self.peaks.get("tf32") or self.peaks.get("float32")
        return self.peaks.get(dtype)


def find_target(gpu: str) -> Target:
    """`gpu`: a card's name, `cpu`, or `auto` for this machine."""
    if gpu == "cpu":
        return this_cpu()
    if gpu != "auto":
        found = named_card(gpu)
        return of_card(found.card, "asked for", found.others)
    return this_machine()


def of_card(card: Card, how: str, others: tuple[str, ...] = (), memory: int | None = None) -> Target:
    if memory is None:
        memory = int((card.memory_gb or _shared_gb(card)) * 2**30)
    kind = "mps" if card.vendor == "apple" else "cuda"
    return Target(card.name, kind, memory, dict(card.peaks), card.source, how, card, others)


def _shared_gb(card: Card) -> float:
    """Apple's memory is the machine's; of a chip that is not here, the least that is sold with it."""
    return 36 if "Max" in card.name else 64 if "Ultra" in card.name else 18 if "Pro" in card.name else 8


# --- this machine ---


def this_machine() -> Target:
    for name, memory in _nvidia_cards():
        card = find_card(name, memory)
        if card is not None:
            return of_card(card, "found here", memory=memory)
        return Target(name, "cuda", memory, {}, "unknown: not in the table of cards", "found here")
    if sys.platform == "darwin":
        card = find_card(apple_gpu_name())
        if card is not None:
            return of_card(card, "found here", memory=psutil.virtual_memory().total)
    return this_cpu()


def _nvidia_cards() -> list[tuple[str, int]]:
    """Names and bytes, by the driver's own tool; none where there is no such tool or it fails."""
    text = output_of("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader") or ""
    found = (_GPU_LINE.match(line.strip()) for line in text.splitlines())
    return [(match["name"].strip(), int(match["total"]) * 2**20) for match in found if match]


def this_cpu(seconds: float = 0.4) -> Target:
    info = read_text(Path("/proc/cpuinfo"))
    cores = max(1, math.floor(usable_cores()))
    flops = best_rate(_numpy_matmuls, (512, 1024), seconds, time.perf_counter)
    peaks = {"float32": flops}
    if "avx512_bf16" in info or "amx_bf16" in info:
        peaks["bfloat16"] = 2 * flops
    memory = psutil.virtual_memory().total
    name = f"{cpu_model(info)}, {cores} {'core' if cores == 1 else 'cores'}"
    return Target(name, "cpu", memory, peaks, "measured: float32 matmuls by numpy", "no GPU was found")


def _numpy_matmuls(size: int) -> Run:
    import numpy as np

    draw = np.random.default_rng(0)
    a, b = (draw.standard_normal((size, size), dtype=np.float32) for _ in range(2))

    def run(count: int) -> None:
        for _ in range(count):
            a @ b

    return run
