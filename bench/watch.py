"""Runs a command, and records when it printed each line."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_SHOWN_ON_FAILURE = 30  # lines


@dataclass(frozen=True)
class TimedLine:
    at_s: float  # since the process was started
    text: str


@dataclass(frozen=True)
class TimedOutput:
    wall_s: float
    lines: list[TimedLine]


class CommandFailed(Exception):
    """The command ended badly; the message has its last lines."""


def run_timed(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    enough: Callable[[list[TimedLine]], bool] = lambda lines: False,
    limit_s: float = 3600,
) -> TimedOutput:
    """Runs it to its end, or until `enough` says so of the lines so far. The clock starts first."""
    started = time.perf_counter()
    process = subprocess.Popen(
        list(command),
        cwd=folder,
        env={**environment, "PYTHONUNBUFFERED": "1"},  # a line counts when it is printed
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # a group of its own, which all that it starts belongs to
    )
    limit = threading.Timer(limit_s, _end, [process])
    limit.daemon = True  # Python would wait for it at its end, if a signal came before it was cancelled
    lines: list[TimedLine] = []
    satisfied = False
    try:
        limit.start()
        assert process.stdout is not None
        for text in process.stdout:
            lines.append(TimedLine(time.perf_counter() - started, text.rstrip("\n")))
            if enough(lines):
                satisfied = True
                break
        if satisfied:
            _end(process)
        code = process.wait()
    finally:
        _end(process)
        limit.cancel()
    wall_s = time.perf_counter() - started
    if code and not satisfied:
        tail = "\n".join(line.text for line in lines[-_SHOWN_ON_FAILURE:])
        late = f" after the limit of {limit_s:.0f} s" if wall_s >= limit_s else ""
        shown = " ".join(part if "\n" not in part else "…" for part in command)
        raise CommandFailed(f"{shown} ended with {code}{late}:\n{tail}")
    return TimedOutput(wall_s, lines)


def _end(process: subprocess.Popen[str]) -> None:
    """And whatever it has started, also where it is gone itself; unless it was waited for to its end."""
    if process.returncode is None:  # nobody else can have its number yet
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def cache_environment(caches: Path) -> dict[str, str]:
    """With everything that compiling keeps in `caches`: empty it is a cold start, used before a warm one."""
    folders = {
        "TORCHINDUCTOR_CACHE_DIR": "inductor-cache",
        "TRITON_CACHE_DIR": "triton-cache",
        "CUDA_CACHE_PATH": "cuda-cache",
        "XDG_CACHE_HOME": "other-caches",
    }
    for name in folders.values():
        (caches / name).mkdir(parents=True, exist_ok=True)
    kept = {name: str((caches / folder).resolve()) for name, folder in folders.items()}
    # The peers run in folders of their own, where a relative path means something else.
    paths = [str(Path(path).resolve()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return dict(os.environ) | kept | ({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})
