"""The devices to train on: GPUs, their dtypes, and the clocks of CUDA cards under load."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from glassgpt.doctor.diagnosis import CheckContext, DiagnosticLine, ReportValue
from glassgpt.errors import first_message_line
from glassgpt.estimate.cards import find_card
from glassgpt.format import format_bytes
from glassgpt.record.gpu_state import (
    APPLICATION_CLOCKS,
    HW_POWER_BRAKE,
    HW_SLOWDOWN,
    NO_DRIVER,
    SW_POWER_CAP,
    THERMAL_SLOWDOWN,
    GpuReading,
    GpuState,
    read_gpus,
)
from glassgpt.record.machine import apple_gpu_name
from glassgpt.training.probe import describe_machine

if TYPE_CHECKING:
    import torch

_GPT2_WIDTH = 768  # n_embd of the model that dtypes are chosen for


def check_dtypes(context: CheckContext) -> list[DiagnosticLine]:
    return [dtype_line(f"dtype {device_label(device)}", device) for device in all_devices()]


def dtype_line(name: str, device: torch.device) -> DiagnosticLine:
    from glassgpt.training.device import choose_dtype

    choice = choose_dtype("auto", device, _GPT2_WIDTH)
    message = f"{choice.value}: {choice.reason}"
    if device.type == "cuda" and choice.value != "bfloat16":
        # After "asked for; ", the reason says what is wrong with bfloat16 on this card.
        remark = choose_dtype("bfloat16", device, _GPT2_WIDTH).reason.partition("; ")[2]
        message += f"; bfloat16: {remark}" if remark else ""
    return DiagnosticLine(name, message, values={"device": str(device), "dtype": str(choice.value)})


def dtypes_to_measure(device: torch.device) -> list[str]:
    """The dtype that a run would choose, and float32 to compare with."""
    from glassgpt.training.device import choose_dtype

    chosen = str(choose_dtype("auto", device, _GPT2_WIDTH).value)
    return list(dict.fromkeys((chosen, "float32")))


T = TypeVar("T")

_INSTALL_TORCH = "https://pytorch.org/get-started/locally has the command"


def find_gpus() -> list[torch.device]:
    """The GPUs that torch can use."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # check_gpus reports what it warns of
        if torch.cuda.is_available():
            return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return [torch.device("mps")] if torch.backends.mps.is_available() else []


def all_devices() -> list[torch.device]:
    import torch

    return [*find_gpus(), torch.device("cpu")]


def default_device() -> torch.device:
    """The device that a run uses with device=auto."""
    return all_devices()[0]


def device_label(device: torch.device) -> str:
    """cpu, gpu; or cuda:1 if there are several"""
    return "gpu" if device.type != "cpu" and len(find_gpus()) == 1 else str(device)


# --- GPUs that torch can use ---


def check_gpus(context: CheckContext) -> list[DiagnosticLine]:
    gpus = find_gpus()
    reading = read_gpus()
    if not gpus:
        return [without_gpu_line(reading, why_no_cuda(), os.environ)]
    if gpus[0].type == "mps":
        import torch

        usable = torch.mps.recommended_max_memory()
        message = f"{apple_gpu_name()}: may use {format_bytes(usable)} of the unified memory"
        return [DiagnosticLine("gpu", message, values={"name": apple_gpu_name(), "usable": usable})]
    return [
        card_line(device_label(device), _describe(device), _gpu_state(device, reading)) for device in gpus
    ]


@dataclass(frozen=True)
class TorchCard:
    """A card as torch sees it."""

    name: str
    capability: tuple[int, int]
    free_bytes: int
    total_bytes: int
    driver: str | None = None
    cuda: str | None = None
    architectures: Sequence[str] = ()  # that this torch was built for: sm_90, compute_90


def _describe(device: torch.device) -> TorchCard:
    import torch

    described = cast("Mapping[str, str | None]", describe_machine(str(device))["device"])
    free, total = torch.cuda.mem_get_info(device)
    capability = torch.cuda.get_device_capability(device)
    # Only CUDA: ROCm names its architectures differently.
    architectures = () if torch.version.hip else torch.cuda.get_arch_list()
    return TorchCard(
        str(described["name"]), capability, free, total, described["driver"], described["cuda"], architectures
    )


