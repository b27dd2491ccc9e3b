"""Asking other programs."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class CommandOutput:
    """What a program printed, and its exit code."""

    text: str
    exit_code: int = 0


def run_command(*command: str, limit_s: float = 15.0) -> CommandOutput | None:
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
    return CommandOutput(done.stdout.strip(), done.returncode)
