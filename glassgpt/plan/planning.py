"""A plan: memory, time, loss, data and schedule of a run, and what is wrong with it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.estimate import memory
from glassgpt.estimate.memory import GIB, Memory, Work
from glassgpt.plan.dataset_size import Text
from glassgpt.plan.ddp_or_fsdp import Ways, assumptions, find_ways
from glassgpt.plan.fitting import in_pieces, remedies
from glassgpt.plan.loss_forecast import Prospect, prospect
from glassgpt.plan.plan_warnings import Problem, find_problems
from glassgpt.plan.run_spec import Decided, can_shard, decide, without_luxury
from glassgpt.plan.target import Target
from glassgpt.plan.time_and_cost import Times, forecast_of, times


@dataclass(frozen=True)
class Variant:
    """The same run with more or less memory."""

    name: str
    total: int  # bytes at the run's micro-batch
    largest: int | None  # micro-batch that fits; None: not even one sequence


@dataclass(frozen=True)
class Plan:
    """All that is known before a run."""

    decided: Decided
    target: Target
    text: Text
    memory: Memory
    variants: tuple[Variant, ...]
    times: Times | None  # None: nobody knows the machine's speed
    prospect: Prospect
    problems: tuple[Problem, ...]
    ways: Ways | None = None  # of many cards

    @property
    def config(self) -> TrainConfig:
        return self.decided.config

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.target.limit

    @property
    def largest(self) -> int | None:
        return self.variants[0].largest

    def as_dict(self) -> dict[str, Any]:
        """For --json: figures in bytes, seconds, FLOP; no text but names and reasons."""
        return {
            "target": self._target(),
            "together": self._together(),
            "model": self._model(),
            "batch": dataclasses.asdict(self.decided.batch),
            "memory": self._memory(),
            "time": None if self.times is None else self.times.as_dict(),
            "prospect": self.prospect.as_dict(),
            "data": dataclasses.asdict(self.text),
            "problems": [dataclasses.asdict(problem) for problem in self.problems],
            "config": dataclasses.asdict(self.config),
        }

    def _target(self) -> dict[str, Any]:
        return {
            "name": self.target.name,
            "device_type": self.target.device_type,
            "memory_bytes": self.target.memory,
            "memory_note": self.target.memory_note,
            "room_bytes": self.target.limit,
            "peak_flops_per_s": self.target.peak(self.decided.work.dtype),
            "peak_source": self.target.peak_source,
            "found": self.target.how,
            "others": list(self.target.others),
        }

    def _model(self) -> dict[str, Any]:
        work = self.decided.work
        return {
            "parameters": self.decided.parameters,
            "flops_per_token": self.decided.flops_per_token,
            "dtype": work.dtype,
            "kernels": work.kernels,
            "compile": work.compiled,
            "graph": work.graph,
        }

    def _memory(self) -> dict[str, Any]:
        return {
            "parts": dict(self.memory.parts),
            "recording": self.memory.recording,
            "context": self.memory.context,
            "allocated": self.memory.allocated,
            "total": self.memory.total,
            "moment": self.memory.moment,
            "fits": self.fits,
            "largest_batch_size": self.largest,
            "variants": [dataclasses.asdict(variant) for variant in self.variants],
        }

    def _together(self) -> dict[str, Any] | None:
        if self.ways is None:
            return None
        cluster = self.target.cluster
        link = None if cluster.link is None else dataclasses.asdict(cluster.link)
        return {
            "cards_per_machine": cluster.cards,
            "machines": cluster.machines,
            "link": link,
            "network_gb_s": cluster.network_gb_s if cluster.machines > 1 else None,
            "bytes_per_s": cluster.bytes_per_s,
            "assumptions": assumptions(cluster),
            **self.ways.as_dict(),
        }


def make_plan(config: TrainConfig, target: Target, text: Text, price: float | None = None) -> Plan:
    """`price`: of an hour of that machine. Raises if not even one sequence fits."""
    decided = decide(config, target, text)
    if _is_too_large(decided, target):
        raise UserError(_too_large(decided, target, text))
    variants = find_variants(decided.work, target.limit)
    numbers = forecast_of(decided, target, text)
    timed = times(decided, target, numbers, price)
    ahead = prospect(decided, text)
    ways = find_ways(config, target, text)
    problems = find_problems(decided, target, text, numbers.memory, timed, ahead, ways)
    return Plan(decided, target, text, numbers.memory, variants, timed, ahead, tuple(problems), ways)


def find_variants(work: Work, room: int) -> tuple[Variant, ...]:
    """As it is, and what computing activations again, compiling or PyTorch's own kernels would change."""
    again = replace(work.config, activation_checkpointing=True)
    works = {"as it is": work}
    if work.config.eval_only:
        return (Variant("as it is", memory.needed(work).total, work.batch_size),)
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
        Variant(name, memory.needed(one).total, memory.largest_batch(without_luxury(one), room))
        for name, one in works.items()
    )


def _is_too_large(decided: Decided, target: Target) -> bool:
    """As it is and in the smallest pieces."""
    if decided.config.eval_only or memory.needed(decided.work).total <= target.limit:
        return False
    return in_pieces(decided, target) is None


def _too_large(decided: Decided, target: Target, text: Text) -> list[str]:
    """What would fit instead."""
    work, alone = decided.work, decided.batch.sequences == decided.work.ranks
    least = memory.needed(replace(without_luxury(work), batch_size=1, micro_steps=1 if alone else 2)).total
    named = (
        f"{target.name} has {target.memory / GIB:.1f} GiB, of which a run may take {target.limit / GIB:.1f}"
    )
    shared = f" a card, sharded over {work.ranks}" if work.is_sharded else ""
    problem = (
        f"this model needs at least {least / GIB:.1f} GiB{shared}, with one sequence at a time "
        f"(--batch_size=1), and {named}"
    )
    return [problem, *(f"it fits with {flags}" for flags in remedies(decided, target, text, target.limit))]
