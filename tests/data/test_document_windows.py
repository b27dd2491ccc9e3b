"""Sequences of one document each: nothing crosses, nothing is missed, nothing depends on how it is cut."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassgpt.data.batches import IGNORED_TARGET, DocumentWindows, document_window_batch
from glassgpt.data.shards import ShardedTokens

END = 9


@given(
    st.lists(st.lists(st.integers(0, 8), max_size=40), min_size=1, max_size=20),
    st.integers(1, 12),
    st.integers(0, 1000),
    st.booleans(),
)
def test_an_epoch_predicts_every_token_once_from_its_own_document(
    texts: list[list[int]], block_size: int, seed: int, separated: bool
) -> None:
    # Either a separator ends every document, or there is none after the last.
    tokens = np.array([token for text in texts for token in [*text, END]][: None if separated else -1])
    if len(tokens) < 2:
        return
    document_of = np.concatenate([[0], np.cumsum(tokens == END)[:-1]])
    windows = DocumentWindows(tokens, END, block_size)
    starts, counts = windows.draw(seed, len(windows) * 3, len(windows))  # the fourth epoch
    x, y = document_window_batch(tokens, starts, counts, block_size)
    predicted: Counter[int] = Counter()
    for row in range(len(starts)):
        for column in range(block_size):
            place = starts[row] + column + 1
            if column >= counts[row]:
                assert y[row, column] == IGNORED_TARGET
                continue
            assert y[row, column] == tokens[place]
            assert x[row, column] == tokens[place - 1]
            # All that this target can look back on is its own document, and the end of the one before.
            own = document_of[place]
            seen = range(starts[row], place)
            assert all(document_of[i] == own or (i == starts[row] and tokens[i] == END) for i in seen)
            predicted[int(place)] += 1
    assert predicted == Counter(range(1, len(tokens)))
    assert windows.filled_fraction == pytest.approx((len(tokens) - 1) / (len(windows) * block_size))


def test_a_sequence_is_a_function_of_seed_and_number() -> None:
    tokens = np.random.default_rng(0).integers(0, END, 3000, endpoint=True).astype(np.uint16)
    windows = DocumentWindows(tokens, END, 8)
    parts = DocumentWindows(ShardedTokens([tokens[:1001], tokens[1001:]]), END, 8)
    whole = windows.draw(7, 1000, 500)
    for begin in range(0, 500, 50):
        for one, all_of_them in zip(parts.draw(7, 1000 + begin, 50), whole, strict=True):
            assert np.array_equal(one, all_of_them[begin : begin + 50])
    assert not np.array_equal(windows.draw(8, 1000, 500)[0], whole[0])


def test_a_text_without_an_end_is_one_document() -> None:
    windows = DocumentWindows(np.arange(100) % 5, END, 30)
    assert len(windows) == 4
    starts, counts = windows.draw(0, 0, 4)
    assert sorted(zip(starts.tolist(), counts.tolist(), strict=True)) == [
        (0, 30),
        (30, 30),
        (60, 30),
        (90, 9),
    ]
