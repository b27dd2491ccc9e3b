"""Asking other programs."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Told:
    """What a program printed, and its exit code."""

    text: str
    code: int = 0


def ask(*command: str, limit_s: float = 15.0) -> Told | None:
    """None where there is no such program, or no answer in time."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit_s,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Told(done.stdout.strip(), done.returncode)
