"""glass doctor: check GPU, torch, compile, disk and speed of this machine. glass verify RUN|EXPORT|DATASET:
compare every file with its recorded SHA-256."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glassgpt.cli.command import command, make_console, parse_options, print_json
from glassgpt.doctor.diagnosis import DoctorOptions, check_doctor_options, runs_dir
from glassgpt.errors import collect_problems, raise_if_any

if TYPE_CHECKING:
    from rich.console import Console

    from glassgpt.doctor.diagnosis import Check


@command("glass doctor", DoctorOptions)
def doctor(words: list[str]) -> int:
    names, options, problems = parse_options(words, DoctorOptions)
    problems += [f"glass doctor takes no name: {name}" for name in names if not name.startswith("-")]
    problems += check_doctor_options(options)
    raise_if_any(problems)
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
        print_json(report.as_dict())
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


@dataclass(frozen=True)
class VerifyOptions:
    """Compare every file of a run, an export or a dataset with its recorded SHA-256.

    Lists what is damaged, what is still good, and what to do next.
    Exit code 0: nothing is damaged. 1: something is.
    """

    # Print everything as one JSON document.
    json: bool = False


@command("glass verify RUN|EXPORT|DATASET ...", VerifyOptions)
def verify(words: list[str]) -> int:
    from glassgpt.data.progress import show_progress
    from glassgpt.runs.run_list import size_on_disk
    from glassgpt.show.terminal.doctor_view import print_verification
    from glassgpt.verify_files import find_target
    from glassgpt.verify_files import verify as verify_folder

    names, options, problems = parse_options(words, VerifyOptions)
    targets = []
    for name in names:
        with collect_problems(problems):
            targets.append(find_target(name))
    if not names:
        problems.append("say what to verify: glass verify RUN, an export or a dataset")
    raise_if_any(problems)
    reports = []
    for kind, folder in targets:
        size = size_on_disk(folder)
        with show_progress(
            f"verifying {folder}", size, lambda line: print(line, file=sys.stderr), True
        ) as advance:
            reports.append(verify_folder(kind, folder, advance))
        if not options.json:
            print_verification(reports[-1], make_console(), first=len(reports) == 1)
    good = not any(report.with_verdict("damaged") for report in reports)
    if options.json:
        document = {"good": good, "verified": [report.as_dict() for report in reports]}
        print_json(document)
    return 0 if good else 1
