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
from glassgpt.i18n import translate
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


_MIN_NOTED_BUSY_FACTOR = 1.2  # by which a run may be faster or slower than its probe
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
    """All problems, errors first."""
    device = spec.config.device
    problems = [*_memory_problems(spec, target, dataset, memory_estimate)]
    if device != "auto" and device.partition(":")[0] != target.device_type:
        what = translate("plan.problem.other_device", device=device, target=target.name)
        problems.append(PlanProblem("warning", what, "--device=auto"))
    problems += busy_machine_problems(target)
    problems += [*refused_setting_problems(spec, target), *_cluster_problems(spec, target, parallelism)]
    if not spec.config.eval_only:
        free_bytes = shutil.disk_usage(nearest_existing_folder(Path(spec.config.out_dir or "runs"))).free
        if training.disk_bytes > free_bytes:
            sizes = {"needed": training.disk_bytes / GIB, "free": free_bytes / GIB}
            fix = translate("plan.fix.disk")
            if target.is_local:
                problems.append(PlanProblem("error", translate("plan.problem.disk", **sizes), fix))
            else:  # the card that was named may be in another machine, with another disk
                what = translate("plan.problem.disk.this_machine", **sizes)
                problems.append(PlanProblem("hint", what, fix))
        problems += [*_schedule_problems(spec), *_data_problems(spec, target, dataset, training)]
        if times is not None:
            problems += _time_problems(spec, target, dataset, times, training)
    order = ("error", "warning", "hint")
    return sorted(problems, key=lambda problem: order.index(problem.kind))


def busy_machine_problems(target: PlanTarget) -> Iterator[PlanProblem]:
    """A probe measures beside the other programs; without one, the times are those of an idle machine."""
    probe = target.probe
    if probe is None or not probe.ran:
        if target.busy_cores:
            what = translate("plan.problem.busy", load=target.busy_cores, slowdown=1 / target.fair_share)
            yield PlanProblem("warning", what, translate("plan.fix.busy"))
        return
    # If it had more of the CPU than its share by the load of the last minute, a run will probably not.
    slowdown = max(1.0, 1 / (target.fair_share * probe.idle_speedup))
    if max(probe.idle_speedup, slowdown) >= _MIN_NOTED_BUSY_FACTOR and target.device_type == "cpu":
        factors = {"speedup": probe.idle_speedup, "slowdown": slowdown}
        what = translate(
            "plan.problem.busy.probed", cores=probe.busy_cores, load=target.busy_cores, **factors
        )
        yield PlanProblem("warning", what, translate("plan.fix.busy.probed"))


def _memory_problems(
    spec: RunSpec, target: PlanTarget, dataset: DatasetInfo, memory_estimate: MemoryEstimate
) -> Iterator[PlanProblem]:
    sizes = {
        "total": f"{memory_estimate.total_bytes / GIB:.1f}",
        "usable": f"{target.out_of_memory_limit / GIB:.1f}",
        "target": target.name,
        "memory": f"{target.memory_bytes / GIB:.1f}",
    }
    fits = memory_estimate.total_bytes <= target.out_of_memory_limit
    if spec.config.eval_only:  # its memory does not depend on the batch of an update
        if not fits:
            what, fix = translate("plan.problem.eval_memory", **sizes), translate("plan.fix.more_memory")
            if target.device_type != "cpu":
                fix = translate("plan.fix.more_memory_or_cpu")
            yield PlanProblem("error", what, fix)
        return
    if target.probe is not None and target.probe.outcome == "out of memory":
        what = translate("plan.problem.probe_memory", probe=target.probe.describe())
        yield PlanProblem("error", what, _smaller_than_probed(spec))
        return
    is_tight = memory_estimate.total_bytes > target.automatic_limit
    is_small = target.device_type == "cuda" and spec.workload.micro_batch_tokens < _MIN_MICRO_BATCH_TOKENS
    if not is_tight and not is_small:
        return
    micro_batches = split_into_micro_batches(spec, target)  # None: only all sequences at once fit
    if not fits:
        assert micro_batches is not None, "make_plan refuses a run of which not one sequence fits"
        what = translate("plan.problem.memory", sequences=spec.batch.batch_size, **sizes)
        fix = translate("plan.fix.less_memory", flags=changes_as_flags(micro_batches))
        if fitting_flags(spec, micro_batches, target, dataset, target.out_of_memory_limit) is None:
            # Micro-batches alone do not help: evaluation, or what does not depend on them, takes the memory.
            others = ", or ".join(memory_fixes(spec, target, dataset, target.out_of_memory_limit))
            fix = (
                translate("plan.fix.leaves_memory", flags=others)
                if others
                else translate("plan.fix.more_memory")
            )
        yield PlanProblem("error", what, fix)
    elif is_tight:
        limit = target.automatic_limit
        flags = fitting_flags(spec, micro_batches, target, dataset, limit) if micro_batches else None
        flags = flags or ", or ".join(memory_fixes(spec, target, dataset, limit))
        flags = flags or translate("plan.fix.smaller_model")
        what = translate("plan.problem.tight_memory", **sizes)
        yield PlanProblem("warning", what, translate("plan.fix.leaves_memory", flags=flags))
    elif micro_batches is not None and micro_batches["batch_size"] >= 2 * spec.batch.batch_size:
        flags = fitting_flags(spec, micro_batches, target, dataset, target.automatic_limit)
        tokens = spec.workload.micro_batch_tokens
        what = translate("plan.problem.small_batches", tokens=tokens)
        if flags is not None:
            yield PlanProblem("hint", what, translate("plan.fix.faster", flags=flags))


