"""The devices to train on: cards and Apple's GPU; and what a card's clocks do under load."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from glassgpt import format
from glassgpt.doctor.check import CheckContext, DiagnosticLine, ReportValue
from glassgpt.doctor.isolate import run_command
from glassgpt.doctor.nvidia_smi import CardState, read_card_states
from glassgpt.errors import first_message_line
from glassgpt.estimate.cards import find_card
from glassgpt.record.machine import apple_gpu_name
from glassgpt.training.probe import describe_machine

if TYPE_CHECKING:
    import torch

_GPT2_WIDTH = 768  # of the model to be trained: GPT-2's


def check_dtypes(context: CheckContext) -> list[DiagnosticLine]:
    import torch

    devices = [*find_gpus(), torch.device("cpu")]
    return [dtype_line(f"dtype {device_label(device)}", device) for device in devices]


def dtype_line(name: str, device: torch.device) -> DiagnosticLine:
    from glassgpt.training.device import choose_dtype

    choice = choose_dtype("auto", device, _GPT2_WIDTH)
    says = f"{choice.value}: {choice.reason}"
    if device.type == "cuda" and choice.value != "bfloat16":
        # The reason is "asked for; " and then what speaks against it.
        remark = choose_dtype("bfloat16", device, _GPT2_WIDTH).reason.partition("; ")[2]
        says += f"; bfloat16: {remark}" if remark else ""
    return DiagnosticLine(name, says, numbers={"device": str(device), "dtype": str(choice.value)})


def dtypes_to_measure(device: torch.device) -> list[str]:
    """Those whose speed matters: the one chosen, and float32 to compare with."""
    from glassgpt.training.device import choose_dtype

    chosen = str(choose_dtype("auto", device, _GPT2_WIDTH).value)
    return list(dict.fromkeys((chosen, "float32")))


T = TypeVar("T")

_GET_TORCH = "https://pytorch.org/get-started/locally has the command"


def find_gpus() -> list[torch.device]:
    """Those that torch can use."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it warns of is a line of its own
        if torch.cuda.is_available():
            return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return [torch.device("mps")] if torch.backends.mps.is_available() else []


def default_device() -> torch.device:
    """The one that a run takes by itself."""
    import torch

    return next(iter(find_gpus()), torch.device("cpu"))


def device_label(device: torch.device) -> str:
    """`cpu`, `gpu`; or, of several cards, `cuda:1`"""
    return "gpu" if device.type != "cpu" and len(find_gpus()) == 1 else str(device)


# --- GPUs that torch can use ---


def check_gpus(context: CheckContext) -> list[DiagnosticLine]:
    gpus = find_gpus()
    states, complaint = read_card_states(run_command)
    if not gpus:
        return [without_gpu_line(states, complaint, why_no_cuda(), os.environ)]
    if gpus[0].type == "mps":
        import torch

        usable = torch.mps.recommended_max_memory()
        says = f"{apple_gpu_name()}: may use {format.format_bytes(usable)} of the main memory"
        return [DiagnosticLine("gpu", says, numbers={"name": apple_gpu_name(), "usable": usable})]
    lines = []
    for device in gpus:
        card = _describe(device)
        state = _nvidia_smi_state(device, states)
        lines.append(card_line(device_label(device), card, state))
    return lines


@dataclass(frozen=True)
class TorchCard:
    """A card as torch sees it."""

    name: str
    capability: tuple[int, int]
    free_bytes: int  # bytes
    total_bytes: int
    driver: str | None = None
    cuda: str | None = None
    architectures: Sequence[str] = ()  # that this torch has code for: sm_90, compute_90


def _describe(device: torch.device) -> TorchCard:
    import torch

    described = cast("Mapping[str, str | None]", describe_machine(str(device))["device"])
    free, total = torch.cuda.mem_get_info(device)
    capability = torch.cuda.get_device_capability(device)
    # AMD's have names of another kind, and no driver that is too new for them.
    architectures = () if torch.version.hip else torch.cuda.get_arch_list()
    return TorchCard(
        str(described["name"]), capability, free, total, described["driver"], described["cuda"], architectures
    )


