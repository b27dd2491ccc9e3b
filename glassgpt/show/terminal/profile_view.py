"""What a look into some updates found, in words: for the console and the report."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from glassgpt import format

_MAX_NAME_CHARS = 64  # characters of a name


def profile_line(record: Mapping[str, Any]) -> str:
    """One sentence: which updates, where the trace is, how busy the machine was."""
    updates = max(1, record["updates"])
    return (
        f"updates {record['from_iter'] + 1:,} to {record['from_iter'] + updates:,}: {record['trace']}   "
        f"({format.format_ms(record['wall_ms'] / updates)} each under the profiler, "
        f"{record['of']} ran for {record['busy']:.0%} of it)"
    )


def profile_rows(record: Mapping[str, Any]) -> list[str]:
    """The table, a line each: share, time and calls per update, name."""
    updates = max(1, record["updates"])
    return [
        f"{piece['share']:>6.1%}  {format.format_ms(piece['ms'] / updates):>8}  "
        f"{piece['calls'] / updates:>6.4g} x  {short_kernel_name(piece['name'])}"
        for piece in record["top"]
    ]


def short_kernel_name(name: str) -> str:
    """A kernel without its template arguments, which may fill a page, and at most as long as a line takes."""
    plain = name.removeprefix("void ")
    while "<" in plain and plain != (shorter := re.sub(r"<[^<>]*>", "", plain)):
        plain = shorter
    plain = plain.partition("(")[0].replace("at::native::", "").strip() or name
    return plain if len(plain) <= _MAX_NAME_CHARS else plain[: _MAX_NAME_CHARS - 1] + "…"
