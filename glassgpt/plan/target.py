"""The machine that a run is planned for: a card of the table, this machine's own, or a CPU.

    target = find_target("rtx4070")                  # or "auto", "cpu"
    target = with_cluster(target, cards=8, machines=2, network_gb_s=12.5)

The cards of this machine are found through their drivers, without torch.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from glassgpt.cgroup import usable_cores
from glassgpt.errors import UserError
from glassgpt.estimate.cards import Card, cards, find_card, has_tensor_cores, resolve_card_name
from glassgpt.estimate.cluster import ONE_CARD, Cluster, link_of_card
from glassgpt.estimate.cpu_update_time import (
    BFLOAT16_SPEEDUP,
    REFERENCE_CORE,
    CoreSpeed,
    measure_core_speed,
)
from glassgpt.estimate.local_history import HistoryRow, speed_from_history
from glassgpt.estimate.machine_facts import (
    DeviceTraits,
    MachineFacts,
    facts_from_record,
    find_missing_toolchain,
)
from glassgpt.estimate.measured_speed import MeasuredSpeed, ProbeResult, fair_share
from glassgpt.estimate.memory_limits import automatic_limit_of_total, out_of_memory_limit
from glassgpt.estimate.peak import PeakFlops, RepeatOperation, measure_best_rate
from glassgpt.estimate.training_workload import TrainingWorkload
from glassgpt.files import read_text_or_empty
from glassgpt.record.gpu_state import NO_DRIVER, read_gpus
from glassgpt.record.machine import (
    apple_gpu_name,
    command_output,
    cpu_name,
    describe_cpu,
    load_average,
    unified_memory_bytes,
    usable_memory,
)

FOUND_BY_NAME = "asked for"  # the `found_how` of a card that the user named


@dataclass(frozen=True)
class PlanTarget:
    """The device, or the cluster of them, that a run is planned for."""

    name: str
    device_type: str  # "cuda", "mps" or "cpu"
    memory_bytes: int  # of the card or of the machine
    peaks: dict[str, float]  # FLOP/s by dtype; empty: unknown
    peak_source: str
    found_how: str
    card: Card | None = None
    alternatives: tuple[str, ...] = ()  # other cards that the name could mean
    memory_note: str = ""  # about `memory_bytes`
    cluster: Cluster = ONE_CARD  # how many of them train together
    busy_cores: float = 0.0  # the load by other programs, of a CPU; 0: too little to matter
    fair_share: float = 1.0  # of a CPU's speed, that a run gets beside that load
    core: CoreSpeed = REFERENCE_CORE  # of a CPU
    missing_toolchain: str | None = None  # what building kernels lacks; None too for another machine
    probe: ProbeResult | None = None  # of the planned run on this machine
    history: tuple[HistoryRow, ...] = ()  # of finished runs; empty for another machine

    @property
    def title(self) -> str:
        """`RTX 4090`, `8 x RTX 4090`, `16 x 8 x H100 SXM5`."""
        counts = (self.cluster.machines, self.cluster.cards_per_machine)
        return " x ".join([*(str(count) for count in counts if count > 1), self.name])

    @property
    def automatic_limit(self) -> int:
        """Bytes that automatic choices may fill."""
        return automatic_limit_of_total(self.memory_bytes)

    @property
    def out_of_memory_limit(self) -> int:
        """A run that needs more bytes is out of memory."""
        return out_of_memory_limit(self.device_type, self.memory_bytes)

    @property
    def is_local(self) -> bool:
        """Whether it is certainly this machine. A card that the user named may be elsewhere."""
        return self.device_type == "cpu" or self.found_how != FOUND_BY_NAME

    @property
    def traits(self) -> DeviceTraits:
        """For the rules in estimate/decide.py, which training uses too."""
        if self.card is None:
            return DeviceTraits(
                self.device_type,
                has_fast_bfloat16="bfloat16" in self.peaks,
                missing_toolchain=self.missing_toolchain,
            )
        return DeviceTraits(
            self.device_type,
            self.card.capability,
            has_tensor_cores(self.card.name, self.card.capability),
            bandwidth_bytes_per_s=self.card.bandwidth_gb_s * 1e9,
            missing_toolchain=self.missing_toolchain,
        )

    def facts(self, dtype: str) -> MachineFacts:
        """What the table or the drivers know, with the peak in this dtype; or what a probe has measured."""
        if self.probe is not None and self.probe.facts:
            measured, *_ = facts_from_record(self.probe.facts)
            return replace(measured, ranks=self.cluster.ranks, is_launched=self.cluster.ranks > 1)
        return MachineFacts(
            self.traits,
            self.name,
            ranks=self.cluster.ranks,
            is_launched=self.cluster.ranks > 1,
            memory_bytes=self.memory_bytes,
            peak=PeakFlops(self.peak_flops_per_s(dtype), self.peak_source),
        )

    def measured_speed(self, work: TrainingWorkload, flops_per_token: int) -> MeasuredSpeed | None:
        """Of one card or CPU: by the probe, else by finished runs here; None: neither knows."""
        if self.probe is not None and (probed := self.probe.speed_of(work)) is not None:
            return probed
        if self.cluster.ranks > 1:
            return None
        threads = work.config.threads if self.device_type == "cpu" else None  # None: as many as a run chose
        return speed_from_history(self.history, self.name, work, flops_per_token, self.card, threads)

    def peak_flops_per_s(self, dtype: str) -> float | None:
        if self.probe is not None and self.probe.ran and self.probe.work["dtype"] == dtype:
            peak = facts_from_record(self.probe.facts)[0].peak
            if peak is not None and peak.value is not None:
                # Of a busy CPU, the best that was seen; a card has one value.
                return max(peak.value, self.peaks.get(dtype, 0.0)) if self.card is None else peak.value
        if dtype == "float32" and self.device_type == "cuda":
            return self.peaks.get("tf32") or self.peaks.get("float32")
        return self.peaks.get(dtype)


def find_target(gpu: str, device: str = "auto") -> PlanTarget:
    """`gpu`: a card's name, `cpu`, or `auto` for this machine; `device`: the run's --device on it."""
    gpu = gpu.strip()
    if not gpu:
        raise UserError("--gpu is empty: name a card, cpu or auto")
    if gpu.lower() == "cpu" or (gpu.lower() == "auto" and device == "cpu"):
        return local_cpu_target(FOUND_BY_NAME)
    if gpu.lower() != "auto":
        resolved = resolve_card_name(gpu)
        return target_of_card(resolved.card, FOUND_BY_NAME, resolved.alternatives)
    return local_target(device)


def target_of_card(
    card: Card, found_how: str, alternatives: tuple[str, ...] = (), memory_bytes: int | None = None
) -> PlanTarget:
    """`memory_bytes`: None is the card's in the table, or the smallest configuration of an Apple chip."""
    note = ""
    if memory_bytes is None:
        memory_bytes = int((card.memory_gb or card.smallest_gb or 0) * 2**30)
        note = "" if card.memory_gb else "the smallest sold"
    device_type = "mps" if card.vendor == "apple" else "cuda"
    return PlanTarget(
        card.name,
        device_type,
        memory_bytes,
        dict(card.peaks),
        card.source,
        found_how,
        card,
        alternatives,
        note,
    )


