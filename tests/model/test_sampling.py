"""Draws of single tokens: by the definitions, each by its own random numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny_models import VOCABULARY

from glassgpt.model.token_sampler import TokenSampler, _top_p_filter

few = settings(max_examples=20, deadline=None)


def chances(
    logits: NDArray[np.float64], temperature: float, top_k: int | None, top_p: float | None
) -> dict[int, float]:
    """By the definitions, one id after the other."""
    likeliest_first = sorted(range(len(logits)), key=lambda token: -logits[token])[:top_k]
    weights = {token: math.exp((logits[token] - max(logits)) / temperature) for token in likeliest_first}
    total = sum(weights.values())
    kept: dict[int, float] = {}
    for token in likeliest_first:
        kept[token] = weights[token] / total
        if top_p is not None and sum(kept.values()) >= top_p:
            break
    return {token: chance / sum(kept.values()) for token, chance in kept.items()}


@few
@given(
    st.integers(0, 99),
    st.floats(0.3, 3.0),
    st.none() | st.integers(1, 40),
    st.none() | st.floats(0.01, 1.0),
)
def test_draws_are_by_the_definitions_of_temperature_top_k_and_top_p(
    seed: int, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed))
    expected = chances(logits.double().numpy(), temperature, top_k, top_p)
    generators = [torch.Generator().manual_seed(number) for number in range(1000)]
    drawn = TokenSampler(VOCABULARY, temperature, top_k, top_p).next_tokens(logits[None], generators).tolist()
    assert set(drawn) <= expected.keys()
    for token, chance in expected.items():
        assert drawn.count(token) / 1000 == pytest.approx(chance, abs=0.08), token


@few
@given(st.lists(st.integers(0, 4), min_size=1, max_size=30).filter(any), st.integers(1, 32))
def test_the_nucleus_is_the_smallest_set_that_reaches_top_p(weights: list[int], parts: int) -> None:
    """With many equal probabilities, and sums that are met exactly."""
    probabilities = torch.tensor(weights, dtype=torch.float64) / 32
    top_p = parts / 32
    kept = _top_p_filter(probabilities, top_p)
    left_out = probabilities[kept == 0]
    kept = kept[kept > 0]
    assert len(kept) >= 1
    assert kept.min() >= left_out.max() if len(left_out) else True
    assert kept.sum() >= min(top_p, float(probabilities.sum()))
    assert len(kept) == 1 or kept.sum() - kept.min() < top_p


def test_top_p_counts_what_top_k_left() -> None:
    logits = torch.tensor([[0.4, 0.4, 0.1, 0.1]]).log()
    generators = [torch.Generator().manual_seed(number) for number in range(100)]
    of_two, of_all = (TokenSampler(4, 1.0, top_k, top_p=0.5) for top_k in (2, None))
    assert set(of_two.next_tokens(logits, generators).tolist()) == {0}  # 0.4 of 0.8 is half
    assert set(of_all.next_tokens(logits, generators).tolist()) == {0, 1}


def test_rows_are_drawn_from_at_once_as_torch_draws_from_each() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    sampler = TokenSampler(50, temperature=1.0, top_k=None)
    ours, for_torch = ([torch.Generator().manual_seed(number) for number in range(3)] for _ in range(2))
    for _ in range(20):
        rows = zip(logits.softmax(-1), for_torch, strict=True)
        expected = [int(torch.multinomial(row, 1, generator=generator)) for row, generator in rows]
        assert sampler.next_tokens(logits, ours).tolist() == expected


def test_each_row_is_drawn_from_by_its_own_generator() -> None:
    logits = torch.full((3, 9), -50.0)
    logits[[0, 1, 2], [5, 1, 8]] = 50.0
    generators = [torch.Generator() for _ in range(3)]
    for temperature, top_k, top_p in ((0.0, None, None), (1.0, None, None), (1.0, 4, None), (1.0, 4, 0.9)):
        sampler = TokenSampler(9, temperature, top_k, top_p)
        assert sampler.next_tokens(logits, generators).tolist() == [5, 1, 8]
