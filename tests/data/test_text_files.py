"""Compressed files: how much of one was read."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import zstandard

from glassgpt.data.document_readers import TextFilesReader
from glassgpt.data.text_files import DecompressedFile

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "zst": zstandard.compress,
}


def test_a_file_of_several_parts_is_read_to_its_end(tmp_path: Path) -> None:
    content = b"Each of these lines is in each of the parts.\n" * 2000
    for name, pack in PACKERS.items():
        path = tmp_path / f"a.jsonl.{name}"
        path.write_bytes(pack(content[:4500]) + pack(content[4500:]) + pack(b""))
        with DecompressedFile(path) as file:
            assert b"".join(iter(lambda: file.read(1000), b"")) == content
            assert file.disk_bytes() == path.stat().st_size


def test_compressed_texts_count_with_their_size_on_disk(tmp_path: Path) -> None:
    paths = tuple(tmp_path / f"{number}.txt.xz" for number in range(3))
    for path in paths:
        path.write_bytes(lzma.compress(b"a text that is shorter on the disk\n" * 100))
    size = sum(path.stat().st_size for path in paths)
    assert [batch.disk_bytes for batch in TextFilesReader(tmp_path, paths, size).read_batches()] == [size]
