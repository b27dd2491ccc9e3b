"""Byte-level BPE: encode with one, train one, and cut text where no token is split.

    bpe = train_bpe(texts, vocab_size=8192)
    ids = bpe.encode("Hello")
    gpt2_tokenizer(download_gpt2_ranks()).encode("Hello")

Text is cut between words. GPT-2's word pattern always ends a word before a whitespace character that is
followed by a non-whitespace character: that character either begins the next word (" the") or stands alone
("\\n"), and whitespace before it is a separate word. A cut just after a newline, which looks safer, is not:
"\\n\\n" is one word at the end of a text, and two before a letter.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from glassgpt.data.bpe_table import (
    COMBINING_MARKS_PATTERN,
    END_OF_TEXT,
    GPT2_PATTERN,
    HF_COMBINING_MARKS_PATTERN,
    TIKTOKEN_FILE,
    MergeRanks,
    dump_ranks,
    parse_tokenizer_json,
    unicode_to_bytes,
)

if TYPE_CHECKING:
    import tiktoken
    from tokenizers import Tokenizer as HuggingFaceTokenizer

TOKENIZER_JSON = "tokenizer.json"
MIN_BPE_VOCAB_SIZE = 257  # the 256 bytes and <|endoftext|>
# The trainer allocates memory for all of them first, and the process dies if there is too little.
MAX_BPE_VOCAB_SIZE = 2**20

# Rust's whitespace, which the BPE word pattern uses: Python's \s has four control characters more.
_WHITESPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_UP_TO_LAST_BOUNDARY = re.compile(rf".*(?=[{_WHITESPACE}][^{_WHITESPACE}])", re.DOTALL)
# The look-behind keeps this linear: without it a long run would be tried again from each of its characters.
_LONG_WHITESPACE = re.compile(
    rf"(?<![{_WHITESPACE}])[{_WHITESPACE}]{{10000,}}(?=[{_WHITESPACE}][^{_WHITESPACE}])"
)
_MAX_UNSPLIT_CHARS = 2**24
# Training takes time in the square of a word's length: with a genome, or base64, it would never end.
_MAX_TRAINING_WORD_CHARS = 1000
_LONG_WORD = re.compile(
    rf"[^{_WHITESPACE}]{{{_MAX_TRAINING_WORD_CHARS + 1},}}|[{_WHITESPACE}]{{{_MAX_TRAINING_WORD_CHARS + 1},}}"
)
# The tokenizers library collects 256 texts before it counts words: small texts keep its memory small.
_TRAINING_CHUNK_CHARS = 2**16


# --- tokenizers ---


@dataclass(frozen=True)
class BytePairTokenizer:
    """gpt2 and bpe:N: byte-level BPE, run by tiktoken from a table of merge ranks."""

    name: str
    ranks: MergeRanks = field(repr=False)
    files: Mapping[str, bytes] = field(repr=False)
    pattern: str = GPT2_PATTERN  # splits text into words; tokens are merged inside a word

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
        # Special tokens are neither allowed nor disallowed: a literal <|endoftext|> is ordinary text.
        chunks = [
            self._encoding.encode_to_numpy(chunk, allowed_special=set(), disallowed_special=())
            for chunk in split_after_long_whitespace(text)
        ]
        return np.concatenate(chunks).astype(np.int64)

    def encode_documents(self, texts: Sequence[str]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The ids of all texts, <|endoftext|> after each, and how many ids each has.

        One call for all texts is faster than a call for each. tiktoken never merges across a special token,
        so each is encoded as if it were alone.
        """
        joined = END_OF_TEXT.join(texts) + END_OF_TEXT
        if joined.count(END_OF_TEXT) != len(texts) or _LONG_WHITESPACE.search(joined):
            return _encode_one_by_one(self, texts)
        ids = self._encoding.encode_to_numpy(joined, allowed_special={END_OF_TEXT})
        return ids, np.diff(np.flatnonzero(ids == self.eot), prepend=-1)

    def decode(self, ids: Iterable[int]) -> str:
        return self._encoding.decode([int(i) for i in ids], errors="replace")

    def token_bytes(self, id: int) -> bytes:
        return self._encoding.decode_single_token_bytes(int(id))


