"""What the trainer decides: device, dtype, micro-batch, kernels, compile, attention, CUDA graph, and why so.

    spec = decide(config, facts, find_dataset_info(config))
    spec.workload.dtype, spec.batch.batch_size, spec.choices
    spec.unknown                    # facts that it would have needed: ("peak", "attention_s")

Training, `glass plan` and `glass tune` call it. It is pure: facts in, choices out. No torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from glassgpt.config import (
    DEFAULT_BATCH_SIZE,
    Choice,
    TrainConfig,
    device_problems,
    effective_activation,
    first_checkpoint_iter,
    padded_vocab_size,
)
from glassgpt.data.manifest import DatasetInfo
from glassgpt.errors import UserError, raise_if_any
from glassgpt.estimate import flops, memory, overheads
from glassgpt.estimate.batching import BatchPlan, eval_batch_rows, plan_batch
from glassgpt.estimate.machine_facts import DeviceTraits, MachineFacts, Origin
from glassgpt.estimate.memory import estimate_memory
from glassgpt.estimate.memory_limits import automatic_limit
from glassgpt.estimate.training_workload import TrainingWorkload, total_parameters
from glassgpt.format import pluralize
from glassgpt.model import loss_chunks


@dataclass(frozen=True)
class RunSpec:
    """A config, and all that training chooses for it on a machine."""

    config: TrainConfig  # as asked for
    workload: TrainingWorkload  # as it is run
    batch: BatchPlan
    flops_per_token: int
    choices: tuple[Choice, ...]
    unknown: tuple[str, ...]  # fields of MachineFacts that it would have needed, in the order of their use

    @property
    def parameters(self) -> int:
        return total_parameters(self.workload)

    @property
    def total_tokens(self) -> int:
        return self.config.max_iters * self.batch.tokens

    def reason(self, name: str) -> str:
        """Why `name` was chosen as it was."""
        return next(choice.reason for choice in self.choices if choice.name == name)


def decide(
    config: TrainConfig,
    facts: MachineFacts,
    data: DatasetInfo,
    origin: Origin = Origin(),  # noqa: B008
) -> RunSpec:
    """Raises UserError for settings that are impossible on the machine."""
    requested, device = config, facts.device
    choices = _choose_device_and_threads(config, facts, origin)
    if config.shard and not facts.is_launched:
        choices.append(
            Choice("shard", False, "this run is one process: there is nothing to shard over", notable=True)
        )
        config = replace(config, shard=False)
    dtype = choose_dtype(config.dtype, device, config.n_embd)
    model_choices = _choose_model(config, data.vocab_size, origin.vocab_size)
    vocab_size = int(model_choices[0].value)  # type: ignore[arg-type]
    flops_per_token = flops.model_flops_per_token(config, vocab_size)
    free_bytes = facts.memory_bytes if facts.free_bytes is None else facts.free_bytes
    data_place = choose_data_place(config.data_place, data.train_bytes, device, free_bytes)
    card_data_bytes = data.train_bytes if data_place.value == "on the card" else 0

    provisional, batch, batch_choices = _fit_micro_batch(
        config, facts, vocab_size, str(dtype.value), card_data_bytes
    )
    float8 = choose_float8(config, device, provisional.micro_batch_tokens)
    if float8.value == "off" and config.fp8:
        config = replace(config, fp8=False)
        provisional = replace(provisional, config=config)
    work, speedup_choices, unknown = _choose_speedups(provisional, batch, facts, flops_per_token)
    # A checkpoint is a copy first. On a card it is optional: without room it goes to main memory. A CPU has
    # no other place for it, and the last checkpoint, after all updates, needs as much as the others.
    with_copy = replace(work, has_checkpoint_copy=True)
    saves_while_training = first_checkpoint_iter(config) < config.max_iters
    if work.device_type == "cpu" or (saves_while_training and _fits(with_copy, facts)):
        work = with_copy

    choices += [dtype, *model_choices, *batch_choices, *speedup_choices]
    if work.device_type == "cuda":
        choices.append(data_place)
    if requested.fp8:
        if config.fp8 and not loss_chunks.is_float8_aligned(vocab_size):
            in_bfloat16 = f"the head in bfloat16, since its {vocab_size} tokens are not a multiple of 16"
            float8 = replace(float8, reason=f"{float8.reason}; {in_bfloat16}")
        choices.append(float8)
    return RunSpec(requested, work, batch, flops_per_token, tuple(choices), tuple(unknown))


def _fit_micro_batch(
    config: TrainConfig, facts: MachineFacts, vocab_size: int, dtype: str, card_data_bytes: int
) -> tuple[TrainingWorkload, BatchPlan, list[Choice]]:
    """The workload is provisional: as if nothing were captured or copied, and no kernels built before."""
    device_type = facts.device.device_type
    one_sequence = TrainingWorkload(
        config=config,
        vocab_size=vocab_size,
        batch_size=1,
        micro_steps=2,  # gradients may accumulate: leave room for them
        device_type=device_type,
        dtype=dtype,
        kernels=choose_kernels(config, facts.device, vocab_size, facts.ranks).value == "triton",
        compiled=config.compile == "on",
        attention="sdpa" if config.attention == "auto" else config.attention,
        data_bytes=card_data_bytes,
        eval_batch_tokens=eval_batch_rows(config, device_type) * config.block_size,
        ranks=facts.ranks,
    )
    max_bytes = automatic_limit(facts)
    # At least 1: a run that does not fit at all is refused later, with advice.
    largest = None if max_bytes is None else memory.largest_fitting_batch(one_sequence, max_bytes) or 1
    batch, choices = plan_batch(config, device_type, largest, facts.ranks)
    return replace(one_sequence, batch_size=batch.batch_size, micro_steps=batch.micro_steps), batch, choices


def _choose_speedups(
    provisional: TrainingWorkload, batch: BatchPlan, facts: MachineFacts, flops_per_token: int
) -> tuple[TrainingWorkload, list[Choice], list[str]]:
    """Kernels, compile, attention, CUDA graph; and the facts that it would have needed. Each speedup costs
    time at the start, so each is weighed against the length of the run."""
    config, device, device_type = provisional.config, facts.device, facts.device.device_type
    peak = None if facts.peak is None else facts.peak.measured or facts.peak.value

    unknown = []  # first what decides about kernels: they are built while the rest is measured
    if device_type == "cuda" and config.kernels == "auto" and facts.kernels_built is None:
        unknown.append("kernels_built")
    vocab_size, built = provisional.vocab_size, facts.kernels_built or False
    kernels = choose_kernels(config, device, vocab_size, facts.ranks, built)
    with_kernels = replace(provisional, kernels=kernels.value == "triton")
    if config.fp8 and facts.float8_is_correct is None and not float8_problems(with_kernels, device):
        unknown.append("float8_is_correct")
    if facts.peak is None:
        unknown.append("peak")

    step_s = None
    if peak is not None:
        step_s = overheads.eager_step_s(
            device_type, batch.tokens_per_rank, batch.micro_steps, flops_per_token, config.n_layer, peak
        )
    compiling = choose_compile(config, device, step_s, with_kernels.kernels, config.shard)

    micro_step_s = overheads.arithmetic_s(
        device_type,
        provisional.micro_batch_tokens,
        flops_per_token,
        peak or overheads.FALLBACK_PEAK_FLOPS_PER_S,
    )
    run_s = micro_step_s * batch.micro_steps * config.max_iters
    attention = choose_attention(config, device, provisional.dtype, run_s, facts.attention_s)
    if attention is None:
        unknown.append("attention_s")
        attention = Choice("attention", "sdpa", "the fused kernels were not measured here")

    without_graph = replace(with_kernels, compiled=compiling.value == "on", attention=str(attention.value))
    launch_s = overheads.launch_s(device_type, config.n_layer)
    fits = _fits(replace(without_graph, graph=True), facts)
    graph = choose_graph(device, without_graph, micro_step_s, launch_s, fits)
    choices = [compiling, attention]
    if device_type == "cuda":  # elsewhere there is nothing to choose about these
        choices += [kernels, graph]
    return replace(without_graph, graph=graph.value == "on"), choices, unknown


def _fits(work: TrainingWorkload, facts: MachineFacts) -> bool:
    max_bytes = automatic_limit(facts)
    return max_bytes is None or estimate_memory(work).total_bytes <= max_bytes


def model_vocab_size(data_vocab_size: int, weights_vocab_size: int | None) -> int:
    """Padded, unless trained weights fix it: GPT-2's is not padded."""
    return padded_vocab_size(data_vocab_size) if weights_vocab_size is None else weights_vocab_size


