"""The runs in a folder and their state, read from their journals: `glass runs`. Does not import torch."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from glassgpt.errors import UserError
from glassgpt.record import journal
from glassgpt.record.journal import Record
from glassgpt.record.run_dir import lock_run_dir


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


def find_runs(folder: Path) -> list[RunSummary]:
    """The runs in `folder`, the latest last. The folder itself may be a run."""
    paths = [*folder.glob(journal.FILE_NAME), *sorted(folder.glob(f"*/{journal.FILE_NAME}"))]
    paths = [path for path in paths if path.is_file()]  # reading a pipe may block
    return sorted((summarize(path.parent) for path in paths), key=lambda run: run.started or 0.0)


def summarize(run_dir: Path) -> RunSummary:
    path = run_dir / journal.FILE_NAME
    first: Record = {}
    last: dict[str, Record] = {}  # by kind
    best: Record | None = None
    newest, at, refused = "", None, False
    try:
        first = next(journal.read(path), {})
        starts = journal.read_starts(path)
        for record in journal.stream_effective_records(starts, journal.read(path, but_steps=True)):
            last[record["kind"]] = record
            if record["kind"] == "eval" and record.get("best"):
                best = record
        # The last step is near the end: no need to decode the millions before it.
        backwards = journal.read_backwards(path)
        for record in journal.stream_effective_records_backwards(starts, backwards):
            newest = newest or record["kind"]
            if at is None and record["kind"] != "checkpoint":  # recorded some iterations later
                at = record["iter"]
            if record["kind"] == "step":
                last["step"] = record
                break
    except (UserError, OSError):  # one damaged run must not hide the others
        first, last, best, newest, at, refused = {}, {}, None, "", None, True
    step, start, end = (last.get(kind, {}) for kind in ("step", "run", "end"))
    if best is not None:
        best_val_loss, best_iter = journal.loss_or_none(best), best["iter"]
    else:  # a run initialised from another has that one's best, until its own is better
        best_iter = journal.int_or_none(end, "best_iter")
        best_val_loss = None if best_iter is None else journal.loss_or_none(end, "best_val_loss")
    if refused:
        state = "refused: its journal cannot be read, or is a link"
    elif is_running(run_dir):
        state = "running"
    elif newest == "end":
        state = str(end.get("reason"))
    else:
        state = "died"
    return RunSummary(
        path=run_dir,
        state=state,
        iter=at or 0,
        max_iters=journal.int_or_none(start.get("config"), "max_iters"),
        loss=journal.loss_or_none(step),
        best_val_loss=best_val_loss,
        best_iter=best_iter,
        tokens_per_s=journal.float_or_none(step, "tokens_per_s"),
        bytes=size_on_disk(run_dir),
        started=first.get("time"),
    )


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


def size_on_disk(run_dir: Path) -> int:
    """Bytes on disk. Files of a live run may vanish meanwhile."""
    total = 0
    for file in run_dir.rglob("*"):
        with suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total
