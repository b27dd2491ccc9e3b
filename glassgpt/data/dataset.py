"""A prepared dataset: two files of token ids, and a manifest that says exactly what they are.

    data/pylib/manifest.json    what was read, how it was tokenized, the SHA-256 of every file
    data/pylib/train.bin        token ids, little-endian uint16 (uint32 for a vocabulary over 65536)
    data/pylib/val.bin

A file whose size does not match its manifest is refused. `verify` reads every byte, which training does
for datasets small enough. A folder of nanoGPT's has no manifest, and is given one in memory.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glassgpt.data.fingerprint import has_fingerprint
from glassgpt.data.manifest import DTYPES, MANIFEST, SPLITS, Manifest, stored_manifest
from glassgpt.data.nanogpt import adopt
from glassgpt.errors import UserError

__all__ = [
    "BUILT_IN",
    "Dataset",
    "Manifest",
    "open_dataset",
    "read_manifest",
    "user_path",
    "verify",
]

# What `glass prepare` can make by name, and the tokenizer that goes with it.
BUILT_IN = {"pylib": "char", "shakespeare": "gpt2", "shakespeare_char": "char"}


@dataclass(frozen=True)
class Dataset:
    """A dataset folder whose file sizes agree with its manifest."""

    directory: Path
    manifest: Manifest

    def tokens(self, split: str) -> np.memmap[Any, np.dtype[Any]]:
        """The ids of a split, mapped read-only: nothing is read until it is used."""
        return np.memmap(self.directory / f"{split}.bin", dtype=DTYPES[self.manifest.dtype], mode="r")

    def bytes_per_token(self, split: str) -> float:
        return self.manifest.bytes_per_token(split)

    @property
    def was_prepared(self) -> bool:
        """Whether its manifest is a file of its own, and not made from nanoGPT's files on opening them."""
        return (self.directory / MANIFEST).is_file()

    @property
    def hash(self) -> str:
        """One SHA-256 for the data itself: equal for equal tokens that mean the same text.

        The source, the notes and the date are left out, because they do not change what is learned.
        """
        m = self.manifest
        content = [m.tokenizer, m.vocab_size, m.dtype, m.characters, sorted(m.sha256.items())]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def user_path(text: str) -> Path:
    """With ~ spelled out. os.path's expanduser leaves an unknown ~user alone, pathlib's raises."""
    return Path(os.path.expanduser(text))


def open_dataset(directory: Path) -> Dataset:
    """Open a prepared dataset after a quick check of the file sizes (`verify` reads every byte)."""
    manifest = read_manifest(directory)
    problems = []
    for split in SPLITS:
        path = directory / f"{split}.bin"
        expected = manifest.tokens[split] * DTYPES[manifest.dtype].itemsize
        actual = path.stat().st_size if path.is_file() else None
        if actual is None:
            problems.append(f"{path} is missing: prepare the dataset again with --overwrite")
        elif actual != expected:
            problems.append(
                f"{path} has {actual:,} bytes where its manifest says {expected:,}: "
                "prepare the dataset again with --overwrite"
            )
    if problems:
        raise UserError(problems)
    return Dataset(directory, manifest)


def verify(dataset: Dataset) -> None:
    """Compare the SHA-256 of every file with the manifest; UserError names each one that differs.

    Of nanoGPT's large files the manifest has only that of a sample, and the sample is what is compared.
    """
    problems = []
    for name, expected in dataset.manifest.sha256.items():
        path = dataset.directory / name
        if not path.is_file():
            problems.append(f"{path} is missing: prepare the dataset again with --overwrite")
        elif not has_fingerprint(path, expected):
            problems.append(
                f"{path} is not what was prepared (its SHA-256 differs): "
                "prepare the dataset again with --overwrite"
            )
    if problems:
        raise UserError(problems)


def read_manifest(directory: Path) -> Manifest:
    """What a folder holds. One with only the manifest and the tokenizer will do; so will nanoGPT's."""
    manifest = stored_manifest(directory)
    if manifest is not None:
        return manifest
    if (directory / "train.bin").exists():
        return adopt(directory)
    raise UserError(_nothing_here(directory))


def _nothing_here(directory: Path) -> str:
    name = directory.resolve().name
    if name in BUILT_IN:
        return f"no dataset at {directory}: run  glass prepare {name}"
    return (
        f"no dataset at {directory}: run  glass prepare FILE_OR_FOLDER --out_dir={directory}  "
        "or put nanoGPT's train.bin and val.bin there"
    )
