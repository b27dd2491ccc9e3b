"""A check in a process of its own: it may hang, crash or leave the device broken, and only that is lost.

look_apart(compile_something, folder, limit_s=60)     # its lines; Failed says what went wrong instead
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


IsolatedCheck = Callable[
    [Path], Sequence[DiagnosticLine]
]  # given a folder to work in; must be a module's own function

_SUBPROCESS_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from glassgpt.doctor.isolate import main; main(*sys.argv[2:])"
)


class IsolatedCheckFailed(Exception):
    """What went wrong there, and all that is known about it."""

    def __init__(self, what: str, trace: str = "") -> None:
        super().__init__(what)
        self.trace = trace


def run_isolated(look: IsolatedCheck, folder: Path, limit_s: float) -> list[DiagnosticLine]:
    """The lines that `look` finds. After `limit_s` it is cut off, with all that it started."""
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
        answer, said = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        _kill_process_group(process)
        raise IsolatedCheckFailed(
            f"took longer than {limit_s:.0f} s and was cut off", _rest(process)
        ) from None
    finally:
        _kill_process_group(process)
    return _lines(answer, said, process.returncode)


def subprocess_environment(folder: Path) -> dict[str, str]:
    """What is built is really built: nothing is found that an earlier run left. And it is gone afterwards."""
    caches = {name: str(folder / name.lower()) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    # Self-tests compare float32 as it is, not TF32, which keeps ten bits of it.
    settings = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "NVIDIA_TF32_OVERRIDE": "0"}
    # Tiny models: on a machine of many cores, threads would only wait for each other.
    settings["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "2")
    return {**os.environ, **caches, **settings, "TMPDIR": str(folder), "PYTHONUTF8": "1"}


def _rest(process: subprocess.Popen[str]) -> str:
    """What it said before its end. Something that it started may have left the group and hold the line."""
    try:
        return process.communicate(timeout=5)[1]
    except subprocess.TimeoutExpired:
        return ""


def _kill_process_group(process: subprocess.Popen[str]) -> None:
    if not hasattr(os, "killpg"):  # Windows
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):  # gone already, as it should be
        os.killpg(process.pid, signal.SIGKILL)


def _lines(answer: str, said: str, code: int) -> list[DiagnosticLine]:
    try:
        found = json.loads(answer)
    except ValueError:
        last = next((line for line in reversed(said.splitlines()) if line.strip()), "")
        raise IsolatedCheckFailed(
            f"its process died ({_how(code)}){': ' if last else ''}{last}", said
        ) from None
    if "error" in found:
        raise IsolatedCheckFailed(found["error"], found["trace"])
    return [DiagnosticLine(**line) for line in found["lines"]]


def _how(code: int) -> str:
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
        except Exception as error:  # noqa: BLE001 - it is told over there
            answer = {"error": summarize_error(error), "trace": "".join(traceback.format_exception(error))}
        json.dump(answer, out)


def summarize_error(error: BaseException) -> str:
    """Its first line; of a compiler's long complaint also the line that says what."""
    _, *later = str(error).strip().splitlines() or [""]
    told = next((line.strip() for line in later if "error: " in line), "")
    return ": ".join(part for part in (error_type_and_message(error), told) if part)[:_MAX_ERROR_CHARS]


_MAX_ERROR_CHARS = 400
