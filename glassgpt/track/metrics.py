"""The names under which trackers know the numbers of a record. docs/track.md explains each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glassgpt.record.journal import Record

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
# Where a curve is drawn of each: the closing pass is over other tokens, and no point of the others' curve.
SPLIT_PREFIXES = {("train", False): "train_split", ("val", False): "val", ("val", True): "val_whole"}


def metrics_of(record: Record) -> dict[str, float]:
    """By name; what is not known has no name here. NaN is a number."""
    if record["kind"] == "step":
        memory = record.get("memory")
        return _named(record, STEP_METRICS) | _named(
            memory if isinstance(memory, dict) else {}, MEMORY_METRICS
        )
    if record["kind"] == "eval":
        split = SPLIT_PREFIXES.get((str(record.get("split")), bool(record.get("closing"))))
        return _named(record, {name: f"{split}/{name}" for name in EVAL_METRICS} if split else {})
    return {}


def _named(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, float]:
    found = {ours: values.get(name) for name, ours in names.items()}
    return {
        ours: value
        for ours, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