def _choose_model(config: TrainConfig, data_vocab_size: int, weights_vocab_size: int | None) -> list[Choice]:
    """The first choice is the vocabulary size."""
    vocab_size, reason = model_vocab_size(data_vocab_size, weights_vocab_size), "as the weights have it"
    if weights_vocab_size is None:
        padding = ", rounded up to a multiple of 64" if vocab_size > data_vocab_size else ""
        reason = f"the dataset's {data_vocab_size}{padding}"
    choices = [Choice("vocab_size", vocab_size, reason)]
    if config.activation == "auto":
        choices.append(Choice("activation", effective_activation(config), f"the usual one for {config.arch}"))
    if config.bias and config.arch == "modern":
        choices.append(Choice("bias", False, "modern has none; --arch=gpt2 can have them", notable=True))
    return choices


# --- device and threads ---


def _choose_device_and_threads(config: TrainConfig, facts: MachineFacts, origin: Origin) -> list[Choice]:
    choices, name = [], facts.device_name
    if facts.default_threads is not None:
        threads = choose_threads(config.threads, facts.default_threads, origin.threads, facts.busy_cores)
        choices += [] if threads is None else [threads]
        if facts.device.device_type == "cpu":
            count = facts.default_threads if threads is None else int(threads.value)  # type: ignore[arg-type]
            name = pluralize(count, "thread")
    if facts.device_counts:
        choices.append(choose_device(config.device, facts.device_counts, lambda device: name))
    return choices


