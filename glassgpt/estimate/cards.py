"""The table of cards (`cards.toml`), and how to find one by a driver's name or a typed name.

find_card("NVIDIA GeForce RTX 4070 Ti", memory_bytes)     # None if it is not in the table
resolve_card_name("4070ti").card.watts                    # 285
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import resources
from typing import Any

from glassgpt.errors import UserError

PEAK_DTYPES = ("float32", "tf32", "bfloat16", "float16", "float8")

# What people own or rent, by name in the table.
COMMON_CARDS = (
    "RTX 2060 6GB", "RTX 2070", "RTX 2080 Ti", "RTX 3050 8GB", "RTX 3060", "RTX 3060 Laptop GPU", "RTX 3070",
    "RTX 3080 10GB", "RTX 3090", "RTX 4050 Laptop GPU", "RTX 4060", "RTX 4060 Laptop GPU", "RTX 4060 Ti 16GB",
    "RTX 4070", "RTX 4070 Laptop GPU", "RTX 4070 Ti", "RTX 4080", "RTX 4090", "RTX 5060 Ti 16GB", "RTX 5070",
    "RTX 5080", "RTX 5090", "T4", "V100 SXM2 16GB", "A10", "A40", "L4", "L40S", "A100 SXM4 40GB",
    "A100 SXM4 80GB", "H100 SXM5", "H200", "B200", "Instinct MI300X", "Apple M1 8-core GPU",
    "Apple M2 Pro 19-core GPU", "Apple M3 Max 40-core GPU", "Apple M4 10-core GPU",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Card:
    """One row of `cards.toml`."""

    name: str
    device_names: tuple[str, ...]  # other names that drivers report
    family: str
    vendor: str
    capability: tuple[int, int] | None  # CUDA compute capability; None for other vendors
    memory_gb: float | None = None  # as sold; None where memory is shared with the CPU
    bandwidth_gb_s: float
    smallest_gb: float | None = None  # shared memory: the least that is sold with the chip
    link: str | None = None  # to the other cards of a machine; None: not used for multi-GPU training
    pci_ids: tuple[str, ...] = ()  # as the kernel lists it, if the driver reports no name
    watts: int | None = None  # board power; None if the vendor does not state it
    cuda_cores: int | None = None
    boost_mhz: int | None = None
    tensor_mhz: int | None = None  # clock of the tensor rates, if it is not boost_mhz
    peaks: Mapping[str, float] = field(hash=False)  # dtype -> FLOP/s; no entry: unknown or impossible
    source: str

    @cached_property
    def normalized_names(self) -> frozenset[str]:
        """All its names, normalized."""
        return frozenset(_normalize_device_name(name) for name in (self.name, *self.device_names))


@cache
def cards() -> tuple[Card, ...]:
    """The whole table, in file order."""
    text = (resources.files("glassgpt.estimate") / "cards.toml").read_text(encoding="utf-8")
    table = []
    for family in tomllib.loads(text)["family"]:
        major, dot, minor = family.get("capability", "").partition(".")
        shared = {
            "family": family["name"],
            "vendor": family["vendor"],
            "capability": (int(major), int(minor)) if dot else None,
            "source": family["source"],
            "link": family.get("link"),
        }
        for row in family["cards"]:
            fields: dict[str, Any] = shared | {key: row[key] for key in row if key not in PEAK_DTYPES}
            for name in ("device_names", "pci_ids"):
                fields[name] = tuple(row.get(name, ()))
            fields["peaks"] = {dtype: row[dtype] * 1e12 for dtype in PEAK_DTYPES if dtype in row}
            table.append(Card(**fields))
    return tuple(table)


def _normalize_device_name(name: str) -> str:
    """`NVIDIA GeForce RTX 4090` and `GeForce RTX 4090` (older drivers) and `rtx 4090` are one name."""
    words = name.lower().split()
    return " ".join(word for word in words if word not in {"nvidia", "geforce", "tesla", "amd", "apple"})


@cache
def find_card(device_name: str, memory_bytes: int | None = None) -> Card | None:
    """The card that a driver reports by this name, or None.

    The whole name has to match, so `RTX 4070` is never a `RTX 4070 Ti`, a laptop chip or a slice of a card.
    If two cards report one name, the memory decides; without it, the card that has this name in the table.
    """
    name = _normalize_device_name(device_name)
    matches = [card for card in cards() if name in card.normalized_names]
    if memory_bytes is None:
        matches = [card for card in matches if _normalize_device_name(card.name) == name] or matches
    if len(matches) == 1:
        return matches[0]
    # Drivers reserve a few percent of the memory for themselves and for error correction.
    reported_gb = (memory_bytes or 0) / 2**30
    fits = [card for card in matches if 0.88 < reported_gb / (card.memory_gb or math.inf) < 1.05]
    return fits[0] if len(fits) == 1 else None


@cache
def guess_card(name: str, memory_bytes: int | None = None) -> Card | None:
    """The card that a log names, as a driver reports it or as people write it; None where it is not known."""
    exact = find_card(name, memory_bytes)
    if exact is not None:
        return exact
    try:
        return resolve_card_name(name).card
    except UserError:
        return None


# Turing without tensor cores: GTX 16, and small cards of laptops and workstations.
_NO_TENSOR_CORES = re.compile(r"GTX 16|MX[45]50|\bT(400|500|550|600|1000|1200|2000)\b")


def has_tensor_cores(name: str, capability: tuple[int, int] | None) -> bool:
    """Whether a CUDA card has them. `capability` None: not known."""
    if capability is None or capability > (7, 5):
        return True
    return capability >= (7, 0) and not _NO_TENSOR_CORES.search(name)


@dataclass(frozen=True)
class CardMatch:
    """The card that a typed name means, and the names of others that it could mean."""

    card: Card
    alternatives: tuple[str, ...] = ()


_COUNT_AND_NAME_PATTERNS = (r"(?P<count>\d+) ?[x×*] ?(?P<name>.+)", r"(?P<name>.+?) ?[x×*] ?(?P<count>\d+)")


def resolve_card_name(text: str) -> CardMatch:
    """The card that a user means by `4070`, `rtx4070ti`, `h100`, `A100 80GB` or `m3-max`.

    Vendor, case, spaces and dashes do not matter, nor does a missing RTX or GTX. Memory size, SXM or PCIe,
    the number of GPU cores and "laptop" may be left out. An exact name means that card; if several remain,
    `_preference` decides and the caller can say what else it could have been.
    """
    matches = _cards_by_spelling().get(_normalize_typed_name(text), {})
    if matches:
        first, *others = sorted(matches, key=lambda card: (matches[card], *_preference(card)))
        return CardMatch(first, tuple(card.name for card in others))
    for pattern in _COUNT_AND_NAME_PATTERNS:
        match = re.fullmatch(pattern, text.strip(), re.IGNORECASE)
        if match and _normalize_typed_name(match["name"]) in _cards_by_spelling():
            fix = f"--gpu={match['name']} --gpus={match['count']} plans for them"
            raise UserError(f"--gpu={text} names several cards; {fix}")
    if not _normalize_typed_name(text) or re.match("(cuda|mps|rocm|hip)\\b", text.strip().lower()):
        raise UserError(f"--gpu={text} names no card: --gpu=rtx4070 does, and --gpu=auto is this machine's")
    nearest = ", ".join(nearest_cards(text))
    raise UserError(f"--gpu={text} is not in the table of cards; did you mean {nearest}?")


def _preference(card: Card) -> tuple[int, bool, float, int]:
    """Sort key of cards that share a short name, the preferred first: desktop before laptop and Max-Q; SXM,
    the usual one to rent, before PCIe; then less memory and fewer cores, as a minimum that all of them have.
    """
    mobile = 2 if "Max-Q" in card.name else int("Laptop" in card.name)
    return mobile, "SXM" not in card.name, card.memory_gb or 0, card.cuda_cores or 0


# Words that distinguish no two cards; then details that may be left out of a name.
_UNINFORMATIVE_WORDS = (
    "nvidia|geforce|tesla|amd|apple|instinct|blackwell|generation|workstation|edition|with|design|gpu"
)
_SERIES_PREFIX = re.compile("^[rg]tx ?")
_OPTIONAL_DETAIL = re.compile(r"\b(?:sxm\d|pcie|nvl|oam|hbm3|laptop|max-q|\d+gb|\d+-core)\b")


def _normalize_typed_name(name: str) -> str:
    """`NVIDIA GeForce RTX 2070 with Max-Q Design` and `rtx2070-maxq` are both `rtx2070maxq`."""
    name = re.sub("mobile|notebook", "laptop", name.lower()).replace("cores", "core")
    return re.sub(rf"{_UNINFORMATIVE_WORDS}|[\W_]", "", name)


@cache
def _cards_by_spelling() -> Mapping[str, Mapping[Card, int]]:
    """Cards by every accepted spelling, with its rank: 0 our name, 1 a driver's name, 2 without details."""
    by_spelling: dict[str, dict[Card, int]] = {}
    for card in cards():
        names = (card.name, *card.device_names)
        short = [spelling for name in names for spelling in _short_spellings(name, card.memory_gb)]
        for rank, spellings in enumerate(
            ([_normalize_typed_name(card.name)], map(_normalize_typed_name, card.device_names), short)
        ):
            for spelling in spellings:
                for written in (spelling, _SERIES_PREFIX.sub("", spelling)):
                    by_spelling.setdefault(written, {}).setdefault(card, rank)
    return by_spelling


