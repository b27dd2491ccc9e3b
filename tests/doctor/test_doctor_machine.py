"""System, processor and memory: realistic machines, containers with quotas, busy and hot ones."""

from __future__ import annotations

import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from glassgpt.doctor import host_checks
from glassgpt.doctor.diagnosis import CheckContext
from glassgpt.doctor.host_checks import (
    Cores,
    CpuClock,
    check_memory,
    check_processor,
    check_threads,
    clock_line,
    cores_line,
    hottest_cpu_celsius,
    load_line,
    memory_line,
    read_clock,
    threads_line,
)
from glassgpt.record.machine import source_commit
from glassgpt.version import VERSION

GIB = 2**30


def visit(folder: Path) -> CheckContext:
    return CheckContext(folder / "runs", folder)


# --- software ---


def test_the_system_and_our_version_are_named(tmp_path: Path) -> None:
    lines = {line.name: line for line in host_checks.check_system(visit(tmp_path))}
    assert list(lines) == ["system", "python", "glassgpt"]
    assert lines["glassgpt"].message.startswith(VERSION)
    assert all(line.verdict == "ok" for line in lines.values())


def test_torch_is_named_and_an_old_one_is_a_problem(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str | None, str | None, str, str]] = [
        ("2.13.0+cpu", None, None, "ok", "2.13.0+cpu, built without CUDA; numpy 2.4"),
        ("2.11.0+cu130", "13.0", None, "ok", "2.11.0+cu130, built for CUDA 13.0; numpy 2.4"),
        ("2.8.0+rocm6.4", None, "6.4.1", "ok", "2.8.0+rocm6.4, built for ROCm 6.4.1; numpy 2.4"),
        ("2.14.0a0+gitabc", None, None, "ok", "2.14.0a0+gitabc, built without CUDA; numpy 2.4"),
        ("2.7.1", "12.6", None, "problem", "2.7.1, built for CUDA 12.6; numpy 2.4"),
        ("1.13.1", None, None, "problem", "1.13.1, built without CUDA; numpy 2.4"),
    ]
    for version, cuda, hip, verdict, message in cases:
        with subtests.test(version):
            line = host_checks.torch_line(version, cuda, hip, "2.4")
            assert (line.verdict, line.message) == (verdict, message)
            assert ("install torch 2.8 or newer" in line.fix) == (verdict == "problem")


def test_the_oldest_torch_is_that_of_the_package() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    major, minor = host_checks.OLDEST_TORCH
    assert f'"torch>={major}.{minor}"' in text


def test_the_commit_is_that_of_this_source_tree(tmp_path: Path) -> None:
    lines = {line.name: line for line in host_checks.check_system(visit(tmp_path))}
    assert lines["glassgpt"].values["commit"] == source_commit(Path(__file__).parents[2])


def test_a_commit_says_if_files_differ() -> None:
    assert host_checks._short_commit("0123456789abcdef") == "0123456789ab"
    assert host_checks._short_commit("0123456789abcdef-dirty") == "0123456789ab-dirty"


def test_a_system_without_a_name_has_that_of_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> dict[str, str]:
        raise OSError("no os-release")

    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"PRETTY_NAME": "Debian 12"})
    monkeypatch.setattr("sys.platform", "linux")
    assert host_checks._system_name() == "Debian 12"
    monkeypatch.setattr(platform, "freedesktop_os_release", none)
    assert host_checks._system_name() == f"{platform.system()} {platform.release()}"
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr(platform, "mac_ver", lambda: ("15.1", ("", "", ""), "arm64"))
    assert host_checks._system_name() == "macOS 15.1"


# --- cores ---


def test_cores_that_are_there_and_those_that_may_be_used(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Cores, str, str]] = [
        (Cores(2, 2, 2), "Ryzen, 2 cores", "ok"),
        (Cores(1, 1, 1), "Ryzen, 1 core", "ok"),
        (Cores(8, 16, 16), "Ryzen, 8 cores (16 threads)", "ok"),
        (Cores(8, 16, 4), "Ryzen, 8 cores (16 threads), 4 of them usable: limited by a CPU affinity", "note"),
        (Cores(32, 64, 1.5, 1.5), "Ryzen, 32 cores (64 threads), 1.5 of them usable: limited by a CPU quota",
         "note"),
        (Cores(8, 16, 4, 6.0), "Ryzen, 8 cores (16 threads), 4 of them usable: limited by a CPU affinity",
         "note"),
    ]  # fmt: skip
    for cores, message, verdict in cases:
        with subtests.test(repr(cores)):
            line = cores_line("Ryzen", cores)
            assert (line.message, line.verdict) == (message, verdict)
            assert line.values["usable_cores"] == cores.usable