def choose_device(requested: str, counts: Mapping[str, int], name_of: Callable[[str], str]) -> Choice:
    """`requested`: as in --device; `counts`: of devices by type."""
    raise_if_any(device_problems(requested))
    device, reason = requested, "asked for"
    if requested == "auto":
        reasons = {
            "cuda": "a CUDA card is available",
            "mps": "Apple's GPU is available",
            "cpu": "no GPU found",
        }
        device = next(kind for kind in reasons if counts[kind])
        reason = reasons[device]
    kind, _, number = device.partition(":")
    if not counts[kind]:
        raise UserError(f"--device={requested} is not available here; try --device=auto or --device=cpu")
    if number and (not number.isdecimal() or int(number) >= counts[kind]):
        raise UserError(f"--device={requested} does not exist: {kind} has {counts[kind]} here")
    return Choice("device", device, f"{reason}{';' if kind == 'cpu' else ':'} {name_of(device)}")


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
        reason = f"as the run had, since their number changes the last digits{faster}"
        return Choice("threads", before, reason, notable=bool(faster))
    if free == default:
        return None
    return Choice("threads", free, f"not {default}: {others}, and threads wait for each other", notable=True)


# --- dtype ---


def choose_dtype(requested: str, device: DeviceTraits, width: int | None = None) -> Choice:
    """`width`: n_embd of the model to be trained; None if it is only sampled from."""
    capability = device.capability
    if device.device_type == "cpu" and requested == "float16":
        return Choice(
            "dtype", "bfloat16", "float16 was asked for, but CPUs have no fast float16", notable=True
        )
    if requested != "auto":
        remark, is_slow = "", False
        if device.device_type == "cuda" and capability is not None:
            if requested == "float32" and capability >= (8, 0):
                remark = "; matmuls run in TF32"
            elif requested == "bfloat16" and capability < (8, 0):
                is_slow, remark = True, "; this card only emulates it, slowly: --dtype=float16 is better"
        return Choice("dtype", requested, "asked for" + remark, notable=is_slow)
    if device.device_type == "cpu":
        if width is None:
            reason = "generating one token at a time is memory-bound"
        elif width < overheads.MIN_WIDTH_FOR_CPU_BFLOAT16:
            reason = f"n_embd < {overheads.MIN_WIDTH_FOR_CPU_BFLOAT16}: bfloat16 is no faster"
        elif device.has_fast_bfloat16:
            return Choice("dtype", "bfloat16", "this CPU multiplies it faster than float32")
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


