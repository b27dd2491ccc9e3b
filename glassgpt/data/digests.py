"""SHA-256 of files: of all bytes, or of a sample where reading all of them takes too long.

`glass export` records the SHA-256 of every file that it writes, in glassgpt.json beside them. Code that reads
such a file calls `check_recorded_sha256` first.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from glassgpt.errors import UserError
from glassgpt.files import read_small_file, regular_file_opener

Progress = Callable[[int], object]  # called with the number of bytes of each block

EXPORT_RECORD_FILE = "glassgpt.json"
HASHED_PIECE_BYTES = 2**23  # in files of a checkpoint; training/checkpoint/tensor_file.py writes them
HASHED_AT_ONCE = 4  # pieces
# 50 million 16-bit ids. A smaller file is hashed in well under a second.
MIN_SAMPLED_BYTES = 100_000_000
SAMPLED_PREFIX = "sampled:"
_SAMPLED_BLOCKS = 128
_BLOCK_BYTES = 2**16
_READ_BYTES = 2**22


def file_sha256(path: Path, advance: Progress = lambda size: None) -> str:
    with open(path, "rb", opener=regular_file_opener) as file:
        return whole_sha256(file, advance)


def whole_sha256(source: BinaryIO | bytes, advance: Progress = lambda size: None) -> str:
    digest = hashlib.sha256()
    for block in _split(source, lambda size: range(_READ_BYTES, size, _READ_BYTES)):
        digest.update(block)
        advance(len(block))
    return digest.hexdigest()


def sha256_in_pieces(source: BinaryIO | bytes, advance: Progress = lambda size: None) -> str:
    """The digest of a checkpoint's file: SHA-256 of the SHA-256s of its pieces. The first is the header."""
    header_bytes = 8 + int.from_bytes(next(_split(source, lambda size: [8])), "little")
    pieces = _split(source, lambda size: range(header_bytes, size, HASHED_PIECE_BYTES))
    if isinstance(source, bytes):
        with ThreadPoolExecutor(HASHED_AT_ONCE, "hash") as pool:
            return combine_pieces(pool.map(piece_sha256, pieces))
    # In this thread: a file is read back while training continues, and each handover waits for the GIL.
    digests = []
    for piece in pieces:
        digests.append(piece_sha256(piece))
        advance(len(piece))
    return combine_pieces(digests)


def _split(
    source: BinaryIO | bytes, inner_ends: Callable[[int], Iterable[int]]
) -> Iterator[bytes | memoryview]:
    """All bytes, from one end to the next; the last end is the size."""
    size = len(source) if isinstance(source, bytes) else source.seek(0, os.SEEK_END)
    start = 0
    for end in itertools.chain(inner_ends(size), [size]):
        if isinstance(source, bytes):  # not copied
            yield memoryview(source)[start:end]
        else:
            source.seek(start)
            yield source.read(end - start)
        start = end


def piece_sha256(piece: bytes | memoryview) -> bytes:
    return hashlib.sha256(piece).digest()


def combine_pieces(digests: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(digests)).hexdigest()


def find_damage(path: Path, recorded: str, digest_of: Callable[[Path], str]) -> str:
    """What is wrong with a file whose digest was recorded; empty if it is intact."""
    if not path.is_file():
        return "missing"
    if recorded.startswith(SAMPLED_PREFIX):
        is_intact = matches_fingerprint(path, recorded)
        return "" if is_intact else "its sampled SHA-256 is not the recorded one"
    return "" if digest_of(path) == recorded else "its SHA-256 is not the recorded one"


def json_sha256(content: Any) -> str:
    """SHA-256 of a JSON value, however a file with it is indented."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_recorded_sha256(folder: Path) -> dict[str, str] | None:
    """SHA-256 by file name, as `glass export` recorded it; None if the folder is not an export."""
    path = folder / EXPORT_RECORD_FILE
    if not os.path.lexists(path):  # a broken link is an error below, not "no export"
        return None
    try:
        content = json.loads(read_small_file(path))
        digest = content.pop("digest", None)  # older exports have none
        files = content["sha256"]
        if not content["written_by"].startswith("glass export") or digest not in (None, json_sha256(content)):
            raise ValueError
        if not all(Path(name).name == name and isinstance(digest, str) for name, digest in files.items()):
            raise ValueError
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise UserError(
            f"{path} is damaged: export the model again, or remove that file to read the others unverified"
        ) from None
    return dict(files)


def check_recorded_sha256(path: Path) -> None:
    """Compares a file with its recorded SHA-256, if it has one. UserError if it differs."""
    expected = (read_recorded_sha256(path.parent) or {}).get(path.name)
    if expected is not None and path.is_file() and file_sha256(path) != expected:
        raise UserError(
            f"{path} is damaged or was changed: its SHA-256 is not the one in {EXPORT_RECORD_FILE}; export "
            f"the model again, or remove {EXPORT_RECORD_FILE} if the change was meant"
        )


def is_hashed_by_sample(path: Path) -> bool:
    """Whether a file is too large to hash all of it each time it is opened."""
    return path.stat().st_size >= MIN_SAMPLED_BYTES


def fingerprint(path: Path) -> str:
    """The SHA-256 of a file; for a large one `sampled:` and that of its size and of blocks spread over it."""
    return SAMPLED_PREFIX + _sampled_sha256(path) if is_hashed_by_sample(path) else file_sha256(path)


def matches_fingerprint(path: Path, expected: str) -> bool:
    """Whether a file has this fingerprint, sampled or not."""
    if expected.startswith(SAMPLED_PREFIX):
        return SAMPLED_PREFIX + _sampled_sha256(path) == expected
    return file_sha256(path) == expected


def read_hashed_blocks(path: Path) -> Iterator[bytes]:
    """All of a small file; of a large one the blocks of its fingerprint. All blocks have an even size."""
    if is_hashed_by_sample(path):
        yield from _spread_blocks(path)
        return
    with open(path, "rb", opener=regular_file_opener) as file:
        while block := file.read(_READ_BYTES):
            yield block


def _spread_blocks(path: Path) -> Iterator[bytes]:
    """Blocks from the first to the last of a file, evenly spaced, at even offsets."""
    last = max(0, path.stat().st_size - _BLOCK_BYTES)
    with open(path, "rb", opener=regular_file_opener) as file:
        for i in range(_SAMPLED_BLOCKS):
            file.seek(last * i // (_SAMPLED_BLOCKS - 1) // 2 * 2)
            yield file.read(_BLOCK_BYTES)


def _sampled_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    for part in itertools.chain([f"{path.stat().st_size}\n".encode()], _spread_blocks(path)):
        digest.update(part)
    return digest.hexdigest()
