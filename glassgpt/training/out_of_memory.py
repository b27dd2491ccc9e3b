"""Memory that is not enough: refused or said before work begins, and what to do once it ran out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError, first_message_line
from glassgpt.estimate.batching import BatchPlan, largest_micro_batch
from glassgpt.estimate.flops import model_parameters
from glassgpt.estimate.memory import CONTEXT_BYTES, MemoryEstimate, TrainingWorkload, largest_fitting_batch
from glassgpt.format import format_bytes, format_count
from glassgpt.model.gpt import GPTConfig
from glassgpt.record.finding import finding_record
from glassgpt.record.journal import Record
from glassgpt.record.machine import usable_memory
from glassgpt.training.job import Job
from glassgpt.training.run_choices import ComputePlan
from glassgpt.training.run_forecast import expected_workload

_BYTES_PER_WEIGHT = 4
_SMALLER_MODEL_ADVICE = "a smaller model: --n_layer, --n_embd"
# Forecasts of a CPU's memory were up to 44% too high. What needs twice what there is does not fit even then.
_MAX_OVERCOMMIT_RATIO = 2.0  # times the memory there is
_USABLE_MEMORY_SHARE = 0.9  # of the memory, by what is proposed instead


def _check_weights(shape: GPTConfig) -> None:
    """They are made in main memory, whatever they are for. Systems promise more of it than there is."""
    parameters, (room, _) = model_parameters(shape, shape.vocab_size), usable_memory()
    if _BYTES_PER_WEIGHT * parameters > room:
        raise UserError(
            f"the model's {format_count(parameters)} parameters take {format_bytes(_BYTES_PER_WEIGHT * parameters)}, and there "
            f"are {format_bytes(room)} of memory here; try {_SMALLER_MODEL_ADVICE}"
        )


def usable_bytes_per_process(equipment: ComputePlan) -> int:
    """Bytes that one process may have: of a card, what is free and its own context; of main memory, its share
    of what the processes of this machine have together."""
    if equipment.free_bytes is not None:
        return equipment.free_bytes + CONTEXT_BYTES["cuda"]
    return usable_memory()[0] // equipment.cluster.cards_per_machine


def check_memory(config: TrainConfig, equipment: ComputePlan, data_bytes: int, needs: MemoryEstimate) -> None:
    """Refuses what cannot fit by a wide margin, before anything is allocated or compiled."""
    _check_weights(equipment.model_config)
    plan, room = equipment.batch_plan, usable_bytes_per_process(equipment)
    if needs.total_bytes <= _MAX_OVERCOMMIT_RATIO * room:
        return
    work = expected_workload(config, equipment, data_bytes)
    if config.eval_only:
        what, instead = "this evaluation", _SMALLER_MODEL_ADVICE
    elif fits := max_batch_size_in_memory(work, room):
        what, instead = f"--batch_size={plan.batch_size}", less_memory_advice(config, plan, fits)
    else:
        what, instead = f"this model with --batch_size={plan.batch_size}", _smaller_run(work, plan, room)
    where = "here" if equipment.free_bytes is None else "free on the card"
    raise UserError(
        f"{what} needs about {format_bytes(needs.total_bytes)} of memory, and there are {format_bytes(room)} {where}; try {instead}"
    )


def max_batch_size_in_memory(work: TrainingWorkload, room: int) -> int | None:
    """At a time, with some memory to spare; None: not even one. Gradients add up over several micro-batches;
    a copy to be saved and a recorded update are only made where a card has room for them."""
    graph = work.graph and work.config.graph == "on"
    beside = work.has_checkpoint_copy and work.device_type == "cpu"
    pieces = replace(work, micro_steps=2, graph=graph, has_checkpoint_copy=beside)
    return largest_fitting_batch(pieces, int(_USABLE_MEMORY_SHARE * room))


def _smaller_run(work: TrainingWorkload, plan: BatchPlan, room: int) -> str:
    """The least change with which it fits, in micro-batches as large as then fit."""
    for changes in _lighter(work.config):
        if fits := max_batch_size_in_memory(replace(work, config=replace(work.config, **changes)), room):
            flags = " ".join(f"--{name}={value}" for name, value in changes.items())
            return f"{flags} {_micro_batch_flags(work.config, plan, fits)}"
    return _SMALLER_MODEL_ADVICE


def _lighter(config: TrainConfig) -> Iterator[dict[str, Any]]:
    """Weights to begin with have their own shape."""
    again: dict[str, Any] = {"activation_checkpointing": True}
    yield again
    if config.init_from == "scratch":
        parts = (2, 4, 8, 16, 32, 64)
        layers = {part: max(1, config.n_layer // part) for part in parts}
        yield from (again | {"n_layer": layers[part]} for part in parts)
        narrower = [part for part in parts if config.n_embd % (part * config.n_head) == 0]
        yield from (again | {"n_layer": layers[p], "n_embd": config.n_embd // p} for p in narrower)


def memory_short_finding(job: Job) -> Record | None:
    """A card that is full says so. Main memory that is full ends the run without a word."""
    needs, room = job.forecast_check.forecast.memory.total_bytes, usable_bytes_per_process(job.compute_plan)
    if job.forecast_check.forecast.on_card or needs <= room:
        return None
    return finding_record(
        job.progress.iter,
        "memory-short",
        "warning",
        f"this run needs more memory than there is: about {format_bytes(needs)} of {format_bytes(room)}",
        evidence=f"{job.batch_plan.batch_size} sequences of {job.config.block_size} tokens at a time",
        explanation="A system that runs out of memory becomes very slow, or ends the process with signal 9.",
        advice=f"try {_less_memory_advice_for_job(job)}",
    )


def _less_memory_advice_for_job(job: Job) -> str:
    work = expected_workload(job.config, job.compute_plan, job.splits["train"].nbytes)
    return less_memory_advice(
        job.config,
        job.batch_plan,
        max_batch_size_in_memory(work, usable_bytes_per_process(job.compute_plan)) or 1,
    )


def out_of_memory_error(job: Job, error: BaseException) -> UserError:
    return UserError(
        f"out of memory at update {job.progress.iter + 1:,} ({first_message_line(error)}): try {_less_memory_advice_for_job(job)}"
    )


def startup_out_of_memory_error(error: BaseException) -> UserError:
    return UserError(
        f"out of memory before the first update ({first_message_line(error)}): end what else uses it, "
        f"or try {_SMALLER_MODEL_ADVICE}"
    )


def less_memory_advice(config: TrainConfig, plan: BatchPlan, fits: int | None = None) -> str:
    """The same run in less memory, if it can be. `fits`: sequences that are forecast to fit at a time."""
    if plan.batch_size > 1:
        half = plan.batch_size // 2
        return f"{_micro_batch_flags(config, plan, half if fits is None else min(half, fits))}, which is the same run"
    if not config.activation_checkpointing:
        return "--activation_checkpointing=True, which computes more and keeps less"
    return f"a shorter --block_size, or {_SMALLER_MODEL_ADVICE}"


def _micro_batch_flags(config: TrainConfig, plan: BatchPlan, at_most: int) -> str:
    """Flags for the same update in micro-batches of `at_most` sequences."""
    fewer = largest_micro_batch(min(at_most, plan.batch_size), plan.sequences, plan.ranks)
    steps = f" --gradient_accumulation_steps={plan.sequences // fewer}"
    return f"--batch_size={fewer}{'' if config.batch_tokens else steps}"
