"""Too little memory: runs that cannot fit are refused at the start, others get advice when it runs out."""

from __future__ import annotations

from dataclasses import replace

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError, first_message_line
from glassgpt.estimate.batching import BatchPlan, largest_micro_batch
from glassgpt.estimate.memory import MemoryEstimate, largest_fitting_batch, without_optional_memory
from glassgpt.estimate.memory_limits import process_memory_bytes
from glassgpt.estimate.training_workload import WEIGHT_BYTES, TrainingWorkload
from glassgpt.format import format_bytes, format_count
from glassgpt.i18n import say
from glassgpt.record.finding import finding_record
from glassgpt.record.journal import Record
from glassgpt.record.machine import usable_memory
from glassgpt.training.compute_plan import ComputePlan
from glassgpt.training.train_state import TrainSetup, TrainState

_SMALLER_MODEL_ADVICE = "a smaller model: --n_layer, --n_embd (`glass plan` proposes one)"
# Forecasts of a CPU's memory can be much too high. A run that needs twice the memory does not fit even then.
_MAX_OVERCOMMIT_RATIO = 2.0  # forecast / memory
_PROPOSED_SHARE_OF_USABLE = 0.9  # by the settings that are proposed instead: some memory to spare


def check_memory(config: TrainConfig, compute: ComputePlan, estimate: MemoryEstimate) -> None:
    """Refuses a run that cannot fit by a wide margin, before anything is allocated or compiled."""
    # Weights are created in main memory for every device. Systems promise more memory than they have.
    parameters = compute.spec.parameters
    weight_bytes, main_memory_bytes = WEIGHT_BYTES * parameters, usable_memory()[0]
    if weight_bytes > main_memory_bytes:
        raise UserError(
            f"the model's {format_count(parameters)} parameters take {format_bytes(weight_bytes)}, and there "
            f"are {format_bytes(main_memory_bytes)} of memory here; try {_SMALLER_MODEL_ADVICE}"
        )
    plan, usable_bytes = compute.spec.batch, process_memory_bytes(compute.facts)
    if estimate.total_bytes <= _MAX_OVERCOMMIT_RATIO * usable_bytes:
        return
    workload = compute.spec.workload
    if config.eval_only:
        subject, advice = "this evaluation", _SMALLER_MODEL_ADVICE
    elif batch_size := max_batch_size_in_memory(workload, usable_bytes):
        subject, advice = f"--batch_size={plan.batch_size}", less_memory_advice(config, plan, batch_size)
    else:
        subject, advice = f"this model with --batch_size={plan.batch_size}", _SMALLER_MODEL_ADVICE
        recomputing = replace(workload, config=replace(workload.config, activation_checkpointing=True))
        if batch_size := max_batch_size_in_memory(recomputing, usable_bytes):
            flags = _micro_batch_flags(workload.config, plan, batch_size)
            advice = f"--activation_checkpointing=True {flags}"
    where = "here" if compute.facts.free_bytes is None else "free on the card"
    raise UserError(
        f"{subject} needs about {format_bytes(estimate.total_bytes)} of memory, and there are "
        f"{format_bytes(usable_bytes)} {where}; try {advice}"
    )


def max_batch_size_in_memory(workload: TrainingWorkload, usable_bytes: int) -> int | None:
    """The largest micro-batch, with some memory to spare, if gradients accumulate; None: not even 1 fits."""
    smallest = replace(without_optional_memory(workload), micro_steps=2)
    return largest_fitting_batch(smallest, int(_PROPOSED_SHARE_OF_USABLE * usable_bytes))


def memory_short_finding(run: TrainSetup, state: TrainState) -> Record | None:
    """On a CPU only: a full card raises an error, full main memory ends the run without a message."""
    needed_bytes = state.forecast_check.forecast.memory.total_bytes
    usable_bytes = process_memory_bytes(run.compute_plan.facts)
    if state.forecast_check.forecast.on_card or needed_bytes <= usable_bytes:
        return None
    return finding_record(
        state.progress.iter,
        "memory-short",
        "warning",
        title=say("memory-short.title", needed_bytes=needed_bytes, usable_bytes=usable_bytes),
        evidence=say(
            "memory-short.evidence", sequences=run.batch_plan.batch_size, context=run.config.block_size
        ),
        explanation=say("memory-short.explanation"),
        advice=say("memory-short.advice", settings=_less_memory_advice_for_run(run)),
    )


def _less_memory_advice_for_run(run: TrainSetup) -> str:
    compute = run.compute_plan
    batch_size = max_batch_size_in_memory(compute.spec.workload, process_memory_bytes(compute.facts)) or 1
    return less_memory_advice(run.config, run.batch_plan, batch_size)


def out_of_memory_error(run: TrainSetup, state: TrainState, error: BaseException) -> UserError:
    return UserError(
        f"out of memory at update {state.progress.iter + 1:,} ({first_message_line(error)}): "
        f"try {_less_memory_advice_for_run(run)}"
    )


def startup_out_of_memory_error(error: BaseException) -> UserError:
    return UserError(
        f"out of memory before the first update ({first_message_line(error)}): end what else uses it, "
        f"or try {_SMALLER_MODEL_ADVICE}"
    )


def less_memory_advice(config: TrainConfig, plan: BatchPlan, max_batch_size: int | None = None) -> str:
    """The same run in less memory, if possible. `max_batch_size`: the micro-batch that is forecast to fit."""
    if plan.batch_size > 1:
        half = plan.batch_size // 2
        batch_size = half if max_batch_size is None else min(half, max_batch_size)
        return f"{_micro_batch_flags(config, plan, batch_size)}, which is the same run"
    if not config.activation_checkpointing:
        return "--activation_checkpointing=True, which computes more and keeps less"
    return f"a shorter --block_size, or {_SMALLER_MODEL_ADVICE}"


def _micro_batch_flags(config: TrainConfig, plan: BatchPlan, max_batch_size: int) -> str:
    """Flags for the same update in micro-batches of at most `max_batch_size` sequences."""
    batch_size = largest_micro_batch(min(max_batch_size, plan.batch_size), plan.sequences, plan.ranks)
    steps = f" --gradient_accumulation_steps={plan.sequences // batch_size}"
    return f"--batch_size={batch_size}{'' if config.batch_tokens else steps}"
