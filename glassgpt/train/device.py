"""Where and how to compute: device, dtype, compile, attention; decided in that order, with reasons."""

from __future__ import annotations

import importlib.util
import os
import shutil
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from glassgpt.account.machine import apple_gpu_name
from glassgpt.config import DEVICE, Choice, TrainConfig
from glassgpt.errors import UserError
from glassgpt.train.batching import BatchPlan

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Placement:
    """What was decided about the machine."""

    device: torch.device
    dtype: str
    compile: bool
    attention: str

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


def choose_dtype(asked: str, device: torch.device) -> Choice:
    if device.type == "cpu":
        if asked == "float16":
            return Choice("dtype", "bfloat16", "float16 was asked for, but CPUs have no fast float16")
        if asked == "auto":
            return Choice("dtype", "float32", "CPUs are surest in float32; --dtype=bfloat16 is there to try")
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


def _remark(asked: str, device: torch.device) -> str:
    modern_card = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8
    if asked == "float32" and modern_card:
        return "; matmuls run in TF32"
    if asked == "bfloat16" and device.type == "cuda" and not modern_card:
        return "; this card only emulates it, slowly: --dtype=float16 is better"
    return ""


# What compiling costs and saves, as measured with torch 2.11 (H200) and 2.13 (2 CPU cores); bench/LOG.md.
_COMPILE_COST_S = {"cpu": (10.0, 3.0), "cuda": (19.0, 1.0)}  # at all, and per layer
_COMPILE_SAVES = {"cpu": 0.15, "cuda": 0.3}  # of an eager step


def estimate_step_s(
    device: torch.device, plan: BatchPlan, flops_per_token: int, n_layer: int, peak: float | None
) -> float | None:
    """About how long an eager update will take: its arithmetic at a usual share of the peak, or the time it
    takes to launch its kernels, whichever is more."""
    if peak is None:
        return None
    share, launch_s = (0.5, 0.0) if device.type == "cpu" else (0.43, 2.3e-3)
    return max(plan.tokens * flops_per_token / (share * peak), launch_s * n_layer * plan.micro_steps)


def choose_compile(config: TrainConfig, device: torch.device, eager_step_s: float | None) -> Choice:
    """`eager_step_s`: about how long an update will take without compiling; None if nobody can say."""
    if config.compile != "auto":
        return Choice("compile", config.compile, "asked for")
    missing = _missing_for_compile(device)
    if missing:
        return Choice("compile", "off", missing)
    if config.eval_only:
        return Choice("compile", "off", "one evaluation does not pay for it")
    if eager_step_s is None:
        return Choice(
            "compile", "off", "no estimate of a step's time to weigh it against; --compile=on forces it"
        )
    fixed, per_layer = _COMPILE_COST_S[device.type]
    cost = fixed + per_layer * config.n_layer
    saving = config.max_iters * eager_step_s * _COMPILE_SAVES[device.type]
    break_even = cost / (eager_step_s * _COMPILE_SAVES[device.type])
    verdict = "on" if saving > cost else "off"
    step_ms = eager_step_s * 1000
    return Choice(
        "compile",
        verdict,
        f"costs about {cost:.0f} s, saves about {saving:.0f} s of {config.max_iters:,} updates at "
        f"about {step_ms:{',.0f' if step_ms >= 10 else '.2g'}} ms: breaks even near update {break_even:,.0f}",
    )


def _missing_for_compile(device: torch.device) -> str | None:
    if device.type == "mps":
        return "not dependable on Apple's GPU yet; --compile=on forces it"
    variable, *usual = (
        ("CC", "cc", "gcc", "clang") if device.type == "cuda" else ("CXX", "c++", "g++", "clang++")
    )
    if not any(name and shutil.which(name) for name in (os.environ.get(variable), *usual)):
        return f"no {'C' if variable == 'CC' else 'C++'} compiler was found"
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed"
        if torch.cuda.get_device_capability(device)[0] < 7:
            return "the card is too old for triton"
    return None


def choose_attention(asked: str) -> Choice:
    if asked != "auto":
        return Choice("attention", asked, "asked for")
    return Choice("attention", "sdpa", "PyTorch's fused kernels never store the T x T matrix")


def memory_bytes(device: torch.device) -> tuple[int | None, int | None]:
    """Free and total memory of a card; None where memory is not a card's own."""
    return torch.cuda.mem_get_info(device) if device.type == "cuda" else (None, None)


def sequences_that_fit(
    config: TrainConfig, vocab_size: int, parameters: int, free_bytes: int | None
) -> int | None:
    """A careful estimate of the micro-batch that memory allows, before anything was tried.

    Weights, gradients and AdamW's two moments take 16 bytes a parameter. A token keeps about 34 bytes a
    channel and layer for the backward pass (one sixth of that under activation checkpointing, besides one
    layer's worth), and its logits about 12 bytes a vocabulary entry. Compiled code needs less.
    """
    if free_bytes is None:
        return None
    layers = config.n_layer / 6 + 1 if config.activation_checkpointing else config.n_layer
    per_token = 34 * layers * config.n_embd * (2 if config.dtype == "float32" else 1) + 12 * vocab_size
    room = 0.85 * free_bytes - 16 * parameters
    return max(1, int(room / (per_token * config.block_size)))
