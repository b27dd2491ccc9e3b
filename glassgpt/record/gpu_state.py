"""The state of each NVIDIA card, through NVML: memory, clock, temperature, power, throttle reasons, use.

    reading = read_gpus()                # without any card, reading.problem says why

NVML lists all cards in the order of their slots, whatever CUDA_VISIBLE_DEVICES says: match them by UUID.
"""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from glassgpt.errors import first_message_line
from glassgpt.isolate import IsolatedProcess, ProcessDied, ProcessHung, serve

NO_DRIVER = "there is no NVIDIA driver"

# Bits of `reasons`, as NVML defines them.
APPLICATION_CLOCKS, SW_POWER_CAP, HW_SLOWDOWN, HW_POWER_BRAKE = 0x2, 0x4, 0x8, 0x80
THERMAL_SLOWDOWN = 0x20 | 0x40  # by software, by hardware

_GPU_SENSOR, _SM_CLOCK, _UNCORRECTED, _SINCE_BOOT, _LIBRARY_NOT_FOUND = 0, 1, 1, 0, 12


@dataclass(frozen=True)
class GpuState:
    """None: this card or driver does not report it."""

    uuid: str  # GPU-5d5ba0d6-…, or MIG-…; never shown, because it identifies the machine
    name: str
    reasons: int | None = None  # bits: why the clock is below its maximum
    temperature: float | None = None  # degrees Celsius
    clock: float | None = None  # MHz
    clock_max: float | None = None
    power: float | None = None  # watts
    power_limit: float | None = None
    power_default: float | None = None
    busy: float | None = None  # percent of the time
    memory_total: int | None = None  # bytes; None too for a chip that shares the machine's memory
    processes: int | None = None  # that compute on it
    ecc_errors: int | None = None  # uncorrected, since the driver was loaded

    def is_throttled_by(self, bits: int) -> bool:
        return bool((self.reasons or 0) & bits)


@dataclass(frozen=True)
class GpuReading:
    """What NVML reports. `problem`: why a card, or all of it, is missing."""

    gpus: tuple[GpuState, ...] = ()
    mig_slices: tuple[GpuState, ...] = ()
    driver: str | None = None
    problem: str = ""


def read_gpus(limit_s: float = 15.0) -> GpuReading:
    """Never raises. In a separate process, because a broken driver can hang or crash."""
    if not _has_nvml_library():
        return GpuReading(problem=NO_DRIVER)
    try:
        with closing(IsolatedProcess("glassgpt.record.gpu_state")) as process:
            document = process.ask({}, limit_s)
    except ProcessHung:
        return GpuReading(problem=f"the driver does not answer within {limit_s:.0f} s")
    except (ProcessDied, OSError) as error:
        return GpuReading(problem=f"reading it failed: {first_message_line(error)}")
    cards = {name: tuple(GpuState(**card) for card in document[name]) for name in ("gpus", "mig_slices")}
    return GpuReading(**document | cards)


def _has_nvml_library() -> bool:
    """Most machines without a card have no driver either, and need no separate process to know."""
    if sys.platform == "win32":
        return True  # it may be in several places
    import ctypes

    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


# --- in the separate process ---


def read_nvml() -> GpuReading:
    """Also with the older package `pynvml`, which has fewer functions and returns bytes."""
    try:
        import pynvml

        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
    except ImportError:
        return GpuReading(problem="pynvml is missing: pip install nvidia-ml-py")
    except Exception as error:  # noqa: BLE001 - NVMLError, or something else that is called pynvml
        is_missing = getattr(error, "value", None) == _LIBRARY_NOT_FOUND
        return GpuReading(problem=NO_DRIVER if is_missing else first_message_line(error))

    def read(function: str, *arguments: object) -> Any:
        try:
            value = getattr(pynvml, function)(*arguments)
        except Exception:  # noqa: BLE001 - not supported by this card, driver or version of the package
            return None
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def read_state(handle: object) -> GpuState:
        processes = read("nvmlDeviceGetComputeRunningProcesses", handle)
        reasons = read("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:  # its name in older drivers
            reasons = read("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        power, power_limit, power_default = (
            None if milliwatts is None else milliwatts / 1000
            for milliwatts in (
                read("nvmlDeviceGetPowerUsage", handle),
                read("nvmlDeviceGetPowerManagementLimit", handle),
                read("nvmlDeviceGetPowerManagementDefaultLimit", handle),
            )
        )
        return GpuState(
            read("nvmlDeviceGetUUID", handle) or "",
            read("nvmlDeviceGetName", handle) or "a card without a name",
            reasons,
            read("nvmlDeviceGetTemperature", handle, _GPU_SENSOR),
            read("nvmlDeviceGetClockInfo", handle, _SM_CLOCK),
            read("nvmlDeviceGetMaxClockInfo", handle, _SM_CLOCK),
            power,
            power_limit,
            power_default,
            getattr(read("nvmlDeviceGetUtilizationRates", handle), "gpu", None),
            getattr(read("nvmlDeviceGetMemoryInfo", handle), "total", None) or None,
            None if processes is None else len(processes),
            read("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _SINCE_BOOT),
        )

    gpus, slices = [], []
    problem = "" if count else "the driver lists no card"
    for index in range(count):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        except Exception as error:  # noqa: BLE001 - one lost card does not hide the others
            problem = first_message_line(error)
            continue
        gpus.append(read_state(handle))
        for number in range(read("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            mig_handle = read("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
            if mig_handle is not None:
                slices.append(read_state(mig_handle))
    return GpuReading(tuple(gpus), tuple(slices), read("nvmlSystemGetDriverVersion"), problem)


if __name__ == "__main__":
    serve(lambda request: asdict(read_nvml()))
