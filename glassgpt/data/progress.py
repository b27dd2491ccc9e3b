"""How far a long pass over the text has come: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from glassgpt.figures import count, duration, percent

SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def passing(
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
        yield _lines(label, total_bytes, say, clock)


@contextmanager
def _bar(label: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    # On stderr, so that what is said on stdout can be piped; gone when done, so that the notes remain.
    progress = Progress(
        "{task.description}",
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with progress:
        task = progress.add_task(label, total=total_bytes)
        yield lambda done_bytes: progress.update(task, advance=done_bytes)


def _lines(
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


@contextmanager
def tokenizing(
    total_bytes: int, say: Callable[[str], None], show: bool, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int, int], None]]:
    """Show a pass that makes tokens; the function it hands out is told of bytes read and tokens made."""
    began = clock()
    tokens = 0

    def speed() -> str:
        return f"{count(tokens)} tokens, {count(tokens / max(clock() - began, 1e-9))} tokens/s"

    if not show:
        yield lambda done_bytes, made_tokens: None
    elif sys.stderr.isatty():
        with _token_bar(total_bytes) as advance_bar:

            def move(done_bytes: int, made_tokens: int) -> None:
                nonlocal tokens
                tokens += made_tokens
                advance_bar(done_bytes, speed())

            yield move
    else:
        done, said = 0, began

        def tell(done_bytes: int, made_tokens: int) -> None:
            nonlocal tokens, done, said
            tokens, done, now = tokens + made_tokens, done + done_bytes, clock()
            if now - said < SECONDS_BETWEEN_LINES or not done:
                return
            said = now
            left_s = max(0, total_bytes - done) * (now - began) / done
            say(f"encoding: {percent(done / total_bytes)}, {speed()}, {duration(left_s)} left")

        yield tell


@contextmanager
def _token_bar(total_bytes: int) -> Iterator[Callable[[int, str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

    progress = Progress(
        "{task.description}",
        BarColumn(),
        TaskProgressColumn(),
        "{task.fields[speed]}",
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with progress:
        task = progress.add_task("encoding", total=total_bytes, speed="")
        yield lambda done_bytes, speed: progress.update(task, advance=done_bytes, speed=speed)
