"""The machine that is planned for: a card of the table, this machine's own, or a CPU."""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from glassgpt.cgroup import read_text_or_empty, usable_cores
from glassgpt.errors import UserError
from glassgpt.estimate.cards import Card, find_card, has_tensor_cores, resolve_card_name
from glassgpt.estimate.cluster import ONE_CARD, Cluster, link_of_card
from glassgpt.estimate.decide import DeviceTraits, find_missing_toolchain
from glassgpt.estimate.peak import RepeatOperation, measure_best_rate
from glassgpt.plan import installed_cards
from glassgpt.plan.installed_cards import InstalledCard
from glassgpt.record.machine import (
    apple_gpu_name,
    command_output,
    cpu_model,
    load_average,
    unified_memory_bytes,
    usable_memory,
)

# Of the memory, what a run takes by its own choice, which leaves some to a desktop; and what it can take
# from a card that nobody else uses, where memory that grows in place leaves hardly a gap.
_COMFORTABLE_MEMORY_SHARE = 0.94
_MAX_MEMORY_SHARE = 0.98
_BUSY_CORE_SHARE = 0.5  # of the cores


FOUND_BY_NAME = "asked for"  # how a card was found that somebody named


@dataclass(frozen=True)
class PlanTarget:
    """Where the run shall be."""

    name: str
    device_type: str  # "cuda", "mps" or "cpu"
    memory_bytes: int  # bytes, of the card or of the machine
    peaks: dict[str, float]  # FLOP/s by dtype; empty: unknown
    peak_source: str
    found_how: str  # how it was found
    card: Card | None = None
    alternatives: tuple[str, ...] = ()  # cards that the name could have meant too
    memory_note: str = ""  # what is to be known of `memory`
    cluster: Cluster = ONE_CARD  # how many of it train together
    busy_cores: float = (
        0.0  # cores that other programs used while its speed was measured; 0: too few to matter
    )
    missing_toolchain: str | None = (
        None  # what building code would need and does not find; of another machine unknown
    )

    @property
    def title(self) -> str:
        """`RTX 4090`, `8 x RTX 4090`, `16 x 8 x H100 SXM5`."""
        counts = (self.cluster.machines, self.cluster.cards_per_machine)
        return " x ".join([*(str(count) for count in counts if count > 1), self.name])

    @property
    def comfortable_bytes(self) -> int:
        """Bytes that a run takes where it may choose."""
        return int(self.memory_bytes * _COMFORTABLE_MEMORY_SHARE)

    @property
    def max_bytes(self) -> int:
        """Bytes above which it does not run."""
        return (
            int(self.memory_bytes * _MAX_MEMORY_SHARE)
            if self.device_type == "cuda"
            else self.comfortable_bytes
        )

    @property
    def is_local(self) -> bool:
        """Surely in this machine. Who names a card may have it here, or wish for it."""
        return self.device_type == "cpu" or self.found_how != FOUND_BY_NAME

    @property
    def traits(self) -> DeviceTraits:
        """What of it decides, for the rules that the trainer asks too."""
        if self.card is None:
            return DeviceTraits(
                self.device_type,
                has_fast_bfloat16="bfloat16" in self.peaks,
                missing_toolchain=self.missing_toolchain,
            )
        on_card = has_tensor_cores(self.card.name, self.card.capability)
        bandwidth = self.card.bandwidth_gb_s * 1e9
        return DeviceTraits(
            self.device_type,
            self.card.capability,
            on_card,
            bandwidth_bytes_per_s=bandwidth,
            missing_toolchain=self.missing_toolchain,
        )

    def peak_flops_per_s(self, dtype: str) -> float | None:
        if dtype == "float32" and self.device_type == "cuda":
            return self.peaks.get("tf32") or self.peaks.get("float32")
        return self.peaks.get(dtype)


def find_target(gpu: str, device: str = "auto") -> PlanTarget:
    """`gpu`: a card's name, `cpu`, or `auto` for this machine; `device`: what of it the run will take."""
    gpu = gpu.strip()
    if not gpu:
        raise UserError("--gpu is empty: name a card, cpu or auto")
    if gpu.lower() == "cpu" or (gpu.lower() == "auto" and device == "cpu"):
        return local_cpu_target(FOUND_BY_NAME)
    if gpu.lower() != "auto":
        found = resolve_card_name(gpu)
        return target_of_card(found.card, FOUND_BY_NAME, found.alternatives)
    return local_target(device)


