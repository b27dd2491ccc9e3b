"""This machine without torch: its CPU, memory and load, and the age of this process.

    process_age_s()                                 # 3.41: interpreter and imports included

Nothing here identifies a person: no host name, no user, no path.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from glassgpt.cgroup import (
    CGROUP_ROOT,
    memory_limit_and_free_bytes,
    memory_limit_bytes,
    read_own_cgroups,
    usable_cores,
)
from glassgpt.files import read_text_or_empty
from glassgpt.format import pluralize
from glassgpt.record.gpu_state import read_gpus


def describe_cpu() -> dict[str, object]:
    info = read_text_or_empty(Path("/proc/cpuinfo"))
    flags = re.search(r"^flags\s*:(.*)$", info, re.MULTILINE)
    cpu_flags = flags[1].split() if flags else None  # None: unknown on this system
    return {
        "model": cpu_model(info),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "usable_cores": usable_cores(),
        # The two that decide whether bfloat16 is fast on a CPU.
        "avx512_bf16": None if cpu_flags is None else "avx512_bf16" in cpu_flags,
        "amx": None if cpu_flags is None else "amx_bf16" in cpu_flags,
    }


def cpu_model(cpuinfo: str | None = None) -> str:
    """`cpuinfo`: what /proc/cpuinfo says; None: read it."""
    info = read_text_or_empty(Path("/proc/cpuinfo")) if cpuinfo is None else cpuinfo
    match = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    if match:
        return match[1].strip()
    if sys.platform == "darwin" and (brand := command_output("sysctl", "-n", "machdep.cpu.brand_string")):
        return brand
    return platform.processor() or platform.machine() or "unknown"


def cpu_name() -> str:
    """The CPU and how much of it this process may use: `AMD EPYC 9354, 2 cores`."""
    cores = max(1, math.floor(usable_cores()))
    return f"{cpu_model()}, {pluralize(cores, 'core')}"


def peak_resident_bytes() -> int:
    """The most that this process has had at once; what it has now, where the system does not keep that."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    match = re.search(r"^VmHWM:\s*(\d+) kB$", read_text_or_empty(Path("/proc/self/status")), re.MULTILINE)
    if match:
        return int(match[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reset_peak_resident() -> None:
    """Starts the peak anew, on Linux. Where a container forbids it, the peak stays that of the process."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def release_freed_memory() -> None:
    """Returns freed memory to the system and starts the peak anew, so that a run counts its own. On Linux
    with glibc."""
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
    if trim is not None:
        trim(0)
    reset_peak_resident()


def load_average() -> float:
    """Runnable processes, averaged over the last minute, this one among them; 0 if unknown."""
    try:
        return float(psutil.getloadavg()[0])
    except OSError:  # not on every system
        return 0.0


@dataclass(frozen=True)
class CpuTimes:
    """A reading of the clock and of CPU time, to be compared with a later one."""

    wall_s: float
    busy_s: float  # of all processes, on the cores that this process may use
    own_s: float  # of this process
    cores: int = 0  # number of those cores; a container's quota may be smaller


def read_cpu_times() -> CpuTimes:
    cores = psutil.cpu_times(percpu=True)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(cores))
    not_busy = ("idle", "iowait", "guest", "guest_nice")  # guests are in `user` and `nice` already
    busy = sum(
        seconds
        for number, core in enumerate(cores)
        if number in allowed
        for name, seconds in core._asdict().items()
        if name not in not_busy
    )
    return CpuTimes(time.monotonic(), busy, time.process_time(), len(allowed))


def cores_used_by_others(before: CpuTimes, now: CpuTimes) -> float:
    """Cores that other programs kept busy between two readings, and that this process could have used. With a
    container's quota of 4 cores on a host of 64, the first 60 busy cores cost this process nothing."""
    others_s = (now.busy_s - before.busy_s) - (now.own_s - before.own_s)
    busy_cores = others_s / max(1e-9, now.wall_s - before.wall_s)
    return max(0.0, busy_cores - max(0.0, now.cores - usable_cores()))


def measure_busy_cores(seconds: float = 0.2) -> float:
    """Cores that other programs keep busy right now. The load average would lag by a minute."""
    before = read_cpu_times()
    time.sleep(seconds)
    return cores_used_by_others(before, read_cpu_times())


def usable_memory() -> tuple[int, bool]:
    """Bytes of main memory that this process may use, and whether a container limits them."""
    total = int(psutil.virtual_memory().total)
    limit = memory_limit_bytes(read_own_cgroups(), CGROUP_ROOT)
    return (total, False) if limit is None or limit >= total else (limit, True)


def available_memory_bytes() -> int:
    """Bytes of main memory that this process could still use."""
    available = int(psutil.virtual_memory().available)
    limit_and_free = memory_limit_and_free_bytes(read_own_cgroups(), CGROUP_ROOT)
    return available if limit_and_free is None else min(available, limit_and_free[1])


def unified_memory_bytes() -> int:
    """Bytes that an Apple chip's CPU and GPU share."""
    memsize = command_output("sysctl", "-n", "hw.memsize") or ""
    return int(memsize) if memsize.isdecimal() else int(psutil.virtual_memory().total)


def nvidia_driver() -> str | None:
    match = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", read_text_or_empty(Path("/proc/driver/nvidia/version")))
    if match:
        return match[0]
    return read_gpus().driver  # slower: it starts a process


@cache
def apple_gpu_name() -> str:
    """`Apple M2 Pro 19-core GPU`, as in the card table: chips of one name differ in GPU cores."""
    chip = cpu_model("")
    cores = re.search(
        r"Total Number of Cores: (\d+)", command_output("system_profiler", "SPDisplaysDataType") or ""
    )
    return f"{chip} {cores[1]}-core GPU" if cores else chip


def source_commit(root: Path) -> str | None:
    """The git commit of the source tree at `root`, with `-dirty` if files differ; None outside a checkout. An
    installed package must not report the repository that its environment happens to be in."""
    if not (root / ".git").exists():
        return None
    describe = ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return command_output("git", "--no-optional-locks", "-C", str(root), *describe)


def process_age_s() -> float:
    """Seconds since the operating system created this process: interpreter and imports included."""
    if sys.platform == "linux":
        stat = read_text_or_empty(Path("/proc/self/stat"))
        if stat:
            now = time.clock_gettime(time.CLOCK_BOOTTIME)
            return max(0.0, now - start_since_boot_s(stat, os.sysconf("SC_CLK_TCK")))
    return max(0.0, time.time() - float(psutil.Process().create_time()))


def start_since_boot_s(stat: str, ticks_per_s: int) -> float:
    """When a process started, from its /proc/PID/stat, precise to a clock tick. psutil adds the boot time in
    whole seconds to the same number, which is wrong by up to a second."""
    after_name = stat.rpartition(")")[2].split()  # the name may hold spaces and brackets itself
    return int(after_name[19]) / ticks_per_s  # field 22 of the line, starttime


def resident_bytes() -> int:
    """psutil's number; on Linux read directly, which is faster: it is logged with every step record."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return int(psutil.Process().memory_info().rss)


# As torch and Triton look for a compiler: an environment variable, then the usual names.
COMPILER_COMMANDS = {"C": ("CC", "cc", "gcc", "clang"), "C++": ("CXX", "c++", "g++", "clang++")}


def find_compiler(
    language: str, environment: Mapping[str, str], which: Callable[[str], str | None]
) -> str | None:
    variable, *usual = COMPILER_COMMANDS[language]
    return next((name for name in (environment.get(variable), *usual) if name and which(name)), None)


def command_output(*command: str, environment: Mapping[str, str] | None = None) -> str | None:
    """What a command prints, or None if it is missing, fails, hangs or prints nothing."""
    try:
        completed = subprocess.run(command, capture_output=True, timeout=10, check=True, env=environment)
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout.decode("utf-8", errors="replace").strip() or None
