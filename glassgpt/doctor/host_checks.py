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

from glassgpt.cgroup import (
    CGROUP_ROOT,
    cpu_quota,
    memory_limit_and_free_bytes,
    read_own_cgroups,
    usable_cores,
)
from glassgpt.doctor.diagnosis import CheckContext, DiagnosticLine, ReportValue
from glassgpt.estimate.flops import count_parameters
from glassgpt.estimate.training_workload import ADAMW_BYTES, GRADIENT_BYTES, WEIGHT_BYTES
from glassgpt.files import read_text_or_empty
from glassgpt.format import format_bytes, pluralize
from glassgpt.record.machine import cpu_model, load_average, measure_busy_cores, source_commit
from glassgpt.version import VERSION

# The example model for sizes: that of `glass train gpt2_124m`.
GPT2_NAME = "GPT-2 124M"
GPT2_PARAMETERS = count_parameters(
    vocab_size=50_304, block_size=1024, n_layer=12, n_embd=768, arch="gpt2", bias=False
)
GPT2_CHECKPOINT_BYTES = (WEIGHT_BYTES + ADAMW_BYTES) * GPT2_PARAMETERS
GPT2_TRAINING_BYTES = (WEIGHT_BYTES + ADAMW_BYTES + GRADIENT_BYTES) * GPT2_PARAMETERS

OLDEST_TORCH = (2, 8)  # as in pyproject.toml


def check_system(context: CheckContext) -> list[DiagnosticLine]:
    system, architecture = _system_name(), platform.machine()
    values = {"os": platform.system(), "kernel": platform.release(), "name": system, "machine": architecture}
    line = DiagnosticLine("system", f"{system}, {architecture}", values=values)
    python = platform.python_version()
    commit = source_commit(Path(__file__).resolve().parents[2])
    version = VERSION + (f", commit {_short_commit(commit)}" if commit else "")
    return [
        line,
        DiagnosticLine("python", python, values={"python": python}),
        DiagnosticLine("glassgpt", version, values={"version": VERSION, "commit": commit}),
    ]


def _system_name() -> str:
    """The common name: Debian GNU/Linux 12 (bookworm), macOS 15.1, Windows 11."""
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):  # a system without that file
        return f"{platform.system()} {platform.release()}"


def _short_commit(commit: str) -> str:
    """12 hex digits, and `-dirty` if files were changed"""
    digits, dash, state = commit.partition("-")
    return digits[:12] + dash + state


def check_torch(context: CheckContext) -> list[DiagnosticLine]:
    """Fails if torch cannot be imported; then all checks that depend on torch are skipped."""
    import numpy
    import torch

    return [torch_line(str(torch.__version__), torch.version.cuda, torch.version.hip, numpy.__version__)]


def torch_line(version: str, cuda: str | None, hip: str | None, numpy: str) -> DiagnosticLine:
    built = f"for CUDA {cuda}" if cuda else f"for ROCm {hip}" if hip else "without CUDA"
    values = {"torch": version, "cuda": cuda, "hip": hip, "numpy": numpy}
    line = DiagnosticLine("torch", f"{version}, built {built}; numpy {numpy}", values=values)
    release = tuple(int(part) for part in version.split("+")[0].split(".")[:2])  # (2, 13) of 2.13.0+cpu
    if release < OLDEST_TORCH:
        return line.problem("", f"install torch {'.'.join(map(str, OLDEST_TORCH))} or newer")
    return line


_CPUFREQ_DIR = Path("/sys/devices/system/cpu/cpu0/cpufreq")


@dataclass(frozen=True)
class Cores:
    """`usable`: by this process, fewer than `logical` under a CPU affinity or a container's quota."""

    physical: int
    logical: int
    usable: float
    quota: float | None = None

    @property
    def parallel(self) -> float:
        """Cores that compute in parallel: two hyper-threads share the arithmetic units of one core."""
        return min(self.physical, self.usable)


def find_cores() -> Cores:
    logical = psutil.cpu_count() or 1
    quota = cpu_quota(read_own_cgroups(), CGROUP_ROOT)
    return Cores(psutil.cpu_count(logical=False) or logical, logical, usable_cores(), quota)


def check_processor(context: CheckContext) -> list[DiagnosticLine]:
    cores = find_cores()
    model = cpu_model()
    lines = [cores_line(model, cores), load_line(load_average(), cores)]
    sensors: Mapping[str, Any] = getattr(psutil, "sensors_temperatures", dict)()  # on Linux and FreeBSD only
    return [*lines, clock_line(read_clock(_CPUFREQ_DIR), hottest_cpu_celsius(sensors))]


def cores_line(model: str, cores: Cores) -> DiagnosticLine:
    message = f"{model}, {pluralize(cores.physical, 'core')}"
    if cores.logical > cores.physical:
        message += f" ({cores.logical} threads)"
    values: dict[str, ReportValue] = {
        "model": model,
        "physical_cores": cores.physical,
        "logical_cores": cores.logical,
        "usable_cores": cores.usable,
        "quota": cores.quota,
    }
    line = DiagnosticLine("processor", message, values=values)
    if cores.usable >= cores.logical:
        return line
    limit, fix = "a CPU affinity", "to use more: taskset, or the cores of the job"
    if cores.quota is not None and cores.quota <= cores.usable:
        limit, fix = "a CPU quota", "to use more: docker run --cpus, or the CPU limit of the pod or job"
    return line.note(f", {cores.usable:g} of them usable: limited by {limit}", fix)


# --- threads ---


def check_threads(context: CheckContext) -> list[DiagnosticLine]:
    import torch

    return [threads_line(torch.get_num_threads(), find_cores(), os.environ, measure_busy_cores())]


