"""Compilers, torch.compile and our Triton kernels: each is tried, not only looked for."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from glassgpt.config import TrainConfig
from glassgpt.doctor.diagnosis import CheckContext, DiagnosticLine
from glassgpt.doctor.gpu_checks import default_device
from glassgpt.doctor.isolated_check import run_isolated
from glassgpt.estimate.decide import choose_compile, choose_kernels
from glassgpt.format import format_duration
from glassgpt.record.machine import COMPILER_COMMANDS, command_output, find_compiler

if TYPE_CHECKING:
    import torch

_LIMIT_S = 90.0

COMPILE_FIX = (
    "only speed is lost, and --compile=off skips the attempt; often a newer compiler or Python's "
    "headers (python3-dev) are missing"
)
KERNELS_FIX = (
    "only speed is lost, and --kernels=plain skips the attempt; install the triton version that this "
    "torch requires"
)


# --- compilers ---


def check_compilers(context: CheckContext) -> list[DiagnosticLine]:
    device_type = default_device().type
    return [
        compiler_line(
            language, find_compiler(language, os.environ, shutil.which), device_type, command_output
        )
        for language in COMPILER_COMMANDS
    ]


def compiler_line(
    language: str, command: str | None, device_type: str, run: Callable[..., str | None]
) -> DiagnosticLine:
    name = f"{language} compiler"
    if command is not None:
        version = (run(command, "--version") or "unknown version").splitlines()[0]
        return DiagnosticLine(
            name, f"{Path(command).name}: {version}", values={"command": Path(command).name}
        )
    # On a CPU torch.compile needs a C++ compiler. On a CUDA card Triton needs one for C, for our kernels too.
    fix = "install one: sudo apt install build-essential, or your system's equivalent"
    line = DiagnosticLine(name, "none found", values={"command": None})
    if language != {"cpu": "C++", "cuda": "C"}.get(device_type):
        return DiagnosticLine(name, "none found; not needed here", values={"command": None})
    if device_type == "cuda":
        return line.problem(": neither our kernels nor torch.compile work, so training is much slower", fix)
    return line.note(": runs do not use torch.compile", fix)


# --- torch.compile ---


def check_compile(context: CheckContext) -> list[DiagnosticLine]:
    from glassgpt.training.device import device_traits

    # For a run so long that compiling pays off: then `off` means that something is missing here.
    choice = choose_compile(TrainConfig(), device_traits(default_device()), eager_step_s=1e3, kernels=False)
    if choice.value == "off":
        return [DiagnosticLine("compile", f"not tried: {choice.reason}", "note")]
    return run_isolated(compile_small_function, context.scratch_dir, _LIMIT_S)


def compile_small_function(folder: Path) -> list[DiagnosticLine]:
    """torch.compile compiles, or fails, in the first call."""
    import torch

    device = default_device()
    inputs = torch.linspace(-2, 2, 64, device=device).reshape(8, 8)
    started = time.perf_counter()
    compiled = torch.compile(_small_function)(inputs)
    seconds = time.perf_counter() - started
    return [compile_line(bool(torch.allclose(compiled, _small_function(inputs), atol=1e-5)), seconds)]


def _small_function(x: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.gelu(x @ x).sum(-1)


def compile_line(is_correct: bool, seconds: float) -> DiagnosticLine:
    values = {"seconds": round(seconds, 2)}
    if not is_correct:
        message = "torch.compile builds code with wrong results"
        return DiagnosticLine("compile", message, "problem", COMPILE_FIX, values)
    message = f"torch.compile works: a small function took {format_duration(seconds)} to compile"
    return DiagnosticLine("compile", message, values=values)


# --- our kernels ---


def check_kernels(context: CheckContext) -> list[DiagnosticLine]:
    from glassgpt.training.device import device_traits

    device = default_device()
    if device.type != "cuda":
        return [DiagnosticLine("kernels", "our Triton kernels need a CUDA card: not tried")]
    choice = choose_kernels(TrainConfig(), device_traits(device))
    if choice.value != "triton":
        return [DiagnosticLine("kernels", f"not tried: {choice.reason}", "problem", KERNELS_FIX)]
    return run_isolated(build_kernels, context.scratch_dir, _LIMIT_S)


def build_kernels(folder: Path) -> list[DiagnosticLine]:
    """The kernels of a small model, forward and backward."""
    import torch

    from glassgpt.model.gpt import GPT, GPTConfig
    from glassgpt.training.device import ExecutionConfig, choose_dtype

    device = default_device()
    dtype = str(choose_dtype("auto", device, 64).value)
    started = time.perf_counter()
    shape = GPTConfig(vocab_size=64, block_size=32, n_layer=1, n_head=2, n_embd=64)
    model = GPT(shape).to(device)
    model.backend.kernels = True
    tokens = torch.arange(64, device=device).reshape(2, 32)
    with ExecutionConfig(device, dtype).autocast():
        loss = model(tokens, tokens)
    torch.autograd.backward(loss)
    torch.cuda.synchronize(device)
    seconds = time.perf_counter() - started
    message = f"our Triton kernels work: {format_duration(seconds)} to compile, then they are cached"
    return [DiagnosticLine("kernels", message, values={"seconds": seconds}), _float8_line(device)]


def _float8_line(device: torch.device) -> DiagnosticLine:
    """Whether FP8 works, by the same check as in a run."""
    from glassgpt.estimate.decide import float8_problems
    from glassgpt.estimate.training_workload import TrainingWorkload
    from glassgpt.model.float8 import is_float8_kernel_correct
    from glassgpt.training.device import device_traits

    work = TrainingWorkload(config=TrainConfig(fp8=True), vocab_size=64, batch_size=1)
    traits = device_traits(device)
    problems = float8_problems(work, traits)
    if not problems:
        problems = float8_problems(work, traits, is_float8_kernel_correct(device))
    if problems:
        return DiagnosticLine("fp8", f"not available: {problems[0]}", values={"works": False})
    return DiagnosticLine(
        "fp8", "8-bit floats work: --fp8=True trains faster, with lower precision", values={"works": True}
    )
