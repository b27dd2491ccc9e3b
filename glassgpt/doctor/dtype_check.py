"""In which dtype a run computes on each device, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glassgpt.doctor.check import CheckContext
from glassgpt.doctor.check import DiagnosticLine
from glassgpt.doctor.gpu_checks import device_label
from glassgpt.doctor.gpu_checks import find_gpus

if TYPE_CHECKING:
    import torch

_GPT2_WIDTH = 768  # of the model to be trained: GPT-2's


def check_dtypes(visit: CheckContext) -> list[DiagnosticLine]:
    import torch

    devices = [*find_gpus(), torch.device("cpu")]
    return [dtype_line(f"dtype {device_label(device)}", device) for device in devices]


def dtype_line(name: str, device: torch.device) -> DiagnosticLine:
    from glassgpt.training.device import choose_dtype

    choice = choose_dtype("auto", device, _GPT2_WIDTH)
    says = f"{choice.value}: {choice.reason}"
    if device.type == "cuda" and choice.value != "bfloat16":
        # Its reason begins with "asked for", and goes on with what speaks against it.
        remark = choose_dtype("bfloat16", device, _GPT2_WIDTH).reason.partition("; ")[2]
        says += f"; bfloat16: {remark}" if remark else ""
    return DiagnosticLine(name, says, numbers={"device": str(device), "dtype": str(choice.value)})


def dtypes_to_measure(device: torch.device) -> list[str]:
    """Those whose speed matters: the one chosen, and float32 to compare with."""
    from glassgpt.training.device import choose_dtype

    chosen = str(choose_dtype("auto", device, _GPT2_WIDTH).value)
    return list(dict.fromkeys((chosen, "float32")))
