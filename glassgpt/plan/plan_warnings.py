"""What is wrong with a planned run, and how to fix it.

find_plan_problems(spec, target, dataset, memory_estimate, times, training, parallelism)
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glassgpt.data.manifest import DatasetInfo
from glassgpt.estimate import decide, memory
from glassgpt.estimate.batching import largest_micro_batch
from glassgpt.estimate.decide import RunSpec
from glassgpt.estimate.loss_law import expected_loss_curve
from glassgpt.estimate.memory import GIB, MemoryEstimate
from glassgpt.files import nearest_existing_folder
from glassgpt.format import format_count, format_duration
from glassgpt.plan.estimates import (
    ParallelismComparison,
    TimeEstimate,
    TrainingEstimate,
    forecast_spec,
)
from glassgpt.plan.planned_spec import (
    changes_as_flags,
    fitting_flags,
    memory_fixes,
    split_into_micro_batches,
)
from glassgpt.plan.target import PlanTarget
from glassgpt.schedule import default_warmup_iters, schedule_of


@dataclass(frozen=True)
class PlanProblem:
    """`kind`: "error" if the run would fail, "warning" if it would be slow or train badly, else "hint"."""

    kind: str
    what: str
    fix: str


_MAX_EVAL_SHARE = 0.05  # of the run, spent on evaluation …
_MIN_NOTED_EVAL_S = 5.0  # … if it takes longer than this
_LATE_FIRST_CHECKPOINT_S = 1800
_MIN_TOKENS_PER_PARAMETER = 5  # with fewer, a smaller model is proposed
_MIN_MICRO_BATCH_TOKENS = 8192  # with fewer, a GPU is not busy
_MAX_COMMUNICATION_SHARE = 0.25  # of an update, that is exposed communication


def find_plan_problems(
    spec: RunSpec,
    target: PlanTarget,
    dataset: DatasetInfo,
    memory_estimate: MemoryEstimate,
    times: TimeEstimate | None,
    training: TrainingEstimate,
    parallelism: ParallelismComparison | None = None,
) -> list[PlanProblem]:
    """Errors first."""
    device = spec.config.device
    problems = [*_memory_problems(spec, target, dataset, memory_estimate)]
    if device != "auto" and device.partition(":")[0] != target.device_type:
        what = f"--device={device} is not {target.name}: the run will not be as planned here"
        problems.append(PlanProblem("warning", what, "--device=auto"))
    if target.busy_cores:
        problems.append(busy_machine_problem(target))
    problems += [*refused_setting_problems(spec, target), *_cluster_problems(spec, target, parallelism)]
    if not spec.config.eval_only:
        free_bytes = shutil.disk_usage(nearest_existing_folder(Path(spec.config.out_dir or "runs"))).free
        if training.disk_bytes > free_bytes:
            # A card that was named may be in another machine, with another disk.
            disk = "the disk" if target.is_local else "this machine's disk"
            problems.append(
                PlanProblem(
                    "error" if target.is_local else "hint",
                    f"checkpoints take up to {training.disk_bytes / GIB:.1f} GiB, and {disk} has "
                    f"{free_bytes / GIB:.1f} free",
                    "--out_dir on another disk, or fewer --keep_checkpoints",
                )
            )
        problems += [*_schedule_problems(spec), *_data_problems(spec, target, dataset, training)]
        if times is not None:
            problems += _time_problems(spec, target, dataset, times, training)
    order = ("error", "warning", "hint")
    return sorted(problems, key=lambda problem: order.index(problem.kind))


def busy_machine_problem(target: PlanTarget) -> PlanProblem:
    what = f"other programs use this CPU (load {target.busy_cores:.1f}), so the speed is less certain"
    return PlanProblem("warning", what, "plan again when the machine is idle")


def _memory_problems(
    spec: RunSpec, target: PlanTarget, dataset: DatasetInfo, memory_estimate: MemoryEstimate
) -> Iterator[PlanProblem]:
    total = f"{memory_estimate.total_bytes / GIB:.1f}"
    available = f"{target.max_bytes / GIB:.1f} of {target.name}'s {target.memory_bytes / GIB:.1f}"
    fits = memory_estimate.total_bytes <= target.max_bytes
    if spec.config.eval_only:  # its memory does not depend on the batch of an update
        if not fits:
            yield PlanProblem(
                "error",
                f"the model and its evaluation need {total} GiB, and a run may take {available}",
                "a smaller model, or more memory"
                + ("" if target.device_type == "cpu" else "; or --device=cpu"),
            )
        return
    if target.probe is not None and target.probe.outcome == "out of memory":
        yield PlanProblem("error", f"it does not fit: {target.probe.describe()}", _smaller_than_probed(spec))
        return
    is_tight = memory_estimate.total_bytes > target.comfortable_bytes
    is_small = target.device_type == "cuda" and spec.workload.micro_batch_tokens < _MIN_MICRO_BATCH_TOKENS
    if not is_tight and not is_small:
        return
    micro_batches = split_into_micro_batches(spec, target)  # None: only all sequences at once fit
    if not fits:
        assert micro_batches is not None, "make_plan refuses a run of which not one sequence fits"
        yield PlanProblem(
            "error",
            f"{spec.batch.batch_size} sequences at a time need {total} GiB, and a run may take {available}",
            f"{changes_as_flags(micro_batches)} is the same run in less memory",
        )
    elif is_tight:
        limit = target.comfortable_bytes
        flags = fitting_flags(spec, micro_batches, target, dataset, limit) if micro_batches else None
        flags = flags or ", or ".join(memory_fixes(spec, target, dataset, limit)) or "a smaller model"
        yield PlanProblem(
            "warning",
            f"{total} of {target.memory_bytes / GIB:.1f} GiB: it fits only if nothing else uses the card, "
            "not even a desktop",
            f"{flags} leaves free memory",
        )
    elif micro_batches is not None and micro_batches["batch_size"] >= 2 * spec.batch.batch_size:
        flags = fitting_flags(spec, micro_batches, target, dataset, target.comfortable_bytes)
        tokens = spec.workload.micro_batch_tokens
        what = f"micro-batches of {tokens:,} tokens are too small to keep a GPU busy; larger ones fit"
        if flags is not None:
            yield PlanProblem("hint", what, f"{flags} is the same run, faster; `glass tune` measures it")


def _smaller_than_probed(spec: RunSpec) -> str:
    """The same update in micro-batches of at most half the size: what was estimated to fit did not."""
    batch, ranks = spec.batch, spec.workload.ranks
    if batch.batch_size == 1:
        return "--activation_checkpointing=True, a shorter --block_size or a smaller model"
    size = largest_micro_batch(batch.batch_size // 2, batch.sequences, ranks)
    changes: dict[str, Any] = {"batch_size": size}
    if spec.config.batch_tokens is None:
        changes["gradient_accumulation_steps"] = batch.sequences // size
    return f"{changes_as_flags(changes)} is the same run in less memory"


def refused_setting_problems(spec: RunSpec, target: PlanTarget) -> Iterator[PlanProblem]:
    """Settings that training would refuse on that machine."""
    config, workload, traits = spec.config, spec.workload, target.traits
    if config.fp8 and not decide.has_float8(traits):
        yield PlanProblem("error", f"{target.name} has no FP8", "leave --fp8 out")
    elif config.fp8:
        for problem in decide.float8_problems(workload, traits):
            yield PlanProblem("error", problem, "leave --fp8 out")
    if workload.is_sharded and workload.dtype == "float16":
        what = (
            f"--shard=True does not work with float16 and its loss scaler, and {target.name} has no bfloat16"
        )
        yield PlanProblem("error", what, "--dtype=float32, or leave --shard out")
    for name, why in decide.refused_settings(config, traits).items():
        flag = f"--{name}={getattr(config, name)}"
        is_cuda = traits.device_type == "cuda"
        what = f"{flag} is not possible on this card: {why}" if is_cuda else f"{flag} is for CUDA cards"
        yield PlanProblem("error", what, f"--{name}=auto")


def _cluster_problems(
    spec: RunSpec, target: PlanTarget, parallelism: ParallelismComparison | None
) -> Iterator[PlanProblem]:
    shard, workload = spec.config.shard, spec.workload
    if parallelism is None:
        if shard:
            what = "--shard=True spreads a model over several cards, and there is one"
            yield PlanProblem("hint", what, "--gpus says how many; or leave --shard out")
        return
    option, other = parallelism.ddp, parallelism.fsdp
    if shard:
        option, other = other, option
    if parallelism.advised is other:
        yield PlanProblem("hint", f"{other.name}: {parallelism.reason}", other.setting)
    if shard and option.micro_steps > 1:
        rank_sequences = workload.batch_size * workload.micro_steps
        one_pass = replace(workload, batch_size=rank_sequences, micro_steps=1, has_checkpoint_copy=False)
        if memory.estimate_memory(one_pass).total_bytes <= target.comfortable_bytes:
            sequences = option.batch_size * option.micro_steps
            yield PlanProblem(
                "hint",
                f"all {sequences} sequences of a card fit in one pass, which all-gathers the weights once, "
                f"not {option.micro_steps} times",
                f"--batch_size={sequences} --gradient_accumulation_steps={workload.ranks}",
            )
    if option.computing_s is None or option.waiting_s is None:
        return
    communication_share = option.waiting_s / (option.waiting_s + option.computing_s)
    if communication_share > _MAX_COMMUNICATION_SHARE:
        fix = (
            "more --batch_tokens, so that gradients are all-reduced less often; or fewer cards, or a faster "
            "network between them"
        )
        if shard and option.micro_steps > 1:
            fix = (
                "each micro-batch all-gathers all weights again: use fewer and larger ones; "
                "--activation_checkpointing=True saves the memory for them"
            )
        what = (
            f"communication that does not overlap with compute takes {communication_share:.0%} of an update"
        )
        yield PlanProblem("warning", what, fix)


def _schedule_problems(spec: RunSpec) -> Iterator[PlanProblem]:
    config = spec.config
    schedule = schedule_of(config)
    warmup, decay_end = schedule.warmup_iters, schedule.decay_iters
    if not config.decay_lr:
        return
    if warmup >= config.max_iters:
        yield PlanProblem(
            "warning",
            f"the warm-up of {warmup:,} updates does not end within --max_iters={config.max_iters:,}",
            f"--warmup_iters={default_warmup_iters(config.max_iters)}",
        )
    elif warmup > config.max_iters / 3:
        yield PlanProblem(
            "hint",
            f"the warm-up takes {warmup / config.max_iters:.0%} of the run",
            f"--warmup_iters={default_warmup_iters(config.max_iters)}",
        )
    if decay_end > 1.1 * config.max_iters:
        yield PlanProblem(
            "warning",
            f"the learning rate decays until update {decay_end:,}, and the run ends at {config.max_iters:,}",
            f"--lr_decay_iters={config.max_iters}: the last part of the decay lowers the loss too",
        )
    elif decay_end < 0.7 * config.max_iters:
        yield PlanProblem(
            "warning",
            f"the learning rate reaches its minimum at update {decay_end:,} of {config.max_iters:,}",
            f"--lr_decay_iters={config.max_iters}",
        )


def _data_problems(
    spec: RunSpec, target: PlanTarget, dataset: DatasetInfo, training: TrainingEstimate
) -> Iterator[PlanProblem]:
    config = spec.config
    if dataset.train_tokens <= config.block_size:
        yield PlanProblem(
            "error",
            f"the training split has {dataset.train_tokens:,} tokens, no more than "
            f"--block_size={config.block_size}",
            "prepare more text, or lower --block_size",
        )
    if training.overfits_at is not None and training.overfits_at < 0.9 * config.max_iters:
        changes = _changes_to_stop_before_overfitting(spec, dataset, training.overfits_at)
        # In a shorter run our Triton kernels may not pay off, and PyTorch's need more memory.
        candidates = (changes, changes | {"kernels": "triton"})
        fitting = (fitting_flags(spec, some, target, dataset, target.max_bytes) for some in candidates)
        shorter = next((f"{flags}, " for flags in fitting if flags is not None), "")
        epochs = training.overfits_at * spec.batch.tokens / dataset.train_tokens
        yield PlanProblem(
            "warning",
            f"it will probably begin to overfit near update {training.overfits_at:,}, after {epochs:.1f} "
            "epochs",
            f"{shorter}more --dropout, or --patience=3; the best checkpoint is kept",
        )
    is_pretraining = config.init_from == "scratch" and dataset.tokenizer not in ("char", "byte")
    if training.tokens_per_parameter < _MIN_TOKENS_PER_PARAMETER and is_pretraining:
        yield PlanProblem(
            "hint",
            f"{format_count(spec.total_tokens)} tokens are {training.tokens_per_parameter:.1f} per "
            "parameter; with fewer than about 20, a smaller model is better for the same FLOPs",
            "a smaller model, or more updates",
        )


def _changes_to_stop_before_overfitting(
    spec: RunSpec, dataset: DatasetInfo, overfits_at: int
) -> dict[str, Any]:
    """Fewer updates, and a schedule for them. A shorter run may overfit earlier, so this is repeated."""
    config, max_iters = spec.config, overfits_at
    while True:
        changes: dict[str, Any] = {"max_iters": max_iters}
        shorter = replace(config, max_iters=max_iters)
        if config.decay_lr and schedule_of(shorter).decay_iters > max_iters:
            changes["lr_decay_iters"] = max_iters
        if config.decay_lr and schedule_of(shorter).warmup_iters > max_iters / 3:
            changes["warmup_iters"] = default_warmup_iters(max_iters)
        shorter = replace(config, **changes)
        curve = expected_loss_curve(shorter, spec.workload.vocab_size, spec.batch.tokens, dataset)
        if curve.overfits_at is None or curve.overfits_at >= max_iters:
            return changes
        max_iters = curve.overfits_at


def _time_problems(
    spec: RunSpec, target: PlanTarget, dataset: DatasetInfo, times: TimeEstimate, training: TrainingEstimate
) -> Iterator[PlanProblem]:
    config = spec.config
    if times.evaluation_share > _MAX_EVAL_SHARE and times.evaluation_s > _MIN_NOTED_EVAL_S:
        yield PlanProblem(
            "warning",
            f"evaluation takes {times.evaluation_share:.0%} of the run",
            _reduce_evaluation_advice(spec, target, dataset),
        )
    update_s = times.updates_s[1] / config.max_iters
    first_s = training.first_checkpoint * times.updates_s[1] / config.max_iters
    interval = max(1, round(_LATE_FIRST_CHECKPOINT_S / 3 * config.max_iters / times.updates_s[1]))
    if first_s > _LATE_FIRST_CHECKPOINT_S and interval < training.first_checkpoint:
        yield PlanProblem(
            "hint",
            f"the first checkpoint comes after {format_duration(first_s)}",
            f"--checkpoint_interval={interval} saves every {format_duration(interval * update_s)}",
        )


def _reduce_evaluation_advice(spec: RunSpec, target: PlanTarget, dataset: DatasetInfo) -> str:
    """Evaluate less often, if that is enough; else on fewer tokens; else do less at the end of the run."""

    def is_too_much(**changes: int | None) -> bool:
        config = replace(spec.config, **changes)  # type: ignore[arg-type]
        changed = replace(spec, config=config, workload=replace(spec.workload, config=config))
        forecast = forecast_spec(changed, target, dataset)
        return (forecast.evaluation_s or 0) > _MAX_EVAL_SHARE * (forecast.total_s or (0, 0, 0))[1]

    interval, max_iters = spec.config.eval_interval, spec.config.max_iters
    while interval < max_iters:
        interval = min(2 * interval, max_iters)
        if not is_too_much(eval_interval=interval):
            return f"--eval_interval={interval}, or fewer --eval_tokens"
    if is_too_much(eval_interval=max_iters, eval_iters=None, eval_tokens=1, closing_eval=False):
        return "fewer --sample_tokens"
    if is_too_much(eval_interval=max_iters, eval_iters=None, eval_tokens=1):
        return "fewer --eval_tokens, with --closing_eval=False"
    return "fewer --eval_tokens"
