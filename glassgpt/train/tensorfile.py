"""Tensors as one stretch of memory, laid out as a safetensors file has them, and from there to the disk.

A checkpoint is written while training goes on, and both want Python's lock. So everything that takes long
(copying from the card, hashing, writing) is done on large pieces and without that lock; the library's own
writer, which copies tensor by tensor and holds it, makes the updates beside it stutter. Reading is the
library's.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import torch
from torch import Tensor

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
}
_PIECE_BYTES = 2**25


@dataclass(frozen=True)
class Packed:
    """A copy of some tensors."""

    header: bytes
    content: Tensor  # all their bytes, one tensor after the other


def pack(tensors: Mapping[str, Tensor], device: torch.device) -> Packed:
    """Copies the tensors into memory of `device`."""
    # The widest numbers first, so that each lies at a multiple of its own width.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    entries, places, end = {}, [], 0
    for name, tensor in ordered:
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        places.append((start, end))
    content = torch.empty(end, dtype=torch.uint8, device=device)
    with torch.no_grad():
        for (start, end), (_, tensor) in zip(places, ordered, strict=True):
            content[start:end].view(tensor.dtype).view(tensor.shape).copy_(tensor, non_blocking=True)
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return Packed(len(text).to_bytes(8, "little") + text, content)


class Staging:
    """A piece of pinned memory through which bytes leave a card, on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._memory = torch.empty(_PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._packed = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def mark(self) -> None:
        """What the training stream was given up to now has to be done before anything is read."""
        self._packed.record()

    def pieces(self, content: Tensor) -> Iterator[memoryview]:
        """Each is overwritten by the next."""
        for start in range(0, len(content), _PIECE_BYTES):
            piece = content[start : start + _PIECE_BYTES]
            room = self._memory[: len(piece)]
            with torch.cuda.stream(self._stream):
                self._packed.wait()
                room.copy_(piece, non_blocking=True)
            self._stream.synchronize()
            yield room.numpy().data


def write_packed(path: Path, packed: Packed, staging: Staging | None = None) -> str:
    """Writes the file, and returns its SHA-256. What is packed on a card leaves it through `staging`.

    A piece is hashed while it is written. The disk is told to begin before the last piece has come.
    """
    digest = hashlib.sha256()
    with path.open("wb", buffering=0) as file, ThreadPoolExecutor(2, "write") as beside:
        flushed: Future[None] | None = None
        for piece in _pieces(packed, staging):
            hashed = beside.submit(digest.update, piece)
            try:
                _write(file, piece)
            finally:
                hashed.result()  # before the piece is overwritten
            if len(piece) == _PIECE_BYTES and (flushed is None or flushed.done()):
                flushed = _flush(file, beside, flushed)
        if flushed is not None:
            flushed.result()
    return digest.hexdigest()


def _write(file: FileIO, piece: memoryview) -> None:
    while piece:  # a disk that fills up takes only a part
        piece = piece[file.write(piece) :]


def _flush(file: FileIO, beside: ThreadPoolExecutor, before: Future[None] | None) -> Future[None]:
    if before is not None:
        before.result()  # what the disk could not take raises here
    return beside.submit(os.fsync, file.fileno())


def _pieces(packed: Packed, staging: Staging | None) -> Iterator[memoryview]:
    yield memoryview(packed.header)
    if packed.content.device.type == "cuda":
        assert staging is not None
        yield from staging.pieces(packed.content)
    else:
        whole = packed.content.numpy().data
        yield from (whole[start : start + _PIECE_BYTES] for start in range(0, len(whole), _PIECE_BYTES))
