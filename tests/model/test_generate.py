"""Writing text: reproducible, within the vocabulary, without a trace in the model or its random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from little import CONTEXT, VOCABULARY, little_gpt

from glassgpt.model.generate import generate
from glassgpt.model.gpt import GPT

few = settings(max_examples=20, deadline=None)


def text(model: GPT, prompt: list[int], count: int = 20, **options: Any) -> list[int]:
    return list(generate(model, prompt, count, **{"vocab_size": VOCABULARY} | options))


def test_the_seed_decides() -> None:
    model = little_gpt()
    assert text(model, [1], seed=3) == text(model, [1], seed=3)
    assert text(model, [1], seed=3) != text(model, [1], seed=4)


@few
@given(
    st.integers(1, VOCABULARY),
    st.just(0.0) | st.floats(0.01, 5.0),
    st.none() | st.integers(1, 40),
    st.integers(0, 2**60),
)
def test_only_the_tokenizers_ids_come_out(
    vocab_size: int, temperature: float, top_k: int | None, seed: int
) -> None:
    model = little_gpt()
    with torch.no_grad():  # make the padding ids as tempting as can be
        model.get_parameter("transformer.ln_f.bias").add_(10 * model.lm_head.weight[-1])
    out = text(model, [0], vocab_size=vocab_size, temperature=temperature, top_k=top_k, seed=seed)
    assert len(out) == 20
    assert all(0 <= token < vocab_size for token in out)


@pytest.mark.parametrize("arch", ["gpt2", "modern"])
def test_a_prompt_longer_than_the_context_counts_by_its_end(arch: str) -> None:
    model = little_gpt(arch=arch)
    draw = np.random.default_rng(0)
    end = draw.integers(0, VOCABULARY, CONTEXT).tolist()
    long = [*draw.integers(0, VOCABULARY, 3 * CONTEXT).tolist(), *end]
    assert text(model, long, count=2 * CONTEXT) == text(model, end, count=2 * CONTEXT)


@torch.no_grad()
def test_temperature_0_takes_the_likeliest() -> None:
    model = little_gpt().eval()
    context = [4, 2]
    for token in text(model, context, temperature=0.0, count=CONTEXT - 2):
        assert token == int(model(torch.tensor([context]))[0, -1].argmax())
        context.append(token)
    assert text(model, [4, 2], temperature=0.0, seed=1) == text(model, [4, 2], temperature=0.0, seed=2)


def test_top_1_is_temperature_0() -> None:
    model = little_gpt()
    assert text(model, [1], top_k=1) == text(model, [1], temperature=0.0)


@torch.no_grad()
def test_draws_follow_the_distribution() -> None:
    model = little_gpt().eval()
    expected = (model(torch.tensor([[7]]))[0, -1] / 0.8).softmax(-1)
    counts = torch.zeros(VOCABULARY)
    for seed in range(1500):
        counts[text(model, [7], count=1, seed=seed)[0]] += 1
    assert (counts / 1500 - expected).abs().max() < 0.05


@pytest.mark.parametrize("training", [True, False])
def test_nothing_is_left_changed(training: bool) -> None:
    model = little_gpt(dropout=0.5).train(training)
    torch_state, numpy_state = torch.get_rng_state(), repr(np.random.get_state())
    text(model, [1, 2])
    half_read = generate(model, [1], 10, vocab_size=VOCABULARY)
    next(half_read)
    half_read.close()  # type: ignore[attr-defined]
    assert model.training is training
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert repr(np.random.get_state()) == numpy_state
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_dropout_does_not_reach_the_text() -> None:
    assert text(little_gpt(dropout=0.5).train(), [1]) == text(little_gpt(), [1])
