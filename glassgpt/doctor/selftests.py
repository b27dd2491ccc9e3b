"""Old questions, answered on this machine by training a tiny model with the real loop.

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
from glassgpt.doctor.check import Line, Number, Visit
from glassgpt.doctor.gpu_checks import main_device
from glassgpt.doctor.isolate import look_apart
from glassgpt.estimate.decide import choose_kernels
from glassgpt.record import journal

if TYPE_CHECKING:
    from torch import Tensor

_LIMIT_S = 90.0
_UPDATES = 20

# How far two runs may be apart. float32 rounds at the eighth digit, and training adds such errors up.
_EQUAL = 1e-5  # absolute, in losses, gradient norms and weights
_SAME_ARITHMETIC = 1e-4  # of the loss: float32 on another device
_SAME_FORMULAS = 1e-3  # of the loss: the same in another order, by our kernels
_LESS_EXACT = 0.02  # of the loss: 16 bits instead of 32

REPORT_FIX = (
    "do not trust results from this machine before this is understood: try another version of torch, "
    "and report it with `glass doctor --json`"
)


def look_at_accumulation(visit: Visit) -> list[Line]:
    return look_apart(accumulation, visit.folder, _LIMIT_S)


def look_at_resume(visit: Visit) -> list[Line]:
    return look_apart(resume, visit.folder, _LIMIT_S)


def look_at_devices(visit: Visit) -> list[Line]:
    if main_device().type == "cpu":
        says = "there is no GPU here, so there is nothing to compare, and it was not tested on this machine"
        return [Line("cpu and gpu", says, "note")]
    return look_apart(devices, visit.folder, _LIMIT_S)


def look_at_fast_paths(visit: Visit) -> list[Line]:
    return look_apart(fast_paths, visit.folder, _LIMIT_S)


# --- the tests ---


def accumulation(folder: Path) -> list[Line]:
    """4 micro-batches of 2 sequences, and 8 sequences at once."""
    # A low rate: AdamW turns the rounding errors of tiny gradients into whole steps.
    config = replace(_settings(folder), learning_rate=1e-3)
    whole = run(config, "batch", batch_size=8)
    parts = run(config, "micro-batches", batch_size=2, gradient_accumulation_steps=4)
    apart = worst(
        furthest(whole.losses, parts.losses),
        furthest(whole.norms, parts.norms),
        furthest_tensor(whole.tensors["model"], parts.tensors["model"]),
    )
    says = (
        f"4 micro-batches of 2, and one batch of 8: in {_UPDATES} updates, losses, gradient norms and weights"
    )
    return [_line("accumulation", f"{says} differ by", apart, _EQUAL)]


def resume(folder: Path) -> list[Line]:
    """Some updates in one go, and stopped half-way. With dropout, whose random numbers must go on as well."""
    from glassgpt.training import session

    config = replace(_settings(folder), dropout=0.1, lr_decay_iters=2 * _UPDATES)
    whole = run(config, "in-one-go", max_iters=2 * _UPDATES)
    run(config, "stopped", max_iters=_UPDATES)
    session.resume(str(folder / "stopped"), max_iters=2 * _UPDATES)
    resumed = outcome(folder / "stopped")
    differing = sum(
        bits(tensor) != bits(resumed.tensors[file][name])
        for file, tensors in whole.tensors.items()
        for name, tensor in tensors.items()
    )
    says = f"{2 * _UPDATES} updates in one go, and stopped and resumed after {_UPDATES}"
    numbers: dict[str, Number] = {"differing_tensors": differing}
    if differing or whole.losses[_UPDATES:] != resumed.losses[_UPDATES:]:
        told = f"{says} end differently: {differing} tensors differ"
        return [Line("resume", told, "problem", REPORT_FIX, numbers)]
    return [Line("resume", f"{says}: weights and optimizer are equal to the last bit", numbers=numbers)]


def devices(folder: Path) -> list[Line]:
    """The same settings and seed on the CPU and on the GPU."""
    from glassgpt.training.device import choose_dtype

    gpu = main_device()
    low = str(choose_dtype("auto", gpu, _settings(folder).n_embd).value)
    cpu = run(_settings(folder), "cpu", device="cpu")
    exact = run(_settings(folder), "gpu", device=str(gpu))
    says = "the same model, data and seed: losses differ by"
    apart = furthest(cpu.losses, exact.losses, relative=True)
    lines = [_line("cpu and gpu", f"float32, {says}", apart, _SAME_ARITHMETIC, True)]
    if low == "bfloat16":  # float16 skips an update now and then, while its scale settles
        rough = run(_settings(folder), f"gpu-{low}", device=str(gpu), dtype=low)
        apart = furthest(cpu.losses, rough.losses, True)
        lines.append(_line("cpu and gpu", f"{low} on the GPU, {says}", apart, _LESS_EXACT, True))
    return lines


def fast_paths(folder: Path) -> list[Line]:
    """What a run takes by itself because it is faster, beside the formulas that it must equal."""
    from glassgpt.training.device import traits_of

    device = main_device()
    plain = run(_settings(folder), "plain", attention="manual", graph="off")
    fused = run(_settings(folder), "fused", attention="sdpa")
    lines = [_path("fused attention", plain, fused, _SAME_FORMULAS)]
    if choose_kernels(TrainConfig(), traits_of(device)).value == "triton":
        own = run(_settings(folder), "own", kernels="triton")
        lines.append(_path("our kernels", plain, own, _SAME_FORMULAS))
    if device.type == "cpu":
        low = run(_settings(folder), "bfloat16", dtype="bfloat16")
        lines.append(_path("bfloat16", plain, low, _LESS_EXACT))
    return lines


def _path(what: str, plain: Outcome, fast: Outcome, allowed: float) -> Line:
    if fast.setbacks:
        says = f"{what}: {'; '.join(fast.setbacks)}"
        return Line("fast paths", says, "problem", "only speed is lost; see the lines on compiling")
    says = f"{what}: against the plain formulas in float32, losses differ by"
    return _line("fast paths", says, furthest(plain.losses, fast.losses, True), allowed, True)


def _line(name: str, says: str, apart: float, allowed: float, relative: bool = False) -> Line:
    """A difference of NaN is no agreement."""
    numbers: dict[str, Number] = {"difference": apart, "allowed": allowed}
    told = f"{says} {_amount(apart, relative)} at most; {_amount(allowed, relative)} is allowed"
    if apart <= allowed:
        return Line(name, told, numbers=numbers)
    return Line(name, told, "problem", REPORT_FIX, numbers)


def _amount(value: float, relative: bool) -> str:
    return f"{100 * value:.2g}%" if relative else f"{value:.1e}"


# --- runs ---


@dataclass(frozen=True)
class Outcome:
    """What a run left behind."""

    losses: list[float]  # of every update
    norms: list[float]  # of its gradients
    tensors: dict[str, dict[str, Tensor]]  # of the last checkpoint: model, optimizer
    setbacks: list[str]  # what was to make it fast, and failed


def _settings(folder: Path) -> TrainConfig:
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
    from glassgpt.data.prepare import PrepareOptions, prepare

    place = folder / "data"
    if not place.exists():
        draw = random.Random(7)
        text = "\n".join(" ".join(draw.choices(_WORDS, k=8)) for _ in range(400))
        (folder / "words.txt").write_text(text, encoding="utf-8")
        options = PrepareOptions(str(folder / "words.txt"), out_dir=str(place))
        prepare(options, say=lambda line: None, progress=False)
    return place


_WORDS = ("glass", "house", "room", "door", "a", "sees", "the", "light", "through", "wall")


def run(config: TrainConfig, name: str, **changes: Any) -> Outcome:
    """A whole run, in a folder beside its data."""
    from glassgpt.training import session

    folder = Path(config.data_dir).parent / name
    session.train(replace(config, out_dir=str(folder), **changes))
    return outcome(folder)


def outcome(folder: Path) -> Outcome:
    from glassgpt.training.checkpoint.checkpoints import load_last

    records = journal.current(journal.read(folder / journal.NAME))
    steps = [record for record in records if record["kind"] == "step"]
    setbacks = [
        f"{record['title']} ({record['evidence']})"
        for record in records
        if record["kind"] == "finding" and str(record.get("id", "")).endswith("-failed")
    ]
    return Outcome(
        [float(step["loss"]) for step in steps],
        [float(step["grad_norm"]) for step in steps],
        load_last(folder)[1],
        setbacks,
    )


# --- comparing ---


def furthest(one: Sequence[float], other: Sequence[float], relative: bool = False) -> float:
    """The largest difference; NaN if there is one, infinite if there are not as many on both sides."""
    if len(one) != len(other) or not one:
        return math.inf
    scale: Callable[[float], float] = abs if relative else lambda value: 1.0
    return worst(*(abs(a - b) / scale(a) for a, b in zip(one, other, strict=True)))


def worst(*differences: float) -> float:
    """NaN is worse than any number."""
    return math.nan if any(map(math.isnan, differences)) else max(differences)


def furthest_tensor(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    if one.keys() != other.keys():
        return math.inf
    return furthest([float((one[name] - other[name]).abs().max()) for name in one], [0.0] * len(one))


def bits(tensor: Tensor) -> bytes:
    """Unlike ==, equal bits tell 0 from -0, and NaN equals itself."""
    return tensor.detach().cpu().contiguous().numpy().tobytes()
