"""Runs checks in a separate process: a hang or crash ends that check only.

run_isolated(compile_something, folder, limit_s=60)     # its lines, or IsolatedCheckFailed
"""

from __future__ import annotations

import importlib
import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from glassgpt.doctor.diagnosis import DiagnosticLine
from glassgpt.errors import error_type_and_message
from glassgpt.isolate import IsolatedProcess, JsonObject, ProcessDied, ProcessHung, serve

_THIS_MODULE = "glassgpt.doctor.isolated_check"
# Takes a scratch folder. Must be a module-level function: the separate process imports it by name.
IsolatedCheck = Callable[[Path], Sequence[DiagnosticLine]]


class IsolatedCheckFailed(Exception):
    """`trace`: the traceback or the output of the process."""

    def __init__(self, summary: str, trace: str = "") -> None:
        super().__init__(summary)
        self.trace = trace


def run_isolated(check: IsolatedCheck, folder: Path, limit_s: float) -> list[DiagnosticLine]:
    """The lines of the check. After `limit_s` it is killed with its children."""
    request = {"module": check.__module__, "name": check.__qualname__, "folder": str(folder)}
    try:
        with closing(IsolatedProcess(_THIS_MODULE, check_environment(folder))) as process:
            document = process.ask(request, limit_s)
    except ProcessHung as error:
        raise IsolatedCheckFailed(f"timed out after {limit_s:.0f} s", str(error)) from None
    except ProcessDied as error:
        colon = ": " if error.last_line else ""
        summary = f"its process died ({error.status}){colon}{error.last_line}"
        raise IsolatedCheckFailed(summary, error.stderr) from None
    if "error" in document:
        raise IsolatedCheckFailed(document["error"], document["trace"])
    return [DiagnosticLine(**line) for line in document["lines"]]


def check_environment(folder: Path) -> dict[str, str]:
    """With empty compile caches in the folder, so that nothing comes from an earlier run."""
    caches = {name: str(folder / name.lower()) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    # Self-tests compare float32, not TF32 with its 10-bit mantissa.
    settings = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "NVIDIA_TF32_OVERRIDE": "0"}
    # For tiny models, more threads only wait for each other.
    settings["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "2")
    return {**caches, **settings, "TMPDIR": str(folder), "PYTHONUTF8": "1"}


def summarize_error(error: BaseException) -> str:
    """The first line; of a compiler error also the line with the cause."""
    _, *later = str(error).strip().splitlines() or [""]
    cause = next((line.strip() for line in later if "error: " in line), "")
    return ": ".join(part for part in (error_type_and_message(error), cause) if part)[:_MAX_ERROR_CHARS]


_MAX_ERROR_CHARS = 400


# --- in the separate process ---


def answer(request: JsonObject) -> JsonObject:
    try:
        check = getattr(importlib.import_module(request["module"]), request["name"])
        return {"lines": [asdict(line) for line in check(Path(request["folder"]))]}
    except Exception as error:  # noqa: BLE001 - the doctor reports it
        return {"error": summarize_error(error), "trace": "".join(traceback.format_exception(error))}


if __name__ == "__main__":
    serve(answer)
