"""Files of documents, read in parcels of about a megabyte: parquet, JSON lines, and text files.

A parcel holds its documents as they lie in the file. Taking texts out of them (parsing JSON, decoding UTF-8)
is work, and workers do it. Nothing here holds more than one parcel and one block of a file, so memory does
not depend on how large a file is; one document larger than `MOST_BYTES` is refused.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

from glassgpt.errors import UserError, complaint

PARCEL_BYTES = 2**20
BLOCK_BYTES = 2**20
# Of one document. The text and its tokens are in memory at once, in every worker.
MOST_BYTES = 2**28
_ROWS = 256  # of a parquet file at a time, at most
_ROWS_BYTES = 2**24  # and fewer where they are long: about this much text
_FEW_ROWS = 4  # take hardly longer each than many do

COMPRESSED = (".gz", ".xz", ".zst")
LINES = (".jsonl", ".ndjson")
PARQUET = ".parquet"
_EXTRA = 'install it with  pip install "glassgpt[data]"'


@dataclass(frozen=True)
class Parcel:
    """Some documents of a file, as they lie there."""

    path: Path
    # The number in its file of the first one.
    first: int
    # `json`: each item is a line of JSON that has the text somewhere in it. `text`: each item is the text.
    kind: Literal["json", "text"]
    items: list[bytes]
    # About how much of the file this was, for the progress bar.
    disk_bytes: int
    # Of documents that are files by themselves.
    files: tuple[Path, ...] = ()

    @property
    def after(self) -> int:
        return self.first + len(self.items)

    def where(self, item: int) -> str:
        """An item's place, for whoever must look at it."""
        if self.files:
            return str(self.files[item])
        return f"{self.path}, {'line' if self.kind == 'json' else 'document'} {self.first + item + 1:,}"


class Piece(Protocol):
    """What a corpus is made of."""

    @property
    def path(self) -> Path: ...
    @property
    def size_bytes(self) -> int:
        """On disk."""

    def parcels(self, skip: int = 0) -> Iterator[Parcel]:
        """All documents but the first `skip`."""


def holds_documents(name: str) -> bool:
    """Whether a file has many documents in it, going by its name."""
    path = Path(name.lower())
    if path.suffix in COMPRESSED:
        return Path(path.stem).suffix in (*LINES, ".json")  # lines too; a plain .json is as a rule one object
    return path.suffix in (*LINES, PARQUET)


def is_parquet(path: Path) -> bool:
    return path.suffix.lower() == PARQUET


# --- text files ---


@dataclass(frozen=True)
class TextFiles:
    """Files that are one document each."""

    path: Path  # the folder they are in, or a pattern
    files: tuple[Path, ...]
    size_bytes: int

    def parcels(self, skip: int = 0) -> Iterator[Parcel]:
        items: list[bytes] = []
        first, size = skip, 0
        for after, path in enumerate(self.files[skip:], skip + 1):
            items.append(_whole_file(path))
            size += len(items[-1])
            if size >= PARCEL_BYTES or after == len(self.files):
                yield Parcel(self.path, first, "text", items, size, self.files[first:after])
                items, first, size = [], after, 0


def _whole_file(path: Path) -> bytes:
    with _Unpacked(path) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise UserError(
            f"{path} is one document of more than {MOST_BYTES / 1e6:,.0f} MB: prepare it by itself, "
            f"glass prepare {path}, or cut it into documents"
        )
    return content


def is_binary(path: Path) -> bool:
    """Git's test, on what is in the file if it is compressed: text has no NUL byte near its beginning."""
    with _Unpacked(path) as file:
        return b"\0" in file.read(8192)


# --- lines of JSON ---


@dataclass(frozen=True)
class Lines:
    """A file with a JSON object on each line, maybe compressed."""

    path: Path
    size_bytes: int

    def parcels(self, skip: int = 0) -> Iterator[Parcel]:
        first = told = 0
        with _Unpacked(self.path) as file:
            for lines in _lines(file, self.path):
                read_bytes = file.disk_bytes()
                if first + len(lines) > skip:
                    kept = lines[max(0, skip - first) :]
                    yield Parcel(self.path, max(first, skip), "json", kept, read_bytes - told)
                told = read_bytes
                first += len(lines)


def _lines(file: _Unpacked, path: Path) -> Iterator[list[bytes]]:
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
        if size > MOST_BYTES:
            raise UserError(
                f"{path}, line {number + 1:,} is longer than {MOST_BYTES / 1e6:,.0f} MB: "
                "a line is one document; put line breaks between documents"
            )
    if last := b"".join(pending):
        yield [last]


# --- parquet ---


