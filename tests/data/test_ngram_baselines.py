"""N-gram baselines against a slow implementation of the definition, token by token."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from glassgpt.data.ngram_baselines import CountTable, ngram_losses, sample_blocks


class SlowKneserNey:
    """Interpolated Kneser-Ney with dictionaries."""

    def __init__(self, train: Sequence[int], order: int, vocab_size: int) -> None:
        self.order, self.vocab_size = order, vocab_size
        ngrams = {
            n: Counter(tuple(train[i : i + n]) for i in range(len(train) - n + 1))
            for n in range(1, order + 1)
        }
        self.tables = {order: ngrams[order]}
        for n in range(1, order):
            self.tables[n] = Counter(ngram[1:] for ngram in ngrams[n + 1])

    def probability(self, context: tuple[int, ...], token: int) -> float:
        n = len(context) + 1
        table = self.tables[n]
        singles = sum(count == 1 for count in table.values())
        pairs = sum(count == 2 for count in table.values())
        discount = singles / (singles + 2 * pairs) if singles else 0.0
        shorter = 1 / self.vocab_size if n == 1 else self.probability(context[1:], token)
        followers = {ngram: count for ngram, count in table.items() if ngram[:-1] == context}
        total = sum(followers.values())
        if not total:
            return shorter
        kept = max(followers.get((*context, token), 0) - discount, 0.0)
        return kept / total + discount * len(followers) / total * shorter

    def loss(self, val: Sequence[int]) -> float:
        losses = [
            -math.log(self.probability(tuple(val[max(0, i - self.order + 1) : i]), val[i]))
            for i in range(len(val))
        ]
        return sum(losses) / len(losses)


def markov_text(count: int, vocab_size: int, seed: int) -> list[int]:
    """Tokens that depend on the one before, so that pairs help."""
    rng = np.random.default_rng(seed)
    table = rng.dirichlet(np.full(vocab_size, 0.3), vocab_size)
    tokens = [0]
    for _ in range(count - 1):
        tokens.append(int(rng.choice(vocab_size, p=table[tokens[-1]])))
    return tokens


@pytest.mark.parametrize(("vocab_size", "seed"), [(5, 0), (12, 1)])
def test_every_order_equals_the_slow_implementation(vocab_size: int, seed: int) -> None:
    tokens = markov_text(700, vocab_size, seed)
    train, val = tokens[:600], [*tokens[600:], vocab_size - 1, vocab_size - 1]
    losses = ngram_losses(np.array(train), np.array(val), vocab_size)
    assert list(losses) == [1, 2, 3, 4, 5, 6]
    for order in range(2, 7):
        slow = SlowKneserNey(train, order, vocab_size)
        assert losses[order] == pytest.approx(slow.loss(val), abs=1e-6), order


def test_blocks_of_a_long_text_are_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """No n-gram reaches over a border, and the last tokens of a block count in every order."""
    tokens = markov_text(640, 5, 3)
    monkeypatch.setattr("glassgpt.data.ngram_baselines.MAX_TRAIN_TOKENS", 320)
    losses = ngram_losses(np.array(tokens), np.array(tokens[:60]), 5)
    blocks = sample_blocks(np.array(tokens), 320)
    slow = SlowKneserNey([], 3, 5)
    counts = {n: Counter[tuple[int, ...]]() for n in (1, 2, 3)}
    for block in blocks:
        for n, counter in counts.items():
            counter.update(tuple(block[i : i + n].tolist()) for i in range(len(block) - n + 1))
    slow.tables = {
        3: counts[3], 2: Counter(ngram[1:] for ngram in counts[3]), 1: Counter(n[1:] for n in counts[2])
    }  # fmt: skip
    assert losses[3] == pytest.approx(slow.loss(tokens[:60]), abs=1e-9)


def test_order_1_is_the_entropy_of_the_counts_where_every_token_occurs() -> None:
    train = np.array([0, 0, 0, 1] * 50 + [2] * 100)
    losses = ngram_losses(train, train, 4)
    assert losses[1] == pytest.approx(math.log(2) / 2 + math.log(6) / 6 + math.log(3) / 3)
    unseen = ngram_losses(train, np.array([3]), 4)
    assert unseen[1] == pytest.approx(math.log(300 + 4))


def test_words_stop_at_triples_and_a_probability_sums_to_one() -> None:
    tokens = np.array(markov_text(400, 30, 2))
    assert list(ngram_losses(tokens, tokens[:50], 5000)) == [1, 2, 3]
    # Over all tokens that can follow one context, the probabilities of the table sum to 1.
    keys = np.array([tokens[7] * 30 + token for token in range(30)])
    table = CountTable.of_sorted(np.sort(tokens[:-1] * 30 + tokens[1:]))
    assert table.look_up(keys, 30).mix(np.full(30, 1 / 30)).sum() == pytest.approx(1.0)


def test_a_long_split_is_sampled_evenly() -> None:
    tokens = np.arange(100_000)
    blocks = sample_blocks(tokens, 6400)
    assert sum(map(len, blocks)) == 6400
    assert (blocks[0][0], blocks[-1][-1]) == (0, 99_999)
    gaps = np.diff([block[0] for block in blocks])
    assert gaps.max() - gaps.min() <= 1