_NOTED_USED_SHARE, _BUSY_PERCENT = 0.1, 20.0


def card_line(name: str, card: TorchCard, state: CardState | None) -> DiagnosticLine:
    major, minor = card.capability
    free, total = format.format_bytes(card.free_bytes), format.format_bytes(card.total_bytes)
    says = f"{card.name}: {free} of {total} free, "
    says += f"compute capability {major}.{minor}"
    says += f", driver {card.driver}" if card.driver else ""
    says += f", CUDA {card.cuda}" if card.cuda else ""
    numbers: dict[str, ReportValue] = {
        "name": card.name,
        "free": card.free_bytes,
        "total": card.total_bytes,
        "capability": f"{major}.{minor}",
        "driver": card.driver,
        "cuda": card.cuda,
        "busy_percent": state.busy if state else None,
        "in_card_table": find_card(card.name, card.total_bytes) is not None,
    }
    if card.architectures and not has_code_for(card.architectures, card.capability):
        fix = f"install a newer torch, or an older one for an old card: {_GET_TORCH}"
        return DiagnosticLine(name, f"{says}: this torch has no code for this card", "problem", fix, numbers)
    if state is not None and (state.busy or 0) >= _BUSY_PERCENT:
        says += f"; other programs keep it busy {state.busy:.0f}% of the time"
        return DiagnosticLine(
            name, says, "note", "`nvidia-smi` shows which; a run would share the card", numbers
        )
    taken = card.total_bytes - card.free_bytes
    if taken > _NOTED_USED_SHARE * card.total_bytes:
        says += f"; other programs hold {format.format_bytes(taken)}"
        return DiagnosticLine(
            name, says, "note", "`nvidia-smi` shows which; end them to train larger models", numbers
        )
    return DiagnosticLine(name, says, numbers=numbers)


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


def _nvidia_smi_state(device: torch.device, states: Sequence[CardState]) -> CardState | None:
    """By identity: nvidia-smi counts the cards in another order than CUDA does."""
    import torch

    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    return next((state for state in states if uuid and state.uuid == uuid), None)


# --- no GPU ---


def why_no_cuda() -> str:
    """torch's own words for why it cannot use CUDA; empty if it was built without."""
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


def without_gpu_line(
    states: Sequence[CardState], complaint: str, why: str, environment: Mapping[str, str]
) -> DiagnosticLine:
    """`states`, `complaint`: nvidia-smi's. `why`: torch's reason, empty if it was built without CUDA."""
    numbers: dict[str, ReportValue] = {"cards_of_nvidia_smi": len(states)}
    if states and "CUDA_VISIBLE_DEVICES" in environment and why:
        says = f"{states[0].name} is there, hidden by CUDA_VISIBLE_DEVICES: runs will be on the CPU"
        return DiagnosticLine("gpu", says, "note", "unset CUDA_VISIBLE_DEVICES", numbers)
    if states and not why:
        says = f"{states[0].name} is there, but this torch was built without CUDA: runs will be on the CPU"
        return DiagnosticLine("gpu", says, "problem", f"install torch with CUDA: {_GET_TORCH}", numbers)
    if states:
        says = f"{states[0].name} is there, but torch cannot use it: {why}"
        fix = f"update the driver, or install torch for an older CUDA: {_GET_TORCH}"
        return DiagnosticLine("gpu", says, "problem", fix, numbers)
    if "mismatch" in complaint or "is lost" in complaint:
        says = f"none that works; nvidia-smi says: {complaint}"
        return DiagnosticLine("gpu", says, "problem", "restart the machine", numbers)
    if complaint:
        says = f"none that works; nvidia-smi says: {complaint}"
        return DiagnosticLine(
            "gpu", says, "note", "if there is a card, install its driver again and restart", numbers
        )
    says = "none found: runs will be on the CPU, which does for models of a few million parameters"
    return DiagnosticLine("gpu", says, "note", numbers=numbers)


