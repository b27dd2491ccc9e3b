"""Which text is for training and which for validation: a list of spans each, decided before encoding.

One document is cut once, its tail for validation, as nanoGPT does. Several documents are sorted by a
hash of their content, so that a document keeps its split whatever else is in the folder, and two copies
of one document never land on both sides.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from glassgpt.data.sources import CHUNK_BYTES, Document
from glassgpt.errors import UserError, user_error_for_files

_UNICODE_CODEPOINTS = 0x110000


@dataclass(frozen=True)
class DocumentScan:
    """What one pass over the documents found. Lengths are in characters (bytes for raw bytes)."""

    documents: tuple[Document, ...]
    lengths: tuple[int, ...]
    digests: tuple[bytes, ...]
    # Every different character, sorted: the vocabulary of the char tokenizer.
    characters: str
    # What was done to texts that were not plain UTF-8, and to how many of them.
    changes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Span:
    """Characters start .. stop of a document."""

    document: Document
    start: int
    stop: int

    def text(self, encoding: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[str]:
        position = 0
        with contextlib.closing(self.document.text(encoding, chunk_bytes)) as chunks:
            for chunk in chunks:
                wanted = chunk[max(0, self.start - position) : max(0, self.stop - position)]
                if wanted:
                    yield wanted
                position += len(chunk)
                if position >= self.stop:
                    return
        raise UserError(f"{self.document.path} became shorter while it was read: run the command again")


@dataclass(frozen=True)
class Split:
    train: tuple[Span, ...]
    val: tuple[Span, ...]
    # How it was decided, for the manifest.
    reason: str


def scan_documents(
    documents: Sequence[Document], encoding: str, advance: Callable[[int], None]
) -> DocumentScan:
    """Read every document once. Those that are not UTF-8 are all named, not only the first."""
    seen = np.zeros(_UNICODE_CODEPOINTS, dtype=np.bool_)
    lengths: list[int] = []
    digests: list[bytes] = []
    problems: list[str] = []
    changes: list[str] = []
    for document in documents:
        length, digest = 0, hashlib.sha256()
        try:
            for text in document.text(encoding, changes=changes):
                raw = text.encode(encoding)
                length += len(text)
                digest.update(raw)
                seen[np.frombuffer(text.encode("utf-32-le"), dtype="<u4")] = True
                advance(len(raw))
        except UserError as error:
            problems += error.problems
        lengths.append(length)
        digests.append(digest.digest())
    if problems:
        raise user_error_for_files(problems)
    characters = "".join(map(chr, np.flatnonzero(seen)))
    return DocumentScan(tuple(documents), tuple(lengths), tuple(digests), characters, Counter(changes))


def split_documents(survey: DocumentScan, val_fraction: float) -> Split:
    """By content hash when that gives about val_fraction of the text; else the tail is for validation."""
    total = sum(survey.lengths)
    if total < 2:
        raise UserError(
            f"{survey.documents[0].path} has {total} character, which cannot be split: bring more text"
        )
    tail = f"the last {val_fraction:.4g} of the text is for validation"
    if len(survey.documents) == 1:
        return _by_tail(survey, val_fraction, tail)
    whole = [Span(d, 0, length) for d, length in zip(survey.documents, survey.lengths, strict=True)]
    is_val = [_unit_interval(digest) < val_fraction for digest in survey.digests]
    train = tuple(span for span, val in zip(whole, is_val, strict=True) if not val)
    val = tuple(span for span, val in zip(whole, is_val, strict=True) if val)
    share = sum(span.stop for span in val) / total
    # Few documents, or one that dwarfs the rest, can hash into a split nobody asked for, or an empty one.
    if abs(share - val_fraction) <= min(val_fraction, 1 - val_fraction) / 2:
        reason = f"{len(val)} of {len(whole)} documents, chosen by a hash of their content"
        return Split(train, val, f"{reason}, are for validation: {share:.1%} of the text")
    return _by_tail(
        survey, val_fraction, f"{tail}; documents chosen by a hash would have made it {share:.1%}"
    )


def _unit_interval(digest: bytes) -> float:
    """A digest as a number in [0, 1)."""
    return int.from_bytes(digest[:6], "big") / 2**48


def document_key(text: bytes) -> int:
    """64 bits of a document's digest: what tells its side of the split, and a copy of it."""
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big")


def is_validation_mask(keys: NDArray[np.uint64], val_fraction: float) -> NDArray[np.bool_]:
    """The side of documents by their keys: the same as `split_documents` finds by hash."""
    return (keys >> np.uint64(16)).astype(np.float64) / 2**48 < val_fraction


def _by_tail(survey: DocumentScan, val_fraction: float, reason: str) -> Split:
    total = sum(survey.lengths)
    # nanoGPT's int(n * 0.9); the bounds only matter for texts of a few characters.
    cut = min(max(int(total * (1 - val_fraction)), 1), total - 1)
    train: list[Span] = []
    val: list[Span] = []
    begin = 0
    for document, length in zip(survey.documents, survey.lengths, strict=True):
        here = min(max(cut - begin, 0), length)
        if here > 0:
            train.append(Span(document, 0, here))
        if here < length:
            val.append(Span(document, here, length))
        begin += length
    return Split(tuple(train), tuple(val), reason)
