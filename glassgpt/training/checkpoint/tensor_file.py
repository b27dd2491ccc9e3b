"""Tensors packed into one buffer with the layout of a safetensors file, and written from there to the disk.

A checkpoint is written while training continues in the main thread, and both need Python's GIL. So everything
slow (copying from the card, hashing, writing) works on large chunks without the GIL. safetensors' own writer
copies tensor by tensor and holds the GIL, so that updates stutter meanwhile. Reading uses the library.

Its digest is that of `sha256_in_pieces`: a chunk is a piece.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassgpt.data.digests import HASHED_AT_ONCE, HASHED_PIECE_BYTES, combine_pieces, piece_sha256

_SAFETENSORS_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
}
_CHUNK_BYTES = HASHED_PIECE_BYTES
_MAX_CHUNKS_IN_FLIGHT = HASHED_AT_ONCE
_FLUSH_INTERVAL_BYTES = 2**25  # fsync whenever this much has been written


@dataclass(frozen=True)
class PackedTensors:
    """A copy of some tensors, as a safetensors file has them."""

    header: bytes
    content: Tensor  # uint8: one tensor after the other


def pack_tensors(tensors: Mapping[str, Tensor], device: torch.device) -> PackedTensors:
    """Copies the tensors into one buffer on `device`."""
    # The widest dtypes first, so that each tensor is aligned to its element size.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    entries: dict[str, dict[str, Any]] = {}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": _SAFETENSORS_DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    content = torch.empty(end, dtype=torch.uint8, device=device)
    views = [
        content[slice(*entries[name]["data_offsets"])].view(tensor.dtype).view(tensor.shape)
        for name, tensor in ordered
    ]
    with torch.no_grad():
        if views:  # one kernel launch instead of one per tensor
            torch._foreach_copy_(views, [tensor for _, tensor in ordered], non_blocking=True)
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return PackedTensors(len(header).to_bytes(8, "little") + header, content)


class PinnedBuffer:
    """Pinned host memory through which a buffer is copied from a card, on a separate CUDA stream."""

    def __init__(self, device: torch.device) -> None:
        self._memory = torch.empty(_MAX_CHUNKS_IN_FLIGHT, _CHUNK_BYTES, dtype=torch.uint8, pin_memory=True)
        self._stream = torch.cuda.Stream(device)
        self._copy_event = torch.cuda.Event()

    def record_copy_event(self) -> None:
        """Reading waits for the work that the training stream has been given up to now."""
        self._copy_event.record()

    def chunks(self, content: Tensor) -> Iterator[memoryview]:
        """A chunk is overwritten after _MAX_CHUNKS_IN_FLIGHT more."""
        for number, start in enumerate(range(0, len(content), _CHUNK_BYTES)):
            chunk = content[start : start + _CHUNK_BYTES]
            pinned = self._memory[number % _MAX_CHUNKS_IN_FLIGHT, : len(chunk)]
            with torch.cuda.stream(self._stream):
                self._copy_event.wait()
                pinned.copy_(chunk, non_blocking=True)
            self._stream.synchronize()
            yield pinned.numpy().data


def write_packed(path: Path, packed: PackedTensors, pinned_buffer: PinnedBuffer | None = None) -> str:
    """Writes the file, flushes it to the disk and returns its digest.

    A buffer on a card is copied through `pinned_buffer`. Chunks are hashed while they are written, and the
    disk starts to write before the last chunk has come.
    """
    content_chunks = (
        _split(packed.content.numpy().data) if pinned_buffer is None else pinned_buffer.chunks(packed.content)
    )
    digests: list[bytes] = []
    hashing: deque[Future[bytes]] = deque()
    flushing: Future[None] | None = None
    unflushed_bytes = 0
    with path.open("wb", buffering=0) as file, ThreadPoolExecutor(_MAX_CHUNKS_IN_FLIGHT + 1, "write") as pool:
        for chunk in chain([memoryview(packed.header)], content_chunks):
            hashing.append(pool.submit(piece_sha256, chunk))
            rest = chunk
            while rest:  # a disk that fills up takes only a part
                rest = rest[file.write(rest) :]
            if len(hashing) == _MAX_CHUNKS_IN_FLIGHT:
                digests.append(hashing.popleft().result())  # before the chunk is overwritten
            unflushed_bytes += len(chunk)
            if unflushed_bytes >= _FLUSH_INTERVAL_BYTES and (flushing is None or flushing.done()):
                if flushing is not None:
                    flushing.result()  # raises the error of the disk, if it had one
                flushing, unflushed_bytes = pool.submit(os.fsync, file.fileno()), 0
        if flushing is not None:
            flushing.result()
        os.fsync(file.fileno())
        digests += [future.result() for future in hashing]
    return combine_pieces(digests)


def _split(view: memoryview) -> Iterator[memoryview]:
    return (view[start : start + _CHUNK_BYTES] for start in range(0, len(view), _CHUNK_BYTES))
