"""What makes a run fast on its device: kernels, compiling, attention, graphs, where the data lies.

Each costs something at the start, so each is weighed against about how long the run will take. The rules are
estimate/decide.py's, which `glass plan` asks too; here is what only the device itself can answer.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from glassgpt.config import Choice, TrainConfig
from glassgpt.errors import UserError
from glassgpt.estimate import decide, overheads
from glassgpt.estimate.batching import BatchPlan
from glassgpt.estimate.decide import GraphCandidate, kernel_cache_marker
from glassgpt.model import float8, loss_chunks
from glassgpt.model.gpt import attend
from glassgpt.training.device import DTYPES, ExecutionConfig, device_name, device_traits


@dataclass(frozen=True)
class SpeedupInputs:
    """What there is to do, and what the device has for it."""

    batch_plan: BatchPlan
    vocab_size: int
    flops_per_token: int
    data_bytes: int
    peak_flops_per_s: float | None = None  # FLOP/s, if known
    free_bytes: int | None = None  # of the card's memory, if it has one
    cuda_graph_fits: bool = True


def choose_speedups(
    config: TrainConfig, device: torch.device, dtype: str, load: SpeedupInputs
) -> tuple[ExecutionConfig, list[Choice]]:
    plan, on = load.batch_plan, device_traits(device)
    built = (
        on.device_type == "cuda"
        and kernels_built_marker(config, device, dtype, load.vocab_size, plan).is_file()
    )
    kernels = decide.choose_kernels(config, on, load.vocab_size, plan.ranks, built)
    own_kernels = kernels.value == "triton"
    if config.fp8:
        check_float8(config, device, dtype, own_kernels, plan)
    eager_step_s = _eager_step_s(config, device.type, load)
    compiling = decide.choose_compile(config, on, eager_step_s, own_kernels, config.shard)
    micro_tokens, some_peak = (
        plan.tokens_per_rank // plan.micro_steps,
        load.peak_flops_per_s or overheads.FALLBACK_PEAK_FLOPS_PER_S,
    )
    micro_s = overheads.arithmetic_s(device.type, micro_tokens, load.flops_per_token, some_peak)
    attention = choose_attention(config, device, dtype, micro_s * plan.micro_steps * config.max_iters)
    asking_s = overheads.launch_s(device.type, config.n_layer)
    compiled = compiling.value == "on"
    micro = GraphCandidate(dtype, micro_s, asking_s, compiled, config.shard, load.cuda_graph_fits)
    graph = decide.choose_graph(config, on, micro)
    data = decide.choose_data_place(config.data_place, load.data_bytes, on, load.free_bytes)
    placement = ExecutionConfig(
        device,
        dtype,
        compile=compiled,
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
        of_cuda.append(Choice("fp8", "on", _float8_reason(load.vocab_size)))
    return placement, [compiling, attention, *of_cuda]


def kernels_built_marker(
    config: TrainConfig, device: torch.device, dtype: str, vocab_size: int, plan: BatchPlan
) -> Path:
    """The file that says that kernels for such a run were built."""
    micro_tokens = plan.batch_size * config.block_size
    return kernel_cache_marker(config, device_name(device), dtype, vocab_size, micro_tokens)


def _float8_reason(vocab_size: int) -> str:
    reason = "asked for; evaluation stays exact"
    if loss_chunks.is_float8_aligned(vocab_size):
        return reason
    return f"{reason}; the head in bfloat16, since its {vocab_size} tokens are no multiple of 16"


def _eager_step_s(config: TrainConfig, device_type: str, load: SpeedupInputs) -> float | None:
    if load.peak_flops_per_s is None:
        return None
    return overheads.eager_step_s(
        device_type,
        load.batch_plan.tokens_per_rank,
        load.batch_plan.micro_steps,
        load.flops_per_token,
        config.n_layer,
        load.peak_flops_per_s,
    )


def choose_attention(config: TrainConfig, device: torch.device, dtype: str, run_s: float) -> Choice:
    """`run_s`: about how long the run will compute."""
    if config.attention != "auto":
        _check_attention(config, device, dtype)
    chosen = decide.choose_attention(config, device_traits(device), dtype, run_s)
    if chosen is not None:
        return chosen
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


def _attention_times(config: TrainConfig, device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Seconds of one layer, of those that can do it; in turns, the best of some."""
    sequences = max(1, _MEASURED_TOKENS // config.block_size)
    shape = (sequences, config.block_size, 3, config.n_head, config.n_embd // config.n_head)
    qkv = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    times: dict[str, list[float]] = {"flash": [], "cudnn": [], "efficient": []}
    for _ in range(_MEASURED_ROUNDS):
        for how, found in times.items():
            with suppress(RuntimeError):  # this card, shape or dtype is not for that one
                found.append(_attention_time(qkv, config.dropout, how))
    return {how: min(found) for how, found in times.items() if found}


_MEASURED_TOKENS = 16_384
_MEASURED_ROUNDS = 3
_MEASURED_CALLS = 10
_BUSY_CYCLES = 50_000_000  # some 30 ms


def _attention_time(qkv: torch.Tensor, dropout: float, how: str) -> float:
    """Of the device alone. It is kept busy until all calls are queued: launching them, which takes some of
    the kernels longer than others, is hidden behind the device's work in a run, and shall not count here."""
    q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))

    def call() -> None:
        out = attend(q, k, v, dropout, how)
        torch.autograd.grad(out, qkv, out)

    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    call()  # libraries look for a kernel the first time
    torch.cuda._sleep(_BUSY_CYCLES)
    events[0].record()
    for _ in range(_MEASURED_CALLS):
        call()
    events[1].record()
    events[1].synchronize()
    return float(events[0].elapsed_time(events[1])) / 1000 / _MEASURED_CALLS


def check_float8(
    config: TrainConfig, device: torch.device, dtype: str, own_kernels: bool, plan: BatchPlan
) -> None:
    micro_tokens = plan.batch_size * config.block_size
    problems = decide.float8_problems(config, device_traits(device), dtype, own_kernels, micro_tokens)
    if not problems and not float8.is_float8_kernel_correct(device):
        problems.append("--fp8=True does not work with this version of triton: its kernel computes wrongly")
    if problems:
        raise UserError(problems)
