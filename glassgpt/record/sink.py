"""The sink: where the loop's records go. First the journal, then whoever listens.

The journal is written in the loop's own thread, so that a record is safe before the loop goes on. Listeners
(console, trackers) each have a thread and a queue of their own: one that fails is dropped and named, one that
is slow or hangs only falls behind, and beyond a limit misses records, which are counted: a tracker all that
come then, so that it can be told the rest later. Neither can stop, slow or corrupt a run. A listener that has
a method `finish` gets it called in the end, after the journal is closed.
"""

from __future__ import annotations

import contextlib
import errno
import queue
import shlex
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError, error_type_and_message
from glassgpt.record.finding import finding_record
from glassgpt.record.journal import Journal, Record, abbreviate_home_paths

Listener = Callable[[Record], None]


class TrackerListener(Protocol):
    """A listener that tells a tracker, and knows how far it got."""

    def __call__(self, record: Record) -> None: ...

    def last_logged_records(self) -> list[Record]:
        """The last that the tracker was told of each series, for the journal."""


class Trackers(Protocol):
    """Opens the trackers that a run asks for: track/trackers.py, which `training` does not import."""

    def check_installed(self, names: Iterable[str]) -> None: ...

    def make_feeds(self, config: TrainConfig, run_dir: Path) -> Mapping[str, TrackerListener]: ...


# A pipe that was closed, a terminal that is gone.
_CLOSED_OUTPUT_ERRNOS = (errno.EPIPE, errno.EIO)

LISTENER_TIMEOUT_S = 5.0  # how long the end of a run waits for a slow listener
TRACKER_TIMEOUT_S = 15.0  # and for trackers, which may have to send what they were told
MAX_QUEUED_RECORDS = 10_000  # records that a listener may be behind; then it misses what comes

_KINDS_WITHOUT_PATHS = ("step", "eval", "sample")  # numbers, and what the model wrote

_TRACKER_THREAD_PREFIX = "tracker "  # how the names of these threads begin


