"""Which tokens an update sees: a pure function of the seed and of the sequence's number in the run.

Sequence j of update s has the number s x (sequences per update) + j. Nothing here has state: a run that
resumes at update 40,000 asks for update 40,000; eight ranks, or eight micro-steps, ask for eight slices of
the same update; and all get the very sequences that one process would have drawn in one go.

    x, y = training_batch(tokens, block_size=256, seed=1337, first=0, count=64)

The stream is a series of epochs. Each cuts the text into windows, from another starting point than the epoch
before, and visits them in random order: in one epoch every token is learned from once (a window's length at
the ends excepted), which drawing windows at random only does on average.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from glassgpt.data.shards import ShardedTokens, TokenArray
from glassgpt.errors import UserError

IGNORED_TARGET = -1  # what cross_entropy(ignore_index=-1) skips
_FEISTEL_ROUNDS = 6
_STARTS_PER_PAGE = 1024  # starts that are worked out at a time


def window_starts(seed: int, first: int, count: int, n_tokens: int, block_size: int) -> NDArray[np.int64]:
    """Where sequences first, first + 1, ... of a run start. Costs the same however far into the run."""
    # One window less than fits, so that there is room to shift them all.
    per_epoch = max(1, (n_tokens - 1) // block_size - 1)
    pages = range(first // _STARTS_PER_PAGE, (first + max(count, 1) - 1) // _STARTS_PER_PAGE + 1)
    starts = np.concatenate([_page(seed, page, n_tokens, block_size, per_epoch) for page in pages])
    return starts[first % _STARTS_PER_PAGE : first % _STARTS_PER_PAGE + count]


@functools.lru_cache(maxsize=16)
def _page(seed: int, page: int, n_tokens: int, block_size: int, per_epoch: int) -> NDArray[np.int64]:
    """The starts of sequences page x _PAGE and on. Many at a time, and remembered: an update needs few."""
    room = n_tokens - per_epoch * block_size
    windows, words = draw_without_replacement(seed, page * _STARTS_PER_PAGE, _STARTS_PER_PAGE, per_epoch)
    return (words % np.uint64(room)).astype(np.int64) + windows * block_size


def draw_without_replacement(
    seed: int, first: int, count: int, n: int
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Which of n things sequences first, first + 1, ... are, each once in an epoch; and of each sequence a
    random number that is its epoch's."""
    epochs, places = np.divmod(np.arange(first, first + count, dtype=np.int64), n)
    of_epochs = [_epoch_words(seed, epoch) for epoch in range(epochs[0], epochs[-1] + 1)]
    words = np.stack(of_epochs, axis=1)[:, epochs - epochs[0]]
    return feistel_permute(places, n, words[:_FEISTEL_ROUNDS]), words[_FEISTEL_ROUNDS]


def _epoch_words(seed: int, epoch: int) -> NDArray[np.uint64]:
    """The random numbers of an epoch: keys of its shuffle, and one more."""
    return np.random.Philox(key=np.array([seed % 2**64, epoch], dtype=np.uint64)).random_raw(
        _FEISTEL_ROUNDS + 1
    )


def feistel_permute(places: NDArray[np.int64], n: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Where shuffles of 0 .. n-1 put these places, without making the shuffles. A place has its column of
    keys, which is its shuffle.

    A Feistel network is one-to-one on numbers of an even number of bits; a result of n or more is sent
    through again until it falls below, which keeps it one-to-one on 0 .. n-1.
    """
    half = np.uint64(max(4, ((n - 1).bit_length() + 1) // 2))
    low = np.uint64((1 << int(half)) - 1)
    value = places.astype(np.uint64)
    outside = np.ones(len(value), dtype=bool)
    while outside.any():
        left, right = value[outside] >> half, value[outside] & low
        for key in keys[:, outside]:
            left, right = right, left ^ (_mixed(right ^ key) & low)
        value[outside] = (left << half) | right
        outside = value >= n
    return value.astype(np.int64)


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit of the result depends on every bit of x (the finalizer of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def gather_windows(tokens: TokenArray, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """The `length` tokens from each start, as rows."""
    if isinstance(tokens, ShardedTokens):
        return tokens.gather_windows(starts, length)
    # A window view costs nothing, and indexing it copies whole rows: no index matrix is built.
    windows = np.lib.stride_tricks.sliding_window_view(tokens, length)
    return windows[starts].astype(np.int64)


def training_batch(
    tokens: TokenArray, block_size: int, seed: int, first: int, count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sequences first .. first + count of a run: inputs x and targets y, y being x one token on."""
    if len(tokens) < block_size + 1:
        raise UserError(
            f"the training split has {len(tokens):,} tokens, fewer than block_size + 1 = {block_size + 1:,}: "
            "lower --block_size or prepare more text"
        )
    starts = window_starts(seed, first, count, len(tokens), block_size)
    rows = gather_windows(tokens, starts, block_size + 1)
    return rows[:, :-1], rows[:, 1:]


def evaluation_window_starts(n_tokens: int, block_size: int, eval_tokens: int | None) -> NDArray[np.int64]:
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
    tokens: TokenArray, starts: NDArray[np.int64], block_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Inputs and targets of these windows, always (len(starts), block_size).

    Past the end of the split x is 0 and y is IGNORED_TARGET: one shape means one compiled graph.
    """
    positions = starts[:, None] + np.arange(block_size + 1)
    rows = tokens[np.minimum(positions, len(tokens) - 1)].astype(np.int64)
    real = positions[:, 1:] < len(tokens)
    return np.where(real, rows[:, :-1], 0), np.where(real, rows[:, 1:], IGNORED_TARGET)
