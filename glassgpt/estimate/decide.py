"""What the trainer decides from a device's traits: dtype, kernels, compile, CUDA graph, attention, threads.

    choose_dtype("auto", DeviceTraits("cuda", (8, 9)), width=768)     # bfloat16, "compute capability 8.9: …"

Training calls it with the traits of its device, `glass plan` with those of any card. No torch. What has to be
tried on the device is in training/compute_plan.py.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path

from glassgpt.config import DEFAULT_BATCH_SIZE, Choice, TrainConfig
from glassgpt.errors import UserError
from glassgpt.estimate import overheads
from glassgpt.model import loss_chunks
from glassgpt.record.machine import find_compiler


@dataclass(frozen=True)
class DeviceTraits:
    """The properties of a device that the choices depend on."""

    device_type: str  # "cuda", "mps" or "cpu"
    capability: tuple[int, int] | None = None  # of a CUDA card; None: not known
    has_tensor_cores: bool = True  # of a CUDA card
    has_fast_bfloat16: bool = False  # of a CPU
    bandwidth_bytes_per_s: float | None = None  # of a card's memory; None: not known
    missing_toolchain: str | None = None  # why no code can be built there


def find_missing_toolchain(device_type: str) -> str | None:
    """What this machine lacks to build code for such a device."""
    language = "C" if device_type == "cuda" else "C++"
    if find_compiler(language, os.environ, shutil.which) is None:
        return f"no {language} compiler was found"
    if device_type == "cuda" and importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    return None


def _why_cannot_build(device: DeviceTraits) -> str | None:
    if device.device_type == "mps":
        return "not dependable on Apple's GPU yet; --compile=on forces it"
    if device.missing_toolchain is not None:
        return device.missing_toolchain
    is_old = device.capability is not None and device.capability < (7, 0)
    return "the card is too old for triton" if device.device_type == "cuda" and is_old else None


# --- dtype ---


def choose_dtype(requested: str, device: DeviceTraits, width: int | None = None) -> Choice:
    """`width`: n_embd of the model to be trained; None if it is only sampled from."""
    capability = device.capability
    if device.device_type == "cpu" and requested == "float16":
        return Choice("dtype", "bfloat16", "float16 was asked for, but CPUs have no fast float16")
    if requested != "auto":
        remark = ""
        if device.device_type == "cuda" and capability is not None:
            if requested == "float32" and capability >= (8, 0):
                remark = "; matmuls run in TF32"
            elif requested == "bfloat16" and capability < (8, 0):
                remark = "; this card only emulates it, slowly: --dtype=float16 is better"
        return Choice("dtype", requested, "asked for" + remark)
    if device.device_type == "cpu":
        if width is None:
            reason = "generating one token at a time is memory-bound"
        elif width < overheads.MIN_WIDTH_FOR_CPU_BFLOAT16:
            reason = f"n_embd < {overheads.MIN_WIDTH_FOR_CPU_BFLOAT16}: bfloat16 is no faster"
        elif device.has_fast_bfloat16:
            return Choice("dtype", "bfloat16", "this CPU multiplies it twice as fast as float32")
        else:
            reason = "this CPU has no fast bfloat16"
        return Choice("dtype", "float32", reason)
    if device.device_type == "mps":
        return Choice("dtype", "float32", "lower precision gains little on Apple's GPU")
    if capability is None:
        return Choice("dtype", "bfloat16", "the card has it, and no loss scaling is needed")
    version = f"compute capability {capability[0]}.{capability[1]}"
    if capability >= (8, 0):
        return Choice("dtype", "bfloat16", f"{version}: no loss scaling needed")
    if not device.has_tensor_cores:
        return Choice("dtype", "float32", "without tensor cores, no dtype has faster matmuls")
    return Choice("dtype", "float16", f"{version} has no bfloat16: with loss scaling")


# --- Triton kernels ---


def why_no_kernels(device: DeviceTraits) -> str | None:
    """Why GlassGPT's Triton kernels cannot be built there; None: they can."""
    return "the Triton kernels need CUDA" if device.device_type != "cuda" else _why_cannot_build(device)


def choose_kernels(
    config: TrainConfig, device: DeviceTraits, vocab_size: int = 50304, ranks: int = 1, built: bool = False
) -> Choice:
    """`ranks`: cards that share an update. `built`: they are in Triton's cache already."""
    missing = why_no_kernels(device)
    if config.kernels == "triton" and missing:
        raise UserError(f"--kernels=triton is not possible here: {missing}; try --kernels=auto")
    if config.kernels != "auto":
        return Choice("kernels", config.kernels, "asked for")
    if missing:
        return Choice("kernels", "plain", missing)
    if config.compile == "on":
        return Choice("kernels", "plain", "torch.compile generates its own")
    if config.fp8:
        return Choice("kernels", "triton", "FP8 needs them")
    if config.eval_only:
        return Choice("kernels", "plain", "one evaluation does not pay for building the Triton kernels")
    steps = config.gradient_accumulation_steps or ranks
    tokens = config.batch_tokens or (config.batch_size or DEFAULT_BATCH_SIZE) * steps * config.block_size
    saved_s = config.max_iters * overheads.kernel_saving_s(
        config.arch, config.n_layer, config.n_embd, vocab_size, tokens / ranks, device.bandwidth_bytes_per_s
    )
    cost_s = overheads.KERNEL_LOAD_S if built else overheads.KERNEL_BUILD_S
    cost = "they were built before, and loading them takes" if built else "building them takes"
    saving = f"the Triton kernels save about {saved_s:,.1f} s of {config.max_iters:,} updates"
    reason = f"{saving}; {cost} about {cost_s:.0f} s"
    return Choice("kernels", "triton" if saved_s > cost_s else "plain", reason)


