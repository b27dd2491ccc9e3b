"""Progress of a long pass over the text: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from glassgpt.format import format_count, format_duration, format_percent

SECONDS_BETWEEN_LINES = 10.0


class Advance(Protocol):
    def __call__(self, done_bytes: int, new_tokens: int = 0, /) -> None:
        """What a step has done; a pass that makes no tokens counts its bytes."""


@contextmanager
def show_progress(
    label: str,
    total_bytes: int,
    print_line: Callable[[str], None],
    show: bool,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Advance]:
    """Shows a pass over `total_bytes`; yields a function to call at each step."""
    started = last_line = clock()
    done = tokens = 0

    def count(done_bytes: int, new_tokens: int) -> str:
        """How far it is, and how fast."""
        nonlocal done, tokens
        done, tokens = done + done_bytes, tokens + new_tokens
        seconds = max(clock() - started, 1e-9)
        if tokens:
            return f"{format_count(tokens)} tokens, {format_count(tokens / seconds)} tokens/s"
        return f"{done / 1e6:,.0f} of {total_bytes / 1e6:,.0f} MB, {done / seconds / 1e6:,.1f} MB/s"

    def print_progress(done_bytes: int, new_tokens: int = 0) -> None:
        nonlocal last_line
        speed, now = count(done_bytes, new_tokens), clock()
        if now - last_line < SECONDS_BETWEEN_LINES or not done:
            return
        last_line = now
        left_s = max(0, total_bytes - done) * (now - started) / done
        print_line(f"{label}: {format_percent(done / total_bytes)}, {speed}, {format_duration(left_s)} left")

    if not show:
        yield lambda done_bytes, new_tokens=0: None
    elif not sys.stderr.isatty():
        yield print_progress
    else:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

        columns = (BarColumn(), TaskProgressColumn(), "{task.fields[speed]}", TimeRemainingColumn())
        # On stderr, so that stdout can be piped; removed at the end, so that only the notes remain.
        with Progress(
            "{task.description}", *columns, console=Console(stderr=True), transient=True
        ) as progress:
            task = progress.add_task(label, total=total_bytes, speed="")
            yield lambda done_bytes, new_tokens=0: progress.update(
                task, advance=done_bytes, speed=count(done_bytes, new_tokens)
            )


@dataclass(frozen=True)
class PrepareLog:
    """What a preparation prints, and which of these lines its manifest keeps."""

    print_line: Callable[[str], None]
    shows_progress: bool
    notes: list[str] = field(default_factory=list)

    def note(self, line: str) -> None:
        self.notes.append(line)
        self.print_line(line)

    def progress(self, label: str, total_bytes: int) -> AbstractContextManager[Advance]:
        return show_progress(label, total_bytes, self.print_line, self.shows_progress)
