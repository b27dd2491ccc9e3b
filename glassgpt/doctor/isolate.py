"""Checks in a separate process, and commands with a time limit: a hang or a crash ends that check only.

run_isolated(compile_something, folder, limit_s=60)     # its lines, or IsolatedCheckFailed
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from glassgpt.doctor.check import DiagnosticLine
from glassgpt.errors import error_type_and_message


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


# Takes a folder to work in; must be a function of a module.
IsolatedCheck = Callable[[Path], Sequence[DiagnosticLine]]

_SUBPROCESS_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from glassgpt.doctor.isolate import main; main(*sys.argv[2:])"
)


class IsolatedCheckFailed(Exception):
    """What went wrong, and the traceback or output of the process."""

    def __init__(self, what: str, trace: str = "") -> None:
        super().__init__(what)
        self.trace = trace


def run_isolated(look: IsolatedCheck, folder: Path, limit_s: float) -> list[DiagnosticLine]:
    """The lines of the check. After `limit_s` it is killed with all its children."""
    path = json.dumps(sys.path)  # the same modules as here
    command = [
        sys.executable,
        "-P",
        "-c",
        _SUBPROCESS_CODE,
        path,
        f"{look.__module__}:{look.__qualname__}",
        str(folder),
    ]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=subprocess_environment(folder),
        start_new_session=True,  # a group of its own, so that what it starts can be ended with it
        text=True,
        errors="replace",
    )
    try:
        answer, stderr = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        _kill_process_group(process)
        try:
            stderr = process.communicate(timeout=5)[1]
        except subprocess.TimeoutExpired:  # a child may have left the process group and hold the pipe
            stderr = ""
        raise IsolatedCheckFailed(f"took longer than {limit_s:.0f} s and was cut off", stderr) from None
    finally:
        _kill_process_group(process)
    try:
        document = json.loads(answer)
    except ValueError:
        last = next((line for line in reversed(stderr.splitlines()) if line.strip()), "")
        how = _exit_description(process.returncode)
        raise IsolatedCheckFailed(f"its process died ({how}){': ' if last else ''}{last}", stderr) from None
    if "error" in document:
        raise IsolatedCheckFailed(document["error"], document["trace"])
    return [DiagnosticLine(**line) for line in document["lines"]]


def subprocess_environment(folder: Path) -> dict[str, str]:
    """Empty caches, so that code is really built; they are removed with the folder."""
    caches = {name: str(folder / name.lower()) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    # Self-tests compare float32 as it is, not TF32, which keeps ten bits of it.
    settings = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "NVIDIA_TF32_OVERRIDE": "0"}
    # Tiny models: on a machine of many cores, threads would only wait for each other.
    settings["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "2")
    return {**os.environ, **caches, **settings, "TMPDIR": str(folder), "PYTHONUTF8": "1"}


def _kill_process_group(process: subprocess.Popen[str]) -> None:
    if not hasattr(os, "killpg"):  # Windows
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):  # gone already, as it should be
        os.killpg(process.pid, signal.SIGKILL)


def _exit_description(code: int) -> str:
    """-11: SIGSEGV"""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


# --- in the other process ---


def main(look: str, folder: str) -> None:
    # Whatever libraries and compilers print goes to standard error; standard output is for the answer alone.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        module, _, name = look.partition(":")
        try:
            lines = getattr(importlib.import_module(module), name)(Path(folder))
            answer: dict[str, object] = {"lines": [asdict(line) for line in lines]}
        except Exception as error:  # noqa: BLE001 - the parent process reports it
            answer = {"error": summarize_error(error), "trace": "".join(traceback.format_exception(error))}
        json.dump(answer, out)


def summarize_error(error: BaseException) -> str:
    """The first line; of a long compiler error also the line with the cause."""
    _, *later = str(error).strip().splitlines() or [""]
    cause = next((line.strip() for line in later if "error: " in line), "")
    return ": ".join(part for part in (error_type_and_message(error), cause) if part)[:_MAX_ERROR_CHARS]


_MAX_ERROR_CHARS = 400
