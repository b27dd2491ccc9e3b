"""manifest.json of a dataset folder: source, tokenizer, number of tokens, and the SHA-256 of every file.

Reading is strict: every field is checked, and a digest over all of them detects a change that is still
valid JSON.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glassgpt.data.digests import json_sha256
from glassgpt.errors import UserError
from glassgpt.files import atomic_write, read_small_file

MANIFEST_VERSION = 1
MANIFEST_FILE = "manifest.json"
LADDER_FILE = "ladder.json"  # derived from the tokens: ladder.py
SPLITS = ("train", "val")
# Little-endian is spelled out, so that a dataset can be copied to any machine.
TOKEN_DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
# The only other names a manifest may mention: it cannot point outside its own folder.
TOKENIZER_FILES = ("tokenizer.json", "gpt2.tiktoken")


@dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`, field by field."""

    # The argument of `glass prepare`: "pylib", or the name of the file or folder.
    name: str
    # Description of where the text came from.
    source: str
    # "char", "byte", "gpt2", "bpe:N", or "ids" where it is unknown what the ids stand for.
    tokenizer: str
    vocab_size: int
    # "uint16" or "uint32", little-endian.
    dtype: str
    # Token ids in each split.
    tokens: Mapping[str, int]
    # UTF-8 bytes of the text of each split, for bits per byte. A split of unknown length is left out.
    text_bytes: Mapping[str, int]
    # SHA-256 of each file beside the manifest; "sampled:" and that of a sample for nanoGPT's large ones.
    sha256: Mapping[str, str]
    # The vocabulary of the char tokenizer, in order of id; None for the others.
    characters: str | None
    # Choices of `glass prepare`, each with its reason.
    notes: tuple[str, ...]
    # Time of creation in ISO 8601. Not part of the dataset's hash.
    created: str
    version: int = MANIFEST_VERSION

    def split_files(self, split: str) -> list[str]:
        """The file with the ids of a split, or its shards in order."""
        return sorted(name for name in self.sha256 if split_of_file(name) == split)

    def bytes_per_token(self, split: str) -> float | None:
        """None if the length of the text is unknown, as in nanoGPT's folders."""
        return self.text_bytes[split] / self.tokens[split] if split in self.text_bytes else None

    def info(self, source: str = "") -> DatasetInfo:
        return DatasetInfo(
            self.name,
            self.tokens["train"],
            self.tokens["val"],
            self.vocab_size,
            self.tokenizer,
            self.bytes_per_token("train") or usual_bytes_per_token(self.tokenizer),
            source,
            self.dtype,
        )


@dataclass(frozen=True)
class DatasetInfo:
    """What choices, plans and forecasts need to know of a dataset, which may not be prepared yet."""

    name: str
    train_tokens: int
    val_tokens: int
    vocab_size: int
    tokenizer: str
    bytes_per_token: float
    source: str
    dtype: str = "uint16"  # of a token id

    @property
    def is_character_level(self) -> bool:
        return self.tokenizer in ("char", "byte")

    @property
    def train_bytes(self) -> int:
        """Bytes that the token ids of the training split take in memory."""
        return self.train_tokens * TOKEN_DTYPES[self.dtype].itemsize


def usual_bytes_per_token(tokenizer: str) -> float:
    """Where the length of the text is unknown, as in nanoGPT's folders."""
    return 1.0 if tokenizer in ("char", "byte") else 4.5


