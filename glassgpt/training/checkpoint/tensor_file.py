"""Tensors as one stretch of memory, laid out as a safetensors file has them, and from there to the disk.

A checkpoint is written while training goes on, and both want Python's lock. So everything that takes long
(copying from the card, hashing, writing) is done on large pieces and without that lock; the library's own
writer, which copies tensor by tensor and holds it, makes the updates beside it stutter. Reading is the
library's.

A file's digest is the SHA-256 of its pieces' SHA-256: one processor core hashes a gigabyte a second, which is
slower than disks are, so several pieces are hashed at once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassgpt.data.digests import HASHED_PIECE_BYTES

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
}
_PIECE_BYTES = HASHED_PIECE_BYTES
_MAX_PIECES_IN_FLIGHT = 4  # pieces that are being hashed
_FLUSH_INTERVAL_BYTES = 2**25  # the disk is told to begin when there are so many


@dataclass(frozen=True)
class PackedTensors:
    """A copy of some tensors."""

    header: bytes
    content: Tensor  # all their bytes, one tensor after the other


def pack_tensors(tensors: Mapping[str, Tensor], device: torch.device) -> PackedTensors:
    """Copies the tensors into memory of `device`."""
    # The widest numbers first, so that each lies at a multiple of its own width.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    entries: dict[str, dict[str, Any]] = {}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    content = torch.empty(end, dtype=torch.uint8, device=device)
    rooms = [
        content[slice(*entries[name]["data_offsets"])].view(tensor.dtype).view(tensor.shape)
        for name, tensor in ordered
    ]
    with torch.no_grad():
        if rooms:  # all by one call: a card would be asked some hundred times
            torch._foreach_copy_(rooms, [tensor for _, tensor in ordered], non_blocking=True)
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return PackedTensors(len(text).to_bytes(8, "little") + text, content)


class PinnedBuffer:
    """Some pinned memory through which bytes leave a card, on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._memory = torch.empty(_MAX_PIECES_IN_FLIGHT, _PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
        self._stream = torch.cuda.Stream(device)
        self._pack_event = torch.cuda.Event()

    def record_pack_event(self) -> None:
        """What the training stream was given up to now has to be done before anything is read."""
        self._pack_event.record()

    def pieces(self, content: Tensor) -> Iterator[memoryview]:
        """Each is overwritten when so many others have come as are hashed at once."""
        for number, start in enumerate(range(0, len(content), _PIECE_BYTES)):
            piece = content[start : start + _PIECE_BYTES]
            room = self._memory[number % _MAX_PIECES_IN_FLIGHT, : len(piece)]
            with torch.cuda.stream(self._stream):
                self._pack_event.wait()
                room.copy_(piece, non_blocking=True)
            self._stream.synchronize()
            yield room.numpy().data


def write_packed(path: Path, packed: PackedTensors, staging: PinnedBuffer | None = None) -> str:
    """Writes the file, which is on the disk then, and returns its digest. What is packed on a card leaves it
    through `staging`.

    Pieces are hashed while they are written. The disk is told to begin before the last piece has come.
    """
    digests: list[bytes] = []
    hashing: deque[Future[bytes]] = deque()
    flushing, unflushed = _done(), 0
    with (
        path.open("wb", buffering=0) as file,
        ThreadPoolExecutor(_MAX_PIECES_IN_FLIGHT + 1, "write") as beside,
    ):
        for piece in _pieces(packed, staging):
            hashing.append(beside.submit(_sha256, piece))
            _write(file, piece)
            if len(hashing) == _MAX_PIECES_IN_FLIGHT:
                digests.append(hashing.popleft().result())  # before the piece is overwritten
            unflushed += len(piece)
            if unflushed >= _FLUSH_INTERVAL_BYTES and flushing.done():
                flushing.result()  # what the disk could not take raises here
                flushing, unflushed = beside.submit(os.fsync, file.fileno()), 0
        flushing.result()
        os.fsync(file.fileno())
        digests += [future.result() for future in hashing]
    return _digest_of(digests)


def content_digest(content: bytes) -> str:
    """Of a file that was read, as `write_packed` has it."""
    header = 8 + int.from_bytes(content[:8], "little")
    whole = memoryview(content)
    with ThreadPoolExecutor(_MAX_PIECES_IN_FLIGHT, "read") as beside:
        return _digest_of(beside.map(_sha256, [whole[:header], *_split_pieces(whole[header:])]))


def _digest_of(digests: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _sha256(piece: memoryview) -> bytes:
    return hashlib.sha256(piece).digest()


def _write(file: FileIO, piece: memoryview) -> None:
    while piece:  # a disk that fills up takes only a part
        piece = piece[file.write(piece) :]


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future


def _pieces(packed: PackedTensors, staging: PinnedBuffer | None) -> Iterator[memoryview]:
    yield memoryview(packed.header)
    yield from (
        _split_pieces(packed.content.numpy().data) if staging is None else staging.pieces(packed.content)
    )


def _split_pieces(whole: memoryview) -> Iterator[memoryview]:
    return (whole[start : start + _PIECE_BYTES] for start in range(0, len(whole), _PIECE_BYTES))