def _smaller_than_probed(spec: RunSpec) -> str:
    """The same update in micro-batches of at most half the size: what was estimated to fit did not."""
    batch, ranks = spec.batch, spec.workload.ranks
    if batch.batch_size == 1:
        return translate("plan.fix.smaller_than_one_sequence")
    size = largest_micro_batch(batch.batch_size // 2, batch.sequences, ranks)
    changes: dict[str, Any] = {"batch_size": size}
    if spec.config.batch_tokens is None:
        changes["gradient_accumulation_steps"] = batch.sequences // size
    return translate("plan.fix.less_memory", flags=changes_as_flags(changes))


def refused_setting_problems(spec: RunSpec, target: PlanTarget) -> Iterator[PlanProblem]:
    """Settings that training would refuse on that machine."""
    config, workload, traits = spec.config, spec.workload, target.traits
    if config.fp8 and not decide.has_float8(traits):
        what = translate("plan.problem.no_fp8", target=target.name)
        yield PlanProblem("error", what, translate("plan.fix.no_fp8"))
    elif config.fp8:
        for problem in decide.float8_problems(workload, traits):
            yield PlanProblem("error", problem, translate("plan.fix.no_fp8"))
    if workload.is_sharded and workload.dtype == "float16":
        what = translate("plan.problem.shard_float16", target=target.name)
        yield PlanProblem("error", what, translate("plan.fix.shard_float16"))
    for name, why in decide.refused_settings(config, traits).items():
        flag = f"--{name}={getattr(config, name)}"
        what = translate("plan.problem.for_cuda", flag=flag)
        if traits.device_type == "cuda":
            what = translate("plan.problem.not_on_card", flag=flag, why=why)
        yield PlanProblem("error", what, f"--{name}=auto")


def _cluster_problems(
    spec: RunSpec, target: PlanTarget, parallelism: ParallelismComparison | None
) -> Iterator[PlanProblem]:
    shard, workload = spec.config.shard, spec.workload
    if parallelism is None:
        if shard:
            what = translate("plan.problem.one_card")
            yield PlanProblem("hint", what, translate("plan.fix.one_card"))
        return
    option, other = parallelism.ddp, parallelism.fsdp
    if shard:
        option, other = other, option
    if parallelism.advised is other:
        yield PlanProblem("hint", f"{other.name}: {parallelism.reason}", other.setting)
    if shard and option.micro_steps > 1:
        rank_sequences = workload.batch_size * workload.micro_steps
        one_pass = replace(workload, batch_size=rank_sequences, micro_steps=1, has_checkpoint_copy=False)
        if memory.estimate_memory(one_pass).total_bytes <= target.automatic_limit:
            sequences = option.batch_size * option.micro_steps
            yield PlanProblem(
                "hint",
                translate("plan.problem.one_pass", sequences=sequences, times=option.micro_steps),
                f"--batch_size={sequences} --gradient_accumulation_steps={workload.ranks}",
            )
    if option.computing_s is None or option.waiting_s is None:
        return
    communication_share = option.waiting_s / (option.waiting_s + option.computing_s)
    if communication_share > _MAX_COMMUNICATION_SHARE:
        fix = translate("plan.fix.communication")
        if shard and option.micro_steps > 1:
            fix = translate("plan.fix.communication.sharded")
        what = translate("plan.problem.communication", share=f"{communication_share:.0%}")
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
            translate("plan.problem.warmup_only", warmup=warmup, max_iters=f"{config.max_iters:,}"),
            f"--warmup_iters={default_warmup_iters(config.max_iters)}",
        )
    elif warmup > config.max_iters / 3:
        yield PlanProblem(
            "hint",
            translate("plan.problem.long_warmup", share=f"{warmup / config.max_iters:.0%}"),
            f"--warmup_iters={default_warmup_iters(config.max_iters)}",
        )
    if decay_end > 1.1 * config.max_iters:
        yield PlanProblem(
            "warning",
            translate("plan.problem.late_decay", decay_end=decay_end, max_iters=config.max_iters),
            translate("plan.fix.late_decay", max_iters=config.max_iters),
        )
    elif decay_end < 0.7 * config.max_iters:
        yield PlanProblem(
            "warning",
            translate("plan.problem.early_decay", decay_end=decay_end, max_iters=config.max_iters),
            f"--lr_decay_iters={config.max_iters}",
        )


