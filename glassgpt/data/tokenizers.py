"""Text to token ids and back: six tokenizers with one face.

    char     one id per character of the text, in sorted order, as nanoGPT's shakespeare_char
    byte     one id per byte: any file, no vocabulary to learn
    gpt2     GPT-2's 50257 tokens
    bpe:N    N tokens learned from the training text, e.g. --tokenizer bpe:8192; or a byte-level BPE of
             others, numbered in any way
    ids      the ids themselves, as numbers: for nanoGPT's folders that do not say what theirs stand for

A dataset folder carries its tokenizer, so `load_tokenizer(folder)` needs no network; only for nanoGPT's
folders of GPT-2 tokens, which do not, tiktoken may have to download the table.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from glassgpt.data.bpe_chunks import has_long_whitespace, split_after_long_whitespace
from glassgpt.data.bpe_table import (
    COMBINING_MARKS_PATTERN,
    END_OF_TEXT,
    GPT2_PATTERN,
    HF_COMBINING_MARKS_PATTERN,
    TIKTOKEN_FILE,
    MergeRanks,
    download_gpt2_ranks,
    dump_ranks,
    parse_ranks,
    parse_tokenizer_json,
    unicode_to_bytes,
)
from glassgpt.data.dataset import Dataset, read_manifest
from glassgpt.data.manifest import TOKENIZER_FILES, read_stored_manifest, write_manifest
from glassgpt.errors import UserError, join_first
from glassgpt.files import atomic_write, fsync_path, read_small_file

if TYPE_CHECKING:
    import tiktoken
    from tokenizers import Tokenizer as Library

TOKENIZER_JSON = "tokenizer.json"
MIN_BPE_VOCAB_SIZE = 257  # the 256 bytes and <|endoftext|>
MAX_BPE_VOCAB_SIZE = (
    2**20
)  # what learns it takes memory for all of them first, and dies if there is too little
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
        """The id that separates documents, where there is one."""

    @property
    def files(self) -> Mapping[str, bytes]:
        """What a dataset folder must hold, beside its manifest, to load this tokenizer again."""

    def encode(self, text: str) -> NDArray[np.int64]: ...
    def decode(self, ids: Iterable[int]) -> str:
        """The text of these ids: what their `token_bytes` say, with a mark where that is not UTF-8."""

    def token_bytes(self, id: int) -> bytes:
        """The UTF-8 of one token, maybe only a part of a character: what to write when text is streamed."""


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
            raise UserError(
                f"the char tokenizer of this dataset has no {join_first(map(repr, unknown))}: use only its "
                f"{self.vocab_size} characters, or prepare the dataset with --tokenizer byte or bpe:N"
            )
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        return _decode_token_bytes(self, ids)

    def token_bytes(self, id: int) -> bytes:
        # Half of a surrogate pair comes from no file of text, but from `CharTokenizer("\ud800")` it may.
        return self.characters[id].encode("utf-8", errors="surrogatepass")


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

    def token_bytes(self, id: int) -> bytes:
        return bytes([id])


@dataclass(frozen=True)
class BytePairTokenizer:
    """gpt2 and bpe:N: byte-level BPE, run by tiktoken from a table of ranks."""

    name: str
    ranks: MergeRanks = field(repr=False)
    files: Mapping[str, bytes] = field(repr=False)
    pattern: str = GPT2_PATTERN  # of words, inside of which tokens are merged

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
            self.name,
            pat_str=self.pattern,
            mergeable_ranks=self.ranks,
            special_tokens={END_OF_TEXT: self.eot},
        )

    def encode(self, text: str) -> NDArray[np.int64]:
        # No special token is allowed, none is forbidden: a literal <|endoftext|> is ordinary text.
        pieces = [
            self._encoding.encode_to_numpy(piece, allowed_special=set(), disallowed_special=())
            for piece in split_after_long_whitespace(text)
        ]
        return np.concatenate(pieces).astype(np.int64)

    def encode_documents(self, texts: Sequence[str]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The ids of all of them, <|endoftext|> after each, and how many each has.

        In one call, as a call for each takes longer. tiktoken never merges across a special token, so each is
        encoded as if it were alone.
        """
        joined = END_OF_TEXT.join(texts) + END_OF_TEXT
        if joined.count(END_OF_TEXT) != len(texts) or has_long_whitespace(joined):
            return _encode_one_by_one(self, texts)
        ids = self._encoding.encode_to_numpy(joined, allowed_special={END_OF_TEXT})
        return ids, np.diff(np.flatnonzero(ids == self.eot), prepend=-1)

    def decode(self, ids: Iterable[int]) -> str:
        return self._encoding.decode([int(i) for i in ids], errors="replace")

    def token_bytes(self, id: int) -> bytes:
        return self._encoding.decode_single_token_bytes(int(id))


