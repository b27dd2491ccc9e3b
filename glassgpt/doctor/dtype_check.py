"""In which dtype a run computes on each device, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glassgpt.doctor.check import Line, Visit
from glassgpt.doctor.gpu_checks import find_gpus, short_name

if TYPE_CHECKING:
    import torch

_WIDTH = 768  # of the model to be trained: GPT-2's


def look_at_dtypes(visit: Visit) -> list[Line]:
    import torch

    devices = [*find_gpus(), torch.device("cpu")]
    return [dtype_line(f"dtype {short_name(device)}", device) for device in devices]


def dtype_line(name: str, device: torch.device) -> Line:
    from glassgpt.training.device import choose_dtype

    choice = choose_dtype("auto", device, _WIDTH)
    says = f"{choice.value}: {choice.reason}"
    if device.type == "cuda" and choice.value != "bfloat16":
        # Its reason begins with "asked for", and goes on with what speaks against it.
        remark = choose_dtype("bfloat16", device, _WIDTH).reason.partition("; ")[2]
        says += f"; bfloat16: {remark}" if remark else ""
    return Line(name, says, numbers={"device": str(device), "dtype": str(choice.value)})


def measured_dtypes(device: torch.device) -> list[str]:
    """Those whose speed matters: the one chosen, and float32 to compare with."""
    from glassgpt.training.device import choose_dtype

    chosen = str(choose_dtype("auto", device, _WIDTH).value)
    return list(dict.fromkeys((chosen, "float32")))
