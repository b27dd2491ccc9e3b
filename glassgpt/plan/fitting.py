"""Settings that make a run fit, each tried as the trainer would read it before it is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.estimate import memory
from glassgpt.estimate.batching import plan_batch
from glassgpt.plan.dataset_size import Text
from glassgpt.plan.run_spec import GPT2_SHAPES, Decided, can_shard, decide, without_luxury
from glassgpt.plan.target import Target
from glassgpt.validate import find_problems

Changes = Mapping[str, Any]


def flags(changes: Changes) -> str:
    return " ".join(f"--{name}={value}" for name, value in changes.items())


def in_pieces(decided: Decided, target: Target) -> Changes | None:
    """The same run with as many sequences at a time as there is room for and use; None: not even one fits."""
    config, ranks = decided.config, decided.work.ranks
    work = replace(without_luxury(decided.work), micro_steps=2)  # in pieces, gradients have to add up
    largest = memory.largest_batch(work, target.room) or memory.largest_batch(work, target.limit)
    if largest is None:
        return None
    is_open = replace(
        config, batch_tokens=decided.batch.tokens, batch_size=None, gradient_accumulation_steps=None
    )
    batch, _ = plan_batch(is_open, target.device_type, largest, ranks)
    pieces = {"batch_size": batch.batch_size, "gradient_accumulation_steps": batch.micro_steps * ranks}
    if config.eval_iters is not None:  # they count micro-batches
        pieces["eval_iters"] = max(1, round(config.eval_iters * decided.batch.batch_size / batch.batch_size))
    return pieces


def remedies(decided: Decided, target: Target, text: Text, room: int) -> list[str]:
    """Flags that make it need no more than `room`, each line enough by itself."""

    def first(several: Iterator[Changes]) -> str:
        return next(
            (flags for changes in several if (flags := enough(decided, changes, target, text, room))), ""
        )

    config = decided.config
    lines = [first(iter([changes])) for changes in _kinds(decided)]
    return [line for line in (*lines, first(_shorter(config)), first(_smaller(config))) if line]


def enough(decided: Decided, changes: Changes, target: Target, text: Text, room: int) -> str:
    """These changes as flags, with smaller micro-batches where it takes them; empty: they are not enough."""
    try:
        changed = _decide(decided.config, changes, target, text)
        if memory.needed(changed.work).total <= room:
            return flags(changes)
        pieces = in_pieces(changed, target)
        if pieces is None:
            return ""
        changes = {**changes, **pieces}
        changed = _decide(decided.config, changes, target, text)
    except UserError:  # the trainer would refuse it
        return ""
    return flags(changes) if memory.needed(changed.work).total <= room else ""


def _decide(config: TrainConfig, changes: Changes, target: Target, text: Text) -> Decided:
    config = replace(config, **changes)
    if problems := find_problems(config):
        raise UserError(problems)
    return decide(config, target, text)


def _kinds(decided: Decided) -> Iterator[Changes]:
    """The same model, trained in another way."""
    work = decided.work
    if not work.config.activation_checkpointing:
        yield {"activation_checkpointing": True}
    if not work.compiled and work.device_type != "mps" and not work.config.fp8:
        yield {"compile": "on"}
    if work.kernels and not work.config.fp8:
        yield {"kernels": "plain", "compile": "off"}
    if work.ranks > 1 and not work.config.shard and can_shard(work):
        yield {"shard": True}


_SHORTEST = 64  # tokens of context that are worth a run


def _shorter(config: TrainConfig) -> Iterator[Changes]:
    length = config.block_size // 2
    while length >= _SHORTEST:
        yield {"block_size": length}
        length //= 2


def _smaller(config: TrainConfig) -> Iterator[Changes]:
    """Fewer layers; or, as weights bring theirs along, the largest of GPT-2's."""
    if config.init_from != "scratch":
        yield from ({"init_from": name} for name in reversed(GPT2_SHAPES))
        return
    layers = config.n_layer
    while layers > 1:
        layers -= max(1, layers // 8)
        yield {"n_layer": layers}
