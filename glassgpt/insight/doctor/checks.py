"""All checks, in the order of the page."""

from __future__ import annotations

from glassgpt.insight.doctor import (
    cards,
    compiling,
    disk,
    dtypes,
    memory,
    processor,
    selftests,
    software,
    speed,
)
from glassgpt.insight.doctor.checkup import Check

_TORCH = "torch"

CHECKS = (
    Check("system", "machine", software.look_at_system, "looking at the system"),
    Check("processor", "machine", processor.look_at_processor, "looking at the processor"),
    Check("memory", "machine", memory.look_at_memory, "looking at the memory"),
    Check(
        _TORCH,
        "machine",
        software.look_at_torch,
        "importing torch",
        fix="install torch again: https://pytorch.org/get-started/locally has the command",
    ),
    Check("threads", "machine", processor.look_at_threads, "counting threads", needs=_TORCH),
    Check("gpu", "devices", cards.look_at_gpus, "looking for GPUs", needs=_TORCH),
    Check("dtype", "devices", dtypes.look_at_dtypes, "choosing dtypes", needs=_TORCH),
    Check("matmul", "speed", speed.look_at_matmuls, "multiplying", slow=True, needs=_TORCH),
    Check("bandwidth", "speed", speed.look_at_bandwidth, "copying", needs=_TORCH),
    Check("clocks", "speed", cards.look_at_clocks, "reading clocks", needs=_TORCH),
    Check("disk", "speed", disk.look_at_disk, "writing to the disk"),
    Check("compilers", "building", compiling.look_at_compilers, "looking for compilers", needs=_TORCH),
    Check(
        "compile",
        "building",
        compiling.look_at_compile,
        "compiling something small",
        slow=True,
        needs=_TORCH,
        fix=compiling.COMPILE_FIX,
    ),
    Check(
        "kernels",
        "building",
        compiling.look_at_kernels,
        "building our kernels",
        slow=True,
        needs=_TORCH,
        fix=compiling.KERNELS_FIX,
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
