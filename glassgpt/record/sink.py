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
from glassgpt.errors import UserError, first_line
from glassgpt.record.finding import finding_record
from glassgpt.record.journal import Journal, Record, shareable

Listener = Callable[[Record], None]


class TrackerListener(Protocol):
    """A listener that tells a tracker, and knows how far it got."""

    def __call__(self, record: Record) -> None: ...

    def reached(self) -> list[Record]:
        """The last that the tracker was told of each series, for the journal."""


class Trackers(Protocol):
    """Opens the trackers that a run asks for: track/trackers.py, which `training` does not import."""

    def check_installed(self, names: Iterable[str]) -> None: ...

    def followers(self, config: TrainConfig, run_dir: Path) -> Mapping[str, TrackerListener]: ...


# A pipe that was closed, a terminal that is gone.
_NOBODY_READS = (errno.EPIPE, errno.EIO)

PATIENCE_S = 5.0  # how long the end of a run waits for a slow listener
TRACKERS_PATIENCE_S = 15.0  # and for trackers, which may have to send what they were told
WAITING = 10_000  # records that a listener may be behind; then it misses what comes

_WITHOUT_PATHS = ("step", "eval", "sample")  # numbers, and what the model wrote

_TRACKER_THREAD = "tracker "  # how the names of these threads begin


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
        self._listening = [_Mailbox(listener) for listener in listeners]
        self._trackers = dict(trackers or {})
        self._tracking = [_Mailbox(tracker, name) for name, tracker in self._trackers.items()]

    def __call__(self, record: Record) -> None:
        # Before the record, not after: the record of the end is the last one.
        for mailbox in self._tracking:
            if mailbox.failure is not None and not mailbox.told:
                mailbox.told = True
                told = self._trackers[mailbox.name].reached()
                self._pass_on(_failed(mailbox.name, mailbox.failure, record["iter"], told))
            elif mailbox.missed and record["kind"] == "end":
                self._pass_on(_behind(mailbox.name, mailbox.missed, record["iter"]))
        self._pass_on(record)

    def _pass_on(self, record: Record) -> None:
        by = {"process": self._process, "start": self._start}
        record = {"kind": record["kind"], "time": time.time(), **by} | record
        shared = record if record["kind"] in _WITHOUT_PATHS else shareable(record)
        self.check(record["iter"])
        with self._failing_as_mistake():
            if self._journal is None:
                self._journal = Journal(self._path)
            self._journal.write(shared)
        for mailbox in self._listening:
            mailbox.post(record)
        # Trackers write into the run's folder too. `glass track` tells them the rest later.
        for mailbox in () if self.has_moved or self.lost else self._tracking:
            mailbox.post(shared)

    @contextlib.contextmanager
    def _failing_as_mistake(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"{self._path} cannot be written any more: {error.strerror}; fix that, then resume with "
                f"--init_from=resume --out_dir={shlex.quote(str(self._path.parent))}"
            ) from error

    @property
    def lost(self) -> str:
        """Why the journal's file is not this run's any more; empty if it is."""
        return "" if self._journal is None else self._journal.lost

    def check(self, done: int) -> None:
        """Looks whether it is, after `done` updates. Raises TakenOver if another process writes to it."""
        if self._journal is None:
            return
        with self._failing_as_mistake():
            self._journal.check()
        if self._journal.was_rewritten:
            self._journal.was_rewritten = False
            self._pass_on(_rewritten(self._path, done))

    def move(self, path: Path) -> None:
        with self._failing_as_mistake():
            self._path, self.has_moved = path, True
            if self._journal is not None:
                self._journal.move(path)

    def close(self) -> None:
        for mailbox in (*self._listening, *self._tracking):
            mailbox.no_more()
        for mailboxes, patience_s in ((self._listening, PATIENCE_S), (self._tracking, TRACKERS_PATIENCE_S)):
            deadline = time.monotonic() + patience_s
            for mailbox in mailboxes:
                mailbox.wait(deadline)
        for mailbox in self._tracking:
            mailbox.warn_of_its_end(self._path.parent)
        if missed := sum(mailbox.missed for mailbox in self._listening):
            _say(f"warning: {missed:,} records could not be shown in time; the journal has them")
        if self._journal is not None:
            try:
                self._journal.close()
            except OSError as error:
                why = error.strerror or error
                _say(f"warning: {self._path} may not be whole on the disk: {why}; the checkpoints are")
        for listener in self._listeners:
            finish = getattr(listener, "finish", None)
            try:
                if callable(finish):
                    finish()  # in this thread: it may take its time, and Ctrl-C reaches it
            except Exception as error:  # noqa: BLE001 - a listener cannot hurt a run
                warn_of(type(listener).__name__, error)


