"""The tokenizer of a corpus. A BPE is learned from a sample of bounded size, and says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import numpy as np

from glassgpt.data.bpe_chunks import cut_for_learning
from glassgpt.data.corpus import Corpus
from glassgpt.data.encoder import texts_of
from glassgpt.data.prepare_options import PrepareOptions, asked_tokenizer
from glassgpt.data.split import are_validation, document_key
from glassgpt.data.tokenizers import (
    ByteLevelBpe,
    ByteTokenizer,
    bpe_size,
    carried_tokenizer,
    train_bpe,
)
from glassgpt.format import plural

# A BPE is learned from so much text: more hardly changes it, and takes long.
SAMPLE_BYTES = 100_000_000
_SAMPLED_PIECES = 64
_USUAL = "bpe:8192"

T = TypeVar("T")


def corpus_tokenizer_name(options: PrepareOptions) -> tuple[str, str]:
    """And why it."""
    name = asked_tokenizer(options)
    if options.tokenizer != "auto":
        return name, "as asked"
    if name != "auto":
        return name, f"the usual one for {options.dataset}"
    return _USUAL, "the usual one for documents in bulk"


def make_tokenizer(
    options: PrepareOptions,
    corpus: Corpus,
    given: ByteLevelBpe | None,
    val_fraction: float,
    note: Callable[[str], None],
    show: Callable[[str, int], AbstractContextManager[Callable[[int], None]]],
) -> ByteLevelBpe | ByteTokenizer:
    """`given`: what --tokenizer=gpt2 means, if that is asked for.

    `show` a pass over so many bytes, as `passing` does.
    """
    name, reason = corpus_tokenizer_name(options)
    note(f"tokenizer {name}: {reason}")
    if name == "byte":
        return ByteTokenizer()
    if given is not None:
        if given.name != name:
            note(f"{options.tokenizer_files} has a BPE of another kind than GPT-2's: it is {given.name}")
        return given
    size = bpe_size(name)
    assert size is not None, name
    sample = Sample(corpus, options.text_column, val_fraction)
    with show(f"learning {name}, from {SAMPLE_BYTES / 1e6:,.0f} MB at most", SAMPLE_BYTES) as advance:
        learned = train_bpe(sample.texts(advance), size)
    note(f"{name} was learned from {sample.describe()}")
    if learned.vocab_size < size:
        note(f"the text is too small for {size} tokens, it yields {learned.vocab_size}")
    return learned


def tokenizer_made_before(options: PrepareOptions, folder: Path) -> ByteLevelBpe | ByteTokenizer:
    """The one that an earlier attempt made: another BPE would not fit what is written already."""
    name, _ = corpus_tokenizer_name(options)
    return ByteTokenizer() if name == "byte" else carried_tokenizer(name if bpe_size(name) else "", folder)


class Sample:
    """Training documents from the beginnings of files all over a corpus, about `SAMPLE_BYTES` of text."""

    def __init__(self, corpus: Corpus, column: str, val_fraction: float) -> None:
        self._pieces = spread(corpus.pieces, _SAMPLED_PIECES)
        self._column, self._val_fraction = column, val_fraction
        self._text_bytes = 0
        self._is_whole = len(self._pieces) == len(corpus.pieces)

    def texts(self, advance: Callable[[int], None]) -> Iterator[str]:
        """The validation documents are not among them: a vocabulary that has seen them flatters them."""
        for piece in self._pieces:
            left = SAMPLE_BYTES // len(self._pieces)
            for parcel in piece.parcels():
                if left <= 0:
                    self._is_whole = False
                    break
                for text in self._training_texts(texts_of(parcel, self._column)[0]):
                    left -= len(text)
                    self._text_bytes += len(text)
                    for piece_of_text in cut_for_learning([text.decode()]):
                        yield piece_of_text
                        advance(len(piece_of_text.encode()))

    def _training_texts(self, texts: Sequence[bytes]) -> Iterator[bytes]:
        keys = np.array([document_key(text) for text in texts], dtype=np.uint64)
        are_held_out = are_validation(keys, self._val_fraction)
        return (text for text, is_held_out in zip(texts, are_held_out, strict=True) if not is_held_out)

    def describe(self) -> str:
        """Once all texts were taken."""
        if self._is_whole:
            return f"all training text, {self._text_bytes / 1e6:,.1f} MB"
        files = plural(len(self._pieces), "file")
        return f"a sample of the training text, {self._text_bytes / 1e6:,.1f} MB from {files}"


def spread(items: Sequence[T], most: int) -> list[T]:
    """At most so many of them, evenly."""
    wanted = min(most, len(items))
    return [items[i * len(items) // wanted] for i in range(wanted)]
