"""What was forecast for a run, and how it turned out, in a line each."""

from __future__ import annotations

from typing import Any

from glassgpt import format
from glassgpt.record.journal import Record


def forecast_line(forecast: Record) -> str:
    """Of a `run` record."""
    parts = [f"{format.size(forecast['memory_bytes'])} of memory"]
    if forecast["tokens_per_s"]:
        low, _, high = forecast["tokens_per_s"]
        parts.append(f"{format.count(low)} to {format.count(high)} tok/s")
    if forecast["total_s"]:
        parts.append(f"about {format.duration(forecast['total_s'][1])} in all")
    return f"{', '.join(parts)}   ({forecast['why']})"


def outcome_line(forecast: Record) -> str:
    """Of an `end` record: what was measured, and what had been expected of it; empty if nothing was."""
    memory, speed, total = (forecast[name] for name in ("memory_bytes", "tokens_per_s", "total_s"))
    parts = []
    if memory["measured"]:
        parts.append(f"{format.size(memory['measured'])} ({format.size(memory['expected'])} expected)")
    if speed["measured"] and speed["expected"]:
        parts.append(f"{format.count(speed['measured'])} tok/s ({_range(speed['expected'], format.count)})")
    if total["measured"] and total["expected"]:
        parts.append(f"{format.duration(total['measured'])} ({_range(total['expected'], format.duration)})")
        if total.get("tuning_s"):  # journals of older versions do not have it
            parts.append(f"the {format.duration(total['tuning_s'])} of --tune left out")
    return ", ".join(parts)


def _range(values: list[float], write: Any) -> str:
    return f"{write(values[0])} to {write(values[2])}"
