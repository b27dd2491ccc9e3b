"""How far a long pass over the text has come: a bar on a terminal, a line now and then elsewhere."""

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
    say: Callable[[str], None],
    show: bool,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[int], None]]:
    """Show a pass over `total_bytes`; the function it hands out is told of bytes as they are done."""
    if not show:
        yield lambda done_bytes: None
    elif sys.stderr.isatty():
        with _bar(label, total_bytes) as advance:
            yield advance
    else:
        yield _print_byte_progress(label, total_bytes, say, clock)


@contextmanager
def show_token_progress(
    total_bytes: int, say: Callable[[str], None], show: bool, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int, int], None]]:
    """Show a pass that makes tokens; the function it hands out is told of bytes read and tokens made."""
    speed = _TokenSpeed(clock)
    if not show:
        yield lambda done_bytes, made_tokens: None
    elif sys.stderr.isatty():
        with _token_bar(total_bytes) as move:
            yield lambda done_bytes, made_tokens: move(done_bytes, speed.describe_after(made_tokens))
    else:
        yield _print_token_progress(total_bytes, say, speed, clock)


class _TokenSpeed:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._began, self._tokens = clock, clock(), 0

    def describe_after(self, made_tokens: int) -> str:
        """How many tokens there are with these, and how fast they came, in words."""
        self._tokens += made_tokens
        per_s = self._tokens / max(self._clock() - self._began, 1e-9)
        return f"{format_count(self._tokens)} tokens, {format_count(per_s)} tokens/s"


# --- lines ---


def _print_byte_progress(
    label: str, total_bytes: int, say: Callable[[str], None], clock: Callable[[], float]
) -> Callable[[int], None]:
    began = said = clock()
    done = 0

    def advance(done_bytes: int) -> None:
        nonlocal said, done
        done += done_bytes
        now = clock()
        if now - said < SECONDS_BETWEEN_LINES:
            return
        said = now
        speed = done / (now - began)
        left_s = max(0, total_bytes - done) / speed if speed else 0.0
        say(
            f"{label}: {done / 1e6:,.0f} of {total_bytes / 1e6:,.0f} MB, "
            f"{speed / 1e6:,.1f} MB/s, {left_s:,.0f} s left"
        )

    return advance


def _print_token_progress(
    total_bytes: int, say: Callable[[str], None], speed: _TokenSpeed, clock: Callable[[], float]
) -> Callable[[int, int], None]:
    began = said = clock()
    done = 0

    def advance(done_bytes: int, made_tokens: int) -> None:
        nonlocal said, done
        done += done_bytes
        told, now = speed.describe_after(made_tokens), clock()
        if now - said < SECONDS_BETWEEN_LINES or not done:
            return
        said = now
        left_s = max(0, total_bytes - done) * (now - began) / done
        say(f"encoding: {format_percent(done / total_bytes)}, {told}, {format_duration(left_s)} left")

    return advance


# --- bars ---


@contextmanager
def _bar(label: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with _progress_display(*columns) as progress:
        task = progress.add_task(label, total=total_bytes)
        yield lambda done_bytes: progress.update(task, advance=done_bytes)


@contextmanager
def _token_bar(total_bytes: int) -> Iterator[Callable[[int, str], None]]:
    from rich.progress import BarColumn, TaskProgressColumn, TimeRemainingColumn

    with _progress_display(
        BarColumn(), TaskProgressColumn(), "{task.fields[speed]}", TimeRemainingColumn()
    ) as progress:
        task = progress.add_task("encoding", total=total_bytes, speed="")
        yield lambda done_bytes, speed: progress.update(task, advance=done_bytes, speed=speed)


def _progress_display(*columns: str | ProgressColumn) -> Progress:
    """On stderr, so that what is said on stdout can be piped; gone when done, so that the notes remain."""
    from rich.console import Console
    from rich.progress import Progress

    return Progress("{task.description}", *columns, console=Console(stderr=True), transient=True)
