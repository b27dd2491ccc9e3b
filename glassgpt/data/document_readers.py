"""Files of documents (JSON lines, parquet, text files), read in batches of about a megabyte.

    for batch in ParquetReader(path, path.stat().st_size, "text").read_batches(): ...

A batch holds its documents as they are in the file. Extracting the texts (parsing JSON, decoding UTF-8) is
left to worker processes. A reader holds one batch and one block of a file in memory, however large the file
is. A document larger than MAX_DOCUMENT_BYTES is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from glassgpt.data.text_files import (
    COMPRESSED_SUFFIXES,
    INSTALL_DATA_EXTRA_HINT,
    DecompressedFile,
    damaged_file_message,
    is_binary,
)
from glassgpt.errors import UserError

TARGET_BATCH_BYTES = 2**20
BLOCK_BYTES = 2**20
# The text and its tokens are in memory at once, in every worker.
MAX_DOCUMENT_BYTES = 2**28

JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")
PARQUET_SUFFIX = ".parquet"

_MAX_ROWS_PER_READ = 256
_TARGET_READ_BYTES = 2**24  # fewer rows per read where they are long: about this much text
_MIN_DICTIONARY_ROWS_PER_READ = 4  # hardly slower per row than many


@dataclass(frozen=True)
class DocumentBatch:
    """Consecutive documents of a file, as they are in the file."""

    path: Path
    # Number of the first document in its file.
    first_index: int
    # `json`: each item is a line of JSON with the text in one of its fields. `text`: each item is the text.
    kind: Literal["json", "text"]
    items: list[bytes]
    # About how many bytes of the file these are, for the progress bar.
    disk_bytes: int
    # The file of each document, where a document is a whole file.
    files: tuple[Path, ...] = ()

    @property
    def next_index(self) -> int:
        return self.first_index + len(self.items)

    def describe_location(self, item: int) -> str:
        """Where an item is, for error messages."""
        if self.files:
            return str(self.files[item])
        return f"{self.path}, {'line' if self.kind == 'json' else 'document'} {self.first_index + item + 1:,}"


class DocumentReader(Protocol):
    """A file of documents, or several text files: a part of a corpus."""

    @property
    def path(self) -> Path: ...
    @property
    def size_bytes(self) -> int:
        """On disk."""

    def read_batches(self, skip: int = 0) -> Iterator[DocumentBatch]:
        """All documents but the first `skip`."""


def is_document_file(name: str) -> bool:
    """Whether a file holds many documents, by its name."""
    path = Path(name.lower())
    if path.suffix in COMPRESSED_SUFFIXES:
        # A compressed .json holds lines too, as a rule; a plain .json is usually one object.
        return Path(path.stem).suffix in (*JSON_LINES_SUFFIXES, ".json")
    return path.suffix in (*JSON_LINES_SUFFIXES, PARQUET_SUFFIX)


def is_parquet(path: Path) -> bool:
    return path.suffix.lower() == PARQUET_SUFFIX


def is_binary_file(path: Path) -> bool:
    """Whether the content is binary; a compressed file is decompressed first."""
    with DecompressedFile(path) as file:
        return is_binary(file.read(8192))


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
        for end, path in enumerate(self.files[skip:], skip + 1):
            with DecompressedFile(path) as file:
                content = file.read(MAX_DOCUMENT_BYTES + 1)
            if len(content) > MAX_DOCUMENT_BYTES:
                raise UserError(
                    f"{path} is one document of more than {MAX_DOCUMENT_BYTES / 1e6:,.0f} MB: prepare it by "
                    f"itself, glass prepare {path}, or cut it into documents"
                )
            items.append(content)
            size += len(content)
            disk_bytes += path.stat().st_size
            if size >= TARGET_BATCH_BYTES or end == len(self.files):
                yield DocumentBatch(self.path, first, "text", items, disk_bytes, self.files[first:end])
                items, first, size, disk_bytes = [], end, 0, 0


# --- JSON lines ---


@dataclass(frozen=True)
class JsonLinesReader:
    """A file with a JSON object on each line, maybe compressed."""

    path: Path
    size_bytes: int

    def read_batches(self, skip: int = 0) -> Iterator[DocumentBatch]:
        first = reported_bytes = 0
        with DecompressedFile(self.path) as file:
            for lines in self._read_line_blocks(file):
                read_bytes = file.disk_bytes()
                if first + len(lines) > skip:
                    items = lines[max(0, skip - first) :]
                    yield DocumentBatch(
                        self.path, max(first, skip), "json", items, read_bytes - reported_bytes
                    )
                reported_bytes = read_bytes
                first += len(lines)

    def _read_line_blocks(self, file: DecompressedFile) -> Iterator[list[bytes]]:
        """The lines of the file, as many at a time as end within a block."""
        pending: list[bytes] = []
        pending_bytes = line_count = 0
        while block := file.read(BLOCK_BYTES):
            cut = block.rfind(b"\n") + 1
            pending.append(block[:cut] if cut else block)
            if cut:
                lines = b"".join(pending)[:-1].split(b"\n")
                line_count += len(lines)
                yield lines
                pending, pending_bytes = [block[cut:]], 0
            pending_bytes += len(pending[-1])
            if pending_bytes > MAX_DOCUMENT_BYTES:
                raise UserError(
                    f"{self.path}, line {line_count + 1:,} is longer than {MAX_DOCUMENT_BYTES / 1e6:,.0f} "
                    "MB: a line is one document; put line breaks between documents"
                )
        if last_line := b"".join(pending):
            yield [last_line]


# --- parquet ---


@dataclass(frozen=True)
class ParquetReader:
    """A parquet file with a document in each row. pyarrow reads it, a few rows in memory at a time."""

    path: Path
    size_bytes: int
    column: str

    def read_batches(self, skip: int = 0) -> Iterator[DocumentBatch]:
        with open_parquet(self.path) as file:
            bytes_per_row = self.size_bytes / max(1, file.metadata.num_rows)
            items: list[bytes] = []
            first, size = skip, 0
            for text in self._read_texts(file, skip):
                if len(text) > MAX_DOCUMENT_BYTES:
                    raise UserError(
                        f"{self.path}, document {first + len(items) + 1:,} is longer than "
                        f"{MAX_DOCUMENT_BYTES / 1e6:,.0f} MB: cut it into documents"
                    )
                items.append(text)
                size += len(text)
                if size >= TARGET_BATCH_BYTES or len(items) >= _MAX_ROWS_PER_READ:
                    yield DocumentBatch(self.path, first, "text", items, round(len(items) * bytes_per_row))
                    items, first, size = [], first + len(items), 0
            if items:
                yield DocumentBatch(self.path, first, "text", items, round(len(items) * bytes_per_row))

    def _read_texts(self, file: Any, skip: int) -> Iterator[bytes]:
        """All texts but the first `skip`. A null is an empty text."""
        import pyarrow as pa

        first = 0
        try:
            for index in range(file.num_row_groups):
                group = file.metadata.row_group(index)
                end = first + group.num_rows
                columns = (group.column(i) for i in range(group.num_columns))
                chunk = next(chunk for chunk in columns if chunk.path_in_schema == self.column)
                stored_bytes = max(1, chunk.total_uncompressed_size)
                rows = _TARGET_READ_BYTES * group.num_rows // stored_bytes
                if chunk.has_dictionary_page:  # equal texts are stored once, so a row may be the whole chunk
                    rows = min(rows, max(_MIN_DICTIONARY_ROWS_PER_READ, _TARGET_READ_BYTES // stored_bytes))
                rows = max(1, min(_MAX_ROWS_PER_READ, rows))
                batches = file.iter_batches(rows, [index], [self.column], use_threads=False)
                for batch in batches if end > skip else ():
                    texts = batch.column(0)
                    if pa.types.is_dictionary(texts.type):
                        texts = texts.dictionary_decode()
                    for text in texts.slice(max(0, skip - first)).cast(pa.large_binary()):
                        yield text.as_py() or b""
                    first += batch.num_rows
                first = end
        except (pa.ArrowException, OSError) as error:
            raise UserError(damaged_file_message(self.path, error)) from error


def open_parquet(path: Path) -> Any:
    """Opened without read-ahead: a row group may be larger than memory."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UserError(f"{path} is parquet, which needs pyarrow: {INSTALL_DATA_EXTRA_HINT}") from error
    try:
        return pq.ParquetFile(
            path, pre_buffer=False, buffer_size=BLOCK_BYTES, page_checksum_verification=True
        )
    except (pa.ArrowException, OSError) as error:
        raise UserError(damaged_file_message(path, error)) from error


def text_column_problem(path: Path, column: str) -> str | None:
    """Why a parquet file has no text in that column, or None."""
    with open_parquet(path) as file:
        schema = file.schema_arrow
    import pyarrow as pa

    text_columns = []
    for field in schema:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            text_columns.append(field.name)
    others = f"its text columns are {', '.join(text_columns)}" if text_columns else "it has no column of text"
    if column not in schema.names:
        if not text_columns:
            return f"{path} has no column {column!r}; {others}"
        is_only_one = len(text_columns) == 1
        fix = f"add --text_column {text_columns[0]}" if is_only_one else "name one by --text_column"
        return f"{path} has no column {column!r}; {others}: {fix}"
    if schema.names.count(column) > 1:
        return f"{path} has {schema.names.count(column)} columns {column!r}: rename all but one"
    if column not in text_columns:
        return f"{path}: its column {column!r} holds {schema.field(column).type}, not text; {others}"
    return None
