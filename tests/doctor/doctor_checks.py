"""Checks that misbehave, for a process of their own to run."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from glassgpt.doctor.diagnosis import DiagnosticLine


def fine(folder: Path) -> list[DiagnosticLine]:
    return [DiagnosticLine("fine", f"in {folder.name}", values={"share": 0.5, "none": None})]


def broken(folder: Path) -> list[DiagnosticLine]:
    raise RuntimeError("no such thing\nCommand: c++ x.cpp\nx.cpp:1: fatal error: Python.h: No such file")


def deadly(folder: Path) -> list[DiagnosticLine]:
    os.write(2, b"about to go\nthis is the end\n\n")
    os.kill(os.getpid(), signal.SIGSEGV)
    return []


def leaving(folder: Path) -> list[DiagnosticLine]:
    os._exit(7)


def endless(folder: Path) -> list[DiagnosticLine]:
    time.sleep(600)
    return []


def surroundings(folder: Path) -> list[DiagnosticLine]:
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR", "NVIDIA_TF32_OVERRIDE")
    return [DiagnosticLine("surroundings", "", values={name: os.environ.get(name) for name in names})]
