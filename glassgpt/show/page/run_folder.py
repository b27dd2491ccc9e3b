"""The runs that a page can show: a folder of runs, or single runs and logs, each by an opaque id.

    folder = RunFolder(["runs"])
    folder.listing()                 # what GET /api/runs answers
    folder.find("5f0c1a2b3c4d")      # the entry, or None: no other path can be reached

A list of hundreds stays fast: a row is made again only when the run's journal or log has changed, and never
from all of a long one.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from glassgpt.errors import UserError
from glassgpt.files import abbreviate_home
from glassgpt.format import format_count
from glassgpt.record import journal
from glassgpt.record.run_dir import LOCK_FILE, OUTPUT_LOG_FILE, RUNS_DIR
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.progress import MIN_GROWTH_S
from glassgpt.runs.reading import read_run_log, source_path
from glassgpt.runs.run_list import JournalNotes, is_running, sampled_losses, summarize
from glassgpt.runs.trajectory import planned_end_iteration
from glassgpt.sanitize import sanitize_line
from glassgpt.show.facts_table import state_label

MAX_SPARKS = 40  # numbers of a row's small curve
# What is read while the browser waits: of a journal only its few records that are not steps, of a log all.
_MAX_JOURNAL_BYTES, _MAX_LOG_BYTES = 64 << 20, 2 << 20
_MAX_ENTRIES = 5000

Row = dict[str, Any]


@dataclass(frozen=True)
class RunEntry:
    id: str
    source: str  # as FollowedRun takes it
    name: str
    run_dir: Path | None  # of a run of ours; None: a foreign log
    file: Path  # the journal or log, whose change makes a new row


class _CachedRow(NamedTuple):
    version: tuple[int, int]  # time of the last change and size of its file
    row: Row


class RunFolder:
    """`sources`: folders of runs, runs, logs; none: runs/. The first one that is a run or a log is selected,
    and the other runs in the folder of a run are listed, too."""

    def __init__(self, sources: Sequence[str] = ()) -> None:
        self._sources = tuple(sources) or (str(RUNS_DIR),)
        self._entries: dict[str, RunEntry] = {}
        self._listed: tuple[str, ...] = ()
        self._rows: dict[str, _CachedRow] = {}
        self._notes: dict[str, JournalNotes] = {}  # by id, of our runs
        self._lock = threading.Lock()  # requests come from several threads
        self._long: threading.Thread | None = None  # reads what is too long for a request
        self.selected: str | None = None
        self.refresh()

    def refresh(self) -> None:
        """Look for runs that came or went."""
        entries: dict[str, RunEntry] = {}
        for source in self._sources:
            for entry in itertools.islice(_entries_of(source), _MAX_ENTRIES - len(entries)):
                entries.setdefault(entry.id, entry)
        if self.selected is None:
            chosen = (_entry(source) for source in self._sources)
            self.selected = next((entry.id for entry in chosen if entry is not None), None)
        # An id that was given out stays valid while the server lives.
        self._entries, self._listed = self._entries | entries, tuple(entries)

    def find(self, id: str) -> RunEntry | None:
        entry = self._entries.get(id)
        if entry is None and len(id) == _ID_CHARS:
            with self._lock:
                self.refresh()  # it may have started since
            entry = self._entries.get(id)
        return entry

    def listing(self) -> dict[str, Any]:
        """What GET /api/runs answers."""
        with self._lock:
            self.refresh()
            later: list[RunEntry] = []
            rows = [self._row(self._entries[id], later) for id in self._listed]
            if later and (self._long is None or not self._long.is_alive()):
                self._long = threading.Thread(target=self._read_long, args=(later,), daemon=True)
                self._long.start()
        runs = sorted((row for row in rows if row is not None), key=lambda row: -row["modified"])
        chosen = ((source, _entry(source)) for source in self._sources)
        folders = [str(one.run_dir.parent) if one and one.run_dir else source for source, one in chosen]
        title = sanitize_line(abbreviate_home(", ".join(dict.fromkeys(folders))))
        return {"folder": title, "selected": self.selected, "runs": runs}

    def _row(self, entry: RunEntry, later: list[RunEntry]) -> Row | None:
        """None where it is gone. Appended to `later`, if there is too much to read at once."""
        try:
            status = entry.file.stat()
            version = status.st_mtime_ns, status.st_size
            cached = self._rows.get(entry.id)
            if cached is None or cached.version != version:
                limit = _MAX_LOG_BYTES if entry.run_dir is None else _MAX_JOURNAL_BYTES
                is_long = self._unread_bytes(entry, status.st_size) > limit
                if is_long:
                    later.append(entry)
                cached = self._rows[entry.id] = _CachedRow(version, self._make_row(entry, is_long))
        except OSError:
            return None
        live = is_running(entry.run_dir) if entry.run_dir else _is_growing(entry, cached.row, status.st_mtime)
        row = cached.row | {"id": entry.id, "name": entry.name, "modified": status.st_mtime, "live": live}
        if live or (entry.run_dir and row["state"] == "running"):  # its lock says so, not its journal
            row["state"] = "running" if live else "died"
        return row | {"state_label": state_label(row["state"])}

    def _unread_bytes(self, entry: RunEntry, size: int) -> int:
        if entry.run_dir is None:
            return size
        return self._notes.setdefault(entry.id, JournalNotes(entry.file)).unread_bytes()

    def _make_row(self, entry: RunEntry, is_long: bool) -> Row:
        if entry.run_dir is None:
            return _row(entry.file.stat().st_size) if is_long else _foreign_row(entry)
        notes = self._notes[entry.id]
        if not is_long:
            with contextlib.suppress(UserError):  # a link: the row says so
                notes.read()
        return _own_row(entry.run_dir, notes)

    def _read_long(self, entries: Sequence[RunEntry]) -> None:
        """In a thread of its own. The next listing has the rows."""
        for entry in entries:
            with contextlib.suppress(OSError, UserError):  # gone, or refused: the next row says so
                if entry.run_dir is not None:
                    self._notes[entry.id].read()
                    self._rows.pop(entry.id, None)
                else:
                    status = entry.file.stat()
                    version = status.st_mtime_ns, status.st_size
                    self._rows[entry.id] = _CachedRow(version, _foreign_row(entry))


_ID_CHARS = 16


def _entry(source: str) -> RunEntry | None:
    """The run or log that `source` names; None: a folder of runs, or nothing."""
    path = source_path(source)
    run_dir: Path | None = None
    if path.name == journal.FILE_NAME and path.is_file():
        run_dir, file = path.parent, path
    elif (path / journal.FILE_NAME).is_file():
        run_dir, file = path, path / journal.FILE_NAME
    elif (path / OUTPUT_LOG_FILE).is_file():
        file, source = path / OUTPUT_LOG_FILE, str(path / OUTPUT_LOG_FILE)
    elif path.is_file() or _is_foreign_run(path):
        file = path
    else:
        return None
    if run_dir is not None:
        source = str(run_dir)
    shown = path.name if not source.startswith("demo:") else source
    if path.name in (journal.FILE_NAME, OUTPUT_LOG_FILE):
        shown = path.absolute().parent.name
    digest = hashlib.blake2b(os.fsencode(file.absolute()), digest_size=_ID_CHARS // 2).hexdigest()
    return RunEntry(digest, source, sanitize_line(shown or str(path.absolute().name)), run_dir, file)


def _is_foreign_run(path: Path) -> bool:
    """Whether it is a folder of another trainer. One in which a run of ours begins is a folder of runs, also
    before its journal is there."""
    if path == RUNS_DIR or any(path.glob(f"*/{LOCK_FILE}")):
        return False
    return any(path.glob("[!.]*")) and not any(_children(path))


def _entries_of(source: str) -> Iterator[RunEntry]:
    path = source_path(source)
    chosen = _entry(source)
    if chosen is not None:
        yield chosen
        if chosen.run_dir is None:
            return
        path = chosen.run_dir.absolute().parent
    for child in _children(path):
        if (entry := _entry(str(child))) is not None:
            yield entry


def _children(folder: Path) -> Iterator[Path]:
    """Runs of ours, watched commands, and files that are called .log."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        path = folder / name
        is_log = name.endswith(".log") and path.is_file()
        if is_log or any((path / inner).is_file() for inner in (journal.FILE_NAME, OUTPUT_LOG_FILE)):
            yield path


