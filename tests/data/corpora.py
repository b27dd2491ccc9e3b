"""Small corpora in the layouts that large ones have."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from glassgpt.data import document_readers
from glassgpt.data.bpe_table import END_OF_TEXT
from glassgpt.data.dataset import Dataset, open_dataset, verify
from glassgpt.data.prepare import prepare
from glassgpt.data.prepare_options import PrepareOptions
from glassgpt.data.tokenizers import load_tokenizer

WORDS = (
    *("the", "glass", "house", "has", "many", "rooms", "and", "every", "one", "can", "be", "seen", "from"),
    *("its", "door", "नमस्ते", "दुनिया", "السلام", "عليكم", "42"),
)


def use_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few documents are many batches."""
    monkeypatch.setattr(document_readers, "TARGET_BATCH_BYTES", 1000)
    monkeypatch.setattr(document_readers, "BLOCK_BYTES", 1500)
    monkeypatch.setattr(document_readers, "_MAX_ROWS_PER_READ", 7)


def make_documents(count: int, first: int = 0) -> list[str]:
    """Different ones, of different lengths."""
    return [
        f"Document {i}.\n" + " ".join(WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(5 + i % 60))
        for i in range(first, first + count)
    ]


def write_fineweb_parquet(path: Path, texts: Sequence[str | None], rows: int = 10) -> Path:
    """The columns of FineWeb-Edu's files; `rows` to a row group."""
    n = len(texts)
    columns: dict[str, Any] = {
        "text": pa.array(texts, pa.string()),
        "id": [f"<urn:uuid:{i}>" for i in range(n)],
        "dump": ["CC-MAIN-2024-10"] * n,
        "url": [f"https://example.org/{i}" for i in range(n)],
        "file_path": ["s3://commoncrawl/x.warc.gz"] * n,
        "language": ["en"] * n,
        "language_score": [0.97] * n,
        "token_count": [len(text or "") // 4 for text in texts],
        "score": [3.1] * n,
        "int_score": [3] * n,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=rows, write_page_checksum=True)
    return path


def write_json_lines(path: Path, texts: Sequence[str], field: str = "text") -> Path:
    """Compressed as the name says."""
    lines = "".join(json.dumps({"id": i, field: text}) + "\n" for i, text in enumerate(texts)).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    pack: dict[str, Any] = {
        ".gz": gzip.compress,
        ".xz": lzma.compress,
        ".zst": zstandard.ZstdCompressor().compress,
    }
    path.write_bytes(pack[path.suffix](lines) if path.suffix in pack else lines)
    return path


def prepare_dataset(dataset: Path | str, out: Path, **options: Any) -> Dataset:
    options = {"tokenizer": "bpe:300", "val_fraction": 0.2, **options}
    prepare(PrepareOptions(str(dataset), out_dir=str(out), **options), lambda line: None, progress=False)
    dataset_there = open_dataset(out)
    verify(dataset_there)
    return dataset_there


def texts_in(dataset: Dataset, split: str) -> list[str]:
    """The documents of a split, read back from its ids."""
    decoded = load_tokenizer(dataset.directory).decode(dataset.tokens(split)[:])
    assert decoded.endswith(END_OF_TEXT)
    return decoded.removesuffix(END_OF_TEXT).split(END_OF_TEXT)


def folder_contents(folder: Path) -> dict[str, bytes]:
    """The content of every file; of the manifest all but when it was written."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    manifest = json.loads(files["manifest.json"])
    del manifest["created"], manifest["digest"]
    return files | {"manifest.json": json.dumps(manifest).encode()}
