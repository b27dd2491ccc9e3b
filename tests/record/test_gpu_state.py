"""NVML: several cards, old packages and drivers, MIG slices, drivers that fail, hang or crash."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from glassgpt.record import gpu_state
from glassgpt.record.gpu_state import (
    NO_DRIVER,
    SW_POWER_CAP,
    THERMAL_SLOWDOWN,
    GpuReading,
    GpuState,
    read_gpus,
    read_nvml,
)

GIB = 2**30
H100: dict[str, Any] = {
    "UUID": "GPU-6f0c3a4e-1111-2222-3333-444455556666",
    "Name": "NVIDIA H100 80GB HBM3",
    "MemoryInfo": SimpleNamespace(total=80 * GIB, free=79 * GIB, used=GIB),
    "CurrentClocksEventReasons": 4,
    "Temperature": 64,
    "ClockInfo": 1755,
    "MaxClockInfo": 1980,
    "PowerUsage": 698_120,
    "PowerManagementLimit": 700_000,
    "PowerManagementDefaultLimit": 700_000,
    "UtilizationRates": SimpleNamespace(gpu=97, memory=40),
    "ComputeRunningProcesses": [SimpleNamespace(pid=1, usedGpuMemory=GIB)],
    "TotalEccErrors": 0,
}
# As an old package reads it.
K80 = {"UUID": b"GPU-bbbb", "Name": b"Tesla K80", "CurrentClocksThrottleReasons": 0x21}


class FakeNvmlError(Exception):
    """As pynvml.NVMLError, with the code of NVML."""

    def __init__(self, message: str, value: int) -> None:
        super().__init__(message)
        self.value = value


def fake_pynvml(*cards: dict[str, Any] | None, slices: tuple[dict[str, Any], ...] = ()) -> ModuleType:
    """A driver with these cards, of which None is lost; the first card is divided into the slices."""
    module = ModuleType("pynvml")

    def handle_by_index(index: int) -> object:
        if cards[index] is None:
            raise FakeNvmlError("GPU is lost", 15)
        return cards[index]

    def reader(name: str) -> Callable[..., object]:
        def read(card: dict[str, Any], *_: int) -> object:
            if name not in card:
                raise FakeNvmlError("Not Supported", 3)
            return card[name]

        return read

    for name in {*H100, *K80}:
        setattr(module, f"nvmlDeviceGet{name}", reader(name))
    functions = {
        "nvmlInit": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: b"570.86.15",
        "nvmlDeviceGetCount": lambda: len(cards),
        "nvmlDeviceGetHandleByIndex": handle_by_index,
        "nvmlDeviceGetMaxMigDeviceCount": lambda card: 7 if card is cards[0] and slices else 0,
        "nvmlDeviceGetMigDeviceHandleByIndex": lambda card, number: slices[number],  # IndexError: not created
    }
    for name, function in functions.items():
        setattr(module, name, function)
    return module


def failing_pynvml(message: str, value: int) -> ModuleType:
    module = fake_pynvml()

    def fail() -> None:
        raise FakeNvmlError(message, value)

    module.nvmlInit = fail  # type: ignore[attr-defined]
    return module


def test_several_cards_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_pynvml(H100, K80, {}))
    reading = read_nvml()
    assert (reading.driver, reading.problem, reading.mig_slices) == ("570.86.15", "", ())
    h100, k80, silent = reading.gpus
    assert h100 == GpuState(
        "GPU-6f0c3a4e-1111-2222-3333-444455556666",
        "NVIDIA H100 80GB HBM3",
        reasons=4,
        temperature=64,
        clock=1755,
        clock_max=1980,
        power=698.12,
        power_limit=700.0,
        power_default=700.0,
        busy=97,
        memory_total=80 * GIB,
        processes=1,
        ecc_errors=0,
    )
    assert h100.is_throttled_by(SW_POWER_CAP)
    assert k80 == GpuState("GPU-bbbb", "Tesla K80", reasons=0x21)
    assert k80.is_throttled_by(THERMAL_SLOWDOWN)
    assert silent == GpuState("", "a card without a name")
    assert not silent.is_throttled_by(THERMAL_SLOWDOWN)


def test_a_chip_without_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = {"Name": "NVIDIA GB10", "MemoryInfo": SimpleNamespace(total=0, free=0)}
    monkeypatch.setitem(sys.modules, "pynvml", fake_pynvml(shared))
    assert read_nvml().gpus[0].memory_total is None


def test_mig_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    made = tuple(
        {
            "UUID": f"MIG-{gb}",
            "Name": f"NVIDIA A100-SXM4-40GB MIG {gb // 5}g.{gb}gb",
            "MemoryInfo": SimpleNamespace(total=gb * GIB, free=GIB),
        }
        for gb in (20, 5)
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake_pynvml(H100, K80, slices=made))
    reading = read_nvml()
    assert len(reading.gpus) == 2
    assert [(gpu.uuid, gpu.memory_total) for gpu in reading.mig_slices] == [
        ("MIG-20", 20 * GIB),
        ("MIG-5", 5 * GIB),
    ]


def test_why_there_is_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    mismatch = "RM has detected an NVML/RM version mismatch."
    for module, problem in (
        (None, "pynvml is missing: pip install nvidia-ml-py"),
        (ModuleType("pynvml"), "module 'pynvml' has no attribute 'nvmlInit'"),
        (failing_pynvml("NVML Shared Library Not Found", 12), NO_DRIVER),
        (failing_pynvml(mismatch, 18), mismatch),
        (fake_pynvml(), "the driver lists no card"),
        (fake_pynvml(None), "GPU is lost"),
    ):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        assert (read_nvml().gpus, read_nvml().problem) == ((), problem)


def test_a_lost_card_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_pynvml(None, K80))
    reading = read_nvml()
    assert ([gpu.name for gpu in reading.gpus], reading.problem) == (["Tesla K80"], "GPU is lost")


def test_a_driver_that_hangs_or_crashes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(gpu_state, "_has_nvml_library", lambda: True)
    fine = (
        "def nvmlInit(): print('hello')\n"
        "def nvmlDeviceGetCount(): return 1\n"
        "def nvmlDeviceGetHandleByIndex(index): return index\n"
        "def nvmlDeviceGetName(handle): return b'Tesla K80'\n"
    )
    for code, limit_s, expected in (
        (fine, 30, GpuReading((GpuState("", "Tesla K80"),))),
        ("import time\ntime.sleep(600)", 1, GpuReading(problem="the driver does not answer within 1 s")),
        ("import os\nos._exit(5)", 30, GpuReading(problem="reading it failed: exit code 5")),
    ):
        (tmp_path / "pynvml.py").write_text(code)
        assert read_gpus(limit_s) == expected


def test_without_a_driver_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    monkeypatch.setattr(gpu_state, "IsolatedProcess", lambda *_: pytest.fail("started"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert read_gpus() == GpuReading(problem=NO_DRIVER)


@pytest.mark.gpu
def test_this_card_agrees_with_torch() -> None:
    import torch

    properties = torch.cuda.get_device_properties(0)
    (gpu,) = [gpu for gpu in read_gpus().gpus if gpu.uuid.removeprefix("GPU-") == str(properties.uuid)]
    assert gpu.name == properties.name
    assert gpu.memory_total is not None
    assert gpu.memory_total == pytest.approx(properties.total_memory, rel=0.05)
    assert gpu.clock
    assert gpu.temperature
