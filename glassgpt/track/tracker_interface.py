"""The interface of a tracker, and the names of the metrics that it logs. docs/track.md explains each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from glassgpt.record.journal import Record

# A series: `step`, or the evaluations of one split. Its records come in the order of their iterations.
Series = tuple[str, str, bool]
LoggedIters = Mapping[Series, int]  # the last iteration that was logged of each series


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker needs to open a run, or to resume it."""

    directory: Path
    name: str
    project: str
    id: str  # the same in every process of the run
    settings: Mapping[str, Any]  # as in the `run` record
    already_logged: LoggedIters = field(default_factory=dict)  # by earlier processes, to this tracker
    from_iter: int = -1  # the run resumes here: what was logged past it is superseded


class Tracker(Protocol):
    def begin(self, run: TrackedRun) -> LoggedIters:
        """Opens the run. Returns what the tracker already has and keeps: only later records are logged."""

    def log(self, record: Record) -> None:
        """Logs a `step` or an `eval`."""

    def end(self, record: Record) -> None:
        """The run has ended; nothing follows."""


def series_of(record: Record) -> Series:
    return record["kind"], str(record.get("split", "")), bool(record.get("closing"))


# --- metrics ---

STEP_METRICS = {
    "loss": "train/loss",
    "loss_mean": "train/loss_mean",
    "lr": "lr",
    "grad_norm": "grad_norm",
    "clipped": "clipped",
    "tokens": "tokens",
    "step_ms": "step_ms",
    "tokens_per_s": "tokens_per_s",
    "flops_per_s": "flops_per_s",
    "mfu": "mfu",
    "loss_scale": "loss_scale",
}
MEMORY_METRICS = {
    "rss": "memory/rss",
    "allocated_peak": "memory/allocated_peak",
    "reserved": "memory/reserved",
}
EVAL_METRICS = ("loss", "stderr", "perplexity", "bits_per_byte")
# By split and whether it is the closing evaluation, which is over other tokens and so not on the same curve.
SPLIT_PREFIXES = {("train", False): "train_split", ("val", False): "val", ("val", True): "val_whole"}


def metrics_of(record: Record) -> dict[str, float]:
    """The numbers of a record by the names of their metrics. NaN is a number; unknown values are left out."""
    if record["kind"] == "step":
        memory = record.get("memory")
        memory_metrics = _numbers(memory, MEMORY_METRICS) if isinstance(memory, dict) else {}
        return _numbers(record, STEP_METRICS) | memory_metrics
    if record["kind"] == "eval":
        prefix = SPLIT_PREFIXES.get((str(record.get("split")), bool(record.get("closing"))))
        return _numbers(record, {name: f"{prefix}/{name}" for name in EVAL_METRICS}) if prefix else {}
    return {}


def _numbers(values: Mapping[str, Any], metric_names: Mapping[str, str]) -> dict[str, float]:
    return {
        metric: value
        for name, metric in metric_names.items()
        if isinstance(value := values.get(name), int | float) and not isinstance(value, bool)
    }
