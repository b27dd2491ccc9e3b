"""Self-tests: a tiny model trained on this machine with the real loop.

Is accumulation the same as a larger batch? Is a resumed run the run that was never stopped? Does a GPU learn
something else than a CPU? Do the fast ways of computing give what the plain ones give?
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassgpt.config import TrainConfig
from glassgpt.doctor.check import CheckContext, DiagnosticLine, ReportValue
from glassgpt.doctor.gpu_checks import default_device
from glassgpt.doctor.isolate import run_isolated
from glassgpt.estimate.decide import choose_kernels
from glassgpt.record import journal

if TYPE_CHECKING:
    from torch import Tensor

_LIMIT_S = 90.0
_UPDATES = 20

# How far two runs may be apart. float32 rounds at the eighth digit, and training adds such errors up.
_MAX_ABSOLUTE_DIFFERENCE = 1e-5  # absolute, in losses, gradient norms and weights
_MAX_CROSS_DEVICE_ERROR = 1e-4  # of the loss: float32 on another device
_MAX_KERNEL_ERROR = 1e-3  # of the loss: the same in another order, by our kernels
_MAX_HALF_PRECISION_ERROR = 0.02  # of the loss: 16 bits instead of 32

REPORT_FIX = (
    "do not trust results from this machine before this is understood: try another version of torch, "
    "and report it with `glass doctor --json`"
)


def check_accumulation(context: CheckContext) -> list[DiagnosticLine]:
    return run_isolated(selftest_accumulation, context.scratch_dir, _LIMIT_S)


def check_resume(context: CheckContext) -> list[DiagnosticLine]:
    return run_isolated(selftest_resume, context.scratch_dir, _LIMIT_S)


def check_devices(context: CheckContext) -> list[DiagnosticLine]:
    if default_device().type == "cpu":
        says = "there is no GPU here, so there is nothing to compare, and it was not tested on this machine"
        return [DiagnosticLine("cpu and gpu", says, "note")]
    return run_isolated(selftest_devices, context.scratch_dir, _LIMIT_S)


def check_fast_paths(context: CheckContext) -> list[DiagnosticLine]:
    return run_isolated(selftest_fast_paths, context.scratch_dir, _LIMIT_S)


# --- the tests ---


def selftest_accumulation(folder: Path) -> list[DiagnosticLine]:
    """4 micro-batches of 2 sequences, and 8 sequences at once."""
    # A low rate: AdamW turns the rounding errors of tiny gradients into whole steps.
    config = replace(_tiny_config(folder), learning_rate=1e-3)
    whole = train_tiny(config, "batch", batch_size=8)
    parts = train_tiny(config, "micro-batches", batch_size=2, gradient_accumulation_steps=4)
    apart = max_or_nan(
        max_difference(whole.losses, parts.losses),
        max_difference(whole.grad_norms, parts.grad_norms),
        max_tensor_difference(whole.tensors["model"], parts.tensors["model"]),
    )
    says = (
        f"4 micro-batches of 2, and one batch of 8: in {_UPDATES} updates, losses, gradient norms and weights"
    )
    return [_difference_line("accumulation", f"{says} differ by", apart, _MAX_ABSOLUTE_DIFFERENCE)]


def selftest_resume(folder: Path) -> list[DiagnosticLine]:
    """Some updates in one go, and stopped half-way. With dropout, whose random numbers must continue too."""
    from glassgpt.training import session

    config = replace(_tiny_config(folder), dropout=0.1, lr_decay_iters=2 * _UPDATES)
    whole = train_tiny(config, "in-one-go", max_iters=2 * _UPDATES)
    train_tiny(config, "stopped", max_iters=_UPDATES)
    session.resume(str(folder / "stopped"), max_iters=2 * _UPDATES)
    resumed = read_self_test_run(folder / "stopped")
    differing = sum(
        tensor_bytes(tensor) != tensor_bytes(resumed.tensors[file][name])
        for file, tensors in whole.tensors.items()
        for name, tensor in tensors.items()
    )
    says = f"{2 * _UPDATES} updates in one go, and stopped and resumed after {_UPDATES}"
    numbers: dict[str, ReportValue] = {"differing_tensors": differing}
    if differing or whole.losses[_UPDATES:] != resumed.losses[_UPDATES:]:
        difference = f"{says} end differently: {differing} tensors differ"
        return [DiagnosticLine("resume", difference, "problem", REPORT_FIX, numbers)]
    return [
        DiagnosticLine("resume", f"{says}: weights and optimizer are equal to the last bit", numbers=numbers)
    ]


def selftest_devices(folder: Path) -> list[DiagnosticLine]:
    """The same settings and seed on the CPU and on the GPU."""
    from glassgpt.training.device import choose_dtype

    gpu = default_device()
    low = str(choose_dtype("auto", gpu, _tiny_config(folder).n_embd).value)
    cpu = train_tiny(_tiny_config(folder), "cpu", device="cpu")
    exact = train_tiny(_tiny_config(folder), "gpu", device=str(gpu))
    says = "the same model, data and seed: losses differ by"
    apart = max_difference(cpu.losses, exact.losses, relative=True)
    lines = [_difference_line("cpu and gpu", f"float32, {says}", apart, _MAX_CROSS_DEVICE_ERROR, True)]
    if low == "bfloat16":  # float16 skips an update now and then, while its scale settles
        rough = train_tiny(_tiny_config(folder), f"gpu-{low}", device=str(gpu), dtype=low)
        apart = max_difference(cpu.losses, rough.losses, True)
        lines.append(
            _difference_line(
                "cpu and gpu", f"{low} on the GPU, {says}", apart, _MAX_HALF_PRECISION_ERROR, True
            )
        )
    return lines


def selftest_fast_paths(folder: Path) -> list[DiagnosticLine]:
    """What a run takes by itself because it is faster, beside the formulas that it must equal."""
    from glassgpt.training.device import device_traits

    device = default_device()
    plain = train_tiny(_tiny_config(folder), "plain", attention="manual", graph="off")
    fused = train_tiny(_tiny_config(folder), "fused", attention="sdpa")
    lines = [_fast_path_line("fused attention", plain, fused, _MAX_KERNEL_ERROR)]
    if choose_kernels(TrainConfig(), device_traits(device)).value == "triton":
        own = train_tiny(_tiny_config(folder), "own", kernels="triton")
        lines.append(_fast_path_line("our kernels", plain, own, _MAX_KERNEL_ERROR))
    if device.type == "cpu":
        low = train_tiny(_tiny_config(folder), "bfloat16", dtype="bfloat16")
        lines.append(_fast_path_line("bfloat16", plain, low, _MAX_HALF_PRECISION_ERROR))
    return lines


def _fast_path_line(what: str, plain: SelfTestRun, fast: SelfTestRun, allowed: float) -> DiagnosticLine:
    if fast.fallbacks:
        says = f"{what}: {'; '.join(fast.fallbacks)}"
        return DiagnosticLine("fast paths", says, "problem", "only speed is lost; see the lines on compiling")
    says = f"{what}: against the plain formulas in float32, losses differ by"
    return _difference_line(
        "fast paths", says, max_difference(plain.losses, fast.losses, True), allowed, True
    )


def _difference_line(
    name: str, says: str, apart: float, allowed: float, relative: bool = False
) -> DiagnosticLine:
    """A difference of NaN is no agreement."""
    numbers: dict[str, ReportValue] = {"difference": apart, "allowed": allowed}
    difference = f"{says} {_amount(apart, relative)} at most; {_amount(allowed, relative)} is allowed"
    if apart <= allowed:
        return DiagnosticLine(name, difference, numbers=numbers)
    return DiagnosticLine(name, difference, "problem", REPORT_FIX, numbers)


def _amount(value: float, relative: bool) -> str:
    return f"{100 * value:.2g}%" if relative else f"{value:.1e}"


# --- runs ---


@dataclass(frozen=True)
class SelfTestRun:
    """What a run left behind."""

    losses: list[float]  # of every update
    grad_norms: list[float]  # of its gradients
    tensors: dict[str, dict[str, Tensor]]  # of the last checkpoint: model, optimizer
    fallbacks: list[str]  # what was to make it fast, and failed


def _tiny_config(folder: Path) -> TrainConfig:
    return TrainConfig(
        data_dir=str(_data(folder)),
        n_layer=2,
        n_head=2,
        n_embd=64,
        block_size=32,
        batch_size=8,
        learning_rate=1e-2,  # so that attention matters within a few updates
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


def _data(folder: Path) -> Path:
    """Text that is the same everywhere."""
    from glassgpt.data.prepare import prepare
    from glassgpt.data.prepare_options import PrepareOptions

    place = folder / "data"
    if not place.exists():
        draw = random.Random(7)
        text = "\n".join(" ".join(draw.choices(_WORDS, k=8)) for _ in range(400))
        (folder / "words.txt").write_text(text, encoding="utf-8")
        options = PrepareOptions(str(folder / "words.txt"), out_dir=str(place))
        prepare(options, print_line=lambda line: None, progress=False)
    return place


_WORDS = ("glass", "house", "room", "door", "a", "sees", "the", "light", "through", "wall")


def train_tiny(config: TrainConfig, name: str, **changes: Any) -> SelfTestRun:
    """A whole run, in a folder beside its data."""
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
    """The largest difference; NaN if there is one, infinite if there are not as many on both sides."""
    if len(one) != len(other) or not one:
        return math.inf
    scale: Callable[[float], float] = abs if relative else lambda value: 1.0
    return max_or_nan(*(abs(a - b) / scale(a) for a, b in zip(one, other, strict=True)))


def max_or_nan(*differences: float) -> float:
    """NaN is worse than any number."""
    return math.nan if any(map(math.isnan, differences)) else max(differences)


def max_tensor_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    if one.keys() != other.keys():
        return math.inf
    return max_difference([float((one[name] - other[name]).abs().max()) for name in one], [0.0] * len(one))


def tensor_bytes(tensor: Tensor) -> bytes:
    """Unlike ==, equal bits tell 0 from -0, and NaN equals itself."""
    return tensor.detach().cpu().contiguous().numpy().tobytes()
