"""glass doctor: check GPU, torch, compile, disk and speed of this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from glassgpt.cli.command import command, make_console, parse_options
from glassgpt.doctor.diagnosis import DoctorOptions, check_doctor_options, runs_dir
from glassgpt.errors import UserError
from glassgpt.record import journal

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from glassgpt.doctor.diagnosis import Check


@command("glass doctor", DoctorOptions)
def doctor(words: list[str]) -> int:
    names, options, problems = parse_options(words, DoctorOptions)
    problems += [f"glass doctor takes no name: {name}" for name in names if not name.startswith("-")]
    problems += check_doctor_options(options)
    if problems:
        raise UserError(problems)
    from glassgpt.doctor.checks import CHECKS, run_checks
    from glassgpt.show.terminal.doctor_view import DoctorConsole

    out = make_console()
    with _progress(out) as on_start:
        if options.json:
            report = run_checks(CHECKS, runs_dir(options), options.quick, on_start)
        else:
            console = DoctorConsole(out)
            report = run_checks(CHECKS, runs_dir(options), options.quick, on_start, console.print_result)
            console.print_summary(report)
    if options.json:
        print(json.dumps(journal.nonfinite_to_words(report.as_dict()), indent=1, allow_nan=False))
    return report.exit_code


@contextmanager
def _progress(out: Console) -> Iterator[Callable[[Check], None]]:
    """A status line with the running check, on stdout or stderr, whichever is a terminal."""
    terminal = out if out.is_terminal else make_console(stderr=True)
    if not terminal.is_terminal or sys.stdout is None:
        yield lambda check: None
        return
    with terminal.status("") as status:
        yield lambda check: status.update(check.progress_text)
