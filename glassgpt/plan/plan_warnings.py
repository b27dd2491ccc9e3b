"""What is wrong with a plan, each with its fix. A plan without problems says so by having none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glassgpt.config import decay_iters, warmup_iters
from glassgpt.estimate import decide, memory
from glassgpt.estimate.memory import GIB, MemoryEstimate
from glassgpt.files import nearest_existing_folder
from glassgpt.format import format_count, format_duration
from glassgpt.plan.dataset_size import DatasetInfo
from glassgpt.plan.ddp_or_fsdp import ParallelismComparison, ParallelismOption
from glassgpt.plan.fitting import changes_as_flags, fitting_flags, memory_fixes, split_into_micro_batches
from glassgpt.plan.loss_forecast import TrainingEstimate, expected_loss_curve
from glassgpt.plan.run_spec import RunSpec
from glassgpt.plan.target import PlanTarget
from glassgpt.plan.time_and_cost import TimeEstimate, forecast_spec


@dataclass(frozen=True)
class PlanProblem:
    """`kind`: "error" if the run cannot be as it is, "warning" if it will disappoint, else "hint"."""

    kind: str
    what: str
    fix: str


_MAX_EVAL_SHARE = 0.05  # of a run, spent evaluating …
_MIN_NOTED_EVAL_S = 5.0  # … and as long as that
_LATE_FIRST_CHECKPOINT_S = 1800  # for a first checkpoint
_MIN_TOKENS_PER_PARAMETER = 5  # per parameter
_MIN_MICRO_BATCH_TOKENS = 8192  # tokens of a micro-batch


def find_plan_problems(
    decided: RunSpec,
    target: PlanTarget,
    text: DatasetInfo,
    needs: MemoryEstimate,
    times: TimeEstimate | None,
    prospect: TrainingEstimate,
    ways: ParallelismComparison | None = None,
) -> list[PlanProblem]:
    found = [
        *_memory_problems(decided, target, text, needs),
        *_device_problems(decided, target),
        *refused_setting_problems(decided, target),
        *_cluster_problems(decided, target, ways),
    ]
    if not decided.config.eval_only:
        found += _disk_problems(target, prospect, Path(decided.config.out_dir or "runs"))
        found += [*_schedule_problems(decided), *_data_problems(decided, target, text, prospect)]
        if times is not None:
            found += _time_problems(decided, target, text, times, prospect)
    order = ("error", "warning", "hint")
    return sorted(found, key=lambda problem: order.index(problem.kind))


def _memory_problems(
    decided: RunSpec, target: PlanTarget, text: DatasetInfo, needs: MemoryEstimate
) -> Iterator[PlanProblem]:
    if decided.config.eval_only:
        yield from _eval_only_memory_problems(target, needs)
    elif needs.total_bytes > target.max_bytes:
        yield _too_much(decided, target, needs)
    elif needs.total_bytes > target.comfortable_bytes:
        yield _too_tight(decided, target, text, needs)
    elif target.device_type == "cuda" and decided.workload.micro_batch_tokens < _MIN_MICRO_BATCH_TOKENS:
        yield from _small_batch_problems(decided, target, text)


def _too_much(decided: RunSpec, target: PlanTarget, needs: MemoryEstimate) -> PlanProblem:
    size, pieces = decided.batch.batch_size, split_into_micro_batches(decided, target)
    assert pieces is not None, "who plans has refused what fits in no pieces"
    return PlanProblem(
        "error",
        f"{size} sequences at a time need {needs.total_bytes / GIB:.1f} GiB, and a run may take "
        f"{target.max_bytes / GIB:.1f} of {target.name}'s {target.memory_bytes / GIB:.1f}",
        f"{changes_as_flags(pieces)} is the same run in less memory",
    )


def _too_tight(decided: RunSpec, target: PlanTarget, text: DatasetInfo, needs: MemoryEstimate) -> PlanProblem:
    pieces = split_into_micro_batches(decided, target)  # None: only the whole update at once fits
    less = fitting_flags(decided, pieces, target, text, target.comfortable_bytes) if pieces else ""
    less = (
        less
        or ", or ".join(memory_fixes(decided, target, text, target.comfortable_bytes))
        or "a smaller model"
    )
    return PlanProblem(
        "warning",
        f"{needs.total_bytes / GIB:.1f} of {target.memory_bytes / GIB:.1f} GiB: it fits while nothing else uses "
        "the card, not even a desktop",
        f"{less} leaves room",
    )


def _small_batch_problems(decided: RunSpec, target: PlanTarget, text: DatasetInfo) -> Iterator[PlanProblem]:
    """A hint if larger ones fit, and make a difference."""
    pieces = split_into_micro_batches(decided, target)
    if pieces is None or pieces["batch_size"] < 2 * decided.batch.batch_size:
        return
    if roomy := fitting_flags(decided, pieces, target, text, target.comfortable_bytes):
        yield PlanProblem(
            "hint",
            f"micro-batches of {decided.workload.micro_batch_tokens:,} tokens keep no GPU busy; there is room",
            f"{roomy} is the same run, faster; `glass tune` measures it",
        )


def _eval_only_memory_problems(target: PlanTarget, needs: MemoryEstimate) -> Iterator[PlanProblem]:
    """How many sequences an update would take has no say in it."""
    if needs.total_bytes > target.max_bytes:
        yield PlanProblem(
            "error",
            f"the model and its evaluation need {needs.total_bytes / GIB:.1f} GiB, and a run may take "
            f"{target.max_bytes / GIB:.1f} of {target.name}'s {target.memory_bytes / GIB:.1f}",
            "a smaller model, or more memory" + ("" if target.device_type == "cpu" else "; or --device=cpu"),
        )


def _device_problems(decided: RunSpec, target: PlanTarget) -> Iterator[PlanProblem]:
    device = decided.config.device
    if device != "auto" and device.partition(":")[0] != target.device_type:
        what = f"--device={device} is not {target.name}: the run will not be as planned here"
        yield PlanProblem("warning", what, "--device=auto")
    if target.busy_cores:
        yield busy_machine_problem(target)


def busy_machine_problem(target: PlanTarget) -> PlanProblem:
    what = f"other programs keep {target.busy_cores:.1f} cores busy: speed and time are measured beside them"
    return PlanProblem("warning", what, "plan again when the machine is quiet")


def refused_setting_problems(decided: RunSpec, target: PlanTarget) -> Iterator[PlanProblem]:
    """What the trainer would refuse on that machine."""
    config, work, on = decided.config, decided.workload, target.traits
    if config.fp8 and not decide.has_float8(on):
        yield PlanProblem("error", f"{target.name} has no 8-bit floats", "leave --fp8 out")
    elif config.fp8:
        for problem in decide.float8_problems(config, on, work.dtype, work.kernels, work.micro_batch_tokens):
            yield PlanProblem("error", problem, "leave --fp8 out")
    if work.is_sharded and work.dtype == "float16":
        what = f"--shard=True does not go with float16 and its loss scaler, and {target.name} has no bfloat16"
        yield PlanProblem("error", what, "--dtype=float32, or leave --shard out")
    for name, why in decide.refused_settings(config, on).items():
        asked = f"--{name}={getattr(config, name)}"
        what = (
            f"{asked} is for CUDA cards"
            if on.device_type != "cuda"
            else f"{asked} is not possible there: {why}"
        )
        yield PlanProblem("error", what, f"--{name}=auto")


def _schedule_problems(decided: RunSpec) -> Iterator[PlanProblem]:
    config = decided.config
    warmup, end = warmup_iters(config), decay_iters(config)
    if not config.decay_lr:
        return
    if warmup >= config.max_iters:
        yield PlanProblem(
            "warning",
            f"the warm-up of {warmup:,} updates does not end within --max_iters={config.max_iters:,}",
            f"--warmup_iters={config.max_iters // 20}",
        )
    elif warmup > config.max_iters / 3:
        yield PlanProblem(
            "hint",
            f"the warm-up takes {warmup / config.max_iters:.0%} of the run",
            f"--warmup_iters={config.max_iters // 20}",
        )
    if end > 1.1 * config.max_iters:
        yield PlanProblem(
            "warning",
            f"the learning rate falls until update {end:,}, and the run ends at {config.max_iters:,}",
            f"--lr_decay_iters={config.max_iters}: the last part of the fall is where the loss falls too",
        )
    elif end < 0.7 * config.max_iters:
        yield PlanProblem(
            "warning",
            f"the learning rate is at its lowest from update {end:,} on, of {config.max_iters:,}",
            f"--lr_decay_iters={config.max_iters}",
        )


def _data_problems(
    decided: RunSpec, target: PlanTarget, text: DatasetInfo, prospect: TrainingEstimate
) -> Iterator[PlanProblem]:
    config = decided.config
    if text.train_tokens <= config.block_size:
        yield PlanProblem(
            "error",
            f"the text has {text.train_tokens:,} tokens, no more than --block_size={config.block_size}",
            "prepare more text, or lower --block_size",
        )
    if prospect.overfits_at is not None and prospect.overfits_at < 0.9 * config.max_iters:
        shorter = _changes_to_stop_before_overfitting(decided, text, prospect.overfits_at)
        # Our kernels may not pay then, and PyTorch's take more memory.
        ways = (shorter, shorter | {"kernels": "triton"})
        tried = (fitting_flags(decided, changes, target, text, target.max_bytes) for changes in ways)
        fitting = next((f"{way}, " for way in tried if way), "")
        yield PlanProblem(
            "warning",
            f"it will probably begin to overfit near update {prospect.overfits_at:,}, after "
            f"{prospect.overfits_at * decided.batch.tokens / text.train_tokens:.1f} times through the text",
            f"{fitting}more --dropout, or --patience=3; the best one is kept",
        )
    from_nothing = config.init_from == "scratch" and text.tokenizer not in ("char", "byte")
    if prospect.tokens_per_parameter < _MIN_TOKENS_PER_PARAMETER and from_nothing:
        yield PlanProblem(
            "hint",
            f"{format_count(decided.total_tokens)} tokens are {prospect.tokens_per_parameter:.1f} per parameter; "
            "with fewer than about 20, a smaller model is better for the same arithmetic",
            "a smaller model, or more updates",
        )


def _changes_to_stop_before_overfitting(
    decided: RunSpec, text: DatasetInfo, overfits_at: int
) -> dict[str, Any]:
    """So many updates that it does not overfit, with the schedule that goes with them."""
    config, at = decided.config, overfits_at
    while True:
        changes: dict[str, Any] = {"max_iters": at}
        shorter = replace(config, max_iters=at)
        if config.decay_lr and decay_iters(shorter) > at:
            changes["lr_decay_iters"] = at
        if config.decay_lr and warmup_iters(shorter) > at / 3:
            changes["warmup_iters"] = at // 20
        shorter = replace(config, **changes)
        ahead = expected_loss_curve(
            shorter, decided.workload.vocab_size, decided.batch.tokens, text
        ).overfits_at
        if ahead is None or ahead >= at:
            return changes
        at = ahead


_MAX_WAITING_SHARE = 0.25  # of an update


def _cluster_problems(
    decided: RunSpec, target: PlanTarget, ways: ParallelismComparison | None
) -> Iterator[PlanProblem]:
    """Of cards that train together, or should."""
    shard = decided.config.shard
    if ways is None:
        if shard:
            what = "--shard=True spreads a model over several cards, and there is one"
            yield PlanProblem("hint", what, "--gpus says how many; or leave --shard out")
        return
    own, other = (ways.fsdp, ways.ddp) if shard else (ways.ddp, ways.fsdp)
    if ways.advised is other:
        yield PlanProblem("hint", f"{other.name}: {ways.reason}", other.setting)
    if shard and own.micro_steps > 1 and _one_pass_fits(decided, target):
        size = own.batch_size * own.micro_steps
        yield PlanProblem(
            "hint",
            f"all {size} sequences of a card fit in one pass, which gathers the weights once, not "
            f"{own.micro_steps} times",
            f"--batch_size={size} --gradient_accumulation_steps={decided.workload.ranks}",
        )
    if own.computing_s is not None and own.waiting_s is not None:
        share = own.waiting_s / (own.waiting_s + own.computing_s)
        if share > _MAX_WAITING_SHARE:
            what = f"cards wait {share:.0%} of an update for each other"
            yield PlanProblem("warning", what, _less_waiting(own))


def _one_pass_fits(decided: RunSpec, target: PlanTarget) -> bool:
    """Whether a card can do its part of an update at once; then sharded gradients need not add up whole."""
    work = decided.workload
    at_once = replace(
        work, batch_size=work.batch_size * work.micro_steps, micro_steps=1, has_checkpoint_copy=False
    )
    return memory.estimate_memory(at_once).total_bytes <= target.comfortable_bytes


def _less_waiting(way: ParallelismOption) -> str:
    if way.shard and way.micro_steps > 1:
        return (
            "each micro-batch gathers all weights anew: fewer and larger ones, for which "
            "--activation_checkpointing=True makes room"
        )
    return (
        "more --batch_tokens, so that they exchange less often; or fewer cards, or a faster way between them"
    )


def _disk_problems(target: PlanTarget, prospect: TrainingEstimate, place: Path) -> Iterator[PlanProblem]:
    """A card that was named may be in another machine, with another disk."""
    free = shutil.disk_usage(nearest_existing_folder(place)).free
    if prospect.disk_bytes > free:
        disk = "the disk" if target.is_local else "this machine's disk"
        yield PlanProblem(
            "error" if target.is_local else "hint",
            f"checkpoints take up to {prospect.disk_bytes / GIB:.1f} GiB, and {disk} has {free / GIB:.1f}",
            "--out_dir on another disk, or fewer --keep_checkpoints",
        )


def _time_problems(
    decided: RunSpec, target: PlanTarget, text: DatasetInfo, times: TimeEstimate, prospect: TrainingEstimate
) -> Iterator[PlanProblem]:
    config = decided.config
    if times.evaluation_share > _MAX_EVAL_SHARE and times.evaluation_s > _MIN_NOTED_EVAL_S:
        yield PlanProblem(
            "warning",
            f"evaluating takes {times.evaluation_share:.0%} of the run",
            _reduce_evaluation_advice(decided, target, text),
        )
    first_s = prospect.first_checkpoint * times.updates_s[1] / config.max_iters
    every = max(1, round(_LATE_FIRST_CHECKPOINT_S / 3 * config.max_iters / times.updates_s[1]))
    if first_s > _LATE_FIRST_CHECKPOINT_S and every < prospect.first_checkpoint:
        yield PlanProblem(
            "hint",
            f"the first checkpoint comes after {format_duration(first_s)}",
            f"--checkpoint_interval={every} saves every "
            f"{format_duration(every * first_s / prospect.first_checkpoint)}",
        )


def _reduce_evaluation_advice(decided: RunSpec, target: PlanTarget, text: DatasetInfo) -> str:
    """Less often, if that is enough, or on less text; else it is what is done once, at the end."""

    def is_felt(**changes: int | None) -> bool:
        config = replace(decided.config, **changes)  # type: ignore[arg-type]
        less = replace(decided, config=config, workload=replace(decided.workload, config=config))
        ahead = forecast_spec(less, target, text)
        return (ahead.evaluation_s or 0) > _MAX_EVAL_SHARE * (ahead.total_s or (0, 0, 0))[1]

    interval, last = decided.config.eval_interval, decided.config.max_iters
    while interval < last:
        interval = min(2 * interval, last)
        if not is_felt(eval_interval=interval):
            return f"--eval_interval={interval}, or fewer --eval_tokens"
    if is_felt(eval_interval=last, eval_iters=None, eval_tokens=1, closing_eval=False):
        return "fewer --sample_tokens"
    if is_felt(eval_interval=last, eval_iters=None, eval_tokens=1):
        return "fewer --eval_tokens, with --closing_eval=False"
    return "fewer --eval_tokens"
