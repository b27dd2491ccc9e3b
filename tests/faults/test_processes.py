"""Real processes, really killed and signalled: short versions of what `make faults` does at length."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def script(name: str, *arguments: str) -> tuple[int, Any]:
    """Its exit code and the JSON on its last line. In a process of its own, which has computed nothing."""
    command = [sys.executable, str(HERE / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def test_kill_9_at_any_instant_loses_nothing() -> None:
    code, report = script("campaign.py", "--kills=12", "--seed=3")
    assert (code, report["lost"]) == (0, [])
    assert report["kills"] >= 12
    assert report["runs_finished_bit_exact"] >= 1
    assert report["checkpoints_read"] > 12


def test_signals_at_every_kind_of_moment_and_two_processes() -> None:
    code, problems = script("signals.py")
    assert {moment: found for moment, found in problems.items() if found} == {}
    assert code == 0
    assert len(problems) == (5 + 2 + 5) + 2 + 1
