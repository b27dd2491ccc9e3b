"""A run as two tables, for a spreadsheet: steps.csv and evals.csv in its folder."""

from __future__ import annotations

import csv
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from glassgpt.errors import UserError
from glassgpt.record.journal import Record
from glassgpt.track.tracker import LoggedIters, TrackedRun

# fmt: off
COLUMNS = {
    "step": ("iter", "time", "process", "loss", "loss_mean", "lr", "grad_norm", "clipped", "tokens",
             "updates", "step_ms", "first_update_ms", "tokens_per_s", "flops_per_s", "mfu", "eta_s"),
    "eval": ("iter", "time", "process", "split", "loss", "stderr", "perplexity", "bits_per_byte", "tokens",
             "whole_split", "closing", "best", "ms"),
}
# fmt: on
FILES = {"step": "steps.csv", "eval": "evals.csv"}


class CsvFiles:
    """Begun anew by every process, from the journal: so what was superseded is gone, whatever happened."""

    def begin(self, run: TrackedRun) -> LoggedIters:
        self._files = {kind: _Table(run.directory / file, COLUMNS[kind]) for kind, file in FILES.items()}
        return {}

    def log(self, record: Record) -> None:
        self._files[record["kind"]].add(record)

    def end(self, record: Record) -> None:
        for table in self._files.values():
            table.file.close()


class _Table:
    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        if path.is_fifo():  # opening one waits until somebody reads it, maybe for ever
            raise UserError(f"{path} is a pipe, not a file: move it away")
        # Line by line, so that it can be read while the run lives. newline: csv ends its lines itself.
        self.file: IO[str] = path.open("w", encoding="utf-8", newline="", buffering=1)
        self._writer = csv.DictWriter(self.file, columns, extrasaction="ignore", lineterminator="\n")
        self._writer.writeheader()

    def add(self, record: Record) -> None:
        when = datetime.fromtimestamp(record["time"], UTC)  # as spreadsheets read a date
        self._writer.writerow({**record, "time": f"{when:%Y-%m-%d %H:%M:%S}"})
