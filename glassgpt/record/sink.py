"""The sink: where the loop's records go. First into the journal, then to the listeners.

The journal is written in the loop's thread, so that a record is safe before training continues. Listeners
(console, trackers) each have a thread and a queue. One that fails is dropped and named. One that is slow or
hangs falls behind, and beyond a limit it misses records, which are counted. From then on a tracker gets none,
so that the rest can be sent later, in order. No listener can stop, slow down or corrupt a run. If a listener
has a method `tick`, it is called in every second without a record, with what the loop is doing. If it has a
method `finish`, it is called at the end, after the journal is closed.
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError, error_type_and_message
from glassgpt.i18n import say, verbatim
from glassgpt.record.finding import finding_record
from glassgpt.record.journal import Journal, Record, abbreviate_home_paths
from glassgpt.record.run_dir import resume_command

Listener = Callable[[Record], None]
# What the loop is doing (a phase of the ledger, or `sample`), and how many updates are done. Called in the
# threads of listeners: it must only read.
ReadLoopStatus = Callable[[], tuple[str, int]]


class TrackerListener(Protocol):
    """A listener that logs to a tracker, and knows how far it got."""

    def __call__(self, record: Record) -> None: ...

    def last_logged_records(self) -> list[Record]:
        """The last record of each series that the tracker has, for the journal."""


class Trackers(Protocol):
    """Opens the trackers of a run: track/trackers.py, which `training` does not import."""

    def check_installed(self, names: Iterable[str]) -> None: ...

    def make_feeds(self, config: TrainConfig, run_dir: Path) -> Mapping[str, TrackerListener]: ...


# A pipe that was closed, a terminal that is gone.
_CLOSED_OUTPUT_ERRNOS = (errno.EPIPE, errno.EIO)

LISTENER_TIMEOUT_S = 5.0  # how long the end of a run waits for a slow listener
TRACKER_TIMEOUT_S = 15.0  # and for a tracker, which may have to upload what it got
TICK_S = 1.0  # without a record, after which a listener's `tick` is called
MAX_QUEUED_RECORDS = 10_000  # in a listener's queue; when it is full, the listener misses records

_KINDS_WITHOUT_PATHS = ("step", "eval", "sample")  # numbers, and generated text

_TRACKER_THREAD_PREFIX = "tracker "


class Sink:
    """Adds time, process number and start to every record, writes it to the journal, and passes it on.

    `trackers` are listeners by name. The failure of one is a finding in the journal, with how far it got, so
    that `glass track` can send it the rest later.
    """

    has_moved = False

    def __init__(
        self,
        path: Path,
        process: int,
        listeners: Sequence[Listener] = (),
        trackers: Mapping[str, TrackerListener] | None = None,
        start: str = "",
    ) -> None:
        self._path, self._process, self._start = path, process, start
        self._journal: Journal | None = None  # opened by the first record; until then nothing is written
        self._listeners = listeners
        self._listener_threads = [_ListenerThread(listener) for listener in listeners]
        self._trackers = dict(trackers or {})
        self._tracker_threads = [_ListenerThread(tracker, name) for name, tracker in self._trackers.items()]

    def __call__(self, record: Record) -> None:
        # Findings about trackers come before the record: the `end` record is the last one.
        for thread in self._tracker_threads:
            name = thread.name
            if thread.failure is not None and not thread.failure_reported:
                thread.failure_reported = True
                finding = finding_record(
                    record["iter"],
                    f"{name}-failed",
                    "warning",
                    title=say("tracker-failed.title", tracker=name),
                    evidence=verbatim(error_type_and_message(thread.failure)),
                    explanation=say("tracker-failed.explanation"),
                    advice=say("tracker-failed.advice", tracker=name),
                )
                self._dispatch(finding | {"told": self._trackers[name].last_logged_records()})
            elif thread.missed_records and record["kind"] == "end":
                finding = finding_record(
                    record["iter"],
                    f"{name}-behind",
                    "warning",
                    title=say("tracker-behind.title", tracker=name, missed_records=thread.missed_records),
                    evidence=say("tracker-behind.evidence", max_queued=MAX_QUEUED_RECORDS),
                    explanation=say("tracker-behind.explanation"),
                    advice=say("tracker-behind.advice", tracker=name),
                )
                self._dispatch(finding)
        self._dispatch(record)

    def watch_loop(self, read_status: ReadLoopStatus) -> None:
        """From now on the `tick` of listeners, if they have one, is called between records."""
        for thread in self._listener_threads:
            thread.read_loop_status = read_status

    def _dispatch(self, record: Record) -> None:
        origin = {"process": self._process, "start": self._start}
        record = {"kind": record["kind"], "time": time.time(), **origin} | record
        without_home = record if record["kind"] in _KINDS_WITHOUT_PATHS else abbreviate_home_paths(record)
        self.check_journal(record["iter"])
        with self._os_errors_as_user_errors():
            if self._journal is None:
                self._journal = Journal(self._path)
            self._journal.write(without_home)
        for thread in self._listener_threads:
            thread.post(record)
        # Trackers write into the run's folder too, which is lost. `glass track` sends them the rest later.
        if not (self.has_moved or self.journal_lost_reason):
            for thread in self._tracker_threads:
                thread.post(without_home)

    @contextlib.contextmanager
    def _os_errors_as_user_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"{self._path} cannot be written any more: {error.strerror}; fix that, then resume with "
                f"{resume_command(self._path.parent)}"
            ) from error

    @property
    def journal_lost_reason(self) -> str:
        """Why the journal's file is no longer this run's; empty if it is."""
        return "" if self._journal is None else self._journal.lost_reason

    def check_journal(self, done: int) -> None:
        """Checks that the journal file is still this run's. `done`: updates so far, for the finding.

        Raises RunSuperseded if a later start of the run writes to it.
        """
        if self._journal is None:
            return
        with self._os_errors_as_user_errors():
            self._journal.check()
        if self._journal.was_rewritten:
            self._journal.was_rewritten = False
            finding = finding_record(
                done,
                "journal-rewritten",
                "warning",
                title=say("journal-rewritten.title", file=self._path.name),
                evidence=say("journal-rewritten.evidence", path=str(self._path)),
                explanation=say("journal-rewritten.explanation"),
                advice=say("journal-rewritten.advice"),
            )
            self._dispatch(finding)

    def move(self, path: Path) -> None:
        with self._os_errors_as_user_errors():
            self._path, self.has_moved = path, True
            if self._journal is not None:
                self._journal.move(path)

    def close(self) -> None:
        for thread in (*self._listener_threads, *self._tracker_threads):
            thread.request_stop()
        for threads, timeout_s in (
            (self._listener_threads, LISTENER_TIMEOUT_S),
            (self._tracker_threads, TRACKER_TIMEOUT_S),
        ):
            deadline = time.monotonic() + timeout_s
            for thread in threads:
                thread.wait(deadline)
        for thread in self._tracker_threads:
            thread.warn_if_unfinished(self._path.parent)
        if missed := sum(thread.missed_records for thread in self._listener_threads):
            _print_warning(f"warning: {missed:,} records could not be shown in time; the journal has them")
        if self._journal is not None:
            try:
                self._journal.close()
            except OSError as error:
                reason = error.strerror or error
                _print_warning(
                    f"warning: {self._path} may not be whole on the disk: {reason}; the checkpoints are"
                )
        for listener in self._listeners:
            finish = getattr(listener, "finish", None)
            try:
                if callable(finish):
                    finish()  # in this thread: it may take long, and Ctrl-C reaches it
            except Exception as error:  # noqa: BLE001 - a listener must not fail the run
                warn_listener_failed(type(listener).__name__, error)


class NullSink:
    """The sink of a rank whose records rank 0 writes."""

    has_moved = False
    journal_lost_reason = ""

    def __call__(self, record: Record) -> None:
        pass

    def watch_loop(self, read_status: ReadLoopStatus) -> None:
        pass

    def check_journal(self, done: int) -> None:
        pass

    def move(self, path: Path) -> None:
        self.has_moved = True

    def close(self) -> None:
        pass


class _ListenerThread:
    """A listener, its queue and its thread."""

    def __init__(self, listener: Listener, name: str = "") -> None:
        self._listener = listener
        self._records: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        self.name = name  # of a tracker; empty: another listener
        self.failure: Exception | None = None
        self.failure_reported = False
        self.missed_records = 0  # because the queue was full
        self.read_loop_status: ReadLoopStatus | None = None
        context = contextvars.copy_context()  # the language of messages, which a thread does not inherit
        self._thread = threading.Thread(
            target=context.run,
            args=(self._deliver,),
            daemon=True,
            name=f"{_TRACKER_THREAD_PREFIX}{name}" if name else None,
        )
        self._thread.start()

    def post(self, record: Record) -> None:
        if not self._thread.is_alive():
            return
        # A tracker that got later records could not be sent the missed ones any more.
        stays_behind = self.name and self.missed_records
        if record["kind"] == "end" or (self._records.qsize() < MAX_QUEUED_RECORDS and not stays_behind):
            self._records.put(record)
        else:
            self.missed_records += 1

    def request_stop(self) -> None:
        self._records.put(None)

    def wait(self, deadline: float) -> None:
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def warn_if_unfinished(self, run_dir: Path) -> None:
        """Warns of what happened too late for the journal."""
        fix = f"`glass track {run_dir} --to={self.name}` sends it the rest"
        if self._thread.is_alive():
            left = self._records.qsize()  # plus the current record, minus the stop request
            _print_warning(
                f"warning: {self.name} did not finish in {TRACKER_TIMEOUT_S:.0f} s; {left:,} records left; "
                f"{fix}"
            )
        elif self.failure is not None and not self.failure_reported:
            _print_warning(
                f"warning: {self.name} failed at the end: {error_type_and_message(self.failure)}; {fix}"
            )

    def _deliver(self) -> None:
        tick = getattr(self._listener, "tick", None)
        while True:
            try:
                record = self._records.get(timeout=None if tick is None else TICK_S)
            except queue.Empty:
                record = {}
            if record is None:
                return
            try:
                if record:
                    self._listener(record)
                elif tick is not None and self.read_loop_status is not None:
                    tick(*self.read_loop_status())
            except Exception as error:  # noqa: BLE001 - no error of a listener may reach the run
                self.failure = error
                if not self.name:
                    name = getattr(self._listener, "__qualname__", type(self._listener).__name__)
                    warn_listener_failed(name, error)
                return


def has_running_tracker() -> bool:
    """Whether a tracker still runs. A normal exit of the process would wait for it."""
    return any(thread.name.startswith(_TRACKER_THREAD_PREFIX) for thread in threading.enumerate())


def warn_listener_failed(name: str, error: Exception) -> None:
    if isinstance(error, OSError) and error.errno in _CLOSED_OUTPUT_ERRNOS:
        text = "warning: the output was closed; the run continues without it"
    elif isinstance(error, OSError) and error.errno == errno.ENOSPC:  # `glass train > log` on a full disk
        text = f"warning: the output cannot be written any more: {error.strerror}; the run continues"
    else:
        trace = "".join(traceback.format_exception(error))
        text = f"warning: {name} failed and gets no more records:\n{trace}"
    _print_warning(text)


def _print_warning(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone
        print(text, file=sys.stderr, flush=True)
