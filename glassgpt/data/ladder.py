"""The ladder of a dataset: losses that say what a model's loss means.

    ladder = load_ladder(open_dataset(Path("data/shakespeare_char")))
    ladder.best.loss, ladder.highest_passed(1.47).order      # 1.558 (order 6), and that it was passed

Rung 0 knows nothing (every token is equally likely), rung 1 the token frequencies, rung n the n-grams of the
training text (ngram_baselines.py). They are measured on the validation split, once: ladder.json beside the
manifest holds them, bound to the dataset's hash. It is derived, and may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glassgpt.data.dataset import Dataset
from glassgpt.data.manifest import LADDER_FILE
from glassgpt.data.ngram_baselines import ngram_losses, uniform_loss
from glassgpt.files import atomic_write, read_small_file

_VERSION = 1
_CHEAP_TOKENS = 10_000_000  # of a training split: counted in about a second
# Of nanoGPT's shakespeare_char with its own split, for logs of other trainers:
# `python -m bench.ladder tinyshakespeare.txt` measures it.
_SHAKESPEARE_CHAR_LOSSES = (4.17439, 3.34733, 2.48438, 2.04489, 1.72904, 1.57895, 1.55808)


@dataclass(frozen=True)
class Rung:
    order: int  # 0: knows nothing; 1: token frequencies; 2: pairs; …
    loss: float  # nats per validation token
    bits_per_byte: float | None  # None: the length of the text is unknown


@dataclass(frozen=True)
class Ladder:
    rungs: tuple[Rung, ...]  # by order

    @property
    def best(self) -> Rung:
        """The lowest loss that a table of n-grams of this text reaches."""
        return min(self.rungs, key=lambda rung: rung.loss)

    def highest_passed(self, loss: float) -> Rung | None:
        """The lowest rung with a higher loss than this; None: the model knows less than nothing."""
        return min(
            (rung for rung in self.rungs if rung.loss > loss), key=lambda rung: rung.loss, default=None
        )


def load_ladder(dataset: Dataset, on_order: Callable[[int], None] = lambda order: None) -> Ladder:
    """From ladder.json, or measured and written there. `on_order`: called as orders are measured."""
    path = dataset.directory / LADDER_FILE
    stored = read_ladder(path, dataset.hash)
    if stored is not None:
        return stored
    vocab_size = dataset.manifest.vocab_size
    losses = {0: uniform_loss(vocab_size)}
    losses |= ngram_losses(dataset.tokens("train"), dataset.tokens("val"), vocab_size, on_order)
    bytes_per_token = dataset.bytes_per_token("val")
    rungs = tuple(
        Rung(order, loss, loss / math.log(2) / bytes_per_token if bytes_per_token else None)
        for order, loss in losses.items()
    )
    content = {"version": _VERSION, "data_hash": dataset.hash, "rungs": [asdict(rung) for rung in rungs]}
    if dataset.has_manifest_file:  # else it is a folder of nanoGPT's, which stays as it is
        with contextlib.suppress(OSError):  # it may only be read: measured again next time
            atomic_write(path, json.dumps(content, indent=1).encode() + b"\n")
    return Ladder(rungs)


def known_ladder(dataset: str) -> Ladder | None:
    """Of a public dataset, by the name that nanoGPT gives it."""
    if dataset != "shakespeare_char":
        return None
    # A character of it is a byte.
    return Ladder(
        tuple(Rung(order, loss, loss / math.log(2)) for order, loss in enumerate(_SHAKESPEARE_CHAR_LOSSES))
    )


def ladder_if_cheap(dataset: Dataset) -> Ladder | None:
    """None where it was not measured yet, and doing so would delay a run: of a large dataset."""
    is_cheap = dataset.manifest.tokens["train"] <= _CHEAP_TOKENS
    return load_ladder(dataset) if is_cheap else read_ladder(dataset.directory / LADDER_FILE, dataset.hash)


def ladder_from_rows(rows: object) -> Ladder | None:
    """As a journal has it; None if that is no ladder."""
    try:
        return Ladder(tuple(map(_read_rung, rows))) if isinstance(rows, list) and rows else None
    except (ValueError, TypeError, LookupError):
        return None


def read_ladder(path: Path, data_hash: str) -> Ladder | None:
    """None where there is none, or one of other data."""
    try:
        content = json.loads(read_small_file(path))
        if content["version"] != _VERSION or content["data_hash"] != data_hash:
            return None
        return ladder_from_rows(content["rungs"])
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None


def _read_rung(values: dict[str, Any]) -> Rung:
    order, loss, bits = values["order"], values["loss"], values["bits_per_byte"]
    numbers = [loss] if bits is None else [loss, bits]
    if not isinstance(order, int) or not all(isinstance(one, float) and 0 <= one < 1e6 for one in numbers):
        raise ValueError("not a rung")
    return Rung(order, loss, bits)
