"""Text to token ids and back, and the tokenizer of a dataset.

    char     one id per character of the text, in sorted order, as nanoGPT's shakespeare_char
    byte     one id per byte: any file, without training
    gpt2     GPT-2's 50257 tokens
    bpe:N    N tokens trained on the training split, e.g. --tokenizer bpe:8192; or the byte-level BPE of
             another project, with its ids (both in bpe.py)
    ids      the ids themselves, as numbers: for nanoGPT's folders that do not say what theirs stand for

A dataset folder carries its tokenizer, so `load_tokenizer(folder)` needs no network. Only nanoGPT's folders
of GPT-2 tokens do not; for them tiktoken may have to download the table.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from glassgpt.data.bpe import (
    MAX_BPE_VOCAB_SIZE,
    MIN_BPE_VOCAB_SIZE,
    TOKENIZER_JSON,
    ByteLevelBpe,
    BytePairTokenizer,
    HuggingFaceBpeTokenizer,
    bpe_vocab_size,
    gpt2_tokenizer,
    parse_bpe,
)
from glassgpt.data.bpe_table import (
    END_OF_TEXT,
    TIKTOKEN_FILE,
    download_gpt2_ranks,
    dump_ranks,
    parse_ranks,
    parse_tokenizer_json,
)
from glassgpt.data.dataset import Dataset, read_manifest
from glassgpt.data.digests import json_sha256
from glassgpt.data.manifest import TOKENIZER_FILES, read_stored_manifest, write_manifest
from glassgpt.errors import UserError, join_first
from glassgpt.files import atomic_write, fsync_path, read_small_file

# The digest of OpenAI's table, which nanoGPT's folders use and do not carry.
GPT2_TOKENIZER_DIGEST = "e490d0134e1108be06594316d9c65ae7630e3d7ad860e775223902566defc9c0"
_NO_RANKS_HINT = (
    "nanoGPT's files do not include it; connect to the network once, and tiktoken keeps it "
    "(in TIKTOKEN_CACHE_DIR, if you set that)"
)


class Tokenizer(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def eot(self) -> int | None:
        """The end-of-text id, which separates documents, if there is one."""

    @property
    def files(self) -> Mapping[str, bytes]:
        """The files that a dataset folder needs, beside its manifest, to load this tokenizer again."""

    def encode(self, text: str) -> NDArray[np.int64]: ...
    def decode(self, ids: Iterable[int]) -> str:
        """The text of these ids: their `token_bytes`, with U+FFFD where those are not UTF-8."""

    def token_bytes(self, id: int) -> bytes:
        """The UTF-8 of one token, maybe only a part of a character: for streaming a sample."""


@dataclass(frozen=True)
class CharTokenizer:
    characters: str
    name: str = "char"
    eot: None = None
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def vocab_size(self) -> int:
        return len(self.characters)

    @cached_property
    def _id_of_codepoint(self) -> NDArray[np.int64]:
        codepoints = _codepoints(self.characters)
        # One entry more than the largest codepoint: larger ones are looked up there, and are unknown.
        table = np.full(int(codepoints.max(initial=0)) + 2, -1, dtype=np.int64)
        table[codepoints] = np.arange(len(codepoints))
        return table

    def encode(self, text: str) -> NDArray[np.int64]:
        table = self._id_of_codepoint
        ids = table[np.minimum(_codepoints(text), len(table) - 1)]
        if ids.min(initial=0) < 0:
            unknown = sorted(set(text) - set(self.characters))
            raise UserError(
                f"the char tokenizer of this dataset has no {join_first(map(repr, unknown))}: use only its "
                f"{self.vocab_size} characters, or prepare the dataset with --tokenizer byte or bpe:N"
            )
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(self.token_bytes(i) for i in ids).decode("utf-8", errors="replace")

    def token_bytes(self, id: int) -> bytes:
        # A text file has no half of a surrogate pair, but CharTokenizer("\ud800") has.
        return self.characters[id].encode("utf-8", errors="surrogatepass")


def _codepoints(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")


@dataclass(frozen=True)
class ByteTokenizer:
    name: str = "byte"
    vocab_size: int = 256
    eot: None = None
    files: Mapping[str, bytes] = field(default_factory=dict)

    def encode(self, text: str) -> NDArray[np.int64]:
        return self.encode_bytes(text.encode("utf-8"))

    def encode_bytes(self, raw: bytes) -> NDArray[np.int64]:
        """Any bytes: `prepare` uses this, so a file need not be text."""
        return np.frombuffer(raw, dtype=np.uint8).astype(np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        # map(int): bytes() of a numpy array would be its memory, eight bytes per id.
        return bytes(map(int, ids)).decode("utf-8", errors="replace")

    def token_bytes(self, id: int) -> bytes:
        return bytes([id])


@dataclass(frozen=True)
class IdsTokenizer:
    """For a dataset of unknown vocabulary: its text is the ids, such as "12 5 88"."""

    vocab_size: int
    name: str = "ids"
    eot: None = None
    files: Mapping[str, bytes] = field(default_factory=dict)

    def encode(self, text: str) -> NDArray[np.int64]:
        words = text.split()
        # Ten digits hold every possible id, and keep int() from parsing a million of them.
        invalid = [
            word for word in words if not re.fullmatch(r"[0-9]{1,10}", word) or int(word) >= self.vocab_size
        ]
        if invalid:
            raise UserError(
                f"this dataset has token ids and no text, and {join_first(map(repr, invalid))} is not an id: "
                f'write numbers from 0 to {self.vocab_size - 1} with blanks between them, such as "0 1 2"'
            )
        return np.array([int(word) for word in words], dtype=np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(self.token_bytes(i) for i in ids).decode("utf-8", errors="replace")

    def token_bytes(self, id: int) -> bytes:
        return b"%d " % id


def encode_prompt(tokenizer: Tokenizer, text: str) -> NDArray[np.int64]:
    """The ids of a sample's prompt, where <|endoftext|> is the special token, as in nanoGPT's sample.py.

    In a dataset it is not: there it may be somebody's text about tokenizers.
    """
    if tokenizer.eot is None:
        return tokenizer.encode(text)
    first, *others = (tokenizer.encode(part) for part in text.split(END_OF_TEXT))
    separator = np.array([tokenizer.eot])
    return np.concatenate([first, *(part for other in others for part in (separator, other))])


def tokenizer_problem(name: str) -> str | None:
    """What is wrong with a --tokenizer value, or None."""
    if name in ("auto", "char", "byte", "gpt2"):
        return None
    size = bpe_vocab_size(name)
    if size is None:
        near = difflib.get_close_matches(name, ["char", "byte", "gpt2", "bpe:8192", "bpe"], n=1)
        hint = f"did you mean {'bpe:8192' if near[0] == 'bpe' else near[0]}? " if near else ""
        return f"--tokenizer {name!r} is unknown: {hint}Use auto, char, byte, gpt2 or bpe:N"
    if size < MIN_BPE_VOCAB_SIZE:
        limit = f"at least {MIN_BPE_VOCAB_SIZE} tokens, the 256 bytes and {END_OF_TEXT}"
        return f"--tokenizer {name}: a BPE has {limit}"
    if size > MAX_BPE_VOCAB_SIZE:
        limit = f"at most {MAX_BPE_VOCAB_SIZE:,} tokens, and 50,000 are many"
        return f"--tokenizer {name}: a BPE has {limit}: use fewer"
    return None


# --- the tokenizer of a dataset or run folder ---


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a dataset folder, or of a run folder that `write_tokenizer` wrote to."""
    return dataset_tokenizer(Dataset(directory, read_manifest(directory)))


