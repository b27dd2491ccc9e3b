"""Which text is for training, and which for validation.

One text is cut once, its tail for validation, as in nanoGPT. Several documents are split by a hash of their
content: a document keeps its split whatever else is in the folder, and two copies of a document are always in
the same split.
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
from glassgpt.errors import UserError, collect_problems, user_error_for_files

_UNICODE_CODEPOINTS = 0x110000


# --- documents that are read several times ---


@dataclass(frozen=True)
class DocumentScan:
    """Result of one pass over the documents. Lengths are in characters (bytes for raw bytes)."""

    documents: tuple[Document, ...]
    lengths: tuple[int, ...]
    digests: tuple[bytes, ...]
    # All distinct characters, sorted: the vocabulary of the char tokenizer.
    characters: str
    # How texts that were not plain UTF-8 were converted, and how many of them.
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
                inside = chunk[max(0, self.start - position) : max(0, self.stop - position)]
                if inside:
                    yield inside
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
    """Reads every document once. The error names all documents that are not UTF-8, not only the first."""
    occurs = np.zeros(_UNICODE_CODEPOINTS, dtype=np.bool_)
    lengths: list[int] = []
    digests: list[bytes] = []
    problems: list[str] = []
    changes: list[str] = []
    for document in documents:
        length, digest = 0, hashlib.sha256()
        with collect_problems(problems):
            for text in document.text(encoding, changes=changes):
                raw = text.encode(encoding)
                length += len(text)
                digest.update(raw)
                occurs[np.frombuffer(text.encode("utf-32-le"), dtype="<u4")] = True
                advance(len(raw))
        lengths.append(length)
        digests.append(digest.digest())
    if problems:
        raise user_error_for_files(problems)
    characters = "".join(map(chr, np.flatnonzero(occurs)))
    return DocumentScan(tuple(documents), tuple(lengths), tuple(digests), characters, Counter(changes))


def split_documents(scan: DocumentScan, val_fraction: float) -> Split:
    """By content hash if that gives about val_fraction of the text; else the tail is for validation."""
    total = sum(scan.lengths)
    if total < 2:
        raise UserError(
            f"{scan.documents[0].path} has {total} character, which cannot be split: bring more text"
        )
    tail_reason = f"the last {val_fraction:.4g} of the text is for validation"
    if len(scan.documents) == 1:
        return _split_by_tail(scan, val_fraction, tail_reason)
    train: list[Span] = []
    val: list[Span] = []
    for document, length, digest in zip(scan.documents, scan.lengths, scan.digests, strict=True):
        # The first 48 bits of the digest as a number in [0, 1).
        is_val = int.from_bytes(digest[:6], "big") / 2**48 < val_fraction
        (val if is_val else train).append(Span(document, 0, length))
    share = sum(span.stop for span in val) / total
    # With few documents, or one much larger than the rest, the hash can give a very uneven or empty split.
    if abs(share - val_fraction) <= min(val_fraction, 1 - val_fraction) / 2:
        reason = f"{len(val)} of {len(scan.documents)} documents, chosen by a hash of their content"
        return Split(tuple(train), tuple(val), f"{reason}, are for validation: {share:.1%} of the text")
    return _split_by_tail(
        scan, val_fraction, f"{tail_reason}; documents chosen by a hash would have made it {share:.1%}"
    )


def _split_by_tail(scan: DocumentScan, val_fraction: float, reason: str) -> Split:
    total = sum(scan.lengths)
    # nanoGPT's int(n * 0.9); the bounds only matter for texts of a few characters.
    cut = min(max(int(total * (1 - val_fraction)), 1), total - 1)
    train: list[Span] = []
    val: list[Span] = []
    offset = 0
    for document, length in zip(scan.documents, scan.lengths, strict=True):
        cut_inside = min(max(cut - offset, 0), length)
        if cut_inside > 0:
            train.append(Span(document, 0, cut_inside))
        if cut_inside < length:
            val.append(Span(document, cut_inside, length))
        offset += length
    return Split(tuple(train), tuple(val), reason)


# --- documents of a corpus, by their keys ---


def document_key(text: bytes) -> int:
    """64 bits of a document's SHA-256: they decide its split, and identify a copy of it."""
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big")


def is_validation_mask(keys: NDArray[np.uint64], val_fraction: float) -> NDArray[np.bool_]:
    """The split of documents by their keys: the same as the hash split of `split_documents`."""
    return (keys >> np.uint64(16)).astype(np.float64) / 2**48 < val_fraction