def kernel_cache_marker(
    config: TrainConfig, card: str, dtype: str, vocab_size: int, micro_tokens: int
) -> Path:
    """A file in Triton's cache that says that our kernels were built for such a run.

    A run that built them creates it, and emptying the cache removes it. Its name is a hash of all that the
    kernels are specialised on. `card`: its name; `micro_tokens`: of a micro-batch; Triton specialises on
    multiples of 16.
    """
    source = hashlib.sha256((resources.files("glassgpt.model") / "kernels.py").read_bytes()).hexdigest()
    versions: list[str | None] = []
    for package in ("torch", "triton"):
        try:
            versions.append(metadata.version(package))
        except metadata.PackageNotFoundError:  # Triton has other names on ROCm and Windows
            versions.append(None)
    shape = (config.n_embd, config.n_head, config.arch, config.bias, config.activation, config.fp8)
    key = [card, dtype, vocab_size, config.block_size % 16, micro_tokens % 16, *shape, *versions, source]
    home = Path(os.environ.get("TRITON_HOME") or Path.home())
    cache = Path(os.environ.get("TRITON_CACHE_DIR") or home / ".triton" / "cache")  # as Triton finds it
    return cache / f"glassgpt-{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}"


# --- torch.compile ---


def choose_compile(
    config: TrainConfig,
    device: DeviceTraits,
    eager_step_s: float | None,
    kernels: bool,
    sharded: bool = False,
) -> Choice:
    """`eager_step_s`: about how long an update takes in eager mode, if known. `sharded`: with FSDP."""
    if config.compile != "auto":
        return Choice("compile", config.compile, "asked for")
    if sharded:
        return Choice("compile", "off", "weights are gathered and freed between the layers (--shard)")
    if kernels:
        return Choice("compile", "off", "the Triton kernels are already fused, and need no compile time")
    missing = _why_cannot_build(device)
    if missing:
        return Choice("compile", "off", missing)
    if config.eval_only:
        return Choice("compile", "off", "one evaluation does not pay for it")
    if eager_step_s is None:
        return Choice(
            "compile", "off", "no estimate of a step's time to weigh it against; --compile=on forces it"
        )
    cost_s = overheads.compile_cost_s(device.device_type, config.n_layer)
    saved_per_update_s = overheads.compile_saving_s(device.device_type, eager_step_s)
    saved_s = config.max_iters * saved_per_update_s
    step_ms = eager_step_s * 1000
    return Choice(
        "compile",
        "on" if saved_s > cost_s else "off",
        f"costs about {cost_s:.0f} s, saves about {saved_s:.0f} s of {config.max_iters:,} updates at "
        f"about {step_ms:{',.0f' if step_ms >= 10 else '.2g'}} ms: breaks even near update "
        f"{cost_s / saved_per_update_s:,.0f}",
    )


# --- CUDA graph ---


@dataclass(frozen=True)
class GraphCandidate:
    """A micro-batch that may be captured as a CUDA graph."""

    dtype: str
    compute_s: float  # about
    launch_s: float  # about: its kernel-launch overhead
    compiled: bool = False
    sharded: bool = False  # with FSDP
    fits: bool = True  # there is memory for the graph


def choose_graph(config: TrainConfig, device: DeviceTraits, micro: GraphCandidate) -> Choice:
    if device.device_type != "cuda":
        if config.graph == "on":
            raise UserError(f"--graph=on is for CUDA cards, and this run is on {device.device_type}")
        return Choice("graph", "off", f"{device.device_type} has none")
    # Impossible, even if it is asked for.
    if config.eval_only:
        return Choice("graph", "off", "one evaluation has no updates to capture")
    if micro.sharded:
        return Choice("graph", "off", "blocks are gathered when they are needed: cannot be captured")
    if micro.dtype == "float16":
        return Choice("graph", "off", "float16's loss scaler has to look at every update")
    if config.graph != "auto":
        return Choice("graph", config.graph, "asked for")
    # Possible, but not by default.
    if micro.compiled:
        return Choice("graph", "off", "compiled code may compile again, which cannot be captured")
    if config.activation_checkpointing and config.dropout:
        return Choice("graph", "off", "recomputing needs dropout's random numbers again: cannot be captured")
    if not overheads.graph_pays(micro.compute_s, micro.launch_s):
        return Choice("graph", "off", "compute-bound: kernel-launch overhead is hidden")
    if not micro.fits:
        reason = "a CUDA graph keeps its memory, and evaluation has to fit beside it"
        return Choice("graph", "off", reason)
    return Choice(
        "graph",
        "on",
        f"kernel-launch overhead is about {micro.launch_s * 1000:.0f} ms, "
        f"computing about {micro.compute_s * 1000:.1f} ms: captured once and replayed",
    )


