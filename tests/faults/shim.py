"""Faults at a file system call of one's choice: shim.c, compiled and loaded before everything else.

restart_with_shim()                  at the beginning of a script
Child(faulty(work, fault), output)   a process in which the fault happens
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

COUNT, ONCE, ALWAYS, KILL_BEFORE, KILL_AFTER, COUNT_CHANGES = range(6)

SHIM_VARIABLE = "GLASS_TEST_SHIM"
_SOURCE = Path(__file__).with_name("shim.c")


def shim_problem() -> str | None:
    """Why there can be no shim here, or None."""
    if not sys.platform.startswith("linux"):
        return "the shim needs Linux's LD_PRELOAD and /proc"
    return None if shutil.which("cc") else "the shim needs a C compiler, cc"


def is_loaded() -> bool:
    return SHIM_VARIABLE in os.environ


def restart_with_shim() -> None:
    """Executes this script again with the shim loaded; returns where that has been done."""
    if is_loaded():
        os.environ.pop("LD_PRELOAD", None)  # the processes that this one starts do without
        return
    if (reason := shim_problem()) is not None:
        sys.exit(reason)
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "shim.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, _SOURCE, "-ldl"], check=True)
        changes = {"LD_PRELOAD": str(library), SHIM_VARIABLE: str(library)}
        sys.exit(subprocess.run([sys.executable, *sys.argv], env={**os.environ, **changes}).returncode)


@dataclass
class Fault:
    """What shall happen at call number `at` among those on files in `folders`."""

    folders: Sequence[Path]
    at: int = 0
    mode: int = COUNT
    error: int = errno.EIO
    _shared: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, mmap.PAGESIZE))

    def arm(self) -> None:
        """In this process, for all of its life."""
        library = ctypes.CDLL(os.environ[SHIM_VARIABLE])
        names = [ctypes.c_char_p(os.fsencode(folder.absolute())) for folder in self.folders]
        library.shim_arm.restype = None
        self._kept = names  # which the shim points to
        library.shim_arm(
            *(*names, None)[:2],
            ctypes.c_long(self.at),
            self.mode,
            self.error,
            ctypes.byref(ctypes.c_char.from_buffer(self._shared)),
        )

    @property
    def calls(self) -> int:
        """Seen so far."""
        return int.from_bytes(self._shared[:8], sys.byteorder)

    @property
    def where(self) -> str:
        """The call it happened at, with the path from the folder on; empty: at none."""
        text = os.fsdecode(self._shared[8:1032].partition(b"\0")[0])
        for folder in self.folders:
            text = text.replace(f" {folder.absolute()}", f" {folder.name}")
        return text


def with_fault(work: Callable[[], int | None], fault: Fault) -> Callable[[], int | None]:
    def armed() -> int | None:
        fault.arm()
        return work()

    return armed
