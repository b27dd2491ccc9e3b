"""Estimates for a planned run: time, energy, cost, checkpoints, loss; and DDP compared with FSDP.

forecast = forecast_spec(spec, target, dataset)
estimate_times(spec, target, forecast, price=0.4)
estimate_training(spec, dataset).loss
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from glassgpt import schedule
from glassgpt.config import TrainConfig, first_checkpoint_iter
from glassgpt.data.manifest import DatasetInfo
from glassgpt.estimate import memory, overheads
from glassgpt.estimate.batching import tokens_to_evaluate
from glassgpt.estimate.cluster import ONE_CARD, Cluster, exposed_communication_s, sent_bytes_per_card
from glassgpt.estimate.decide import RunSpec, choose_dtype
from glassgpt.estimate.forecast import Hardware, RunForecast, TimeForecast, TokenCounts, forecast_workload
from glassgpt.estimate.loss_law import expected_loss_curve
from glassgpt.estimate.measured_speed import LowMidHigh
from glassgpt.estimate.speed import ThroughputEstimate, estimate_throughput
from glassgpt.estimate.training_workload import checkpoint_bytes
from glassgpt.i18n import render_text, translate
from glassgpt.plan.planned_spec import make_run_spec
from glassgpt.plan.target import PlanTarget

_MAX_CURVE_POINTS = 8  # of the expected loss curve that are shown
_MIN_WORTHWHILE_SPEEDUP = 1.1  # of FSDP over DDP; the estimates are too rough to act on less


# --- time, energy, cost ---


@dataclass(frozen=True, kw_only=True)
class TimeEstimate(TimeForecast):
    """The forecast of a run, and what follows from it."""

    evaluation_share: float
    compile_cost_s: float
    compile_breaks_even: int | None  # update after which compiling would have paid; None: not an option
    kwh: float | None
    cost: float | None

    def as_dict(self) -> dict[str, Any]:
        document = asdict(self)
        del document["is_start_measured"]
        return {"pace": document.pop("throughput"), "total_s": self.total_s, **document}


def forecast_spec(spec: RunSpec, target: PlanTarget, dataset: DatasetInfo) -> RunForecast:
    eval_tokens = tokens_to_evaluate(spec.config, spec.batch, dataset.val_tokens)
    peak = target.peak_flops_per_s(spec.workload.dtype)
    return forecast_workload(
        spec.workload,
        spec.flops_per_token,
        Hardware(
            peak,
            target.card,
            target.cluster,
            target.measured_speed(spec.workload, spec.flops_per_token),
            target.core,
        ),
        TokenCounts(spec.batch.tokens, eval_tokens, dataset.val_tokens),
    )


def estimate_times(
    spec: RunSpec, target: PlanTarget, forecast: RunForecast, price: float | None
) -> TimeEstimate | None:
    """None where the machine's speed is unknown. `price`: of one machine per hour."""
    times = forecast.times
    if times is None:
        return None
    device_type, workload = target.device_type, spec.workload
    hours = times.total_s[1] / 3600
    watts = None
    if target.card is not None and target.card.watts is not None:
        watts = target.card.watts * target.cluster.ranks
    compile_cost_s = overheads.compile_cost_s(device_type, spec.config.n_layer)
    compile_breaks_even = None
    peak = target.peak_flops_per_s(workload.dtype)
    could_compile = device_type != "mps" and not workload.compiled and not workload.kernels
    if could_compile and not spec.config.eval_only and peak is not None:
        step_s = overheads.eager_step_s(
            device_type, spec.batch.tokens // workload.ranks, spec.batch.micro_steps, spec.flops_per_token,
            spec.config.n_layer, peak,
        )  # fmt: skip
        compile_breaks_even = round(compile_cost_s / overheads.compile_saving_s(device_type, step_s))
    return TimeEstimate(
        **vars(times),
        evaluation_share=times.evaluation_s / times.total_s[1],
        compile_cost_s=compile_cost_s,
        compile_breaks_even=compile_breaks_even,
        kwh=None if watts is None else watts * hours / 1000,
        cost=None if price is None else price * hours * target.cluster.machines,
    )


# --- loss and checkpoints ---


@dataclass(frozen=True)
class TrainingEstimate:
    """Losses are of the validation split, in nats per token, as (low, mid, high)."""

    epochs: float
    tokens_per_parameter: float
    first_checkpoint: int
    checkpoint_bytes: int
    disk_bytes: int
    schedule: str
    loss: tuple[float, float, float] | None  # at the end; None: unknown
    loss_reason: str
    loss_curve: tuple[tuple[int, float, float, float], ...]  # iteration, low, mid, high
    overfits_at: int | None

    def as_dict(self) -> dict[str, Any]:
        document = asdict(self)
        return {"course": document.pop("loss_curve"), **document}


