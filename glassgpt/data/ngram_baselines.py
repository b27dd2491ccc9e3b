"""Baselines for a loss: what a table of token frequencies, pairs, triples, … of the training text reaches.

    losses = ngram_losses(train_tokens, val_tokens, vocab_size)
    losses[1], losses[3]      # token frequencies; triples: nats per validation token

Order 1 is the share of each token in the training text. Higher orders are interpolated Kneser-Ney: raw counts
at the highest order, below it in how many different contexts an n-gram follows (its continuation count), one
discount n1 / (n1 + 2 n2) per order, and the uniform distribution below order 1.

An n-gram is one integer, the digits of which in base `vocab_size` are its tokens. So a table of counts is two
sorted arrays, and the n-grams of one context are neighbours in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glassgpt.data.shards import TokenArray

Keys = NDArray[np.int64]
Floats = NDArray[np.float64]

MAX_TRAIN_TOKENS = 20_000_000  # evenly spaced blocks of a longer split
_MAX_VAL_TOKENS = 1_000_000
_BLOCKS = 64
_SMALL_VOCABULARY = 1000  # up to it, orders up to 6 say something; above, contexts of 3 tokens are rare
_MAX_ORDER, _MAX_ORDER_OF_WORDS = 6, 3


def highest_order(vocab_size: int) -> int:
    return _MAX_ORDER if vocab_size <= _SMALL_VOCABULARY else _MAX_ORDER_OF_WORDS


def ngram_losses(
    train: TokenArray,
    val: TokenArray,
    vocab_size: int,
    on_order: Callable[[int], None] = lambda order: None,
) -> dict[int, float]:
    """Mean loss in nats per validation token, by order. `on_order` is called when one is counted."""
    blocks = sample_blocks(train, MAX_TRAIN_TOKENS)
    val_blocks = sample_blocks(val, _MAX_VAL_TOKENS)
    counts = np.bincount(np.concatenate(blocks), minlength=vocab_size)
    total = int(counts.sum())
    unigram = np.where(counts > 0, counts / total, 1 / (total + vocab_size))
    losses = {1: float(-np.log(unigram[np.concatenate(val_blocks)]).mean())}
    # Downwards, because one sort serves all orders: sorted n-grams without their last token are sorted, too.
    # What the validation tokens need of each table is all that is kept of it.
    highest = highest_order(vocab_size)
    raw: dict[int, Interpolation] = {}
    continued: dict[int, Interpolation] = {}
    ngrams = np.empty(0, dtype=np.int64)
    for n in range(highest, 0, -1):
        keys = np.concatenate([_padded_keys(block, n, vocab_size) for block in val_blocks])
        if n < highest:
            # In how many contexts an n-gram follows: an (n+1)-gram without its first token is an n-gram.
            distinct = ngrams[_group_starts(ngrams)]
            continued[n] = CountTable.of_sorted(np.sort(distinct % vocab_size**n)).look_up(keys, vocab_size)
            # The last n-gram of a block begins no longer one.
            ends = np.sort([ngram_keys(block[-n:], n, vocab_size)[0] for block in blocks if len(block) >= n])
            ngrams = ngrams // vocab_size
            ngrams = np.insert(ngrams, np.searchsorted(ngrams, ends), ends)
        else:
            ngrams = np.sort(np.concatenate([ngram_keys(block, n, vocab_size) for block in blocks]))
        if n > 1:
            raw[n] = CountTable.of_sorted(ngrams).look_up(keys, vocab_size)
        on_order(n)
    lower = np.full(sum(map(len, val_blocks)), 1 / vocab_size)
    for n in range(1, highest + 1):
        if n > 1:
            with np.errstate(divide="ignore"):  # without any single n-gram, an unseen one has no probability
                losses[n] = float(-np.log(raw[n].mix(lower)).mean())
        if n < highest:
            lower = continued[n].mix(lower)
    return losses


@dataclass(frozen=True)
class Interpolation:
    """For each looked-up n-gram: the probability that its own count gives, and the weight of shorter ones."""

    own: Floats
    weight_of_lower: Floats

    def mix(self, lower: Floats) -> Floats:
        return self.own + self.weight_of_lower * lower


@dataclass(frozen=True)
class CountTable:
    """N-grams, sorted, and the count of each."""

    ngrams: Keys
    counts: Keys

    @classmethod
    def of_sorted(cls, ngrams: Keys) -> CountTable:
        starts = _group_starts(ngrams)
        return cls(ngrams[starts], np.diff(np.append(starts, len(ngrams))))

    def look_up(self, keys: Keys, vocab_size: int) -> Interpolation:
        """`keys`: n-grams, -1 where there is none. Of a context that never occurs, all is left to shorter
        ones."""
        if not len(self.ngrams):
            return Interpolation(np.zeros(len(keys)), np.ones(len(keys)))
        singles, pairs = int((self.counts == 1).sum()), int((self.counts == 2).sum())
        discount = singles / (singles + 2 * pairs) if singles else 0.0
        contexts = self.ngrams // vocab_size
        starts = _group_starts(contexts)
        ends = np.append(starts[1:], len(contexts))
        sums = np.concatenate(([0], np.cumsum(self.counts)))
        at = np.minimum(np.searchsorted(contexts[starts], keys // vocab_size), len(starts) - 1)
        is_known = (keys >= 0) & (contexts[starts][at] == keys // vocab_size)
        context_count = (sums[ends] - sums[starts])[at]
        place = np.minimum(np.searchsorted(self.ngrams, keys), len(self.ngrams) - 1)
        count = np.where(self.ngrams[place] == keys, self.counts[place], 0)
        own = np.maximum(count - discount, 0) / context_count
        weight = discount * (ends - starts)[at] / context_count
        return Interpolation(np.where(is_known, own, 0.0), np.where(is_known, weight, 1.0))


def _group_starts(values: Keys) -> Keys:
    """Where each group of equal values begins, in sorted values."""
    return np.flatnonzero(np.concatenate((np.ones(min(1, len(values)), bool), values[1:] != values[:-1])))


def sample_blocks(tokens: TokenArray, limit: int) -> list[Keys]:
    """All tokens as one block, or evenly spaced blocks of `limit` tokens together."""
    if len(tokens) <= limit:
        return [np.asarray(tokens[:], dtype=np.int64)]
    size = limit // _BLOCKS
    starts = np.linspace(0, len(tokens) - size, _BLOCKS).astype(int).tolist()
    return [np.asarray(tokens[start : start + size], dtype=np.int64) for start in starts]


def ngram_keys(block: Keys, order: int, vocab_size: int) -> Keys:
    """The n-grams of a block, in its order."""
    count = len(block) - order + 1
    keys = np.zeros(max(0, count), dtype=np.int64)
    for offset in range(order if count > 0 else 0):
        keys = keys * vocab_size + block[offset : offset + count]
    return keys


def _padded_keys(block: Keys, order: int, vocab_size: int) -> Keys:
    """The n-gram that ends at each token; -1 at the beginning, where there are too few tokens."""
    keys = ngram_keys(block, order, vocab_size)
    return np.concatenate((np.full(len(block) - len(keys), -1), keys))


def uniform_loss(vocab_size: int) -> float:
    """The loss of a model that knows nothing."""
    return math.log(vocab_size)
