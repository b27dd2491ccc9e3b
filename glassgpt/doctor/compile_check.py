"""Whether code can be built here: the compilers, torch.compile, our kernels, each by really doing it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from glassgpt import format
from glassgpt.config import TrainConfig
from glassgpt.doctor.check import Line, Visit
from glassgpt.doctor.gpu_checks import main_device
from glassgpt.doctor.isolate import look_apart
from glassgpt.doctor.shell import Told, ask
from glassgpt.estimate.decide import choose_compile, choose_kernels
from glassgpt.record.machine import COMPILERS, find_compiler

if TYPE_CHECKING:
    import torch

_LIMIT_S = 90.0

COMPILE_FIX = (
    "only speed is lost, and --compile=off spares runs the attempt; often a newer compiler or Python's "
    "headers (python3-dev) are missing"
)
KERNELS_FIX = (
    "only speed is lost, and --kernels=plain spares runs the attempt; install the triton that belongs to "
    "this torch"
)


# --- compilers ---


def look_at_compilers(visit: Visit) -> list[Line]:
    device_type = main_device().type
    return [
        compiler_line(language, find_compiler(language, os.environ, shutil.which), device_type, ask)
        for language in COMPILERS
    ]


def compiler_line(
    language: str, command: str | None, device_type: str, ask: Callable[..., Told | None]
) -> Line:
    name = f"{language} compiler"
    if command is not None:
        told = ask(command, "--version")
        version = told.text.splitlines()[0] if told and told.text else "of a version it does not tell"
        return Line(name, f"{Path(command).name}: {version}", numbers={"command": Path(command).name})
    # torch.compile wants C++ on a CPU; on a card Triton wants C, also for our own kernels.
    wanted = {"cpu": "C++", "cuda": "C"}.get(device_type)
    fix = "install one: sudo apt install build-essential, or what your system has instead"
    if language != wanted:
        return Line(name, "none found; not needed here", numbers={"command": None})
    if device_type == "cuda":
        says = "none found: neither our kernels nor torch.compile can be built, which costs much speed"
        return Line(name, says, "problem", fix, {"command": None})
    return Line(name, "none found: runs go without compiling", "note", fix, {"command": None})


# --- torch.compile ---


def look_at_compile(visit: Visit) -> list[Line]:
    from glassgpt.training.device import traits_of

    # Asked as for a run that would gain by it, so that only what is missing can speak against it.
    choice = choose_compile(TrainConfig(), traits_of(main_device()), eager_step_s=1e3, kernels=False)
    if choice.value == "off":
        return [Line("compile", f"not tried: {choice.reason}", "note")]
    return look_apart(compile_something, visit.folder, _LIMIT_S)


def compile_something(folder: Path) -> list[Line]:
    """Compiling happens in the first call, and fails there, if it does."""
    import torch

    device = main_device()
    inputs = torch.linspace(-2, 2, 64, device=device).reshape(8, 8)
    started = time.perf_counter()
    found = torch.compile(_small_function)(inputs)
    seconds = time.perf_counter() - started
    return [compile_line(bool(torch.allclose(found, _small_function(inputs), atol=1e-5)), seconds)]


def _small_function(x: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.gelu(x @ x).sum(-1)


def compile_line(is_right: bool, seconds: float) -> Line:
    numbers = {"seconds": round(seconds, 2)}
    if not is_right:
        return Line(
            "compile", "torch.compile builds code that computes wrongly", "problem", COMPILE_FIX, numbers
        )
    says = f"torch.compile works: a small function took {format.duration(seconds)} to build"
    return Line("compile", says, numbers=numbers)


# --- our kernels ---


def look_at_kernels(visit: Visit) -> list[Line]:
    from glassgpt.training.device import traits_of

    device = main_device()
    if device.type != "cuda":
        return [Line("kernels", "our own are for CUDA cards: not tried here")]
    choice = choose_kernels(TrainConfig(), traits_of(device))
    if choice.value != "triton":
        return [Line("kernels", f"not tried: {choice.reason}", "problem", KERNELS_FIX)]
    return look_apart(build_kernels, visit.folder, _LIMIT_S)


def build_kernels(folder: Path) -> list[Line]:
    """All that a small model needs, forward and backward."""
    import torch

    from glassgpt.model.gpt import GPT, GPTConfig
    from glassgpt.training.device import Placement, choose_dtype

    device = main_device()
    dtype = str(choose_dtype("auto", device, 64).value)
    started = time.perf_counter()
    shape = GPTConfig(vocab_size=64, block_size=32, n_layer=1, n_head=2, n_embd=64)
    model = GPT(shape).to(device)
    model.set_kernels(True)
    tokens = torch.arange(64, device=device).reshape(2, 32)
    with Placement(device, dtype).autocast():
        loss = model(tokens, tokens)
    torch.autograd.backward(loss)
    torch.cuda.synchronize(device)
    seconds = time.perf_counter() - started
    says = f"our own build and run: {format.duration(seconds)} the first time, then they are kept"
    return [Line("kernels", says, numbers={"seconds": seconds}), _float8_line(device)]


def _float8_line(device: torch.device) -> Line:
    """Asked as a run asks."""
    from glassgpt.errors import UserError
    from glassgpt.estimate.batching import BatchPlan
    from glassgpt.training.kernel_choice import check_float8

    plan = BatchPlan(batch_size=1, micro_steps=1, sequences=1, tokens=1024)
    try:
        check_float8(TrainConfig(fp8=True), device, "bfloat16", own_kernels=True, plan=plan)
    except UserError as error:
        return Line("fp8", f"not here: {error.problems[0]}", numbers={"works": False})
    return Line(
        "fp8", "8-bit floats work: --fp8=True trains faster and less exactly", numbers={"works": True}
    )
