"""Checks that misbehave, for a process of their own to run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from glassgpt.doctor.check import DiagnosticLine


def fine(folder: Path) -> list[DiagnosticLine]:
    return [DiagnosticLine("fine", f"in {folder.name}", values={"share": 0.5, "none": None})]


def chatty(folder: Path) -> list[DiagnosticLine]:
    """Libraries and compilers print to wherever they like."""
    print("a library says hello")
    os.write(1, b"and a compiler, {not json\n")
    subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
    return [DiagnosticLine("chatty", "said it all")]


def broken(folder: Path) -> list[DiagnosticLine]:
    raise RuntimeError("no such thing\nCommand: c++ x.cpp\nx.cpp:1: fatal error: Python.h: No such file")


def deadly(folder: Path) -> list[DiagnosticLine]:
    os.write(2, b"about to go\nthis is the end\n\n")
    os.kill(os.getpid(), signal.SIGSEGV)
    return []


def leaving(folder: Path) -> list[DiagnosticLine]:
    os._exit(7)


def endless(folder: Path) -> list[DiagnosticLine]:
    """With a child that would live on, and says who it is."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (folder / "child").write_text(str(child.pid))
    time.sleep(600)
    return []


def surroundings(folder: Path) -> list[DiagnosticLine]:
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR", "NVIDIA_TF32_OVERRIDE")
    return [DiagnosticLine("surroundings", "", values={name: os.environ.get(name) for name in names})]
