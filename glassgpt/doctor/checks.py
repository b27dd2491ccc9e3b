"""All checks, in the order of the page."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

from glassgpt.doctor import compile_check, disk_check, gpu_checks, host_checks, selftests, speed_check
from glassgpt.doctor.check import Check, CheckContext, CheckResult, DiagnosticLine, DoctorReport
from glassgpt.doctor.isolate import IsolatedCheckFailed, summarize_error

_TORCH = "torch"

CHECKS = (
    Check("system", "machine", host_checks.check_system, "looking at the system"),
    Check("processor", "machine", host_checks.check_processor, "looking at the processor"),
    Check("memory", "machine", host_checks.check_memory, "looking at the memory"),
    Check(
        _TORCH,
        "machine",
        host_checks.check_torch,
        "importing torch",
        fix="install torch again: https://pytorch.org/get-started/locally has the command",
    ),
    Check("threads", "machine", host_checks.check_threads, "counting threads", depends_on=_TORCH),
    Check("gpu", "devices", gpu_checks.check_gpus, "looking for GPUs", depends_on=_TORCH),
    Check("dtype", "devices", gpu_checks.check_dtypes, "choosing dtypes", depends_on=_TORCH),
    Check("matmul", "speed", speed_check.check_matmuls, "multiplying", is_slow=True, depends_on=_TORCH),
    Check("bandwidth", "speed", speed_check.check_bandwidth, "copying", depends_on=_TORCH),
    Check("clocks", "speed", gpu_checks.check_clocks, "reading clocks", depends_on=_TORCH),
    Check("disk", "speed", disk_check.check_disk, "writing to the disk"),
    Check("compilers", "building", compile_check.check_compilers, "looking for compilers", depends_on=_TORCH),
    Check(
        "compile",
        "building",
        compile_check.check_compile,
        "compiling something small",
        is_slow=True,
        depends_on=_TORCH,
        fix=compile_check.COMPILE_FIX,
    ),
    Check(
        "kernels",
        "building",
        compile_check.check_kernels,
        "building our kernels",
        is_slow=True,
        depends_on=_TORCH,
        fix=compile_check.KERNELS_FIX,
    ),
    *(
        Check(name, "self-tests", look, f"self-test: {name}", is_slow=True, depends_on=_TORCH)
        for name, look in (
            ("accumulation", selftests.check_accumulation),
            ("resume", selftests.check_resume),
            ("cpu and gpu", selftests.check_devices),
            ("fast paths", selftests.check_fast_paths),
        )
    ),
)


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
        context = CheckContext(out_dir, Path(folder), quick)
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
                lines, failed = run_check(check, context)
                broken |= {check.name} if failed else set()
            answers.append(CheckResult(check, tuple(line.sanitized() for line in lines)))
            tell(answers[-1])
    return DoctorReport(tuple(answers), tuple(left_out), clock() - started)


def run_check(check: Check, context: CheckContext) -> tuple[list[DiagnosticLine], bool]:
    """What a check finds, and whether it failed."""
    try:
        return list(check.run(context)), False
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
