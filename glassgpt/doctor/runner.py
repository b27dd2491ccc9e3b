"""Going through the checks, one after the other. One that fails is a finding too, and the rest goes on."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable
from collections.abc import Iterable
from pathlib import Path

from glassgpt.doctor.check import Check
from glassgpt.doctor.check import CheckContext
from glassgpt.doctor.check import CheckResult
from glassgpt.doctor.check import DiagnosticLine
from glassgpt.doctor.check import DoctorReport
from glassgpt.doctor.isolate import IsolatedCheckFailed
from glassgpt.doctor.isolate import summarize_error


def run_checks(
    checks: Iterable[Check],
    out_dir: Path,
    quick: bool = False,
    begin: Callable[[Check], None] = lambda check: None,
    tell: Callable[[CheckResult], None] = lambda answer: None,
    clock: Callable[[], float] = time.perf_counter,
) -> DoctorReport:
    """`begin` hears of a check before, `tell` after it."""
    started = clock()
    answers: list[CheckResult] = []
    left_out: list[Check] = []
    broken: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="glass-doctor-", ignore_cleanup_errors=True) as folder:
        visit = CheckContext(out_dir, Path(folder), quick)
        for check in checks:
            if quick and check.is_slow:
                left_out.append(check)
                continue
            begin(check)
            if check.depends_on in broken:
                lines = [
                    DiagnosticLine(
                        check.name, f"not looked at, because {check.depends_on} does not work", "note"
                    )
                ]
            else:
                lines, failed = run_check(check, visit)
                broken |= {check.name} if failed else set()
            answers.append(CheckResult(check, tuple(line.sanitized() for line in lines)))
            tell(answers[-1])
    return DoctorReport(tuple(answers), tuple(left_out), clock() - started)


def run_check(check: Check, visit: CheckContext) -> tuple[list[DiagnosticLine], bool]:
    """What a check finds, and whether it failed."""
    try:
        return list(check.run(visit)), False
    except IsolatedCheckFailed as error:  # in a process of its own
        return [
            DiagnosticLine(
                check.name, f"failed: {error}", "problem", _fix(check, str(error)), error=error.trace
            )
        ], True
    except Exception as error:  # noqa: BLE001 - whatever goes wrong in one check is shown, and ends only that one
        what, trace = summarize_error(error), "".join(traceback.format_exception(error))
        return [
            DiagnosticLine(check.name, f"failed: {what}", "problem", _fix(check, what), error=trace)
        ], True


def _fix(check: Check, what: str) -> str:
    if check.fix:
        return check.fix
    if "CUDA" in what:
        return "see what `nvidia-smi` says: other programs may fill the card; a broken driver wants a restart"
    return "the installation is broken, or GlassGPT is: `glass doctor --json` has the whole error"
