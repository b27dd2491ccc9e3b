"""What a run will take, said before it starts: memory, speed, time. No torch.

`glass plan` shows it, and every run writes it into its journal, beside what happened in the end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassgpt.config import TrainConfig
from glassgpt.estimate import memory, overheads
from glassgpt.estimate.cards import Card
from glassgpt.estimate.cluster import ONE_CARD, Cluster, cluster_throughput
from glassgpt.estimate.memory import MemoryEstimate, TrainingWorkload
from glassgpt.estimate.speed import ThroughputEstimate, estimate_throughput

_DISK_BYTES_PER_S = 6e8  # a checkpoint written, hashed and synced; usual SSDs are not slower

LowMidHigh = tuple[float, float, float]  # low, mid, high


@dataclass(frozen=True)
class RunForecast:
    """`pace` and all times are None where nobody knows how fast the machine is."""

    memory: MemoryEstimate
    on_card: bool
    throughput: ThroughputEstimate | None
    updates_s: LowMidHigh | None
    evaluation_s: float | None
    evaluations: int
    saving_s: float  # of the last checkpoint, which the run waits for; the others are written aside
    start_s: float  # imports, the model, building kernels or compiling

    @property
    def total_s(self) -> LowMidHigh | None:
        if self.throughput is None or self.updates_s is None or self.evaluation_s is None:
            return None
        fixed = self.saving_s + self.start_s
        low, mid, high = self.updates_s
        # Evaluations are as fast or slow as updates are.
        fast, slow = (
            self.evaluation_s * self.throughput.mid / rate
            for rate in (self.throughput.high, self.throughput.low)
        )
        return low + fast + fixed, mid + self.evaluation_s + fixed, high + slow + fixed

    def as_dict(self) -> dict[str, Any]:
        pace = self.throughput
        return {
            # As it will be measured: by PyTorch's allocator on a card, else of the whole process.
            "memory_bytes": self.memory.allocated_bytes if self.on_card else self.memory.total_bytes,
            "memory_parts": dict(self.memory.parts),
            "tokens_per_s": None if pace is None else [pace.low, pace.mid, pace.high],
            "mfu": None if pace is None else list(pace.mfu),
            "total_s": None if self.total_s is None else list(self.total_s),
            "why": "the machine's speed is not known" if pace is None else pace.why,
        }


@dataclass(frozen=True)
class Hardware:
    peak_flops_per_s: float | None  # FLOP/s of one card in the run's dtype, or of the CPU; None: nobody knows
    card: Card | None  # the table's, if it has it
    cluster: Cluster = ONE_CARD


@dataclass(frozen=True)
class TokenCounts:
    """How many tokens there are in what."""

    per_update: int  # of all cards together
    per_evaluation: int  # of one split, each time
    val_split: int  # the whole split


def forecast_workload(
    work: TrainingWorkload, flops_per_token: int, on: Hardware, tokens: TokenCounts
) -> RunForecast:
    config, kind = work.config, work.device_type
    updates = 0 if config.eval_only else config.max_iters
    evaluations = updates // config.eval_interval + 1 + (updates % config.eval_interval > 0)
    pace = updates_s = evaluation_s = None
    # The measured rows are of known cards; of CPUs the matmul peak says enough.
    if on.peak_flops_per_s is not None and (on.card is not None or kind == "cpu"):
        alone = evaluating = estimate_throughput(work, flops_per_token, on.peak_flops_per_s, on.card)
        if kind == "cpu":  # which asks itself less often: there is more at a time than an update has
            evaluating = estimate_throughput(
                _at_once(work, tokens), flops_per_token, on.peak_flops_per_s, on.card
            )
        pace = cluster_throughput(alone, work, on.cluster)
        learned = updates * tokens.per_update
        updates_s = (learned / pace.high, learned / pace.mid, learned / pace.low)
        evaluated = _evaluated(config, tokens, evaluations)
        evaluation_s = (
            evaluated * overheads.FORWARD_SHARE / (on.cluster.ranks * evaluating.mid)
        )  # each does its part
        if not config.eval_only:
            evaluation_s += overheads.sample_s(kind, config.n_layer, config.sample_tokens)
    return RunForecast(
        memory=memory.estimate_memory(work),
        on_card=kind == "cuda",
        throughput=pace,
        updates_s=updates_s,
        evaluation_s=evaluation_s,
        evaluations=evaluations,
        saving_s=0.0 if config.eval_only else memory.checkpoint_bytes(work) / _DISK_BYTES_PER_S,
        start_s=_start_s(work, kind),
    )


def _evaluated(config: TrainConfig, tokens: TokenCounts, evaluations: int) -> int:
    """Tokens of all evaluations: both splits each time, and all of the validation split at the end."""
    of_val = min(tokens.per_evaluation, tokens.val_split)
    closes = config.closing_eval and of_val < tokens.val_split - 1 and not config.eval_only
    return (tokens.per_evaluation + of_val) * evaluations + (tokens.val_split if closes else 0)


def _at_once(work: TrainingWorkload, tokens: TokenCounts) -> TrainingWorkload:
    """An evaluation, in micro-batches of its own."""
    sequences = min(tokens.per_evaluation, tokens.val_split) // work.config.block_size
    return replace(work, batch_size=max(work.batch_size, sequences))


def _start_s(work: TrainingWorkload, kind: str) -> float:
    seconds = overheads.STARTUP_S[kind] + work.config.probe_seconds
    if work.kernels:
        seconds += overheads.KERNEL_BUILD_S
    if work.compiled:
        seconds += overheads.compile_cost_s(kind, work.config.n_layer)
    return seconds
