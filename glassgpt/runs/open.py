"""Anything that records a training run, as a History: a run's folder, a journal, a log file, standard
input."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import BinaryIO

from glassgpt.errors import UserError
from glassgpt.record import journal
from glassgpt.runs.from_journal import read_run_journal, run_log_from_records
from glassgpt.runs.lines import read_lines
from glassgpt.runs.notebook import MAX_NOTEBOOK_BYTES, is_notebook, read_notebook
from glassgpt.runs.recognise import read_log
from glassgpt.runs.run_list import is_running
from glassgpt.runs.run_log import RunLog

_SNIFF_BYTES = 1 << 16


def read_run_log(source: str) -> RunLog:
    """UserError where there is nothing, or nothing that can be read."""
    try:
        return _read_source(source)
    except OSError as error:
        raise UserError(f"{source} cannot be read: {error.strerror or error}") from None


def _read_source(source: str) -> RunLog:
    if source == "-":
        if sys.stdin is None:
            raise UserError("there is no standard input to read")
        return _read_stream(sys.stdin.buffer, "standard input")
    path = Path(source)
    if path.is_dir():
        if not (path / journal.FILE_NAME).is_file():
            raise UserError(
                f"{source} holds no run: there is no {journal.FILE_NAME} in it; `glass runs` lists the runs"
            )
        return _require_content(read_run_journal(path))
    if not path.exists():
        raise UserError(f"there is no file or folder {source}")
    with path.open("rb") as file:
        return _read_stream(file, source)


def _read_stream(file: BinaryIO, name: str) -> RunLog:
    buffered = file if isinstance(file, io.BufferedReader) else io.BufferedReader(file)  # type: ignore[type-var]
    start = buffered.peek(_SNIFF_BYTES)
    if looks_like_journal(start):
        path = Path(name)
        records = journal.parse_records(iter(lambda: buffered.readline(journal.MAX_LINE_BYTES), b""))
        return _require_content(
            run_log_from_records(records, name, live=path.is_file() and is_running(path.parent))
        )
    if is_notebook(start):
        content = buffered.read(MAX_NOTEBOOK_BYTES + 1)
        return _read_notebook(content, name)
    return read_log(read_lines(buffered), name)


def _read_notebook(content: bytes, name: str) -> RunLog:
    """What its cells printed; where that is no log, what is written in them may quote one."""
    printed = read_notebook(content, name)
    if printed is not None:
        with contextlib.suppress(UserError):
            return read_log(printed, name)
    return read_log(read_lines(io.BytesIO(content)), name)


def looks_like_journal(start: bytes) -> bool:
    """By its first whole line."""
    for line in start.split(b"\n")[:20]:
        if line.strip():
            return line.lstrip().startswith(b"{") and b'"kind"' in line and b'"iter"' in line
    return False


def _require_content(history: RunLog) -> RunLog:
    if not len(history.steps) and not history.evals and not history.setup.settings:
        raise UserError(f"{history.name} has no records of a run in it yet")
    return history
