"""A prepared dataset: files of token ids, and a manifest that describes them.

    dataset = open_dataset(Path("data/pylib")); dataset.tokens("train")[:10]

    data/pylib/manifest.json    source, tokenizer, the SHA-256 of every file
    data/pylib/train.bin        token ids, little-endian uint16 (uint32 for a vocabulary over 65536)
    data/pylib/val.bin

A corpus has several shards of each, train-00000.bin and on, which are read as one array. A file whose size
does not match the manifest is refused; `verify` compares every byte. A folder of nanoGPT's has no manifest;
it gets one in memory.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from glassgpt.config import is_dataset_folder
from glassgpt.data.digests import json_sha256, matches_fingerprint
from glassgpt.data.manifest import MANIFEST_FILE, SPLITS, TOKEN_DTYPES, Manifest, read_stored_manifest
from glassgpt.data.nanogpt_bin import build_nanogpt_manifest
from glassgpt.data.shards import MappedFiles, ShardedTokens
from glassgpt.errors import UserError, first_message_line, raise_if_any

__all__ = ["BUILT_IN", "Dataset", "Manifest", "open_dataset", "read_manifest", "verify"]

# Datasets that `glass prepare` knows by name, and the default tokenizer of each.
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
    """A dataset folder with its manifest."""

    directory: Path
    manifest: Manifest

    def tokens(self, split: str) -> NDArray[Any]:
        """The ids of a split as a read-only memory map: nothing is read until it is used.

        Several files are `ShardedTokens`, which can be indexed like an array as far as training needs it.
        """
        dtype, names = TOKEN_DTYPES[self.manifest.dtype], self.manifest.split_files(split)
        paths = [self.directory / name for name in names]
        try:
            tokens: Any
            if len(paths) == 1:
                tokens = np.memmap(paths[0], dtype=dtype, mode="r")
            else:
                tokens = ShardedTokens(MappedFiles(paths, dtype))
        except (OSError, ValueError) as error:  # numpy cannot map an empty file
            raise UserError(f"{paths[0]} cannot be read: {first_message_line(error)}") from error
        if len(tokens) != self.manifest.tokens[split]:  # reading beyond its end would kill the process
            raise UserError(f"{paths[0]} was changed since it was opened: {_PREPARE_AGAIN_HINT}")
        return cast("NDArray[Any]", tokens)

    def bytes_per_token(self, split: str) -> float | None:
        return self.manifest.bytes_per_token(split)

    @property
    def has_manifest_file(self) -> bool:
        """Whether it has a manifest.json, which nanoGPT's folders do not."""
        return (self.directory / MANIFEST_FILE).is_file()

    @property
    def hash(self) -> str:
        """One SHA-256 for the data: equal for equal tokens that stand for the same text.

        The source, the notes and the date are left out, because they do not change the training.
        """
        m = self.manifest
        content = [m.tokenizer, m.vocab_size, m.dtype, m.characters, sorted(m.sha256.items())]
        return json_sha256(content)


def open_dataset(directory: Path) -> Dataset:
    """Opens a prepared dataset after a quick check of the file sizes (`verify` reads every byte)."""
    manifest = read_manifest(directory)
    problems = []
    for split in SPLITS:
        paths = [directory / name for name in manifest.split_files(split)]
        if missing := [path for path in paths if not path.is_file()]:
            problems += [f"{path} is missing: {_PREPARE_AGAIN_HINT}" for path in missing]
            continue
        sizes = [path.stat().st_size for path in paths]
        actual, expected = sum(sizes), manifest.tokens[split] * TOKEN_DTYPES[manifest.dtype].itemsize
        # All shards but the last have the same size, and the last is not larger.
        has_shard_sizes = len(set(sizes[:-1])) <= 1 and 0 < sizes[-1] <= sizes[0]
        if actual == expected and has_shard_sizes:
            continue
        if len(paths) == 1:
            subject = f"{paths[0]} has"
        else:  # only the hashes show which shards are wrong
            wrong = [str(path) for path in paths if not matches_fingerprint(path, manifest.sha256[path.name])]
            subject = f"with {', '.join(wrong)} the shards have"
        if actual == expected:
            problems.append(f"{subject} other lengths than they were written with: {_PREPARE_AGAIN_HINT}")
        else:
            difference = f"{actual:,} bytes where its manifest says {expected:,}"
            problems.append(f"{subject} {difference}: {_PREPARE_AGAIN_HINT}")
    raise_if_any(problems)
    return Dataset(directory, manifest)


def verify(dataset: Dataset) -> None:
    """Compares the SHA-256 of every file with the manifest; UserError names each one that differs.

    For nanoGPT's large files the manifest has the SHA-256 of a sample, so only the sample is compared.
    """
    problems = []
    for name, expected in dataset.manifest.sha256.items():
        path = dataset.directory / name
        if not path.is_file():
            problems.append(f"{path} is missing: {_PREPARE_AGAIN_HINT}")
        elif not matches_fingerprint(path, expected):
            problems.append(f"{path} is not what was prepared (its SHA-256 differs): {_PREPARE_AGAIN_HINT}")
    raise_if_any(problems)


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a dataset, of a run (which has only the tokenizer), or of nanoGPT's files."""
    manifest = None if directory.is_file() else read_stored_manifest(directory)
    if manifest is not None:
        return manifest
    if (directory / "train.bin").exists():
        return build_nanogpt_manifest(directory)
    raise UserError(_no_dataset_message(directory))


def _no_dataset_message(directory: Path) -> str:
    name = directory.resolve().name
    if name in BUILT_IN:
        out_dir = "" if directory == Path("data", name) else f" --out_dir={directory}"
        return f"no dataset at {directory}: run  glass prepare {name}{out_dir}"
    # --dataset=my.txt means the file in the current folder, not one in data/.
    typed = directory.relative_to("data") if directory.is_relative_to("data") else directory
    if typed.is_file():
        return f"{typed} is not a prepared dataset: run  glass prepare {typed}  and train on what that makes"
    siblings = directory.parent.iterdir() if directory.parent.is_dir() else ()
    datasets = [path.name for path in siblings if is_dataset_folder(path)]
    near = difflib.get_close_matches(name, datasets, n=1)
    if near:
        return f"no dataset at {directory}; did you mean {directory.with_name(near[0])}?"
    return (
        f"no dataset at {directory}: run  glass prepare FILE_OR_FOLDER --out_dir={directory}  "
        "or put nanoGPT's train.bin and val.bin there, or say where it is by --data_dir=FOLDER"
    )