def refused_settings(config: TrainConfig, device: DeviceTraits) -> dict[str, str]:
    """Settings that are impossible on the device, and why."""
    refused = {}
    if config.kernels == "triton" and (missing := why_no_kernels(device)):
        refused["kernels"] = missing
    if config.graph == "on" and device.device_type != "cuda":
        refused["graph"] = f"{device.device_type} has none"
    if config.data_place == "card" and device.device_type != "cuda":
        refused["data_place"] = f"{device.device_type} has no memory of its own"
    return refused


# --- threads ---


def choose_threads(requested: int | None, default: int, before: int | None, busy: float) -> Choice | None:
    """CPU threads; None: PyTorch's default, which is `default`.

    `before`: the threads of a run that is resumed. `busy`: cores that other programs use. Threads wait for
    each other at every operation, so one on a busy core slows all of them down.
    """
    if requested is not None:
        return Choice("threads", requested, "asked for")
    free = max(1, default - int(busy + 0.5))
    others = f"other programs keep {busy:.1f} cores busy"
    if before is not None and before <= default:
        if before == default and free >= default:
            return None
        faster = f"; {others}: --threads={free} may be faster" if free < before else ""
        return Choice(
            "threads", before, f"as the run had, since their number changes the last digits{faster}"
        )
    if free == default:
        return None
    return Choice("threads", free, f"not {default}: {others}, and threads wait for each other")


# --- attention, float8, where the data is ---

_MIN_RUN_S_TO_MEASURE_ATTENTION = 60  # measuring takes seconds, and gains a few percent of the run


def choose_attention(config: TrainConfig, device: DeviceTraits, dtype: str, run_s: float) -> Choice | None:
    """None: a fused kernel, and it is worth measuring which. `run_s`: about how long the run will take."""
    if config.attention != "auto":
        return Choice("attention", config.attention, "asked for")
    if device.device_type != "cuda" or dtype == "float32" or run_s < _MIN_RUN_S_TO_MEASURE_ATTENTION:
        return Choice("attention", "sdpa", "PyTorch's fused kernels never store the T x T matrix")
    return None


def has_float8(device: DeviceTraits) -> bool:
    return device.device_type == "cuda" and (device.capability is None or device.capability >= (8, 9))


def float8_problems(
    config: TrainConfig, device: DeviceTraits, dtype: str, own_kernels: bool, micro_tokens: int
) -> list[str]:
    """Why --fp8 is impossible. `micro_tokens`: of a micro-batch."""
    problems = []
    if not has_float8(device):
        problems.append("--fp8=True needs a card with 8-bit floats: RTX 40, L4, H100 or newer")
    elif not own_kernels:
        problems.append("--fp8=True needs the Triton kernels: --kernels=auto and --compile=auto, and triton")
    if dtype != "bfloat16":
        problems.append(f"--fp8=True requires --dtype=bfloat16, not {dtype}")
    if not (loss_chunks.is_float8_aligned(config.n_embd) and loss_chunks.is_float8_aligned(micro_tokens)):
        problems.append("--fp8=True needs --n_embd and the tokens of a micro-batch to be multiples of 16")
    return problems


def choose_data_place(
    requested: str, size_bytes: int, device: DeviceTraits, free_bytes: int | None
) -> Choice:
    """Where the dataset is during training. `free_bytes`: of the card's memory; None if not known."""
    if device.device_type != "cuda":
        if requested == "card":
            raise UserError(f"--data_place=card is for CUDA cards, and this run is on {device.device_type}")
        return Choice("data", "in memory", f"{device.device_type} run: data stays in RAM")
    if requested == "card" and free_bytes is not None and size_bytes > free_bytes:
        raise UserError(
            f"--data_place=card: the text's {size_bytes / 1e9:.1f} GB do not fit into the "
            f"{free_bytes / 1e9:.1f} GB that are free on the card; try --data_place=auto"
        )
    if requested != "auto" or free_bytes is None:
        return Choice("data", "on the card" if requested == "card" else "in memory", "asked for")
    if size_bytes > free_bytes * overheads.MAX_DATA_SHARE_OF_CARD:
        return Choice("data", "in memory", f"its {size_bytes / 1e9:.1f} GB would take too much GPU memory")
    reason = f"its {size_bytes / 1e6:.0f} MB fit there: no copying at every update"
    return Choice("data", "on the card", reason)
