"""System, Python, torch, processor, threads, load, clock and memory of this machine."""

from __future__ import annotations

import math
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from glassgpt import format
from glassgpt.cgroup import (
    CGROUP_ROOT,
    cpu_quota,
    memory_limit_and_free_bytes,
    read_own_cgroups,
    usable_cores,
)
from glassgpt.doctor.check import CheckContext, DiagnosticLine, ReportValue
from glassgpt.estimate.flops import count_parameters
from glassgpt.files import read_text_or_empty
from glassgpt.record.machine import cpu_model, load_average, measure_busy_cores, source_commit
from glassgpt.version import VERSION

# The model that sizes are given for, as `glass train gpt2_124m` has it.
GPT2_NAME = "GPT-2 124M"
GPT2_PARAMETERS = count_parameters(
    vocab_size=50_304, block_size=1024, n_layer=12, n_embd=768, arch="gpt2", bias=False
)
GPT2_CHECKPOINT_BYTES = 12 * GPT2_PARAMETERS  # weights and AdamW's two moments, in float32
GPT2_TRAINING_BYTES = 16 * GPT2_PARAMETERS  # gradients too


OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 8)  # as pyproject.toml has them


def check_system(context: CheckContext) -> list[DiagnosticLine]:
    system, kind = _system_name(), platform.machine()
    numbers = {"os": platform.system(), "kernel": platform.release(), "name": system, "machine": kind}
    line = DiagnosticLine("system", f"{system}, {kind}", numbers=numbers)
    return [line, _python_line(sys.version_info[:2], platform.python_version()), _own_line()]


def _system_name() -> str:
    """As people call it: Debian GNU/Linux 12 (bookworm), macOS 15.1, Windows 11."""
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):  # a system without that file
        return f"{platform.system()} {platform.release()}"


def _python_line(version: tuple[int, int], full: str) -> DiagnosticLine:
    numbers = {"python": full}
    if version < OLDEST_PYTHON:
        return DiagnosticLine(
            "python", full, "problem", f"install Python {_dotted(OLDEST_PYTHON)} or newer", numbers
        )
    return DiagnosticLine("python", full, numbers=numbers)


def _own_line() -> DiagnosticLine:
    commit = source_commit(Path(__file__).resolve().parents[2])
    numbers = {"version": VERSION, "commit": commit}
    return DiagnosticLine(
        "glassgpt", VERSION + (f", commit {_short_commit(commit)}" if commit else ""), numbers=numbers
    )


def _short_commit(commit: str) -> str:
    """12 digits; and `-dirty`, if files differ from it."""
    digits, dash, state = commit.partition("-")
    return digits[:12] + dash + state


def check_torch(context: CheckContext) -> list[DiagnosticLine]:
    """Fails, and with it all that needs torch, where torch cannot be imported."""
    import numpy
    import torch

    return [torch_line(str(torch.__version__), torch.version.cuda, torch.version.hip, numpy.__version__)]


def torch_line(version: str, cuda: str | None, hip: str | None, numpy: str) -> DiagnosticLine:
    built = f"for CUDA {cuda}" if cuda else f"for ROCm {hip}" if hip else "without CUDA"
    numbers = {"torch": version, "cuda": cuda, "hip": hip, "numpy": numpy}
    says = f"{version}, built {built}; numpy {numpy}"
    if _release(version) < OLDEST_TORCH:
        return DiagnosticLine(
            "torch", says, "problem", f"install torch {_dotted(OLDEST_TORCH)} or newer", numbers
        )
    return DiagnosticLine("torch", says, numbers=numbers)


def _release(version: str) -> tuple[int, ...]:
    """(2, 13) of 2.13.0+cpu"""
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2])


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


_CPUFREQ_DIR = Path("/sys/devices/system/cpu/cpu0/cpufreq")


@dataclass(frozen=True)
class Cores:
    """`usable`: by this process; less than `logical` under a scheduler's or a container's limit."""

    physical: int
    logical: int
    usable: float
    quota: float | None = None

    @property
    def parallel(self) -> float:
        """That compute at once: two threads of one core share its arithmetic."""
        return min(self.physical, self.usable)