def with_cluster(target: PlanTarget, cards: int, machines: int, network_gb_s: float) -> PlanTarget:
    """The target `cards` times in each of `machines` machines."""
    if cards * machines == 1:
        return target
    problems = []
    if target.device_type == "mps":
        problems.append(
            f"{target.name} cannot train in a cluster: --gpus and --nodes are for CUDA cards and CPUs"
        )
    if target.device_type == "cpu" and cards > 1:
        problems.append(f"--gpus={cards} counts cards, and a machine has one CPU: --nodes counts machines")
    if problems:
        raise UserError(problems)
    link = link_of_card(target.card) if target.device_type == "cuda" else None
    return replace(target, cluster=Cluster(cards, machines, link, network_gb_s))


# --- this machine ---


def local_target(device: str = "auto") -> PlanTarget:
    """This machine, as a run with this --device would use it."""
    visible, why_none = _visible_cards()
    kind, _, index = device.partition(":")
    if kind != "mps" and int(index or 0) < len(visible):
        installed = visible[int(index or 0)]
        if installed.card is not None:
            target = target_of_card(installed.card, "found here", memory_bytes=installed.memory_bytes)
        else:
            # A chip whose driver reports no memory shares the machine's.
            memory_bytes = usable_memory()[0] if installed.memory_bytes is None else installed.memory_bytes
            peak_source = "unknown: not in the table of cards"
            target = PlanTarget(installed.name, "cuda", memory_bytes, {}, peak_source, "found here")
        return replace(target, missing_toolchain=find_missing_toolchain("cuda"))
    if sys.platform == "darwin" and kind != "cuda":
        card = find_card(apple_gpu_name())
        if card is not None:
            target = target_of_card(card, "found here", memory_bytes=unified_memory_bytes())
            return replace(target, missing_toolchain=find_missing_toolchain("mps"))
    if device != "auto":
        why = "it has no card with that number" if visible and kind == "cuda" else why_none
        raise UserError(f"--device={device} is not in this machine: {why}; --gpu=NAME plans for another")
    return local_cpu_target(why_none)


