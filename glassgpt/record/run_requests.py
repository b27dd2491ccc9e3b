"""Requests to a run from outside: stop with a checkpoint, or save one now.

    runs/quickstart/requests/5f0c….json    {"action": "stop", "by": "page", "time": 1763452800.0}

Anybody who may write into the run's folder may ask. Rank 0 looks for them at most once a second, acts as on
a signal (training/interrupt.py), removes the file, and writes a `request` record into the journal. A request
from before the process started is removed and not acted on: it was meant for an earlier one.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from glassgpt.files import atomic_write, read_small_file
from glassgpt.record import journal
from glassgpt.sanitize import sanitize_line

REQUESTS_DIR = "requests"
Action = Literal["stop", "save"]
_LOOK_INTERVAL_S = 1.0
_MAX_REQUEST_BYTES = 4096
_MAX_NAME_CHARS = 80


@dataclass(frozen=True)
class RunRequested:
    id: str
    action: Action
    by: str  # who asked
    time: float  # seconds since the epoch


def write_request(run_dir: Path, action: Action, by: str) -> str:
    """Ask the run; returns the id of the request."""
    identifier = secrets.token_hex(8)
    folder = run_dir / REQUESTS_DIR
    folder.mkdir(exist_ok=True)
    content = {"action": action, "by": by, "time": time.time()}
    atomic_write(folder / f"{identifier}.json", json.dumps(content).encode())
    return identifier


@dataclass
class RequestWatch:
    """Looks for requests to the run in `run_dir`. `started_at`: when this process started, by `clock`."""

    started_at: float = field(default_factory=time.time)
    clock: Callable[[], float] = time.monotonic
    _next_look_at: float = 0.0

    def take(self, run_dir: Path) -> list[RunRequested]:
        """Requests since the last look, the oldest first. Their files are removed."""
        now = self.clock()
        if now < self._next_look_at:
            return []
        self._next_look_at = now + _LOOK_INTERVAL_S
        requests = []
        with contextlib.suppress(OSError):  # there is no such folder, as in almost every run
            for path in (run_dir / REQUESTS_DIR).glob("[!.]*.json"):
                request = _read_request(path)
                path.unlink()  # first: one that stays would be acted on again and again
                if request is not None and request.time >= self.started_at:
                    requests.append(request)
        return sorted(requests, key=lambda request: request.time)


def _read_request(path: Path) -> RunRequested | None:
    """None if it is not a request."""
    try:
        content = json.loads(read_small_file(path, _MAX_REQUEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or content.get("action") not in get_args(Action):
        return None
    asked_at = journal.float_or_none(content, "time")
    by = sanitize_line(str(content.get("by", "")))[:_MAX_NAME_CHARS]
    return None if asked_at is None else RunRequested(path.stem[:64], content["action"], by, asked_at)
