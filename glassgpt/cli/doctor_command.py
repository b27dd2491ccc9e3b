"""glass doctor"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from glassgpt.cli.command import console, parsed, print_help, wants_help
from glassgpt.doctor.doctor_options import DoctorOptions, find_problems, out_dir
from glassgpt.errors import UserError
from glassgpt.record import journal

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from glassgpt.doctor.check import Check


def doctor(words: list[str]) -> int:
    """0: no problem was found. 1: there is one."""
    if wants_help(words):
        return print_help(DoctorOptions, "glass doctor")
    names, options, problems = parsed(words, DoctorOptions)
    problems += [f"glass doctor takes no name: {name}" for name in names if not name.startswith("-")]
    problems += find_problems(options)
    if problems:
        raise UserError(problems)
    from glassgpt.doctor.checks import CHECKS
    from glassgpt.doctor.runner import examine
    from glassgpt.show.terminal.doctor_view import DoctorPage

    out = console()
    with _progress(out) as begin:
        if options.json:
            page = examine(CHECKS, out_dir(options), options.quick, begin)
        else:
            shown = DoctorPage(out)
            page = examine(CHECKS, out_dir(options), options.quick, begin, shown.add)
            shown.close(page)
    if options.json:
        print(json.dumps(journal.plain(page.as_dict()), indent=1, allow_nan=False))
    return page.exit_code


@contextmanager
def _progress(out: Console) -> Iterator[Callable[[Check], None]]:
    """Says what is under way, on whichever of the two outputs is a terminal."""
    place = out if out.is_terminal else console(stderr=True)
    if not place.is_terminal or sys.stdout is None:
        yield lambda check: None
        return
    with place.status("") as status:
        yield lambda check: status.update(check.doing)
