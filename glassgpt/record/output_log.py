"""The saved output of a command that `glass watch` runs: runs/watch-1/output.log, then watch-2, ….

Writing it never stops the command: a full disk or a folder that cannot be made is reported once, and the
output is still passed on. The log says where something is missing.
"""

from __future__ import annotations

import os
import select
import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from glassgpt.errors import UserError
from glassgpt.record.run_dir import OUTPUT_LOG_FILE, RUNS_DIR, lock_run_dir, make_numbered_dir


class OutputLog:
    """Appends bytes, unbuffered, from any thread, so that others can follow the file.

    `path` is None where nothing can be saved. While it is open, the folder is locked, as that of a run which
    trains: a log without new lines is then known to be of a command that still runs.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self.path: Path | None = None
        self._report = report
        self._has_reported = False
        self._gap_reason = ""  # why output after the last byte of the file is missing
        self._lock = threading.Lock()
        self._closing = ExitStack()
        try:
            fix = "start it in a folder of yours"
            folder = make_numbered_dir(RUNS_DIR, "watch", first="watch-1", fix=fix)
            if (folder_lock := lock_run_dir(folder)) is not None:
                self._closing.enter_context(folder_lock)
            path = folder / OUTPUT_LOG_FILE
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        except (OSError, UserError) as error:
            self._report_once(str(error))
            return
        self._closing.callback(os.close, self._file)
        self.path = path

    def write(self, chunk: bytes) -> None:
        if self.path is None:
            return
        with self._lock:
            try:
                if self._gap_reason:
                    write_all(self._file, f"\n[glass watch: {self._gap_reason}]\n".encode())
                    self._gap_reason = ""
                write_all(self._file, chunk)
            except OSError as error:
                self._gap_reason = f"output is missing here: {error.strerror}"
                self._report_once(f"{self.path}: {error.strerror}")

    def close(self) -> None:
        self._closing.close()

    def discard(self) -> None:
        """Removes the folder of a command that could not be started: there is nothing to look at."""
        self.close()
        if self.path is not None:
            shutil.rmtree(self.path.parent)
            self.path = None

    def _report_once(self, reason: str) -> None:
        if not self._has_reported:
            self._has_reported = True
            self._report(f"the output is not saved, the command goes on: {reason}")


def write_all(descriptor: int, data: bytes) -> None:
    """Also where another process has made the terminal or pipe non-blocking."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            select.select([], [descriptor], [])
