"""The runs that somebody looks at: each is read and analysed in a thread of its own, so that the server stays
free, and closed when nobody has looked at it for a while.

    run = runs.open(entry)
    document = await run.ask(LiveRun.document)       # what the page shows first
    events = await run.ask(reader.tick)              # then, about once a second
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from glassgpt.errors import UserError
from glassgpt.explain.explanation import Explanation
from glassgpt.explain.watch import FollowedRun
from glassgpt.record import journal
from glassgpt.runs.analysis import Analysis
from glassgpt.show.page.learned import learned_view
from glassgpt.show.page.run_folder import RunEntry
from glassgpt.show.page.series import rows_of
from glassgpt.show.page.stream import PageEvent, RunStream, cursor_of
from glassgpt.show.page.view import View, cleaned, view_of

T = TypeVar("T")

TICK_S = 1.0  # between two looks at a growing file
MAX_READING_S = 0.5  # at a time: then the page shows how much of a long file is read
MIN_VIEW_S = 2.0  # between two views, in at most a tenth of the time; rows come with every look
_MAX_TIME_SHARE = 0.1
_KEPT_VIEWS = 4
_MANY_ROWS = 50_000  # of a run: the rules take seconds, so that the charts come first
_PATIENCE_S = 5.0  # since the last question about a file that is being read
_IDLE_S = 60.0  # then a run that nobody looks at is closed
_MAX_IDLE = 4  # runs that stay open that long: each holds its rows in memory


class LiveRun:
    """A followed run and its view, which all its readers share. Not for several threads."""

    def __init__(self, source: str, name: str) -> None:
        self.followed, self._name = FollowedRun(source), name
        self._was_read = False
        self._next_look_at = self._next_view_at = -math.inf
        self._shown: tuple[Explanation | None, str] = (None, "")  # and the problem, of the latest view
        self._view_number = 0  # rises with each new view
        self._views: dict[int, View] = {}  # the latest few: readers may have an older one

    def look(self) -> None:
        """Read what was appended, unless another reader did so just now."""
        started_at = time.monotonic()
        if started_at < self._next_look_at:
            return
        has_grown = self.followed.poll(MAX_READING_S)
        self._was_read = self._was_read or self.followed.read_share >= 1
        if not self.is_read:
            return  # at once again: nobody can see anything before it is read
        run_log = self.followed.run_log
        if self.followed.explanation is not None or (run_log and len(run_log.steps) < _MANY_ROWS):
            self.followed.refresh()
        explanation, problem = self._shown
        is_news = self.followed.explanation is not explanation or self.followed.problem != problem
        is_due = is_news or time.monotonic() >= self._next_view_at
        if not self._views or (is_due and (has_grown or is_news or self.followed.is_live)):
            self._make_view()
        self._next_look_at = started_at + TICK_S / 2

    def _make_view(self) -> None:
        started_at = time.monotonic()
        view = view_of(self.followed, self._name, time.time())
        self._shown = self.followed.explanation, self.followed.problem
        self._view_number += 1
        self._views = dict(list(self._views.items())[1 - _KEPT_VIEWS :]) | {self._view_number: view}
        now = time.monotonic()
        self._next_view_at = now + max(MIN_VIEW_S, (now - started_at) / _MAX_TIME_SHARE)

    @property
    def is_reading(self) -> bool:
        return not self._was_read and self.followed.read_share > 0

    @property
    def is_read(self) -> bool:
        """False while a long file is read for the first time."""
        return self._was_read and self.followed.run_log is not None

    @property
    def view(self) -> View | None:
        return self._views.get(self._view_number)

    def document(self) -> dict[str, Any]:
        """All that a page shows, or how much of the file is read: 1 where no run has begun in it yet."""
        if not self.is_read:
            return {"reading": self.followed.read_share}
        assert self.followed.run_log is not None
        cursor = f"{cursor_of(self.followed)}~{self._view_number}"
        return {"view": self.view, "rows": rows_of(self.followed.run_log), "cursor": cursor}

    def explain(self) -> None:
        """With all findings, of all that was read."""
        self.followed.refresh(force=True)
        self._make_view()

    def learned(self) -> dict[str, Any]:
        """What the panel of that name shows, with looks that were made just now."""
        self.followed.poll()
        run_log = self.followed.run_log
        return {"learned": {} if run_log is None else cleaned(learned_view(Analysis(run_log)))}

    def known_view(self, number: str) -> View | None:
        """The view that a reader got with its cursor."""
        return (
            self._views.get(int(number))
            if number.isascii() and number.isdigit() and len(number) < 16
            else None
        )


class Reader:
    """One open page: what it has, and what is new for it."""

    def __init__(self, cursor: str) -> None:
        self._cursor, _, self._view_number = cursor.partition("~")
        self._stream: RunStream | None = None

    def tick(self, run: LiveRun) -> bytes:
        """Server-sent events, in their own format."""
        if not run.is_read:
            return b""
        if self._stream is None:
            self._stream = RunStream(run.followed, self._cursor, run.known_view(self._view_number))
        elif run.followed.explanation is None:
            run.followed.refresh()  # once the page has its charts: the rules take long in a long run
        return b"".join(encode_event(event) for event in self._stream.tick(run.view))


def encode_event(event: PageEvent) -> bytes:
    head = f"id: {event.cursor}\n" if event.cursor else ""
    return f"{head}event: {event.name}\ndata: {journal.dumps(event.data)}\n\n".encode()


class OpenedRun:
    """A run and the thread that alone touches it. An executor would do, but Python waits for its threads at
    the end of a process, and reading a long journal takes long."""

    def __init__(self, entry: RunEntry) -> None:
        self.entry = entry
        self.readers = 0  # event streams
        self.used_at = time.monotonic()
        self._run = LiveRun(entry.source, entry.name)
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    async def ask(self, question: Callable[[LiveRun], T]) -> T:
        """The answer, after reading what was appended to the run."""
        self.used_at = time.monotonic()
        answer: Future[T] = Future()
        context = contextvars.copy_context()  # the language of the server

        def task() -> None:
            if not answer.set_running_or_notify_cancel():  # the browser has gone
                return
            try:
                context.run(self._run.look)
                answer.set_result(context.run(question, self._run))
            except BaseException as error:  # noqa: BLE001 - raised again in the coroutine
                answer.set_exception(error)

        self._tasks.put(task)
        return await asyncio.wrap_future(answer)

    def _work(self) -> None:
        """Between two questions, a long file is read on, while somebody waits for it."""
        has_failed = False
        while True:
            is_waited_for = time.monotonic() - self.used_at < _PATIENCE_S
            try:
                task = self._tasks.get(block=has_failed or not self._run.is_reading or not is_waited_for)
            except queue.Empty:
                try:
                    self._run.look()
                except (UserError, OSError):  # the next question gets it, too
                    has_failed = True
                continue
            if task is None:
                return
            task()

    def close(self) -> None:
        self._tasks.put(None)


class OpenedRuns:
    def __init__(self) -> None:
        self._runs: dict[str, OpenedRun] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def open(self, entry: RunEntry) -> OpenedRun:
        run = self._runs.get(entry.id)
        if run is None:
            run = self._runs[entry.id] = OpenedRun(entry)
        run.used_at = time.monotonic()
        self.close_idle()
        return run

    @property
    def readers(self) -> int:
        return sum(run.readers for run in self._runs.values())

    def close_idle(self, now: float | None = None) -> None:
        now = time.monotonic() if now is None else now
        idle = sorted((run for run in self._runs.values() if not run.readers), key=lambda run: -run.used_at)
        for number, run in enumerate(idle):
            if number >= _MAX_IDLE or now - run.used_at > _IDLE_S:
                del self._runs[run.entry.id]
                run.close()

    def close(self) -> None:
        for run in self._runs.values():
            run.close()
        self._runs = {}
