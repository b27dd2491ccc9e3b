"""Processes to be killed: forked from one that has imported everything and computed nothing.

That saves three seconds of imports per process and changes nothing else.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from glassgpt.record.ledger import Ledger
from glassgpt.training.checkpoint.saver import Saver

# What `glass train` imports while it runs: here once, or every child would take a third of a second for it.
for _name in (
    "glassgpt.cli.train_command",
    "glassgpt.explain.explanation",
    "glassgpt.show.page.html",
    "glassgpt.show.terminal.run_console",
):
    import_module(_name)

CHILD_PHASES = ("startup", "train", "eval", "save", "compile")  # what a process is doing
_CODES = {name: code for code, name in enumerate(CHILD_PHASES, start=1)}


class Child:
    """A process that does `work`, and says in shared memory what it is doing. Its output goes to a file."""

    def __init__(self, work: Callable[[], int | None], output: Path) -> None:
        self._shared = mmap.mmap(-1, 2)  # what it does; whether a checkpoint is being written
        self.output, self._code = output, None  # type: tuple[Path, int | None]
        sys.stdout.flush()
        self.started = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            self._child_main(work)

    def _child_main(self, work: Callable[[], int | None]) -> None:
        """Never returns."""
        code = 1
        try:
            signal.alarm(300)  # should the parent die
            descriptor = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            with publish_phase(self._shared):
                code = work() or 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:  # noqa: BLE001 - told to the parent, whatever it is
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def current_phase(self) -> str | None:
        code = _CODES["save"] if self._shared[1] else self._shared[0]
        return CHILD_PHASES[code - 1] if code else None

    def exit_code(self) -> int | None:
        """None while it lives."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self, limit_s: float = 120.0) -> int:
        deadline = time.monotonic() + limit_s
        while (code := self.exit_code()) is None:
            if time.monotonic() > deadline:
                self.send(signal.SIGKILL)
                raise TimeoutError(f"still alive after {limit_s} s:\n{self.output.read_text()}")
            time.sleep(0.002)
        return code

    def wait_until(self, moment: str) -> None:
        while self.current_phase() != moment:
            if self.exit_code() is not None:
                raise RuntimeError(f"ended before {moment}:\n{self.output.read_text()}")
            time.sleep(0.0001)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.wait()


@contextmanager
def publish_phase(shared: mmap.mmap) -> Iterator[None]:
    """Everything this process does from now on shows in shared memory."""
    phase, write = Ledger.phase, Saver._write

    @contextmanager
    def shown_phase(ledger: Ledger, name: str, activity: str = "") -> Iterator[Any]:
        before = shared[0]
        shared[0] = _CODES.get(name, before)
        with phase(ledger, name, activity) as timed:
            yield timed
        shared[0] = before

    def shown_write(saver: Saver, *arguments: Any) -> Any:
        shared[1] = 1
        try:
            return write(saver, *arguments)
        finally:
            shared[1] = 0

    Ledger.phase, Saver._write = shown_phase, shown_write  # type: ignore[method-assign, assignment]
    yield
