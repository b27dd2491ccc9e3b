"""The text a run will read: as prepared, or as known of the datasets that everybody uses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from glassgpt import config as settings
from glassgpt.config import TrainConfig
from glassgpt.data.manifest import DTYPES, read_stored_manifest
from glassgpt.data.prepare_options import PrepareOptions, corpus_val_fraction
from glassgpt.errors import UserError


@dataclass(frozen=True)
class DatasetInfo:
    """What of a dataset decides a plan."""

    name: str
    train_tokens: int
    val_tokens: int
    vocab_size: int
    tokenizer: str
    bytes_per_token: float
    source: str
    dtype: str = "uint16"  # of an id, see data/manifest.py

    @property
    def train_bytes(self) -> int:
        """As its tokens lie in memory."""
        return self.train_tokens * DTYPES[self.dtype].itemsize


# As `glass prepare` makes them; openwebtext as nanoGPT counts it.
_KNOWN_DATASETS = {
    "shakespeare_char": (1_003_854, 111_540, 65, "char", 1.0),
    "shakespeare": (301_966, 36_059, 50257, "gpt2", 3.3),
    "pylib": (9_400_000, 150_000, 96, "char", 1.0),
    "openwebtext": (9_035_582_198, 4_434_897, 50257, "gpt2", 4.3),
}
# Documents in bulk, about: all tokens of GPT-2's that there are to split, and bytes of text in each.
_BULK_DATASETS = {"fineweb_edu": (9_900_000_000, 4.6), "tinystories": (475_000_000, 4.0)}


def find_dataset_info(config: TrainConfig) -> DatasetInfo:
    """Of the prepared folder if it is there; else as known; else GPT-2's tokens, as many as it takes."""
    folder = settings.data_dir(config)
    manifest = read_stored_manifest(folder) if folder.is_dir() else None
    if manifest is not None:
        tokens, per_token = manifest.tokens, manifest.bytes_per_token("train")
        if math.isnan(per_token):
            per_token = _usual_bytes(manifest.tokenizer)
        about = (manifest.vocab_size, manifest.tokenizer, per_token, f"prepared in {folder}")
        return DatasetInfo(manifest.name, tokens["train"], tokens["val"], *about, dtype=manifest.dtype)
    if _is_nanogpts(folder):
        return _nanogpts(folder)
    name = config.dataset
    if (name in _KNOWN_DATASETS or name in _BULK_DATASETS) and not config.data_dir:
        return known_dataset_info(name)
    return DatasetInfo(
        name, 10**10, 10**8, 50257, "gpt2", 4.5, "not prepared here: taken for GPT-2's tokens, plenty"
    )


def known_dataset_info(name: str) -> DatasetInfo:
    if name in _BULK_DATASETS:
        return _bulk_text(name)
    return DatasetInfo(name, *_KNOWN_DATASETS[name], source="not prepared here: as usually prepared")


def _bulk_text(name: str) -> DatasetInfo:
    """Split by the share that `glass prepare` holds out of so much text."""
    tokens, per_token = _BULK_DATASETS[name]
    val = round(tokens * corpus_val_fraction(PrepareOptions(name), round(tokens * per_token)))
    source = "not prepared here: about as `glass prepare` makes it"
    return DatasetInfo(name, tokens - val, val, 50257, "gpt2", per_token, source)


def _usual_bytes(tokenizer: str) -> float:
    return 1.0 if tokenizer in ("char", "byte") else 4.5


def _is_nanogpts(folder: Path) -> bool:
    return (folder / "train.bin").is_file() and (folder / "val.bin").is_file()


def _nanogpts(folder: Path) -> DatasetInfo:
    """nanoGPT's folders: two bytes a token, and the vocabulary in a pickle, which is not opened here."""
    train, val = ((folder / f"{split}.bin").stat().st_size // 2 for split in ("train", "val"))
    if not train or not val:
        raise UserError(f"{folder} has an empty split: prepare it again")
    of_characters = (folder / "meta.pkl").is_file()
    kind, vocabulary, per_token = ("char", 65, 1.0) if of_characters else ("gpt2", 50257, 4.3)
    return DatasetInfo(folder.name, train, val, vocabulary, kind, per_token, f"nanoGPT's folder {folder}")
