"""Speed as it was measured: by a probe, by finished runs on this machine, or by a run's own first updates.

    speed = speed_from_repeats([20_100, 20_900, 20_500], "cpu", "measured here: …")
    speed.tokens_per_s                      # low, mid, high: an 80% band of a whole run's mean

A measurement replaces the estimate from reference rows (speed.py). The band has two parts: how much
the repeats differ, and how far a whole run usually is from a few seconds of it (the drift). No torch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from glassgpt.cgroup import usable_cores
from glassgpt.estimate.training_workload import TrainingWorkload
from glassgpt.format import format_duration
from glassgpt.record.machine import CpuTimes, cores_used_by_others

LowMidHigh = tuple[float, float, float]

# A whole run compared with a few seconds of it: so much slower, and so much faster, as shares. On a card: an
# H200 did 790 TFLOP/s in a burst and 690 for minutes, when its power limit holds. On a CPU: bench/LOG.md.
DRIFT = {"cuda": (0.13, 0.04), "mps": (0.13, 0.05), "cpu": (0.15, 0.12)}
_BUSY_CORE_SHARE = 0.5  # of the cores: with a smaller load a CPU counts as idle
_MIN_BUSY_CORES = 0.3  # used by other programs: fewer make no difference
_MAX_IDLE_SPEEDUP = 16.0
_REPEATS = 5  # the measured updates are compared in so many consecutive groups


@dataclass(frozen=True)
class MeasuredSpeed:
    """Of one rank. `source`: "probe", "history" or "run"."""

    tokens_per_s: LowMidHigh
    why: str
    source: str
    eval_tokens_per_s: float | None = None  # None: in proportion to `tokens_per_s`
    start_s: float | None = None  # until the first update was done
    peak_bytes: int | None = None  # on a card as allocated by PyTorch, else resident


# What the speed and the memory of a rank depend on besides the machine: settings, fields of the workload, and
# those that work_key derives. No names, no paths.
KEYED_SETTINGS = (
    "n_layer", "n_head", "n_embd", "block_size", "arch", "bias", "tie_embeddings", "activation", "optimizer",
    "fp8", "activation_checkpointing",
)  # fmt: skip
KEYED_FIELDS = (
    "vocab_size", "batch_size", "micro_steps", "device_type", "dtype", "attention", "graph",
)  # fmt: skip


def work_key(work: TrainingWorkload) -> dict[str, Any]:
    key = {name: getattr(work.config, name) for name in KEYED_SETTINGS}
    return (
        key
        | {name: getattr(work, name) for name in KEYED_FIELDS}
        | {
            "dropout": work.config.dropout > 0,
            "kernels": "triton" if work.kernels else "compiled" if work.compiled else "plain",
            "sharded": work.is_sharded,
        }
    )


def group_means(update_s: Sequence[float]) -> list[float]:
    """The mean of each of some consecutive groups of updates: what lasts longer than one update shows."""
    groups = min(_REPEATS, len(update_s))
    edges = [round(number * len(update_s) / groups) for number in range(groups + 1)]
    return [sum(update_s[begin:end]) / (end - begin) for begin, end in itertools.pairwise(edges)]


def idle_speedup(before: CpuTimes, now: CpuTimes) -> float:
    """How many times as fast a CPU run could be if the other programs stopped: it would get all cores instead
    of those that it got between two readings. 1 where they used little."""
    if cores_used_by_others(before, now) < _MIN_BUSY_CORES:
        return 1.0
    own_cores = (now.own_s - before.own_s) / max(1e-9, now.wall_s - before.wall_s)
    return min(_MAX_IDLE_SPEEDUP, max(1.0, usable_cores() / max(own_cores, 1e-9)))


def fair_share(load: float) -> float:
    """Of a CPU's speed: what a run gets beside a load of so many other runnable threads, if they stay."""
    cores = usable_cores()
    return cores / (cores + load) if load > _BUSY_CORE_SHARE * cores else 1.0


def band_from_repeats(rates: Sequence[float], device_type: str) -> LowMidHigh:
    """From tokens per second of some repeats: their median, widened by their spread and by the drift. On a
    busy CPU it assumes that the other programs stay: else the band would be too wide to be of use."""
    mid = median(rates)
    spread = (max(rates) - min(rates)) / 2 / mid
    slower, faster = (math.hypot(spread, drift) for drift in DRIFT[device_type])
    return mid / (1 + slower), mid, mid * (1 + faster)


# --- the probe ---


@dataclass(frozen=True)
class ProbeResult:
    """A few updates of the planned run, in a separate process (tune/probe_updates.py)."""

    outcome: str  # "ran", "out of memory", "crashed", "hung" or "not here"
    why: str = ""  # where it failed, or why it was not tried
    took_s: float = 0.0  # the whole probe, start of its process included
    update_s: tuple[float, ...] = ()  # per whole update
    micro_steps: int = 0  # micro-batches that each of them ran; the rest is extrapolated
    timed_s: float = 0.0
    eval_tokens_per_s: float | None = None
    start_s: float = 0.0  # from the start of the process until the first update was done
    peak_bytes: int | None = None  # on a card as allocated by PyTorch, else resident
    reserved_bytes: int | None = None  # by PyTorch, on a card
    busy_cores: float = 0.0  # used by other programs meanwhile
    idle_speedup: float = 1.0  # how many times as fast it could have been without them
    threads: int | None = None  # of a CPU
    batch_size: int = 0
    work: Mapping[str, Any] = field(default_factory=dict)  # work_key of what was run
    facts: Mapping[str, Any] = field(default_factory=dict)  # facts_record, as a run would have measured them

    @property
    def ran(self) -> bool:
        return self.outcome == "ran"

    @property
    def micro_batches(self) -> int:
        return self.micro_steps * len(self.update_s)

    def as_dict(self) -> dict[str, Any]:
        """For --json; without the facts, which the plan shows as its choices."""
        document = asdict(self)
        del document["facts"], document["work"]
        return document | {"micro_batches": self.micro_batches}

    def describe(self) -> str:
        if not self.ran:
            return f"the probe {self.why}"
        text = f"measured here: {self.micro_batches:,} micro-batches in {format_duration(self.timed_s)}"
        if self.busy_cores >= 0.1:
            text += f", while other programs used {self.busy_cores:.1f} cores"
        return text

    def speed_of(self, work: TrainingWorkload) -> MeasuredSpeed | None:
        """None if it did not run, or ran other work."""
        if not self.ran or work_key(work) != dict(self.work):
            return None
        tokens = work.micro_batch_tokens * work.micro_steps
        rates = [tokens / seconds for seconds in group_means(self.update_s)]
        band = band_from_repeats(rates, work.device_type)
        return MeasuredSpeed(
            band, self.describe(), "probe", self.eval_tokens_per_s, self.start_s, self.peak_bytes
        )
