"""Runs checks in a separate process, and commands with a time limit: a hang or crash ends that check only.

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
    """The output of a command, and its exit code."""

    text: str
    exit_code: int = 0


def run_command(*command: str, limit_s: float = 15.0) -> CommandOutput | None:
    """None if there is no such program, or it timed out."""
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


# Takes a scratch folder. Must be a module-level function: the subprocess imports it by name.
IsolatedCheck = Callable[[Path], Sequence[DiagnosticLine]]

_SUBPROCESS_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from glassgpt.doctor.isolate import main; main(*sys.argv[2:])"
)


class IsolatedCheckFailed(Exception):
    """`trace`: the traceback or the output of the process."""

    def __init__(self, summary: str, trace: str = "") -> None:
        super().__init__(summary)
        self.trace = trace


def run_isolated(check: IsolatedCheck, folder: Path, limit_s: float) -> list[DiagnosticLine]:
    """The lines of the check. After `limit_s` it is killed with its children."""
    path = json.dumps(sys.path)  # the same modules as here
    command = [
        sys.executable,
        "-P",
        "-c",
        _SUBPROCESS_CODE,
        path,
        f"{check.__module__}:{check.__qualname__}",
        str(folder),
    ]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=subprocess_environment(folder),
        start_new_session=True,  # a separate process group, to kill it with its children
        text=True,
        errors="replace",
    )
    try:
        stdout, stderr = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        _kill_process_group(process)
        try:
            stderr = process.communicate(timeout=5)[1]
        except subprocess.TimeoutExpired:  # a child that left the process group may hold the pipe
            stderr = ""
        raise IsolatedCheckFailed(f"timed out after {limit_s:.0f} s", stderr) from None
    finally:
        _kill_process_group(process)
    try:
        document = json.loads(stdout)
    except ValueError:
        last_line = next((line for line in reversed(stderr.splitlines()) if line.strip()), "")
        status = _exit_description(process.returncode)
        colon = ": " if last_line else ""
        raise IsolatedCheckFailed(f"its process died ({status}){colon}{last_line}", stderr) from None
    if "error" in document:
        raise IsolatedCheckFailed(document["error"], document["trace"])
    return [DiagnosticLine(**line) for line in document["lines"]]


def subprocess_environment(folder: Path) -> dict[str, str]:
    """With empty compile caches in the folder, so that nothing comes from an earlier run."""
    caches = {name: str(folder / name.lower()) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    # Self-tests compare float32, not TF32 with its 10-bit mantissa.
    settings = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "NVIDIA_TF32_OVERRIDE": "0"}
    # For tiny models, more threads only wait for each other.
    settings["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "2")
    return {**os.environ, **caches, **settings, "TMPDIR": str(folder), "PYTHONUTF8": "1"}


def _kill_process_group(process: subprocess.Popen[str]) -> None:
    if not hasattr(os, "killpg"):  # Windows
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended already
        os.killpg(process.pid, signal.SIGKILL)


def _exit_description(code: int) -> str:
    """-11: SIGSEGV"""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


# --- in the subprocess ---


def main(check: str, folder: str) -> None:
    # What libraries and compilers print goes to stderr; stdout is for the JSON document alone.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        module, _, name = check.partition(":")
        try:
            lines = getattr(importlib.import_module(module), name)(Path(folder))
            document: dict[str, object] = {"lines": [asdict(line) for line in lines]}
        except Exception as error:  # noqa: BLE001 - the parent process reports it
            document = {"error": summarize_error(error), "trace": "".join(traceback.format_exception(error))}
        json.dump(document, out)


def summarize_error(error: BaseException) -> str:
    """The first line; of a compiler error also the line with the cause."""
    _, *later = str(error).strip().splitlines() or [""]
    cause = next((line.strip() for line in later if "error: " in line), "")
    return ": ".join(part for part in (error_type_and_message(error), cause) if part)[:_MAX_ERROR_CHARS]


_MAX_ERROR_CHARS = 400
