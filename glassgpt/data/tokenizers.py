"""Text to token ids and back: four tokenizers with one face.

    char     one id per character of the text, in sorted order, as nanoGPT's shakespeare_char
    byte     one id per byte: any file, no vocabulary to learn
    gpt2     GPT-2's 50257 tokens
    bpe:N    N tokens learned from the training text, e.g. --tokenizer bpe:8192

A dataset folder carries its tokenizer, so `load_tokenizer(folder)` never needs a network.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from glassgpt.data.dataset import MANIFEST, TOKENIZER_FILES, read_manifest
from glassgpt.data.ranks import (
    END_OF_TEXT,
    PATTERN,
    RANKS_FILE,
    Ranks,
    dump_ranks,
    parse_ranks,
    parse_tokenizer_json,
)
from glassgpt.data.seams import without_long_blanks
from glassgpt.errors import UserError

if TYPE_CHECKING:
    import tiktoken

TOKENIZER_JSON = "tokenizer.json"
SMALLEST_BPE = 257  # the 256 bytes and <|endoftext|>


class Tokenizer(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def eot(self) -> int | None:
        """The id that separates documents, where there is one."""

    @property
    def files(self) -> Mapping[str, bytes]:
        """What a dataset folder must hold, beside its manifest, to load this tokenizer again."""

    def encode(self, text: str) -> NDArray[np.int64]: ...
    def decode(self, ids: Iterable[int]) -> str: ...


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
        # One entry more than the largest codepoint: everything above it is looked up there, and unknown.
        table = np.full(int(codepoints.max(initial=0)) + 2, -1, dtype=np.int64)
        table[codepoints] = np.arange(len(codepoints))
        return table

    def encode(self, text: str) -> NDArray[np.int64]:
        table = self._id_of_codepoint
        ids = table[np.minimum(_codepoints(text), len(table) - 1)]
        if ids.min(initial=0) < 0:
            unknown = sorted(set(text) - set(self.characters))
            shown = ", ".join(map(repr, unknown[:10])) + (", ..." if len(unknown) > 10 else "")
            raise UserError(
                f"the char tokenizer of this dataset has no {shown}: use only its {self.vocab_size} "
                "characters, or prepare the dataset with --tokenizer byte or bpe:N"
            )
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.characters[i] for i in ids)


@dataclass(frozen=True)
class ByteTokenizer:
    name: str = "byte"
    vocab_size: int = 256
    eot: None = None
    files: Mapping[str, bytes] = field(default_factory=dict)

    def encode(self, text: str) -> NDArray[np.int64]:
        return self.encode_bytes(text.encode("utf-8"))

    def encode_bytes(self, raw: bytes) -> NDArray[np.int64]:
        """Any bytes at all: `prepare` uses this, so that a file need not be text."""
        return np.frombuffer(raw, dtype=np.uint8).astype(np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        # map(int): bytes() of a numpy array would be its memory, eight bytes an id.
        return bytes(map(int, ids)).decode("utf-8", errors="replace")


@dataclass(frozen=True)
class BytePairTokenizer:
    """gpt2 and bpe:N: byte-level BPE, run by tiktoken from a table of ranks."""

    name: str
    ranks: Ranks = field(repr=False)
    files: Mapping[str, bytes] = field(repr=False)

    @property
    def vocab_size(self) -> int:
        return len(self.ranks) + 1

    @property
    def eot(self) -> int:
        return len(self.ranks)

    @cached_property
    def _encoding(self) -> tiktoken.Encoding:
        import tiktoken

        return tiktoken.Encoding(
            self.name, pat_str=PATTERN, mergeable_ranks=self.ranks, special_tokens={END_OF_TEXT: self.eot}
        )

    def encode(self, text: str) -> NDArray[np.int64]:
        # No special token is allowed, none is forbidden: a literal <|endoftext|> is ordinary text.
        pieces = [
            self._encoding.encode_to_numpy(piece, allowed_special=set(), disallowed_special=())
            for piece in without_long_blanks(text)
        ]
        return np.concatenate(pieces).astype(np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        return self._encoding.decode([int(i) for i in ids], errors="replace")


def gpt2_tokenizer(ranks: Ranks) -> BytePairTokenizer:
    return BytePairTokenizer("gpt2", ranks, {RANKS_FILE: dump_ranks(ranks)})


def train_bpe(texts: Iterable[str], vocab_size: int) -> BytePairTokenizer:
    """Learn a byte-level BPE of `vocab_size` tokens; a small text may yield fewer.

    The `tokenizers` library learns it, tiktoken runs it: the same ids, many times faster.
    """
    from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
    from tokenizers import Tokenizer as LearnedTokenizer

    learned = LearnedTokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learned.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    _interruptibly(lambda stream: learned.train_from_iterator(stream, trainer), texts)
    # Added after training, so that it is the last id, as in GPT-2.
    learned.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
    content = learned.to_str(pretty=True).encode()
    return BytePairTokenizer(f"bpe:{vocab_size}", parse_tokenizer_json(content), {TOKENIZER_JSON: content})


def _interruptibly(learn: Callable[[Iterator[str]], None], texts: Iterable[str]) -> None:
    """Run `learn` so that Ctrl-C ends it: the library would finish the text first, however long it is.

    Python handles a signal in its main thread only, so the library must not be what that thread is in.
    """
    stopped = threading.Event()
    with ThreadPoolExecutor(max_workers=1) as pool:
        learning = pool.submit(learn, itertools.takewhile(lambda text: not stopped.is_set(), texts))
        try:
            while not learning.done():
                wait([learning], timeout=1)
        finally:
            stopped.set()
    learning.result()


def tokenizer_problem(name: str) -> str | None:
    """What is wrong with a --tokenizer value, or None."""
    if name in ("auto", "char", "byte", "gpt2"):
        return None
    size = bpe_size(name)
    if size is not None and size < SMALLEST_BPE:
        return (
            f"--tokenizer {name}: a BPE has at least {SMALLEST_BPE} tokens, the 256 bytes and {END_OF_TEXT}"
        )
    if size is not None:
        return None
    near = difflib.get_close_matches(name, ["char", "byte", "gpt2", "bpe:8192", "bpe"], n=1)
    hint = f"did you mean {'bpe:8192' if near[0] == 'bpe' else near[0]}? " if near else ""
    return f"--tokenizer {name!r} is unknown: {hint}Use auto, char, byte, gpt2 or bpe:N"


def bpe_size(name: str) -> int | None:
    """The N of "bpe:N", or None for any other name."""
    match = re.fullmatch(r"bpe:([0-9]{1,9})", name)
    return int(match[1]) if match else None


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a dataset folder, or of a run folder that carries `tokenizer_files`."""
    manifest = read_manifest(directory)
    if manifest.characters is not None:
        return CharTokenizer(manifest.characters)
    if manifest.tokenizer == "byte":
        return ByteTokenizer()
    name = RANKS_FILE if manifest.tokenizer == "gpt2" else TOKENIZER_JSON
    damaged = f"{directory / name} is missing or damaged: prepare the dataset again with --overwrite"
    try:
        content = (directory / name).read_bytes()
        if hashlib.sha256(content).hexdigest() != manifest.sha256.get(name):
            raise UserError(damaged)
        ranks = parse_ranks(content) if name == RANKS_FILE else parse_tokenizer_json(content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(damaged) from error
    return BytePairTokenizer(manifest.tokenizer, ranks, {name: content})


def tokenizer_files(directory: Path) -> list[Path]:
    """What to copy so that another folder can `load_tokenizer` on its own."""
    present = [name for name in TOKENIZER_FILES if name in read_manifest(directory).sha256]
    return [directory / MANIFEST, *(directory / name for name in present)]


def _codepoints(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")
