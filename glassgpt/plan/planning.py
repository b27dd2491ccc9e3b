"""A plan: memory, time, loss, data and schedule of a run, and what is wrong with it.

plan = make_plan(config, target, find_dataset_info(config))
plan.fits, plan.largest_micro_batch, plan.problems
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from glassgpt.config import TrainConfig
from glassgpt.data.manifest import DatasetInfo
from glassgpt.errors import UserError
from glassgpt.estimate import memory
from glassgpt.estimate.decide import RunSpec
from glassgpt.estimate.measured_speed import MeasuredSpeed
from glassgpt.estimate.memory import GIB, MemoryEstimate
from glassgpt.estimate.training_workload import TrainingWorkload
from glassgpt.plan.estimates import (
    ParallelismComparison,
    TimeEstimate,
    TrainingEstimate,
    assumptions,
    compare_parallelism,
    estimate_times,
    estimate_training,
    forecast_spec,
)
from glassgpt.plan.plan_warnings import PlanProblem, find_plan_problems
from glassgpt.plan.planned_spec import (
    SettingChanges,
    lighter_settings,
    make_run_spec,
    memory_fixes,
    split_into_micro_batches,
)
from glassgpt.plan.target import PlanTarget

SCHEMA_VERSION = 1  # of the JSON documents of `glass plan`; new keys do not raise it


@dataclass(frozen=True)
class MemoryVariant:
    """The same run with a setting that changes its memory."""

    name: str
    total: int  # bytes at the run's micro-batch
    largest: int | None  # micro-batch that fits; None: not even one sequence


@dataclass(frozen=True)
class Plan:
    """All estimates of a run, and the problems found."""

    spec: RunSpec
    target: PlanTarget
    dataset: DatasetInfo
    memory: MemoryEstimate
    variants: tuple[MemoryVariant, ...]
    times: TimeEstimate | None  # None: the machine's speed is unknown
    training_estimate: TrainingEstimate
    problems: tuple[PlanProblem, ...]
    parallelism: ParallelismComparison | None = None  # None: one card
    measured: MeasuredSpeed | None = None  # by the probe or by finished runs; None: all is estimated

    @property
    def config(self) -> TrainConfig:
        return self.spec.config

    @property
    def fits(self) -> bool:
        """What the probe found; without one, what is estimated."""
        probe = self.target.probe
        if probe is not None and probe.outcome in ("ran", "out of memory"):
            return probe.ran
        return self.memory.total_bytes <= self.target.out_of_memory_limit

    @property
    def largest_micro_batch(self) -> int | None:
        return self.variants[0].largest

    def as_dict(self) -> dict[str, Any]:
        """For --json: figures in bytes, seconds, FLOP; no text but names and reasons."""
        target, cluster, workload = self.target, self.target.cluster, self.spec.workload
        together = None
        if self.parallelism is not None:
            together = {
                "cards_per_machine": cluster.cards_per_machine,
                "machines": cluster.machines,
                "link": None if cluster.link is None else asdict(cluster.link),
                "network_gb_s": cluster.network_gb_s if cluster.machines > 1 else None,
                "bytes_per_s": cluster.ring_bytes_per_s,
                "assumptions": assumptions(cluster),
                **self.parallelism.as_dict(),
            }
        return {
            "schema_version": SCHEMA_VERSION,
            "target": {
                "name": target.name,
                "device_type": target.device_type,
                "memory_bytes": target.memory_bytes,
                "memory_note": target.memory_note,
                "room_bytes": target.out_of_memory_limit,
                "peak_flops_per_s": target.peak_flops_per_s(workload.dtype),
                "peak_source": target.peak_source,
                "found": target.found_how,
                "others": list(target.alternatives),
            },
            "together": together,
            "model": {
                "parameters": self.spec.parameters,
                "flops_per_token": self.spec.flops_per_token,
                "dtype": workload.dtype,
                "kernels": workload.kernels,
                "compile": workload.compiled,
                "graph": workload.graph,
                "attention": workload.attention,
                # What a run measures, and a plan does not: where it matters, the run may choose otherwise.
                "unknown": list(self.spec.unknown),
            },
            "batch": asdict(self.spec.batch),
            "memory": {
                "parts": dict(self.memory.parts),
                "recording": self.memory.graph_bytes,
                "context": self.memory.context_bytes,
                "allocated": self.memory.allocated_bytes,
                "total": self.memory.total_bytes,
                "moment": self.memory.peak_phase,
                "measured": None if self.measured is None else self.measured.peak_bytes,
                "fits": self.fits,
                "largest_batch_size": self.largest_micro_batch,
                "variants": [asdict(variant) for variant in self.variants],
            },
            "time": None if self.times is None else self.times.as_dict(),
            "measured": None if self.measured is None else asdict(self.measured),
            "probe": None if self.target.probe is None else self.target.probe.as_dict(),
            "prospect": self.training_estimate.as_dict(),
            "data": asdict(self.dataset),
            "problems": [asdict(problem) for problem in self.problems],
            "config": asdict(self.config),
        }


def make_plan(
    config: TrainConfig, target: PlanTarget, dataset: DatasetInfo, price: float | None = None
) -> Plan:
    """`price`: of one machine per hour. Raises UserError if not even one sequence fits."""
    spec = make_run_spec(config, target, dataset)
    is_trained = not spec.config.eval_only
    fits = memory.estimate_memory(spec.workload).total_bytes <= target.out_of_memory_limit
    if is_trained and not fits and split_into_micro_batches(spec, target) is None:
        raise UserError(_too_large_messages(spec, target, dataset))
    forecast = forecast_spec(spec, target, dataset)
    times = estimate_times(spec, target, forecast, price)
    training = estimate_training(spec, dataset)
    parallelism = compare_parallelism(config, target, dataset)
    problems = find_plan_problems(spec, target, dataset, forecast.memory, times, training, parallelism)
    return Plan(
        spec=spec,
        target=target,
        dataset=dataset,
        memory=forecast.memory,
        variants=find_memory_variants(spec.workload, target.out_of_memory_limit),
        times=times,
        training_estimate=training,
        problems=tuple(problems),
        parallelism=parallelism,
        measured=forecast.measured,
    )


def find_memory_variants(workload: TrainingWorkload, max_bytes: int) -> tuple[MemoryVariant, ...]:
    """With these settings, with activation checkpointing, compiled, with PyTorch's kernels, and sharded."""
    if workload.config.eval_only:
        total = memory.estimate_memory(workload).total_bytes
        return (MemoryVariant("as it is", total, workload.batch_size),)
    workloads = {"as it is": workload} | {
        ", ".join(f"{name}={value}" for name, value in changes.items()): _changed_workload(workload, changes)
        for changes in lighter_settings(workload)
    }
    return tuple(
        MemoryVariant(
            name,
            memory.estimate_memory(variant).total_bytes,
            memory.largest_fitting_batch(memory.without_optional_memory(variant), max_bytes),
        )
        for name, variant in workloads.items()
    )


