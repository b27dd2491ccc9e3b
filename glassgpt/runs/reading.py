"""Reads anything that records training into RunLogs: a run's folder, a journal, a log, standard input.

    for run_log in read_run_logs("train.log"):
        run_log.trainer.name, run_log.stage, len(run_log.steps), run_log.evals[-1].val_loss
    run_log = read_run_log("train.log")  # the longest of them

`demo:cpu` and `demo:gpu` are logs that come with the package, in demo/: nanoGPT's README runs.

How a log becomes a RunLog, in the order of the files to read:

    lines.py         bytes -> clean lines: gzip, UTF-16, colours, notebooks
    prefixes.py      strips ranks, timestamps and log levels from a line
    recognise.py     finds the trainer that wrote the lines, and feeds them to its reader
    trainers/*.py    one trainer each: its reader turns a line into builder.add_step(...), add_eval(...), ...
    step_line.py     lines of names and values, which a trainer's file only declares
    header.py        lines before the first step: settings, sizes, device
    exit_status.py   lines of any program: tracebacks, out of memory, signals
    builder.py       collects all that; build() makes the RunLog
    step_rows.py     its rows of iterations; those of very long logs are thinned
    log_numbers.py   the limits that every value of a RunLog keeps
    excerpts.py      merges log lines that are quoted in a note or a chat
    split_runs.py    one RunLog for each run of the file

GlassGPT's journal has records instead of lines: from_journal.py reads them.
"""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from glassgpt.errors import UserError
from glassgpt.record import journal
from glassgpt.runs.from_journal import read_run_journal, run_log_from_records
from glassgpt.runs.lines import MAX_NOTEBOOK_BYTES, is_notebook, read_blocks, read_lines, read_notebook
from glassgpt.runs.recognise import read_logs
from glassgpt.runs.run_list import is_running
from glassgpt.runs.run_log import RunLog, longest_run

_SNIFF_BYTES = 1 << 16
_DEMO_DIR = Path(__file__).parents[1] / "demo"
DEMO_LOGS = {
    "demo:cpu": _DEMO_DIR / "nanogpt-cpu-readme.log",
    "demo:gpu": _DEMO_DIR / "nanogpt-h200-shakespeare.log",
}


def source_path(source: str) -> Path:
    """The file or folder that `source` names; UserError for a demo log that there is not."""
    if source.startswith("demo:"):
        if source not in DEMO_LOGS:
            raise UserError(f"there is no demo log {source}; there are {' and '.join(DEMO_LOGS)}")
        return DEMO_LOGS[source]
    return Path(source)


def read_run_log(source: str) -> RunLog:
    """The longest run of `read_run_logs`."""
    return longest_run(read_run_logs(source))


def read_run_logs(source: str) -> tuple[RunLog, ...]:
    """Every run of the file, in its order. `source`: a path, a demo log, or - for standard input. UserError
    if there is nothing to read."""
    path = source_path(source)
    try:
        if source == "-":
            if sys.stdin is None:
                raise UserError("there is no standard input to read")
            return _read_stream(sys.stdin.buffer, "standard input")
        if path.is_dir():
            if not (path / journal.FILE_NAME).is_file():
                raise UserError(
                    f"{source} holds no run: there is no {journal.FILE_NAME} in it; "
                    "`glass runs` lists the runs"
                )
            return (_require_content(read_run_journal(path)),)
        if not path.exists():
            raise UserError(f"there is no file or folder {source}")
        with path.open("rb") as file:
            return _read_stream(file, source)
    except OSError as error:
        raise UserError(f"{source} cannot be read: {error.strerror or error}") from None


def _read_stream(file: BinaryIO, name: str) -> tuple[RunLog, ...]:
    buffered = file if isinstance(file, io.BufferedReader) else io.BufferedReader(file)  # type: ignore[type-var]
    start = buffered.peek(_SNIFF_BYTES)
    if looks_like_journal(start):
        path = Path(name)
        records = journal.parse_records(iter(lambda: buffered.readline(journal.MAX_LINE_BYTES), b""))
        is_live = path.is_file() and is_running(path.parent)
        return (_require_content(run_log_from_records(records, name, live=is_live)),)
    if is_notebook(start):
        content = buffered.read(MAX_NOTEBOOK_BYTES + 1)
        outputs = read_notebook(content, name)
        if outputs is not None:
            with contextlib.suppress(UserError):
                return tuple(replace(one, has_line_numbers=False) for one in read_logs(outputs, name))
        return read_logs(read_lines(io.BytesIO(content)), name)  # its text may quote a log
    return read_logs(read_blocks(buffered), name)


def looks_like_journal(start: bytes) -> bool:
    """Whether the first line that is not empty is a record."""
    for line in start.split(b"\n")[:20]:
        if line.strip():
            return line.lstrip().startswith(b"{") and b'"kind"' in line and b'"iter"' in line
    return False


def _require_content(run_log: RunLog) -> RunLog:
    if not len(run_log.steps) and not run_log.evals and not run_log.setup.settings:
        raise UserError(f"{run_log.name} has no records of a run in it yet")
    return run_log
