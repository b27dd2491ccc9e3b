"""The table of `glass runs`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassgpt import format
from glassgpt.runs.run_list import RunSummary
from glassgpt.sanitize import sanitize_line

_RIGHT_ALIGNED_COLUMNS = ("iter", "loss", "best val", "at iter", "tokens/s", "size")


def print_runs(runs: Sequence[RunSummary], folder: Path, out: Console) -> None:
    if not runs:
        out.print(
            f"no runs in {folder}/ yet; start one with  glass train  or look elsewhere:  glass runs FOLDER",
            markup=False,
        )
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("run", "state", *_RIGHT_ALIGNED_COLUMNS):
        table.add_column(name, justify="right" if name in _RIGHT_ALIGNED_COLUMNS else "left", no_wrap=True)
    for run in runs:
        table.add_row(*(Text(sanitize_line(cell)) for cell in _cells(run)))
    out.print(table)


def _cells(run: RunSummary) -> tuple[str, ...]:
    return (
        str(run.path),
        run.state,
        f"{run.iter}/{run.max_iters}" if run.max_iters is not None else str(run.iter),
        "" if run.loss is None else format.format_loss(run.loss),
        "" if run.best_val_loss is None else format.format_loss(run.best_val_loss),
        "" if run.best_iter is None else str(run.best_iter),
        "" if run.tokens_per_s is None else format.format_count(run.tokens_per_s),
        format.format_bytes(run.bytes),
    )