def find_cores() -> Cores:
    logical = psutil.cpu_count() or 1
    quota = cpu_quota(read_own_cgroups(), CGROUP_ROOT)
    return Cores(psutil.cpu_count(logical=False) or logical, logical, usable_cores(), quota)


def check_processor(context: CheckContext) -> list[DiagnosticLine]:
    cores = find_cores()
    model = cpu_model(read_text_or_empty(Path("/proc/cpuinfo")))
    lines = [cores_line(model, cores), load_line(load_average(), cores)]
    return [*lines, clock_line(read_clock(_CPUFREQ_DIR), hottest_cpu_celsius(read_temperatures()))]


def cores_line(model: str, cores: Cores) -> DiagnosticLine:
    says = f"{model}, {format.pluralize(cores.physical, 'core')}"
    if cores.logical > cores.physical:
        says += f" ({cores.logical} threads)"
    numbers: dict[str, ReportValue] = {
        "model": model,
        "physical_cores": cores.physical,
        "logical_cores": cores.logical,
        "usable_cores": cores.usable,
        "quota": cores.quota,
    }
    if cores.usable >= cores.logical:
        return DiagnosticLine("processor", says, numbers=numbers)
    held = cores.quota is not None and cores.quota <= cores.usable
    by_whom = "a quota" if held else "the scheduler"
    fix = (
        "if more is wanted: docker run --cpus, or the CPU limit of the pod or job"
        if held
        else "if more is wanted: look at taskset, or the cores of the job"
    )
    return DiagnosticLine(
        "processor", f"{says}, {cores.usable:g} of them usable here: {by_whom}", "note", fix, numbers
    )


# --- threads ---


def check_threads(context: CheckContext) -> list[DiagnosticLine]:
    import torch

    return [threads_line(torch.get_num_threads(), find_cores(), os.environ, measure_busy_cores())]


def threads_line(
    threads: int, cores: Cores, environment: Mapping[str, str], busy: float = 0.0
) -> DiagnosticLine:
    """`busy`: cores that other programs use just now. A run takes none of them (estimate/decide.py)."""
    omp_threads = environment.get("OMP_NUM_THREADS")
    says = f"torch computes with {format.pluralize(threads, 'thread')}"
    says += f" (OMP_NUM_THREADS={omp_threads})" if omp_threads else ""
    numbers = {"threads": threads, "omp_num_threads": omp_threads, "usable_cores": cores.usable}
    best = max(1, math.floor(cores.parallel))
    if threads > math.ceil(cores.usable):
        return DiagnosticLine(
            "threads",
            f"{says}, more than the {cores.usable:g} usable cores: they wait for each other",
            "problem",
            f"export OMP_NUM_THREADS={best}",
            numbers,
        )
    if threads < max(1, best - int(busy + 0.5)):
        held = "unset OMP_NUM_THREADS" if omp_threads else f"export OMP_NUM_THREADS={best}"
        return DiagnosticLine("threads", f"{says}; {best} cores are there to use", "note", held, numbers)
    if omp_threads and not re.fullmatch(r"\s*0*[1-9]\d*\s*(,\s*\d+\s*)*", omp_threads):
        return DiagnosticLine(
            "threads", f"{says}, which is no count: not heeded", "note", "unset OMP_NUM_THREADS", numbers
        )
    return DiagnosticLine("threads", says, numbers=numbers)


# --- others ---

_BUSY_CORE_SHARE = 0.4  # of all cores


def load_line(load: float, cores: Cores) -> DiagnosticLine:
    """`load`: tasks that ran or waited to run, on average over the last minute."""
    says = f"{load:.1f} of {format.pluralize(cores.logical, 'core')} busy over the last minute"
    numbers = {"load_1min": round(load, 2), "logical_cores": cores.logical}
    if load < _BUSY_CORE_SHARE * cores.logical:
        return DiagnosticLine("load", says, numbers=numbers)
    return DiagnosticLine(
        "load",
        f"{says}: other programs keep this machine busy, and what is measured below may be slower than it is",
        "note",
        "look at `top`, and run this again when it is quiet",
        numbers,
    )


# --- clock ---


@dataclass(frozen=True)
class CpuClock:
    """In MHz, where the system tells."""

    mhz: float | None = None
    max_mhz: float | None = None
    governor: str = ""
    driver: str = ""


