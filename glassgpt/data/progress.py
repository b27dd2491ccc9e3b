"""Progress of a long pass over the text: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from glassgpt.format import format_count, format_duration, format_percent

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def show_byte_progress(
    label: str,
    total_bytes: int,
    print_line: Callable[[str], None],
    show: bool,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[int], None]]:
    """Shows a pass over `total_bytes`; yields a function to call with the bytes of each step."""
    if not show:
        yield lambda done_bytes: None
        return
    if sys.stderr.isatty():
        from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with _progress_display(*columns) as progress:
            task = progress.add_task(label, total=total_bytes)
            yield lambda done_bytes: progress.update(task, advance=done_bytes)
        return
    started = last_line = clock()
    done = 0

    def advance(done_bytes: int) -> None:
        nonlocal last_line, done
        done += done_bytes
        now = clock()
        if now - last_line < SECONDS_BETWEEN_LINES:
            return
        last_line = now
        bytes_per_s = done / (now - started)
        left_s = max(0, total_bytes - done) / bytes_per_s if bytes_per_s else 0.0
        print_line(
            f"{label}: {done / 1e6:,.0f} of {total_bytes / 1e6:,.0f} MB, "
            f"{bytes_per_s / 1e6:,.1f} MB/s, {left_s:,.0f} s left"
        )

    yield advance


@contextmanager
def show_token_progress(
    total_bytes: int,
    print_line: Callable[[str], None],
    show: bool,
    clock: Callable[[], float] = time.monotonic,
    label: str = "encoding",
) -> Iterator[Callable[[int, int], None]]:
    """Shows a pass over tokens; yields a function to call with the bytes and the tokens of each step."""
    if not show:
        yield lambda done_bytes, new_tokens: None
        return
    started = last_line = clock()
    done = tokens = 0

    def count_tokens(new_tokens: int) -> str:
        """How many tokens there are so far, and how fast they came."""
        nonlocal tokens
        tokens += new_tokens
        tokens_per_s = tokens / max(clock() - started, 1e-9)
        return f"{format_count(tokens)} tokens, {format_count(tokens_per_s)} tokens/s"

    if sys.stderr.isatty():
        from rich.progress import BarColumn, TaskProgressColumn, TimeRemainingColumn

        columns = (BarColumn(), TaskProgressColumn(), "{task.fields[speed]}", TimeRemainingColumn())
        with _progress_display(*columns) as progress:
            task = progress.add_task(label, total=total_bytes, speed="")
            yield lambda done_bytes, new_tokens: progress.update(
                task, advance=done_bytes, speed=count_tokens(new_tokens)
            )
        return

    def advance(done_bytes: int, new_tokens: int) -> None:
        nonlocal last_line, done
        done += done_bytes
        speed, now = count_tokens(new_tokens), clock()
        if now - last_line < SECONDS_BETWEEN_LINES or not done:
            return
        last_line = now
        left_s = max(0, total_bytes - done) * (now - started) / done
        print_line(f"{label}: {format_percent(done / total_bytes)}, {speed}, {format_duration(left_s)} left")

    yield advance


def _progress_display(*columns: str | ProgressColumn) -> Progress:
    """On stderr, so that stdout can be piped; removed at the end, so that only the notes remain."""
    from rich.console import Console
    from rich.progress import Progress

    return Progress("{task.description}", *columns, console=Console(stderr=True), transient=True)