def dataset_tokenizer(dataset: Dataset) -> Tokenizer:
    manifest = dataset.manifest
    if manifest.characters is not None:
        return CharTokenizer(manifest.characters)
    if manifest.tokenizer == "byte":
        return ByteTokenizer()
    if manifest.tokenizer == "ids":
        return IdsTokenizer(manifest.vocab_size)
    if _lacks_gpt2_ranks(dataset):
        return gpt2_tokenizer(download_gpt2_ranks(_NO_RANKS_HINT))
    name = next((name for name in TOKENIZER_FILES if name in manifest.sha256), TOKENIZER_JSON)
    return _parse_bpe_file(manifest.tokenizer, dataset.directory / name, _read_verified(dataset, name))


def end_of_text_id(dataset: Dataset) -> int | None:
    """The id between documents, if the tokenizer has one."""
    return dataset.manifest.vocab_size - 1 if _lacks_gpt2_ranks(dataset) else dataset_tokenizer(dataset).eot


def _lacks_gpt2_ranks(dataset: Dataset) -> bool:
    """nanoGPT's folders of GPT-2 tokens do not carry the table."""
    manifest = dataset.manifest
    return manifest.tokenizer == "gpt2" and not any(name in manifest.sha256 for name in TOKENIZER_FILES)


def load_folder_bpe(tokenizer: str, folder: Path) -> ByteLevelBpe:
    """gpt2 or bpe:N, from the file in a folder; `tokenizer`: its name, if it has one."""
    path = next(
        (folder / name for name in TOKENIZER_FILES if (folder / name).is_file()), folder / TIKTOKEN_FILE
    )
    return _parse_bpe_file(tokenizer, path, _read_file(path))


