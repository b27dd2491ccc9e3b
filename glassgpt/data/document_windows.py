"""Training sequences that are of one document each: `--documents=apart`.

A passage begins at the end-of-text before its document, or goes on where the document's last passage ended,
and is at most `block_size` long. What a window has left over after a document's end is not learned from, and
as attention looks back only, nothing of it is seen by what is. So neither attention nor loss crosses
documents, and in one epoch every token but the first is predicted exactly once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from glassgpt.data.batches import IGNORED_TARGET, draw_without_replacement
from glassgpt.data.shards import TokenArray

_SCAN_CHUNK_TOKENS = 2**24


class DocumentWindows:
    """The passages of a text. Which one is next is a pure function of the seed and its number in the run."""

    def __init__(self, tokens: TokenArray, end_of_text: int, block_size: int) -> None:
        """Reads the text once, to find where documents end: 16 bytes of memory for each."""
        found = [
            start + np.flatnonzero(tokens[start : start + _SCAN_CHUNK_TOKENS] == end_of_text)
            for start in range(0, len(tokens), _SCAN_CHUNK_TOKENS)
        ]
        self._bounds = np.unique(np.concatenate([[0], *found, [len(tokens) - 1]]))
        self._block_size, self._last = block_size, len(tokens) - 1
        self._after = np.cumsum(-(-np.diff(self._bounds) // block_size))  # passages up to each document's end

    def __len__(self) -> int:
        return int(self._after[-1])

    @property
    def filled_fraction(self) -> float:
        """The share of targets that are learned from."""
        return self._last / (len(self) * self._block_size)

    def draw(self, seed: int, first: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where sequences first, first + 1, ... of a run start, and how many targets each has."""
        places, _ = draw_without_replacement(seed, first, count, len(self))
        documents = np.searchsorted(self._after, places, side="right")
        earlier = np.where(documents > 0, self._after[documents - 1], 0)
        starts = self._bounds[documents] + (places - earlier) * self._block_size
        return starts, np.minimum(self._bounds[documents + 1] - starts, self._block_size)


def document_window_batch(
    tokens: TokenArray, starts: NDArray[np.int64], counts: NDArray[np.int64], block_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Inputs and targets; of the targets only the first `counts` of each row count."""
    steps = np.arange(block_size + 1)
    rows = tokens[np.minimum(starts[:, None] + steps, len(tokens) - 1)].astype(np.int64)
    return rows[:, :-1], np.where(steps[:-1] < counts[:, None], rows[:, 1:], IGNORED_TARGET)
