"""Where to compute, and in which dtype; decided with reasons. speedups.py makes it fast there."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch

from glassgpt.config import DEVICE_PATTERN, Choice, TrainConfig
from glassgpt.errors import UserError
from glassgpt.estimate import decide
from glassgpt.estimate.batching import BatchPlan, eval_batch_rows
from glassgpt.estimate.cards import find_card, has_tensor_cores
from glassgpt.estimate.decide import DeviceTraits, find_missing_toolchain
from glassgpt.estimate.memory import CONTEXT_BYTES, TrainingWorkload, estimate_memory, largest_fitting_batch
from glassgpt.model.gpt import GPT
from glassgpt.record.machine import apple_gpu_name

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class ExecutionConfig:
    """What was decided about the machine."""

    device: torch.device
    dtype: str
    compile: bool = False
    attention: str = "sdpa"
    kernels: bool = False  # our own, in Triton
    graph: bool = False  # updates are recorded and replayed
    data_on_card: bool = False
    float8: bool = False  # matmuls while training
    shard: bool = False  # weights are spread over the processes of a team

    def autocast(self) -> AbstractContextManager[object]:
        """Weights stay float32; matmuls run in `dtype`."""
        if self.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, DTYPES[self.dtype])

    def synchronize(self) -> None:
        """Waits until the device has done everything it was given; a clock means nothing before that."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()


def configure_model(model: GPT, placement: ExecutionConfig, checkpointing: bool) -> None:
    """Has the model compute as was decided. `checkpointing`: of activations."""
    model.set_attention(placement.attention)
    model.set_kernels(placement.kernels)
    model.set_float8(placement.float8)
    model.activation_checkpointing = checkpointing


