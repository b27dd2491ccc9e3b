"""What a device's traits decide about a run: dtype, kernels, compiling, attention, graphs, where data lies.

    choose_dtype("auto", Traits("cuda", (8, 9)), width=768)     # bfloat16, "compute capability 8.9: …"

The trainer asks with the traits of the device it has, `glass plan` with those of one it has not. No torch.
What can only be tried there, the trainer tries: training/compute_plan.py.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import dataclass

from glassgpt.config import DEFAULT_BATCH_SIZE, Choice, TrainConfig
from glassgpt.errors import UserError
from glassgpt.estimate import overheads
from glassgpt.model import loss_chunks
from glassgpt.record.machine import find_compiler


@dataclass(frozen=True)
class DeviceTraits:
    """What of a device decides."""

    device_type: str  # "cuda", "mps" or "cpu"
    capability: tuple[int, int] | None = None  # of a CUDA card; None: nobody knows it
    has_tensor_cores: bool = True  # of a CUDA card
    has_fast_bfloat16: bool = False  # of a CPU
    bandwidth_bytes_per_s: float | None = None  # of a card's memory, in bytes/s; None: nobody knows it
    missing_toolchain: str | None = None  # what building code would need there and does not find


def find_missing_toolchain(kind: str) -> str | None:
    """What this machine has not got to build code for such a device."""
    language = "C" if kind == "cuda" else "C++"
    if find_compiler(language, os.environ, shutil.which) is None:
        return f"no {language} compiler was found"
    if kind == "cuda" and importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    return None


def _why_cannot_build(on: DeviceTraits) -> str | None:
    if on.device_type == "mps":
        return "not dependable on Apple's GPU yet; --compile=on forces it"
    if (
        on.missing_toolchain is None
        and on.device_type == "cuda"
        and on.capability is not None
        and on.capability < (7, 0)
    ):
        return "the card is too old for triton"
    return on.missing_toolchain


# --- dtype ---


def choose_dtype(asked: str, on: DeviceTraits, width: int | None = None) -> Choice:
    """`width`: the channels of the model to be trained; None if it only writes."""
    if on.device_type == "cpu":
        if asked == "float16":
            return Choice("dtype", "bfloat16", "float16 was asked for, but CPUs have no fast float16")
        if asked == "auto":
            return _cpu_dtype(on, width)
    if asked != "auto":
        return Choice("dtype", asked, "asked for" + _remark(asked, on))
    if on.device_type == "mps":
        return Choice("dtype", "float32", "Apple's GPU gains little from less")
    if on.capability is None:
        return Choice("dtype", "bfloat16", "the card has it, and no loss scaling is needed")
    major, minor = on.capability
    if major >= 8:
        return Choice("dtype", "bfloat16", f"compute capability {major}.{minor}: no loss scaling needed")
    if not on.has_tensor_cores:
        return Choice("dtype", "float32", "a card without tensor cores multiplies nothing faster")
    return Choice(
        "dtype", "float16", f"compute capability {major}.{minor} has no bfloat16: with loss scaling"
    )


def _cpu_dtype(on: DeviceTraits, width: int | None) -> Choice:
    if width is None:
        return Choice("dtype", "float32", "one token at a time, weights are fetched rather than multiplied")
    if width < overheads.MIN_WIDTH_FOR_CPU_BFLOAT16:
        return Choice("dtype", "float32", "so narrow a model gains nothing from less")
    if on.has_fast_bfloat16:
        return Choice("dtype", "bfloat16", "this CPU multiplies it twice as fast as float32")
    return Choice("dtype", "float32", "this CPU has no fast bfloat16")


def _remark(asked: str, on: DeviceTraits) -> str:
    if on.device_type != "cuda" or on.capability is None:
        return ""
    modern_card = on.capability >= (8, 0)
    if asked == "float32" and modern_card:
        return "; matmuls run in TF32"
    if asked == "bfloat16" and not modern_card:
        return "; this card only emulates it, slowly: --dtype=float16 is better"
    return ""


# --- kernels, compiling, graphs ---


def why_no_kernels(on: DeviceTraits) -> str | None:
    """Of our own; None: they can be built there."""
    return "our own are for CUDA cards" if on.device_type != "cuda" else _why_cannot_build(on)


def choose_kernels(
    config: TrainConfig, on: DeviceTraits, vocab_size: int = 50304, ranks: int = 1, built: bool = False
) -> Choice:
    """`ranks`: cards that share an update. `built`: Triton has them in its cache already."""
    missing = why_no_kernels(on)
    if config.kernels == "triton" and missing:
        raise UserError(f"--kernels=triton is not possible here: {missing}; try --kernels=auto")
    if config.kernels != "auto":
        return Choice("kernels", config.kernels, "asked for")
    if missing:
        return Choice("kernels", "plain", missing)
    if config.compile == "on":
        return Choice("kernels", "plain", "the compiler makes its own")
    if config.fp8:
        return Choice("kernels", "triton", "8-bit floats need them")
    if config.eval_only:
        return Choice("kernels", "plain", "one evaluation does not pay for building our own")
    steps = config.gradient_accumulation_steps or ranks
    tokens = config.batch_tokens or (config.batch_size or DEFAULT_BATCH_SIZE) * steps * config.block_size
    saved = config.max_iters * overheads.kernel_saving_s(
        config.arch, config.n_layer, config.n_embd, vocab_size, tokens / ranks, on.bandwidth_bytes_per_s
    )
    cost = overheads.KERNEL_LOAD_S if built else overheads.KERNEL_BUILD_S
    how = "they were built before, and loading them takes" if built else "building them takes"
    reason = f"our own save about {saved:,.1f} s of {config.max_iters:,} updates; {how} about {cost:.0f} s"
    return Choice("kernels", "triton" if saved > cost else "plain", reason)


def choose_compile(
    config: TrainConfig, on: DeviceTraits, eager_step_s: float | None, kernels: bool, sharded: bool = False
) -> Choice:
    """`eager_step_s`: about how long an update will take without compiling; None if nobody can say.
    `sharded`: weights are spread over several processes."""
    if config.compile != "auto":
        return Choice("compile", config.compile, "asked for")
    if sharded:
        return Choice("compile", "off", "weights are gathered and let go between the layers (--shard)")
    if kernels:
        return Choice("compile", "off", "our own kernels do what it would do, and are there at once")
    missing = _why_cannot_build(on)
    if missing:
        return Choice("compile", "off", missing)
    if config.eval_only:
        return Choice("compile", "off", "one evaluation does not pay for it")
    if eager_step_s is None:
        return Choice(
            "compile", "off", "no estimate of a step's time to weigh it against; --compile=on forces it"
        )
    cost = overheads.compile_cost_s(on.device_type, config.n_layer)
    saved_per_update = overheads.compile_saving_s(on.device_type, eager_step_s)
    saving = config.max_iters * saved_per_update
    break_even = cost / saved_per_update
    verdict = "on" if saving > cost else "off"
    step_ms = eager_step_s * 1000
    return Choice(
        "compile",
        verdict,
        f"costs about {cost:.0f} s, saves about {saving:.0f} s of {config.max_iters:,} updates at "
        f"about {step_ms:{',.0f' if step_ms >= 10 else '.2g'}} ms: breaks even near update {break_even:,.0f}",
    )


@dataclass(frozen=True)
class GraphCandidate:
    """What of a micro-batch decides whether it is recorded once and replayed ever after."""

    dtype: str
    compute_s: float  # about
    launch_s: float  # about: what Python takes to ask for its kernels one by one
    compiled: bool = False
    sharded: bool = False  # weights are spread over several processes
    fits: bool = True  # there is memory for it


def choose_graph(config: TrainConfig, on: DeviceTraits, micro: GraphCandidate) -> Choice:
    if on.device_type != "cuda":
        if config.graph == "on":
            raise UserError(f"--graph=on is for CUDA cards, and this run is on {on.device_type}")
        return Choice("graph", "off", f"{on.device_type} has none")
    if impossible := _why_no_graph(config, micro):
        return Choice("graph", "off", impossible)
    if config.graph != "auto":
        return Choice("graph", config.graph, "asked for")
    if unwise := _why_rather_no_graph(config, micro):
        return Choice("graph", "off", unwise)
    return Choice(
        "graph",
        "on",
        f"asking for the kernels one by one takes about {micro.launch_s * 1000:.0f} ms, "
        f"computing about {micro.compute_s * 1000:.1f} ms: recorded once, replayed ever after",
    )


def _why_no_graph(config: TrainConfig, micro: GraphCandidate) -> str | None:
    """Not even if it is asked for."""
    if config.eval_only:
        return "one evaluation has no updates to record"
    if micro.sharded:
        return "blocks are gathered when they are needed: not recordable"
    if micro.dtype == "float16":
        return "float16's loss scaler has to look at every update"
    return None


def _why_rather_no_graph(config: TrainConfig, micro: GraphCandidate) -> str | None:
    """Unless it is asked for."""
    if micro.compiled:
        return "compiled code may compile again, which cannot be recorded"
    if config.activation_checkpointing and config.dropout:
        return "recomputing needs dropout's random numbers again: not recordable"
    if not overheads.graph_pays(micro.compute_s, micro.launch_s):
        return "the card has enough to do with each kernel"
    return None if micro.fits else "a recorded update keeps its memory, and evaluation has to fit beside it"


def refused_settings(config: TrainConfig, on: DeviceTraits) -> dict[str, str]:
    """Settings that cannot be had there, by name, and why not."""
    found = {}
    if config.kernels == "triton" and (missing := why_no_kernels(on)):
        found["kernels"] = missing
    if config.graph == "on" and on.device_type != "cuda":
        found["graph"] = f"{on.device_type} has none"
    if config.data_place == "card" and on.device_type != "cuda":
        found["data_place"] = f"{on.device_type} has no memory of its own"
    return found


# --- threads ---


def choose_threads(asked: int | None, usual: int, before: int | None, busy: float) -> Choice | None:
    """CPU threads to compute with; None: as PyTorch decides. `usual`: what that is. `before`: what a run that
    is resumed had. `busy`: cores that other programs use. Threads wait for each other at every operation, so
    one on a taken core slows all of them down."""
    if asked is not None:
        return Choice("threads", asked, "asked for")
    free = max(1, usual - int(busy + 0.5))
    taken = f"other programs keep {busy:.1f} cores busy"
    if before is not None and before <= usual:
        if before == usual and free >= usual:
            return None
        faster = f"; {taken}: --threads={free} may be faster" if free < before else ""
        return Choice(
            "threads", before, f"as the run had, since their number changes the last digits{faster}"
        )
    if free == usual:
        return None
    return Choice("threads", free, f"not {usual}: {taken}, and threads wait for each other")


# --- the rest ---

_MIN_RUN_S_TO_MEASURE_ATTENTION = (
    60  # measuring takes seconds, most of them cuDNN's start, and gains a few percent of the run
)


def choose_attention(config: TrainConfig, on: DeviceTraits, dtype: str, run_s: float) -> Choice | None:
    """`run_s`: about how long the run will compute. None: one of the fused ones, worth measuring which."""
    if config.attention != "auto":
        return Choice("attention", config.attention, "asked for")
    if on.device_type != "cuda" or dtype == "float32" or run_s < _MIN_RUN_S_TO_MEASURE_ATTENTION:
        return Choice("attention", "sdpa", "PyTorch's fused kernels never store the T x T matrix")
    return None


def has_float8(on: DeviceTraits) -> bool:
    return on.device_type == "cuda" and (on.capability is None or on.capability >= (8, 9))


def float8_problems(
    config: TrainConfig, on: DeviceTraits, dtype: str, own_kernels: bool, micro_tokens: int
) -> list[str]:
    """`micro_tokens`: of a micro-batch."""
    problems = []
    if not has_float8(on):
        problems.append("--fp8=True needs a card with 8-bit floats: RTX 40, L4, H100 or newer")
    elif not own_kernels:
        problems.append("--fp8=True needs our own kernels: --kernels=auto and --compile=auto, and triton")
    if dtype != "bfloat16":
        problems.append(f"--fp8=True goes with --dtype=bfloat16, not {dtype}")
    if not (loss_chunks.is_float8_aligned(config.n_embd) and loss_chunks.is_float8_aligned(micro_tokens)):
        problems.append("--fp8=True needs --n_embd and the tokens of a micro-batch to be multiples of 16")
    return problems


def choose_data_place(asked: str, size: int, on: DeviceTraits, free_bytes: int | None) -> Choice:
    """`free_bytes`: of a card's memory; None if nobody looked."""
    if on.device_type != "cuda":
        if asked == "card":
            raise UserError(f"--data_place=card is for CUDA cards, and this run is on {on.device_type}")
        return Choice("data", "in memory", f"there is no other place on {on.device_type}")
    if asked == "card" and free_bytes is not None and size > free_bytes:
        raise UserError(
            f"--data_place=card: the text's {size / 1e9:.1f} GB do not fit into the "
            f"{free_bytes / 1e9:.1f} GB that are free on the card; try --data_place=auto"
        )
    if asked != "auto" or free_bytes is None:
        return Choice("data", "on the card" if asked == "card" else "in memory", "asked for")
    if size > free_bytes * overheads.MAX_DATA_SHARE_OF_CARD:
        return Choice("data", "in memory", f"its {size / 1e9:.1f} GB would take too much of the card's")
    return Choice("data", "on the card", f"its {size / 1e6:.0f} MB fit there: no copying at every update")
