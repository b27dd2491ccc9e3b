"""Memory that is not enough: refused or said before work begins, and what to do once it ran out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError, complaint
from glassgpt.estimate.batching import BatchPlan, largest_part
from glassgpt.estimate.flops import parameters_of
from glassgpt.estimate.memory import CONTEXT_BYTES, Memory, Work, largest_batch
from glassgpt.format import count, size
from glassgpt.model.gpt import GPTConfig
from glassgpt.record.finding import finding_record
from glassgpt.record.journal import Record
from glassgpt.record.machine import usable_memory
from glassgpt.training.job import Job
from glassgpt.training.run_choices import Equipment
from glassgpt.training.run_forecast import expected_work

_WEIGHT_BYTES = 4
_SMALLER = "a smaller model: --n_layer, --n_embd"
# Forecasts of a CPU's memory were up to 44% too high. What needs twice what there is does not fit even then.
_REFUSED_ABOVE = 2.0  # times the memory there is
_FILLED = 0.9  # of the memory, by what is proposed instead


def _check_weights(shape: GPTConfig) -> None:
    """They are made in main memory, whatever they are for. Systems promise more of it than there is."""
    parameters, (room, _) = parameters_of(shape, shape.vocab_size), usable_memory()
    if _WEIGHT_BYTES * parameters > room:
        raise UserError(
            f"the model's {count(parameters)} parameters take {size(_WEIGHT_BYTES * parameters)}, and there "
            f"are {size(room)} of memory here; try {_SMALLER}"
        )


def memory_here(equipment: Equipment) -> int:
    """Bytes that one process may have: of a card, what is free and its own context; of main memory, its share
    of what the processes of this machine have together."""
    if equipment.free_bytes is not None:
        return equipment.free_bytes + CONTEXT_BYTES["cuda"]
    return usable_memory()[0] // equipment.cluster.cards


def check_memory(config: TrainConfig, equipment: Equipment, data_bytes: int, needs: Memory) -> None:
    """Refuses what cannot fit by a wide margin, before anything is allocated or compiled."""
    _check_weights(equipment.shape)
    plan, room = equipment.plan, memory_here(equipment)
    if needs.total <= _REFUSED_ABOVE * room:
        return
    work = expected_work(config, equipment, data_bytes)
    if config.eval_only:
        what, instead = "this evaluation", _SMALLER
    elif fits := sequences_that_fit(work, room):
        what, instead = f"--batch_size={plan.batch_size}", in_less(config, plan, fits)
    else:
        what, instead = f"this model with --batch_size={plan.batch_size}", _smaller_run(work, plan, room)
    where = "here" if equipment.free_bytes is None else "free on the card"
    raise UserError(
        f"{what} needs about {size(needs.total)} of memory, and there are {size(room)} {where}; try {instead}"
    )


def sequences_that_fit(work: Work, room: int) -> int | None:
    """At a time, with some memory to spare; None: not even one. Gradients add up over several micro-batches;
    a copy to be saved and a recorded update are only made where a card has room for them."""
    graph = work.graph and work.config.graph == "on"
    beside = work.saves_beside and work.device_type == "cpu"
    pieces = replace(work, micro_steps=2, graph=graph, saves_beside=beside)
    return largest_batch(pieces, int(_FILLED * room))


def _smaller_run(work: Work, plan: BatchPlan, room: int) -> str:
    """The least change with which it fits, in micro-batches as large as then fit."""
    for changes in _lighter(work.config):
        if fits := sequences_that_fit(replace(work, config=replace(work.config, **changes)), room):
            flags = " ".join(f"--{name}={value}" for name, value in changes.items())
            return f"{flags} {_in_pieces(work.config, plan, fits)}"
    return _SMALLER


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


def foreseen(job: Job) -> Record | None:
    """A card that is full says so. Main memory that is full ends the run without a word."""
    needs, room = job.outcome.forecast.memory.total, memory_here(job.equipment)
    if job.outcome.forecast.on_card or needs <= room:
        return None
    return finding_record(
        job.progress.iter,
        "memory-short",
        "warning",
        f"this run needs more memory than there is: about {size(needs)} of {size(room)}",
        evidence=f"{job.plan.batch_size} sequences of {job.config.block_size} tokens at a time",
        explanation="A system that runs out of memory becomes very slow, or ends the process with signal 9.",
        advice=f"try {_job_in_less(job)}",
    )


def _job_in_less(job: Job) -> str:
    work = expected_work(job.config, job.equipment, job.splits["train"].nbytes)
    return in_less(job.config, job.plan, sequences_that_fit(work, memory_here(job.equipment)) or 1)


def ran_out(job: Job, error: BaseException) -> UserError:
    return UserError(
        f"out of memory at update {job.progress.iter + 1:,} ({complaint(error)}): try {_job_in_less(job)}"
    )


def ran_out_at_start(error: BaseException) -> UserError:
    return UserError(
        f"out of memory before the first update ({complaint(error)}): end what else uses it, "
        f"or try {_SMALLER}"
    )


def in_less(config: TrainConfig, plan: BatchPlan, fits: int | None = None) -> str:
    """The same run in less memory, if it can be. `fits`: sequences that are forecast to fit at a time."""
    if plan.batch_size > 1:
        half = plan.batch_size // 2
        return f"{_in_pieces(config, plan, half if fits is None else min(half, fits))}, which is the same run"
    if not config.activation_checkpointing:
        return "--activation_checkpointing=True, which computes more and keeps less"
    return f"a shorter --block_size, or {_SMALLER}"


def _in_pieces(config: TrainConfig, plan: BatchPlan, at_most: int) -> str:
    """Flags for the same update in micro-batches of `at_most` sequences."""
    fewer = largest_part(min(at_most, plan.batch_size), plan.sequences, plan.ranks)
    steps = f" --gradient_accumulation_steps={plan.sequences // fewer}"
    return f"--batch_size={fewer}{'' if config.batch_tokens else steps}"