_NOTED_USED_SHARE, _BUSY_PERCENT = 0.1, 20.0


def card_line(name: str, card: TorchCard, state: GpuState | None) -> DiagnosticLine:
    major, minor = card.capability
    free, total = format_bytes(card.free_bytes), format_bytes(card.total_bytes)
    message = f"{card.name}: {free} of {total} free, compute capability {major}.{minor}"
    message += f", driver {card.driver}" if card.driver else ""
    message += f", CUDA {card.cuda}" if card.cuda else ""
    values: dict[str, ReportValue] = {
        "name": card.name,
        "free": card.free_bytes,
        "total": card.total_bytes,
        "capability": f"{major}.{minor}",
        "driver": card.driver,
        "cuda": card.cuda,
        "busy_percent": state.busy if state else None,
        "processes": state.processes if state else None,
        "uncorrected_ecc_errors": state.ecc_errors if state else None,
        "in_card_table": find_card(card.name, card.total_bytes) is not None,
    }
    line = DiagnosticLine(name, message, values=values)
    if card.architectures and not has_code_for(card.architectures, card.capability):
        fix = f"install a newer torch, or an older one for an old card: {_INSTALL_TORCH}"
        return line.problem(": this torch was not built for this card", fix)
    if state is not None and (state.busy or 0) >= _BUSY_PERCENT:
        remark = f"; other programs keep it busy {state.busy:.0f}% of the time"
        return line.note(remark, "`nvidia-smi` shows which; a run would share the card")
    used_bytes = card.total_bytes - card.free_bytes
    if used_bytes > _NOTED_USED_SHARE * card.total_bytes:
        remark = f"; other programs use {format_bytes(used_bytes)}"
        return line.note(remark, "`nvidia-smi` shows which; end them to train larger models")
    return line


def has_code_for(architectures: Sequence[str], capability: tuple[int, int]) -> bool:
    """sm_86 runs on 8.6 and 8.9; compute_80 can be compiled for anything from 8.0 on."""
    for architecture in architectures:
        kind, _, number = architecture.partition("_")
        digits = number.rstrip("af")  # sm_90a: for 9.0 alone
        if not digits.isdigit():
            continue
        built = (int(digits[:-1]), int(digits[-1]))
        if kind == "compute" and built <= capability:
            return True
        if built[0] == capability[0] and built[1] <= capability[1]:
            return True
    return False


def _gpu_state(device: torch.device, reading: GpuReading) -> GpuState | None:
    """Matched by UUID: NVML numbers the cards in another order than CUDA."""
    import torch

    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    return next((gpu for gpu in reading.gpus if uuid and gpu.uuid.removeprefix("GPU-") == uuid), None)


# --- no GPU ---


def why_no_cuda() -> str:
    """torch's message why it cannot use CUDA; empty if it was built without CUDA."""
    import torch

    if not torch.version.cuda:
        return ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return first_message_line(error)
    return "it finds no card"


def without_gpu_line(reading: GpuReading, why: str, environment: Mapping[str, str]) -> DiagnosticLine:
    """`why`: torch's reason, empty if it was built without CUDA."""
    cards, problem = reading.gpus, reading.problem
    line = DiagnosticLine("gpu", cards[0].name if cards else "", values={"cards_of_nvidia_smi": len(cards)})
    if cards and "CUDA_VISIBLE_DEVICES" in environment and why:
        return line.note(" is hidden by CUDA_VISIBLE_DEVICES: runs use the CPU", "unset CUDA_VISIBLE_DEVICES")
    if cards and not why:
        remark = " is there, but this torch was built without CUDA: runs use the CPU"
        return line.problem(remark, f"install torch with CUDA: {_INSTALL_TORCH}")
    if cards:
        fix = f"update the driver, or install torch for an older CUDA: {_INSTALL_TORCH}"
        return line.problem(f" is there, but torch cannot use it: {why}", fix)
    if "mismatch" in problem or "is lost" in problem:
        return line.problem(f"none that works; NVML says: {problem}", "restart the machine")
    if problem not in ("", NO_DRIVER):
        fix = "if there is a card, reinstall its driver and restart"
        return line.note(f"none that works; NVML says: {problem}", fix)
    return line.note("none found: runs use the CPU, which is enough for models of a few million parameters")


