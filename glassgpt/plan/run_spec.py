"""What the trainer will decide on that machine: dtype, kernels, graph, micro-batch. The same rules."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassgpt.config import TrainConfig, first_save, padded_vocabulary
from glassgpt.errors import UserError
from glassgpt.estimate import decide as rules
from glassgpt.estimate import flops, memory, overheads
from glassgpt.estimate.batching import BatchPlan, evaluation_rows, plan_batch
from glassgpt.estimate.decide import Recordable, Traits
from glassgpt.estimate.memory import Work
from glassgpt.plan.dataset_size import Text
from glassgpt.plan.target import Target

# GPT-2's own models, by the names that --init_from takes: layers, heads, width.
GPT2_SHAPES = {
    "gpt2": (12, 12, 768),
    "gpt2-medium": (24, 16, 1024),
    "gpt2-large": (36, 20, 1280),
    "gpt2-xl": (48, 25, 1600),
}


@dataclass(frozen=True)
class Decided:
    """The settings with everything that is open filled in."""

    config: TrainConfig
    work: Work  # as it will be trained
    batch: BatchPlan
    batch_reason: str
    dtype_reason: str
    flops_per_token: int

    @property
    def parameters(self) -> int:
        return memory.parameters(self.work)

    @property
    def total_tokens(self) -> int:
        return self.config.max_iters * self.batch.tokens


def decide(config: TrainConfig, target: Target, text: Text) -> Decided:
    config, vocab_size = _with_weights(config, text)
    on, kind = target.traits, target.device_type
    dtype = rules.choose_dtype(config.dtype, on, config.n_embd)
    possible = _without_refused(config, on)
    per_token = flops.flops_of(config, vocab_size)
    attention = rules.choose_attention(config, on, str(dtype.value), run_s=0.0)
    work = Work(
        config=config,
        vocab_size=vocab_size,
        batch_size=1,
        device_type=kind,
        dtype=str(dtype.value),
        kernels=rules.choose_kernels(possible, on, vocab_size, target.cluster.ranks).value == "triton",
        compiled=config.compile == "on",
        attention="sdpa" if attention is None else str(attention.value),
        data_bytes=_bytes_on_card(possible, text, target),
        eval_batch_tokens=evaluation_rows(config, kind) * config.block_size,
        ranks=target.cluster.ranks,
    )
    # Gradients add up over micro-batches: room for them, in case there are several.
    fits = memory.largest_batch(replace(work, micro_steps=2), target.room)
    batch, batch_choices = plan_batch(config, kind, fits, work.ranks)
    compiled, graph = _sped_up(possible, target, work, batch, per_token)
    work = replace(
        work, compiled=compiled, batch_size=batch.batch_size, micro_steps=batch.micro_steps, graph=graph
    )
    with_copy = replace(work, saves_beside=True)
    beside = first_save(config) < config.max_iters and memory.needed(with_copy).total <= target.room
    if kind == "cpu" or beside:  # else it goes to main memory
        work = with_copy
    return Decided(config, work, batch, batch_choices[0].reason, dtype.reason, per_token)


def _with_weights(config: TrainConfig, text: Text) -> tuple[TrainConfig, int]:
    """GPT-2's weights bring their shape along."""
    if config.init_from == "scratch":
        return config, padded_vocabulary(text.vocab_size)
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


def can_shard(work: Work) -> bool:
    """The trainer refuses the others: a loss scaler and 8-bit floats do not go with it."""
    return work.dtype != "float16" and not work.config.fp8


def without_luxury(work: Work) -> Work:
    """Updates are only recorded where there is room for it, unless it is asked for; a copy to be saved goes
    to main memory where a card has none for it."""
    work = replace(work, saves_beside=work.device_type == "cpu")
    return work if work.config.graph == "on" else replace(work, graph=False)


def _without_refused(config: TrainConfig, on: Traits) -> TrainConfig:
    """What the trainer would refuse there is a problem of the plan; the rest is planned without it."""
    refused = rules.refused(config, on)
    return replace(config, **dict.fromkeys(refused, "auto"))  # type: ignore[arg-type]


def _sped_up(
    config: TrainConfig, target: Target, work: Work, batch: BatchPlan, per_token: int
) -> tuple[bool, bool]:
    """Whether it is compiled, and whether updates are recorded."""
    kind, layers, peak = target.device_type, config.n_layer, target.peak(work.dtype)
    step_s = None
    if peak is not None:
        own_tokens = batch.tokens // work.ranks
        step_s = overheads.eager_step_s(kind, own_tokens, batch.micro_steps, per_token, layers, peak)
    compiling = rules.choose_compile(config, target.traits, step_s, work.kernels, work.is_sharded)
    compiled = compiling.value == "on"
    micro_tokens = batch.batch_size * config.block_size
    computing = overheads.arithmetic_s(kind, micro_tokens, per_token, peak or overheads.SOME_CARDS_PEAK)
    asking = overheads.launch_s(kind, layers)
    recorded = replace(work, batch_size=batch.batch_size, micro_steps=batch.micro_steps, graph=True)
    fits = memory.needed(recorded).total <= target.room
    micro = Recordable(work.dtype, computing, asking, compiled, work.is_sharded, fits)
    graph = rules.choose_graph(config, target.traits, micro)
    return compiled, graph.value == "on"


def _bytes_on_card(config: TrainConfig, text: Text, target: Target) -> int:
    size = text.train_bytes
    place = rules.choose_data_place(config.data_place, size, target.traits, target.memory)
    return size if place.value == "on the card" else 0
