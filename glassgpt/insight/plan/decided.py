"""What the trainer will decide on that machine: dtype, kernels, graph, micro-batch. The same rules."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassgpt.account import costs, flops, memory
from glassgpt.account.memory import Work
from glassgpt.config import TrainConfig, padded_vocabulary
from glassgpt.errors import UserError
from glassgpt.insight.plan.target import Target
from glassgpt.insight.plan.text import Text
from glassgpt.train.batching import BatchPlan, evaluation_rows, plan_batch

# GPT-2's own models, by the names that --init_from takes: layers, heads, width.
_GPT2 = {
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
    kind = target.device_type
    dtype, dtype_reason = target.dtype(config.dtype, config.n_embd)
    per_token = flops.flops_of(config, vocab_size)
    work = Work(
        config=config,
        vocab_size=vocab_size,
        batch_size=1,
        device_type=kind,
        dtype=dtype,
        kernels=_has_kernels(config, target),
        compiled=config.compile == "on",
        attention=_attention(config, kind, dtype),
        data_bytes=_bytes_on_card(text, target),
        eval_batch_tokens=evaluation_rows(config, kind) * config.block_size,
    )
    # Gradients add up over micro-batches: room for them, in case there are several.
    fits = memory.largest_batch(replace(work, micro_steps=2), target.room)
    batch, choices = plan_batch(config, kind, fits)
    compiled = _is_compiled(config, target, work, batch, per_token)
    work = replace(
        work,
        compiled=compiled,
        batch_size=batch.batch_size,
        micro_steps=batch.micro_steps,
        graph=not compiled and _has_graph(config, target, work, batch, per_token),
    )
    with_copy = replace(work, saves_beside=True)
    if kind == "cpu" or memory.needed(with_copy).total <= target.room:  # else it goes to main memory
        work = with_copy
    return Decided(config, work, batch, choices[0].reason, dtype_reason, per_token)


def _with_weights(config: TrainConfig, text: Text) -> tuple[TrainConfig, int]:
    """GPT-2's weights bring their shape along."""
    if config.init_from == "scratch":
        return config, padded_vocabulary(text.vocab_size)
    if config.init_from not in _GPT2:
        raise UserError(
            f"--init_from={config.init_from}: plan the run's own settings instead, "
            "glass plan RUN/config.toml --init_from=scratch"
        )
    layers, heads, width = _GPT2[config.init_from]
    context = min(config.block_size, 1024)
    shaped = replace(
        config, n_layer=layers, n_head=heads, n_embd=width, block_size=context, bias=True, arch="gpt2",
        tie_embeddings=True,
    )  # fmt: skip
    return shaped, 50257


def _has_kernels(config: TrainConfig, target: Target) -> bool:
    if target.device_type != "cuda" or config.kernels == "plain" or config.compile == "on":
        return False
    too_old = (
        target.card is not None and target.card.capability is not None and target.card.capability < (7, 0)
    )
    worth = config.kernels == "triton" or config.fp8 or costs.kernels_pay(config.max_iters, config.n_layer)
    return worth and not too_old and not config.eval_only


def _is_compiled(config: TrainConfig, target: Target, work: Work, batch: BatchPlan, per_token: int) -> bool:
    """As the trainer weighs it; whether a compiler is there, only that machine knows."""
    kind, peak = target.device_type, target.peak(work.dtype)
    if config.compile != "auto" or work.kernels or kind == "mps" or peak is None or config.eval_only:
        return config.compile == "on"
    step_s = costs.eager_step_s(kind, batch.tokens, batch.micro_steps, per_token, config.n_layer, peak)
    saving = config.max_iters * costs.compile_saving_s(kind, step_s)
    return saving > costs.compile_cost_s(kind, config.n_layer)


def _attention(config: TrainConfig, kind: str, dtype: str) -> str:
    if config.attention != "auto":
        return config.attention
    return (
        "manual"
        if kind == "cpu" and dtype == "bfloat16" and config.block_size <= costs.SHORT_FOR_CPU
        else "sdpa"
    )


def _bytes_on_card(text: Text, target: Target) -> int:
    size = 2 * text.train_tokens
    return size if target.device_type == "cuda" and size <= costs.DATA_SHARE * target.memory else 0


def _has_graph(config: TrainConfig, target: Target, work: Work, batch: BatchPlan, per_token: int) -> bool:
    if target.device_type != "cuda" or work.dtype == "float16" or work.compiled or config.graph == "off":
        return False
    if config.eval_only or (config.activation_checkpointing and config.dropout):
        return False
    peak = target.peak(work.dtype) or costs.SOME_CARDS_PEAK
    computing = costs.arithmetic_s("cuda", batch.batch_size * config.block_size, per_token, peak)
    return config.graph == "on" or costs.graph_pays(computing, costs.launch_s("cuda", config.n_layer))
