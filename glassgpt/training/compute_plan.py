"""The compute plan of a run: device, dtype, model shape, micro-batches, kernels; each with its reason.

The rules are those of estimate/decide.py, which `glass plan` uses too. Here are the measurements and checks
that need the device itself. Rank 0 measures, and all ranks use its choices.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glassgpt.config import MACHINE_SPECIFIC_PATHS, Choice, TrainConfig, padded_vocab_size
from glassgpt.data.dataset import Dataset
from glassgpt.errors import UserError
from glassgpt.estimate import decide, flops, overheads
from glassgpt.estimate.batching import BatchPlan, plan_batch
from glassgpt.estimate.cards import Card, find_card
from glassgpt.estimate.cluster import Cluster, link_of_card
from glassgpt.estimate.decide import GraphCandidate, choose_threads, kernel_cache_marker
from glassgpt.estimate.peak import PeakFlops
from glassgpt.model import float8, loss_chunks
from glassgpt.model.gpt import GPTConfig, attend, make_gpt_config
from glassgpt.record.machine import measure_busy_cores
from glassgpt.training import device as devices
from glassgpt.training.checkpoint.checkpoints import latest_checkpoint, readable_checkpoints
from glassgpt.training.device import DTYPES, ExecutionConfig, device_name, device_traits
from glassgpt.training.distributed.process_group import ProcessGroup
from glassgpt.training.probe import find_peak
from glassgpt.training.run_request import RunRequest
from glassgpt.training.weight_source import model_config_of
from glassgpt.version import VERSION


@dataclass(frozen=True)
class ComputePlan:
    execution: ExecutionConfig
    model_config: GPTConfig
    batch_plan: BatchPlan
    peak: PeakFlops
    flops_per_token: int
    free_bytes: int | None  # on the card with the least; None without a card
    card: Card | None  # from the table of cards, if it is listed
    cluster: Cluster

    @property
    def device(self) -> torch.device:
        return self.execution.device


def plan_compute(
    request: RunRequest, dataset: Dataset, data_bytes: int, group: ProcessGroup
) -> tuple[ComputePlan, list[Choice]]:
    """`data_bytes`: of the training split. Connects the process group on the way."""
    device, choices = _set_up_device(request, dataset, group)
    config = request.config
    if config.shard and not group.launch_id:
        choices.append(Choice("shard", False, "this run is one process: there is nothing to shard over"))
        config = dataclasses.replace(config, shard=False)
    choices.append(dtype_choice := devices.choose_dtype(config.dtype, device, config.n_embd))
    dtype = str(dtype_choice.value)
    if config.shard and dtype == "float16":
        raise UserError("--shard=True needs --dtype=float32 on this card, which has no bfloat16")
    model_config, model_choices = _choose_model_config(request, dataset.manifest.vocab_size)
    choices += model_choices
    vocab_size = model_config.vocab_size
    flops_per_token = flops.model_flops_per_token(model_config, vocab_size)

    free_bytes, total_bytes = devices.free_and_total_bytes(device)
    if free_bytes is not None:
        free_bytes = int(min(row[0] for row in group.all_gather_rows([free_bytes])))
    max_batch_size = devices.estimate_max_batch_size(config, vocab_size, free_bytes, group.world_size)
    batch_plan, batch_choices = plan_batch(config, device.type, max_batch_size, group.world_size)
    choices += batch_choices

    # Measured on rank 0 only, so that all ranks decide the same.
    name = device_name(device)

    def measure_peak() -> dict[str, Any]:
        return dataclasses.asdict(find_peak(device.type, name, dtype, total_bytes, config.probe_seconds))

    peak = PeakFlops(**group.broadcast_from_rank_zero(measure_peak))

    def choose_execution() -> dict[str, Any]:
        inputs = SpeedupInputs(
            batch_plan,
            vocab_size,
            flops_per_token,
            data_bytes,
            peak.measured or peak.value,
            free_bytes,
            devices.cuda_graph_fits(config, vocab_size, batch_plan, free_bytes),
        )
        execution, choices = choose_speedups(config, device, dtype, inputs)
        fields = dataclasses.asdict(dataclasses.replace(execution, device=None))  # type: ignore[arg-type]
        return {"execution": fields, "choices": [dataclasses.asdict(choice) for choice in choices]}

    chosen = group.broadcast_from_rank_zero(choose_execution)
    execution = ExecutionConfig(**chosen["execution"] | {"device": device})
    choices += [Choice(**choice) for choice in chosen["choices"]]
    card = find_card(name, total_bytes)
    link = link_of_card(card) if device.type == "cuda" else None
    cluster = Cluster(group.local_world_size, -(-group.world_size // group.local_world_size), link)
    plan = ComputePlan(execution, model_config, batch_plan, peak, flops_per_token, free_bytes, card, cluster)
    return plan, choices


def _set_up_device(
    request: RunRequest, dataset: Dataset, group: ProcessGroup
) -> tuple[torch.device, list[Choice]]:
    """Chooses device and threads, and connects the ranks once they agree on what they are to do."""
    config, choices = request.config, []
    torch.set_float32_matmul_precision("high")  # TF32 on cards that have it, as nanoGPT
    device, _ = devices.choose_device(config.device)
    # OMP_NUM_THREADS is a choice of the user's; a launcher sets the threads of its processes.
    requested, default = config.threads, torch.get_num_threads()
    if requested is not None or device.type != "cpu" or group.launch_id or "OMP_NUM_THREADS" in os.environ:
        threads = choose_threads(requested, default, None, 0.0)
    else:
        last = None if request.resume_dir is None else latest_checkpoint(request.resume_dir)
        previous = None if last is None else last.state.get("threads", default)  # older versions: the default
        threads = choose_threads(None, default, previous, measure_busy_cores())
    if threads is not None:
        torch.set_num_threads(int(threads.value))  # type: ignore[arg-type]
        choices.append(threads)
    device, choice = devices.choose_device(config.device)  # again: its reason names the threads
    choices += [choice, *devices.set_allocator(device, os.environ)]
    device = devices.device_for_rank(device, config.device, group.local_rank, group.local_world_size)
    if device.index is not None:  # "cuda:1": streams, events and probes must use this card
        torch.cuda.set_device(device)
    initial = request.init_checkpoint
    flags = {
        f"--{name}": value
        for name, value in dataclasses.asdict(config).items()
        if name not in MACHINE_SPECIFIC_PATHS
    }
    group.check_same_on_all_ranks(
        flags
        | {
            "the data's hash": dataset.hash,
            "the checkpoint's iteration": None if initial is None else initial.iter,
            "glassgpt": VERSION,
            "torch": torch.__version__,
        }
    )
    return device, choices + group.connect(device, config)


def _choose_model_config(request: RunRequest, data_vocab_size: int) -> tuple[GPTConfig, list[Choice]]:
    config, vocab_size = request.config, None
    if request.init_checkpoint is not None:
        vocab_size = request.init_checkpoint.model_config.vocab_size  # GPT-2's own is not padded
    elif request.resume_dir is not None and (points := list(readable_checkpoints(request.resume_dir))):
        vocab_size = model_config_of(points[-1]).vocab_size
    reason = "as the weights have it"
    if vocab_size is None:
        vocab_size = padded_vocab_size(data_vocab_size)
        is_padded = vocab_size > data_vocab_size
        reason = f"the dataset's {data_vocab_size}" + (
            ", rounded up to a multiple of 64" if is_padded else ""
        )
    model_config = make_gpt_config(config, vocab_size)
    choices = [Choice("vocab_size", vocab_size, reason)]
    if config.activation == "auto":
        choices.append(
            Choice("activation", model_config.activation, f"the usual one for {model_config.arch}")
        )
    if config.bias and config.arch == "modern":
        choices.append(Choice("bias", False, "modern has none; --arch=gpt2 can have them"))
    return model_config, choices


# --- kernels, compile, attention, CUDA graphs, place of the data ---


@dataclass(frozen=True)
class SpeedupInputs:
    """The work of an update, and what the device has for it."""

    batch_plan: BatchPlan
    vocab_size: int
    flops_per_token: int
    data_bytes: int
    peak_flops_per_s: float | None = None  # None: unknown
    free_bytes: int | None = None  # of the card's memory; None without a card
    cuda_graph_fits: bool = True


def choose_speedups(
    config: TrainConfig, device: torch.device, dtype: str, inputs: SpeedupInputs
) -> tuple[ExecutionConfig, list[Choice]]:
    """Each speedup costs time at the start, so each is weighed against the length of the run."""
    plan, traits = inputs.batch_plan, device_traits(device)
    kernels_are_built = (
        traits.device_type == "cuda"
        and _kernels_built_marker(config, device, dtype, inputs.vocab_size, plan).is_file()
    )
    kernels = decide.choose_kernels(config, traits, inputs.vocab_size, plan.ranks, kernels_are_built)
    uses_kernels = kernels.value == "triton"
    if config.fp8:
        check_float8(config, device, dtype, uses_kernels, plan)
    eager_step_s = None
    if inputs.peak_flops_per_s is not None:
        eager_step_s = overheads.eager_step_s(
            device.type,
            plan.tokens_per_rank,
            plan.micro_steps,
            inputs.flops_per_token,
            config.n_layer,
            inputs.peak_flops_per_s,
        )
    compiling = decide.choose_compile(config, traits, eager_step_s, uses_kernels, config.shard)
    is_compiled = compiling.value == "on"
    peak_flops_per_s = inputs.peak_flops_per_s or overheads.FALLBACK_PEAK_FLOPS_PER_S
    micro_step_tokens = plan.tokens_per_rank // plan.micro_steps
    micro_step_s = overheads.arithmetic_s(
        device.type, micro_step_tokens, inputs.flops_per_token, peak_flops_per_s
    )
    run_s = micro_step_s * plan.micro_steps * config.max_iters
    attention = choose_or_measure_attention(config, device, dtype, run_s)
    launch_s = overheads.launch_s(device.type, config.n_layer)
    micro_step = GraphCandidate(
        dtype, micro_step_s, launch_s, is_compiled, config.shard, inputs.cuda_graph_fits
    )
    graph = decide.choose_graph(config, traits, micro_step)
    data = decide.choose_data_place(config.data_place, inputs.data_bytes, traits, inputs.free_bytes)
    execution = ExecutionConfig(
        device,
        dtype,
        compile=is_compiled,
        attention=str(attention.value),
        kernels=uses_kernels,
        graph=graph.value == "on",
        data_on_card=data.value == "on the card",
        float8=config.fp8,
        shard=config.shard,
    )
    choices = [compiling, attention]
    if device.type == "cuda":  # elsewhere there is nothing to choose about these
        choices += [kernels, graph, data]
    if config.fp8:
        reason = "asked for; evaluation stays exact"
        if not loss_chunks.is_float8_aligned(inputs.vocab_size):
            reason += f"; the head in bfloat16, since its {inputs.vocab_size} tokens are not a multiple of 16"
        choices.append(Choice("fp8", "on", reason))
    return execution, choices


def _kernels_built_marker(
    config: TrainConfig, device: torch.device, dtype: str, vocab_size: int, batch_plan: BatchPlan
) -> Path:
    """A file that exists once the kernels of such a run are in Triton's cache."""
    micro_batch_tokens = batch_plan.batch_size * config.block_size
    return kernel_cache_marker(config, device_name(device), dtype, vocab_size, micro_batch_tokens)


