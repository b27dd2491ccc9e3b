"""What a run's time means: compiling, energy, money."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from glassgpt.estimate import overheads
from glassgpt.estimate.batching import tokens_to_evaluate
from glassgpt.estimate.forecast import Hardware, LowMidHigh, RunForecast, TokenCounts, forecast_workload
from glassgpt.estimate.speed import ThroughputEstimate
from glassgpt.plan.dataset_size import DatasetInfo
from glassgpt.plan.run_spec import RunSpec
from glassgpt.plan.target import PlanTarget


@dataclass(frozen=True)
class TimeEstimate:
    """Seconds, as ranges (low, mid, high) where the pace is in them."""

    pace: ThroughputEstimate
    total_s: LowMidHigh
    updates_s: LowMidHigh
    evaluation_s: float
    evaluations: int
    evaluation_share: float
    saving_s: float
    start_s: float
    compile_cost_s: float
    compile_breaks_even: int | None  # update from which compiling would have paid; None: it is no option
    kwh: float | None
    cost: float | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def forecast_spec(decided: RunSpec, target: PlanTarget, text: DatasetInfo) -> RunForecast:
    work, batch = decided.workload, decided.batch
    evaluated = tokens_to_evaluate(decided.config, batch, text.val_tokens)
    on = Hardware(target.peak_flops_per_s(work.dtype), target.card, target.cluster)
    return forecast_workload(
        work, decided.flops_per_token, on, TokenCounts(batch.tokens, evaluated, text.val_tokens)
    )


def estimate_times(
    decided: RunSpec, target: PlanTarget, ahead: RunForecast, price: float | None
) -> TimeEstimate | None:
    """None where the machine's speed is unknown. `price`: of an hour of one machine."""
    total = ahead.total_s
    if ahead.throughput is None or total is None or ahead.updates_s is None or ahead.evaluation_s is None:
        return None
    hours = total[1] / 3600
    watts = None
    if target.card is not None and target.card.watts is not None:
        watts = target.card.watts * target.cluster.ranks
    compiling = overheads.compile_cost_s(target.device_type, decided.config.n_layer)
    return TimeEstimate(
        pace=ahead.throughput,
        total_s=total,
        updates_s=ahead.updates_s,
        evaluation_s=ahead.evaluation_s,
        evaluations=ahead.evaluations,
        evaluation_share=ahead.evaluation_s / total[1],
        saving_s=ahead.saving_s,
        start_s=ahead.start_s,
        compile_cost_s=compiling,
        compile_breaks_even=_break_even(decided, target, compiling),
        kwh=None if watts is None else watts * hours / 1000,
        cost=None if price is None else price * hours * target.cluster.machines,
    )


def _break_even(decided: RunSpec, target: PlanTarget, cost: float) -> int | None:
    """Our kernels make compiling needless; without them it pays after so many updates."""
    peak = target.peak_flops_per_s(decided.workload.dtype)
    if (
        decided.config.eval_only
        or decided.workload.kernels
        or decided.workload.compiled
        or target.device_type == "mps"
        or peak is None
    ):
        return None
    batch = decided.batch
    step = overheads.eager_step_s(
        target.device_type, batch.tokens // decided.workload.ranks, batch.micro_steps, decided.flops_per_token,
        decided.config.n_layer, peak,
    )  # fmt: skip
    return round(cost / overheads.compile_saving_s(target.device_type, step))