def _short_spellings(name: str, memory_gb: float | None) -> Iterator[str]:
    """The name with any of its details, in any order; its memory size counts as a detail."""
    details = list(dict.fromkeys(_OPTIONAL_DETAIL.findall(name.lower())))
    memory = f"{memory_gb:g}gb" if memory_gb else None
    if memory and memory not in details:
        details.append(memory)
    stem = _normalize_typed_name(_OPTIONAL_DETAIL.sub("", name.lower()))
    for count in range(len(details) + 1):
        for selected in itertools.permutations(map(_normalize_typed_name, details), count):
            yield stem + "".join(selected)
            yield stem + "".join("sxm" if detail.startswith("sxm") else detail for detail in selected)


def _strip_memory_size(name: str) -> str:
    """The rest of the name is a better guide than a memory size that the card is not sold with."""
    return re.sub(r"(?<=.)\s*\b\d+ ?gb\b", "", name)


def nearest_cards(name: str, n: int = 3) -> list[str]:
    """The most similar names in the table, best first: for "did you mean"."""
    typed = _strip_memory_size(_normalize_device_name(name))

    def similarity(card: Card) -> tuple[bool, float]:
        names = card.normalized_names | {_strip_memory_size(known) for known in card.normalized_names}
        if typed[:1].isdigit():  # a number alone, without the series
            names |= {_SERIES_PREFIX.sub("", known) for known in names}
        ratios = (difflib.SequenceMatcher(None, typed, known).ratio() for known in names)
        return any(typed in known for known in names), max(ratios)

    return [card.name for card in sorted(cards(), key=similarity, reverse=True)[:n]]