def local_cpu_target(found_how: str, seconds: float = 0.4) -> PlanTarget:
    """This machine's CPU. The peak of matmuls is measured for about `seconds`."""
    cpu, cores = describe_cpu(), usable_cores()
    load = load_average()
    share = fair_share(load)
    is_busy = share < 1
    core_rate = _one_core_rate() if is_busy else None
    if core_rate is None:
        flops_per_s = measure_best_rate(_numpy_matmuls, (512, 1024), seconds, time.perf_counter)
    else:
        flops_per_s = core_rate * cores
    peaks = {"float32": flops_per_s}
    if cpu["avx512_bf16"] or cpu["amx"]:
        peaks["bfloat16"] = BFLOAT16_SPEEDUP * flops_per_s
    memory_bytes, is_limited = usable_memory()
    return PlanTarget(
        name=cpu_name(),
        device_type="cpu",
        memory_bytes=memory_bytes,
        peaks=peaks,
        peak_source="measured: float32 matmuls by numpy" + ("" if core_rate is None else " on one core"),
        found_how=found_how,
        memory_note="the container's limit" if is_limited else "",
        core=measure_core_speed(),
        missing_toolchain=find_missing_toolchain("cpu"),
        busy_cores=load if is_busy else 0.0,
        fair_share=share,
    )


def _numpy_matmuls(size: int) -> RepeatOperation:
    import numpy as np

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size), dtype=np.float32) for _ in range(2))

    def run(count: int) -> None:
        for _ in range(count):
            a @ b

    return run


# Beside other programs the threads of a matmul wait for each other, and it takes up to a hundred times as
# long. One thread, timed by the CPU time that it got, shows what a core can do.
_CORE_RATE_PROGRAM = """
import time, numpy
a = numpy.random.default_rng(0).standard_normal((512, 512), dtype=numpy.float32)
a @ a
best, deadline = 1e9, time.perf_counter() + 0.3
while time.perf_counter() < deadline:
    begin = time.thread_time()
    a @ a
    best = min(best, time.thread_time() - begin)
print(2 * 512**3 / max(best, 1e-9))
"""


