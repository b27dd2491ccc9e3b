"""The table of cards (`cards.toml`, beside this file), and which of them is meant.

card = find_card("NVIDIA GeForce RTX 4070 Ti", memory_bytes)     # None if we do not know it
named_card("4070ti").card.watts                                  # 285: what somebody typed
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

DTYPES = ("float32", "tf32", "bfloat16", "float16", "float8")


@dataclass(frozen=True, kw_only=True)
class Card:
    """One row of `cards.toml`."""

    name: str
    device_names: tuple[str, ...]  # other names drivers report for it
    family: str
    vendor: str
    capability: tuple[int, int] | None  # CUDA compute capability; None for other vendors
    memory_gb: float | None = None  # as sold; None where memory is shared with the CPU
    bandwidth_gb_s: float
    smallest_gb: float | None = None  # of memory shared with the CPU: the least that is sold with the chip
    link: str | None = None  # to the other cards of a machine; None: cards like it do not train together
    pci_ids: tuple[str, ...] = ()  # as the kernel lists it, where the driver tells no name
    watts: int | None = None  # board power as the vendor specifies it; None where it is not stated
    cuda_cores: int | None = None
    boost_mhz: int | None = None
    tensor_mhz: int | None = None  # clock of the tensor rates, where it is not boost_mhz
    peaks: Mapping[str, float] = field(hash=False)  # dtype -> FLOP/s; no entry: unknown or impossible
    source: str

    @cached_property
    def normalized_names(self) -> frozenset[str]:
        """Every name that means this card, in comparable form."""
        return frozenset(_normalize_device_name(name) for name in (self.name, *self.device_names))


@cache
def cards() -> tuple[Card, ...]:
    """The whole table, in file order."""
    text = (resources.files("glassgpt.estimate") / "cards.toml").read_text(encoding="utf-8")
    return tuple(_card(family, row) for family in tomllib.loads(text)["family"] for row in family["cards"])


def _card(family: Mapping[str, Any], row: Mapping[str, Any]) -> Card:
    major, dot, minor = family.get("capability", "").partition(".")
    fields = {"source": family["source"], "link": family.get("link")} | {
        key: row[key] for key in row if key not in DTYPES
    }
    for name in ("device_names", "pci_ids"):
        fields[name] = tuple(row.get(name, ()))
    fields["capability"] = (int(major), int(minor)) if dot else None
    fields["peaks"] = {dtype: row[dtype] * 1e12 for dtype in DTYPES if dtype in row}
    return Card(family=family["name"], vendor=family["vendor"], **fields)


def _normalize_device_name(name: str) -> str:
    """`NVIDIA GeForce RTX 4090` and `GeForce RTX 4090` (older drivers) and `rtx 4090` are one name."""
    words = name.lower().split()
    return " ".join(word for word in words if word not in {"nvidia", "geforce", "tesla", "amd", "apple"})


@cache
def find_card(device_name: str, memory_bytes: int | None = None) -> Card | None:
    """The card of that name, or None. The whole name has to match, so `RTX 4070` is never a `RTX 4070 Ti`,
    a laptop chip or a slice of a card; where two cards report one name, the memory decides, and where that
    is not known, it is the card that we call so."""
    wanted = _normalize_device_name(device_name)
    matches = [card for card in cards() if wanted in card.normalized_names]
    if memory_bytes is None:
        matches = [card for card in matches if _normalize_device_name(card.name) == wanted] or matches
    if len(matches) == 1:
        return matches[0]
    # Drivers keep a few percent of the memory for themselves and for error correction.
    found_gb = (memory_bytes or 0) / 2**30
    fits = [card for card in matches if 0.88 < found_gb / (card.memory_gb or math.inf) < 1.05]
    return fits[0] if len(fits) == 1 else None


# Turing without them: GTX 16, and small ones of laptops and workstations.
_NO_TENSOR_CORES = re.compile(r"GTX 16|MX[45]50|\bT(400|500|550|600|1000|1200|2000)\b")


def has_tensor_cores(name: str, capability: tuple[int, int] | None) -> bool:
    """Of a CUDA card; `capability` None: nobody knows it."""
    if capability is None or capability > (7, 5):
        return True
    return capability >= (7, 0) and not _NO_TENSOR_CORES.search(name)


@dataclass(frozen=True)
class CardMatch:
    """The card that a typed name means, and the names of the others that it may mean."""

    card: Card
    alternatives: tuple[str, ...] = ()


def resolve_card_name(text: str) -> CardMatch:
    """The card somebody means by `4070`, `rtx4070ti`, `h100`, `A100 80GB` or `m3-max`.

    Maker, capitals, spaces and dashes do not matter, nor does a missing RTX or GTX. Memory size, SXM or PCIe,
    the number of GPU cores and that it is a laptop's may be left out. A name that is whole means that card;
    where several remain, `_preference` decides and the caller can say what else it may have been."""
    meant = _cards_by_spelling().get(_normalize_typed_name(text), {})
    if not meant:
        raise UserError(_unknown(text))
    first, *others = sorted(meant, key=lambda card: (meant[card], *_preference(card)))
    return CardMatch(first, tuple(card.name for card in others))


_COUNT_AND_NAME_PATTERNS = (r"(?P<count>\d+) ?[x×*] ?(?P<name>.+)", r"(?P<name>.+?) ?[x×*] ?(?P<count>\d+)")


def _unknown(text: str) -> str:
    """Why no card is meant, and what may be."""
    for pattern in _COUNT_AND_NAME_PATTERNS:
        several = re.fullmatch(pattern, text.strip(), re.IGNORECASE)
        if several and _normalize_typed_name(several["name"]) in _cards_by_spelling():
            name, count = several["name"], several["count"]
            return f"--gpu={text} names several cards; --gpu={name} --gpus={count} plans for them"
    if not _normalize_typed_name(text) or re.match("(cuda|mps|rocm|hip)\\b", text.strip().lower()):
        return f"--gpu={text} names no card: --gpu=rtx4070 does, and --gpu=auto is this machine's"
    return f"--gpu={text} is not in the table of cards; did you mean {', '.join(nearest_cards(text))}?"


def _preference(card: Card) -> tuple[int, bool, float, int]:
    """Least first, of cards that share a short name: a desktop card before a laptop's and before Max-Q; SXM,
    the one that is rented, before PCIe; then less memory and fewer cores: what that one does, all do."""
    mobile = 2 if "Max-Q" in card.name else int("Laptop" in card.name)
    return mobile, "SXM" not in card.name, card.memory_gb or 0, card.cuda_cores or 0


# Words that tell no two cards apart, then what may be left out of a name.
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
    """Every way to write a card: 0 as we call it, 1 as drivers do, 2 with details left out."""
    found: dict[str, dict[Card, int]] = {}
    for card in cards():
        names = (card.name, *card.device_names)
        short = [spelling for name in names for spelling in _shortened(name, card.memory_gb)]
        for way, spellings in enumerate(
            ([_normalize_typed_name(card.name)], map(_normalize_typed_name, card.device_names), short)
        ):
            for spelling in spellings:
                for written in (spelling, _SERIES_PREFIX.sub("", spelling)):
                    found.setdefault(written, {}).setdefault(card, way)
    return found


def _shortened(name: str, memory_gb: float | None) -> Iterator[str]:
    """The name with any of its details, in any order; the memory may be said though the name does not."""
    details = list(dict.fromkeys(_OPTIONAL_DETAIL.findall(name.lower())))
    memory = f"{memory_gb:g}gb" if memory_gb else None
    if memory and memory not in details:
        details.append(memory)
    stem = _normalize_typed_name(_OPTIONAL_DETAIL.sub("", name.lower()))
    for count in range(len(details) + 1):
        for some in itertools.permutations(map(_normalize_typed_name, details), count):
            yield stem + "".join(some)
            yield stem + "".join("sxm" if detail.startswith("sxm") else detail for detail in some)


def _strip_memory_size(name: str) -> str:
    """A size that the card is not sold with says less than its name."""
    return re.sub(r"(?<=.)\s*\b\d+ ?gb\b", "", name)


def nearest_cards(name: str, n: int = 3) -> list[str]:
    """The names in the table most like `name`, best first: for "did you mean"."""
    wanted = _strip_memory_size(_normalize_device_name(name))

    def likeness(card: Card) -> tuple[bool, float]:
        names = card.normalized_names | {_strip_memory_size(known) for known in card.normalized_names}
        if wanted[:1].isdigit():  # a number alone: the series is left out
            names |= {_SERIES_PREFIX.sub("", known) for known in names}
        ratios = (difflib.SequenceMatcher(None, wanted, known).ratio() for known in names)
        return any(wanted in known for known in names), max(ratios)

    return [card.name for card in sorted(cards(), key=likeness, reverse=True)[:n]]