def target_of_card(
    card: Card, how: str, others: tuple[str, ...] = (), memory: int | None = None
) -> PlanTarget:
    """`memory`: as found; else as sold, or, of a chip that shares the machine's, the least that is sold."""
    note = ""
    if memory is None:
        memory = int((card.memory_gb or card.smallest_gb or 0) * 2**30)
        note = "" if card.memory_gb else "the smallest sold"
    kind = "mps" if card.vendor == "apple" else "cuda"
    return PlanTarget(card.name, kind, memory, dict(card.peaks), card.source, how, card, others, note)


def with_cluster(target: PlanTarget, cards: int, machines: int, network_gb_s: float) -> PlanTarget:
    """So many of it in each of so many machines."""
    if cards * machines == 1:
        return target
    problems = []
    if target.device_type == "mps":
        problems.append(f"{target.name} trains by itself: --gpus and --nodes are for CUDA cards and CPUs")
    if target.device_type == "cpu" and cards > 1:
        problems.append(f"--gpus={cards} counts cards, and a machine has one CPU: --nodes counts machines")
    if problems:
        raise UserError(problems)
    link = link_of_card(target.card) if target.device_type == "cuda" else None
    return replace(target, cluster=Cluster(cards, machines, link, network_gb_s))


# --- this machine ---


def local_target(device: str = "auto") -> PlanTarget:
    """As a run would find it."""
    seen, why_none = _visible_cards()
    kind, _, number = device.partition(":")
    if kind != "mps" and int(number or 0) < len(seen):
        return _of_present(seen[int(number or 0)])
    if sys.platform == "darwin" and kind != "cuda":
        card = find_card(apple_gpu_name())
        if card is not None:
            return replace(
                target_of_card(card, "found here", memory=unified_memory_bytes()),
                lacks=find_missing_toolchain("mps"),
            )
    if device != "auto":
        why = "it has none of that number" if seen and kind == "cuda" else why_none
        raise UserError(f"--device={device} is not in this machine: {why}; --gpu=NAME plans for another")
    return local_cpu_target(why_none)


def _visible_cards() -> tuple[list[InstalledCard], str]:
    """Those that a run would see, or why there is none."""
    found = installed_cards.find_nvidia_cards()
    if found:
        if "MIG-" in os.environ.get("CUDA_VISIBLE_DEVICES", ""):
            found = installed_cards.parse_mig_slices(command_output("nvidia-smi", "-L") or "")
        return installed_cards.visible_nvidia_cards(found, os.environ), "CUDA_VISIBLE_DEVICES hides the GPU"
    of_amd = installed_cards.find_amd_cards()
    if not of_amd:
        return [], "no GPU was found"
    if not installed_cards.is_torch_built_for_rocm():
        return [], f"{of_amd[0].name} is here, but this PyTorch was not built for AMD's cards"
    return installed_cards.visible_amd_cards(
        of_amd, os.environ
    ), "HIP_VISIBLE_DEVICES or the like hides the GPU"


def _of_present(found: InstalledCard) -> PlanTarget:
    if found.card is not None:
        target = target_of_card(found.card, "found here", memory=found.memory_bytes)
    else:
        # A chip whose driver names no memory shares the machine's.
        memory = usable_memory()[0] if found.memory_bytes is None else found.memory_bytes
        unknown = "unknown: not in the table of cards"
        target = PlanTarget(found.name, "cuda", memory, {}, unknown, "found here")
    return replace(target, missing_toolchain=find_missing_toolchain("cuda"))


def local_cpu_target(how: str, seconds: float = 0.4) -> PlanTarget:
    info = read_text_or_empty(Path("/proc/cpuinfo"))
    cores = max(1, math.floor(usable_cores()))
    busy_before = load_average()
    flops = measure_best_rate(_numpy_matmuls, (512, 1024), seconds, time.perf_counter)
    peaks = {"float32": flops}
    if "avx512_bf16" in info or "amx_bf16" in info:
        peaks["bfloat16"] = 2 * flops
    name = f"{cpu_model(info)}, {cores} {'core' if cores == 1 else 'cores'}"
    source = "measured: float32 matmuls by numpy"
    memory, limited = usable_memory()
    note = "the container's limit" if limited else ""
    busy = busy_before if busy_before > _BUSY_CORE_SHARE * cores else 0.0
    return PlanTarget(
        name,
        "cpu",
        memory,
        peaks,
        source,
        how,
        memory_note=note,
        missing_toolchain=find_missing_toolchain("cpu"),
        busy_cores=busy,
    )


def _numpy_matmuls(size: int) -> RepeatOperation:
    import numpy as np

    draw = np.random.default_rng(0)
    a, b = (draw.standard_normal((size, size), dtype=np.float32) for _ in range(2))

    def run(count: int) -> None:
        for _ in range(count):
            a @ b

    return run
