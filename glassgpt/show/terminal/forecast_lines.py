"""What was forecast for a run, and how it turned out, in a line each."""

from __future__ import annotations

from typing import Any

from glassgpt import format
from glassgpt.record.journal import Record


def forecast_line(forecast: Record) -> str:
    """Of a `run` record."""
    parts = [f"{format.format_bytes(forecast['memory_bytes'])} of memory"]
    if forecast["tokens_per_s"]:
        low, _, high = forecast["tokens_per_s"]
        parts.append(f"{format.format_count(low)} to {format.format_count(high)} tok/s")
    if forecast["total_s"]:
        parts.append(f"about {format.format_duration(forecast['total_s'][1])} in all")
    return f"{', '.join(parts)}   ({forecast['why']})"


def forecast_vs_actual_line(forecast: Record) -> str:
    """Of an `end` record: what was measured, and what had been expected of it; empty if nothing was."""
    memory, speed, total = (forecast[name] for name in ("memory_bytes", "tokens_per_s", "total_s"))
    parts = []
    if memory["measured"]:
        parts.append(
            f"{format.format_bytes(memory['measured'])} ({format.format_bytes(memory['expected'])} expected)"
        )
    if speed["measured"] and speed["expected"]:
        parts.append(
            f"{format.format_count(speed['measured'])} tok/s ({_range(speed['expected'], format.format_count)})"
        )
    if total["measured"] and total["expected"]:
        parts.append(
            f"{format.format_duration(total['measured'])} ({_range(total['expected'], format.format_duration)})"
        )
        if total.get("tuning_s"):  # journals of older versions do not have it
            parts.append(f"the {format.format_duration(total['tuning_s'])} of --tune left out")
    return ", ".join(parts)


def _range(values: list[float], write: Any) -> str:
    return f"{write(values[0])} to {write(values[2])}"
