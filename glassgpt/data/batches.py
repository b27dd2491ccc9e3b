"""Which tokens an update sees: sequence j of update s is a pure function of (seed, s, j).

Nothing here has state. A run that resumes at update 40,000 asks for update 40,000; eight ranks, or
eight micro-steps, ask for eight slices of the same global batch; and both get the very sequences that
one process would have drawn in one go.

    x, y = training_batch(tokens, block_size=256, seed=1337, update=0, first=0, count=64)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassgpt.errors import UserError

IGNORED_TARGET = -1  # what cross_entropy(ignore_index=-1) skips
_WORDS_PER_COUNTER = 4  # Philox4x64 makes four 64-bit words per step of its counter


def offsets(seed: int, update: int, first: int, count: int, positions: int) -> NDArray[np.int64]:
    """Where sequences first, first + 1, ... of an update start: random, and the same however sliced.

    Philox is a block cipher over a counter, so word j costs the same whatever j is. The modulo favours
    small offsets by less than positions / 2^64.
    """
    generator = np.random.Philox(key=np.array([seed % 2**64, update], dtype=np.uint64))
    generator.advance(first // _WORDS_PER_COUNTER)
    skipped = first % _WORDS_PER_COUNTER
    words = generator.random_raw(skipped + count)[skipped:]
    return (words % np.uint64(positions)).astype(np.int64)


def gather(tokens: NDArray[Any], starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """The `length` tokens from each start, as rows."""
    # A window view costs nothing, and indexing it copies whole rows: no index matrix is built.
    windows = np.lib.stride_tricks.sliding_window_view(tokens, length)
    return windows[starts].astype(np.int64)


def training_batch(
    tokens: NDArray[Any], block_size: int, seed: int, update: int, first: int, count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sequences first .. first + count of an update: inputs x and targets y, y being x one token on."""
    positions = len(tokens) - block_size
    if positions < 1:
        raise UserError(
            f"the training split has {len(tokens):,} tokens, fewer than block_size + 1 = {block_size + 1:,}: "
            "lower --block_size or prepare more text"
        )
    starts = offsets(seed, update, first, count, positions)
    rows = gather(tokens, starts, block_size + 1)
    return rows[:, :-1], rows[:, 1:]


def evaluation_windows(n_tokens: int, block_size: int, eval_tokens: int | None) -> NDArray[np.int64]:
    """Where the evaluation windows start: the same ones every time, whatever the batch size.

    With no limit, or one the split fits in: windows side by side, so that each of the n_tokens - 1
    tokens that have a predecessor is predicted exactly once. Otherwise max(1, eval_tokens // block_size)
    windows, evenly spaced, which cannot overlap because they fit.
    """
    targets = n_tokens - 1
    if targets < 1:
        raise UserError(
            f"a split of {n_tokens} token has nothing to predict: prepare more text, or raise --val_fraction"
        )
    if eval_tokens is None or eval_tokens >= targets:
        return np.arange(0, targets, block_size, dtype=np.int64)
    count = max(1, eval_tokens // block_size)
    return np.arange(count, dtype=np.int64) * targets // count


def evaluation_batch(
    tokens: NDArray[Any], starts: NDArray[np.int64], block_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Inputs and targets of these windows, always (len(starts), block_size).

    Past the end of the split x is 0 and y is IGNORED_TARGET: one shape means one compiled graph.
    """
    positions = starts[:, None] + np.arange(block_size + 1)
    rows = tokens[np.minimum(positions, len(tokens) - 1)].astype(np.int64)
    real = positions[:, 1:] < len(tokens)
    return np.where(real, rows[:, :-1], 0), np.where(real, rows[:, 1:], IGNORED_TARGET)
