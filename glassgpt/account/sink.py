"""The sink: where the loop's records go. First the journal, then whoever listens.

The journal is written in the loop's own thread, so that a record is safe before the loop goes on. Listeners
(console, trackers) each have a thread and a queue of their own: one that fails is dropped and named, one that
is slow or hangs only falls behind. Neither can stop, slow or corrupt a run.
"""

from __future__ import annotations

import contextlib
import errno
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from glassgpt.account.journal import Journal, Record
from glassgpt.errors import UserError

Listener = Callable[[Record], None]

# A pipe that was closed, a terminal that is gone.
_NOBODY_READS = (errno.EPIPE, errno.EIO)

PATIENCE_S = 5.0  # how long the end of a run waits for a slow listener


class Sink:
    """Gives every record its time, process number and place in the journal; then passes it on."""

    def __init__(self, path: Path, process: int, listeners: Sequence[Listener] = ()) -> None:
        self._path, self._process = path, process
        self._journal: Journal | None = None  # opened by the first record: before that nothing is written
        self._mailboxes = [_Mailbox(listener) for listener in listeners]

    def __call__(self, record: Record) -> None:
        record = {"kind": record["kind"], "time": time.time(), "process": self._process} | record
        try:
            if self._journal is None:
                self._journal = Journal(self._path)
            self._journal.write(record)
        except OSError as error:
            raise UserError(
                f"{self._path} cannot be written any more: {error.strerror}; make room, then go on with "
                f"--init_from=resume --out_dir={self._path.parent}"
            ) from error
        for mailbox in self._mailboxes:
            mailbox.post(record)

    def close(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        for mailbox in self._mailboxes:
            mailbox.close(deadline)
        if self._journal is not None:
            self._journal.close()


class Silence(Sink):
    """Of a process that has nothing to record, because another one of its team does."""

    def __init__(self) -> None:
        pass

    def __call__(self, record: Record) -> None:
        pass

    def close(self) -> None:
        pass


class _Mailbox:
    """A listener and its thread."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._records: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._deliver, daemon=True)
        self._thread.start()

    def post(self, record: Record) -> None:
        if self._thread.is_alive():
            self._records.put(record)

    def close(self, deadline: float) -> None:
        self._records.put(None)
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def _deliver(self) -> None:
        while (record := self._records.get()) is not None:
            try:
                self._listener(record)
            except Exception as error:  # noqa: BLE001 - whatever a listener does wrong must not reach the run
                name = getattr(self._listener, "__qualname__", type(self._listener).__name__)
                _warn(name, error)
                return


def _warn(name: str, error: Exception) -> None:
    if isinstance(error, OSError) and error.errno in _NOBODY_READS:
        text = "warning: nobody reads the output any more; the run goes on"
    else:
        trace = "".join(traceback.format_exception(error))
        text = f"warning: {name} failed and gets no more records:\n{trace}"
    with contextlib.suppress(OSError):  # the terminal is gone, and with it whoever could have read this
        print(text, file=sys.stderr, flush=True)
