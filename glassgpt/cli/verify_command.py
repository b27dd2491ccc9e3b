"""glass verify RUN|EXPORT|DATASET: compare every file with its recorded SHA-256."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from glassgpt.cli.command import command, make_console, parse_options
from glassgpt.errors import UserError


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
    from glassgpt.data.progress import show_byte_progress
    from glassgpt.runs.run_list import size_on_disk
    from glassgpt.show.terminal.doctor_view import print_verification
    from glassgpt.verify_files import find_target
    from glassgpt.verify_files import verify as verify_folder

    names, options, problems = parse_options(words, VerifyOptions)
    targets = []
    for name in names:
        try:
            targets.append(find_target(name))
        except UserError as error:
            problems += error.problems
    if not names:
        problems.append("say what to verify: glass verify RUN, an export or a dataset")
    if problems:
        raise UserError(problems)
    reports = []
    for kind, folder in targets:
        size = size_on_disk(folder)
        with show_byte_progress(
            f"verifying {folder}", size, lambda line: print(line, file=sys.stderr), True
        ) as advance:
            reports.append(verify_folder(kind, folder, advance))
        if not options.json:
            print_verification(reports[-1], make_console(), first=len(reports) == 1)
    good = not any(report.with_verdict("damaged") for report in reports)
    if options.json:
        document = {"good": good, "verified": [report.as_dict() for report in reports]}
        print(json.dumps(document, indent=1))
    return 0 if good else 1
