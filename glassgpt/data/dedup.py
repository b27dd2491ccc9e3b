"""Which documents have been seen, in eight bytes each: ten million take 80 MB, in memory and on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from glassgpt.files import fsync_path

BYTES_PER_KEY = 8
_MAX_RECENT_KEYS = 2**20


class DedupKeys:
    """A set of document keys that only grows, and is kept in a file. Of equal documents the first is new.

    Keys are 64 bits of a SHA-256: among ten million documents, two different ones share a key once in
    370,000 corpora.
    """

    def __init__(self, path: Path, known: int = 0) -> None:
        """`known`: how many of those in the file count."""
        self._path = path
        path.touch()
        self._old = np.sort(np.fromfile(path, dtype=np.uint64, count=known))
        with path.open("r+b") as file:
            file.truncate(self._old.nbytes)
        self._recent: set[int] = set()
        self._unsaved: list[NDArray[np.uint64]] = []
        self._saved = known

    def add_new(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which of these were not there before, nor earlier among these; from now on they are."""
        new = np.ones(len(keys), dtype=np.bool_)
        if len(self._old):
            places = np.searchsorted(self._old, keys)
            new = self._old[np.minimum(places, len(self._old) - 1)] != keys
        for i in np.flatnonzero(new).tolist():
            key = int(keys[i])
            new[i] = key not in self._recent
            self._recent.add(key)
        if len(self._recent) >= _MAX_RECENT_KEYS:
            recent = np.fromiter(self._recent, dtype=np.uint64)
            self._old = np.sort(np.concatenate([self._old, recent]))
            self._recent = set()
        self._unsaved.append(keys[new])
        return new

    def save(self) -> int:
        """How many are on the disk now."""
        with self._path.open("ab") as file:
            for keys in self._unsaved:
                file.write(keys.tobytes())
                self._saved += len(keys)
        fsync_path(self._path)
        self._unsaved = []
        return self._saved
