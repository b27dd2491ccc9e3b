"""Which tokens an update sees: a pure function of the seed and of the sequence's number in the run.

Sequence j of update s has the number s x (sequences per update) + j. Nothing here has state: a run that
resumes at update 40,000 asks for update 40,000; eight ranks, or eight micro-steps, ask for eight slices of
the same update; and all get exactly the sequences that one process would have drawn.

    x, y = training_batch(tokens, block_size=256, seed=1337, first=0, count=64)

The sequences come in epochs. Each epoch cuts the training split into windows, with another offset than the
epoch before, and visits them in random order: in one epoch every token is a target once (except up to a
window's length at the ends), which drawing windows at random only does on average.

With `--documents=apart` (DocumentWindows) a sequence holds tokens of one document only.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from glassgpt.data.shards import ShardedTokens, TokenArray
from glassgpt.errors import UserError

IGNORED_TARGET = -1  # what cross_entropy(ignore_index=-1) skips
_FEISTEL_ROUNDS = 6
_STARTS_PER_PAGE = 1024  # starts that are computed at a time
_SCAN_CHUNK_TOKENS = 2**24


# --- training ---


def training_batch(
    tokens: TokenArray, block_size: int, seed: int, first: int, count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sequences first .. first + count of a run: inputs x and targets y, which are x shifted by one token."""
    if len(tokens) < block_size + 1:
        raise UserError(
            f"the training split has {len(tokens):,} tokens, fewer than block_size + 1 = {block_size + 1:,}: "
            "lower --block_size or prepare more text"
        )
    starts = window_starts(seed, first, count, len(tokens), block_size)
    rows = gather_windows(tokens, starts, block_size + 1)
    return rows[:, :-1], rows[:, 1:]


