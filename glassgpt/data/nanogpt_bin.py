"""nanoGPT's data folders, used as they are: train.bin, val.bin and, for characters, meta.pkl.

    glass train --data_dir=../nanoGPT/data/shakespeare_char

They have no manifest, so one is made in memory when they are opened. Nothing is written into the folder, and
nothing in it is executed: see safe_pickle.py.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassgpt.data.digests import check_recorded_sha256, fingerprint, is_hashed_by_sample, read_hashed_blocks
from glassgpt.data.manifest import SPLITS, TOKEN_DTYPES, Manifest
from glassgpt.data.safe_pickle import MAX_PICKLE_BYTES, UnsafePickleError, load_safe_pickle
from glassgpt.errors import UserError, collect_problems, raise_if_any

META_FILE = "meta.pkl"
NANOGPT_DTYPE = "uint16"  # the only one nanoGPT writes, whatever the vocabulary
MAX_VOCAB_SIZE = 2**16
# Header of the shards of llm.c and modded-nanogpt: 256 numbers, of which these are the first two.
_SHARD_HEADER_DTYPES = {(20240520, 1): "uint16", (20240801, 7): "uint32"}
_HEADER_BYTES = 1024
_BEGINNING_BYTES = 2**12
_MAX_UPPER_HALF = 3  # upper 16 bits of ids below 2^18: no tokenizer has more
_MAKE_AGAIN_HINT = "make it again with nanoGPT's prepare.py, or copy it again"
_META_FIX_HINT = "make it again from a plain dict {'vocab_size': int, 'itos': {int: str}, 'stoi': {str: int}}"


@dataclass(frozen=True)
class Vocabulary:
    """What the ids of a folder stand for, and why."""

    tokenizer: str
    vocab_size: int
    # Of the char tokenizer, in the order of the ids.
    characters: str | None
    reason: str


GPT2_VOCABULARY = Vocabulary(
    "gpt2", 50257, None, f"there is no {META_FILE}, which for nanoGPT means GPT-2's tokens"
)


@dataclass(frozen=True)
class _IdFile:
    """A file of token ids, and a count of its ids."""

    path: Path
    # How often each id occurs: in the whole file, or in a sample of a large one.
    counts: NDArray[np.int64]
    sampled: bool

    @property
    def tokens(self) -> int:
        return self.path.stat().st_size // TOKEN_DTYPES[NANOGPT_DTYPE].itemsize

    @property
    def largest(self) -> int:
        return int(np.flatnonzero(self.counts)[-1])


def build_nanogpt_manifest(directory: Path) -> Manifest:
    """The manifest of a folder that nanoGPT made. Opening a folder twice gives equal manifests."""
    try:
        ids, vocabulary = _read_nanogpt_files(directory)
        train_path = ids["train"].path
        changed = datetime.datetime.fromtimestamp(train_path.stat().st_mtime, datetime.UTC)
        sha256 = {file.path.name: fingerprint(file.path) for file in ids.values()}
        tokens = {split: file.tokens for split, file in ids.items()}
    except OSError as error:
        raise UserError(f"{error.filename or directory} cannot be read: {error.strerror}") from error
    # The length of the text is known if every id was counted and is a character.
    text_bytes = {}
    if vocabulary.characters is not None:
        sizes = np.array([len(character.encode()) for character in vocabulary.characters])
        text_bytes = {
            split: int(file.counts[: len(sizes)] @ sizes) for split, file in ids.items() if not file.sampled
        }
    return Manifest(
        name=directory.resolve().name,
        source=f"nanoGPT's files in {directory}",
        tokenizer=vocabulary.tokenizer,
        vocab_size=vocabulary.vocab_size,
        dtype=NANOGPT_DTYPE,
        tokens=tokens,
        text_bytes=text_bytes,
        sha256=sha256,
        characters=vocabulary.characters,
        notes=(
            "nanoGPT's files, used as they are",
            f"tokenizer {vocabulary.tokenizer}: {vocabulary.reason}",
            *(
                f"{file.path.name} is large: a sample of it was checked, and its SHA-256 is of that sample"
                for file in ids.values()
                if file.sampled
            ),
        ),
        created=changed.isoformat(timespec="seconds"),
    )


def _read_nanogpt_files(directory: Path) -> tuple[dict[str, _IdFile], Vocabulary]:
    """Checks train.bin, val.bin and meta.pkl; one UserError with all problems."""
    ids: dict[str, _IdFile] = {}
    problems = []
    for split in SPLITS:
        path = directory / f"{split}.bin"
        if problem := _file_problem(path):
            problems.append(problem)
            continue
        counts = np.zeros(MAX_VOCAB_SIZE, dtype=np.int64)
        for block in read_hashed_blocks(path):
            counts += np.bincount(
                np.frombuffer(block, dtype=TOKEN_DTYPES[NANOGPT_DTYPE]), minlength=MAX_VOCAB_SIZE
            )
        ids[split] = _IdFile(path, counts, is_hashed_by_sample(path))
    vocabulary = GPT2_VOCABULARY
    with collect_problems(problems):
        if (directory / META_FILE).exists():
            vocabulary = read_meta(directory / META_FILE)
        for file in ids.values():
            if file.largest < vocabulary.vocab_size:
                continue
            largest = f"{file.path} has the id {file.largest}, but"
            if vocabulary is GPT2_VOCABULARY:
                problems.append(
                    f"{largest} GPT-2's end at {GPT2_VOCABULARY.vocab_size - 1}: put the {META_FILE} that "
                    "belongs to it beside it"
                )
            else:
                problems.append(
                    f"{largest} {META_FILE} says vocab_size {vocabulary.vocab_size}: they are not from the "
                    "same text, make both again with nanoGPT's prepare.py"
                )
    raise_if_any(problems)
    return ids, vocabulary


def _file_problem(path: Path) -> str | None:
    """Why a file cannot be 16-bit ids as nanoGPT writes them, or None."""
    if not path.exists():
        return f"{path} is missing beside the other split: {_MAKE_AGAIN_HINT}"
    if not path.is_file():
        return f"{path} is not a file: {_MAKE_AGAIN_HINT}"
    size = path.stat().st_size
    if size == 0:
        return f"{path} is empty: {_MAKE_AGAIN_HINT}"
    with path.open("rb") as file:
        beginning = file.read(_BEGINNING_BYTES)
    # nanoGPT's files have no header: a header would be trained on as if it were text.
    magic, version = np.frombuffer(beginning[:8].ljust(8, b"\0"), dtype="<i4").tolist()
    header_dtype = _SHARD_HEADER_DTYPES.get((magic, version))
    if header_dtype is not None:
        header = f"{path} begins with a header, as the shards of llm.c and modded-nanogpt do"
        if header_dtype == NANOGPT_DTYPE:
            return f"{header}: cut it off,  tail -c +{_HEADER_BYTES + 1} {path} > FOLDER/{path.name}"
        return f"{header}, and has 32-bit ids, which nanoGPT's files have not: prepare the text itself"
    # Read as 16-bit ids, every second half of 32-bit ids is a tiny number: its upper 16 bits.
    if len(beginning) == _BEGINNING_BYTES:
        halves = np.frombuffer(beginning, dtype=TOKEN_DTYPES[NANOGPT_DTYPE])
        if halves[1::2].max() <= _MAX_UPPER_HALF < halves[::2].max():
            return (
                f"{path} has 32-bit ids, it seems, and nanoGPT's have 16: prepare the text itself, or, if "
                f"all are below {MAX_VOCAB_SIZE:,}, write them as np.uint16"
            )
    if size % TOKEN_DTYPES[NANOGPT_DTYPE].itemsize:
        return f"{path} has {size:,} bytes, not a whole number of 16-bit ids: {_MAKE_AGAIN_HINT}"
    return None


def read_meta(path: Path) -> Vocabulary:
    """nanoGPT's meta.pkl: a pickled dict with vocab_size and usually itos and stoi."""
    try:
        if not path.is_file():
            raise UnsafePickleError("is not a file")
        check_recorded_sha256(path)
        with path.open("rb") as file:
            meta = load_safe_pickle(file.read(MAX_PICKLE_BYTES + 1))
    except UnsafePickleError as error:
        only = "only plain data is read from it, and nothing is ever executed"
        raise UserError(f"{path} {error}; {only}: {_META_FIX_HINT}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    vocab_size = meta.get("vocab_size") if isinstance(meta, dict) else None
    if type(vocab_size) is not int or not 1 <= vocab_size <= MAX_VOCAB_SIZE:
        raise UserError(f"{path} gives no vocab_size between 1 and {MAX_VOCAB_SIZE}: {_META_FIX_HINT}")
    problem = _character_problem(meta, vocab_size)
    if problem:
        return Vocabulary("ids", vocab_size, None, f"{META_FILE} {problem}")
    characters = "".join(meta["itos"][i] for i in range(vocab_size))
    return Vocabulary(
        "char", vocab_size, characters, f"{META_FILE} has a character for each of {vocab_size} ids"
    )


def _character_problem(meta: Mapping[str, Any], vocab_size: int) -> str | None:
    """Why the ids are not single characters, or None. It can be trained on either way."""
    itos, stoi = meta.get("itos"), meta.get("stoi")
    if itos is None:
        return "gives no tokens, only their number"
    if isinstance(itos, list):
        itos = dict(enumerate(itos))
    if not isinstance(itos, dict) or itos.keys() != set(range(vocab_size)):
        return f"does not give a token for each of {vocab_size} ids"
    tokens = itos.values()
    # Halves of surrogate pairs are characters in Python, but no text file can hold them.
    if not all(
        isinstance(token, str) and len(token) == 1 and not "\ud800" <= token <= "\udfff" for token in tokens
    ):
        return "has tokens that are not single characters"
    if len(set(tokens)) != vocab_size:
        return "has one character for several ids"
    if stoi is not None and stoi != {token: i for i, token in itos.items()}:
        return "has an itos and a stoi that contradict each other"
    return None
