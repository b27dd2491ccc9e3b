"""The forecast of a run before it starts: memory, speed, time. No torch.

`glass plan` shows it. Every run writes it into its journal, and compares itself with it at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassgpt.estimate import memory, overheads
from glassgpt.estimate.batching import eval_batch_rows, has_closing_eval
from glassgpt.estimate.cards import Card
from glassgpt.estimate.cluster import ONE_CARD, Cluster, cluster_throughput
from glassgpt.estimate.cpu_update_time import REFERENCE_CORE, CoreSpeed
from glassgpt.estimate.measured_speed import LowMidHigh, MeasuredSpeed
from glassgpt.estimate.memory import MemoryEstimate
from glassgpt.estimate.speed import ThroughputEstimate, estimate_throughput
from glassgpt.estimate.training_workload import TrainingWorkload, checkpoint_bytes

_DISK_BYTES_PER_S = 6e8  # a checkpoint written, hashed and synced to a usual SSD
_SAVING_SPREAD = (0.3, 3.0)  # times that: disks differ
# Times the start-up: importing torch takes 1.5 s where it is in the file cache, and 6 s on a busy machine.
_START_SPREAD, _START_SPREAD_MEASURED = (0.5, 2.0), (0.8, 1.3)


@dataclass(frozen=True, kw_only=True)
class TimeForecast:
    """Seconds; (low, mid, high) where they depend on the speed."""

    throughput: ThroughputEstimate
    updates_s: LowMidHigh
    evaluation_s: float
    evaluations: int
    saving_s: float  # of the last checkpoint; the others are written in the background
    start_s: float  # imports, model, building kernels or compiling
    is_start_measured: bool = False

    @property
    def total_s(self) -> LowMidHigh:
        quick, long = _START_SPREAD_MEASURED if self.is_start_measured else _START_SPREAD
        low, mid, high = self.updates_s
        # Evaluations are faster or slower in proportion to updates.
        fast, slow = (
            self.evaluation_s * self.throughput.mid / rate
            for rate in (self.throughput.high, self.throughput.low)
        )
        return (
            low + fast + quick * self.start_s + self.saving_s * _SAVING_SPREAD[0],
            mid + self.evaluation_s + self.start_s + self.saving_s,
            high + slow + long * self.start_s + self.saving_s * _SAVING_SPREAD[1],
        )


@dataclass(frozen=True)
class RunForecast:
    memory: MemoryEstimate
    on_card: bool
    times: TimeForecast | None = None  # None: the speed of the machine is not known
    measured: MeasuredSpeed | None = None  # None: the speed is estimated from reference runs

    @property
    def throughput(self) -> ThroughputEstimate | None:
        return None if self.times is None else self.times.throughput

    @property
    def total_s(self) -> LowMidHigh | None:
        return None if self.times is None else self.times.total_s

    def as_dict(self) -> dict[str, Any]:
        throughput = self.throughput
        return {
            # As it will be measured: by PyTorch's allocator on a card, else of the whole process.
            "memory_bytes": self.memory.allocated_bytes if self.on_card else self.memory.total_bytes,
            "memory_parts": dict(self.memory.parts),
            "tokens_per_s": None if throughput is None else [throughput.low, throughput.mid, throughput.high],
            "mfu": None if throughput is None else list(throughput.mfu),
            "total_s": None if self.total_s is None else list(self.total_s),
            "why": "the machine's speed is not known" if throughput is None else throughput.why,
            "source": "reference runs" if self.measured is None else self.measured.source,
        }


@dataclass(frozen=True)
class Hardware:
    peak_flops_per_s: float | None  # of one card in the run's dtype, or of the CPU; None: not known
    card: Card | None  # if the table has it
    cluster: Cluster = ONE_CARD
    # The measured speed of such work on one of them; None: not measured, so estimated from reference rows.
    measured: MeasuredSpeed | None = None
    core: CoreSpeed = REFERENCE_CORE  # of a CPU


@dataclass(frozen=True)
class TokenCounts:
    per_update: int  # of all cards together
    per_evaluation: int  # of one split
    val_split: int  # the whole split


def forecast_workload(
    work: TrainingWorkload, flops_per_token: int, on: Hardware, tokens: TokenCounts
) -> RunForecast:
    on_card = work.device_type == "cuda"
    return RunForecast(
        memory.estimate_memory(work), on_card, _forecast_times(work, flops_per_token, on, tokens), on.measured
    )


def _forecast_times(
    work: TrainingWorkload, flops_per_token: int, on: Hardware, tokens: TokenCounts
) -> TimeForecast | None:
    config, device_type, measured = work.config, work.device_type, on.measured
    # The reference rows are of known cards; for a CPU its matmul peak is enough.
    if on.peak_flops_per_s is None or not (measured or on.card is not None or device_type == "cpu"):
        return None
    val_tokens = min(tokens.per_evaluation, tokens.val_split)
    one_rank, eval_tokens_per_s = _rank_speeds(work, flops_per_token, on, val_tokens)
    throughput = cluster_throughput(one_rank, work, on.cluster)
    updates = 0 if config.eval_only else config.max_iters
    train_tokens = updates * tokens.per_update
    # Both splits each time, and the whole validation split at the end. The ranks share it.
    evaluations = updates // config.eval_interval + 1 + (updates % config.eval_interval > 0)
    eval_tokens = (tokens.per_evaluation + val_tokens) * evaluations
    if has_closing_eval(config, val_tokens, tokens.val_split):
        eval_tokens += tokens.val_split
    evaluation_s = eval_tokens / (on.cluster.ranks * eval_tokens_per_s)
    if not config.eval_only:
        evaluation_s += overheads.sample_s(device_type, config.n_layer, config.sample_tokens)
    start_s = overheads.STARTUP_S[device_type] + config.probe_seconds
    if work.kernels:
        start_s += overheads.KERNEL_BUILD_S
    if work.compiled:
        start_s += overheads.compile_cost_s(device_type, config.n_layer)
    is_start_measured = measured is not None and measured.start_s is not None
    return TimeForecast(
        throughput=throughput,
        updates_s=(
            train_tokens / throughput.high,
            train_tokens / throughput.mid,
            train_tokens / throughput.low,
        ),
        evaluation_s=evaluation_s,
        evaluations=evaluations,
        saving_s=0.0 if config.eval_only else checkpoint_bytes(work) / _DISK_BYTES_PER_S,
        start_s=measured.start_s if measured and measured.start_s is not None else start_s,
        is_start_measured=is_start_measured,
    )


def _rank_speeds(
    work: TrainingWorkload, flops_per_token: int, on: Hardware, val_tokens: int
) -> tuple[ThroughputEstimate, float]:
    """Of one rank: the throughput of updates, and tokens per second of evaluations. A CPU counts as idle
    unless a probe measured it: what will run beside it cannot be known."""
    peak, measured = on.peak_flops_per_s, on.measured
    assert peak is not None
    if measured is not None and measured.eval_tokens_per_s is not None:
        return measured_throughput(measured, flops_per_token, peak), measured.eval_tokens_per_s
    estimated = evaluating = estimate_throughput(work, flops_per_token, peak, on.card, on.core)
    if work.device_type == "cpu":  # larger batches than an update's, and no optimizer
        batch_size = max(1, min(eval_batch_rows(work.config, "cpu"), val_tokens // work.config.block_size))
        forward_only = replace(work.config, optimizer="adamw", dropout=0.0, activation_checkpointing=False)
        batches = replace(work, batch_size=batch_size, config=forward_only)
        evaluating = estimate_throughput(batches, flops_per_token, peak, on.card, on.core)
    eval_tokens_per_s = evaluating.mid / overheads.FORWARD_SHARE
    if measured is None:
        return estimated, eval_tokens_per_s
    updating = measured_throughput(measured, flops_per_token, peak)
    return updating, eval_tokens_per_s * updating.mid / estimated.mid


def measured_throughput(measured: MeasuredSpeed, flops_per_token: int, peak: float) -> ThroughputEstimate:
    low, mid, high = measured.tokens_per_s
    percent_per_token = 100 * flops_per_token / peak
    mfu = (low * percent_per_token, mid * percent_per_token, high * percent_per_token)
    return ThroughputEstimate(low, mid, high, mfu, measured.why)
