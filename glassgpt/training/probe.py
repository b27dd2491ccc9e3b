"""This machine as torch sees it: its description for the journal, memory in use, and the facts for decide().

describe_machine("cuda")["device"]["name"]                       # "NVIDIA H200"
measure_fact("attention_s", spec, facts, device)                 # {"flash": 0.0012, "cudnn": 0.0011}
peak = find_peak("cuda", "NVIDIA GeForce RTX 4070 Ti", "bfloat16", memory_bytes)
mfu_percent(48.0e12, peak)                                       # 59.9
"""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import numpy
import psutil  # type: ignore[import-untyped]
import torch

from glassgpt.cgroup import usable_cores
from glassgpt.config import TrainConfig
from glassgpt.data.digests import json_sha256
from glassgpt.errors import UserError
from glassgpt.estimate.cards import find_card
from glassgpt.estimate.decide import RunSpec
from glassgpt.estimate.machine_facts import MachineFacts
from glassgpt.estimate.peak import Clock, PeakFlops, PrepareMatmul, RepeatOperation, measure_best_rate
from glassgpt.format import pluralize
from glassgpt.model import float8
from glassgpt.model.cuda_graph import free_cublas_workspaces
from glassgpt.model.gpt import attend
from glassgpt.record.machine import (
    apple_gpu_name,
    cores_used_by_others,
    cpu_model,
    describe_cpu,
    load_average,
    nvidia_driver,
    read_cpu_times,
    resident_bytes,
    source_commit,
    usable_memory,
)
from glassgpt.training.device import (
    TORCH_DTYPES,
    device_counts,
    device_name,
    device_traits,
    free_and_total_bytes,
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
        device_fields["name"] = cpu_model()
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
    several times."""
    if device.partition(":")[0] != "cuda":
        return 0
    free_cublas_workspaces()  # of the probes
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


# --- facts for decide() ---


def machine_facts(device: torch.device, ranks: int = 1, local_ranks: int = 1) -> MachineFacts:
    """What can be known before anything is chosen. `local_ranks`: processes that share main memory."""
    free_bytes, total_bytes = free_and_total_bytes(device)
    return MachineFacts(
        device_traits(device),
        device_name(device),
        device_counts(),
        ranks=ranks,
        memory_bytes=total_bytes or usable_memory()[0] // local_ranks,
        free_bytes=free_bytes,
    )


def measure_fact(name: str, spec: RunSpec, facts: MachineFacts, device: torch.device) -> Any:
    """A fact that decide() did not know, for the choices that it has made. May take seconds."""
    config, work = spec.workload.config, spec.workload
    if name == "peak":
        card_bytes = facts.memory_bytes if device.type == "cuda" else None
        return find_peak(device.type, facts.device_name, work.dtype, card_bytes, config.probe_seconds)
    if name == "kernels_built":
        return kernel_cache_marker(spec, facts.device_name).is_file()
    if name == "float8_is_correct":
        return float8.is_float8_kernel_correct(device)
    assert name == "attention_s", name
    return attention_times(config, device, work.dtype)


CPU_PROBE_REPEATS = 3


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
    # Other programs come and go, and slow a CPU: the best of some repeats is the nearest to what it can do.
    repeats = CPU_PROBE_REPEATS if device_type == "cpu" else 1
    before = read_cpu_times()
    try:
        rates = [measure_peak(device_type, dtype, probe_seconds / repeats) for _ in range(repeats)]
    except RuntimeError as error:  # a device without this dtype; the run itself has the better message
        return PeakFlops(table, table_source, None, f"unknown: the {label} probe failed: {error}")
    how = f"measured: {label} matmuls for {probe_seconds:g} s"
    if device_type != "cpu":
        return PeakFlops(table, table_source, max(rates), how)
    peak = PeakFlops(
        table,
        table_source,
        max(rates),
        f"{how} on {pluralize(torch.get_num_threads(), 'thread')}",
        threads=torch.get_num_threads(),
        cores=usable_cores(),
        busy_cores=cores_used_by_others(before, read_cpu_times()),
        load_average=load_average(),
        spread=max(rates) / min(rates) - 1,
    )
    if not peak.is_disturbed:
        return peak
    why = f"other programs used {peak.busy_cores:.1f} cores, repeats differ by {peak.spread:.0%}"
    return replace(peak, measured_how=f"{peak.measured_how}; {why}: MFU is too high")


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
) -> float:
    """The best FLOP/s of square matmuls that this device sustains, measured in about `seconds`."""
    sizes = (256, 512, 1024, 2048) if device.partition(":")[0] == "cpu" else (2048, 4096, 8192)
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


# --- attention and our kernels ---

_MEASURED_TOKENS = 16_384
_MEASURED_ROUNDS = 3
_MEASURED_CALLS = 10
_BUSY_CYCLES = 50_000_000  # some 30 ms


def check_attention(config: TrainConfig, device: torch.device, dtype: str) -> None:
    """Not every kernel supports every dtype and head size on every device: tries it on two tokens."""
    head_size = config.n_embd // config.n_head
    qkv = torch.zeros(
        (1, 2, 3, config.n_head, head_size), device=device, dtype=TORCH_DTYPES[dtype], requires_grad=True
    )
    q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
    try:
        attend(q, k, v, config.dropout, config.attention).sum().backward()  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise UserError(
            f"--attention={config.attention} cannot do heads of {head_size} channels in {dtype} on "
            f"{device.type} here; try --attention=auto"
        ) from None


def attention_times(config: TrainConfig, device: torch.device, dtype: str) -> dict[str, float]:
    """Seconds of one layer by kernel: measured in turns, the best of some rounds."""
    sequences = max(1, _MEASURED_TOKENS // config.block_size)
    shape = (sequences, config.block_size, 3, config.n_head, config.n_embd // config.n_head)
    qkv = torch.randn(shape, device=device, dtype=TORCH_DTYPES[dtype], requires_grad=True)
    measured: dict[str, list[float]] = {"flash": [], "cudnn": [], "efficient": []}
    for _ in range(_MEASURED_ROUNDS):
        for kernel, seconds in measured.items():
            with suppress(RuntimeError):  # not for this card, shape or dtype
                seconds.append(_attention_time(qkv, config.dropout, kernel))
    return {kernel: min(seconds) for kernel, seconds in measured.items() if seconds}


def _attention_time(qkv: torch.Tensor, dropout: float, kernel: str) -> float:
    """Seconds of the device for forward and backward. The device is kept busy until all calls are queued: in
    a run kernel-launch overhead is hidden behind its work, and must not count here either."""
    q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))

    def forward_backward() -> None:
        out = attend(q, k, v, dropout, kernel)
        torch.autograd.grad(out, qkv, out)

    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    forward_backward()  # libraries choose a kernel at the first call
    torch.cuda._sleep(_BUSY_CYCLES)
    events[0].record()
    for _ in range(_MEASURED_CALLS):
        forward_backward()
    events[1].record()
    events[1].synchronize()
    return float(events[0].elapsed_time(events[1])) / 1000 / _MEASURED_CALLS


def kernel_cache_marker(spec: RunSpec, card: str) -> Path:
    """A file in Triton's cache that says that our kernels were built for such a run on a card of this name.

    A run that built them creates it, and emptying the cache removes it. Its name is a hash of all that the
    kernels are specialised on; Triton specialises on multiples of 16.
    """
    config, work = spec.workload.config, spec.workload
    source = hashlib.sha256((resources.files("glassgpt.model") / "kernels.py").read_bytes()).hexdigest()
    versions: list[str | None] = []
    for package in ("torch", "triton"):
        try:
            versions.append(metadata.version(package))
        except metadata.PackageNotFoundError:  # Triton has other names on ROCm and Windows
            versions.append(None)
    shape = (config.n_embd, config.n_head, config.arch, config.bias, config.activation, config.fp8)
    sizes = (work.vocab_size, config.block_size % 16, work.micro_batch_tokens % 16)
    key = [card, work.dtype, *sizes, *shape, *versions, source]
    home = Path(os.environ.get("TRITON_HOME") or Path.home())
    cache = Path(os.environ.get("TRITON_CACHE_DIR") or home / ".triton" / "cache")  # as Triton finds it
    return cache / f"glassgpt-{json_sha256(key)[:16]}"