# --- clocks under load ---


def check_clocks(context: CheckContext) -> list[DiagnosticLine]:
    lines = []
    for device in find_gpus():
        if device.type == "cuda":
            load = partial(time.sleep, _IDLE_PAUSE_S) if context.quick else matmul_load(device)
            warm_at = time.monotonic() + (0.0 if context.quick else _WARM_UP_S)
            while time.monotonic() < warm_at:
                load()
            state = _gpu_state(device, query_under_load(read_gpus, load))
            lines.append(clocks_line(f"clocks {device_label(device)}", state, under_load=not context.quick))
    return lines


def matmul_load(device: torch.device) -> Callable[[], None]:
    """A function that keeps a GPU busy for some milliseconds."""
    import torch

    a = torch.randn(4096, 4096, device=device)

    def work() -> None:
        torch.matmul(a, a)
        torch.cuda.synchronize(device)

    return work


_MAX_LOAD_S = 10.0
_WARM_UP_S = 1.5  # so that clock and power settle before they are read: NVML answers at once
_IDLE_PAUSE_S = 0.02


def query_under_load(
    query: Callable[[], T], load: Callable[[], None], clock: Callable[[], float] = time.monotonic
) -> T:
    """The result of `query`, called while the device runs `load`."""
    deadline = clock() + _MAX_LOAD_S
    load()
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(query)
        while not future.done() and clock() < deadline:
            load()
    return future.result()


def clocks_line(name: str, state: GpuState | None, under_load: bool) -> DiagnosticLine:
    if state is None:
        return DiagnosticLine(name, "not readable: NVML does not list this card", "note")
    parts = []
    if state.clock is not None:
        highest = f" of {state.clock_max:.0f}" if state.clock_max is not None else ""
        parts.append(f"{state.clock:.0f}{highest} MHz")
    if state.temperature is not None:
        parts.append(f"{state.temperature:.0f} °C")
    if state.power is not None:
        limit = f" of {state.power_limit:.0f}" if state.power_limit is not None else ""
        parts.append(f"{state.power:.0f}{limit} W")
    message = (", ".join(parts) or "nothing is reported") + (" under load" if under_load else " just now")
    values: dict[str, ReportValue] = {
        "under_load": under_load,
        "mhz": state.clock,
        "max_mhz": state.clock_max,
        "temperature_c": state.temperature,
        "power_w": state.power,
        "power_limit_w": state.power_limit,
        "power_default_w": state.power_default,
        "reasons": state.reasons,
    }
    line = DiagnosticLine(name, message, values=values)
    if state.is_throttled_by(THERMAL_SLOWDOWN):
        return line.problem(": thermal throttling", _COOLING_FIX)
    if state.is_throttled_by(HW_POWER_BRAKE):
        return line.problem(": throttled by its power supply", _POWER_SUPPLY_FIX)
    if state.is_throttled_by(HW_SLOWDOWN):
        return line.problem(": throttled by the hardware", f"{_COOLING_FIX}; {_POWER_SUPPLY_FIX}")
    if state.power_limit and state.power_default and state.power_limit < 0.98 * state.power_default:
        remark = f": power limit {state.power_limit:.0f} W, the default is {state.power_default:.0f} W"
        return line.note(remark, f"sudo nvidia-smi -pl {state.power_default:.0f}")
    if state.is_throttled_by(APPLICATION_CLOCKS):
        remark = ": its clock is fixed by an application clock setting"
        return line.note(remark, "sudo nvidia-smi -rac; sudo nvidia-smi -rgc")
    if state.is_throttled_by(SW_POWER_CAP):
        return DiagnosticLine(name, f"{message}; at its power limit, as usual under full load", values=values)
    return line


_COOLING_FIX = "clean or improve the cooling; in a laptop, raise it from the table"
_POWER_SUPPLY_FIX = "check the power cables and the supply"