def _data_problems(
    spec: RunSpec, target: PlanTarget, dataset: DatasetInfo, training: TrainingEstimate
) -> Iterator[PlanProblem]:
    config = spec.config
    if dataset.train_tokens <= config.block_size:
        yield PlanProblem(
            "error",
            translate("plan.problem.short_text", tokens=dataset.train_tokens, block_size=config.block_size),
            translate("plan.fix.short_text"),
        )
    if training.overfits_at is not None and training.overfits_at < 0.9 * config.max_iters:
        changes = _changes_to_stop_before_overfitting(spec, dataset, training.overfits_at)
        # In a shorter run our Triton kernels may not pay off, and PyTorch's need more memory.
        candidates = (changes, changes | {"kernels": "triton"})
        fitting = (
            fitting_flags(spec, some, target, dataset, target.out_of_memory_limit) for some in candidates
        )
        shorter = next((flags for flags in fitting if flags is not None), "")
        epochs = training.overfits_at * spec.batch.tokens / dataset.train_tokens
        yield PlanProblem(
            "warning",
            translate("plan.problem.overfits", update=training.overfits_at, epochs=epochs),
            translate("plan.fix.overfits_shorter", flags=shorter)
            if shorter
            else translate("plan.fix.overfits"),
        )
    is_pretraining = config.init_from == "scratch" and not dataset.is_character_level
    if training.tokens_per_parameter < _MIN_TOKENS_PER_PARAMETER and is_pretraining:
        yield PlanProblem(
            "hint",
            translate(
                "plan.problem.few_tokens", tokens=spec.total_tokens, ratio=training.tokens_per_parameter
            ),
            translate("plan.fix.few_tokens"),
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
            translate("plan.problem.evaluation", share=f"{times.evaluation_share:.0%}"),
            _reduce_evaluation_advice(spec, target, dataset),
        )
    update_s = times.updates_s[1] / config.max_iters
    first_s = training.first_checkpoint * times.updates_s[1] / config.max_iters
    interval = max(1, round(_LATE_FIRST_CHECKPOINT_S / 3 * config.max_iters / times.updates_s[1]))
    if first_s > _LATE_FIRST_CHECKPOINT_S and interval < training.first_checkpoint:
        yield PlanProblem(
            "hint",
            translate("plan.problem.late_checkpoint", seconds=first_s),
            translate("plan.fix.late_checkpoint", interval=interval, seconds=interval * update_s),
        )


def _reduce_evaluation_advice(spec: RunSpec, target: PlanTarget, dataset: DatasetInfo) -> str:
    """Evaluate less often, if that is enough; else on fewer tokens; else do less at the end of the run."""

    def is_too_much(**changes: int | None) -> bool:
        config = replace(spec.config, **changes)  # type: ignore[arg-type]
        changed = replace(spec, config=config, workload=replace(spec.workload, config=config))
        forecast = forecast_spec(changed, target, dataset).times
        return forecast is not None and forecast.evaluation_s > _MAX_EVAL_SHARE * forecast.total_s[1]

    interval, max_iters = spec.config.eval_interval, spec.config.max_iters
    while interval < max_iters:
        interval = min(2 * interval, max_iters)
        if not is_too_much(eval_interval=interval):
            return translate("plan.fix.evaluate_less_often", interval=interval)
    if is_too_much(eval_interval=max_iters, eval_iters=None, eval_tokens=1, closing_eval=False):
        return translate("plan.fix.shorter_sample")
    if is_too_much(eval_interval=max_iters, eval_iters=None, eval_tokens=1):
        return translate("plan.fix.no_closing_eval")
    return translate("plan.fix.fewer_eval_tokens")