def _one_core_rate() -> float | None:
    """FLOP/s of float32 matmuls on one core; None if it could not be measured."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, "1")}
    output = command_output(sys.executable, "-P", "-c", _CORE_RATE_PROGRAM, environment=environment)
    return float(output) if output and re.fullmatch(r"[\d.e+]+", output) else None


# --- installed cards ---


@dataclass(frozen=True)
class InstalledCard:
    """A card of this machine, as its driver reports it."""

    name: str
    memory_bytes: int | None  # None: its driver does not say
    uuid: str = ""  # as environment variables may name it: GPU-5d5ba0d6-…

    @property
    def card(self) -> Card | None:
        return find_card(self.name, self.memory_bytes)

    @property
    def peak_flops_per_s(self) -> float:
        """The peak in its fastest dtype; 0: not in the table."""
        return max(self.card.peaks.values(), default=0.0) if self.card else 0.0


def _visible_cards() -> tuple[list[InstalledCard], str]:
    """The cards that a run would see, and the reason if there are none."""
    reading = read_gpus()
    if reading.gpus:
        names_slices = "MIG-" in os.environ.get("CUDA_VISIBLE_DEVICES", "")
        listed = reading.mig_slices if names_slices else reading.gpus
        nvidia = [InstalledCard(gpu.name, gpu.memory_total, gpu.uuid) for gpu in listed]
        return visible_nvidia_cards(nvidia, os.environ), "CUDA_VISIBLE_DEVICES hides the GPU"
    amd = find_amd_cards()
    if not amd:
        return [], "no GPU found" if reading.problem == NO_DRIVER else f"no GPU found: {reading.problem}"
    if not is_torch_built_for_rocm():
        return [], f"{amd[0].name} is here, but this PyTorch was not built for AMD's cards"
    return visible_amd_cards(amd, os.environ), "HIP_VISIBLE_DEVICES or the like hides the GPU"


def find_amd_cards(root: Path = Path("/sys/class/drm")) -> list[InstalledCard]:
    """The cards that the kernel lists: this needs no tool, and works in containers too."""
    folders = [path for path in root.glob("card*") if re.fullmatch(r"card\d+", path.name)]
    installed = []
    for folder in sorted(folders, key=lambda path: int(path.name[4:])):
        device = folder / "device"
        vendor, chip, memory, product, serial = (
            read_text_or_empty(device / name).strip()
            for name in ("vendor", "device", "mem_info_vram_total", "product_name", "unique_id")
        )
        if vendor == "0x1002":
            name = next((card.name for card in cards() if chip in card.pci_ids), "")
            memory_bytes = int(memory) if memory.isdecimal() else None
            installed.append(InstalledCard(name or product or f"AMD {chip}", memory_bytes, f"GPU-{serial}"))
    return installed


def is_torch_built_for_rocm() -> bool:
    """Read from the version file of the installed PyTorch, without importing it."""
    spec = importlib.util.find_spec("torch")
    folder = Path(spec.origin).parent if spec and spec.origin else Path("nowhere")
    version = read_text_or_empty(folder / "version.py")
    return re.search(r"^hip\b[^=\n]*=\s*['\"]", version, re.MULTILINE) is not None


def visible_nvidia_cards(
    installed: Sequence[InstalledCard], environment: Mapping[str, str]
) -> list[InstalledCard]:
    """In CUDA's order: the fastest first, unless CUDA_DEVICE_ORDER says PCI_BUS_ID."""
    ordered = list(installed)
    if environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        ordered.sort(key=lambda card: card.peak_flops_per_s, reverse=True)  # equal ones stay as they are
    return _filter_visible(ordered, environment.get("CUDA_VISIBLE_DEVICES"))


def visible_amd_cards(
    installed: Sequence[InstalledCard], environment: Mapping[str, str]
) -> list[InstalledCard]:
    """ROCR_VISIBLE_DEVICES is applied first; the other variables count what it leaves."""
    visible = _filter_visible(installed, environment.get("ROCR_VISIBLE_DEVICES"))
    names = environment.get("HIP_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES"))
    return _filter_visible(visible, names)


def _filter_visible(installed: Sequence[InstalledCard], names: str | None) -> list[InstalledCard]:
    """By index or UUID. As in the drivers, an invalid name hides itself and all that follow."""
    if names is None:
        return list(installed)
    visible: list[InstalledCard] = []
    for name in (word.strip() for word in names.split(",")):
        if name.isdecimal():
            matching = list(installed[int(name) : int(name) + 1])
        else:
            matching = [card for card in installed if name and card.uuid.startswith(name)]
        if len(matching) != 1:
            break
        visible += matching
    return visible
