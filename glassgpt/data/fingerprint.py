"""What tells one file from another: its SHA-256, or that of a sample where reading it all takes too long."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path

# 50 million 16-bit ids. A smaller file is read through in well under a second.
WHOLE_BYTES = 100_000_000
SAMPLED = "sampled:"
_BLOCKS = 128
_BLOCK_BYTES = 2**16


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_sampled(path: Path) -> bool:
    """Whether a file is too large to be read through each time it is opened."""
    return path.stat().st_size >= WHOLE_BYTES


def fingerprint(path: Path) -> str:
    """The SHA-256 of a file; of a large one, marked as such, that of its size and of blocks all over it."""
    return SAMPLED + _sampled_sha256(path) if is_sampled(path) else file_sha256(path)


def has_fingerprint(path: Path, expected: str) -> bool:
    """Whether a file is the one that `expected` was taken of, in the way it was taken."""
    if expected.startswith(SAMPLED):
        return SAMPLED + _sampled_sha256(path) == expected
    return file_sha256(path) == expected


def blocks(path: Path) -> Iterator[bytes]:
    """All of a small file; of a large one the blocks that its fingerprint is made of. Even-sized, all."""
    if is_sampled(path):
        return _spread_blocks(path)
    return _all_blocks(path)


def _all_blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(2**22):
            yield block


def _spread_blocks(path: Path) -> Iterator[bytes]:
    """Blocks from the first to the last of a file, evenly spread and at even places."""
    last = max(0, path.stat().st_size - _BLOCK_BYTES)
    with path.open("rb") as file:
        for i in range(_BLOCKS):
            file.seek(last * i // (_BLOCKS - 1) // 2 * 2)
            yield file.read(_BLOCK_BYTES)


def _sampled_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    for part in itertools.chain([f"{path.stat().st_size}\n".encode()], _spread_blocks(path)):
        digest.update(part)
    return digest.hexdigest()
