"""The tokenizer of a corpus. A BPE is trained on a sample of bounded size, and a note says so."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import numpy as np

from glassgpt.data.bpe import ByteLevelBpe, bpe_vocab_size, split_for_bpe_training, train_bpe
from glassgpt.data.corpus import Corpus
from glassgpt.data.encoder import extract_texts
from glassgpt.data.prepare_options import PrepareOptions, requested_tokenizer
from glassgpt.data.split import document_key, is_validation_mask
from glassgpt.data.tokenizers import ByteTokenizer, load_folder_bpe
from glassgpt.format import pluralize

# A BPE is trained on at most this much text: more hardly changes it, and takes long.
MAX_BPE_SAMPLE_BYTES = 100_000_000
_MAX_SAMPLED_FILES = 64
_DEFAULT_TOKENIZER = "bpe:8192"

T = TypeVar("T")


def choose_corpus_tokenizer(options: PrepareOptions) -> tuple[str, str]:
    """The name of the tokenizer, and the reason."""
    name = requested_tokenizer(options)
    if options.tokenizer != "auto":
        return name, "as asked"
    if name != "auto":
        return name, f"the usual one for {options.dataset}"
    return _DEFAULT_TOKENIZER, "the usual one for documents in bulk"


def make_tokenizer(
    options: PrepareOptions,
    corpus: Corpus,
    gpt2: ByteLevelBpe | None,
    val_fraction: float,
    note: Callable[[str], None],
    show: Callable[[str, int], AbstractContextManager[Callable[[int], None]]],
) -> ByteLevelBpe | ByteTokenizer:
    """`gpt2`: the tokenizer for --tokenizer=gpt2, if that is requested; `show`: as `show_byte_progress`."""
    name, reason = choose_corpus_tokenizer(options)
    note(f"tokenizer {name}: {reason}")
    if name == "byte":
        return ByteTokenizer()
    if gpt2 is not None:
        if gpt2.name != name:
            note(f"{options.tokenizer_files} has a BPE of another kind than GPT-2's: it is {gpt2.name}")
        return gpt2
    size = bpe_vocab_size(name)
    assert size is not None, name
    sample = BpeTrainingSample(corpus, options.text_column, val_fraction)
    label = f"training {name}, on {MAX_BPE_SAMPLE_BYTES / 1e6:,.0f} MB at most"
    with show(label, MAX_BPE_SAMPLE_BYTES) as advance:
        trained = train_bpe(sample.texts(advance), size)
    note(f"{name} was trained on {sample.describe()}")
    if trained.vocab_size < size:
        note(f"the text is too small for {size} tokens, it yields {trained.vocab_size}")
    return trained


def load_previous_tokenizer(options: PrepareOptions, folder: Path) -> ByteLevelBpe | ByteTokenizer:
    """The tokenizer of an earlier attempt: the shards that it wrote have its ids."""
    name, _ = choose_corpus_tokenizer(options)
    if name == "byte":
        return ByteTokenizer()
    return load_folder_bpe(name if bpe_vocab_size(name) else "", folder)


class BpeTrainingSample:
    """Training documents from the beginnings of files all over a corpus, up to MAX_BPE_SAMPLE_BYTES."""

    def __init__(self, corpus: Corpus, column: str, val_fraction: float) -> None:
        self._readers = evenly_spaced(corpus.readers, _MAX_SAMPLED_FILES)
        self._column, self._val_fraction = column, val_fraction
        self._text_bytes = 0
        self._is_whole = len(self._readers) == len(corpus.readers)

    def texts(self, advance: Callable[[int], None]) -> Iterator[str]:
        """Without validation documents: a vocabulary trained on them would lower their loss."""
        for reader in self._readers:
            left_bytes = MAX_BPE_SAMPLE_BYTES // len(self._readers)
            for batch in reader.read_batches():
                if left_bytes <= 0:
                    self._is_whole = False
                    break
                texts, _, _ = extract_texts(batch, self._column)
                keys = np.array([document_key(text) for text in texts], dtype=np.uint64)
                is_val = is_validation_mask(keys, self._val_fraction)
                for text in itertools.compress(texts, ~is_val):
                    left_bytes -= len(text)
                    self._text_bytes += len(text)
                    for chunk in split_for_bpe_training([text.decode()]):
                        yield chunk
                        advance(len(chunk.encode()))

    def describe(self) -> str:
        """Call it after `texts` is exhausted."""
        if self._is_whole:
            return f"all training text, {self._text_bytes / 1e6:,.1f} MB"
        files = pluralize(len(self._readers), "file")
        return f"a sample of the training text, {self._text_bytes / 1e6:,.1f} MB from {files}"


def evenly_spaced(items: Sequence[T], limit: int) -> list[T]:
    """At most `limit` items, evenly spaced."""
    count = min(limit, len(items))
    return [items[i * len(items) // count] for i in range(count)]
