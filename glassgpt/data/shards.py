"""A split in files of equal length, train-00000.bin and on: `ShardWriter` writes, `ShardedTokens` reads."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassgpt.data.manifest import shard_name
from glassgpt.files import fsync_path

# Each needs one of the file descriptors of the process, often 1024 in all and sometimes 256.
_MAX_MAPPED_FILES = 64


class MappedFiles:
    """Files of ids, memory-mapped on first use; the ones used last stay mapped."""

    def __init__(self, paths: Sequence[Path], dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.lengths = [path.stat().st_size // dtype.itemsize for path in paths]
        self._map_file = functools.lru_cache(_MAX_MAPPED_FILES)(
            # A memmap is slow to slice, a plain array on the same memory is not.
            lambda number: np.asarray(np.memmap(paths[number], dtype=dtype, mode="r"))
        )

    def __getitem__(self, number: int) -> NDArray[Any]:
        return self._map_file(number)


class ShardedTokens:
    """The tokens of several files as one array: indexed by an array of positions, a slice, or windows."""

    def __init__(self, parts: Sequence[NDArray[Any]] | MappedFiles) -> None:
        self._parts: list[NDArray[Any]] | MappedFiles
        if isinstance(parts, MappedFiles):
            self._parts, lengths, self.dtype = parts, parts.lengths, parts.dtype
        else:
            self._parts = [np.asarray(part) for part in parts]
            lengths, self.dtype = [len(part) for part in self._parts], self._parts[0].dtype
        self._ends = np.cumsum(lengths)
        self._begins = [0, *self._ends[:-1].tolist()]

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def nbytes(self) -> int:
        return len(self) * self.dtype.itemsize

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self._read_range(0, len(self)).astype(dtype or self.dtype, copy=False)

    def __getitem__(self, index: slice | NDArray[np.int64]) -> NDArray[Any]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return self._read_range(start, max(0, stop - start))[::step]
        result = np.empty(index.shape, dtype=self.dtype)
        shards = np.searchsorted(self._ends, index, side="right")
        for shard in np.unique(shards):
            in_shard = shards == shard
            result[in_shard] = self._parts[shard][index[in_shard] - self._begins[shard]]
        return result

    def gather_windows(self, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """The `length` tokens from each start, as rows. A row may begin in one shard and end in the next."""
        result = np.empty((len(starts), length), dtype=np.int64)
        shards = np.searchsorted(self._ends, starts, side="right").tolist()
        for row, shard, start in zip(result, shards, starts.tolist(), strict=True):
            part = self._parts[shard]
            offset = start - self._begins[shard]
            if offset + length <= len(part):
                row[:] = part[offset : offset + length]
            else:
                row[:] = self._read_range(start, length)
        return result

    def _read_range(self, start: int, length: int) -> NDArray[Any]:
        shard = int(np.searchsorted(self._ends, start, side="right"))
        if length and start + length <= self._ends[shard]:
            return self._parts[shard][start - self._begins[shard] :][:length]
        result = np.empty(length, dtype=self.dtype)
        done = 0
        while done < length:
            offset = start + done - self._begins[shard]
            tokens = self._parts[shard][offset : offset + length - done]
            result[done : done + len(tokens)] = tokens
            done += len(tokens)
            shard += 1
        return result


# What training reads: one file, or several shards.
TokenArray = NDArray[Any] | ShardedTokens


class ShardWriter:
    """Writes a split. A full shard is synced to the disk, hashed and never written again."""

    def __init__(
        self,
        folder: Path,
        split: str,
        shard_tokens: int,
        dtype: np.dtype[Any],
        closed: Mapping[str, str],
        tokens: int,
    ) -> None:
        """`closed`, `tokens`: full shards and tokens of an earlier attempt. Files are truncated to that."""
        self._folder, self._split, self._shard_tokens = folder, split, shard_tokens
        self._itemsize = dtype.itemsize
        self.sha256_by_full_shard = dict(closed)
        self.token_count = tokens
        partial_bytes = (tokens - len(closed) * shard_tokens) * dtype.itemsize
        self._open_shard("r+b" if partial_bytes else "wb")
        if partial_bytes:
            self._digest.update(self._file.read(partial_bytes))
            self._file.truncate()

    def append(self, ids: NDArray[Any]) -> None:
        while len(ids):
            shard_ids = ids[: self._shard_tokens - self.token_count % self._shard_tokens]
            content = shard_ids.tobytes()
            self._file.write(content)
            self._digest.update(content)
            self.token_count += len(shard_ids)
            ids = ids[len(shard_ids) :]
            if self.token_count % self._shard_tokens == 0:
                self._close_shard()
                self._open_shard()

    def bytes_by_shard(self) -> dict[str, int]:
        """Bytes of every shard, including the one that is not full yet."""
        full = dict.fromkeys(self.sha256_by_full_shard, self._shard_tokens * self._itemsize)
        return {**full, self._path.name: self.token_count % self._shard_tokens * self._itemsize}

    def flush(self) -> None:
        """Waits until all written bytes are on the disk."""
        self._file.flush()
        fsync_path(self._path)

    def finish(self) -> dict[str, str]:
        """Name and SHA-256 of every shard. A shard without tokens is removed."""
        if self.token_count % self._shard_tokens:
            self._close_shard()
        else:
            self._file.close()
            self._path.unlink()
        return self.sha256_by_full_shard

    def close(self) -> None:
        self._file.close()

    def _open_shard(self, mode: str = "wb") -> None:
        self._path = self._folder / shard_name(self._split, len(self.sha256_by_full_shard))
        self._file = self._path.open(mode)
        self._digest = hashlib.sha256()

    def _close_shard(self) -> None:
        self.flush()
        self._file.close()
        self.sha256_by_full_shard[self._path.name] = self._digest.hexdigest()
