"""Where to compute, and in which dtype; decided with reasons. speedups.py makes it fast there."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from glassgpt.account import costs
from glassgpt.account.machine import apple_gpu_name
from glassgpt.account.memory import CONTEXT_BYTES, Work, largest_batch
from glassgpt.config import DEVICE, Choice, TrainConfig
from glassgpt.errors import UserError
from glassgpt.train.batching import evaluation_rows

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Placement:
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


def choose_device(asked: str) -> tuple[torch.device, Choice]:
    if not DEVICE.fullmatch(asked):
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


def share_out(device: torch.device, asked: str, local_rank: int, local_size: int) -> torch.device:
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


def choose_dtype(asked: str, device: torch.device, width: int | None = None) -> Choice:
    """`width`: the channels of the model to be trained; None if it only writes."""
    if device.type == "cpu":
        if asked == "float16":
            return Choice("dtype", "bfloat16", "float16 was asked for, but CPUs have no fast float16")
        if asked == "auto":
            return _cpu_dtype(width)
    if asked != "auto":
        return Choice("dtype", asked, "asked for" + _remark(asked, device))
    if device.type == "mps":
        return Choice("dtype", "float32", "Apple's GPU gains little from less")
    major, minor = torch.cuda.get_device_capability(device)
    # Not torch.cuda.is_bf16_supported(): that says yes to cards that only emulate bfloat16, slowly.
    if major >= 8:
        return Choice("dtype", "bfloat16", f"compute capability {major}.{minor}: no loss scaling needed")
    return Choice(
        "dtype", "float16", f"compute capability {major}.{minor} has no bfloat16: with loss scaling"
    )


def _cpu_dtype(width: int | None) -> Choice:
    if width is None:
        return Choice("dtype", "float32", "one token at a time, weights are fetched rather than multiplied")
    if width < costs.WIDE_FOR_BFLOAT16:
        return Choice("dtype", "float32", "so narrow a model gains nothing from less")
    if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported():
        return Choice("dtype", "bfloat16", "this CPU multiplies it twice as fast as float32")
    return Choice("dtype", "float32", "this CPU has no fast bfloat16")


def _remark(asked: str, device: torch.device) -> str:
    modern_card = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8
    if asked == "float32" and modern_card:
        return "; matmuls run in TF32"
    if asked == "bfloat16" and device.type == "cuda" and not modern_card:
        return "; this card only emulates it, slowly: --dtype=float16 is better"
    return ""


def memory_bytes(device: torch.device) -> tuple[int | None, int | None]:
    """Free and total memory of a card; None where memory is not a card's own."""
    return torch.cuda.mem_get_info(device) if device.type == "cuda" else (None, None)


def sequences_that_fit(config: TrainConfig, vocab_size: int, free_bytes: int | None) -> int | None:
    """The largest micro-batch that a card's free memory should hold, before anything was tried."""
    if free_bytes is None:
        return None
    compiled = config.compile == "on"
    work = Work(
        config=config,
        vocab_size=vocab_size,
        batch_size=1,
        micro_steps=2,  # gradients may have to add up
        dtype="bfloat16" if config.dtype == "auto" else config.dtype,
        kernels=config.kernels == "triton"
        or (
            config.kernels == "auto" and not compiled and costs.kernels_pay(config.max_iters, config.n_layer)
        ),
        compiled=compiled,
        attention=config.attention,
        eval_batch_tokens=evaluation_rows(config, "cuda", vocab_size) * config.block_size,
    )
    # The context is there already, and not in what is free.
    room = int(_ROOM * free_bytes) + CONTEXT_BYTES["cuda"]
    return largest_batch(work, room) or 1  # never none at all: the run will say it better


_ROOM = 0.92  # of what is free: tensors do not fill memory without gaps
