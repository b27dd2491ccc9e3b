"""The training stream is a pure function, and evaluation sees every token exactly once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.data.batches import (
    IGNORED_TARGET,
    evaluation_batch,
    evaluation_window_starts,
    feistel_permute,
    gather_windows,
    training_batch,
    window_starts,
)
from glassgpt.errors import UserError

few = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**63 - 1)
GOLDEN = [830523, 715067, 611643, 804923]


@few
@given(
    seeds, st.integers(0, 2**40), st.integers(0, 70), st.integers(0, 70), st.integers(10, 2**36), st.data()
)
def test_starts_do_not_depend_on_the_slicing(
    seed: int, first: int, skip: int, count: int, n_tokens: int, data: st.DataObject
) -> None:
    block_size = data.draw(st.integers(1, min(n_tokens - 1, 4096)))
    whole = window_starts(seed, first, skip + count, n_tokens, block_size)
    part = window_starts(seed, first + skip, count, n_tokens, block_size)
    assert part.dtype == np.int64
    assert np.array_equal(part, whole[skip:])
    assert ((part >= 0) & (part + block_size < n_tokens)).all()


def test_starts_are_stable_forever() -> None:
    # A change of these numbers would silently change every published run.
    assert window_starts(1337, 0, 4, 1_003_854, 256).tolist() == GOLDEN


@few
@given(st.integers(1, 3000), st.lists(st.integers(0, 2**64 - 1), min_size=6, max_size=6))
def test_a_shuffle_is_one_to_one(n: int, keys: list[int]) -> None:
    keys_of_places = np.repeat(np.array(keys, dtype=np.uint64)[:, None], n, axis=1)
    places = feistel_permute(np.arange(n, dtype=np.int64), n, keys_of_places)
    assert sorted(places.tolist()) == list(range(n))


@few
@given(seeds, st.integers(2, 60), st.integers(3, 2000), st.integers(0, 5))
def test_an_epoch_learns_from_every_token_once(seed: int, block_size: int, extra: int, epoch: int) -> None:
    n_tokens = 3 * block_size + extra
    per_epoch = (n_tokens - 1) // block_size - 1
    starts = window_starts(seed, epoch * per_epoch, per_epoch, n_tokens, block_size)
    targets = np.concatenate([np.arange(start + 1, start + block_size + 1) for start in starts])
    assert len(np.unique(targets)) == len(targets)
    assert len(targets) > n_tokens - 1 - 2 * block_size


def test_epochs_and_seeds_differ_and_order_is_random() -> None:
    n_tokens, block_size = 1_000_001, 100
    per_epoch = (n_tokens - 1) // block_size - 1
    first = window_starts(1, 0, per_epoch, n_tokens, block_size)
    for other in (
        window_starts(1, per_epoch, per_epoch, n_tokens, block_size),
        window_starts(2, 0, per_epoch, n_tokens, block_size),
    ):
        assert (first == other).mean() < 0.01
        # Places next to each other in one order are nowhere special in the other, nor in the text.
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.04
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.04
    shifts = {
        int(window_starts(1, e * per_epoch, 1, n_tokens, block_size)[0]) % block_size for e in range(60)
    }
    assert len(shifts) > 30


@few
@given(st.integers(1, 40), st.integers(1, 10), st.data())
def test_gather_is_slicing(n: int, length: int, data: st.DataObject) -> None:
    tokens = np.arange(n + length, dtype="<u2")
    starts = np.array(data.draw(st.lists(st.integers(0, n), max_size=8)), dtype=np.int64)
    rows = gather_windows(tokens, starts, length)
    assert rows.dtype == np.int64
    assert rows.tolist() == [tokens[s : s + length].tolist() for s in starts]


def test_micro_steps_and_ranks_are_slices_of_the_global_batch() -> None:
    tokens = np.random.default_rng(0).integers(0, 50257, 5000).astype("<u2")
    x, y = training_batch(tokens, 32, seed=3, first=11 * 12, count=12)
    assert x.shape == y.shape == (12, 32)
    assert np.array_equal(x[:, 1:], y[:, :-1])
    parts = [training_batch(tokens, 32, 3, 11 * 12 + first, 3) for first in (0, 3, 6, 9)]
    assert np.array_equal(np.concatenate([part[0] for part in parts]), x)
    assert np.array_equal(np.concatenate([part[1] for part in parts]), y)


def test_training_reaches_the_first_and_the_last_token() -> None:
    tokens = np.arange(12, dtype="<u2")
    x, y = training_batch(tokens, 8, seed=0, first=0, count=200)
    assert x.min() == 0
    assert y.max() == 11


def test_a_text_of_one_block_trains_and_a_shorter_one_says_why_not() -> None:
    tokens = np.arange(9, dtype="<u2")
    x, _ = training_batch(tokens, 8, 0, 0, 2)
    assert x.tolist() == [list(range(8))] * 2
    with pytest.raises(UserError, match=r"8 tokens, fewer than block_size \+ 1 = 9.*--block_size"):
        training_batch(tokens[:8], 8, 0, 0, 2)


@few
@given(st.integers(2, 400), st.integers(1, 60), st.integers(1, 7))
def test_whole_split_predicts_every_token_once(n_tokens: int, block_size: int, batch: int) -> None:
    tokens = np.arange(n_tokens, dtype="<u2")
    starts = evaluation_window_starts(n_tokens, block_size, None)
    seen = []
    for i in range(0, len(starts), batch):
        x, y = evaluation_batch(tokens, starts[i : i + batch], block_size)
        assert x.shape == y.shape == (len(starts[i : i + batch]), block_size)
        assert (x[y == IGNORED_TARGET] == 0).all()
        assert np.array_equal(x[y != IGNORED_TARGET] + 1, y[y != IGNORED_TARGET])
        seen += y[y != IGNORED_TARGET].tolist()
    assert seen == list(range(1, n_tokens))


@few
@given(st.integers(2, 3000), st.integers(1, 60), st.integers(1, 4000))
def test_limited_windows_are_few_and_do_not_overlap(n_tokens: int, block_size: int, limit: int) -> None:
    starts = evaluation_window_starts(n_tokens, block_size, limit)
    assert starts[0] == 0
    if limit >= n_tokens - 1:
        assert np.array_equal(starts, evaluation_window_starts(n_tokens, block_size, None))
        return
    assert len(starts) == max(1, limit // block_size)
    steps = np.diff(starts)
    assert (steps >= block_size).all()
    assert steps.max(initial=0) - steps.min(initial=steps.max(initial=0)) <= 1
    if limit >= block_size:
        assert starts[-1] + block_size <= n_tokens - 1


def test_a_single_token_cannot_be_evaluated() -> None:
    with pytest.raises(UserError, match="nothing to predict"):
        evaluation_window_starts(1, 8, None)
