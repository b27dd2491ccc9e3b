"""The runs in a folder and their state, read from their journals: `glass runs`. Does not import torch."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from glassgpt.errors import UserError
from glassgpt.record import journal
from glassgpt.record.journal import Record
from glassgpt.record.run_dir import LOCK_FILE, OUTPUT_LOG_FILE, lock_run_dir

_STEPS_OF_SPEED = 64  # the latest log lines: of a short run all, and then as explain computes it


@dataclass(frozen=True)
class RunSummary:
    """One line of `glass runs`. None: the journal does not say."""

    path: Path
    state: str
    iter: int
    max_iters: int | None
    loss: float | None
    best_val_loss: float | None
    best_iter: int | None
    tokens_per_s: float | None
    bytes: int
    started: float | None
    dataset: str | None = None
    model: Record = field(default_factory=dict)  # of its `run` record


def find_runs(folder: Path) -> list[RunSummary]:
    """The runs in `folder`, the latest last. The folder itself may be a run."""
    paths = [*folder.glob(journal.FILE_NAME), *sorted(folder.glob(f"*/{journal.FILE_NAME}"))]
    paths = [path for path in paths if path.is_file()]  # reading a pipe may block
    return sorted((summarize(path.parent) for path in paths), key=lambda run: run.started or 0.0)


class JournalNotes:
    """What a summary needs of a journal besides its last lines. Reads on where it stopped, as the journal
    grows: finding the few records that are not steps takes a second per million steps."""

    def __init__(self, path: Path) -> None:
        self._path, self._end = path, 0
        self.records: list[Record] = []  # run, resume, end, and evaluations that were the best so far

    def unread_bytes(self) -> int:
        size = self._path.stat().st_size
        return size - self._end if size >= self._end else size

    def read(self) -> None:
        end = journal.whole_lines_end(self._path)
        if end < self._end:  # it was replaced
            self._end, self.records = 0, []
        records = [
            record
            for record in journal.read_part(self._path, self._end, end, but_steps=True)
            if record["kind"] in ("run", "resume", "end") or (record["kind"] == "eval" and record.get("best"))
        ]
        self.records, self._end = [*self.records, *records], end


def summarize(run_dir: Path, notes: JournalNotes | None = None) -> RunSummary:
    """`notes`: of its journal, if they were read before."""
    path = run_dir / journal.FILE_NAME
    first: Record = {}
    last: dict[str, Record] = {}  # by kind
    best: Record | None = None
    last_steps: list[Record] = []  # the latest first
    at, refused = None, False
    newest: Record = {}
    try:
        if notes is None:
            notes = JournalNotes(path)
            notes.read()
        first = next(journal.read(path), {})
        starts = [record for record in notes.records if record["kind"] in ("run", "resume")]
        for record in journal.stream_effective_records(starts, notes.records):
            last[record["kind"]] = record
            if record["kind"] == "eval":
                best = record
        # The last steps are near the end: no need to decode the millions before them.
        backwards = journal.read_backwards(path)
        for record in journal.stream_effective_records_backwards(starts, backwards):
            newest = newest or record
            if at is None and record["kind"] != "checkpoint":  # recorded some iterations later
                at = record["iter"]
            if record["kind"] == "step":
                last_steps.append(record)
                if len(last_steps) == _STEPS_OF_SPEED:
                    break
    except (UserError, OSError):  # one damaged run must not hide the others
        first, last, best, newest, last_steps, at, refused = {}, {}, None, {}, [], None, True
    start, end = last.get("run", {}), last.get("end", {})
    logged_speeds = (journal.float_or_none(step, "tokens_per_s") for step in last_steps)
    speeds = [speed for speed in logged_speeds if speed is not None]
    if best is not None:
        best_val_loss, best_iter = journal.loss_or_none(best), best["iter"]
    else:  # a run initialised from another has that one's best, until its own is better
        best_iter = journal.int_or_none(end, "best_iter")
        best_val_loss = None if best_iter is None else journal.loss_or_none(end, "best_val_loss")
    if refused:
        state = "refused: its journal cannot be read, or is a link"
    elif is_running(run_dir):
        state = "running"
    elif newest.get("kind") == "end":
        state = str(newest.get("reason"))
    else:
        state = "died"
    start = start or (first if first.get("kind") == "run" else {})
    dataset = journal.dict_or_empty(start, "data").get("name")
    return RunSummary(
        path=run_dir,
        state=state,
        iter=at or 0,
        max_iters=journal.int_or_none(start.get("config"), "max_iters"),
        loss=journal.loss_or_none(last_steps[0]) if last_steps else None,
        best_val_loss=best_val_loss,
        best_iter=best_iter,
        tokens_per_s=median(speeds) if speeds else None,
        bytes=size_on_disk(run_dir),
        started=first.get("time"),
        dataset=dataset if isinstance(dataset, str) else None,
        model=journal.dict_or_empty(start, "model"),
    )


def sampled_losses(run_dir: Path, count: int) -> list[float]:
    """About `count` training losses, evenly spaced over the run, as a small curve needs them."""
    records = list(journal.sample_steps(run_dir / journal.FILE_NAME, count))
    losses, next_iter = [], math.inf
    for record in reversed(records):  # without those that a resume has repeated
        loss = journal.float_or_none(record, "loss")
        if loss is not None and record["iter"] < next_iter:
            next_iter = record["iter"]
            losses.append(loss)
    return losses[::-1]


def is_running(run_dir: Path) -> bool:
    """Whether a process holds the run's lock. Asks by a shared lock: readers do not see each other, and a
    trainer that starts at this moment tries again."""
    try:
        lock = lock_run_dir(run_dir, shared=True)
    except OSError:
        return False
    if lock is not None:
        lock.close()
    return lock is None


def ends_with_lock(file: Path) -> bool:
    """Whether the folder's lock tells if this file still grows: a run's journal, or the output of a command
    that `glass watch` saves. Any other file may grow for ever."""
    is_saved_output = file.name == OUTPUT_LOG_FILE and (file.parent / LOCK_FILE).exists()
    return file.name == journal.FILE_NAME or is_saved_output


def size_on_disk(run_dir: Path) -> int:
    """Bytes on disk. Files of a live run may vanish meanwhile."""
    total = 0
    for file in run_dir.rglob("*"):
        with suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total
