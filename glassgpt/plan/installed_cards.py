"""The cards of this machine, as its drivers tell without torch, and which of them a run would see."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from glassgpt.cgroup import read_text_or_empty
from glassgpt.estimate.cards import Card, cards, find_card
from glassgpt.record.machine import command_output


@dataclass(frozen=True)
class InstalledCard:
    """A card that is in this machine."""

    name: str
    memory_bytes: int | None  # bytes; None: its driver does not say
    uuid: str = ""  # as environment variables may name it: GPU-5d5ba0d6-…

    @property
    def card(self) -> Card | None:
        return find_card(self.name, self.memory_bytes)


# --- NVIDIA ---


def find_nvidia_cards() -> list[InstalledCard]:
    """None where there is no driver, or it fails."""
    query = ("--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits")
    return parse_nvidia_smi(command_output("nvidia-smi", *query) or "")


def parse_nvidia_smi(text: str) -> list[InstalledCard]:
    """Lines of three values; others are warnings. Memory may be [N/A], where a chip shares the machine's."""
    found = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == 3 and values[0].startswith("GPU-"):
            memory = int(values[2]) * 2**20 if values[2].isdecimal() else 0
            found.append(InstalledCard(values[1], memory or None, values[0]))
    return found


_MIG_SLICE = re.compile(r"MIG \d+g\.(?P<gb>\d+)gb\S*")


def parse_mig_slices(text: str) -> list[InstalledCard]:
    """`nvidia-smi -L`: below each card the slices it was cut into, with their memory in their names."""
    found, name = [], ""
    for line in text.splitlines():
        identity = re.search(r"UUID: ([^)\s]+)", line)
        if whole := re.match(r"GPU \d+: (.+?) \(UUID", line):
            name = whole[1]
        elif (part := _MIG_SLICE.search(line)) and identity:
            found.append(InstalledCard(f"{name} {part[0]}", int(part["gb"]) * 2**30, identity[1]))
    return found


# --- AMD ---


def find_amd_cards(root: Path = Path("/sys/class/drm")) -> list[InstalledCard]:
    """As the kernel lists them: no tool is needed, and containers have it too."""
    folders = [path for path in root.glob("card*") if re.fullmatch(r"card\d+", path.name)]
    found = []
    for folder in sorted(folders, key=lambda path: int(path.name[4:])):
        device = folder / "device"
        vendor, chip, memory, product, serial = (
            read_text_or_empty(device / name).strip()
            for name in ("vendor", "device", "mem_info_vram_total", "product_name", "unique_id")
        )
        if vendor == "0x1002":
            known = next((card.name for card in cards() if chip in card.pci_ids), "")
            size = int(memory) if memory.isdecimal() else None
            found.append(InstalledCard(known or product or f"AMD {chip}", size, f"GPU-{serial}"))
    return found


def is_torch_built_for_rocm() -> bool:
    """Whether the PyTorch that is installed here was built for AMD's cards, read from its own file."""
    found = importlib.util.find_spec("torch")
    folder = Path(found.origin).parent if found and found.origin else Path("nowhere")
    return (
        re.search(r"^hip\b[^=\n]*=\s*['\"]", read_text_or_empty(folder / "version.py"), re.MULTILINE)
        is not None
    )


# --- which of them a run would see ---


def visible_nvidia_cards(
    found: Sequence[InstalledCard], environment: Mapping[str, str]
) -> list[InstalledCard]:
    """NVIDIA's, in CUDA's order: the fastest first, unless it is told to go by the slots."""
    ordered = list(found)
    if environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        ordered.sort(key=_speed, reverse=True)  # equal ones stay as they are
    return _filter_visible(ordered, environment.get("CUDA_VISIBLE_DEVICES"))


def visible_amd_cards(found: Sequence[InstalledCard], environment: Mapping[str, str]) -> list[InstalledCard]:
    """ROCm's own variable goes first; the next counts what that one left."""
    left = _filter_visible(found, environment.get("ROCR_VISIBLE_DEVICES"))
    return _filter_visible(
        left, environment.get("HIP_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES"))
    )


def _filter_visible(found: Sequence[InstalledCard], names: str | None) -> list[InstalledCard]:
    """By number or identity. What stands behind a name that means nothing is hidden, as drivers have it."""
    if names is None:
        return list(found)
    seen: list[InstalledCard] = []
    for name in (word.strip() for word in names.split(",")):
        if name.isdecimal():
            meant = list(found[int(name) : int(name) + 1])
        else:
            meant = [one for one in found if name and one.uuid.startswith(name)]
        if len(meant) != 1:
            break
        seen += meant
    return seen


def _speed(present: InstalledCard) -> float:
    return max(present.card.peaks.values(), default=0.0) if present.card else 0.0
