"""All checks, in the order of the page."""

from __future__ import annotations

from glassgpt.doctor import (
    compile_check,
    cpu_checks,
    disk_check,
    dtype_check,
    gpu_checks,
    memory_check,
    selftests,
    software_check,
    speed_check,
)
from glassgpt.doctor.check import Check

_TORCH = "torch"

CHECKS = (
    Check("system", "machine", software_check.look_at_system, "looking at the system"),
    Check("processor", "machine", cpu_checks.look_at_processor, "looking at the processor"),
    Check("memory", "machine", memory_check.look_at_memory, "looking at the memory"),
    Check(
        _TORCH,
        "machine",
        software_check.look_at_torch,
        "importing torch",
        fix="install torch again: https://pytorch.org/get-started/locally has the command",
    ),
    Check("threads", "machine", cpu_checks.look_at_threads, "counting threads", needs=_TORCH),
    Check("gpu", "devices", gpu_checks.look_at_gpus, "looking for GPUs", needs=_TORCH),
    Check("dtype", "devices", dtype_check.look_at_dtypes, "choosing dtypes", needs=_TORCH),
    Check("matmul", "speed", speed_check.look_at_matmuls, "multiplying", slow=True, needs=_TORCH),
    Check("bandwidth", "speed", speed_check.look_at_bandwidth, "copying", needs=_TORCH),
    Check("clocks", "speed", gpu_checks.look_at_clocks, "reading clocks", needs=_TORCH),
    Check("disk", "speed", disk_check.look_at_disk, "writing to the disk"),
    Check("compilers", "building", compile_check.look_at_compilers, "looking for compilers", needs=_TORCH),
    Check(
        "compile",
        "building",
        compile_check.look_at_compile,
        "compiling something small",
        slow=True,
        needs=_TORCH,
        fix=compile_check.COMPILE_FIX,
    ),
    Check(
        "kernels",
        "building",
        compile_check.look_at_kernels,
        "building our kernels",
        slow=True,
        needs=_TORCH,
        fix=compile_check.KERNELS_FIX,
    ),
    *(
        Check(name, "self-tests", look, f"self-test: {name}", slow=True, needs=_TORCH)
        for name, look in (
            ("accumulation", selftests.look_at_accumulation),
            ("resume", selftests.look_at_resume),
            ("cpu and gpu", selftests.look_at_devices),
            ("fast paths", selftests.look_at_fast_paths),
        )
    ),
)
