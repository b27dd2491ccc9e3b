"""What makes a run fast on its device: kernels, compiling, attention, graphs, where the data lies.

Each costs something at the start, so each is weighed against about how long the run will take.
"""

from __future__ import annotations

import importlib.util
import os
import shutil

import torch

from glassgpt.account import costs
from glassgpt.account.machine import find_compiler
from glassgpt.config import Choice, TrainConfig
from glassgpt.errors import UserError
from glassgpt.model import float8
from glassgpt.model.gpt import attend
from glassgpt.train.batching import BatchPlan
from glassgpt.train.device import DTYPES, Placement


def choose_speedups(
    config: TrainConfig,
    device: torch.device,
    dtype: str,
    plan: BatchPlan,
    flops_per_token: int,
    peak: float | None,
    data_bytes: int,
    free_bytes: int | None,
) -> tuple[Placement, list[Choice]]:
    """`peak`: FLOP/s, if known. `free_bytes`: of the card's memory, if it has one."""
    kernels = choose_kernels(config, device)
    own_kernels = kernels.value == "triton"
    if config.fp8:
        check_float8(config, device, dtype, own_kernels, plan)
    kind, layers = device.type, config.n_layer
    eager_step_s = None
    if peak is not None:
        eager_step_s = costs.eager_step_s(
            kind, plan.own_tokens, plan.micro_steps, flops_per_token, layers, peak
        )
    compiling = choose_compile(config, device, eager_step_s, own_kernels)
    micro_tokens = plan.own_tokens // plan.micro_steps
    micro_s = costs.arithmetic_s(kind, micro_tokens, flops_per_token, peak or costs.SOME_CARDS_PEAK)
    attention = choose_attention(config, device, dtype, micro_s * plan.micro_steps * config.max_iters)
    launch_s = costs.launch_s(kind, layers)
    graph = choose_graph(config, device, dtype, compiling.value == "on", micro_s, launch_s)
    data = choose_data_place(data_bytes, device, free_bytes)
    placement = Placement(
        device,
        dtype,
        compile=compiling.value == "on",
        attention=str(attention.value),
        kernels=own_kernels,
        graph=graph.value == "on",
        data_on_card=data.value == "on the card",
        float8=config.fp8,
        shard=config.shard,
    )
    # Elsewhere than on a CUDA card there is nothing to choose about the others.
    of_cuda = [kernels, graph, data] if device.type == "cuda" else []
    if config.fp8:
        of_cuda.append(Choice("fp8", "on", "asked for; evaluation stays exact"))
    return placement, [compiling, attention, *of_cuda]


def choose_kernels(config: TrainConfig, device: torch.device) -> Choice:
    missing = "our own are for CUDA cards" if device.type != "cuda" else _missing_to_build(device)
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
    if config.eval_only or not costs.kernels_pay(config.max_iters, config.n_layer):
        return Choice("kernels", "plain", "the run is too short to build our own for")
    return Choice("kernels", "triton", "each norm, activation and loss in one pass over memory")


def choose_compile(
    config: TrainConfig, device: torch.device, eager_step_s: float | None, kernels: bool
) -> Choice:
    """`eager_step_s`: about how long an update will take without compiling; None if nobody can say."""
    if config.compile != "auto":
        return Choice("compile", config.compile, "asked for")
    if config.shard:
        return Choice("compile", "off", "weights are gathered and let go between the layers (--shard)")
    if kernels:
        return Choice("compile", "off", "our own kernels do what it would do, and are there at once")
    missing = _missing_to_build(device)
    if missing:
        return Choice("compile", "off", missing)
    if config.eval_only:
        return Choice("compile", "off", "one evaluation does not pay for it")
    if eager_step_s is None:
        return Choice(
            "compile", "off", "no estimate of a step's time to weigh it against; --compile=on forces it"
        )
    cost = costs.compile_cost_s(device.type, config.n_layer)
    saved_per_update = costs.compile_saving_s(device.type, eager_step_s)
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


def _missing_to_build(device: torch.device) -> str | None:
    if device.type == "mps":
        return "not dependable on Apple's GPU yet; --compile=on forces it"
    language = "C" if device.type == "cuda" else "C++"
    if find_compiler(language, os.environ, shutil.which) is None:
        return f"no {language} compiler was found"
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed"
        if torch.cuda.get_device_capability(device)[0] < 7:
            return "the card is too old for triton"
    return None


def choose_attention(config: TrainConfig, device: torch.device, dtype: str, run_s: float) -> Choice:
    """`run_s`: about how long the run will compute."""
    if config.attention != "auto":
        _check_attention(config, device, dtype)
        return Choice("attention", config.attention, "asked for")
    if device.type == "cpu" and dtype == "bfloat16" and config.block_size <= costs.SHORT_FOR_CPU:
        return Choice("attention", "manual", "PyTorch's fused kernel is slow backwards in bfloat16 on CPUs")
    if device.type != "cuda" or dtype == "float32" or run_s < _LONG_RUN_S:
        return Choice("attention", "sdpa", "PyTorch's fused kernels never store the T x T matrix")
    times = _attention_times(config, device, DTYPES[dtype])
    if not times:
        return Choice("attention", "sdpa", "none of PyTorch's fused kernels does this shape alone")
    # The usual one unless another is clearly faster: the choice shall not hang on noise.
    best = min(times, key=lambda how: times[how] * (0.95 if how == "flash" else 1.0))
    figures = ", ".join(f"{how} {seconds * 1000:.2f} ms" for how, seconds in times.items())
    return Choice("attention", best, f"measured forward and backward: {figures}")


