"""The table of `glass runs`, and `glass show RUN`: a run's output again, in the terminal or as an SVG."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from glassgpt.errors import UserError, error_type_and_message
from glassgpt.format import format_bytes, format_count, format_duration, format_if_known, format_loss
from glassgpt.i18n import translate
from glassgpt.record import journal
from glassgpt.record.run_dir import no_run_problem
from glassgpt.runs.run_list import RunSummary
from glassgpt.sanitize import sanitize_line
from glassgpt.show.terminal.run_console import RunConsole
from glassgpt.show.terminal.text_lines import print_line, terminal_text

_GAP = 2  # blanks between two columns
_MIN_NAME = 20  # cells, to which names are shortened
_MIN_STATE = 12


def print_runs(
    runs: Sequence[RunSummary], folder: Path, out: Console, clock: Callable[[], float] = time.time
) -> None:
    if not runs:
        out.print(Text(terminal_text(translate("runs_view.none", folder=str(folder)))), soft_wrap=True)
        return
    # The most important first. A terminal that is too narrow for all of them lacks the last ones.
    columns = [
        (translate("runs_view.run"), [str(run.path) for run in runs]),
        (translate("runs_view.state"), [run.state for run in runs]),
        (
            translate("runs_view.updates"),
            [f"{run.iter}" if run.max_iters is None else f"{run.iter}/{run.max_iters}" for run in runs],
        ),
        (
            translate("runs_view.best_loss"),
            [format_if_known(format_loss, run.best_val_loss) for run in runs],
        ),
        (translate("runs_view.best_update"), [format_if_known(str, run.best_iter) for run in runs]),
        (translate("runs_view.speed"), [format_if_known(format_count, run.tokens_per_s) for run in runs]),
        (translate("runs_view.started"), [_format_age(run.started, clock()) for run in runs]),
        (translate("runs_view.last_loss"), [format_if_known(format_loss, run.loss) for run in runs]),
        (translate("runs_view.size"), [format_bytes(run.bytes) for run in runs]),
    ]
    rows = [(heading, [sanitize_line(cell) for cell in cells]) for heading, cells in columns]
    widths = [max(map(cell_len, (heading, *cells))) for heading, cells in rows]
    if out.is_terminal:
        least = [min(widths[0], _MIN_NAME), min(widths[1], _MIN_STATE)]
        while len(widths) > 2 and sum(least) + sum(widths[2:]) + _GAP * (len(widths) - 1) > out.width:
            widths.pop()
        for column, minimum in enumerate(least):
            excess = sum(widths) + _GAP * (len(widths) - 1) - out.width
            widths[column] = max(minimum, widths[column] - max(0, excess))
    for number in range(-1, len(runs)):
        cells = [heading if number < 0 else cells[number] for heading, cells in rows[: len(widths)]]
        aligned = [
            _shorten_middle(cell, width) if at < 2 else " " * (width - cell_len(cell)) + cell
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        style = "bold" if number < 0 else ""
        out.print(Text((" " * _GAP).join(aligned).rstrip(), style=style), soft_wrap=True)


def _format_age(started: float | None, now: float) -> str:
    if started is None:
        return ""
    return translate("runs_view.ago", age=format_duration(max(0.0, round(now - started))))


def _shorten_middle(text: str, width: int) -> str:
    """A name in exactly `width` cells; of a longer one its beginning and its end."""
    if cell_len(text) > width:
        head = set_cell_size(text, (width - 1) // 2).rstrip()
        tail = text
        while cell_len(tail) > width - 1 - cell_len(head):
            tail = tail[1:]
        text = f"{head}…{tail}"
    return text + " " * (width - cell_len(text))


def replay(run_dir: Path, out: Console, verbose: bool = False) -> None:
    """Print a run's journal as `glass train` printed it."""
    path = run_dir if run_dir.name == journal.FILE_NAME else run_dir / journal.FILE_NAME
    if not path.is_file():
        raise UserError(no_run_problem(run_dir))
    console, has_records = RunConsole(out, verbose=verbose), False
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


def replay_svg(run_dir: Path, svg_path: Path, width: int, verbose: bool = False) -> None:
    out = Console(
        record=True, width=width, file=io.StringIO(), force_terminal=True, highlight=False, emoji=False
    )
    replay(run_dir, out, verbose)
    svg = out.export_svg(title=f"glass train ({run_dir})")
    # rich's pictures fetch a font from the web; ours use the reader's monospace font.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    try:
        svg_path.write_text(svg, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--svg={svg_path} cannot be written: {error.strerror}") from None
