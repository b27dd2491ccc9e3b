"""What training would choose for a config on the target machine.

    spec = make_run_spec(config, target, dataset)
    spec.workload.dtype, spec.batch.batch_size    # by estimate/decide.py, as a run

Also changes of settings that make a run fit in memory, each verified before it is proposed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from glassgpt.config import TrainConfig
from glassgpt.data.manifest import DatasetInfo
from glassgpt.errors import UserError
from glassgpt.estimate import decide, memory
from glassgpt.estimate.batching import plan_batch
from glassgpt.estimate.decide import RunSpec
from glassgpt.estimate.machine_facts import Origin
from glassgpt.estimate.training_workload import TrainingWorkload
from glassgpt.plan.target import PlanTarget
from glassgpt.validate import find_config_problems

# n_layer, n_head and n_embd of the pretrained models that --init_from names.
GPT2_SHAPES = {
    "gpt2": (12, 12, 768),
    "gpt2-medium": (24, 16, 1024),
    "gpt2-large": (36, 20, 1280),
    "gpt2-xl": (48, 25, 1600),
}
_MIN_PROPOSED_CONTEXT = 64  # block_size: a shorter one is not proposed to save memory

SettingChanges = Mapping[str, Any]


def make_run_spec(config: TrainConfig, target: PlanTarget, dataset: DatasetInfo) -> RunSpec:
    config, origin = _with_pretrained_shape(config)
    # Settings that training refuses on this machine are reported as problems, and planned as auto.
    refused = decide.refused_settings(config, target.traits)
    accepted = replace(config, **dict.fromkeys(refused, "auto"))  # type: ignore[arg-type]
    dtype = decide.choose_dtype(config.dtype, target.traits, config.n_embd)
    spec = decide.decide(accepted, target.facts(str(dtype.value)), dataset, origin)
    return replace(spec, config=config, workload=replace(spec.workload, config=config))


def _with_pretrained_shape(config: TrainConfig) -> tuple[TrainConfig, Origin]:
    """The config with the shape of the pretrained weights, if any."""
    if config.init_from == "scratch":
        return config, Origin()
    if config.init_from not in GPT2_SHAPES:
        raise UserError(
            f"--init_from={config.init_from}: plan the run's own settings instead, "
            "glass plan RUN/config.toml --init_from=scratch"
        )
    n_layer, n_head, n_embd = GPT2_SHAPES[config.init_from]
    shaped = replace(
        config, n_layer=n_layer, n_head=n_head, n_embd=n_embd, block_size=min(config.block_size, 1024),
        bias=True, arch="gpt2", tie_embeddings=True,
    )  # fmt: skip
    return shaped, Origin(vocab_size=50257)


def can_shard(workload: TrainingWorkload) -> bool:
    """Training refuses FSDP with a loss scaler or FP8."""
    return workload.dtype != "float16" and not workload.config.fp8


# --- changes that make a run fit ---


def changes_as_flags(changes: SettingChanges) -> str:
    return " ".join(f"--{name}={value}" for name, value in changes.items())


def split_into_micro_batches(spec: RunSpec, target: PlanTarget) -> SettingChanges | None:
    """The same updates in the largest micro-batches that fit and are useful; None: not one sequence fits."""
    config, ranks = spec.config, spec.workload.ranks
    accumulating = replace(memory.without_optional_memory(spec.workload), micro_steps=2)
    largest = memory.largest_fitting_batch(
        accumulating, target.automatic_limit
    ) or memory.largest_fitting_batch(accumulating, target.out_of_memory_limit)
    if largest is None:
        return None
    free = replace(config, batch_tokens=spec.batch.tokens, batch_size=None, gradient_accumulation_steps=None)
    batch, _ = plan_batch(free, target.device_type, largest, ranks)
    changes = {"batch_size": batch.batch_size, "gradient_accumulation_steps": batch.micro_steps * ranks}
    if config.eval_iters is not None:  # it counts micro-batches
        changes["eval_iters"] = max(1, round(config.eval_iters * spec.batch.batch_size / batch.batch_size))
    return changes


def lighter_settings(workload: TrainingWorkload) -> list[SettingChanges]:
    """What may take less memory, each alone, with the same updates."""
    config = workload.config
    lighter: list[SettingChanges] = []
    if not config.activation_checkpointing:
        lighter.append({"activation_checkpointing": True})
    if not workload.compiled and workload.device_type != "mps" and not config.fp8:
        lighter.append({"compile": "on"})
    if workload.kernels and not config.fp8:
        lighter.append({"kernels": "plain", "compile": "off"})
    if workload.ranks > 1 and not config.shard and can_shard(workload):
        lighter.append({"shard": True})
    return lighter


def memory_fixes(spec: RunSpec, target: PlanTarget, dataset: DatasetInfo, max_bytes: int) -> list[str]:
    """Lines of flags. Each alone makes the run fit in `max_bytes`."""
    config = spec.config
    # Of each list, the first that fits is proposed.
    alternatives = [[changes] for changes in lighter_settings(spec.workload)]
    contexts: list[SettingChanges] = []
    block_size = config.block_size // 2
    while block_size >= _MIN_PROPOSED_CONTEXT:
        contexts.append({"block_size": block_size})
        block_size //= 2
    models: list[SettingChanges] = []
    if config.init_from != "scratch":  # the weights decide n_layer
        models = [{"init_from": name} for name in reversed(GPT2_SHAPES)]
    else:
        n_layer = config.n_layer
        while n_layer > 1:
            n_layer -= max(1, n_layer // 8)
            models.append({"n_layer": n_layer})
    lines = []
    for candidates in (*alternatives, contexts, models):
        fitting = (fitting_flags(spec, changes, target, dataset, max_bytes) for changes in candidates)
        lines.append(next((flags for flags in fitting if flags is not None), None))
    return [line for line in lines if line is not None]


def fitting_flags(
    spec: RunSpec, changes: SettingChanges, target: PlanTarget, dataset: DatasetInfo, max_bytes: int
) -> str | None:
    """The changes as flags, with smaller micro-batches if needed; None: the run does not fit with them."""
    try:
        changed = _spec_with_changes(spec.config, changes, target, dataset)
        if memory.estimate_memory(changed.workload).total_bytes <= max_bytes:
            return changes_as_flags(changes)
        micro_batches = split_into_micro_batches(changed, target)
        if micro_batches is None:
            return None
        changes = {**changes, **micro_batches}
        changed = _spec_with_changes(spec.config, changes, target, dataset)
    except UserError:  # training would refuse them
        return None
    fits = memory.estimate_memory(changed.workload).total_bytes <= max_bytes
    return changes_as_flags(changes) if fits else None


def _spec_with_changes(
    config: TrainConfig, changes: SettingChanges, target: PlanTarget, dataset: DatasetInfo
) -> RunSpec:
    config = replace(config, **changes)
    if problems := find_config_problems(config):
        raise UserError(problems)
    return make_run_spec(config, target, dataset)