def window_starts(seed: int, first: int, count: int, n_tokens: int, block_size: int) -> NDArray[np.int64]:
    """Where sequences first, first + 1, ... of a run start. Costs the same however far into the run."""
    # One window fewer than fit, so that there is room to shift them all.
    windows_per_epoch = max(1, (n_tokens - 1) // block_size - 1)
    pages = range(first // _STARTS_PER_PAGE, (first + max(count, 1) - 1) // _STARTS_PER_PAGE + 1)
    starts = np.concatenate(
        [_page_of_starts(seed, page, n_tokens, block_size, windows_per_epoch) for page in pages]
    )
    return starts[first % _STARTS_PER_PAGE : first % _STARTS_PER_PAGE + count]


@functools.lru_cache(maxsize=16)
def _page_of_starts(
    seed: int, page: int, n_tokens: int, block_size: int, windows_per_epoch: int
) -> NDArray[np.int64]:
    """The starts of a page of sequences, cached: one update needs only a few of them."""
    max_offset = n_tokens - windows_per_epoch * block_size
    windows, offset_bits = draw_without_replacement(
        seed, page * _STARTS_PER_PAGE, _STARTS_PER_PAGE, windows_per_epoch
    )
    return (offset_bits % np.uint64(max_offset)).astype(np.int64) + windows * block_size


def gather_windows(tokens: TokenArray, starts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """The `length` tokens from each start, as rows."""
    if isinstance(tokens, ShardedTokens):
        return tokens.gather_windows(starts, length)
    # A window view costs nothing, and indexing it copies whole rows: no index matrix is built.
    windows = np.lib.stride_tricks.sliding_window_view(tokens, length)
    return windows[starts].astype(np.int64)


# --- shuffling ---


def draw_without_replacement(
    seed: int, first: int, count: int, n: int
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Items of 0 .. n-1 for sequences first, first + 1, ...: each item once per epoch, in random order.

    The second array holds random bits for an offset, the same for all sequences of an epoch.
    """
    epochs, places = np.divmod(np.arange(first, first + count, dtype=np.int64), n)
    words_by_epoch = [
        np.random.Philox(key=np.array([seed % 2**64, epoch], dtype=np.uint64)).random_raw(_FEISTEL_ROUNDS + 1)
        for epoch in range(epochs[0], epochs[-1] + 1)
    ]
    words = np.stack(words_by_epoch, axis=1)
    round_keys, offset_bits = words[:_FEISTEL_ROUNDS], words[_FEISTEL_ROUNDS]  # by epoch
    epoch_index = epochs - epochs[0]
    return feistel_permute(places, n, round_keys[:, epoch_index]), offset_bits[epoch_index]


def feistel_permute(places: NDArray[np.int64], n: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Where a permutation of 0 .. n-1 puts these places, without computing the whole permutation.

    Each place has a column of keys, which selects its permutation. A Feistel network is one-to-one on
    numbers of an even number of bits; a result of n or more is permuted again until it is below n, which
    keeps it one-to-one on 0 .. n-1.
    """
    half_bits = np.uint64(max(4, ((n - 1).bit_length() + 1) // 2))
    low_mask = np.uint64((1 << int(half_bits)) - 1)
    value = places.astype(np.uint64)
    outside = np.ones(len(value), dtype=bool)
    while outside.any():
        left, right = value[outside] >> half_bits, value[outside] & low_mask
        for key in keys[:, outside]:
            left, right = right, left ^ (splitmix64(right ^ key) & low_mask)
        value[outside] = (left << half_bits) | right
        outside = value >= n
    return value.astype(np.int64)


def splitmix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64: every bit of the result depends on every bit of x."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


# --- training on one document per sequence ---


class DocumentWindows:
    """Training windows that hold one document each: `--documents=apart`.

    A window begins at the end-of-text token before its document, or where the document's last window ended,
    and is at most `block_size` long. Positions after the document's end have no target, and causal attention
    does not look ahead, so neither attention nor loss crosses documents. In one epoch every token but the
    first is predicted exactly once.
    """

    def __init__(self, tokens: TokenArray, end_of_text: int, block_size: int) -> None:
        """Scans the tokens once for the ends of documents: 16 bytes of memory for each."""
        ends = [
            start + np.flatnonzero(tokens[start : start + _SCAN_CHUNK_TOKENS] == end_of_text)
            for start in range(0, len(tokens), _SCAN_CHUNK_TOKENS)
        ]
        self._bounds = np.unique(np.concatenate([[0], *ends, [len(tokens) - 1]]))
        self._block_size, self._n_targets = block_size, len(tokens) - 1
        # Windows up to the end of each document.
        self._cumulative_windows = np.cumsum(-(-np.diff(self._bounds) // block_size))

    def __len__(self) -> int:
        return int(self._cumulative_windows[-1])

    @property
    def filled_fraction(self) -> float:
        """The fraction of positions that have a target."""
        return self._n_targets / (len(self) * self._block_size)

    def draw(self, seed: int, first: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where sequences first, first + 1, ... of a run start, and how many targets each has."""
        windows, _ = draw_without_replacement(seed, first, count, len(self))
        documents = np.searchsorted(self._cumulative_windows, windows, side="right")
        windows_before = np.where(documents > 0, self._cumulative_windows[documents - 1], 0)
        starts = self._bounds[documents] + (windows - windows_before) * self._block_size
        return starts, np.minimum(self._bounds[documents + 1] - starts, self._block_size)


def document_window_batch(
    tokens: TokenArray, starts: NDArray[np.int64], counts: NDArray[np.int64], block_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Inputs and targets; only the first `counts` targets of each row count, the others are ignored."""
    offsets = np.arange(block_size + 1)
    rows = tokens[np.minimum(starts[:, None] + offsets, len(tokens) - 1)].astype(np.int64)
    return rows[:, :-1], np.where(offsets[:-1] < counts[:, None], rows[:, 1:], IGNORED_TARGET)


# --- evaluation ---


def evaluation_window_starts(n_tokens: int, block_size: int, eval_tokens: int | None) -> NDArray[np.int64]:
    """Where the evaluation windows start: always the same, whatever the batch size.

    With no limit, or a limit that the split fits in: adjacent windows, so that each of the n_tokens - 1
    tokens that have a predecessor is predicted exactly once. Otherwise max(1, eval_tokens // block_size)
    windows, evenly spaced, which cannot overlap because they fit.
    """
    n_targets = n_tokens - 1
    if n_targets < 1:
        raise UserError(
            f"a split of {n_tokens} token has nothing to predict: prepare more text, or raise --val_fraction"
        )
    if eval_tokens is None or eval_tokens >= n_targets:
        return np.arange(0, n_targets, block_size, dtype=np.int64)
    n_windows = max(1, eval_tokens // block_size)
    return np.arange(n_windows, dtype=np.int64) * n_targets // n_windows


def evaluation_batch(
    tokens: TokenArray, starts: NDArray[np.int64], block_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Inputs and targets of these windows, always of shape (len(starts), block_size).

    Past the end of the split x is 0 and y is IGNORED_TARGET: one shape means one compiled graph.
    """
    positions = starts[:, None] + np.arange(block_size + 1)
    rows = tokens[np.minimum(positions, len(tokens) - 1)].astype(np.int64)
    inside = positions[:, 1:] < len(tokens)
    return np.where(inside, rows[:, :-1], 0), np.where(inside, rows[:, 1:], IGNORED_TARGET)