def _why_cannot_build(device: DeviceTraits) -> str | None:
    if device.device_type == "mps":
        return "not dependable on Apple's GPU yet; --compile=on forces it"
    if device.missing_toolchain is not None:
        return device.missing_toolchain
    is_old = device.capability is not None and device.capability < (7, 0)
    return "the card is too old for triton" if device.device_type == "cuda" and is_old else None


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


def choose_graph(
    device: DeviceTraits, work: TrainingWorkload, compute_s: float, launch_s: float, fits: bool = True
) -> Choice:
    """`compute_s`, `launch_s`: about how long a micro-batch computes, and its kernel-launch overhead. `fits`:
    whether there is memory for the graph."""
    config = work.config
    if device.device_type != "cuda":
        if config.graph == "on":
            raise UserError(f"--graph=on is for CUDA cards, and this run is on {device.device_type}")
        return Choice("graph", "off", f"{device.device_type} has none")
    # Impossible, even if it is asked for.
    impossible = ""
    if config.eval_only:
        impossible = "one evaluation has no updates to capture"
    elif config.shard:
        impossible = "blocks are gathered when they are needed: cannot be captured"
    elif work.dtype == "float16":
        impossible = "float16's loss scaler has to look at every update"
    if impossible:
        return Choice("graph", "off", impossible, notable=config.graph == "on")
    if config.graph != "auto":
        return Choice("graph", config.graph, "asked for")
    # Possible, but not by default.
    if work.compiled:
        return Choice("graph", "off", "compiled code may compile again, which cannot be captured")
    if config.activation_checkpointing and config.dropout:
        return Choice("graph", "off", "recomputing needs dropout's random numbers again: cannot be captured")
    if not fits:
        reason = "a CUDA graph keeps its memory, and evaluation has to fit beside it"
        return Choice("graph", "off", reason)
    if overheads.graph_pays(compute_s, launch_s):
        reason = (
            f"kernel-launch overhead is about {launch_s * 1000:.0f} ms, "
            f"computing about {compute_s * 1000:.1f} ms: captured once and replayed"
        )
        return Choice("graph", "on", reason)
    compute_bound = "compute-bound: kernel-launch overhead is hidden"
    if work.ranks > 1:
        return Choice("graph", "off", f"{compute_bound}, and gradients are all-reduced outside of a graph")
    if config.max_iters < overheads.MIN_UPDATES_FOR_GRAPH:
        return Choice("graph", "off", f"{compute_bound}, and {config.max_iters} updates are soon over")
    return Choice("graph", "on", "compute-bound, but a replayed graph has no gaps between kernels")


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


# --- attention, float8, where the data is ---

_MIN_RUN_S_TO_MEASURE_ATTENTION = 60  # measuring takes seconds, and gains a few percent of the run
_FLASH_BONUS = 0.95  # another kernel must be faster by more than noise


