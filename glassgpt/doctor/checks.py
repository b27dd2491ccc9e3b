"""All checks of `glass doctor` in the order they run, and the function that runs them."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from glassgpt.doctor import compile_check, disk_check, gpu_checks, host_checks, selftests, speed_check
from glassgpt.doctor.diagnosis import Check, CheckContext, CheckResult, DiagnosticLine, DoctorReport
from glassgpt.doctor.isolated_check import IsolatedCheckFailed, summarize_error

_TORCH = "torch"

CHECKS = (
    Check("system", "machine", host_checks.check_system, "checking the system"),
    Check("processor", "machine", host_checks.check_processor, "checking the processor"),
    Check("memory", "machine", host_checks.check_memory, "checking the memory"),
    Check(
        _TORCH,
        "machine",
        host_checks.check_torch,
        "importing torch",
        fix="reinstall torch: https://pytorch.org/get-started/locally has the command",
    ),
    Check("threads", "machine", host_checks.check_threads, "counting threads", depends_on=_TORCH),
    Check("gpu", "devices", gpu_checks.check_gpus, "looking for GPUs", depends_on=_TORCH),
    Check("dtype", "devices", gpu_checks.check_dtypes, "choosing dtypes", depends_on=_TORCH),
    Check("matmul", "speed", speed_check.check_matmuls, "timing matmuls", is_slow=True, depends_on=_TORCH),
    Check("bandwidth", "speed", speed_check.check_bandwidth, "timing memory copies", depends_on=_TORCH),
    Check("clocks", "speed", gpu_checks.check_clocks, "reading clocks", depends_on=_TORCH),
    Check("disk", "speed", disk_check.check_disk, "writing to the disk"),
    Check("compilers", "building", compile_check.check_compilers, "looking for compilers", depends_on=_TORCH),
    Check(
        "compile",
        "building",
        compile_check.check_compile,
        "compiling a small function",
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
        Check(name, "self-tests", check, f"self-test: {name}", is_slow=True, depends_on=_TORCH)
        for name, check in (
            ("accumulation", partial(selftests.run_selftest, selftests.selftest_accumulation)),
            ("resume", partial(selftests.run_selftest, selftests.selftest_resume)),
            ("cpu and gpu", selftests.check_devices),
            ("fast paths", partial(selftests.run_selftest, selftests.selftest_fast_paths)),
        )
    ),
)


def run_checks(
    checks: Iterable[Check],
    out_dir: Path,
    quick: bool = False,
    on_start: Callable[[Check], None] = lambda check: None,
    on_result: Callable[[CheckResult], None] = lambda result: None,
    clock: Callable[[], float] = time.perf_counter,
) -> DoctorReport:
    """Run the checks in order. `on_start` is called before each of them, `on_result` after it."""
    started = clock()
    results: list[CheckResult] = []
    skipped: list[Check] = []
    failed_checks: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="glass-doctor-", ignore_cleanup_errors=True) as folder:
        context = CheckContext(out_dir, Path(folder), quick)
        for check in checks:
            if quick and check.is_slow:
                skipped.append(check)
                continue
            on_start(check)
            if check.depends_on in failed_checks:
                message = f"skipped, because {check.depends_on} does not work"
                lines = [DiagnosticLine(check.name, message, "note")]
            else:
                lines, failed = run_check(check, context)
                failed_checks |= {check.name} if failed else set()
            results.append(CheckResult(check, tuple(line.sanitized() for line in lines)))
            on_result(results[-1])
    return DoctorReport(tuple(results), tuple(skipped), clock() - started)


def run_check(check: Check, context: CheckContext) -> tuple[list[DiagnosticLine], bool]:
    """The lines of a check, and whether it failed."""
    try:
        return list(check.run(context)), False
    except IsolatedCheckFailed as error:  # in its separate process
        summary, trace = str(error), error.trace
    except Exception as error:  # noqa: BLE001 - an error in one check is shown, and ends that check only
        summary, trace = summarize_error(error), "".join(traceback.format_exception(error))
    fix = check.fix
    if not fix and "CUDA" in summary:
        fix = "look at `nvidia-smi`: other programs may fill the card; a broken driver needs a restart"
    elif not fix:
        fix = "the installation or GlassGPT is broken: `glass doctor --json` has the full traceback"
    return [DiagnosticLine(check.name, f"failed: {summary}", "problem", fix, error=trace)], True