@dataclass(frozen=True)
class HuggingFaceBpeTokenizer:
    """A byte-level BPE whose ids are not in the order of its merges: run by the `tokenizers` library.

    So every text gets the same ids as in `transformers`, including those of added tokens. Special tokens are
    ordinary text, as with `BytePairTokenizer`.
    """

    name: str
    files: Mapping[str, bytes] = field(repr=False)
    pattern: str

    def __reduce__(self) -> tuple[type[HuggingFaceBpeTokenizer], tuple[Any, ...]]:
        # Without the library's object, which loses settings when it is pickled.
        return HuggingFaceBpeTokenizer, (self.name, self.files, self.pattern)

    @cached_property
    def _tokenizer(self) -> HuggingFaceTokenizer:
        from tokenizers import Tokenizer as HuggingFaceTokenizer

        tokenizer = HuggingFaceTokenizer.from_str(self.files[TOKENIZER_JSON].decode())
        tokenizer.encode_special_tokens = True
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def added_tokens(self) -> dict[int, str]:
        """Special tokens, and tokens that are matched before the text is split into words."""
        return {id: token.content for id, token in self._tokenizer.get_added_tokens_decoder().items()}

    @cached_property
    def bytes_by_id(self) -> dict[int, bytes]:
        """The bytes of each id. The ids need not be 0, 1, 2, ..."""
        tokens = {id: content.encode() for id, content in self.added_tokens.items()}
        for token, id in self._tokenizer.get_vocab(with_added_tokens=False).items():
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
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int64)

    def encode_documents(self, texts: Sequence[str]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The ids of all texts, <|endoftext|> (or a newline) after each, and how many ids each has."""
        return _encode_one_by_one(self, texts)

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(self.token_bytes(i) for i in ids).decode("utf-8", errors="replace")

    def token_bytes(self, id: int) -> bytes:
        return self.bytes_by_id.get(int(id), b"")  # a model may have rows for ids without a token


ByteLevelBpe = BytePairTokenizer | HuggingFaceBpeTokenizer


def _encode_one_by_one(
    tokenizer: ByteLevelBpe, texts: Sequence[str]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    separator = tokenizer.encode("\n") if tokenizer.eot is None else np.array([tokenizer.eot])
    documents = [np.concatenate([tokenizer.encode(text), separator]) for text in texts]
    lengths = np.array([len(ids) for ids in documents], dtype=np.int64)
    return np.concatenate([*documents, separator[:0]]), lengths


def gpt2_tokenizer(ranks: MergeRanks) -> BytePairTokenizer:
    return BytePairTokenizer("gpt2", ranks, {TIKTOKEN_FILE: dump_ranks(ranks)})


def bpe_vocab_size(name: str) -> int | None:
    """The N of "bpe:N", or None for any other name."""
    match = re.fullmatch(r"bpe:([0-9]{1,9})", name)
    return int(match[1]) if match else None


def parse_bpe(content: bytes, name: str = "") -> ByteLevelBpe:
    """The BPE in a `tokenizer.json`, called bpe:N if no name is given; ValueError if it is not supported."""
    bpe = parse_tokenizer_json(content)
    files, ranks = {TOKENIZER_JSON: content}, bpe.ranks
    if ranks is not None:
        is_gpt2 = (len(ranks), bpe.pattern) == (50256, GPT2_PATTERN)
        default_name = "gpt2" if is_gpt2 else f"bpe:{len(ranks) + 1}"
        return BytePairTokenizer(name or default_name, ranks, files, bpe.pattern)
    tokenizer = HuggingFaceBpeTokenizer(name, files, bpe.pattern)
    try:
        size = tokenizer.vocab_size
    except ValueError:
        raise
    except Exception as error:  # the library raises plain Exceptions
        raise ValueError(str(error)) from error
    return replace(tokenizer, name=name or f"bpe:{size}")


# --- training ---


def train_bpe(texts: Iterable[str], vocab_size: int) -> BytePairTokenizer:
    """Trains a byte-level BPE of `vocab_size` tokens; a small text may yield fewer.

    The `tokenizers` library trains it, tiktoken runs it: the same ids, many times faster.
    """
    from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
    from tokenizers import Tokenizer as HuggingFaceTokenizer

    trained = HuggingFaceTokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(HF_COMBINING_MARKS_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    # In another thread, so that Ctrl-C ends it: Python handles signals in its main thread only, and the
    # library would first finish the text, however long it is.
    stopped = threading.Event()
    with ThreadPoolExecutor(max_workers=1) as pool:
        try:  # around submit too: the signal may come as soon as the other thread runs
            stream = itertools.takewhile(lambda text: not stopped.is_set(), texts)
            training = pool.submit(trained.train_from_iterator, stream, trainer)
            while not training.done():
                wait([training], timeout=1)
        finally:
            stopped.set()
    training.result()
    # Added after training, so that it is the last id, as in GPT-2.
    trained.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
    content = trained.to_str(pretty=True).encode()
    ranks = parse_tokenizer_json(content).ranks
    assert ranks is not None
    return BytePairTokenizer(f"bpe:{vocab_size}", ranks, {TOKENIZER_JSON: content}, COMBINING_MARKS_PATTERN)


# --- chunk boundaries ---


def split_at_bpe_boundaries(chunks: Iterable[str], longest_uncut: int = _MAX_UNSPLIT_CHARS) -> Iterator[str]:
    """Re-cuts a stream of text so that encoding the chunks one by one equals encoding it whole.

    Text without a boundary for longer than `longest_uncut` is cut anywhere, rather than fill the memory.
    """
    pending = ""
    for chunk in chunks:
        pending += chunk
        match = _UP_TO_LAST_BOUNDARY.match(pending)
        cut = match.end() if match else 0
        if len(pending) - cut > longest_uncut:
            cut = len(pending)
        if cut:
            yield pending[:cut]
            pending = pending[cut:]
    if pending:
        yield pending


def split_for_bpe_training(chunks: Iterable[str]) -> Iterator[str]:
    """A text in small chunks for `train_bpe`. Very long words are cut."""
    small_chunks = (
        chunk[i : i + _TRAINING_CHUNK_CHARS]
        for chunk in chunks
        for i in range(0, len(chunk), _TRAINING_CHUNK_CHARS)
    )
    for text in split_at_bpe_boundaries(small_chunks, _TRAINING_CHUNK_CHARS):
        start = 0
        for match in _LONG_WORD.finditer(text):
            yield text[start : match.start()]
            for begin in range(match.start(), match.end(), _MAX_TRAINING_WORD_CHARS):
                yield text[begin : min(begin + _MAX_TRAINING_WORD_CHARS, match.end())]
            start = match.end()
        yield text[start:]


def split_after_long_whitespace(text: str) -> Iterator[str]:
    """Cuts after very long runs of whitespace, where tiktoken's regular expression runs out of stack."""
    start = 0
    for match in _LONG_WHITESPACE.finditer(text):
        yield text[start : match.end()]
        start = match.end()
    yield text[start:]