def choose_attention(
    config: TrainConfig,
    device: DeviceTraits,
    dtype: str,
    run_s: float,
    measured_s: Mapping[str, float] | None = None,
) -> Choice | None:
    """None: a fused kernel, and it is worth measuring which. `run_s`: about how long the run will compute.
    `measured_s`: of one layer, by kernel; those that do not support its shape are missing."""
    if config.attention != "auto":
        return Choice("attention", config.attention, "asked for")
    if _has_fast_cudnn_attention(config, device, dtype):
        reason = "cuDNN's kernels are written for Hopper cards: 1.2 to 1.4 times as fast as flash there"
        return Choice("attention", "cudnn", reason)
    if device.device_type != "cuda" or dtype == "float32" or run_s < _MIN_RUN_S_TO_MEASURE_ATTENTION:
        return Choice("attention", "sdpa", "PyTorch's fused kernels never store the T x T matrix")
    if not measured_s:
        no_kernel = Choice("attention", "sdpa", "none of PyTorch's fused kernels does this shape alone")
        return None if measured_s is None else no_kernel
    best = min(measured_s, key=lambda name: measured_s[name] * (_FLASH_BONUS if name == "flash" else 1.0))
    listed = ", ".join(f"{name} {seconds * 1000:.2f} ms" for name, seconds in measured_s.items())
    return Choice("attention", best, f"measured forward and backward: {listed}")


def _has_fast_cudnn_attention(config: TrainConfig, device: DeviceTraits, dtype: str) -> bool:
    """Measured on H200s with contexts of 256 to 4096 and heads of 64 to 128 channels: never slower."""
    head_dim = config.n_embd // config.n_head
    is_measured = config.block_size >= 256 and 64 <= head_dim <= 128 and head_dim % 8 == 0
    return device.capability == (9, 0) and dtype != "float32" and is_measured


def has_float8(device: DeviceTraits) -> bool:
    return device.device_type == "cuda" and (device.capability is None or device.capability >= (8, 9))


def choose_float8(config: TrainConfig, device: DeviceTraits, micro_batch_tokens: int) -> Choice:
    """Weights are quantized in every micro-batch, which takes as long however few its tokens are."""
    if not config.fp8:
        return Choice("fp8", "off", "not asked for")
    few = overheads.MIN_FLOAT8_TOKENS
    if has_float8(device) and micro_batch_tokens < few:
        reason = (
            f"a micro-batch of {micro_batch_tokens:,} tokens is faster in bfloat16; FP8 pays from {few:,} on"
        )
        return Choice("fp8", "off", reason, notable=True)
    return Choice("fp8", "on", "asked for; evaluation stays exact")


def float8_problems(
    work: TrainingWorkload, device: DeviceTraits, is_correct: bool | None = None
) -> list[str]:
    """Why --fp8 is impossible. `is_correct`: whether the FP8 matmul computes what it should, if known."""
    problems = []
    if not has_float8(device):
        problems.append("--fp8=True needs a card with 8-bit floats: RTX 40, L4, H100 or newer")
    elif not work.kernels:
        problems.append("--fp8=True needs the Triton kernels: --kernels=auto and --compile=auto, and triton")
    if work.dtype != "bfloat16":
        problems.append(f"--fp8=True requires --dtype=bfloat16, not {work.dtype}")
    if not all(loss_chunks.is_float8_aligned(size) for size in (work.config.n_embd, work.micro_batch_tokens)):
        problems.append("--fp8=True needs --n_embd and the tokens of a micro-batch to be multiples of 16")
    if not problems and is_correct is False:
        problems.append("--fp8=True does not work with this version of triton: its kernel computes wrongly")
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
    if requested != "auto":
        return Choice("data", "on the card" if requested == "card" else "in memory", "asked for")
    if free_bytes is None:
        return Choice("data", "in memory", "how much memory the card has free is not known")
    if size_bytes > free_bytes * overheads.MAX_DATA_SHARE_OF_CARD:
        return Choice("data", "in memory", f"its {size_bytes / 1e9:.1f} GB would take too much GPU memory")
    reason = f"its {size_bytes / 1e6:.0f} MB fit there: no copying at every update"
    return Choice("data", "on the card", reason)
