"""The two ways for many cards to train together, beside each other: the whole model on each, or a part."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from glassgpt.config import TrainConfig
from glassgpt.estimate import memory
from glassgpt.estimate.cluster import ONE_CARD, Cluster, exposed_communication_s, sent_bytes_per_card
from glassgpt.estimate.decide import choose_dtype
from glassgpt.estimate.forecast import LowMidHigh
from glassgpt.estimate.speed import ThroughputEstimate, estimate_throughput
from glassgpt.plan.dataset_size import DatasetInfo
from glassgpt.plan.run_spec import RunSpec, decide
from glassgpt.plan.target import PlanTarget
from glassgpt.plan.time_and_cost import forecast_spec

_MIN_WORTHWHILE_SPEEDUP = 1.1  # times the speed: less is no reason to shard, so rough are these figures


@dataclass(frozen=True)
class ParallelismOption:
    """Figures are of one card and an update; speed and time are of all cards together, None where nobody
    knows them, or it does not fit."""

    name: str
    shard: bool
    setting: str  # that chooses it
    fits: bool
    batch_size: int
    micro_steps: int
    memory_bytes: int
    sent_bytes: float  # by each card
    computing_s: float | None
    waiting_s: float | None  # for others, with nothing else to do
    tokens_per_s: LowMidHigh | None
    efficiency: float | None  # against as many cards as if each did the run by itself
    total_s: LowMidHigh | None


@dataclass(frozen=True)
class ParallelismComparison:
    ddp: ParallelismOption
    fsdp: ParallelismOption
    advised: ParallelismOption | None  # None: neither fits
    reason: str

    def as_dict(self) -> dict[str, Any]:
        advised = None if self.advised is None else self.advised.name
        return {"ways": [asdict(self.ddp), asdict(self.fsdp)], "advised": advised, "reason": self.reason}


def compare_parallelism(
    config: TrainConfig, target: PlanTarget, text: DatasetInfo
) -> ParallelismComparison | None:
    """None: there is one card, and nothing to share."""
    if target.cluster.ranks == 1:
        return None
    one = replace(target, cluster=ONE_CARD)
    alone = forecast_spec(decide(replace(config, shard=False), one, text), one, text).throughput
    whole = _parallelism_option(replace(config, shard=False), config, target, text, alone)
    sharded = _parallelism_option(_sharded(config, target), config, target, text, alone)
    return ParallelismComparison(whole, sharded, *_advice(whole, sharded))


def _sharded(config: TrainConfig, target: PlanTarget) -> TrainConfig:
    """Without what the trainer refuses then: 8-bit floats, and float16 with its loss scaler."""
    scaled = choose_dtype(config.dtype, target.traits, config.n_embd).value == "float16"
    return replace(config, shard=True, fp8=False, dtype="float32" if scaled else config.dtype)


def _parallelism_option(
    config: TrainConfig,
    asked: TrainConfig,
    target: PlanTarget,
    text: DatasetInfo,
    alone: ThroughputEstimate | None,
) -> ParallelismOption:
    """`asked`: before anything was changed for it. `alone`: of one card that does the run by itself."""
    changed = [name for name in ("dtype", "fp8") if getattr(config, name) != getattr(asked, name)]
    decided = decide(config, target, text)
    work = decided.workload
    needs = memory.estimate_memory(work).total_bytes
    fits = needs <= target.max_bytes
    ahead = forecast_spec(decided, target, text)
    pace = ahead.throughput if fits else None
    return ParallelismOption(
        name="FSDP" if config.shard else "DDP",
        shard=config.shard,
        setting=" ".join(f"--{name}={getattr(config, name)}" for name in ("shard", *changed)),
        fits=fits,
        batch_size=work.batch_size,
        micro_steps=work.micro_steps,
        memory_bytes=needs,
        sent_bytes=sent_bytes_per_card(work),
        **_update(decided, target, pace is not None),
        tokens_per_s=None if pace is None else (pace.low, pace.mid, pace.high),
        efficiency=None if pace is None or alone is None else pace.mid / (work.ranks * alone.mid),
        total_s=ahead.total_s if fits else None,
    )


def _update(decided: RunSpec, target: PlanTarget, known: bool) -> dict[str, float | None]:
    """Seconds that it computes and waits; `known`: whether the machine's speed is."""
    work, peak = decided.workload, target.peak_flops_per_s(decided.workload.dtype)
    if not known or peak is None:
        return {"computing_s": None, "waiting_s": None}
    tokens = work.micro_batch_tokens * work.micro_steps
    computing_s = tokens / estimate_throughput(work, decided.flops_per_token, peak, target.card).mid
    waiting = exposed_communication_s(work, target.cluster, computing_s / work.micro_steps)
    return {"computing_s": computing_s, "waiting_s": waiting}


def assumptions(cluster: Cluster) -> list[str]:
    """What the figures of many cards rest on."""
    return [
        *cluster.describe(),
        "exchanges go round a ring: an all-reduce sends 2 (n - 1) / n of a tensor, gathering and scattering "
        "(n - 1) / n, in float32; how long the first byte takes is left out",
        "DDP averages gradients after the last micro-batch, so nothing hides it; FSDP gathers a block while "
        "the one before computes, twice per micro-batch, and scatters gradients in the last",
        *(["NCCL's buffers take 400 MiB of each card"] if cluster.link is not None else []),
        "all are equally fast; the range of speeds is that of computing alone",
    ]


def _advice(whole: ParallelismOption, sharded: ParallelismOption) -> tuple[ParallelismOption | None, str]:
    if not whole.fits and not sharded.fits:
        return None, "neither fits as it is"
    if not whole.fits:
        return sharded, "the whole model does not fit on each card"
    if not sharded.fits or whole.tokens_per_s is None or sharded.tokens_per_s is None:
        return whole, "the whole model fits on each card"
    gain = sharded.tokens_per_s[1] / whole.tokens_per_s[1]
    if gain > _MIN_WORTHWHILE_SPEEDUP:
        return sharded, f"{gain - 1:.0%} faster here, with {sharded.batch_size} sequences at a time"
    if gain > 1 / _MIN_WORTHWHILE_SPEEDUP:
        return whole, "the whole model fits on each card, and sharding it gains little or nothing"
    return whole, f"the whole model fits on each card, and sharding it is {1 - gain:.0%} slower"
