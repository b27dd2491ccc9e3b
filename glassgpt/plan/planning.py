"""A plan: memory, time, loss, data and schedule of a run, and what is wrong with it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.estimate import memory
from glassgpt.estimate.memory import GIB, MemoryEstimate, TrainingWorkload
from glassgpt.plan.dataset_size import DatasetInfo
from glassgpt.plan.ddp_or_fsdp import ParallelismComparison, assumptions, compare_parallelism
from glassgpt.plan.fitting import memory_fixes, split_into_micro_batches
from glassgpt.plan.loss_forecast import TrainingEstimate, estimate_training
from glassgpt.plan.plan_warnings import PlanProblem, find_plan_problems
from glassgpt.plan.run_spec import RunSpec, can_shard, decide, without_optional_memory
from glassgpt.plan.target import PlanTarget
from glassgpt.plan.time_and_cost import TimeEstimate, estimate_times, forecast_spec


@dataclass(frozen=True)
class MemoryVariant:
    """The same run with more or less memory."""

    name: str
    total: int  # bytes at the run's micro-batch
    largest: int | None  # micro-batch that fits; None: not even one sequence


@dataclass(frozen=True)
class Plan:
    """All that is known before a run."""

    spec: RunSpec
    target: PlanTarget
    dataset: DatasetInfo
    memory: MemoryEstimate
    variants: tuple[MemoryVariant, ...]
    times: TimeEstimate | None  # None: nobody knows the machine's speed
    training_estimate: TrainingEstimate
    problems: tuple[PlanProblem, ...]
    parallelism: ParallelismComparison | None = None  # of many cards

    @property
    def config(self) -> TrainConfig:
        return self.spec.config

    @property
    def fits(self) -> bool:
        return self.memory.total_bytes <= self.target.max_bytes

    @property
    def largest_micro_batch(self) -> int | None:
        return self.variants[0].largest

    def as_dict(self) -> dict[str, Any]:
        """For --json: figures in bytes, seconds, FLOP; no text but names and reasons."""
        return {
            "target": self._target(),
            "together": self._together(),
            "model": self._model(),
            "batch": dataclasses.asdict(self.spec.batch),
            "memory": self._memory(),
            "time": None if self.times is None else self.times.as_dict(),
            "prospect": self.training_estimate.as_dict(),
            "data": dataclasses.asdict(self.dataset),
            "problems": [dataclasses.asdict(problem) for problem in self.problems],
            "config": dataclasses.asdict(self.config),
        }

    def _target(self) -> dict[str, Any]:
        return {
            "name": self.target.name,
            "device_type": self.target.device_type,
            "memory_bytes": self.target.memory_bytes,
            "memory_note": self.target.memory_note,
            "room_bytes": self.target.max_bytes,
            "peak_flops_per_s": self.target.peak_flops_per_s(self.spec.workload.dtype),
            "peak_source": self.target.peak_source,
            "found": self.target.found_how,
            "others": list(self.target.alternatives),
        }

    def _model(self) -> dict[str, Any]:
        work = self.spec.workload
        return {
            "parameters": self.spec.parameters,
            "flops_per_token": self.spec.flops_per_token,
            "dtype": work.dtype,
            "kernels": work.kernels,
            "compile": work.compiled,
            "graph": work.graph,
        }

    def _memory(self) -> dict[str, Any]:
        return {
            "parts": dict(self.memory.parts),
            "recording": self.memory.graph_bytes,
            "context": self.memory.context_bytes,
            "allocated": self.memory.allocated_bytes,
            "total": self.memory.total_bytes,
            "moment": self.memory.peak_phase,
            "fits": self.fits,
            "largest_batch_size": self.largest_micro_batch,
            "variants": [dataclasses.asdict(variant) for variant in self.variants],
        }

    def _together(self) -> dict[str, Any] | None:
        if self.parallelism is None:
            return None
        cluster = self.target.cluster
        link = None if cluster.link is None else dataclasses.asdict(cluster.link)
        return {
            "cards_per_machine": cluster.cards_per_machine,
            "machines": cluster.machines,
            "link": link,
            "network_gb_s": cluster.network_gb_s if cluster.machines > 1 else None,
            "bytes_per_s": cluster.ring_bytes_per_s,
            "assumptions": assumptions(cluster),
            **self.parallelism.as_dict(),
        }


def make_plan(config: TrainConfig, target: PlanTarget, text: DatasetInfo, price: float | None = None) -> Plan:
    """`price`: of an hour of that machine. Raises if not even one sequence fits."""
    decided = decide(config, target, text)
    if _is_too_large(decided, target):
        raise UserError(_too_large_messages(decided, target, text))
    variants = find_memory_variants(decided.workload, target.max_bytes)
    numbers = forecast_spec(decided, target, text)
    timed = estimate_times(decided, target, numbers, price)
    ahead = estimate_training(decided, text)
    ways = compare_parallelism(config, target, text)
    problems = find_plan_problems(decided, target, text, numbers.memory, timed, ahead, ways)
    return Plan(decided, target, text, numbers.memory, variants, timed, ahead, tuple(problems), ways)


def find_memory_variants(work: TrainingWorkload, room: int) -> tuple[MemoryVariant, ...]:
    """As it is, and what computing activations again, compiling or PyTorch's own kernels would change."""
    again = replace(work.config, activation_checkpointing=True)
    works = {"as it is": work}
    if work.config.eval_only:
        return (MemoryVariant("as it is", memory.estimate_memory(work).total_bytes, work.batch_size),)
    if not work.config.activation_checkpointing:
        works["activation_checkpointing=True"] = replace(work, config=again)
    if not work.compiled and work.device_type != "mps" and not work.config.fp8:
        asked = work.graph and work.config.graph == "on"
        works["compile=on"] = replace(work, compiled=True, kernels=False, graph=asked)
    if work.kernels and not work.config.fp8:
        works["kernels=plain, compile=off"] = replace(work, kernels=False)
    if work.ranks > 1 and not work.config.shard and can_shard(work):
        compiled = work.config.compile == "on"  # else it is not, sharded
        sharded = replace(work.config, shard=True)
        works["shard=True"] = replace(work, config=sharded, graph=False, compiled=compiled)
    return tuple(
        MemoryVariant(
            name,
            memory.estimate_memory(one).total_bytes,
            memory.largest_fitting_batch(without_optional_memory(one), room),
        )
        for name, one in works.items()
    )


def _is_too_large(decided: RunSpec, target: PlanTarget) -> bool:
    """As it is and in the smallest pieces."""
    if decided.config.eval_only or memory.estimate_memory(decided.workload).total_bytes <= target.max_bytes:
        return False
    return split_into_micro_batches(decided, target) is None


def _too_large_messages(decided: RunSpec, target: PlanTarget, text: DatasetInfo) -> list[str]:
    """What would fit instead."""
    work, alone = decided.workload, decided.batch.sequences == decided.workload.ranks
    least = memory.estimate_memory(
        replace(without_optional_memory(work), batch_size=1, micro_steps=1 if alone else 2)
    ).total_bytes
    named = f"{target.name} has {target.memory_bytes / GIB:.1f} GiB, of which a run may take {target.max_bytes / GIB:.1f}"
    shared = f" a card, sharded over {work.ranks}" if work.is_sharded else ""
    problem = (
        f"this model needs at least {least / GIB:.1f} GiB{shared}, with one sequence at a time "
        f"(--batch_size=1), and {named}"
    )
    return [
        problem,
        *(f"it fits with {flags}" for flags in memory_fixes(decided, target, text, target.max_bytes)),
    ]
