"""Files of documents, read in parcels of about a megabyte: JSON lines and text files. (Parquet: parquet.py.)

A parcel holds its documents as they lie in the file. Taking texts out of them (parsing JSON, decoding UTF-8)
is work, and workers do it. Nothing here holds more than one parcel and one block of a file, so memory does
not depend on how large a file is; one document larger than `MOST_BYTES` is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from glassgpt.data import text_encoding
from glassgpt.data.decompress import COMPRESSED_SUFFIXES, DecompressedFile
from glassgpt.errors import UserError

TARGET_BATCH_BYTES = 2**20
BLOCK_BYTES = 2**20
# Of one document. The text and its tokens are in memory at once, in every worker.
MAX_DOCUMENT_BYTES = 2**28

JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")
PARQUET_SUFFIX = ".parquet"


@dataclass(frozen=True)
class DocumentBatch:
    """Some documents of a file, as they lie there."""

    path: Path
    # The number in its file of the first one.
    first_index: int
    # `json`: each item is a line of JSON that has the text somewhere in it. `text`: each item is the text.
    kind: Literal["json", "text"]
    items: list[bytes]
    # About how much of the file this was, for the progress bar.
    disk_bytes: int
    # Of documents that are files by themselves.
    files: tuple[Path, ...] = ()

    @property
    def next_index(self) -> int:
        return self.first_index + len(self.items)

    def describe_location(self, item: int) -> str:
        """An item's place, for whoever must look at it."""
        if self.files:
            return str(self.files[item])
        return f"{self.path}, {'line' if self.kind == 'json' else 'document'} {self.first_index + item + 1:,}"


class DocumentReader(Protocol):
    """What a corpus is made of."""

    @property
    def path(self) -> Path: ...
    @property
    def size_bytes(self) -> int:
        """On disk."""

    def read_batches(self, skip: int = 0) -> Iterator[DocumentBatch]:
        """All documents but the first `skip`."""


def is_document_file(name: str) -> bool:
    """Whether a file has many documents in it, going by its name."""
    path = Path(name.lower())
    if path.suffix in COMPRESSED_SUFFIXES:
        return Path(path.stem).suffix in (
            *JSON_LINES_SUFFIXES,
            ".json",
        )  # lines too; a plain .json is as a rule one object
    return path.suffix in (*JSON_LINES_SUFFIXES, PARQUET_SUFFIX)


def is_parquet(path: Path) -> bool:
    return path.suffix.lower() == PARQUET_SUFFIX


# --- text files ---


@dataclass(frozen=True)
class TextFilesReader:
    """Files that are one document each."""

    path: Path  # the folder they are in, or a pattern
    files: tuple[Path, ...]
    size_bytes: int

    def read_batches(self, skip: int = 0) -> Iterator[DocumentBatch]:
        items: list[bytes] = []
        first, size, disk_bytes = skip, 0, 0
        for after, path in enumerate(self.files[skip:], skip + 1):
            items.append(_whole_file(path))
            size += len(items[-1])
            disk_bytes += path.stat().st_size
            if size >= TARGET_BATCH_BYTES or after == len(self.files):
                yield DocumentBatch(self.path, first, "text", items, disk_bytes, self.files[first:after])
                items, first, size, disk_bytes = [], after, 0, 0


def _whole_file(path: Path) -> bytes:
    with DecompressedFile(path) as file:
        content = file.read(MAX_DOCUMENT_BYTES + 1)
    if len(content) > MAX_DOCUMENT_BYTES:
        raise UserError(
            f"{path} is one document of more than {MAX_DOCUMENT_BYTES / 1e6:,.0f} MB: prepare it by itself, "
            f"glass prepare {path}, or cut it into documents"
        )
    return content


def is_binary(path: Path) -> bool:
    """Going by what is in the file, if it is compressed."""
    with DecompressedFile(path) as file:
        return text_encoding.is_binary(file.read(8192))


# --- lines of JSON ---


@dataclass(frozen=True)
class JsonLinesReader:
    """A file with a JSON object on each line, maybe compressed."""

    path: Path
    size_bytes: int

    def read_batches(self, skip: int = 0) -> Iterator[DocumentBatch]:
        first = told = 0
        with DecompressedFile(self.path) as file:
            for lines in _read_line_blocks(file, self.path):
                read_bytes = file.disk_bytes()
                if first + len(lines) > skip:
                    kept = lines[max(0, skip - first) :]
                    yield DocumentBatch(self.path, max(first, skip), "json", kept, read_bytes - told)
                told = read_bytes
                first += len(lines)


def _read_line_blocks(file: DecompressedFile, path: Path) -> Iterator[list[bytes]]:
    """The lines of a file, as many at a time as end within a block."""
    pending: list[bytes] = []
    size = number = 0
    while block := file.read(BLOCK_BYTES):
        cut = block.rfind(b"\n") + 1
        pending.append(block[:cut] if cut else block)
        if cut:
            lines = b"".join(pending)[:-1].split(b"\n")
            number += len(lines)
            yield lines
            pending, size = [block[cut:]], 0
        size += len(pending[-1])
        if size > MAX_DOCUMENT_BYTES:
            raise UserError(
                f"{path}, line {number + 1:,} is longer than {MAX_DOCUMENT_BYTES / 1e6:,.0f} MB: "
                "a line is one document; put line breaks between documents"
            )
    if last := b"".join(pending):
        yield [last]