def read_clock(folder: Path) -> CpuClock:
    """Of the first core, from Linux' cpufreq. Virtual machines have none, and show no clock to trust."""

    def megahertz(name: str) -> float | None:
        text = read_text_or_empty(folder / name).strip()
        return int(text) / 1000 if text.isdigit() else None

    return CpuClock(
        megahertz("scaling_cur_freq"),
        megahertz("cpuinfo_max_freq"),
        read_text_or_empty(folder / "scaling_governor").strip(),
        read_text_or_empty(folder / "scaling_driver").strip(),
    )


# Under these, `powersave` is the usual setting and still clocks up under load.
_SELF_SCALING_DRIVERS = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
_HOT_CELSIUS = 95.0  # degrees Celsius: about where processors begin to slow down


def clock_line(clock: CpuClock, temperature: float | None = None) -> DiagnosticLine:
    numbers = {
        "mhz": clock.mhz,
        "max_mhz": clock.max_mhz,
        "governor": clock.governor or None,
        "temperature_c": temperature,
    }
    parts = []
    if clock.mhz and clock.max_mhz:
        parts.append(f"{clock.mhz / 1000:.1f} of {clock.max_mhz / 1000:.1f} GHz just now")
    if clock.governor:
        parts.append(f"governor {clock.governor}")
    if temperature is not None:
        parts.append(f"{temperature:.0f} °C")
    if not parts:
        return DiagnosticLine(
            "clock", "not readable here, as usual in a virtual machine", "note", numbers=numbers
        )
    says = ", ".join(parts)
    if temperature is not None and temperature >= _HOT_CELSIUS:
        return DiagnosticLine(
            "clock",
            f"{says}: so hot, a processor slows itself down",
            "problem",
            "clean or improve the cooling",
            numbers,
        )
    if clock.governor == "powersave" and clock.driver not in _SELF_SCALING_DRIVERS:
        fix = "sudo cpupower frequency-set -g performance"
        return DiagnosticLine("clock", f"{says}: it stays at its lowest clock", "problem", fix, numbers)
    return DiagnosticLine("clock", says, numbers=numbers)


def read_temperatures() -> Mapping[str, Any]:
    """psutil knows some on Linux and FreeBSD, and has no such function elsewhere."""
    read = getattr(psutil, "sensors_temperatures", None)
    return read() if read else {}


_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal")


def hottest_cpu_celsius(sensors: Mapping[str, Any]) -> float | None:
    """Of the processor's sensors, in degrees Celsius."""
    readings = [entry.current for name in _CPU_SENSORS for entry in sensors.get(name, ())]
    return max((float(value) for value in readings if value), default=None)


_LOW_MEMORY_BYTES, _TOO_LOW_MEMORY_BYTES = 4 * 2**30, 2**30


def check_memory(context: CheckContext) -> list[DiagnosticLine]:
    memory = psutil.virtual_memory()
    room = memory_limit_and_free_bytes(read_own_cgroups(), CGROUP_ROOT)
    return [memory_line(memory.available, memory.total, room)]


def memory_line(available: int, total: int, room: tuple[int, int] | None) -> DiagnosticLine:
    """`room`: what a container may use, and what is left of that."""
    limited = room is not None and room[0] < total
    if room is not None and limited:
        total, available = room[0], min(available, room[1])
    says = f"{format.format_bytes(available)} of {format.format_bytes(total)} free"
    says += ", a container's limit" if limited else ""
    numbers = {"available": available, "total": total, "limited": limited}
    if available < _TOO_LOW_MEMORY_BYTES:
        return DiagnosticLine(
            "memory",
            f"{says}: too little for anything but tiny models",
            "problem",
            "end other programs, or raise the limit",
            numbers,
        )
    if available < _LOW_MEMORY_BYTES:
        return DiagnosticLine(
            "memory",
            f"{says}; of {GPT2_NAME}, weights, gradients and AdamW's state alone take "
            f"{format.format_bytes(GPT2_TRAINING_BYTES)}",
            "note",
            "end other programs, or train smaller models",
            numbers,
        )
    return DiagnosticLine("memory", says, numbers=numbers)
