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
    step_form.py     the usual form of step lines, declared or learned: blocks of them are read at once
    fields.py        the numbers in a line of a trainer that nobody knows, and what each is
    line_losses.py   which of them are its losses; progress_bar.py: what a bar beside them says
    step_clock.py    step times from a clock that lines or rows show
    header.py        lines before the first step: settings, sizes, device
    exit_status.py   lines of any program: tracebacks, out of memory, signals
    builder.py       collects all that; build() makes the RunLog; setup_builder.py: of the run as a whole
    step_rows.py     its rows of iterations; those of very long logs are thinned
    log_numbers.py   the limits that every value of a RunLog keeps
    excerpts.py      merges log lines that are quoted in a note or a chat
    notes.py         reads the tables and the prose of such a text; note_words.py: its words
    split_runs.py    one RunLog for each run of the file

GlassGPT's journal has records instead of lines: from_journal.py reads them. Tables of metrics have rows:

    table_files.py          CSV, lines of JSON, JSON documents -> rows
    tensorboard_events.py   TensorBoard's event files -> rows
    metric_columns.py       what a column is, by its name
    table_time.py           which columns are clocks or step times, by their values
    metric_table.py         rows -> builder.add_step(...), add_eval(...)
    file_kinds.py           what a file is that cannot be read
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from glassgpt.errors import UserError
from glassgpt.record import journal
from glassgpt.record.run_dir import OUTPUT_LOG_FILE
from glassgpt.runs.file_kinds import binary_kind
from glassgpt.runs.from_journal import read_run_journal, run_log_from_records
from glassgpt.runs.lines import (
    MAX_NOTEBOOK_BYTES,
    is_notebook,
    read_lines,
    read_notebook,
    read_texts,
    whole_lines,
)
from glassgpt.runs.recognise import read_logs
from glassgpt.runs.run_list import is_running
from glassgpt.runs.run_log import RunLog, longest_run
from glassgpt.runs.table_files import read_tables
from glassgpt.runs.tensorboard_events import is_event_file, read_events, read_logdir

_SNIFF_BYTES = 1 << 16
# `glass watch`, LLaMA-Factory, Hugging Face's Trainer, Lightning, wandb.
_FOLDER_FILES = (
    OUTPUT_LOG_FILE, "trainer_log.jsonl", "trainer_state.json", "metrics.csv", "files/wandb-summary.json"
)  # fmt: skip
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


def growing_file(path: Path) -> Path:
    """Of a run's folder, the file that grows while it runs: its journal, or the saved output of a foreign
    command. Any other path is returned as it is."""
    if not path.is_dir():
        return path
    output_log, run_journal = path / OUTPUT_LOG_FILE, path / journal.FILE_NAME
    return output_log if output_log.is_file() and not os.path.lexists(run_journal) else run_journal


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
            return read_stream(sys.stdin.buffer, "standard input")
        if path.is_dir():
            return _read_folder(path, source)
        if not path.exists():
            raise UserError(f"there is no file or folder {source}")
        with path.open("rb") as file:
            return read_stream(file, source)
    except OSError as error:
        raise UserError(f"{source} cannot be read: {error.strerror or error}") from None


def _read_folder(path: Path, source: str) -> tuple[RunLog, ...]:
    """A run's folder, or one that another trainer or tracker has made."""
    if (path / journal.FILE_NAME).is_file():
        return (_require_content(read_run_journal(path)),)
    files = [path / name for name in _FOLDER_FILES]
    files += sorted(
        path.glob("checkpoint-*/trainer_state.json"), key=lambda state: (len(state.parts[-2]), state)
    )[-1:]
    for one in files:
        if one.is_file():
            with one.open("rb") as file:
                return read_stream(file, str(one))
    if run_logs := read_logdir(path, source):
        return run_logs
    raise UserError(
        f"{source} holds no run: there is no {journal.FILE_NAME} in it, no event file of TensorBoard's, and "
        f"no {', '.join(_FOLDER_FILES)}; `glass runs` lists the runs"
    )


def read_stream(file: BinaryIO, name: str) -> tuple[RunLog, ...]:
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
    if is_event_file(start):
        return read_events(buffered, name)
    if kind := binary_kind(start):
        raise UserError(f"{name} is {kind}")
    run_logs, texts = read_tables(read_texts(buffered), name)
    if run_logs:
        return run_logs
    head = next(texts)
    return read_logs(whole_lines(itertools.chain((head,), texts)), name, head)


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
