"""Going through the checks, one after the other. One that fails is a finding too, and the rest goes on."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

from glassgpt.doctor.check import Answer, Check, Line, Page, Visit
from glassgpt.doctor.isolate import Failed, failure_line


def examine(
    checks: Iterable[Check],
    out_dir: Path,
    quick: bool = False,
    begin: Callable[[Check], None] = lambda check: None,
    tell: Callable[[Answer], None] = lambda answer: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Page:
    """`begin` hears of a check before, `tell` after it."""
    started = clock()
    answers: list[Answer] = []
    left_out: list[Check] = []
    broken: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="glass-doctor-", ignore_cleanup_errors=True) as folder:
        visit = Visit(out_dir, Path(folder), quick)
        for check in checks:
            if quick and check.slow:
                left_out.append(check)
                continue
            begin(check)
            if check.needs in broken:
                lines = [Line(check.name, f"not looked at, because {check.needs} does not work", "note")]
            else:
                lines, failed = look(check, visit)
                broken |= {check.name} if failed else set()
            answers.append(Answer(check, tuple(line.clean() for line in lines)))
            tell(answers[-1])
    return Page(tuple(answers), tuple(left_out), clock() - started)


def look(check: Check, visit: Visit) -> tuple[list[Line], bool]:
    """What a check finds, and whether it failed."""
    try:
        return list(check.look(visit)), False
    except Failed as error:  # in a process of its own
        return [
            Line(check.name, f"failed: {error}", "problem", _fix(check, str(error)), error=error.trace)
        ], True
    except Exception as error:  # noqa: BLE001 - whatever goes wrong in one check is shown, and ends only that one
        what, trace = failure_line(error), "".join(traceback.format_exception(error))
        return [Line(check.name, f"failed: {what}", "problem", _fix(check, what), error=trace)], True


def _fix(check: Check, what: str) -> str:
    if check.fix:
        return check.fix
    if "CUDA" in what:
        return "see what `nvidia-smi` says: other programs may fill the card; a broken driver wants a restart"
    return "the installation is broken, or GlassGPT is: `glass doctor --json` has the whole error"
