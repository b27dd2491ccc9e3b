"""Settings that make a run fit, each tried as the trainer would read it before it is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.estimate import memory
from glassgpt.estimate.batching import plan_batch
from glassgpt.plan.dataset_size import DatasetInfo
from glassgpt.plan.run_spec import GPT2_SHAPES, RunSpec, can_shard, decide, without_optional_memory
from glassgpt.plan.target import PlanTarget
from glassgpt.validate import find_config_problems

SettingChanges = Mapping[str, Any]


def changes_as_flags(changes: SettingChanges) -> str:
    return " ".join(f"--{name}={value}" for name, value in changes.items())


def split_into_micro_batches(decided: RunSpec, target: PlanTarget) -> SettingChanges | None:
    """The same run with as many sequences at a time as there is room for and use; None: not even one fits."""
    config, ranks = decided.config, decided.workload.ranks
    work = replace(
        without_optional_memory(decided.workload), micro_steps=2
    )  # in pieces, gradients have to add up
    largest = memory.largest_fitting_batch(work, target.comfortable_bytes) or memory.largest_fitting_batch(
        work, target.max_bytes
    )
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


def memory_fixes(decided: RunSpec, target: PlanTarget, text: DatasetInfo, room: int) -> list[str]:
    """Flags that make it need no more than `room`, each line enough by itself."""

    def first(several: Iterator[SettingChanges]) -> str:
        return next(
            (flags for changes in several if (flags := fitting_flags(decided, changes, target, text, room))),
            "",
        )

    config = decided.config
    lines = [first(iter([changes])) for changes in _kinds(decided)]
    return [line for line in (*lines, first(_shorter(config)), first(_smaller(config))) if line]


def fitting_flags(
    decided: RunSpec, changes: SettingChanges, target: PlanTarget, text: DatasetInfo, room: int
) -> str:
    """These changes as flags, with smaller micro-batches where it takes them; empty: they are not enough."""
    try:
        changed = _decide_with_changes(decided.config, changes, target, text)
        if memory.estimate_memory(changed.workload).total_bytes <= room:
            return changes_as_flags(changes)
        pieces = split_into_micro_batches(changed, target)
        if pieces is None:
            return ""
        changes = {**changes, **pieces}
        changed = _decide_with_changes(decided.config, changes, target, text)
    except UserError:  # the trainer would refuse it
        return ""
    return changes_as_flags(changes) if memory.estimate_memory(changed.workload).total_bytes <= room else ""


def _decide_with_changes(
    config: TrainConfig, changes: SettingChanges, target: PlanTarget, text: DatasetInfo
) -> RunSpec:
    config = replace(config, **changes)
    if problems := find_config_problems(config):
        raise UserError(problems)
    return decide(config, target, text)


def _kinds(decided: RunSpec) -> Iterator[SettingChanges]:
    """The same model, trained in another way."""
    work = decided.workload
    if not work.config.activation_checkpointing:
        yield {"activation_checkpointing": True}
    if not work.compiled and work.device_type != "mps" and not work.config.fp8:
        yield {"compile": "on"}
    if work.kernels and not work.config.fp8:
        yield {"kernels": "plain", "compile": "off"}
    if work.ranks > 1 and not work.config.shard and can_shard(work):
        yield {"shard": True}


_MIN_CONTEXT = 64  # tokens of context that are worth a run


def _shorter(config: TrainConfig) -> Iterator[SettingChanges]:
    length = config.block_size // 2
    while length >= _MIN_CONTEXT:
        yield {"block_size": length}
        length //= 2


def _smaller(config: TrainConfig) -> Iterator[SettingChanges]:
    """Fewer layers; or, as weights bring theirs along, the largest of GPT-2's."""
    if config.init_from != "scratch":
        yield from ({"init_from": name} for name in reversed(GPT2_SHAPES))
        return
    layers = config.n_layer
    while layers > 1:
        layers -= max(1, layers // 8)
        yield {"n_layer": layers}
