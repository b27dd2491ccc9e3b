"""Self-tests: a tiny model trained on this machine with the real loop.

Does gradient accumulation equal a larger batch? Does a resumed run equal one that was never stopped? Do GPU
and CPU agree? Do fused attention, our kernels and bfloat16 agree with the plain formulas in float32?
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassgpt.config import TrainConfig
from glassgpt.doctor.diagnosis import CheckContext, DiagnosticLine, ReportValue
from glassgpt.doctor.gpu_checks import default_device
from glassgpt.doctor.isolated_check import IsolatedCheck, run_isolated
from glassgpt.estimate.decide import choose_kernels
from glassgpt.record import journal

if TYPE_CHECKING:
    from torch import Tensor

_LIMIT_S = 90.0
_UPDATES = 20

# Tolerances. float32 rounds at the eighth digit, and training accumulates such errors.
_ABSOLUTE_TOLERANCE = 1e-5  # losses, gradient norms and weights
_CROSS_DEVICE_TOLERANCE = 1e-4  # relative, of the loss: float32 on another device
_KERNEL_TOLERANCE = 1e-3  # relative, of the loss: our kernels sum in another order
_HALF_PRECISION_TOLERANCE = 0.02  # relative, of the loss: 16 bits instead of 32

REPORT_FIX = (
    "do not trust results from this machine until this is understood: try another version of torch, "
    "and report it with the output of `glass doctor --json`"
)


def run_selftest(selftest: IsolatedCheck, context: CheckContext) -> list[DiagnosticLine]:
    return run_isolated(selftest, context.scratch_dir, _LIMIT_S)


def check_devices(context: CheckContext) -> list[DiagnosticLine]:
    if default_device().type == "cpu":
        message = "not tested on this machine: there is no GPU"
        return [DiagnosticLine("cpu and gpu", message, "note")]
    return run_selftest(selftest_devices, context)


# --- the tests ---


def selftest_accumulation(folder: Path) -> list[DiagnosticLine]:
    """4 micro-batches of 2 sequences, and one batch of 8."""
    # A low learning rate: AdamW turns rounding errors of tiny gradients into whole steps.
    config = replace(_tiny_config(folder), learning_rate=1e-3)
    one_batch = train_tiny(config, "batch", batch_size=8)
    accumulated = train_tiny(config, "micro-batches", batch_size=2, gradient_accumulation_steps=4)
    max_diff = max_or_nan(
        max_difference(one_batch.losses, accumulated.losses),
        max_difference(one_batch.grad_norms, accumulated.grad_norms),
        max_tensor_difference(one_batch.tensors["model"], accumulated.tensors["model"]),
    )
    compared = "losses, gradient norms and weights differ by"
    message = f"4 micro-batches of 2, one batch of 8: after {_UPDATES} updates, {compared}"
    return [_difference_line("accumulation", message, max_diff, _ABSOLUTE_TOLERANCE)]


def selftest_resume(folder: Path) -> list[DiagnosticLine]:
    """A run without a stop equals one resumed half-way, also in its dropout masks."""
    from glassgpt.training import session

    config = replace(_tiny_config(folder), dropout=0.1, lr_decay_iters=2 * _UPDATES)
    uninterrupted = train_tiny(config, "uninterrupted", max_iters=2 * _UPDATES)
    train_tiny(config, "stopped", max_iters=_UPDATES)
    session.resume(str(folder / "stopped"), max_iters=2 * _UPDATES)
    resumed = read_self_test_run(folder / "stopped")
    differing = sum(
        tensor_bytes(tensor) != tensor_bytes(resumed.tensors[file][name])
        for file, tensors in uninterrupted.tensors.items()
        for name, tensor in tensors.items()
    )
    message = f"{2 * _UPDATES} updates without a stop, and resumed after {_UPDATES}"
    values: dict[str, ReportValue] = {"differing_tensors": differing}
    if differing or uninterrupted.losses[_UPDATES:] != resumed.losses[_UPDATES:]:
        message += f": {differing} tensors differ"
        return [DiagnosticLine("resume", message, "problem", REPORT_FIX, values)]
    return [
        DiagnosticLine("resume", f"{message}: weights and optimizer state are bitwise equal", values=values)
    ]


def selftest_devices(folder: Path) -> list[DiagnosticLine]:
    """Runs equal settings and seeds on the CPU and on the GPU, and compares them."""
    from glassgpt.training.device import choose_dtype

    gpu = default_device()
    config, same = _tiny_config(folder), "the same model, data and seed: losses differ by"
    cpu = train_tiny(config, "cpu", device="cpu")

    def compare(message: str, on_gpu: SelfTestRun, tolerance: float) -> DiagnosticLine:
        max_diff = max_difference(cpu.losses, on_gpu.losses, relative=True)
        return _difference_line("cpu and gpu", f"{message}, {same}", max_diff, tolerance, relative=True)

    gpu_float32 = train_tiny(config, "gpu", device=str(gpu))
    lines = [compare("float32", gpu_float32, _CROSS_DEVICE_TOLERANCE)]
    # Not float16, which skips some updates while its loss scale settles.
    if choose_dtype("auto", gpu, config.n_embd).value == "bfloat16":
        gpu_bfloat16 = train_tiny(config, "gpu-bfloat16", device=str(gpu), dtype="bfloat16")
        lines.append(compare("bfloat16 on the GPU", gpu_bfloat16, _HALF_PRECISION_TOLERANCE))
    return lines


def selftest_fast_paths(folder: Path) -> list[DiagnosticLine]:
    """What a run uses by default because it is faster, compared with the plain formulas."""
    from glassgpt.training.device import device_traits

    device = default_device()
    plain = train_tiny(_tiny_config(folder), "plain", attention="manual", graph="off")
    fused = train_tiny(_tiny_config(folder), "fused", attention="sdpa")
    lines = [_fast_path_line("fused attention", plain, fused, _KERNEL_TOLERANCE)]
    if choose_kernels(TrainConfig(), device_traits(device)).value == "triton":
        triton = train_tiny(_tiny_config(folder), "triton", kernels="triton")
        lines.append(_fast_path_line("our kernels", plain, triton, _KERNEL_TOLERANCE))
    if device.type == "cpu":
        bfloat16 = train_tiny(_tiny_config(folder), "bfloat16", dtype="bfloat16")
        lines.append(_fast_path_line("bfloat16", plain, bfloat16, _HALF_PRECISION_TOLERANCE))
    return lines


def _fast_path_line(path: str, plain: SelfTestRun, fast: SelfTestRun, tolerance: float) -> DiagnosticLine:
    if fast.fallbacks:
        message = f"{path}: {'; '.join(fast.fallbacks)}"
        return DiagnosticLine(
            "fast paths", message, "problem", "only speed is lost; see the lines about compiling"
        )
    message = f"{path}: compared with the plain formulas in float32, losses differ by"
    return _difference_line(
        "fast paths", message, max_difference(plain.losses, fast.losses, True), tolerance, True
    )


def _difference_line(
    name: str, message: str, max_diff: float, tolerance: float, relative: bool = False
) -> DiagnosticLine:
    """`relative`: print percentages. A NaN is a problem."""
    values: dict[str, ReportValue] = {"difference": max_diff, "allowed": tolerance}
    largest, allowed = (f"{100 * x:.2g}%" if relative else f"{x:.1e}" for x in (max_diff, tolerance))
    line = DiagnosticLine(name, f"{message} at most {largest}; tolerance {allowed}", values=values)
    return line if max_diff <= tolerance else line.problem("", REPORT_FIX)


# --- runs ---


@dataclass(frozen=True)
class SelfTestRun:
    """What is compared of a run."""

    losses: list[float]  # of every update
    grad_norms: list[float]
    tensors: dict[str, dict[str, Tensor]]  # of the last checkpoint: model, optimizer
    fallbacks: list[str]  # fast paths that failed, with the reason


def _tiny_config(folder: Path) -> TrainConfig:
    return TrainConfig(
        data_dir=str(_prepare_data(folder)),
        n_layer=2,
        n_head=2,
        n_embd=64,
        block_size=32,
        batch_size=8,
        learning_rate=1e-2,  # high, so that attention matters within a few updates
        warmup_iters=3,
        max_iters=_UPDATES,
        eval_interval=1000,
        eval_tokens=256,
        closing_eval=False,
        dtype="float32",
        compile="off",
        kernels="plain",
        probe_seconds=0.0,
    )


def _prepare_data(folder: Path) -> Path:
    """A dataset of random words, the same on every machine."""
    from glassgpt.data.prepare import prepare
    from glassgpt.data.prepare_options import PrepareOptions

    data_dir = folder / "data"
    if not data_dir.exists():
        rng = random.Random(7)
        text = "\n".join(" ".join(rng.choices(_WORDS, k=8)) for _ in range(400))
        (folder / "words.txt").write_text(text, encoding="utf-8")
        options = PrepareOptions(str(folder / "words.txt"), out_dir=str(data_dir))
        prepare(options, lambda line: None, progress=False)
    return data_dir


_WORDS = ("glass", "house", "room", "door", "a", "sees", "the", "light", "through", "wall")


def train_tiny(config: TrainConfig, name: str, **changes: Any) -> SelfTestRun:
    """A run in a folder beside its data."""
    from glassgpt.training import session

    folder = Path(config.data_dir).parent / name
    session.train(replace(config, out_dir=str(folder), **changes))
    return read_self_test_run(folder)


def read_self_test_run(folder: Path) -> SelfTestRun:
    from glassgpt.training.checkpoint.checkpoints import load_latest_intact

    records = journal.effective_records(journal.read(folder / journal.FILE_NAME))
    steps = [record for record in records if record["kind"] == "step"]
    fallbacks = [
        f"{record['title']} ({record['evidence']})"
        for record in records
        if record["kind"] == "finding" and str(record.get("id", "")).endswith("-failed")
    ]
    return SelfTestRun(
        [float(step["loss"]) for step in steps],
        [float(step["grad_norm"]) for step in steps],
        load_latest_intact(folder)[1],
        fallbacks,
    )


# --- comparing ---


def max_difference(one: Sequence[float], other: Sequence[float], relative: bool = False) -> float:
    """The largest difference: NaN if one is NaN, infinite if the lengths differ."""
    if len(one) != len(other) or not one:
        return math.inf
    scale: Callable[[float], float] = abs if relative else lambda value: 1.0
    return max_or_nan(*(abs(a - b) / scale(a) for a, b in zip(one, other, strict=True)))


def max_or_nan(*differences: float) -> float:
    """Unlike max(), NaN if any of them is NaN."""
    return math.nan if any(map(math.isnan, differences)) else max(differences)


def max_tensor_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    if one.keys() != other.keys():
        return math.inf
    return max_difference([float((one[name] - other[name]).abs().max()) for name in one], [0.0] * len(one))


def tensor_bytes(tensor: Tensor) -> bytes:
    """For a bitwise comparison: unlike ==, it distinguishes 0 from -0, and NaN equals itself."""
    return tensor.detach().cpu().contiguous().numpy().tobytes()
