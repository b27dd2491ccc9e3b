"""What the trainer will decide on that machine: dtype, kernels, graph, micro-batch. The same rules."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassgpt.config import TrainConfig, first_checkpoint_iter, padded_vocab_size
from glassgpt.errors import UserError
from glassgpt.estimate import decide as rules
from glassgpt.estimate import flops, memory, overheads
from glassgpt.estimate.batching import BatchPlan, eval_batch_rows, plan_batch
from glassgpt.estimate.decide import DeviceTraits, GraphCandidate
from glassgpt.estimate.memory import TrainingWorkload
from glassgpt.plan.dataset_size import DatasetInfo
from glassgpt.plan.target import PlanTarget

# GPT-2's own models, by the names that --init_from takes: layers, heads, width.
GPT2_SHAPES = {
    "gpt2": (12, 12, 768),
    "gpt2-medium": (24, 16, 1024),
    "gpt2-large": (36, 20, 1280),
    "gpt2-xl": (48, 25, 1600),
}


@dataclass(frozen=True)
class RunSpec:
    """The settings with everything that is open filled in."""

    config: TrainConfig
    workload: TrainingWorkload  # as it will be trained
    batch: BatchPlan
    batch_reason: str
    dtype_reason: str
    flops_per_token: int

    @property
    def parameters(self) -> int:
        return memory.total_parameters(self.workload)

    @property
    def total_tokens(self) -> int:
        return self.config.max_iters * self.batch.tokens


def decide(config: TrainConfig, target: PlanTarget, text: DatasetInfo) -> RunSpec:
    config, vocab_size = _with_pretrained_shape(config, text)
    on, kind = target.traits, target.device_type
    dtype = rules.choose_dtype(config.dtype, on, config.n_embd)
    possible = _without_refused(config, on)
    per_token = flops.model_flops_per_token(config, vocab_size)
    attention = rules.choose_attention(config, on, str(dtype.value), run_s=0.0)
    work = TrainingWorkload(
        config=config,
        vocab_size=vocab_size,
        batch_size=1,
        device_type=kind,
        dtype=str(dtype.value),
        kernels=rules.choose_kernels(possible, on, vocab_size, target.cluster.ranks).value == "triton",
        compiled=config.compile == "on",
        attention="sdpa" if attention is None else str(attention.value),
        data_bytes=_bytes_on_card(possible, text, target),
        eval_batch_tokens=eval_batch_rows(config, kind) * config.block_size,
        ranks=target.cluster.ranks,
    )
    # Gradients add up over micro-batches: room for them, in case there are several.
    fits = memory.largest_fitting_batch(replace(work, micro_steps=2), target.comfortable_bytes)
    batch, batch_choices = plan_batch(config, kind, fits, work.ranks)
    compiled, graph = _choose_compile_and_graph(possible, target, work, batch, per_token)
    work = replace(
        work, compiled=compiled, batch_size=batch.batch_size, micro_steps=batch.micro_steps, graph=graph
    )
    with_copy = replace(work, has_checkpoint_copy=True)
    beside = (
        first_checkpoint_iter(config) < config.max_iters
        and memory.estimate_memory(with_copy).total_bytes <= target.comfortable_bytes
    )
    if kind == "cpu" or beside:  # else it goes to main memory
        work = with_copy
    return RunSpec(config, work, batch, batch_choices[0].reason, dtype.reason, per_token)


def _with_pretrained_shape(config: TrainConfig, text: DatasetInfo) -> tuple[TrainConfig, int]:
    """GPT-2's weights bring their shape along."""
    if config.init_from == "scratch":
        return config, padded_vocab_size(text.vocab_size)
    if config.init_from not in GPT2_SHAPES:
        raise UserError(
            f"--init_from={config.init_from}: plan the run's own settings instead, "
            "glass plan RUN/config.toml --init_from=scratch"
        )
    layers, heads, width = GPT2_SHAPES[config.init_from]
    context = min(config.block_size, 1024)
    shaped = replace(
        config, n_layer=layers, n_head=heads, n_embd=width, block_size=context, bias=True, arch="gpt2",
        tie_embeddings=True,
    )  # fmt: skip
    return shaped, 50257


def can_shard(work: TrainingWorkload) -> bool:
    """The trainer refuses the others: a loss scaler and 8-bit floats do not go with it."""
    return work.dtype != "float16" and not work.config.fp8


def without_optional_memory(work: TrainingWorkload) -> TrainingWorkload:
    """Updates are only recorded where there is room for it, unless it is asked for; a copy to be saved goes
    to main memory where a card has none for it."""
    work = replace(work, has_checkpoint_copy=work.device_type == "cpu")
    return work if work.config.graph == "on" else replace(work, graph=False)


def _without_refused(config: TrainConfig, on: DeviceTraits) -> TrainConfig:
    """What the trainer would refuse there is a problem of the plan; the rest is planned without it."""
    refused = rules.refused_settings(config, on)
    return replace(config, **dict.fromkeys(refused, "auto"))  # type: ignore[arg-type]


def _choose_compile_and_graph(
    config: TrainConfig, target: PlanTarget, work: TrainingWorkload, batch: BatchPlan, per_token: int
) -> tuple[bool, bool]:
    """Whether it is compiled, and whether updates are recorded."""
    kind, layers, peak = target.device_type, config.n_layer, target.peak_flops_per_s(work.dtype)
    step_s = None
    if peak is not None:
        own_tokens = batch.tokens // work.ranks
        step_s = overheads.eager_step_s(kind, own_tokens, batch.micro_steps, per_token, layers, peak)
    compiling = rules.choose_compile(config, target.traits, step_s, work.kernels, work.is_sharded)
    compiled = compiling.value == "on"
    micro_tokens = batch.batch_size * config.block_size
    computing = overheads.arithmetic_s(
        kind, micro_tokens, per_token, peak or overheads.FALLBACK_PEAK_FLOPS_PER_S
    )
    asking = overheads.launch_s(kind, layers)
    recorded = replace(work, batch_size=batch.batch_size, micro_steps=batch.micro_steps, graph=True)
    fits = memory.estimate_memory(recorded).total_bytes <= target.comfortable_bytes
    micro = GraphCandidate(work.dtype, computing, asking, compiled, work.is_sharded, fits)
    graph = rules.choose_graph(config, target.traits, micro)
    return compiled, graph.value == "on"


def _bytes_on_card(config: TrainConfig, text: DatasetInfo, target: PlanTarget) -> int:
    size = text.train_bytes
    place = rules.choose_data_place(config.data_place, size, target.traits, target.memory_bytes)
    return size if place.value == "on the card" else 0
