"""The training stream is a pure function, and evaluation sees every token exactly once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.data.batches import (
    IGNORED_TARGET,
    evaluation_batch,
    evaluation_windows,
    gather,
    offsets,
    training_batch,
)
from glassgpt.errors import UserError

few = settings(max_examples=60, deadline=None)
seeds = st.integers(-(2**63), 2**64 - 1)
GOLDEN = [720011, 940031, 187240, 776619]


@few
@given(seeds, st.integers(0, 2**40), st.integers(0, 70), st.integers(0, 70), st.integers(1, 2**40))
def test_offsets_do_not_depend_on_the_slicing(
    seed: int, update: int, first: int, count: int, positions: int
) -> None:
    whole = offsets(seed, update, 0, first + count, positions)
    part = offsets(seed, update, first, count, positions)
    assert part.dtype == np.int64
    assert np.array_equal(part, whole[first:])
    assert ((part >= 0) & (part < positions)).all()


def test_offsets_far_into_the_stream_cost_nothing() -> None:
    far = 10**15
    assert np.array_equal(offsets(1, 2, far, 9, 1000)[5:], offsets(1, 2, far + 5, 4, 1000))


def test_offsets_are_stable_forever() -> None:
    # A change of these numbers would silently change every published run.
    assert offsets(1337, 0, 0, 4, 1_003_598).tolist() == GOLDEN


def test_offsets_differ_by_seed_and_by_update_and_are_uniform() -> None:
    base = offsets(1, 0, 0, 64, 10**9)
    assert not np.intersect1d(base, offsets(2, 0, 0, 64, 10**9)).size
    assert not np.intersect1d(base, offsets(1, 1, 0, 64, 10**9)).size
    # First sequences of successive updates must be as random as those of one update.
    across = np.array([offsets(7, update, 0, 1, 10)[0] for update in range(4000)])
    for drawn in (offsets(7, 0, 0, 4000, 10), across):
        counts = np.bincount(drawn, minlength=10)
        chi_squared = ((counts - 400) ** 2 / 400).sum()
        assert chi_squared < 33  # nine degrees of freedom: 1 in 10,000, and the draw is fixed


@few
@given(st.integers(1, 40), st.integers(1, 10), st.data())
def test_gather_is_slicing(n: int, length: int, data: st.DataObject) -> None:
    tokens = np.arange(n + length, dtype="<u2")
    starts = np.array(data.draw(st.lists(st.integers(0, n), max_size=8)), dtype=np.int64)
    rows = gather(tokens, starts, length)
    assert rows.dtype == np.int64
    assert rows.tolist() == [tokens[s : s + length].tolist() for s in starts]


def test_micro_steps_and_ranks_are_slices_of_the_global_batch() -> None:
    tokens = np.random.default_rng(0).integers(0, 50257, 5000).astype("<u2")
    x, y = training_batch(tokens, 32, seed=3, update=11, first=0, count=12)
    assert x.shape == y.shape == (12, 32)
    assert np.array_equal(x[:, 1:], y[:, :-1])
    parts = [training_batch(tokens, 32, 3, 11, first, 3) for first in (0, 3, 6, 9)]
    assert np.array_equal(np.concatenate([part[0] for part in parts]), x)
    assert np.array_equal(np.concatenate([part[1] for part in parts]), y)


def test_training_reaches_the_first_and_the_last_token() -> None:
    tokens = np.arange(12, dtype="<u2")
    x, y = training_batch(tokens, 8, seed=0, update=0, first=0, count=200)
    assert x.min() == 0
    assert y.max() == 11


def test_a_text_of_one_block_trains_and_a_shorter_one_says_why_not() -> None:
    tokens = np.arange(9, dtype="<u2")
    x, _ = training_batch(tokens, 8, 0, 0, 0, 2)
    assert x.tolist() == [list(range(8))] * 2
    with pytest.raises(UserError, match=r"8 tokens, fewer than block_size \+ 1 = 9.*--block_size"):
        training_batch(tokens[:8], 8, 0, 0, 0, 2)


@few
@given(st.integers(2, 400), st.integers(1, 60), st.integers(1, 7))
def test_whole_split_predicts_every_token_once(n_tokens: int, block_size: int, batch: int) -> None:
    tokens = np.arange(n_tokens, dtype="<u2")
    starts = evaluation_windows(n_tokens, block_size, None)
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
    starts = evaluation_windows(n_tokens, block_size, limit)
    assert starts[0] == 0
    if limit >= n_tokens - 1:
        assert np.array_equal(starts, evaluation_windows(n_tokens, block_size, None))
        return
    assert len(starts) == max(1, limit // block_size)
    steps = np.diff(starts)
    assert (steps >= block_size).all()
    assert steps.max(initial=0) - steps.min(initial=steps.max(initial=0)) <= 1
    if limit >= block_size:
        assert starts[-1] + block_size <= n_tokens - 1


def test_a_single_token_cannot_be_evaluated() -> None:
    with pytest.raises(UserError, match="nothing to predict"):
        evaluation_windows(1, 8, None)
