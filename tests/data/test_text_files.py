"""Compressed files: how much of one was read, which is what token counts are foreseen from."""

from __future__ import annotations

import gzip
import lzma
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from glassgpt.data.document_readers import TextFilesReader
from glassgpt.data.text_files import DecompressedFile

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "zst": zstandard.compress,
}


def test_the_beginning_tells_how_much_there_is(tmp_path: Path) -> None:
    """What repeats itself after a while compresses far better then than at its beginning."""
    content = random.Random(0).randbytes(50_000).hex().encode() * 8
    read_bytes = len(content) // 16
    shares = {}
    for name, pack in PACKERS.items():
        path = tmp_path / f"a.jsonl.{name}"
        path.write_bytes(pack(content))
        with DecompressedFile(path) as file:
            file.read(read_bytes)
            shares[name] = file.disk_bytes() / path.stat().st_size
            file.read(len(content))
            assert file.disk_bytes() == path.stat().st_size
    assert shares == {name: pytest.approx(1 / 16, rel=0.1) for name in shares}


def test_several_parts_that_each_tell_their_own_length(tmp_path: Path) -> None:
    content = b"Each of these lines is in each of the parts.\n" * 2000
    for name, pack in PACKERS.items():
        path = tmp_path / f"a.jsonl.{name}"
        path.write_bytes(pack(content[:4500]) + pack(content[4500:]) + pack(b""))
        with DecompressedFile(path) as file:
            while file.read(1000):
                assert 0 < file.disk_bytes() <= path.stat().st_size
            assert file.disk_bytes() == path.stat().st_size


def test_compressed_texts_count_with_their_size_on_disk(tmp_path: Path) -> None:
    paths = tuple(tmp_path / f"{number}.txt.xz" for number in range(3))
    for path in paths:
        path.write_bytes(lzma.compress(b"a text that is shorter on the disk\n" * 100))
    size = sum(path.stat().st_size for path in paths)
    assert [batch.disk_bytes for batch in TextFilesReader(tmp_path, paths, size).read_batches()] == [size]
