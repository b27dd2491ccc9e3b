"""A prepared dataset: two files of token ids, and a manifest that says exactly what they are.

    data/pylib/manifest.json    what was read, how it was tokenized, the SHA-256 of every file
    data/pylib/train.bin        token ids, little-endian uint16 (uint32 for a vocabulary over 65536)
    data/pylib/val.bin

Documents in bulk make several of each, train-00000.bin and on, which are read as one.
A file whose size does not match its manifest is refused. `verify` reads every byte, which training does
for datasets small enough. A folder of nanoGPT's has no manifest, and is given one in memory.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from glassgpt.config import is_dataset_folder
from glassgpt.data.digests import matches_fingerprint
from glassgpt.data.manifest import DTYPES, MANIFEST_FILE, SPLITS, Manifest, read_stored_manifest
from glassgpt.data.nanogpt_bin import build_nanogpt_manifest
from glassgpt.data.shards import MappedFiles, ShardedTokens
from glassgpt.errors import UserError, first_message_line

__all__ = [
    "BUILT_IN",
    "Dataset",
    "Manifest",
    "open_dataset",
    "read_manifest",
    "verify",
]

# What `glass prepare` can make by name, and the tokenizer that goes with it.
BUILT_IN = {
    "pylib": "char",
    "shakespeare": "gpt2",
    "shakespeare_char": "char",
    "fineweb_edu": "gpt2",
    "openwebtext": "gpt2",
    "tinystories": "gpt2",
}

_PREPARE_AGAIN_HINT = "prepare the dataset again with --overwrite"


@dataclass(frozen=True)
class Dataset:
    """A dataset folder whose file sizes agree with its manifest."""

    directory: Path
    manifest: Manifest

    def tokens(self, split: str) -> NDArray[Any]:
        """The ids of a split, mapped read-only: nothing is read until it is used.

        Several files are `Shards`, which read like an array as far as training needs it.
        """
        dtype, names = DTYPES[self.manifest.dtype], self.manifest.split_files(split)
        paths = [self.directory / name for name in names]
        try:
            tokens: Any = np.memmap(paths[0], dtype=dtype, mode="r") if len(paths) == 1 else None
            tokens = ShardedTokens(MappedFiles(paths, dtype)) if tokens is None else tokens
        except (OSError, ValueError) as error:  # numpy maps no empty file
            raise UserError(f"{paths[0]} cannot be read: {first_message_line(error)}") from error
        if len(tokens) != self.manifest.tokens[split]:  # reading beyond its end would end the process
            raise UserError(f"{paths[0]} was changed since it was opened: {_PREPARE_AGAIN_HINT}")
        return cast("NDArray[Any]", tokens)

    def bytes_per_token(self, split: str) -> float:
        return self.manifest.bytes_per_token(split)

    @property
    def has_manifest_file(self) -> bool:
        """Whether its manifest is a file of its own, and not made from nanoGPT's files on opening them."""
        return (self.directory / MANIFEST_FILE).is_file()

    @property
    def hash(self) -> str:
        """One SHA-256 for the data itself: equal for equal tokens that mean the same text.

        The source, the notes and the date are left out, because they do not change what is learned.
        """
        m = self.manifest
        content = [m.tokenizer, m.vocab_size, m.dtype, m.characters, sorted(m.sha256.items())]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def open_dataset(directory: Path) -> Dataset:
    """Open a prepared dataset after a quick check of the file sizes (`verify` reads every byte)."""
    manifest = read_manifest(directory)
    problems = [problem for split in SPLITS for problem in _size_problems(directory, manifest, split)]
    if problems:
        raise UserError(problems)
    return Dataset(directory, manifest)


def _size_problems(directory: Path, manifest: Manifest, split: str) -> list[str]:
    paths = [directory / name for name in manifest.split_files(split)]
    if missing := [path for path in paths if not path.is_file()]:
        return [f"{path} is missing: {_PREPARE_AGAIN_HINT}" for path in missing]
    sizes = [path.stat().st_size for path in paths]
    actual, expected = sum(sizes), manifest.tokens[split] * DTYPES[manifest.dtype].itemsize
    if actual == expected and _evenly_cut(sizes):
        return []
    if len(paths) == 1:
        whose = f"{paths[0]} has"
    else:  # which of several it is, only their hashes tell
        wrong = [str(path) for path in paths if not matches_fingerprint(path, manifest.sha256[path.name])]
        whose = f"with {', '.join(wrong)} the shards have"
    if actual == expected:
        return [f"{whose} other lengths than they were written with: {_PREPARE_AGAIN_HINT}"]
    return [f"{whose} {actual:,} bytes where its manifest says {expected:,}: {_PREPARE_AGAIN_HINT}"]


def _evenly_cut(sizes: Sequence[int]) -> bool:
    """All shards but the last are equally long, and that is not longer."""
    return len(set(sizes[:-1])) <= 1 and 0 < sizes[-1] <= sizes[0]


def verify(dataset: Dataset) -> None:
    """Compare the SHA-256 of every file with the manifest; UserError names each one that differs.

    Of nanoGPT's large files the manifest has only that of a sample, and the sample is what is compared.
    """
    problems = []
    for name, expected in dataset.manifest.sha256.items():
        path = dataset.directory / name
        if not path.is_file():
            problems.append(f"{path} is missing: {_PREPARE_AGAIN_HINT}")
        elif not matches_fingerprint(path, expected):
            problems.append(f"{path} is not what was prepared (its SHA-256 differs): {_PREPARE_AGAIN_HINT}")
    if problems:
        raise UserError(problems)


def read_manifest(directory: Path) -> Manifest:
    """What a folder holds. One with only the manifest and the tokenizer will do; so will nanoGPT's."""
    manifest = None if directory.is_file() else read_stored_manifest(directory)
    if manifest is not None:
        return manifest
    if (directory / "train.bin").exists():
        return build_nanogpt_manifest(directory)
    raise UserError(_nothing_here(directory))


def _nothing_here(directory: Path) -> str:
    name = directory.resolve().name
    if name in BUILT_IN:
        place = "" if directory == Path("data", name) else f" --out_dir={directory}"
        return f"no dataset at {directory}: run  glass prepare {name}{place}"
    # Who writes --dataset=my.txt means the file here, not one in data/.
    typed = directory.relative_to("data") if directory.is_relative_to("data") else directory
    if typed.is_file():
        return f"{typed} is not a prepared dataset: run  glass prepare {typed}  and train on what that makes"
    beside = directory.parent.iterdir() if directory.parent.is_dir() else ()
    near = difflib.get_close_matches(name, [path.name for path in beside if is_dataset_folder(path)], n=1)
    if near:
        return f"no dataset at {directory}; did you mean {directory.with_name(near[0])}?"
    return (
        f"no dataset at {directory}: run  glass prepare FILE_OR_FOLDER --out_dir={directory}  "
        "or put nanoGPT's train.bin and val.bin there, or say where it is by --data_dir=FOLDER"
    )
