"""All checks, in the order of the page."""

from __future__ import annotations

from glassgpt.doctor import compile_check
from glassgpt.doctor import cpu_checks
from glassgpt.doctor import disk_check
from glassgpt.doctor import dtype_check
from glassgpt.doctor import gpu_checks
from glassgpt.doctor import memory_check
from glassgpt.doctor import selftests
from glassgpt.doctor import software_check
from glassgpt.doctor import speed_check
from glassgpt.doctor.check import Check

_TORCH = "torch"

CHECKS = (
    Check("system", "machine", software_check.check_system, "looking at the system"),
    Check("processor", "machine", cpu_checks.check_processor, "looking at the processor"),
    Check("memory", "machine", memory_check.check_memory, "looking at the memory"),
    Check(
        _TORCH,
        "machine",
        software_check.check_torch,
        "importing torch",
        fix="install torch again: https://pytorch.org/get-started/locally has the command",
    ),
    Check("threads", "machine", cpu_checks.check_threads, "counting threads", depends_on=_TORCH),
    Check("gpu", "devices", gpu_checks.check_gpus, "looking for GPUs", depends_on=_TORCH),
    Check("dtype", "devices", dtype_check.check_dtypes, "choosing dtypes", depends_on=_TORCH),
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