def mark_kernels_built(config: TrainConfig, compute: ComputePlan, fallbacks: Collection[str]) -> None:
    """Tells later runs that Triton has these kernels in its cache, unless building them failed."""
    execution, vocab_size = compute.execution, compute.model_config.vocab_size
    if execution.kernels and "kernels" not in fallbacks:
        marker = _kernels_built_marker(
            config, execution.device, execution.dtype, vocab_size, compute.batch_plan
        )
        with suppress(OSError):  # a cache that cannot be written holds no kernels either
            marker.touch()


_MEASURED_TOKENS = 16_384
_MEASURED_ROUNDS = 3
_MEASURED_CALLS = 10
_BUSY_CYCLES = 50_000_000  # some 30 ms
_FLASH_BONUS = 0.95  # another kernel must be faster by more than noise


def choose_or_measure_attention(
    config: TrainConfig, device: torch.device, dtype: str, run_s: float
) -> Choice:
    """By the rules of decide.py; where they leave it open, by timing the kernels on the device. `run_s`:
    about how long the run will compute."""
    head_size = config.n_embd // config.n_head
    if config.attention != "auto":
        # Not every kernel supports every dtype and head size on every device: try it on two tokens.
        shape = (1, 2, 3, config.n_head, head_size)
        qkv = torch.zeros(shape, device=device, dtype=DTYPES[dtype], requires_grad=True)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        try:
            attend(q, k, v, config.dropout, config.attention).sum().backward()  # type: ignore[no-untyped-call]
        except RuntimeError:
            raise UserError(
                f"--attention={config.attention} cannot do heads of {head_size} channels in {dtype} on "
                f"{device.type} here; try --attention=auto"
            ) from None
    choice = decide.choose_attention(config, device_traits(device), dtype, run_s)
    if choice is not None:
        return choice
    times = _attention_times(config, device, DTYPES[dtype])
    if not times:
        return Choice("attention", "sdpa", "none of PyTorch's fused kernels does this shape alone")
    best = min(times, key=lambda kernel: times[kernel] * (_FLASH_BONUS if kernel == "flash" else 1.0))
    listed = ", ".join(f"{kernel} {seconds * 1000:.2f} ms" for kernel, seconds in times.items())
    return Choice("attention", best, f"measured forward and backward: {listed}")