def test_threads_against_cores(subtests: pytest.Subtests) -> None:
    cases: list[tuple[int, Cores, str | None, str, str]] = [
        (8, Cores(8, 16, 16), None, "ok", ""),
        (16, Cores(8, 16, 16), "16", "ok", ""),
        (2, Cores(32, 64, 1.5, 1.5), None, "ok", ""),
        # Docker with --cpus=2 on a machine of 64: the quota is spent by threads that wait for each other.
        (32, Cores(32, 64, 2, 2), None, "problem", "export OMP_NUM_THREADS=2"),
        (64, Cores(8, 16, 16), "64", "problem", "export OMP_NUM_THREADS=8"),
        (3, Cores(4, 4, 1.5, 1.5), None, "problem", "export OMP_NUM_THREADS=1"),
        (1, Cores(8, 16, 16), "1", "note", "unset OMP_NUM_THREADS"),
        (2, Cores(2, 2, 2), "abc", "note", "unset OMP_NUM_THREADS"),
        (2, Cores(2, 2, 2), "0", "note", "unset OMP_NUM_THREADS"),
        (1, Cores(8, 16, 16), None, "note", "export OMP_NUM_THREADS=8"),
        (1, Cores(2, 2, 0.5, 0.5), None, "ok", ""),
    ]
    for threads, cores, asked, verdict, fix in cases:
        with subtests.test(repr(threads)):
            line = threads_line(threads, cores, {"OMP_NUM_THREADS": asked} if asked else {})
            assert (line.verdict, line.fix) == (verdict, fix)
            assert (f"OMP_NUM_THREADS={asked}" in line.message) == (asked is not None)


def test_these_threads_and_cores_are_torchs_and_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    cores = Cores(4, 8, 3.0, 3.0)
    monkeypatch.setattr(host_checks, "find_cores", lambda: cores)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(host_checks, "measure_busy_cores", lambda: 0.0)
    (line,) = check_threads(visit(tmp_path))
    assert line.values == {"threads": 8, "omp_num_threads": None, "usable_cores": 3.0}
    assert line.fix == "export OMP_NUM_THREADS=3"


def test_on_a_busy_machine_fewer_threads_are_no_fault() -> None:
    for busy, verdict in ((0.0, "note"), (0.4, "note"), (0.9, "ok"), (2.0, "ok")):
        assert threads_line(1, Cores(2, 2, 2), {"OMP_NUM_THREADS": "1"}, busy).verdict == verdict
    assert threads_line(64, Cores(8, 16, 16), {}, busy=16.0).verdict == "problem"


# --- others ---


@pytest.mark.parametrize(
    ("load", "logical", "verdict"), [(0.0, 2, "ok"), (0.7, 2, "ok"), (0.9, 2, "note"), (40.0, 16, "note")]
)
def test_a_busy_machine_is_worth_a_note(load: float, logical: int, verdict: str) -> None:
    line = load_line(load, Cores(logical, logical, logical))
    assert line.verdict == verdict
    assert line.message.startswith(f"{load:.1f} of {logical} cores busy")


# --- clock ---


def cpufreq(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name).write_text(text + "\n")
    return folder


def test_the_clock_is_read_from_linux(tmp_path: Path) -> None:
    folder = cpufreq(
        tmp_path,
        scaling_cur_freq="3412345",
        cpuinfo_max_freq="4800000",
        scaling_governor="performance",
        scaling_driver="intel_pstate",
    )
    clock = read_clock(folder)
    assert clock == CpuClock(3412.345, 4800.0, "performance", "intel_pstate")
    line = clock_line(clock, 61.0)
    assert (line.message, line.verdict) == ("3.4 of 4.8 GHz, governor performance, 61 °C", "ok")