# --- clocks under load ---


def check_clocks(context: CheckContext) -> list[DiagnosticLine]:
    lines = []
    for device in find_gpus():
        if device.type == "cuda":
            load = partial(time.sleep, _IDLE_PAUSE_S) if context.quick else matmul_load(device)
            states, _ = query_under_load(lambda: read_card_states(run_command), load)
            state = _nvidia_smi_state(device, states)
            lines.append(clocks_line(f"clocks {device_label(device)}", state, under_load=not context.quick))
    return lines


def matmul_load(device: torch.device, size: int = 4096) -> Callable[[], None]:
    """A function that gives a GPU some milliseconds of work."""
    import torch

    a = torch.randn(size, size, device=device)

    def work() -> None:
        torch.matmul(a, a)
        torch.cuda.synchronize(device)

    return work


_MAX_LOAD_S = 10.0
_IDLE_PAUSE_S = 0.02


def query_under_load(
    question: Callable[[], T], load: Callable[[], None], clock: Callable[[], float] = time.monotonic
) -> T:
    """The answer to `question`, asked while the device runs `load`."""
    deadline = clock() + _MAX_LOAD_S
    load()
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(question)
        while not answer.done() and clock() < deadline:
            load()
    return answer.result()


def clocks_line(name: str, state: CardState | None, under_load: bool) -> DiagnosticLine:
    if state is None:
        return DiagnosticLine(name, "not readable: nvidia-smi does not list this card", "note")
    parts = []
    if state.clock is not None:
        highest = f" of {state.clock_max:.0f}" if state.clock_max is not None else ""
        parts.append(f"{state.clock:.0f}{highest} MHz")
    if state.temperature is not None:
        parts.append(f"{state.temperature:.0f} °C")
    if state.power is not None:
        limit = f" of {state.power_limit:.0f}" if state.power_limit is not None else ""
        parts.append(f"{state.power:.0f}{limit} W")
    says = (", ".join(parts) or "nothing is reported") + (" under load" if under_load else " just now")
    numbers: dict[str, ReportValue] = {
        "under_load": under_load,
        "mhz": state.clock,
        "max_mhz": state.clock_max,
        "temperature_c": state.temperature,
        "power_w": state.power,
        "power_limit_w": state.power_limit,
        "power_default_w": state.power_default,
        "reasons": state.reasons,
    }
    if state.is_too_hot:
        return DiagnosticLine(
            name, f"{says}: too hot, the card slows itself down", "problem", _COOLING_FIX, numbers
        )
    if state.is_power_braked:
        return DiagnosticLine(
            name, f"{says}: its power supply holds it back", "problem", _POWER_SUPPLY_FIX, numbers
        )
    if state.is_slowed_by_hardware:
        return DiagnosticLine(
            name,
            f"{says}: the hardware holds it back",
            "problem",
            f"{_COOLING_FIX}; {_POWER_SUPPLY_FIX}",
            numbers,
        )
    if state.power_limit and state.power_default and state.power_limit < 0.98 * state.power_default:
        says += f": limited to {state.power_limit:.0f} of its usual {state.power_default:.0f} W"
        return DiagnosticLine(name, says, "note", f"sudo nvidia-smi -pl {state.power_default:.0f}", numbers)
    if state.has_fixed_clocks:
        return DiagnosticLine(
            name,
            f"{says}: its clock is set by hand",
            "note",
            "sudo nvidia-smi -rac; sudo nvidia-smi -rgc",
            numbers,
        )
    if state.is_at_power_limit:
        says += "; its power limit sets the clock, as usual at full load"
    return DiagnosticLine(name, says, numbers=numbers)


_COOLING_FIX = "clean or improve the cooling; in a laptop, raise it from the table"
_POWER_SUPPLY_FIX = "check the power cables and the supply"