def estimate_training(spec: RunSpec, dataset: DatasetInfo) -> TrainingEstimate:
    config = spec.config
    save_bytes = checkpoint_bytes(spec.workload)
    estimate = TrainingEstimate(
        epochs=spec.total_tokens / dataset.train_tokens,
        tokens_per_parameter=spec.total_tokens / spec.parameters,
        first_checkpoint=first_checkpoint_iter(config),
        checkpoint_bytes=save_bytes,
        disk_bytes=save_bytes * (config.keep_checkpoints + 2),  # + the best, + the one being written
        schedule=schedule.describe_schedule(config),
        loss=None,
        loss_reason=translate("plan.loss.pretrained"),
        loss_curve=(),
        overfits_at=None,
    )
    if config.init_from != "scratch":
        return estimate
    curve = expected_loss_curve(config, spec.workload.vocab_size, spec.batch.tokens, dataset)
    stride = -(-len(curve.points) // _MAX_CURVE_POINTS) or 1
    shown = list(curve.points)[::-stride][::-1]  # always with the last
    return replace(
        estimate,
        loss=(curve.final.low, curve.final.mid, curve.final.high),
        loss_reason=render_text(curve.basis),
        loss_curve=tuple((point.iteration, point.low, point.mid, point.high) for point in shown),
        overfits_at=curve.overfits_at,
    )


# --- DDP or FSDP ---


@dataclass(frozen=True)
class ParallelismOption:
    """DDP or FSDP. Memory, bytes and seconds are per card and update. Speed and total time are of all cards;
    None if unknown or if it does not fit."""

    name: str
    shard: bool
    setting: str  # the flags that select it
    fits: bool
    batch_size: int
    micro_steps: int
    memory_bytes: int
    sent_bytes: float
    computing_s: float | None
    waiting_s: float | None  # exposed communication: not overlapped with compute
    tokens_per_s: LowMidHigh | None
    efficiency: float | None  # scaling efficiency: speed / (cards x speed of one card alone)
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
    config: TrainConfig, target: PlanTarget, dataset: DatasetInfo
) -> ParallelismComparison | None:
    """None: there is only one card."""
    if target.cluster.ranks == 1:
        return None
    ddp_config = replace(config, shard=False)
    one_card = replace(target, cluster=ONE_CARD)
    one_card_spec = make_run_spec(ddp_config, one_card, dataset)
    one_card_speed = forecast_spec(one_card_spec, one_card, dataset).throughput
    # Training refuses FSDP with FP8, and with float16 and its loss scaler.
    is_float16 = choose_dtype(config.dtype, target.traits, config.n_embd).value == "float16"
    fsdp_config = replace(config, shard=True, fp8=False, dtype="float32" if is_float16 else config.dtype)
    ddp = _parallelism_option(ddp_config, config, target, dataset, one_card_speed)
    fsdp = _parallelism_option(fsdp_config, config, target, dataset, one_card_speed)
    return ParallelismComparison(ddp, fsdp, *_advise(ddp, fsdp))


def _parallelism_option(
    config: TrainConfig,
    requested: TrainConfig,
    target: PlanTarget,
    dataset: DatasetInfo,
    one_card_speed: ThroughputEstimate | None,
) -> ParallelismOption:
    """`requested`: the user's config, of which `config` may differ in dtype and FP8."""
    changed = [name for name in ("dtype", "fp8") if getattr(config, name) != getattr(requested, name)]
    spec = make_run_spec(config, target, dataset)
    workload = spec.workload
    memory_bytes = memory.estimate_memory(workload).total_bytes
    fits = memory_bytes <= target.out_of_memory_limit
    forecast = forecast_spec(spec, target, dataset)
    speed = forecast.throughput if fits else None
    peak = target.peak_flops_per_s(workload.dtype)
    computing_s = waiting_s = None
    if speed is not None and peak is not None:
        tokens = workload.micro_batch_tokens * workload.micro_steps
        alone = estimate_throughput(workload, spec.flops_per_token, peak, target.card, target.core)
        computing_s = tokens / alone.mid
        micro_step_s = computing_s / workload.micro_steps
        waiting_s = exposed_communication_s(workload, target.cluster, micro_step_s)
    efficiency = None
    if speed is not None and one_card_speed is not None:
        efficiency = speed.mid / (workload.ranks * one_card_speed.mid)
    return ParallelismOption(
        name="FSDP" if config.shard else "DDP",
        shard=config.shard,
        setting=" ".join(f"--{name}={getattr(config, name)}" for name in ("shard", *changed)),
        fits=fits,
        batch_size=workload.batch_size,
        micro_steps=workload.micro_steps,
        memory_bytes=memory_bytes,
        sent_bytes=sent_bytes_per_card(workload),
        computing_s=computing_s,
        waiting_s=waiting_s,
        tokens_per_s=None if speed is None else (speed.low, speed.mid, speed.high),
        efficiency=efficiency,
        total_s=forecast.total_s if fits else None,
    )


def _advise(ddp: ParallelismOption, fsdp: ParallelismOption) -> tuple[ParallelismOption | None, str]:
    if not ddp.fits and not fsdp.fits:
        return None, translate("plan.parallelism.neither")
    if not ddp.fits:
        return fsdp, translate("plan.parallelism.does_not_fit")
    if not fsdp.fits or ddp.tokens_per_s is None or fsdp.tokens_per_s is None:
        return ddp, translate("plan.parallelism.fits")
    speedup = fsdp.tokens_per_s[1] / ddp.tokens_per_s[1]
    if speedup > _MIN_WORTHWHILE_SPEEDUP:
        gain = f"{speedup - 1:.0%}"
        return fsdp, translate("plan.parallelism.fsdp_faster", gain=gain, sequences=fsdp.batch_size)
    if speedup > 1 / _MIN_WORTHWHILE_SPEEDUP:
        return ddp, translate("plan.parallelism.no_gain")
    return ddp, translate("plan.parallelism.fsdp_slower", loss=f"{1 - speedup:.0%}")


def assumptions(cluster: Cluster) -> list[str]:
    """What the figures for several cards assume."""
    return [
        *cluster.describe(),
        translate("plan.assumption.collectives"),
        translate("plan.assumption.overlap"),
        *([translate("plan.assumption.nccl_buffers")] if cluster.link is not None else []),
        translate("plan.assumption.equal_ranks"),
    ]
