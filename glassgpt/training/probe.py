"""This machine as torch sees it: its description for the journal, memory in use, measured peak FLOP/s.

describe_machine("cuda")["device"]["name"]                       # "NVIDIA H200"
peak = find_peak("cuda", "NVIDIA GeForce RTX 4070 Ti", "bfloat16", memory_bytes)
mfu_percent(48.0e12, peak)                                       # 59.9
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import psutil  # type: ignore[import-untyped]
import torch

from glassgpt.estimate.cards import find_card
from glassgpt.estimate.peak import Clock, PeakFlops, PrepareMatmul, RepeatOperation, measure_best_rate
from glassgpt.files import read_text_or_empty
from glassgpt.record.machine import (
    apple_gpu_name,
    cpu_model,
    describe_cpu,
    nvidia_driver,
    resident_bytes,
    source_commit,
)
from glassgpt.version import VERSION


def describe_machine(device: str) -> dict[str, object]:
    """Everything about this machine that can change a run's speed or its numbers; goes into the journal."""
    kind = device.partition(":")[0]
    device_fields: dict[str, object] = {"type": kind}
    if kind == "cuda":
        properties = torch.cuda.get_device_properties(device)
        device_fields |= {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "count": torch.cuda.device_count(),
            "driver": nvidia_driver(),
            "cuda": torch.version.cuda or torch.version.hip,
            "cudnn": torch.backends.cudnn.version(),
        }
    elif kind == "mps":
        device_fields["name"] = apple_gpu_name()
    else:
        device_fields["name"] = cpu_model(read_text_or_empty(Path("/proc/cpuinfo")))
    memory = psutil.virtual_memory()
    return {
        "os": platform.system(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "glassgpt": VERSION,
        "glassgpt_commit": source_commit(Path(__file__).resolve().parents[2]),
        "cpu": describe_cpu() | {"torch_threads": torch.get_num_threads()},
        "memory": {"total": memory.total, "available": memory.available},
        "device": device_fields,
    }


def memory_now(device: str) -> dict[str, int]:
    """Bytes in use: `rss` of this process; on a GPU also `allocated_peak` and `reserved` there."""
    memory = {"rss": resident_bytes()}
    kind = device.partition(":")[0]
    if kind == "cuda":
        memory["allocated_peak"] = torch.cuda.max_memory_allocated(device)
        memory["reserved"] = torch.cuda.memory_reserved(device)
    elif kind == "mps":
        memory["allocated_peak"] = torch.mps.current_allocated_memory()  # current: MPS keeps no peak
        memory["reserved"] = torch.mps.driver_allocated_memory()
    return memory


def reset_memory_peak(device: str) -> int:
    """Resets `allocated_peak`. Returns the bytes that are allocated on the GPU already: a process may train
    several times, and cuBLAS keeps its workspaces."""
    if device.partition(":")[0] != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def find_peak(
    device_type: str,
    device_name: str | None,
    dtype: str,
    memory_bytes: int | None = None,
    probe_seconds: float = 1.0,
) -> PeakFlops:
    """Both peaks for one dtype: from the table, and measured in `probe_seconds` (0: not measured)."""
    card = find_card(device_name, memory_bytes) if device_name else None
    label = "tf32" if device_type == "cuda" and dtype == "float32" and _tf32_allowed() else dtype
    table = card.peaks.get(label) if card else None
    table_source = card.source if card and table else None
    if probe_seconds <= 0:
        return PeakFlops(table, table_source)
    try:
        measured = measure_peak(device_type, dtype, probe_seconds)
    except RuntimeError as error:  # a device without this dtype; the run itself has the better message
        return PeakFlops(table, table_source, None, f"unknown: the {label} probe failed: {error}")
    return PeakFlops(table, table_source, measured, f"measured: {label} matmuls for {probe_seconds:g} s")


def _tf32_allowed() -> bool:
    """Whether torch may use tensor cores for float32 matmuls. Not by the legacy getter, which raises when the
    new setting was used."""
    matmul = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None)
    if precision is None:  # torch < 2.9
        return bool(matmul.allow_tf32)
    if precision == "none":  # not set for matmuls: the general setting holds
        precision = getattr(torch.backends, "fp32_precision", "none")
    return precision in {"tf32", "bf16"}


def measure_peak(
    device: str,
    dtype: str,
    seconds: float = 1.0,
    clock: Clock = time.perf_counter,
    prepare: PrepareMatmul | None = None,
    sizes: Sequence[int] | None = None,
) -> float:
    """The best FLOP/s of square matmuls that this device sustains, measured in about `seconds`."""
    on_cpu = device.partition(":")[0] == "cpu"
    sizes = sizes or ((256, 512, 1024, 2048) if on_cpu else (2048, 4096, 8192))
    best = measure_best_rate(prepare or _torch_matmuls(device, dtype), sizes, seconds, clock)
    if prepare is None and device.startswith("cuda"):
        torch.cuda.empty_cache()  # the probe's matrices must not show up in the run's memory record
        torch.cuda.reset_peak_memory_stats(device)
    return best


def _torch_matmuls(device: str, dtype: str) -> PrepareMatmul:
    by_device: dict[str, Callable[[], None]]
    by_device = {"cuda": partial(torch.cuda.synchronize, device), "mps": torch.mps.synchronize}
    synchronize = by_device.get(torch.device(device).type, lambda: None)
    generator = torch.Generator(device).manual_seed(0)  # not the run's generator

    def prepare(size: int) -> RepeatOperation:
        # Random, not zeros: multiplying zeros draws less power, so the card clocks higher than in training.
        options: dict[str, Any] = {"device": device, "dtype": getattr(torch, dtype), "generator": generator}
        a, b = torch.randn(size, size, **options), torch.randn(size, size, **options)
        out = torch.empty_like(a)

        def run(count: int) -> None:
            for _ in range(count):
                torch.matmul(a, b, out=out)
            synchronize()

        return run

    return prepare
