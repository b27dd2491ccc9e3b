"""What decide() has to know: of the machine, the dataset, and the run or weights that a run starts from.

Training measures it (training/probe.py) and writes it into the journal's `run` record. `glass plan` takes
what it can from the card table. None: not known, or not measured yet. No torch.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from glassgpt.data.manifest import DatasetInfo
from glassgpt.estimate.peak import PeakFlops
from glassgpt.record.machine import find_compiler


@dataclass(frozen=True)
class DeviceTraits:
    """The properties of a device that do not depend on the run."""

    device_type: str  # "cuda", "mps" or "cpu"
    capability: tuple[int, int] | None = None  # of a CUDA card; None: not known
    has_tensor_cores: bool = True  # of a CUDA card
    has_fast_bfloat16: bool = False  # of a CPU
    bandwidth_bytes_per_s: float | None = None  # of a card's memory; None: not known
    missing_toolchain: str | None = None  # why no code can be built there


@dataclass(frozen=True)
class MachineFacts:
    device: DeviceTraits
    device_name: str = ""
    device_counts: Mapping[str, int] = field(default_factory=dict)  # by type; empty: the device is given
    default_threads: int | None = None  # PyTorch's; None: nothing to choose
    busy_cores: float = 0.0  # used by other programs; 0 too where the user or a launcher set the threads
    ranks: int = 1  # processes that share an update
    is_launched: bool = False  # by torchrun, if only as one process
    memory_bytes: int | None = None  # of the card, or of main memory for each process of the machine
    free_bytes: int | None = None  # of the card with the least, measured beside this process's CUDA context
    # The following depend on choices: decide() says when it needs them.
    peak: PeakFlops | None = None  # in the run's dtype
    kernels_built: bool | None = None  # our Triton kernels are in Triton's cache
    float8_is_correct: bool | None = None  # the FP8 matmul computes what it should
    attention_s: Mapping[str, float] | None = None  # one layer forward and backward, by kernel


@dataclass(frozen=True)
class Origin:
    """The run that is resumed, or the weights that a run starts from."""

    vocab_size: int | None = None  # None: random weights
    threads: int | None = None  # of the CPU; None: a new run


def facts_record(machine: MachineFacts, data: DatasetInfo, origin: Origin) -> dict[str, Any]:
    return {"machine": asdict(machine), "data": asdict(data), "origin": asdict(origin)}


def facts_from_record(record: Mapping[str, Any]) -> tuple[MachineFacts, DatasetInfo, Origin]:
    """The inverse of facts_record, also after a way through JSON: decide(config, *facts_from_record(…))."""
    machine = dict(record["machine"])
    device, peak = dict(machine["device"]), machine["peak"]
    if device["capability"] is not None:
        device["capability"] = tuple(device["capability"])
    machine["device"] = DeviceTraits(**device)
    machine["peak"] = None if peak is None else PeakFlops(**peak)
    return MachineFacts(**machine), DatasetInfo(**record["data"]), Origin(**record["origin"])


def find_missing_toolchain(device_type: str) -> str | None:
    """What this machine lacks to build code for such a device."""
    language = "C" if device_type == "cuda" else "C++"
    if find_compiler(language, os.environ, shutil.which) is None:
        return f"no {language} compiler was found"
    if device_type == "cuda" and importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    return None