@dataclass(frozen=True)
class HuggingFaceBpeTokenizer:
    """A byte-level BPE whose ids do not follow its merges: run by the `tokenizers` library, from its file.

    So every text gets the ids that `transformers` gives it, also those of added tokens. Special ones are text
    like any other, as with `BytePairTokenizer`.
    """

    name: str
    files: Mapping[str, bytes] = field(repr=False)
    pattern: str

    def __reduce__(self) -> tuple[type[HuggingFaceBpeTokenizer], tuple[Any, ...]]:
        return HuggingFaceBpeTokenizer, (
            self.name,
            self.files,
            self.pattern,
        )  # the library's object loses settings

    @cached_property
    def _library(self) -> Library:
        from tokenizers import Tokenizer as Library

        library = Library.from_str(self.files[TOKENIZER_JSON].decode())
        library.encode_special_tokens = True
        library.no_truncation()
        library.no_padding()
        return library

    @cached_property
    def added_tokens(self) -> dict[int, str]:
        """Tokens that are matched in a text before it is split into words, and special ones."""
        return {id: token.content for id, token in self._library.get_added_tokens_decoder().items()}

    @cached_property
    def bytes_by_id(self) -> dict[int, bytes]:
        """Of each id. The ids need not be 0, 1, 2, ..."""
        tokens = {id: content.encode() for id, content in self.added_tokens.items()}
        for token, id in self._library.get_vocab(with_added_tokens=False).items():
            if id not in self.added_tokens:
                tokens[id] = unicode_to_bytes(token)
            elif token != self.added_tokens[id]:
                raise ValueError(f"its added token {self.added_tokens[id]!r} has the id of {token!r}")
        return tokens

    @property
    def vocab_size(self) -> int:
        return max(self.bytes_by_id) + 1

    @property
    def eot(self) -> int | None:
        return next((id for id, content in self.added_tokens.items() if content == END_OF_TEXT), None)

    def encode(self, text: str) -> NDArray[np.int64]:
        return np.array(self._library.encode(text, add_special_tokens=False).ids, dtype=np.int64)

    def encode_documents(self, texts: Sequence[str]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The ids of all of them, <|endoftext|> (or a newline) after each, and how many each has."""
        return _encode_one_by_one(self, texts)

    def decode(self, ids: Iterable[int]) -> str:
        return _decode_token_bytes(self, ids)

    def token_bytes(self, id: int) -> bytes:
        return self.bytes_by_id.get(int(id), b"")  # a model may have rows for ids that stand for nothing


ByteLevelBpe = BytePairTokenizer | HuggingFaceBpeTokenizer


def _encode_one_by_one(
    tokenizer: ByteLevelBpe, texts: Sequence[str]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    end = tokenizer.encode("\n") if tokenizer.eot is None else np.array([tokenizer.eot])
    pieces = [np.concatenate([tokenizer.encode(text), end]) for text in texts]
    lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
    return np.concatenate([*pieces, end[:0]]), lengths


@dataclass(frozen=True)
class IdsTokenizer:
    """For a dataset whose vocabulary nobody wrote down: its text is the ids, such as "12 5 88"."""

    vocab_size: int
    name: str = "ids"
    eot: None = None
    files: Mapping[str, bytes] = field(default_factory=dict)

    def encode(self, text: str) -> NDArray[np.int64]:
        words = text.split()
        wrong = [word for word in words if not self._is_id(word)]
        if wrong:
            raise UserError(
                f"this dataset has token ids and no text, and {join_first(map(repr, wrong))} is not an id: write "
                f'numbers from 0 to {self.vocab_size - 1} with blanks between them, such as "0 1 2"'
            )
        return np.array([int(word) for word in words], dtype=np.int64)

    def _is_id(self, word: str) -> bool:
        # Ten digits hold every id there can be, and keep int() from laboring over a million of them.
        return re.fullmatch(r"[0-9]{1,10}", word) is not None and int(word) < self.vocab_size

    def decode(self, ids: Iterable[int]) -> str:
        return _decode_token_bytes(self, ids)

    def token_bytes(self, id: int) -> bytes:
        return b"%d " % id


def _decode_token_bytes(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    return b"".join(tokenizer.token_bytes(i) for i in ids).decode("utf-8", errors="replace")


def encode_prompt(tokenizer: Tokenizer, text: str) -> NDArray[np.int64]:
    """The ids of what a sample begins with, where <|endoftext|> is that token, as in nanoGPT's sample.py.

    In a dataset it is not: there it may be somebody's text about tokenizers.
    """
    if tokenizer.eot is None:
        return tokenizer.encode(text)
    first, *others = (tokenizer.encode(piece) for piece in text.split(END_OF_TEXT))
    separator = np.array([tokenizer.eot])
    return np.concatenate([first, *(part for other in others for part in (separator, other))])


def gpt2_tokenizer(ranks: MergeRanks) -> BytePairTokenizer:
    return BytePairTokenizer("gpt2", ranks, {TIKTOKEN_FILE: dump_ranks(ranks)})


def train_bpe(texts: Iterable[str], vocab_size: int) -> BytePairTokenizer:
    """Learn a byte-level BPE of `vocab_size` tokens; a small text may yield fewer.

    The `tokenizers` library learns it, tiktoken runs it: the same ids, many times faster.
    """
    from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
    from tokenizers import Tokenizer as LearnedTokenizer

    learned = LearnedTokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(HF_COMBINING_MARKS_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    learned.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    _run_interruptibly(lambda stream: learned.train_from_iterator(stream, trainer), texts)
    # Added after training, so that it is the last id, as in GPT-2.
    learned.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
    content = learned.to_str(pretty=True).encode()
    ranks = parse_tokenizer_json(content).ranks
    assert ranks is not None
    return BytePairTokenizer(f"bpe:{vocab_size}", ranks, {TOKENIZER_JSON: content}, COMBINING_MARKS_PATTERN)


def _run_interruptibly(learn: Callable[[Iterator[str]], None], texts: Iterable[str]) -> None:
    """Run `learn` so that Ctrl-C ends it: the library would finish the text first, however long it is.

    Python handles a signal in its main thread only, so the library must not be what that thread is in.
    """
    stopped = threading.Event()
    with ThreadPoolExecutor(max_workers=1) as pool:
        try:  # around submit too: the signal may come as soon as the other thread runs
            learning = pool.submit(learn, itertools.takewhile(lambda text: not stopped.is_set(), texts))
            while not learning.done():
                wait([learning], timeout=1)
        finally:
            stopped.set()
    learning.result()


def tokenizer_problem(name: str) -> str | None:
    """What is wrong with a --tokenizer value, or None."""
    if name in ("auto", "char", "byte", "gpt2"):
        return None
    size = bpe_vocab_size(name)
    if size is not None and size < MIN_BPE_VOCAB_SIZE:
        return f"--tokenizer {name}: a BPE has at least {MIN_BPE_VOCAB_SIZE} tokens, the 256 bytes and {END_OF_TEXT}"
    if size is not None and size > MAX_BPE_VOCAB_SIZE:
        return f"--tokenizer {name}: a BPE has at most {MAX_BPE_VOCAB_SIZE:,} tokens, and 50,000 are many: use fewer"
    if size is not None:
        return None
    near = difflib.get_close_matches(name, ["char", "byte", "gpt2", "bpe:8192", "bpe"], n=1)
    hint = f"did you mean {'bpe:8192' if near[0] == 'bpe' else near[0]}? " if near else ""
    return f"--tokenizer {name!r} is unknown: {hint}Use auto, char, byte, gpt2 or bpe:N"


def bpe_vocab_size(name: str) -> int | None:
    """The N of "bpe:N", or None for any other name."""
    match = re.fullmatch(r"bpe:([0-9]{1,9})", name)
    return int(match[1]) if match else None


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a dataset folder, or of a run folder that `write_tokenizer` wrote to."""
    return dataset_tokenizer(Dataset(directory, read_manifest(directory)))


def dataset_tokenizer(dataset: Dataset) -> Tokenizer:
    """The tokenizer of a dataset that is open already."""
    manifest = dataset.manifest
    if manifest.characters is not None:
        return CharTokenizer(manifest.characters)
    if manifest.tokenizer == "byte":
        return ByteTokenizer()
    if manifest.tokenizer == "ids":
        return IdsTokenizer(manifest.vocab_size)
    if _lacks_gpt2_ranks(dataset):
        return gpt2_tokenizer(download_gpt2_ranks(_NO_RANKS_HINT))
    table = next((name for name in TOKENIZER_FILES if name in manifest.sha256), TOKENIZER_JSON)
    return _parse_bpe_file(manifest.tokenizer, dataset.directory / table, _read_verified(dataset, table))


def end_of_text_id(dataset: Dataset) -> int | None:
    """The id between documents, where the tokenizer has one."""
    return dataset.manifest.vocab_size - 1 if _lacks_gpt2_ranks(dataset) else dataset_tokenizer(dataset).eot


def _lacks_gpt2_ranks(dataset: Dataset) -> bool:
    """nanoGPT's folders of GPT-2's tokens do not carry the table."""
    manifest = dataset.manifest
    return manifest.tokenizer == "gpt2" and not any(name in manifest.sha256 for name in TOKENIZER_FILES)


def load_folder_bpe(tokenizer: str, folder: Path) -> ByteLevelBpe:
    """gpt2 or bpe:N, from the file that a folder carries; `tokenizer`: its name, if it was given one."""
    path = next(
        (folder / name for name in TOKENIZER_FILES if (folder / name).is_file()), folder / TIKTOKEN_FILE
    )
    return _parse_bpe_file(tokenizer, path, _content(path))


def _parse_bpe_file(name: str, path: Path, content: bytes) -> ByteLevelBpe:
    try:
        return (
            parse_bpe(content, name) if path.name == TOKENIZER_JSON else gpt2_tokenizer(parse_ranks(content))
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(_damaged(path)) from error


def parse_bpe(content: bytes, name: str = "") -> ByteLevelBpe:
    """The BPE in a `tokenizer.json`, called bpe:N if no name is given; ValueError if it is none for us."""
    bpe = parse_tokenizer_json(content)
    files, ranks = {TOKENIZER_JSON: content}, bpe.ranks
    if ranks is not None:
        usual = "gpt2" if (len(ranks), bpe.pattern) == (50256, GPT2_PATTERN) else f"bpe:{len(ranks) + 1}"
        return BytePairTokenizer(name or usual, ranks, files, bpe.pattern)
    tokenizer = HuggingFaceBpeTokenizer(name, files, bpe.pattern)
    try:
        size = tokenizer.vocab_size
    except ValueError:
        raise
    except Exception as error:  # the library's own errors have no other class
        raise ValueError(str(error)) from error
    return replace(tokenizer, name=name or f"bpe:{size}")


def _read_verified(dataset: Dataset, name: str) -> bytes:
    """A file that is what the manifest says it is."""
    content = _content(dataset.directory / name)
    if hashlib.sha256(content).hexdigest() != dataset.manifest.sha256.get(name):
        raise UserError(_damaged(dataset.directory / name))
    return content


def _content(path: Path) -> bytes:
    try:
        return read_small_file(path)
    except OSError as error:
        raise UserError(_damaged(path)) from error


def _damaged(path: Path) -> str:
    return f"{path} is missing or damaged: prepare the dataset again with --overwrite"


def write_tokenizer(folder: Path, dataset: Dataset) -> None:
    """Write what `load_tokenizer(folder)` needs, so that a run can do without its dataset.

    A tokenizer that is there already is the run's own, and stays; UserError if the dataset has another.
    """
    names = [name for name in TOKENIZER_FILES if name in dataset.manifest.sha256]
    contents = {name: _read_verified(dataset, name) for name in names}
    if (carried := _read_run_tokenizer(folder)) is not None:
        if dataset_tokenizer_digest(carried) != dataset_tokenizer_digest(dataset):
            raise UserError(
                f"{dataset.directory} has another tokenizer than {folder}, which is never overwritten: "
                "use the run's own dataset, or start a new run in another --out_dir"
            )
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            atomic_write(folder / name, content)
        write_manifest(folder, dataset.manifest)  # last: it vouches for the others
        fsync_path(folder)
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written to ({error.strerror}): choose another --out_dir"
        ) from error


def _read_run_tokenizer(folder: Path) -> Dataset | None:
    """The tokenizer of a run, if it is there and undamaged."""
    try:
        manifest = read_stored_manifest(folder)
        if manifest is None:
            return None
        carried = Dataset(folder, manifest)
        for name in TOKENIZER_FILES:
            if name in manifest.sha256:
                _read_verified(carried, name)
    except UserError:  # damaged: it is written again, from the dataset
        return None
    return carried


# --- identity ---

# Of OpenAI's own table, which nanoGPT's folders mean and do not carry.
GPT2_TOKENIZER_DIGEST = "e490d0134e1108be06594316d9c65ae7630e3d7ad860e775223902566defc9c0"


def dataset_tokenizer_digest(dataset: Dataset) -> str:
    """The digest of its tokenizer; it does not depend on whether GPT-2's table is at hand."""
    return (
        GPT2_TOKENIZER_DIGEST if _lacks_gpt2_ranks(dataset) else tokenizer_digest(dataset_tokenizer(dataset))
    )


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """A SHA-256 of what decides which text becomes which ids. Names and layouts of files do not."""
    content: list[Any]
    if isinstance(tokenizer, BytePairTokenizer):
        content = ["bpe", tokenizer.pattern, dump_ranks(tokenizer.ranks).decode()]
    elif isinstance(tokenizer, HuggingFaceBpeTokenizer):
        document = json.loads(tokenizer.files[TOKENIZER_JSON])
        merges = parse_tokenizer_json(tokenizer.files[TOKENIZER_JSON]).merges
        ids = sorted((id, token.hex()) for id, token in tokenizer.bytes_by_id.items())
        flags = [{**token, "id": None} for token in document.get("added_tokens") or []]
        whole_words = bool(document["model"].get("ignore_merges"))
        content = ["numbered", tokenizer.pattern, ids, merges, flags, whole_words]
    elif isinstance(tokenizer, CharTokenizer):
        content = ["char", tokenizer.characters]
    else:
        content = [type(tokenizer).__name__, tokenizer.vocab_size]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _codepoints(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")