def test_no_clock_to_read_is_said(tmp_path: Path) -> None:
    assert read_clock(tmp_path) == CpuClock()
    line = clock_line(CpuClock())
    assert (line.verdict, "virtual machine" in line.message) == ("note", True)
    assert read_clock(cpufreq(tmp_path, scaling_cur_freq="<unknown>")).mhz is None


def test_a_governor_that_holds_the_clock_down() -> None:
    cases: list[tuple[str, str, str]] = [
        ("powersave", "intel_pstate", "ok"),
        ("powersave", "amd-pstate-epp", "ok"),
        ("powersave", "acpi-cpufreq", "problem"),
        ("powersave", "intel_cpufreq", "problem"),
        ("schedutil", "acpi-cpufreq", "ok"),
        ("performance", "acpi-cpufreq", "ok"),
    ]
    wrong = [
        (governor, driver, verdict, got)
        for governor, driver, verdict in cases
        if (got := clock_line(CpuClock(800.0, 4800.0, governor, driver)).verdict) != verdict
    ]
    assert wrong == []


def test_a_hot_processor_is_a_problem() -> None:
    assert clock_line(CpuClock(), 94.0).verdict == "ok"
    assert "thermal throttling" in clock_line(CpuClock(1200.0, 4800.0), 97.0).message


def test_the_hottest_of_the_processors_own_sensors() -> None:
    def sensors(**values: list[float]) -> Any:
        return {name: [SimpleNamespace(current=value) for value in found] for name, found in values.items()}

    assert hottest_cpu_celsius({}) is None
    assert hottest_cpu_celsius(sensors(coretemp=[50.0, 71.5, 60.0], nvme=[99.0])) == 71.5
    assert hottest_cpu_celsius(sensors(nvme=[99.0])) is None
    assert hottest_cpu_celsius(sensors(k10temp=[0.0])) is None  # a sensor that is not connected


def test_this_processor(tmp_path: Path) -> None:
    lines = check_processor(visit(tmp_path))
    assert [line.name for line in lines] == ["processor", "load", "clock"]


# --- memory ---


def test_memory(subtests: pytest.Subtests) -> None:
    cases: list[tuple[int, int, Any, str, str]] = [
        (22 * GIB, 24 * GIB, None, "22.0 GiB of 24.0 GiB free", "ok"),
        (22 * GIB, 24 * GIB, (10**15, 10**14), "22.0 GiB of 24.0 GiB free", "ok"),
        (200 * GIB, 256 * GIB, (8 * GIB, 6 * GIB), "6.0 GiB of 8.0 GiB free (the container's limit)", "ok"),
        (5 * GIB, 256 * GIB, (8 * GIB, 6 * GIB), "5.0 GiB of 8.0 GiB free (the container's limit)", "ok"),
        (3 * GIB, 8 * GIB, None, "3.0 GiB of 8.0 GiB free", "note"),
        (GIB // 2, 8 * GIB, None, "512 MiB of 8.0 GiB free", "problem"),
        (100 * GIB, 256 * GIB, (2 * GIB, GIB // 4), "256 MiB of 2.0 GiB free", "problem"),
    ]
    for available, total, room, message, verdict in cases:
        with subtests.test(repr(available)):
            line = memory_line(available, total, room)
            assert line.verdict == verdict
            assert line.message.startswith(message)
            assert bool(line.fix) == (verdict != "ok")


def test_this_memory(tmp_path: Path) -> None:
    (line,) = check_memory(visit(tmp_path))
    assert 0 < int(line.values["available"] or 0) <= int(line.values["total"] or 0)


# --- what sizes are given for ---


def test_gpt2_is_as_large_as_we_say() -> None:
    import torch

    from glassgpt.model.gpt import GPT, GPTConfig

    with torch.device("meta"):
        model = GPT(GPTConfig(vocab_size=50_304, block_size=1024, n_layer=12, n_head=12, n_embd=768))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert parameters == host_checks.GPT2_PARAMETERS
    assert f"{host_checks.GPT2_CHECKPOINT_BYTES / GIB:.1f}" == "1.4"
    assert host_checks.GPT2_TRAINING_BYTES / parameters == 16