def _changed_workload(workload: TrainingWorkload, changes: SettingChanges) -> TrainingWorkload:
    config = workload.config
    changed = replace(workload, config=replace(config, **changes))
    if changes.get("compile") == "on":
        graph = workload.graph and config.graph == "on"
        return replace(changed, compiled=True, kernels=False, graph=graph)
    if "kernels" in changes:
        return replace(changed, kernels=False)
    if "shard" in changes:  # compile=auto does not compile a sharded model
        return replace(changed, graph=False, compiled=config.compile == "on")
    return changed


def _too_large_messages(spec: RunSpec, target: PlanTarget, dataset: DatasetInfo) -> list[str]:
    """That not even one sequence fits, and which settings would."""
    workload = spec.workload
    micro_steps = 1 if spec.batch.sequences == workload.ranks else 2
    smallest = replace(memory.without_optional_memory(workload), batch_size=1, micro_steps=micro_steps)
    per_card = f" per card, sharded over {workload.ranks}" if workload.is_sharded else ""
    needed_gib = memory.estimate_memory(smallest).total_bytes / GIB
    problem = (
        f"this model needs at least {needed_gib:.1f} GiB{per_card}, with one sequence at a time "
        f"(--batch_size=1), and {target.name} has {target.memory_bytes / GIB:.1f} GiB, of which a run may "
        f"take {target.out_of_memory_limit / GIB:.1f}"
    )
    fixes = memory_fixes(spec, target, dataset, target.out_of_memory_limit)
    return [problem, *(f"it fits with {flags}" for flags in fixes)]
