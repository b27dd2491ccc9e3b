"""The system, Python, torch and GlassGPT itself."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from glassgpt.doctor.check import CheckContext
from glassgpt.doctor.check import DiagnosticLine
from glassgpt.record.machine import source_commit
from glassgpt.version import VERSION

OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 8)  # as pyproject.toml has them


def check_system(visit: CheckContext) -> list[DiagnosticLine]:
    system, kind = _system_name(), platform.machine()
    numbers = {"os": platform.system(), "kernel": platform.release(), "name": system, "machine": kind}
    found = DiagnosticLine("system", f"{system}, {kind}", numbers=numbers)
    return [found, _python_line(sys.version_info[:2], platform.python_version()), _own_line()]


def _system_name() -> str:
    """As people call it: Debian GNU/Linux 12 (bookworm), macOS 15.1, Windows 11."""
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):  # a system without that file
        return f"{platform.system()} {platform.release()}"


def _python_line(version: tuple[int, int], full: str) -> DiagnosticLine:
    numbers = {"python": full}
    if version < OLDEST_PYTHON:
        return DiagnosticLine(
            "python", full, "problem", f"install Python {_dotted(OLDEST_PYTHON)} or newer", numbers
        )
    return DiagnosticLine("python", full, numbers=numbers)


def _own_line() -> DiagnosticLine:
    commit = source_commit(Path(__file__).resolve().parents[3])
    numbers = {"version": VERSION, "commit": commit}
    return DiagnosticLine(
        "glassgpt", VERSION + (f", commit {_short_commit(commit)}" if commit else ""), numbers=numbers
    )


def _short_commit(commit: str) -> str:
    """12 digits; and `-dirty`, if files differ from it."""
    digits, dash, state = commit.partition("-")
    return digits[:12] + dash + state


def check_torch(visit: CheckContext) -> list[DiagnosticLine]:
    """Fails, and with it all that needs torch, where torch cannot be imported."""
    import numpy
    import torch

    return [torch_line(str(torch.__version__), torch.version.cuda, torch.version.hip, numpy.__version__)]


def torch_line(version: str, cuda: str | None, hip: str | None, numpy: str) -> DiagnosticLine:
    built = f"for CUDA {cuda}" if cuda else f"for ROCm {hip}" if hip else "without CUDA"
    numbers = {"torch": version, "cuda": cuda, "hip": hip, "numpy": numpy}
    says = f"{version}, built {built}; numpy {numpy}"
    if _release(version) < OLDEST_TORCH:
        return DiagnosticLine(
            "torch", says, "problem", f"install torch {_dotted(OLDEST_TORCH)} or newer", numbers
        )
    return DiagnosticLine("torch", says, numbers=numbers)


def _release(version: str) -> tuple[int, ...]:
    """(2, 13) of 2.13.0+cpu"""
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2])


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
