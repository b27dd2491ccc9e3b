"""The device of a run: which one, its dtype, its memory.

device, choice = choose_device("auto")
choice.reason                              # "a CUDA card is available: NVIDIA H200"
"""

from __future__ import annotations

import ctypes
import sys
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass

import torch

from glassgpt.config import Choice
from glassgpt.errors import raise_if_any
from glassgpt.estimate import decide
from glassgpt.estimate.cards import find_card, has_tensor_cores
from glassgpt.estimate.machine_facts import DeviceTraits, find_missing_toolchain
from glassgpt.format import pluralize
from glassgpt.model.gpt import GPT
from glassgpt.record.machine import apple_gpu_name

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class ExecutionConfig:
    """How the model is executed on this machine: device, dtype, kernels, and so on."""

    device: torch.device
    dtype: str
    compile: bool = False
    attention: str = "sdpa"
    kernels: bool = False  # GlassGPT's Triton kernels
    graph: bool = False  # updates are captured as CUDA graphs and replayed
    data_on_card: bool = False  # the training split
    float8: bool = False  # matmuls of training; evaluation is exact
    shard: bool = False  # FSDP: weights are sharded over the ranks

    def autocast(self) -> AbstractContextManager[object]:
        """Weights stay float32; matmuls run in `dtype`."""
        if self.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, TORCH_DTYPES[self.dtype])

    def synchronize(self) -> None:
        """Waits for the device to finish its queue. Before that, a clock measures kernel launches only."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()


def configure_model(model: GPT, execution: ExecutionConfig, activation_checkpointing: bool) -> None:
    model.backend.attention = execution.attention
    model.backend.kernels, model.backend.float8 = execution.kernels, execution.float8
    model.activation_checkpointing = activation_checkpointing


def device_counts() -> dict[str, int]:
    with warnings.catch_warnings():  # a card without a matching driver warns at every start
        warnings.simplefilter("ignore")
        cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {"cuda": cards, "mps": int(torch.backends.mps.is_available()), "cpu": 1}


def choose_device(requested: str) -> tuple[torch.device, Choice]:
    """`requested`: as in --device."""
    choice = decide.choose_device(requested, device_counts(), lambda name: device_name(torch.device(name)))
    return torch.device(str(choice.value)), choice


def device_for_rank(device: torch.device, requested: str, local_rank: int, local_size: int) -> torch.device:
    """The card of one of several ranks on a machine: each has its own."""
    if device.type != "cuda":
        return device
    cards = torch.cuda.device_count()
    problems = []
    if local_size > 1 and ":" in requested:
        problems.append(
            f"--device={requested} is one card for {local_size} processes; --device=cuda gives each its own"
        )
    if local_size > cards:
        problems.append(f"{local_size} processes were started on a machine with {cards} cards; start {cards}")
    raise_if_any(problems)
    return device if ":" in requested else torch.device("cuda", local_rank)


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return apple_gpu_name()
    return pluralize(torch.get_num_threads(), "thread")


def device_traits(device: torch.device) -> DeviceTraits:
    """The properties of the device that the rules of estimate/decide.py depend on."""
    missing = find_missing_toolchain(device.type)
    if device.type == "cpu":
        has_fast_bfloat16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        return DeviceTraits("cpu", has_fast_bfloat16=has_fast_bfloat16, missing_toolchain=missing)
    if device.type != "cuda":
        return DeviceTraits(device.type, missing_toolchain=missing)
    # Not torch.cuda.is_bf16_supported(): it is true for cards that emulate bfloat16, slowly.
    capability = torch.cuda.get_device_capability(device)
    name = torch.cuda.get_device_name(device)
    card, tensor_cores = find_card(name), has_tensor_cores(name, capability)
    bandwidth = None if card is None else card.bandwidth_gb_s * 1e9
    return DeviceTraits(
        "cuda", capability, tensor_cores, bandwidth_bytes_per_s=bandwidth, missing_toolchain=missing
    )


def choose_dtype(requested: str, device: torch.device, width: int | None = None) -> Choice:
    """`width`: channels of the model to be trained; None for sampling only."""
    return decide.choose_dtype(requested, device_traits(device), width)


def set_allocator(device: torch.device, environment: Mapping[str, str]) -> list[Choice]:
    """On a card: expandable segments, without which PyTorch's caching allocator fragments its memory. On a
    CPU: glibc keeps what an update frees for the next one."""
    if device.type == "cpu" and sys.platform.startswith("linux"):
        _keep_freed_memory(environment)
    if device.type != "cuda":
        return []
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        if value := environment.get(name):
            return [Choice("allocator", value, f"as {name} says")]
    if not sys.platform.startswith("linux"):
        return [Choice("allocator", "default", "expandable segments are for Linux")]
    _apply_allocator_settings("expandable_segments:True")
    return [Choice("allocator", "expandable_segments:True", "less fragmentation")]


# Of glibc's malloc.h. Larger tensors have pages of their own: 2^25 is the most that the heap may be given.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_HEAP_TENSOR_BYTES, _NEVER_TRIMMED_BYTES = 2**25, 2**31 - 1


def _keep_freed_memory(environment: Mapping[str, str]) -> None:
    """Else glibc returns the heap's end to the kernel, by thresholds that depend on what was freed before,
    and the kernel clears its pages again in each update: a sixth of the time of a small model. The peak is
    the same: this memory was in use."""
    if any(name.startswith("MALLOC_") for name in environment):
        return
    with suppress(OSError, AttributeError):  # another libc
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _HEAP_TENSOR_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIMMED_BYTES)


def _apply_allocator_settings(settings: str) -> None:
    """At run time, since PyTorch reads the environment when it is imported. The name changed with 2.10."""
    new = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    (new or torch.cuda.memory._set_allocator_settings)(settings)


def free_and_total_bytes(device: torch.device) -> tuple[int | None, int | None]:
    """Free and total memory of a CUDA card; None on other devices, which share main memory."""
    if device.type != "cuda":
        return None, None
    free, total = torch.cuda.mem_get_info(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    fraction = torch.cuda.get_per_process_memory_fraction(index)  # a limit that the user may have set
    return min(free, int(fraction * total) - torch.cuda.memory_reserved(device)), total