def threads_line(
    threads: int, cores: Cores, environment: Mapping[str, str], busy: float = 0.0
) -> DiagnosticLine:
    """`busy`: cores in use by other programs, which a run leaves to them (estimate/decide.py)."""
    omp_threads = environment.get("OMP_NUM_THREADS")
    message = f"torch uses {pluralize(threads, 'thread')}"
    message += f" (OMP_NUM_THREADS={omp_threads})" if omp_threads else ""
    values = {"threads": threads, "omp_num_threads": omp_threads, "usable_cores": cores.usable}
    line = DiagnosticLine("threads", message, values=values)
    best = max(1, math.floor(cores.parallel))
    if threads > math.ceil(cores.usable):
        remark = f", more than the {cores.usable:g} usable cores: they block each other"
        return line.problem(remark, f"export OMP_NUM_THREADS={best}")
    if threads < max(1, best - int(busy + 0.5)):
        fix = "unset OMP_NUM_THREADS" if omp_threads else f"export OMP_NUM_THREADS={best}"
        return line.note(f"; {best} cores are available", fix)
    if omp_threads and not re.fullmatch(r"\s*0*[1-9]\d*\s*(,\s*\d+\s*)*", omp_threads):
        return line.note(": not a number, ignored", "unset OMP_NUM_THREADS")
    return line


# --- load ---

_HIGH_LOAD_SHARE = 0.4  # of all cores


def load_line(load: float, cores: Cores) -> DiagnosticLine:
    """`load`: the load average over the last minute."""
    message = f"{load:.1f} of {pluralize(cores.logical, 'core')} busy over the last minute"
    values = {"load_1min": round(load, 2), "logical_cores": cores.logical}
    line = DiagnosticLine("load", message, values=values)
    if load < _HIGH_LOAD_SHARE * cores.logical:
        return line
    remark = ": other programs are running, so the speeds measured below may be too low"
    return line.note(remark, "look at `top`, and run this again when the machine is idle")


# --- clock ---


@dataclass(frozen=True)
class CpuClock:
    """None or empty: not readable here."""

    mhz: float | None = None
    max_mhz: float | None = None
    governor: str = ""
    driver: str = ""


def read_clock(folder: Path) -> CpuClock:
    """The first core's, from Linux' cpufreq. Virtual machines have none."""

    def megahertz(name: str) -> float | None:
        text = read_text_or_empty(folder / name).strip()
        return int(text) / 1000 if text.isdigit() else None

    return CpuClock(
        megahertz("scaling_cur_freq"),
        megahertz("cpuinfo_max_freq"),
        read_text_or_empty(folder / "scaling_governor").strip(),
        read_text_or_empty(folder / "scaling_driver").strip(),
    )


# With these drivers `powersave` is the default, and raises the clock under load.
_SELF_SCALING_DRIVERS = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
_HOT_CELSIUS = 95.0  # about where processors begin to throttle


def clock_line(clock: CpuClock, temperature: float | None = None) -> DiagnosticLine:
    values = {
        "mhz": clock.mhz,
        "max_mhz": clock.max_mhz,
        "governor": clock.governor or None,
        "temperature_c": temperature,
    }
    parts = []
    if clock.mhz and clock.max_mhz:
        parts.append(f"{clock.mhz / 1000:.1f} of {clock.max_mhz / 1000:.1f} GHz")
    if clock.governor:
        parts.append(f"governor {clock.governor}")
    if temperature is not None:
        parts.append(f"{temperature:.0f} °C")
    if not parts:
        return DiagnosticLine("clock", "not readable, as usual in a virtual machine", "note", values=values)
    line = DiagnosticLine("clock", ", ".join(parts), values=values)
    if temperature is not None and temperature >= _HOT_CELSIUS:
        return line.problem(": thermal throttling", "clean or improve the cooling")
    if clock.governor == "powersave" and clock.driver not in _SELF_SCALING_DRIVERS:
        return line.problem(": stays at the lowest clock", "sudo cpupower frequency-set -g performance")
    return line


_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal")


def hottest_cpu_celsius(sensors: Mapping[str, Any]) -> float | None:
    """The highest reading of the processor's sensors."""
    readings = [entry.current for name in _CPU_SENSORS for entry in sensors.get(name, ())]
    return max((float(value) for value in readings if value), default=None)


_LOW_MEMORY_BYTES, _TOO_LOW_MEMORY_BYTES = 4 * 2**30, 2**30


def check_memory(context: CheckContext) -> list[DiagnosticLine]:
    memory = psutil.virtual_memory()
    container = memory_limit_and_free_bytes(read_own_cgroups(), CGROUP_ROOT)
    return [memory_line(memory.available, memory.total, container)]


def memory_line(available: int, total: int, container: tuple[int, int] | None) -> DiagnosticLine:
    """`container`: its memory limit, and what is free of that."""
    limited = container is not None and container[0] < total
    if container is not None and limited:
        total, available = container[0], min(available, container[1])
    message = f"{format_bytes(available)} of {format_bytes(total)} free"
    message += " (the container's limit)" if limited else ""
    values = {"available": available, "total": total, "limited": limited}
    line = DiagnosticLine("memory", message, values=values)
    if available < _TOO_LOW_MEMORY_BYTES:
        return line.problem(
            ": too little for anything but tiny models", "end other programs, or raise the limit"
        )
    if available < _LOW_MEMORY_BYTES:
        needed = format_bytes(GPT2_TRAINING_BYTES)
        remark = f"; weights, gradients and optimizer state of {GPT2_NAME} alone take {needed}"
        return line.note(remark, "end other programs, or train smaller models")
    return line
