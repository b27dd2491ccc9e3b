"""A run's output again, from its journal: in the terminal or as a picture."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console

from glassgpt.errors import UserError, error_type_and_message
from glassgpt.record import journal
from glassgpt.sanitize import sanitize_text
from glassgpt.show.terminal.run_console import RunConsole


def replay(run_dir: Path, out: Console) -> None:
    path = run_dir if run_dir.name == journal.FILE_NAME else run_dir / journal.FILE_NAME
    if not path.is_file():
        raise UserError(
            f"{run_dir} holds no run: there is no {journal.FILE_NAME} in it; `glass runs` lists the runs"
        )
    records = journal.effective_records(journal.read(path))
    if not records:
        raise UserError(f"{run_dir} has no records of a run in it yet")
    show = RunConsole(out)
    for record in records:
        try:
            show(record)
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            # A journal is a file like any other: in this record something is of another kind than we write.
            what = sanitize_text(
                f"the {record['kind']} record of iter {record['iter']}: {error_type_and_message(error)}"
            )
            out.print(f"{'warning':<13} not shown: {what}", soft_wrap=True, markup=False)


def replay_svg(run_dir: Path, svg: Path, width: int) -> None:
    out = Console(
        record=True, width=width, file=io.StringIO(), force_terminal=True, highlight=False, emoji=False
    )
    replay(run_dir, out)
    try:
        svg.write_text(_without_fonts(out.export_svg(title=f"glass train ({run_dir})")), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--svg={svg} cannot be written: {error.strerror}") from None


def _without_fonts(svg: str) -> str:
    """rich's pictures fetch a font from the web; ours make do with the reader's monospace."""
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
