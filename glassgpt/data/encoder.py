"""Documents of a parcel to token ids, each document by itself.

What a document becomes does not depend on its parcel or on who encodes it: workers.py does it on all cores.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassgpt.data.decompress import compression_suffix
from glassgpt.data.document_batches import DocumentBatch
from glassgpt.data.manifest import DTYPES, dtype_for
from glassgpt.data.split import document_key
from glassgpt.data.text_encoding import normalize_to_utf8
from glassgpt.data.tokenizers import ByteLevelBpe, ByteTokenizer
from glassgpt.errors import UserError, join_first


@dataclass(frozen=True)
class EncodedBatch:
    """The documents of a parcel as ids, each followed by what separates documents."""

    ids: NDArray[Any]
    # Of each document: its ids, its bytes of text (a newline that separates counts), 64 bits of its digest.
    lengths: NDArray[np.int64]
    text_bytes: NDArray[np.int64]
    keys: NDArray[np.uint64]
    # Documents without a text, which are left out; and those with half a character, which was replaced.
    empty: int
    repaired: int
    # Files that were not UTF-8 with plain line ends, and were converted.
    converted: int


@dataclass(frozen=True)
class Encoder:
    """What every worker has."""

    tokenizer: ByteLevelBpe | ByteTokenizer
    column: str

    @property
    def dtype(self) -> np.dtype[Any]:
        return DTYPES[dtype_for(self.tokenizer.vocab_size)]

    def __call__(self, parcel: DocumentBatch) -> EncodedBatch:
        documents, repaired, converted = extract_texts(
            parcel, self.column, decode=self.tokenizer.name != "byte"
        )
        kept = [text for text in documents if text]
        ids: NDArray[Any]
        if isinstance(self.tokenizer, ByteTokenizer):
            ids = np.frombuffer(b"".join(text + b"\n" for text in kept), dtype=np.uint8)
            lengths = text_bytes = np.array([len(text) + 1 for text in kept], dtype=np.int64)
        else:
            ids, lengths = self.tokenizer.encode_documents([text.decode() for text in kept])
            newline = self.tokenizer.eot is None
            text_bytes = np.array([len(text) + newline for text in kept], dtype=np.int64)
        return EncodedBatch(
            ids.astype(self.dtype),
            lengths,
            text_bytes,
            np.array([document_key(text) for text in kept], dtype=np.uint64),
            len(documents) - len(kept),
            repaired,
            converted,
        )


def extract_texts(parcel: DocumentBatch, column: str, decode: bool = True) -> tuple[list[bytes], int, int]:
    """The documents as UTF-8, how many had to be repaired, and how many converted.

    Blank lines between JSON are no documents. Text in JSON or parquet is taken as it is.
    """
    if parcel.kind == "json":
        lines = [(item, line) for item, line in enumerate(parcel.items) if line.strip()]
        pairs = [
            _utf8(_parse_json_text(line, parcel.describe_location(item), column)) for item, line in lines
        ]
        return [text for text, _ in pairs], sum(repaired for _, repaired in pairs), 0
    if not decode:
        return parcel.items, 0, 0
    texts, converted = [], 0
    for item, content in enumerate(parcel.items):
        try:
            text = normalize_to_utf8(content) if parcel.files else content
            text.decode()
        except UnicodeDecodeError as error:
            raise UserError(_not_utf8(parcel.describe_location(item), error)) from error
        texts.append(text)
        converted += text != content
    return texts, 0, converted


def _parse_json_text(line: bytes, where: str, column: str) -> str:
    try:
        fields = json.loads(line.removeprefix(b"\xef\xbb\xbf").decode())
    except UnicodeDecodeError as error:
        raise UserError(_not_utf8(where, error)) from error
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{where} is not JSON ({error}): write one object a line, with the text in it"
        ) from error
    if not isinstance(fields, dict):
        raise UserError(f"{where} is no object: write one object a line, with the text in it")
    if column not in fields:
        has = f"has the fields {join_first(fields)}" if fields else "has no fields"
        raise UserError(f"{where} {has} and no {column!r}: name the one with the text by --text_column")
    text = fields[column]
    if text is not None and not isinstance(text, str):
        raise UserError(
            f"{where}: its {column!r} is {type(text).__name__}, not text: name another --text_column"
        )
    return text or ""


def _not_utf8(where: str, error: UnicodeDecodeError) -> str:
    if suffix := compression_suffix(error.object):
        return f"{where} is not text but compressed: add {suffix} to the file's name"
    return (
        f"{where} is not {error.encoding.upper()} at its byte {error.start:,}: convert the file, for example "
        "with iconv, and run the command again"
    )


def _utf8(text: str) -> tuple[bytes, bool]:
    """And whether it had to be repaired: JSON can spell half of a character, which UTF-8 cannot hold."""
    try:
        return text.encode(), False
    except UnicodeEncodeError:
        return text.encode(errors="replace"), True
