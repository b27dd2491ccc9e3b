"""Memorised or learned: the longest string of a sample that stands word for word in the training text.

    copied = longest_copied(sample_tokens, sample_blocks(dataset.tokens("train"), MAX_SEARCHED_TOKENS))
    copied.length, sample_tokens[copied.start :][: copied.length]

Windows of the training text are looked up by a hash of their tokens; what is found is compared token by
token, so the result is exact. Chance copies too: compare with the same search for a piece of validation text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glassgpt.data.batches import splitmix64
from glassgpt.data.ngram_baselines import MAX_TRAIN_TOKENS

Tokens = NDArray[np.int64]
Hashes = NDArray[np.uint64]

MAX_SEARCHED_TOKENS = MAX_TRAIN_TOKENS  # evenly spaced blocks of a longer split
_CHUNK_TOKENS = 1 << 17  # whose hashes fit into a processor's cache
_PAIRS_AT_ONCE = 1 << 20
_BASE = 0x9E3779B97F4A7C15  # odd, so that no factor is lost modulo 2^64


@dataclass(frozen=True)
class Copied:
    start: int  # in the sample
    length: int  # tokens; 0: not one of them is in the training text


def longest_copied(sample: Tokens, train: Sequence[Tokens]) -> Copied:
    """`train`: blocks of text; a string across two of them is not found."""
    sample = np.asarray(sample, dtype=np.int64)
    best = Copied(0, 0)
    chunks = (
        block[begin : begin + _CHUNK_TOKENS + len(sample)]
        for block in train
        for begin in range(0, len(block), _CHUNK_TOKENS)
    )
    for chunk in chunks:
        # Only longer strings than the best so far matter. Double the length while there are matches: the
        # longest string begins with one of the last ones.
        length, matches = best.length + 1, None
        while length <= len(sample) and len(longer := _find_windows(sample, chunk, length)):
            matches = longer
            length = min(2 * length, len(sample)) if length < len(sample) else length + 1
        if matches is not None:
            best = max(best, _extend(sample, chunk, matches), key=lambda copied: copied.length)
    return best


def _find_windows(sample: Tokens, text: Tokens, length: int) -> NDArray[np.int64]:
    """Pairs (position in the sample, position in the text) of windows with the same hash."""
    wanted, windows = _hash_windows(sample, length), _hash_windows(text, length)
    order = np.argsort(wanted, kind="stable")
    wanted = wanted[order]
    first = np.searchsorted(wanted, windows)
    at = np.flatnonzero(wanted[np.minimum(first, len(wanted) - 1)] == windows)
    if not len(at):
        return np.empty((0, 2), dtype=np.int64)
    # A window may stand in the sample more than once: a pair for each.
    counts = np.searchsorted(wanted, windows[at], side="right") - first[at]
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.stack([order[np.repeat(first[at], counts) + offsets], np.repeat(at, counts)], axis=1)


def _hash_windows(tokens: Tokens, length: int) -> Hashes:
    """A hash of each window, from those of its halves, quarters, …"""
    if len(tokens) < length:
        return np.empty(0, dtype=np.uint64)
    power = splitmix64(tokens.astype(np.uint64) + np.uint64(_BASE))  # ids are small numbers
    result: Hashes | None = None  # of the first `done` tokens of each window
    done, size, remaining = 0, 1, length
    while remaining:
        if remaining & 1:
            result = power if result is None else _join(result, power, done, size)
            done += size
        remaining >>= 1
        if remaining:
            power = _join(power, power, size, size)
            size *= 2
    assert result is not None
    return result[: len(tokens) - length + 1]


def _join(left: Hashes, right: Hashes, left_length: int, right_length: int) -> Hashes:
    count = min(len(left), len(right) - left_length)
    factor = np.uint64(pow(_BASE, right_length, 2**64))
    return left[:count] * factor + right[left_length : left_length + count]


def _extend(sample: Tokens, text: Tokens, pairs: NDArray[np.int64]) -> Copied:
    """The longest string that begins at one of the pairs, compared token by token."""
    best = Copied(0, 0)
    for begin in range(0, len(pairs), _PAIRS_AT_ONCE):
        left = pairs[begin : begin + _PAIRS_AT_ONCE]
        length = 0
        while True:
            inside = (left[:, 0] + length < len(sample)) & (left[:, 1] + length < len(text))
            left = left[inside]
            left = left[sample[left[:, 0] + length] == text[left[:, 1] + length]]
            if not len(left):
                break
            length += 1
            if length > best.length:
                best = Copied(int(left[0, 0]), length)
    return best


def collapse_spaces(tokens: Tokens, is_space: NDArray[np.bool_]) -> Tokens:
    """Without tokens of white space that follow white space: else the longest copy in code is indentation.

    `is_space`: of each token of the vocabulary."""
    space = is_space[tokens]
    follows_space = np.zeros(len(space), dtype=np.bool_)
    follows_space[1:] = space[:-1]
    collapsed: Tokens = tokens[~(space & follows_space)]
    return collapsed


def find_words(text: str) -> list[str]:
    """Runs of letters. Vowel signs of Hindi and Arabic are marks, and belong to the word."""
    marks = "".join(sorted(char for char in set(text) if unicodedata.category(char)[0] == "M"))
    return re.findall(rf"(?:[^\W\d_]|[{marks}])+" if marks else r"[^\W\d_]+", text)


def known_share(words: Sequence[str], vocabulary: set[str]) -> float | None:
    """The share of these words that are in the vocabulary; None without a word."""
    return sum(word in vocabulary for word in words) / len(words) if words else None


# A closing bracket or quote, and its opening one.
_CLOSING = dict(zip(")]}»”」』）】", "([{«“「『（【", strict=True))
_QUOTE = '"'  # the same character opens and closes; it closes in its paragraph, or never
_OPENING = frozenset(_CLOSING.values())


def count_closed_brackets(text: str) -> tuple[int, int]:
    """How many brackets and quotes open, and how many of these close, in order.

    An apostrophe is no quote, and a closing bracket that nothing opened counts for nothing."""
    opened = closed = 0
    open_ones: list[str] = []
    for char in text:
        if char == "\n" and open_ones and open_ones[-1] == _QUOTE:
            open_ones.pop()
        elif char in _CLOSING or (char == _QUOTE and open_ones[-1:] == [_QUOTE]):
            if open_ones[-1:] == [_CLOSING.get(char, _QUOTE)]:
                open_ones.pop()
                closed += 1
        elif char in _OPENING or char == _QUOTE:
            open_ones.append(char)
            opened += 1
    return opened, closed
