"""Exact duplicates in a corpus, for `glass prepare --dedup`: the keys of all documents so far.

dedup = DedupKeys(folder / "seen.bin")
is_new = dedup.add_new(keys)            # keys: `document_key` of each document, see split.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from glassgpt.files import fsync_path

BYTES_PER_KEY = 8
_MAX_RECENT_KEYS = 2**20  # in a set; then they are merged into the sorted array


class DedupKeys:
    """The keys of all documents so far, in memory and in a file, 8 bytes each: a known key is a duplicate.

    Keys are 64 bits of a SHA-256, so different documents practically never share one.
    """

    def __init__(self, path: Path, known: int = 0) -> None:
        """`known`: how many keys of the file are valid; the rest is cut off."""
        self._path = path
        path.touch()
        self._sorted_keys = np.sort(np.fromfile(path, dtype=np.uint64, count=known))
        with path.open("r+b") as file:
            file.truncate(self._sorted_keys.nbytes)
        self._recent_keys: set[int] = set()
        self._unsaved: list[NDArray[np.uint64]] = []
        self._saved_count = known

    def add_new(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Adds the keys, and returns which of them are new: neither known before nor earlier in `keys`."""
        is_new = np.ones(len(keys), dtype=np.bool_)
        if len(self._sorted_keys):
            places = np.searchsorted(self._sorted_keys, keys)
            is_new = self._sorted_keys[np.minimum(places, len(self._sorted_keys) - 1)] != keys
        for i in np.flatnonzero(is_new).tolist():
            key = int(keys[i])
            is_new[i] = key not in self._recent_keys
            self._recent_keys.add(key)
        if len(self._recent_keys) >= _MAX_RECENT_KEYS:
            recent = np.fromiter(self._recent_keys, dtype=np.uint64)
            self._sorted_keys = np.sort(np.concatenate([self._sorted_keys, recent]))
            self._recent_keys = set()
        self._unsaved.append(keys[is_new])
        return is_new

    def save(self) -> int:
        """Appends the new keys to the file; returns how many keys it holds."""
        with self._path.open("ab") as file:
            for keys in self._unsaved:
                file.write(keys.tobytes())
                self._saved_count += len(keys)
        fsync_path(self._path)
        self._unsaved = []
        return self._saved_count
