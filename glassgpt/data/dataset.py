"""A prepared dataset: two files of token ids, and a manifest that says exactly what they are.

    data/pylib/manifest.json    what was read, how it was tokenized, the SHA-256 of every file
    data/pylib/train.bin        token ids, little-endian uint16 (uint32 for a vocabulary over 65536)
    data/pylib/val.bin

Reading is strict and never executes anything: a manifest is JSON, every field is checked, and a file
whose size does not match its manifest is refused. `verify` reads every byte, which training does for
datasets small enough.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glassgpt.errors import UserError

VERSION = 1
MANIFEST = "manifest.json"
SPLITS = ("train", "val")
# Little-endian is spelled out, so that a dataset can be copied to any machine.
DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
# What `glass prepare` can make by name, and the tokenizer that goes with it.
BUILT_IN = {"pylib": "char", "shakespeare": "gpt2", "shakespeare_char": "char"}
# The only names a manifest may mention: it cannot point outside its own folder.
TOKENIZER_FILES = ("tokenizer.json", "gpt2.tiktoken")


@dataclass(frozen=True)
class Manifest:
    """What a dataset folder holds; `manifest.json` is this, field by field."""

    # What `glass prepare` was asked for: "pylib", or the name of the file or folder.
    name: str
    # Where the text came from, in words.
    source: str
    # "char", "byte", "gpt2" or "bpe:N".
    tokenizer: str
    vocab_size: int
    # "uint16" or "uint32", little-endian.
    dtype: str
    # Token ids in each split.
    tokens: Mapping[str, int]
    # UTF-8 bytes of the text of each split: bits per byte needs them.
    text_bytes: Mapping[str, int]
    # SHA-256 of each file beside the manifest.
    sha256: Mapping[str, str]
    # The vocabulary of the char tokenizer, in order of id; None for the others.
    characters: str | None
    # What prepare decided, each with its reason.
    notes: tuple[str, ...]
    # When, as an ISO 8601 string. Not part of the dataset's hash.
    created: str
    version: int = VERSION

    def bytes_per_token(self, split: str) -> float:
        return self.text_bytes[split] / self.tokens[split]


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
    """Compare the SHA-256 of every file with the manifest; UserError names each one that differs."""
    problems = []
    for name, expected in dataset.manifest.sha256.items():
        path = dataset.directory / name
        if not path.is_file():
            problems.append(f"{path} is missing: prepare the dataset again with --overwrite")
        elif file_sha256(path) != expected:
            problems.append(
                f"{path} is not what was prepared (its SHA-256 differs): "
                "prepare the dataset again with --overwrite"
            )
    if problems:
        raise UserError(problems)


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(directory: Path, manifest: Manifest) -> Path:
    """Write `manifest.json`; `prepare` calls this last, into a folder that nobody can see yet."""
    path = directory / MANIFEST
    # Written for people who read the file; it follows from two other fields, so it is not read back.
    derived = {"bytes_per_token": {split: manifest.bytes_per_token(split) for split in SPLITS}}
    text = json.dumps(dataclasses.asdict(manifest) | derived, ensure_ascii=False, indent=2)
    path.write_text(text + "\n", encoding="utf-8", newline="\n")
    return path


def read_manifest(directory: Path) -> Manifest:
    """Read and check `manifest.json`; a folder with only the manifest and the tokenizer will do."""
    path = directory / MANIFEST
    try:
        fields = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(_nothing_here(directory)) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(_damaged(path, f"it is not valid JSON ({error})")) from error
    if not isinstance(fields, dict):
        raise UserError(_damaged(path, "it is not a JSON object"))
    # The version comes first: a newer manifest may have other fields, and is not damaged.
    if fields.get("version") != VERSION and "version" in fields:
        raise UserError(
            f"{path} has version {fields['version']!r}, this GlassGPT reads version {VERSION}: "
            "prepare the dataset again with --overwrite, or update GlassGPT"
        )
    fields.pop("bytes_per_token", None)
    problems = _field_problems(fields) or _value_problems(fields)
    if problems:
        raise UserError([_damaged(path, problem) for problem in problems])
    return Manifest(**{**fields, "notes": tuple(fields["notes"])})


def _nothing_here(directory: Path) -> str:
    name = directory.resolve().name
    if (directory / "train.bin").exists():
        return (
            f"{directory} has a train.bin but no manifest.json (made by nanoGPT?): "
            f"run  glass prepare {name}  with another --out_dir"
        )
    if name in BUILT_IN:
        return f"no dataset at {directory}: run  glass prepare {name}"
    return f"no dataset at {directory}: run  glass prepare FILE_OR_FOLDER --out_dir={directory}"


def _damaged(path: Path, problem: str) -> str:
    return f"{path} is damaged, {problem}: prepare the dataset again with --overwrite"


def _field_problems(fields: Mapping[str, Any]) -> list[str]:
    """Missing fields, unknown fields, and fields of the wrong type."""
    problems = []
    for field in dataclasses.fields(Manifest):
        if field.name not in fields:
            problems.append(f"it has no {field.name!r}")
        elif not _has_type(fields[field.name], str(field.type)):
            problems.append(f"its {field.name!r} is not {field.type}")
    known = {field.name for field in dataclasses.fields(Manifest)}
    return problems + [f"it has an unknown field {name!r}" for name in fields if name not in known]


def _has_type(value: Any, annotation: str) -> bool:
    if annotation == "str":
        return isinstance(value, str)
    if annotation == "str | None":
        return value is None or isinstance(value, str)
    if annotation == "int":
        # bool is an int in Python, and JSON's true is not a vocabulary size.
        return type(value) is int
    if annotation == "tuple[str, ...]":
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    item_type = {"Mapping[str, int]": int, "Mapping[str, str]": str}[annotation]
    return isinstance(value, dict) and all(type(item) is item_type for item in value.values())


def _value_problems(fields: Mapping[str, Any]) -> list[str]:
    """Fields of the right type that contradict each other or that nobody could have written."""
    problems = []
    if fields["dtype"] not in DTYPES:
        problems.append(f"its dtype {fields['dtype']!r} is not one of {', '.join(DTYPES)}")
    if not re.fullmatch(r"char|byte|gpt2|bpe:[0-9]{1,9}", fields["tokenizer"]):
        problems.append(f"its tokenizer {fields['tokenizer']!r} is not char, byte, gpt2 or bpe:N")
    if not 1 <= fields["vocab_size"] <= 2**32:
        problems.append(f"its vocab_size {fields['vocab_size']} is not between 1 and 2^32")
    for name in ("tokens", "text_bytes"):
        if set(fields[name]) != set(SPLITS) or min(fields[name].values()) < 1:
            problems.append(f"its {name!r} does not give a positive number for train and for val")
    allowed = {"train.bin", "val.bin", *TOKENIZER_FILES}
    if not {"train.bin", "val.bin"} <= set(fields["sha256"]) <= allowed:
        problems.append("its 'sha256' does not name train.bin, val.bin and at most a tokenizer file")
    characters = fields["characters"]
    if (characters is not None) != (fields["tokenizer"] == "char"):
        problems.append("its 'characters' belongs to the char tokenizer, and only to it")
    elif characters is not None and not len(set(characters)) == len(characters) == fields["vocab_size"]:
        problems.append("its 'characters' does not have vocab_size different characters")
    return problems