def choose_device(asked: str) -> tuple[torch.device, Choice]:
    if not DEVICE_PATTERN.fullmatch(asked):
        raise UserError(f"--device={asked} is not one of auto, cpu, cuda, cuda:N, mps")
    available = {"cuda": _cuda_works(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if asked == "auto":
        kind = next(kind for kind in ("cuda", "mps", "cpu") if available[kind])
        why = {"cuda": "a CUDA card is there", "mps": "Apple's GPU is there", "cpu": "no GPU was found"}[kind]
    else:
        kind, _, number = asked.partition(":")
        why = "asked for"
        if not available[kind]:
            raise UserError(f"--device={asked} is not available here; try --device=auto or --device=cpu")
        if number and (not number.isdecimal() or int(number) >= _device_count(kind)):
            raise UserError(f"--device={asked} does not exist: {kind} has {_device_count(kind)} here")
    device = torch.device(asked if asked != "auto" else kind)
    return device, Choice("device", str(device), f"{why}: {device_name(device)}")


def device_for_rank(device: torch.device, asked: str, local_rank: int, local_size: int) -> torch.device:
    """The card for one of several processes on a machine: each has its own."""
    if device.type != "cuda":
        return device
    cards = _device_count("cuda")
    problems = []
    if local_size > 1 and ":" in asked:
        problems.append(
            f"--device={asked} is one card for {local_size} processes; --device=cuda gives each its own"
        )
    if local_size > cards:
        problems.append(f"{local_size} processes were started on a machine with {cards} cards; start {cards}")
    if problems:
        raise UserError(problems)
    return device if ":" in asked else torch.device("cuda", local_rank)


def _cuda_works() -> bool:
    # A card without a matching driver warns here on every start; that it is not available says it all.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.cuda.is_available()


def _device_count(kind: str) -> int:
    return torch.cuda.device_count() if kind == "cuda" else 1


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return apple_gpu_name()
    threads = torch.get_num_threads()
    return f"{threads} threads" if threads > 1 else "1 thread"


def device_traits(device: torch.device) -> DeviceTraits:
    """What of the device decides, for the rules that `glass plan` asks too."""
    if device.type == "cpu":
        fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        return DeviceTraits("cpu", has_fast_bfloat16=fast, missing_toolchain=find_missing_toolchain("cpu"))
    # Not torch.cuda.is_bf16_supported(): that says yes to cards that only emulate bfloat16, slowly.
    if device.type != "cuda":
        return DeviceTraits(device.type, missing_toolchain=find_missing_toolchain(device.type))
    capability = torch.cuda.get_device_capability(device)
    name = torch.cuda.get_device_name(device)
    card, tensor_cores = find_card(name), has_tensor_cores(name, capability)
    bandwidth = None if card is None else card.bandwidth_gb_s * 1e9
    return DeviceTraits(
        "cuda",
        capability,
        tensor_cores,
        bandwidth_bytes_per_s=bandwidth,
        missing_toolchain=find_missing_toolchain("cuda"),
    )


def choose_dtype(asked: str, device: torch.device, width: int | None = None) -> Choice:
    """`width`: the channels of the model to be trained; None if it only writes."""
    return decide.choose_dtype(asked, device_traits(device), width)


def choose_allocator(device: torch.device, environment: Mapping[str, str]) -> list[Choice]:
    """PyTorch's allocator may leave gaps that add up to a tenth of a card; segments that grow leave none."""
    if device.type != "cuda":
        return []
    if said := next((name for name in _ALLOCATOR_VARIABLES if environment.get(name)), None):
        return [Choice("allocator", environment[said], f"as {said} says")]
    if not sys.platform.startswith("linux"):
        return [Choice("allocator", "usual", "segments that grow are for Linux")]
    _tell_allocator("expandable_segments:True")
    return [Choice("allocator", "expandable_segments:True", "memory is used without gaps")]


def _tell_allocator(words: str) -> None:
    """At run time, since PyTorch reads the environment when it is imported. The name changed with 2.10."""
    new = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    (new or torch.cuda.memory._set_allocator_settings)(words)


_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def free_and_total_bytes(device: torch.device) -> tuple[int | None, int | None]:
    """Free and total memory of a card; None where memory is not a card's own."""
    if device.type != "cuda":
        return None, None
    free, total = torch.cuda.mem_get_info(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    share = torch.cuda.get_per_process_memory_fraction(index)  # whoever shares a card may have set it
    return min(free, int(share * total) - torch.cuda.memory_reserved(device)), total


def estimate_max_batch_size(
    config: TrainConfig, vocab_size: int, free_bytes: int | None, ranks: int = 1
) -> int | None:
    """The largest micro-batch that a card's free memory should hold, before anything was tried."""
    if free_bytes is None:
        return None
    work = replace(_estimated_work(config, vocab_size, ranks), micro_steps=2)  # gradients may have to add up
    return (
        largest_fitting_batch(work, _usable_bytes(free_bytes)) or 1
    )  # never none at all: the run will say it better


def cuda_graph_fits(config: TrainConfig, vocab_size: int, plan: BatchPlan, free_bytes: int | None) -> bool:
    """Whether there is memory for updates that are recorded, which keep theirs."""
    if free_bytes is None:
        return True
    foreseen = _estimated_work(config, vocab_size, plan.ranks)
    work = replace(foreseen, batch_size=plan.batch_size, micro_steps=plan.micro_steps, graph=True)
    return estimate_memory(work).total_bytes <= _usable_bytes(free_bytes)


def _estimated_work(config: TrainConfig, vocab_size: int, ranks: int) -> TrainingWorkload:
    return TrainingWorkload(
        config=config,
        vocab_size=vocab_size,
        batch_size=1,
        dtype="bfloat16" if config.dtype == "auto" else config.dtype,
        kernels=decide.choose_kernels(config, DeviceTraits("cuda"), vocab_size, ranks).value == "triton",
        compiled=config.compile == "on",
        attention=config.attention,
        eval_batch_tokens=eval_batch_rows(config, "cuda") * config.block_size,
        ranks=ranks,
    )


def _usable_bytes(free_bytes: int) -> int:
    """The context is there already, and not in what is free."""
    return int(_USABLE_SHARE * free_bytes) + CONTEXT_BYTES["cuda"]


_USABLE_SHARE = 0.92  # of what is free: tensors do not fill memory without gaps