def _parse_bpe_file(name: str, path: Path, content: bytes) -> ByteLevelBpe:
    try:
        if path.name == TOKENIZER_JSON:
            return parse_bpe(content, name)
        return gpt2_tokenizer(parse_ranks(content))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(_damaged(path)) from error


def _read_verified(dataset: Dataset, name: str) -> bytes:
    """A file whose SHA-256 is the one in the manifest."""
    content = _read_file(dataset.directory / name)
    if hashlib.sha256(content).hexdigest() != dataset.manifest.sha256.get(name):
        raise UserError(_damaged(dataset.directory / name))
    return content


def _read_file(path: Path) -> bytes:
    try:
        return read_small_file(path)
    except OSError as error:
        raise UserError(_damaged(path)) from error


def _damaged(path: Path) -> str:
    return f"{path} is missing or damaged: prepare the dataset again with --overwrite"


def write_tokenizer(folder: Path, dataset: Dataset) -> None:
    """Writes the files for `load_tokenizer(folder)`, so that a run does not need its dataset to sample.

    A tokenizer that the run has already stays; UserError if the dataset has another one.
    """
    names = [name for name in TOKENIZER_FILES if name in dataset.manifest.sha256]
    contents = {name: _read_verified(dataset, name) for name in names}
    existing = None
    try:
        manifest = read_stored_manifest(folder)
        if manifest is not None:
            existing = Dataset(folder, manifest)
            for name in TOKENIZER_FILES:
                if name in manifest.sha256:
                    _read_verified(existing, name)
    except UserError:  # damaged: it is written again, from the dataset
        existing = None
    if existing is not None:
        if dataset_tokenizer_digest(existing) != dataset_tokenizer_digest(dataset):
            raise UserError(
                f"{dataset.directory} has another tokenizer than {folder}, which is never overwritten: "
                "use the run's own dataset, or start a new run in another --out_dir"
            )
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            atomic_write(folder / name, content)
        write_manifest(folder, dataset.manifest)  # last: it marks the others as complete
        fsync_path(folder)
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written to ({error.strerror}): choose another --out_dir"
        ) from error


# --- identity ---


def dataset_tokenizer_digest(dataset: Dataset) -> str:
    """The digest of its tokenizer; GPT-2's table need not be available."""
    if _lacks_gpt2_ranks(dataset):
        return GPT2_TOKENIZER_DIGEST
    return tokenizer_digest(dataset_tokenizer(dataset))


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """A SHA-256 of all that decides which text gets which ids; names and file formats do not count."""
    content: list[Any]
    if isinstance(tokenizer, BytePairTokenizer):
        content = ["bpe", tokenizer.pattern, dump_ranks(tokenizer.ranks).decode()]
    elif isinstance(tokenizer, HuggingFaceBpeTokenizer):
        document = json.loads(tokenizer.files[TOKENIZER_JSON])
        merges = parse_tokenizer_json(tokenizer.files[TOKENIZER_JSON]).merges
        ids = sorted((id, token.hex()) for id, token in tokenizer.bytes_by_id.items())
        flags = [{**token, "id": None} for token in document.get("added_tokens") or []]
        ignores_merges = bool(document["model"].get("ignore_merges"))
        content = ["numbered", tokenizer.pattern, ids, merges, flags, ignores_merges]
    elif isinstance(tokenizer, CharTokenizer):
        content = ["char", tokenizer.characters]
    else:
        content = [type(tokenizer).__name__, tokenizer.vocab_size]
    return json_sha256(content)