def dtype_for(vocab_size: int) -> str:
    """Ids up to 65535 fit 16 bits, so a vocabulary of 65536 still does."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def shard_name(split: str, number: int) -> str:
    return f"{split}-{number:05}.bin"


def split_of_file(name: str) -> str | None:
    """The split of a file of token ids, by its name."""
    match = re.fullmatch(r"(train|val)(-[0-9]{5,})?\.bin", name)
    return match[1] if match else None


def write_manifest(directory: Path, manifest: Manifest) -> Path:
    """Writes `manifest.json`. It is written last: it marks the folder as complete."""
    fields = dataclasses.asdict(manifest)
    # For people who read the file; it is computed from two other fields, so it is not read back.
    derived = {
        "bytes_per_token": {split: manifest.bytes_per_token(split) for split in SPLITS},
        "digest": json_sha256(fields),
    }
    text = json.dumps(fields | derived, ensure_ascii=False, indent=2, allow_nan=False)
    path = directory / MANIFEST_FILE
    # A folder's name may hold bytes that are not UTF-8; json.loads accepts them again.
    atomic_write(path, f"{text}\n".encode(errors="surrogatepass"))
    return path


def read_stored_manifest(directory: Path) -> Manifest | None:
    """Reads and checks `manifest.json`; None if there is no such file."""
    path = directory / MANIFEST_FILE
    try:
        fields = json.loads(read_small_file(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(_damaged(path, f"it is not valid JSON ({error})")) from error
    if not isinstance(fields, dict):
        raise UserError(_damaged(path, "it is not a JSON object"))
    # The version is checked first: a newer manifest may have other fields without being damaged.
    if fields.get("version") != MANIFEST_VERSION and "version" in fields:
        raise UserError(
            f"{path} has version {fields['version']!r}, this GlassGPT reads version {MANIFEST_VERSION}: "
            "prepare the dataset again with --overwrite, or update GlassGPT"
        )
    fields.pop("bytes_per_token", None)
    has_digest, digest = "digest" in fields, fields.pop("digest", None)  # older manifests have none
    field_types = {field.name: str(field.type) for field in dataclasses.fields(Manifest)}
    problems = []
    for name, annotation in field_types.items():
        if name not in fields:
            problems.append(f"it has no {name!r}")
        elif not _has_type(fields[name], annotation):
            problems.append(f"its {name!r} is not {annotation}")
    problems += [f"it has an unknown field {name!r}" for name in fields if name not in field_types]
    problems = problems or _value_problems(fields)
    if not problems and has_digest and digest != json_sha256(fields):
        problems = ["something in it was changed after it was written (its digest differs)"]
    if problems:
        raise UserError([_damaged(path, problem) for problem in problems])
    return Manifest(**{**fields, "notes": tuple(fields["notes"])})


def _damaged(path: Path, problem: str) -> str:
    return f"{path} is damaged, {problem}: prepare the dataset again with --overwrite"


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
    """Values of the right type that are invalid or contradict each other."""
    problems = []
    if fields["dtype"] not in TOKEN_DTYPES:
        problems.append(f"its dtype {fields['dtype']!r} is not one of {', '.join(TOKEN_DTYPES)}")
    if not re.fullmatch(r"char|byte|gpt2|ids|bpe:[0-9]{1,9}", fields["tokenizer"]):
        problems.append(f"its tokenizer {fields['tokenizer']!r} is not char, byte, gpt2, ids or bpe:N")
    if not 1 <= fields["vocab_size"] <= 2**32:
        problems.append(f"its vocab_size {fields['vocab_size']} is not between 1 and 2^32")
    tokens, text_bytes = fields["tokens"], fields["text_bytes"]
    if set(tokens) != set(SPLITS) or min(tokens.values()) < 1:
        problems.append("its 'tokens' does not give a positive number for train and for val")
    if not set(text_bytes) <= set(SPLITS) or min(text_bytes.values(), default=1) < 1:
        problems.append("its 'text_bytes' does not give a positive number for train and for val, if any")
    other_names = set(fields["sha256"]) - set(TOKENIZER_FILES)
    for split in SPLITS:
        names = {name for name in other_names if split_of_file(name) == split}
        if names not in ({f"{split}.bin"}, {shard_name(split, i) for i in range(len(names))}) or not names:
            problems.append(f"its 'sha256' does not name {split}.bin, or shards from {split}-00000.bin on")
        other_names -= names
    if other_names:
        problems.append("its 'sha256' names a file that is not part of a dataset")
    characters = fields["characters"]
    if (characters is not None) != (fields["tokenizer"] == "char"):
        problems.append("its 'characters' belongs to the char tokenizer, and only to it")
    elif characters is not None and not len(set(characters)) == len(characters) == fields["vocab_size"]:
        problems.append("its 'characters' does not have vocab_size different characters")
    return problems