class Sink:
    """Gives every record its time, process number, start and place in the journal; then passes it on.

    `trackers` are listeners by name. If one fails, that is a finding, which stands in the journal as well: so
    that it can be told the rest later.
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
        self._journal: Journal | None = None  # opened by the first record: before that nothing is written
        self._listeners = listeners
        self._listener_threads = [_ListenerThread(listener) for listener in listeners]
        self._trackers = dict(trackers or {})
        self._tracker_threads = [_ListenerThread(tracker, name) for name, tracker in self._trackers.items()]

    def __call__(self, record: Record) -> None:
        # Before the record, not after: the record of the end is the last one.
        for mailbox in self._tracker_threads:
            if mailbox.failure is not None and not mailbox.failure_reported:
                mailbox.failure_reported = True
                told = self._trackers[mailbox.name].last_logged_records()
                self._dispatch(_failed(mailbox.name, mailbox.failure, record["iter"], told))
            elif mailbox.missed_records and record["kind"] == "end":
                self._dispatch(_behind(mailbox.name, mailbox.missed_records, record["iter"]))
        self._dispatch(record)

    def _dispatch(self, record: Record) -> None:
        by = {"process": self._process, "start": self._start}
        record = {"kind": record["kind"], "time": time.time(), **by} | record
        shared = record if record["kind"] in _KINDS_WITHOUT_PATHS else abbreviate_home_paths(record)
        self.check_journal(record["iter"])
        with self._os_errors_as_user_errors():
            if self._journal is None:
                self._journal = Journal(self._path)
            self._journal.write(shared)
        for mailbox in self._listener_threads:
            mailbox.post(record)
        # Trackers write into the run's folder too. `glass track` tells them the rest later.
        for mailbox in () if self.has_moved or self.journal_lost_reason else self._tracker_threads:
            mailbox.post(shared)

    @contextlib.contextmanager
    def _os_errors_as_user_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"{self._path} cannot be written any more: {error.strerror}; fix that, then resume with "
                f"--init_from=resume --out_dir={shlex.quote(str(self._path.parent))}"
            ) from error

    @property
    def journal_lost_reason(self) -> str:
        """Why the journal's file is not this run's any more; empty if it is."""
        return "" if self._journal is None else self._journal.lost_reason

    def check_journal(self, done: int) -> None:
        """Looks whether it is, after `done` updates. Raises TakenOver if another process writes to it."""
        if self._journal is None:
            return
        with self._os_errors_as_user_errors():
            self._journal.check()
        if self._journal.was_rewritten:
            self._journal.was_rewritten = False
            self._dispatch(_rewritten(self._path, done))

    def move(self, path: Path) -> None:
        with self._os_errors_as_user_errors():
            self._path, self.has_moved = path, True
            if self._journal is not None:
                self._journal.move(path)

    def close(self) -> None:
        for mailbox in (*self._listener_threads, *self._tracker_threads):
            mailbox.request_stop()
        for mailboxes, patience_s in (
            (self._listener_threads, LISTENER_TIMEOUT_S),
            (self._tracker_threads, TRACKER_TIMEOUT_S),
        ):
            deadline = time.monotonic() + patience_s
            for mailbox in mailboxes:
                mailbox.wait(deadline)
        for mailbox in self._tracker_threads:
            mailbox.warn_if_unfinished(self._path.parent)
        if missed := sum(mailbox.missed_records for mailbox in self._listener_threads):
            _print_warning(f"warning: {missed:,} records could not be shown in time; the journal has them")
        if self._journal is not None:
            try:
                self._journal.close()
            except OSError as error:
                why = error.strerror or error
                _print_warning(
                    f"warning: {self._path} may not be whole on the disk: {why}; the checkpoints are"
                )
        for listener in self._listeners:
            finish = getattr(listener, "finish", None)
            try:
                if callable(finish):
                    finish()  # in this thread: it may take its time, and Ctrl-C reaches it
            except Exception as error:  # noqa: BLE001 - a listener cannot hurt a run
                warn_listener_failed(type(listener).__name__, error)


class NullSink(Sink):
    """Of a process that has nothing to record, because another one of its team does."""

    def __init__(self) -> None:
        self._journal = None

    def __call__(self, record: Record) -> None:
        pass

    def close(self) -> None:
        pass


class _ListenerThread:
    """A listener and its thread."""

    def __init__(self, listener: Listener, name: str = "") -> None:
        self._listener = listener
        self._records: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        self.name = name  # of a tracker
        self.failure: Exception | None = None
        self.failure_reported = False  # of the failure
        self.missed_records = 0  # records that there was no room for
        self._thread = threading.Thread(
            target=self._deliver, daemon=True, name=f"{_TRACKER_THREAD_PREFIX}{name}" if name else None
        )
        self._thread.start()

    def post(self, record: Record) -> None:
        if not self._thread.is_alive():
            return
        lacks_some = (
            self.name and self.missed_records
        )  # a tracker that was told later ones could not be told those
        if record["kind"] == "end" or (self._records.qsize() < MAX_QUEUED_RECORDS and not lacks_some):
            self._records.put(record)
        else:
            self.missed_records += 1

    def request_stop(self) -> None:
        self._records.put(None)

    def wait(self, deadline: float) -> None:
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def warn_if_unfinished(self, run_dir: Path) -> None:
        """What became known too late for the journal."""
        later = f"`glass track {run_dir} --to={self.name}` tells it the rest"
        if self._thread.is_alive():
            left = self._records.qsize()  # with the one that it is at, without the mark of the end
            seconds = f"{TRACKER_TIMEOUT_S:.0f} s"
            _print_warning(
                f"warning: {self.name} did not finish in {seconds}; {left:,} records left; {later}"
            )
        elif self.failure is not None and not self.failure_reported:
            _print_warning(
                f"warning: {self.name} failed at the end: {error_type_and_message(self.failure)}; {later}"
            )

    def _deliver(self) -> None:
        while (record := self._records.get()) is not None:
            try:
                self._listener(record)
            except Exception as error:  # noqa: BLE001 - whatever a listener does wrong must not reach the run
                self.failure = error
                if not self.name:
                    name = getattr(self._listener, "__qualname__", type(self._listener).__name__)
                    warn_listener_failed(name, error)
                return


def has_running_tracker() -> bool:
    """Whether a tracker hangs that no run waits for any more; leaving the process would wait for it."""
    return any(thread.name.startswith(_TRACKER_THREAD_PREFIX) for thread in threading.enumerate())


def _failed(name: str, error: Exception, done: int, told: list[Record]) -> Record:
    return finding_record(
        done,
        f"{name}-failed",
        "warning",
        f"{name} failed and is told nothing more; the run goes on",
        evidence=error_type_and_message(error),
        explanation="A tracker gets copies of what is in the journal. Nothing of the run is lost.",
        advice=f"`glass track RUN --to={name}` tells it the rest later",
    ) | {"told": told}


def _rewritten(path: Path, done: int) -> Record:
    return finding_record(
        done,
        "journal-rewritten",
        "warning",
        f"{path.name} was changed by another program; the run goes on in the changed file",
        evidence=f"{path} does not end with the record that was written last",
        explanation="What the changed file lacked at its end was appended again, if it could still be read.",
        advice="copy it before you edit it",
    )


def _behind(name: str, missed: int, done: int) -> Record:
    return finding_record(
        done,
        f"{name}-behind",
        "warning",
        f"{name} was too slow for the run and missed {missed:,} records",
        evidence=f"more than {MAX_QUEUED_RECORDS:,} were waiting for it",
        explanation="A run never waits for a tracker. All of its records are in the journal.",
        advice=f"`glass track RUN --to={name}` tells it the rest later; a larger --log_interval gives it "
        "less to do",
    )


def warn_listener_failed(name: str, error: Exception) -> None:
    if isinstance(error, OSError) and error.errno in _CLOSED_OUTPUT_ERRNOS:
        text = "warning: nobody reads the output any more; the run goes on"
    elif isinstance(error, OSError) and error.errno == errno.ENOSPC:  # `glass train > log` on a full disk
        text = f"warning: the output cannot be written any more: {error.strerror}; the run goes on"
    else:
        trace = "".join(traceback.format_exception(error))
        text = f"warning: {name} failed and gets no more records:\n{trace}"
    _print_warning(text)


def _print_warning(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone, and with it whoever could have read this
        print(text, file=sys.stderr, flush=True)
