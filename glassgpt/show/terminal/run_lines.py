"""Lines about a run, from its journal records: forecast, profile, scaling, next steps; and `print_line`.

`RunConsole` prints all of them. `NanogptConsole` prints the next steps.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from glassgpt.data.dataset import BUILT_IN
from glassgpt.files import expand_user_path
from glassgpt.format import format_bytes, format_count, format_duration, format_ms, pluralize
from glassgpt.record.journal import Record
from glassgpt.record.run_dir import resume_command
from glassgpt.sanitize import sanitize_text

_MAX_KERNEL_NAME_CHARS = 64
_MAX_PROFILE_ROWS = 10


def print_line(out: Console, label: str, text: str, style: str = "") -> None:
    """A bold label in a column of 13 characters, and the text beside it, on one line."""
    line = Text.assemble((f"{sanitize_text(label):<13} ", "bold"), (sanitize_text(text), style))
    out.print(line, soft_wrap=True)


# --- forecast ---


def forecast_line(forecast: Record) -> str:
    """The forecast of a `run` record."""
    parts = [f"{format_bytes(forecast['memory_bytes'])} of memory"]
    if forecast["tokens_per_s"]:
        low, _, high = forecast["tokens_per_s"]
        parts.append(f"{format_count(low)} to {format_count(high)} tok/s")
    if forecast["total_s"]:
        low, mid, high = (format_duration(seconds) for seconds in forecast["total_s"])
        parts.append(f"{mid} in all (80%: {low} to {high})")
    return f"{', '.join(parts)}   ({forecast['why']})"


def revised_forecast_line(record: Record) -> str:
    """A `forecast` record: what replaces the forecast of the `run` record."""
    low, mid, high = (format_duration(seconds) for seconds in record["total_s"])
    measured = f"{pluralize(record['updates'], 'update')} in {format_duration(record['seconds'])}"
    return f"{mid} in all (80%: {low} to {high})   (measured: {measured})"


def forecast_vs_actual_line(forecast: Record) -> str:
    """The forecast of an `end` record beside what was measured; empty if nothing was measured."""

    def format_range(values: list[float], format_value: Callable[[float], str]) -> str:
        return f"{format_value(values[0])} to {format_value(values[2])}"

    memory, speed, total = (forecast[name] for name in ("memory_bytes", "tokens_per_s", "total_s"))
    parts = []
    if memory["measured"]:
        measured, expected = format_bytes(memory["measured"]), format_bytes(memory["expected"])
        parts.append(f"{measured} ({expected} expected)")
    if speed["measured"] and speed["expected"]:
        expected = format_range(speed["expected"], format_count)
        parts.append(f"{format_count(speed['measured'])} tok/s ({expected})")
    if total["measured"] and total["expected"]:
        expected = format_range(total["expected"], format_duration)
        parts.append(f"{format_duration(total['measured'])} ({expected})")
        if total.get("tuning_s"):  # journals of older versions do not have it
            parts.append(f"without the {format_duration(total['tuning_s'])} of --tune")
    return ", ".join(parts)


def scaling_efficiency_line(ranks: Record) -> str:
    """How well several ranks scaled, from an `end` record.

    Empty with FSDP: communication overlaps with compute there, so the two cannot be timed separately.
    """
    if ranks["efficiency"] is None:
        return ""
    return (
        f"{len(ranks['work_s'])} ranks, {ranks['efficiency']:.0%} scaling efficiency; "
        f"{ranks['exchanging']:.0%} of the time in all-reduce, "
        f"{ranks['waiting']:.0%} waiting for the slowest, rank {ranks['slowest']}"
    )


# --- profile ---


def profile_lines(record: Mapping[str, Any]) -> list[str]:
    """A sentence about the profiled updates, then the slowest kernels: share, time and calls per update."""
    updates = max(1, record["updates"])
    summary = (
        f"updates {record['from_iter'] + 1:,} to {record['from_iter'] + updates:,}: {record['trace']}   "
        f"({format_ms(record['wall_ms'] / updates)} each under the profiler, "
        f"{record['of']} ran for {record['busy']:.0%} of it)"
    )
    rows = [
        f"{kernel['share']:>6.1%}  {format_ms(kernel['ms'] / updates):>8}  "
        f"{kernel['calls'] / updates:>6.4g} x  {short_kernel_name(kernel['name'])}"
        for kernel in record["top"][:_MAX_PROFILE_ROWS]
    ]
    return [summary, *rows]


def short_kernel_name(name: str) -> str:
    """A kernel's name without template arguments, which may fill a page, cut to a line."""
    plain = name.removeprefix("void ")
    while "<" in plain and plain != (shorter := re.sub(r"<[^<>]*>", "", plain)):
        plain = shorter
    plain = plain.partition("(")[0].replace("at::native::", "").strip() or name
    return plain if len(plain) <= _MAX_KERNEL_NAME_CHARS else plain[: _MAX_KERNEL_NAME_CHARS - 1] + "…"


# --- next steps ---


def suggest_next_steps(end: Record, run: Record) -> list[tuple[str, str]]:
    """(label, line) pairs: how to resume, sample or train longer, by the reason of the `end` record."""
    run = run | (
        {"out_dir": end["out_dir"]} if "out_dir" in end else {}
    )  # its folder was removed during the run
    out_dir = expand_user_path(run.get("out_dir", "RUN"))
    quoted_dir = shlex.quote(str(out_dir))
    group = run.get("team", {})
    is_one_machine = group and group["size"] == group["per_machine"]
    resume = resume_command(out_dir, *([f"--nproc={group['size']}"] if is_one_machine else []))

    reason = end["reason"]
    if reason == "not finite":
        norms = ", ".join(f"{norm:.3g}" for norm in end["recent_grad_norms"][-5:])
        saved = end["last_checkpoint"]
        problem = f"the loss or gradient of iter {end['bad_iter']:,} was not finite; update skipped"
        return [
            ("problem", problem),
            ("norms", f"the last gradient norms: {norms}"),
            ("next", f"the last good checkpoint is {saved}" if saved else "there is no checkpoint yet"),
            ("", "try a lower --learning_rate, a longer --warmup_iters, or --dtype=float32"),
        ]
    if reason == "interrupted":
        return [("next", f"resume with  {resume}")]
    if reason == "crashed":
        saved = end.get("last_checkpoint")
        advice = f"resume from {saved} with  {resume}" if saved else "there is no checkpoint to resume from"
        return [("problem", str(end.get("error", ""))), ("next", advice)]
    if reason != "finished":
        return []
    lines = [
        ("next", f"sample from it:    glass sample {quoted_dir}"),
        ("", f"train it longer:   {resume} --max_iters={2 * run['config']['max_iters'] if run else 'N'}"),
    ]
    if run.get("data", {}).get("name") in BUILT_IN:
        lines.append(("", "on your own text:  glass prepare my.txt   then   glass train --dataset=my"))
    # `glass runs` without a folder lists runs/; the out_dir of a nanoGPT config is often elsewhere.
    parent = "runs" if "out_dir" not in run else str(out_dir.parent)
    all_runs = "glass runs" if parent == "runs" else f"glass runs {shlex.quote(parent)}"
    return [*lines, ("", f"see all runs:      {all_runs}")]
