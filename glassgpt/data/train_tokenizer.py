"""The tokenizer of a corpus. A BPE is learned from a sample of bounded size, and says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import numpy as np

from glassgpt.data.bpe_chunks import split_for_bpe_training
from glassgpt.data.corpus import Corpus
from glassgpt.data.encoder import extract_texts
from glassgpt.data.prepare_options import PrepareOptions, requested_tokenizer
from glassgpt.data.split import document_key, is_validation_mask
from glassgpt.data.tokenizers import ByteLevelBpe, ByteTokenizer, bpe_vocab_size, load_folder_bpe, train_bpe
from glassgpt.format import pluralize

# A BPE is learned from so much text: more hardly changes it, and takes long.
MAX_BPE_SAMPLE_BYTES = 100_000_000
_MAX_SAMPLED_FILES = 64
_DEFAULT_TOKENIZER = "bpe:8192"

T = TypeVar("T")


def choose_corpus_tokenizer(options: PrepareOptions) -> tuple[str, str]:
    """And why it."""
    name = requested_tokenizer(options)
    if options.tokenizer != "auto":
        return name, "as asked"
    if name != "auto":
        return name, f"the usual one for {options.dataset}"
    return _DEFAULT_TOKENIZER, "the usual one for documents in bulk"


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
    name, reason = choose_corpus_tokenizer(options)
    note(f"tokenizer {name}: {reason}")
    if name == "byte":
        return ByteTokenizer()
    if given is not None:
        if given.name != name:
            note(f"{options.tokenizer_files} has a BPE of another kind than GPT-2's: it is {given.name}")
        return given
    size = bpe_vocab_size(name)
    assert size is not None, name
    sample = BpeTrainingSample(corpus, options.text_column, val_fraction)
    with show(
        f"learning {name}, from {MAX_BPE_SAMPLE_BYTES / 1e6:,.0f} MB at most", MAX_BPE_SAMPLE_BYTES
    ) as advance:
        learned = train_bpe(sample.texts(advance), size)
    note(f"{name} was learned from {sample.describe()}")
    if learned.vocab_size < size:
        note(f"the text is too small for {size} tokens, it yields {learned.vocab_size}")
    return learned


def load_previous_tokenizer(options: PrepareOptions, folder: Path) -> ByteLevelBpe | ByteTokenizer:
    """The one that an earlier attempt made: another BPE would not fit what is written already."""
    name, _ = choose_corpus_tokenizer(options)
    return (
        ByteTokenizer() if name == "byte" else load_folder_bpe(name if bpe_vocab_size(name) else "", folder)
    )


class BpeTrainingSample:
    """Training documents from the beginnings of files all over a corpus, about `SAMPLE_BYTES` of text."""

    def __init__(self, corpus: Corpus, column: str, val_fraction: float) -> None:
        self._pieces = evenly_spaced(corpus.readers, _MAX_SAMPLED_FILES)
        self._column, self._val_fraction = column, val_fraction
        self._text_bytes = 0
        self._is_whole = len(self._pieces) == len(corpus.readers)

    def texts(self, advance: Callable[[int], None]) -> Iterator[str]:
        """The validation documents are not among them: a vocabulary that has seen them flatters them."""
        for piece in self._pieces:
            left = MAX_BPE_SAMPLE_BYTES // len(self._pieces)
            for parcel in piece.read_batches():
                if left <= 0:
                    self._is_whole = False
                    break
                for text in self._training_texts(extract_texts(parcel, self._column)[0]):
                    left -= len(text)
                    self._text_bytes += len(text)
                    for piece_of_text in split_for_bpe_training([text.decode()]):
                        yield piece_of_text
                        advance(len(piece_of_text.encode()))

    def _training_texts(self, texts: Sequence[bytes]) -> Iterator[bytes]:
        keys = np.array([document_key(text) for text in texts], dtype=np.uint64)
        are_held_out = is_validation_mask(keys, self._val_fraction)
        return (text for text, is_held_out in zip(texts, are_held_out, strict=True) if not is_held_out)

    def describe(self) -> str:
        """Once all texts were taken."""
        if self._is_whole:
            return f"all training text, {self._text_bytes / 1e6:,.1f} MB"
        files = pluralize(len(self._pieces), "file")
        return f"a sample of the training text, {self._text_bytes / 1e6:,.1f} MB from {files}"


def evenly_spaced(items: Sequence[T], most: int) -> list[T]:
    """At most so many of them, evenly."""
    wanted = min(most, len(items))
    return [items[i * len(items) // wanted] for i in range(wanted)]