@dataclass(frozen=True)
class Parquet:
    path: Path
    size_bytes: int
    column: str

    def parcels(self, skip: int = 0) -> Iterator[Parcel]:
        with open_parquet(self.path) as file:
            bytes_per_row = self.size_bytes / max(1, file.metadata.num_rows)
            items: list[bytes] = []
            first, size = skip, 0
            for text in self._texts(file, skip):
                if len(text) > MOST_BYTES:
                    raise UserError(
                        f"{self.path}, document {first + len(items) + 1:,} is longer than "
                        f"{MOST_BYTES / 1e6:,.0f} MB: cut it into documents"
                    )
                items.append(text)
                size += len(text)
                if size >= PARCEL_BYTES or len(items) >= _ROWS:
                    yield Parcel(self.path, first, "text", items, round(len(items) * bytes_per_row))
                    items, first, size = [], first + len(items), 0
            if items:
                yield Parcel(self.path, first, "text", items, round(len(items) * bytes_per_row))

    def _texts(self, file: Any, skip: int) -> Iterator[bytes]:
        """All but the first `skip`, a few rows in memory at a time. A null is an empty text."""
        import pyarrow as pa

        first = 0
        try:
            for group in range(file.num_row_groups):
                after = first + file.metadata.row_group(group).num_rows
                rows = _rows_at_a_time(file.metadata.row_group(group), self.column)
                batches = file.iter_batches(rows, [group], [self.column], use_threads=False)
                for batch in batches if after > skip else ():
                    texts = batch.column(0)
                    if pa.types.is_dictionary(texts.type):
                        texts = texts.dictionary_decode()
                    for text in texts.slice(max(0, skip - first)).cast(pa.large_binary()):
                        yield text.as_py() or b""
                    first += batch.num_rows
                first = after
        except (pa.ArrowException, OSError) as error:
            raise UserError(damaged(self.path, error)) from error


def _rows_at_a_time(group: Any, column: str) -> int:
    """As many rows of a row group as are a few megabytes."""
    columns = (group.column(i) for i in range(group.num_columns))
    chunk = next(chunk for chunk in columns if chunk.path_in_schema == column)
    stored: int = max(1, chunk.total_uncompressed_size)
    rows: int = _ROWS_BYTES * group.num_rows // stored
    if chunk.has_dictionary_page:  # equal texts are stored once, so each may be as long as all that is stored
        rows = min(rows, max(_FEW_ROWS, _ROWS_BYTES // stored))
    return max(1, min(_ROWS, rows))


def open_parquet(path: Path) -> Any:
    """Without reading ahead: a row group may be larger than memory."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UserError(f"{path} is parquet, which needs pyarrow: {_EXTRA}") from error
    try:
        return pq.ParquetFile(
            path, pre_buffer=False, buffer_size=BLOCK_BYTES, page_checksum_verification=True
        )
    except (pa.ArrowException, OSError) as error:
        raise UserError(damaged(path, error)) from error


def column_problem(path: Path, column: str) -> str | None:
    """Why a parquet file has no text in that column, or None."""
    with open_parquet(path) as file:
        schema = file.schema_arrow
    import pyarrow as pa

    texts = [field.name for field in schema if _is_text(pa, field.type)]
    others = f"its text columns are {', '.join(texts)}" if texts else "it has no column of text"
    if column not in schema.names:
        fix = f": add --text_column {texts[0]}" if len(texts) == 1 else ": name one by --text_column"
        return f"{path} has no column {column!r}; {others}" + (fix if texts else "")
    if schema.names.count(column) > 1:
        return f"{path} has {schema.names.count(column)} columns {column!r}: rename all but one"
    if column not in texts:
        return f"{path}: its column {column!r} holds {schema.field(column).type}, not text; {others}"
    return None


def _is_text(pa: Any, kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


# --- compression ---


class _Unpacked:
    """A file as if it were not compressed. Damage in it is told, and so is an end that came too early."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error
        self._new, errors = _decompression(path)
        self._errors: tuple[type[BaseException], ...] = (EOFError, *errors)
        self._member: Any = None  # the decompressor of where we are
        self._packed = self._ready = b""

    def __enter__(self) -> _Unpacked:
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()

    def disk_bytes(self) -> int:
        """How much of the file was read."""
        return self._file.tell()

    def read(self, size: int) -> bytes:
        try:
            return self._file.read(size) if self._new is None else self._unpack(size, self._new)
        except self._errors as error:
            raise UserError(damaged(self._path, error)) from error
        except OSError as error:
            raise UserError(f"{self._path} cannot be read: {error.strerror}") from error

    def _unpack(self, size: int, new: Callable[[], Any]) -> bytes:
        """Member after member: a compressed file may be several, one after the other."""
        pieces, length = [self._ready], len(self._ready)
        while length < size:
            # Small bites: what shrank a thousandfold must not fill the memory.
            packed = self._packed or self._file.read(2**14)
            self._packed = b""
            if not packed and self._member is not None:
                raise EOFError("it ends too early")
            if not packed:
                break
            if self._member is None:
                packed = packed.lstrip(b"\0")  # members may be padded
                if not packed:
                    continue
                self._member = new()
            pieces.append(self._member.decompress(packed))
            length += len(pieces[-1])
            if self._member.eof:
                self._packed, self._member = self._member.unused_data, None
        ready = b"".join(pieces)
        self._ready = ready[size:]
        return ready[:size]


def _decompression(path: Path) -> tuple[Callable[[], Any] | None, tuple[type[BaseException], ...]]:
    """What makes a decompressor for a file, going by its name, and what that raises for damage."""
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return partial(zlib.decompressobj, zlib.MAX_WBITS | 16), (zlib.error,)
    if suffix == ".xz":
        return lzma.LZMADecompressor, (lzma.LZMAError,)
    if suffix != ".zst":
        return None, ()
    try:
        import zstandard
    except ImportError as error:
        raise UserError(f"{path} is compressed by Zstandard, which needs zstandard: {_EXTRA}") from error
    return zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj, (zstandard.ZstdError,)


def damaged(path: Path, error: BaseException) -> str:
    return f"{path} is damaged ({complaint(error)}): get it again"
