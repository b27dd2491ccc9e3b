"""The table of `glass runs`, and `glass show RUN`: a run's output again, in the terminal or as an SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassgpt.errors import UserError, error_type_and_message
from glassgpt.format import format_bytes, format_count, format_loss
from glassgpt.record import journal
from glassgpt.runs.run_list import RunSummary
from glassgpt.sanitize import sanitize_line
from glassgpt.show.terminal.run_console import RunConsole
from glassgpt.show.terminal.run_lines import print_line

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
        cells = (
            str(run.path),
            run.state,
            f"{run.iter}/{run.max_iters}" if run.max_iters is not None else str(run.iter),
            "" if run.loss is None else format_loss(run.loss),
            "" if run.best_val_loss is None else format_loss(run.best_val_loss),
            "" if run.best_iter is None else str(run.best_iter),
            "" if run.tokens_per_s is None else format_count(run.tokens_per_s),
            format_bytes(run.bytes),
        )
        table.add_row(*(Text(sanitize_line(cell)) for cell in cells))
    out.print(table)


def replay(run_dir: Path, out: Console) -> None:
    """Print a run's journal as `glass train` printed it."""
    path = run_dir if run_dir.name == journal.FILE_NAME else run_dir / journal.FILE_NAME
    if not path.is_file():
        raise UserError(
            f"{run_dir} holds no run: there is no {journal.FILE_NAME} in it; `glass runs` lists the runs"
        )
    console, has_records = RunConsole(out), False
    for record in journal.read_effective(path):
        has_records = True
        try:
            console(record)
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            # The journal may have been edited: a value of the wrong type costs this line only.
            problem = f"the {record['kind']} record of iter {record['iter']}: {error_type_and_message(error)}"
            print_line(out, "warning", f"not shown: {problem}")
    if not has_records:
        raise UserError(f"{run_dir} has no records yet")


def replay_svg(run_dir: Path, svg_path: Path, width: int) -> None:
    out = Console(
        record=True, width=width, file=io.StringIO(), force_terminal=True, highlight=False, emoji=False
    )
    replay(run_dir, out)
    svg = out.export_svg(title=f"glass train ({run_dir})")
    # rich's pictures fetch a font from the web; ours use the reader's monospace font.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    try:
        svg_path.write_text(svg, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--svg={svg_path} cannot be written: {error.strerror}") from None
