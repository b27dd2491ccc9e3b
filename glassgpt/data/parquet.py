"""Parquet files of documents, read in parcels: pyarrow does it, a few rows in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassgpt.data import document_batches
from glassgpt.data.decompress import INSTALL_DATA_EXTRA_HINT, damaged_file_message
from glassgpt.errors import UserError

_MAX_ROWS_PER_READ = 256  # at a time, at most
_TARGET_READ_BYTES = 2**24  # and fewer where they are long: about this much text
_MIN_DICTIONARY_ROWS_PER_READ = 4  # take hardly longer each than many do


@dataclass(frozen=True)
class ParquetReader:
    """A file with a document in each row."""

    path: Path
    size_bytes: int
    column: str

    def read_batches(self, skip: int = 0) -> Iterator[document_batches.DocumentBatch]:
        with open_parquet(self.path) as file:
            bytes_per_row = self.size_bytes / max(1, file.metadata.num_rows)
            items: list[bytes] = []
            first, size = skip, 0
            for text in self._texts(file, skip):
                if len(text) > document_batches.MAX_DOCUMENT_BYTES:
                    raise UserError(
                        f"{self.path}, document {first + len(items) + 1:,} is longer than "
                        f"{document_batches.MAX_DOCUMENT_BYTES / 1e6:,.0f} MB: cut it into documents"
                    )
                items.append(text)
                size += len(text)
                if size >= document_batches.TARGET_BATCH_BYTES or len(items) >= _MAX_ROWS_PER_READ:
                    yield document_batches.DocumentBatch(
                        self.path, first, "text", items, round(len(items) * bytes_per_row)
                    )
                    items, first, size = [], first + len(items), 0
            if items:
                yield document_batches.DocumentBatch(
                    self.path, first, "text", items, round(len(items) * bytes_per_row)
                )

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
            raise UserError(damaged_file_message(self.path, error)) from error


def _rows_at_a_time(group: Any, column: str) -> int:
    """As many rows of a row group as are a few megabytes."""
    columns = (group.column(i) for i in range(group.num_columns))
    chunk = next(chunk for chunk in columns if chunk.path_in_schema == column)
    stored: int = max(1, chunk.total_uncompressed_size)
    rows: int = _TARGET_READ_BYTES * group.num_rows // stored
    if chunk.has_dictionary_page:  # equal texts are stored once, so each may be as long as all that is stored
        rows = min(rows, max(_MIN_DICTIONARY_ROWS_PER_READ, _TARGET_READ_BYTES // stored))
    return max(1, min(_MAX_ROWS_PER_READ, rows))


def open_parquet(path: Path) -> Any:
    """Without reading ahead: a row group may be larger than memory."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UserError(f"{path} is parquet, which needs pyarrow: {INSTALL_DATA_EXTRA_HINT}") from error
    try:
        return pq.ParquetFile(
            path, pre_buffer=False, buffer_size=document_batches.BLOCK_BYTES, page_checksum_verification=True
        )
    except (pa.ArrowException, OSError) as error:
        raise UserError(damaged_file_message(path, error)) from error


def text_column_problem(path: Path, column: str) -> str | None:
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
