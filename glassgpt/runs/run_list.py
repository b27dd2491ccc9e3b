"""What runs there are, and how they are doing: read from their journals, without importing torch."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassgpt.errors import UserError
from glassgpt.record import journal
from glassgpt.record.journal import Record
from glassgpt.record.run_dir import lock_run_dir


@dataclass(frozen=True)
class RunSummary:
    """One line of `glass runs`. What the journal does not say is None."""

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
    """The runs in `folder`, the latest last; the folder may be a run itself."""
    paths = [*folder.glob(journal.FILE_NAME), *sorted(folder.glob(f"*/{journal.FILE_NAME}"))]
    paths = [path for path in paths if path.is_file()]  # reading a pipe may wait for ever
    found = [summarize(path.parent) for path in paths]
    return sorted(found, key=lambda run: run.started or 0.0)


def summarize(run_dir: Path) -> RunSummary:
    try:
        records, refused = journal.effective_records(journal.read(run_dir / journal.FILE_NAME)), False
    except (UserError, OSError):  # one strange run must not hide the others
        records, refused = [], True
    last = {record["kind"]: record for record in records}
    step, start = last.get("step", {}), last.get("run", {})
    best = next((old for old in reversed(records) if old["kind"] == "eval" and old.get("best")), None)
    best_loss, best_iter = (best.get("loss"), best["iter"]) if best else _best_at_the_end(last.get("end", {}))
    return RunSummary(
        path=run_dir,
        state="refused: its journal cannot be read, or is a link" if refused else _state(run_dir, records),
        # A checkpoint is recorded when it is written, which is later than its iteration.
        iter=next((old["iter"] for old in reversed(records) if old["kind"] != "checkpoint"), 0),
        max_iters=_number_or_none(start.get("config"), "max_iters"),
        loss=_number_or_none(step, "loss"),
        best_val_loss=_number_or_none({"loss": best_loss}, "loss"),
        best_iter=best_iter,
        tokens_per_s=_number_or_none(step, "tokens_per_s"),
        bytes=size_on_disk(run_dir),
        started=records[0]["time"] if records else None,
    )


def _best_at_the_end(end: Record) -> tuple[Any, Any]:
    """A run that took over another has maybe not done better than that one, whose best it has too."""
    at = _number_or_none(end, "best_iter")
    return (None, None) if at is None else (_number_or_none(end, "best_val_loss"), at)


def _number_or_none(record: object, name: str) -> Any:
    """None for what is not there, or is no number: one damaged run must not hide the others."""
    value = record.get(name) if isinstance(record, dict) else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _state(run_dir: Path, records: list[Record]) -> str:
    """What the last process said at its end; without a word it is running, or it died."""
    if is_running(run_dir):
        return "running"
    if records and records[-1]["kind"] == "end":
        return str(records[-1].get("reason"))
    return "died"


def is_running(run_dir: Path) -> bool:
    try:
        held = lock_run_dir(run_dir, write=False)
    except OSError:
        return False
    if held is not None:
        held.close()
    return held is None


def size_on_disk(run_dir: Path) -> int:
    """Bytes on disk; of a live run, files come and go meanwhile."""
    total = 0
    for file in run_dir.rglob("*"):
        with suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total