def _check_attention(config: TrainConfig, device: torch.device, dtype: str) -> None:
    """Not every kernel does every dtype and head size on every device: tried on two tokens."""
    shape = (1, 2, 3, config.n_head, config.n_embd // config.n_head)
    qkv = torch.zeros(shape, device=device, dtype=DTYPES[dtype], requires_grad=True)
    q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
    try:
        attend(q, k, v, config.dropout, config.attention).sum().backward()  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise UserError(
            f"--attention={config.attention} cannot do heads of {shape[-1]} channels in {dtype} on "
            f"{device.type} here; try --attention=auto"
        ) from None


_LONG_RUN_S = 60  # measuring takes seconds, most of them cuDNN's start, and gains a few percent of the run


def _attention_times(config: TrainConfig, device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Seconds of one layer, of those that can do it."""
    sequences = max(1, _MEASURED_TOKENS // config.block_size)
    shape = (sequences, config.block_size, 3, config.n_head, config.n_embd // config.n_head)
    qkv = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    times = {}
    for how in ("flash", "cudnn", "efficient"):
        try:
            times[how] = _attention_time(qkv, config.dropout, how)
        except RuntimeError:  # this card, shape or dtype is not for that one; the other ones say the same
            continue
    return times


_MEASURED_TOKENS = 16_384
_MEASURED_CALLS = 10


def _attention_time(qkv: torch.Tensor, dropout: float, how: str) -> float:
    q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
    for call in range(_MEASURED_CALLS + 3):
        if call == 3:
            events[0].record()
        out = attend(q, k, v, dropout, how)
        torch.autograd.grad(out, qkv, out)
    events[1].record()
    events[1].synchronize()
    return float(events[0].elapsed_time(events[1])) / 1000 / _MEASURED_CALLS


def choose_graph(
    config: TrainConfig,
    device: torch.device,
    dtype: str,
    compiled: bool,
    arithmetic_s: float,
    launch_s: float,
) -> Choice:
    """`arithmetic_s`, `launch_s`: about how long a micro-batch computes, and how long Python takes to ask."""
    if device.type != "cuda":
        if config.graph == "on":
            raise UserError(f"--graph=on is for CUDA cards, and this run is on {device.type}")
        return Choice("graph", "off", f"{device.type} has none")
    if config.shard:
        return Choice("graph", "off", "weights are gathered while computing (--shard): not recordable")
    if dtype == "float16":
        return Choice("graph", "off", "float16's loss scaler has to look at every update")
    if config.graph != "auto":
        return Choice("graph", config.graph, "asked for")
    if compiled:
        return Choice("graph", "off", "compiled code may compile again, which cannot be recorded")
    if config.activation_checkpointing and config.dropout:
        return Choice("graph", "off", "recomputing needs dropout's random numbers again: not recordable")
    if not costs.graph_pays(arithmetic_s, launch_s):
        return Choice("graph", "off", "the card has enough to do with each kernel")
    return Choice(
        "graph",
        "on",
        f"asking for the kernels one by one takes about {launch_s * 1000:.0f} ms, "
        f"computing about {arithmetic_s * 1000:.1f} ms: recorded once, replayed ever after",
    )


_FLOAT8_MULTIPLE = 16  # of every side of a product


def check_float8(
    config: TrainConfig, device: torch.device, dtype: str, own_kernels: bool, plan: BatchPlan
) -> None:
    problems = []
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 9):
        problems.append("--fp8=True needs a card with 8-bit floats: RTX 40, L4, H100 or newer")
    elif not own_kernels:
        problems.append("--fp8=True needs our own kernels: --kernels=auto and --compile=auto, and triton")
    if dtype != "bfloat16":
        problems.append(f"--fp8=True goes with --dtype=bfloat16, not {dtype}")
    if config.n_embd % _FLOAT8_MULTIPLE or plan.batch_size * config.block_size % _FLOAT8_MULTIPLE:
        problems.append("--fp8=True needs --n_embd and the tokens of a micro-batch to be multiples of 16")
    if not problems and not float8.is_sound(device):
        problems.append("--fp8=True does not work with this version of triton: its kernel computes wrongly")
    if problems:
        raise UserError(problems)


def choose_data_place(size: int, device: torch.device, free_bytes: int | None) -> Choice:
    if device.type != "cuda" or free_bytes is None:
        return Choice("data", "in memory", f"there is no other place on {device.type}")
    if size > free_bytes * costs.DATA_SHARE:
        return Choice("data", "in memory", f"its {size / 1e9:.1f} GB would take too much of the card's")
    return Choice("data", "on the card", f"its {size / 1e6:.0f} MB fit there: no copying at every update")