def _row(size: int, **known: Any) -> Row:
    """What is not known is empty. For JSON: numbers are finite, and as exact as a list shows them."""

    def clean(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.8g}") if math.isfinite(value) else None
        if isinstance(value, list):
            return [clean(one) for one in value]
        return sanitize_line(value) if isinstance(value, str) else value

    row: Row = {
        "state": "", "updates": None, "planned": None, "best_val": None, "last_loss": None,
        "tokens_per_s": None, "spark": [], "dataset": "", "model": "", "bytes": size,
    }  # fmt: skip
    return {name: clean(value) for name, value in (row | known).items()}


def _own_row(run_dir: Path, notes: JournalNotes) -> Row:
    run = summarize(run_dir, notes)
    shape = [journal.int_or_none(run.model, name) for name in ("n_layer", "n_embd", "parameters")]
    model = ""
    if None not in shape:
        layers, width, parameters = shape
        model = f"{run.model.get('arch', '')} {layers} x {width}, {format_count(parameters or 0)}".strip()
    spark: list[float] = []
    with contextlib.suppress(UserError, OSError):  # a link, or gone: its state says so
        spark = sampled_losses(run_dir, MAX_SPARKS)
    return _row(
        run.bytes,
        state=run.state,
        updates=run.iter,
        planned=run.max_iters,
        best_val=run.best_val_loss,
        last_loss=run.loss,
        tokens_per_s=run.tokens_per_s,
        spark=spark,
        dataset=run.dataset or "",
        model=model,
    )


def _foreign_row(entry: RunEntry) -> Row:
    size = entry.file.stat().st_size
    try:
        run = Analysis(read_run_log(entry.source))
    except UserError:
        return _row(size)  # not a log that can be read, or nothing in it yet
    facts, losses = run.facts, run.trajectory.finite_losses()[1]
    places = np.linspace(0, len(losses) - 1, min(MAX_SPARKS, len(losses))).astype(int)
    dataset = run.log.setup.settings.get("dataset")
    return _row(
        size,
        state=facts.ended or "",
        updates=facts.last_iteration,
        planned=planned_end_iteration(run.log),
        best_val=facts.best_val_loss,
        last_loss=facts.loss_last,
        tokens_per_s=facts.tokens_per_s,
        spark=losses[places].tolist(),
        dataset=dataset if isinstance(dataset, str) else "",
        model=run.log.trainer.name,
    )


def _is_growing(entry: RunEntry, row: Row, modified: float) -> bool:
    """Whether a foreign log is still written to, as far as its file says."""
    is_over = row["state"] not in ("", "cut") or entry.source.startswith("demo:")
    return not is_over and time.time() - modified < MIN_GROWTH_S