def _attention_times(config: TrainConfig, device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Seconds of one layer by kernel: measured in turns, the best of some rounds."""
    sequences = max(1, _MEASURED_TOKENS // config.block_size)
    shape = (sequences, config.block_size, 3, config.n_head, config.n_embd // config.n_head)
    qkv = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    measured: dict[str, list[float]] = {"flash": [], "cudnn": [], "efficient": []}
    for _ in range(_MEASURED_ROUNDS):
        for kernel, seconds in measured.items():
            with suppress(RuntimeError):  # not for this card, shape or dtype
                seconds.append(_attention_time(qkv, config.dropout, kernel))
    return {kernel: min(seconds) for kernel, seconds in measured.items() if seconds}


def _attention_time(qkv: torch.Tensor, dropout: float, kernel: str) -> float:
    """Seconds of the device for forward and backward. The device is kept busy until all calls are queued: in
    a run kernel-launch overhead is hidden behind its work, and must not count here either."""
    q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))

    def forward_backward() -> None:
        out = attend(q, k, v, dropout, kernel)
        torch.autograd.grad(out, qkv, out)

    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    forward_backward()  # libraries choose a kernel at the first call
    torch.cuda._sleep(_BUSY_CYCLES)
    events[0].record()
    for _ in range(_MEASURED_CALLS):
        forward_backward()
    events[1].record()
    events[1].synchronize()
    return float(events[0].elapsed_time(events[1])) / 1000 / _MEASURED_CALLS


def check_float8(
    config: TrainConfig, device: torch.device, dtype: str, own_kernels: bool, plan: BatchPlan
) -> None:
    micro_batch_tokens = plan.batch_size * config.block_size
    problems = decide.float8_problems(config, device_traits(device), dtype, own_kernels, micro_batch_tokens)
    if not problems and not float8.is_float8_kernel_correct(device):
        problems.append("--fp8=True does not work with this version of triton: its kernel computes wrongly")
    if problems:
        raise UserError(problems)
