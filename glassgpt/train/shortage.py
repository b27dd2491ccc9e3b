"""Memory that is not enough: said beforehand where nobody else would, and what to do once it ran out."""

from __future__ import annotations

from glassgpt.account.finding import finding_record
from glassgpt.account.flops import parameters_of
from glassgpt.account.journal import Record
from glassgpt.account.machine import usable_memory
from glassgpt.config import TrainConfig
from glassgpt.errors import UserError, complaint
from glassgpt.figures import count, size
from glassgpt.model.gpt import GPTConfig
from glassgpt.train.batching import BatchPlan, largest_part
from glassgpt.train.job import Job

_WEIGHT_BYTES = 4
_SMALLER = "a smaller model: --n_layer, --n_embd"


def check_weights(shape: GPTConfig) -> None:
    """They are made in main memory, whatever they are for. Systems promise more of it than there is."""
    parameters, (room, _) = parameters_of(shape, shape.vocab_size), usable_memory()
    if _WEIGHT_BYTES * parameters > room:
        raise UserError(
            f"the model's {count(parameters)} parameters take {size(_WEIGHT_BYTES * parameters)}, and there "
            f"are {size(room)} of memory here; try {_SMALLER}"
        )


def foreseen(job: Job) -> Record | None:
    """A card that is full says so. Main memory that is full ends the run without a word."""
    forecast, (room, _) = job.outcome.forecast, usable_memory()
    needs = forecast.memory.total
    if forecast.on_card or needs <= room:
        return None
    return finding_record(
        job.progress.iter,
        "memory-short",
        "warning",
        f"this run needs more memory than there is: about {size(needs)} of {size(room)}",
        evidence=f"{job.plan.batch_size} sequences of {job.config.block_size} tokens at a time",
        explanation="A system that runs out of memory becomes very slow, or ends the process with signal 9.",
        advice=f"try {in_less(job.config, job.plan)}",
    )


def ran_out(job: Job, error: BaseException) -> UserError:
    return UserError(
        f"out of memory at update {job.progress.iter + 1:,} ({complaint(error)}): "
        f"try {in_less(job.config, job.plan)}"
    )


def ran_out_at_start(error: BaseException) -> UserError:
    return UserError(
        f"out of memory before the first update ({complaint(error)}): end what else uses it, "
        f"or try {_SMALLER}"
    )


def in_less(config: TrainConfig, plan: BatchPlan) -> str:
    """The same run in less memory, if it can be."""
    if plan.batch_size > 1:
        fewer = largest_part(plan.batch_size // 2, plan.sequences, plan.ranks)
        steps = f" --gradient_accumulation_steps={plan.sequences // fewer}"
        return f"--batch_size={fewer}{'' if config.batch_tokens else steps}, which is the same run"
    if not config.activation_checkpointing:
        return "--activation_checkpointing=True, which computes more and keeps less"
    return f"a shorter --block_size, or {_SMALLER}"