class Silence(Sink):
    """Of a process that has nothing to record, because another one of its team does."""

    def __init__(self) -> None:
        self._journal = None

    def __call__(self, record: Record) -> None:
        pass

    def close(self) -> None:
        pass


class _Mailbox:
    """A listener and its thread."""

    def __init__(self, listener: Listener, name: str = "") -> None:
        self._listener = listener
        self._records: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        self.name = name  # of a tracker
        self.failure: Exception | None = None
        self.told = False  # of the failure
        self.missed = 0  # records that there was no room for
        self._thread = threading.Thread(
            target=self._deliver, daemon=True, name=f"{_TRACKER_THREAD}{name}" if name else None
        )
        self._thread.start()

    def post(self, record: Record) -> None:
        if not self._thread.is_alive():
            return
        lacks_some = self.name and self.missed  # a tracker that was told later ones could not be told those
        if record["kind"] == "end" or (self._records.qsize() < WAITING and not lacks_some):
            self._records.put(record)
        else:
            self.missed += 1

    def no_more(self) -> None:
        self._records.put(None)

    def wait(self, deadline: float) -> None:
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def warn_of_its_end(self, run_dir: Path) -> None:
        """What became known too late for the journal."""
        later = f"`glass track {run_dir} --to={self.name}` tells it the rest"
        if self._thread.is_alive():
            left = self._records.qsize()  # with the one that it is at, without the mark of the end
            seconds = f"{TRACKERS_PATIENCE_S:.0f} s"
            _say(f"warning: {self.name} did not finish in {seconds}; {left:,} records left; {later}")
        elif self.failure is not None and not self.told:
            _say(f"warning: {self.name} failed at the end: {first_line(self.failure)}; {later}")

    def _deliver(self) -> None:
        while (record := self._records.get()) is not None:
            try:
                self._listener(record)
            except Exception as error:  # noqa: BLE001 - whatever a listener does wrong must not reach the run
                self.failure = error
                if not self.name:
                    name = getattr(self._listener, "__qualname__", type(self._listener).__name__)
                    warn_of(name, error)
                return


def still_tracking() -> bool:
    """Whether a tracker hangs that no run waits for any more; leaving the process would wait for it."""
    return any(thread.name.startswith(_TRACKER_THREAD) for thread in threading.enumerate())


def _failed(name: str, error: Exception, done: int, told: list[Record]) -> Record:
    return finding_record(
        done,
        f"{name}-failed",
        "warning",
        f"{name} failed and is told nothing more; the run goes on",
        evidence=first_line(error),
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
        evidence=f"more than {WAITING:,} were waiting for it",
        explanation="A run never waits for a tracker. All of its records are in the journal.",
        advice=f"`glass track RUN --to={name}` tells it the rest later; a larger --log_interval gives it "
        "less to do",
    )


def warn_of(name: str, error: Exception) -> None:
    if isinstance(error, OSError) and error.errno in _NOBODY_READS:
        text = "warning: nobody reads the output any more; the run goes on"
    elif isinstance(error, OSError) and error.errno == errno.ENOSPC:  # `glass train > log` on a full disk
        text = f"warning: the output cannot be written any more: {error.strerror}; the run goes on"
    else:
        trace = "".join(traceback.format_exception(error))
        text = f"warning: {name} failed and gets no more records:\n{trace}"
    _say(text)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone, and with it whoever could have read this
        print(text, file=sys.stderr, flush=True)
