"""Writing text: reproducible, within the vocabulary, without a trace in the model or its random numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import CONTEXT, VOCABULARY, hf_gpt2, little_gpt, some_tokens
from torch import Tensor
from torch.nn import functional as F

from glassgpt.errors import UserError
from glassgpt.model.generate import generate, generate_samples
from glassgpt.model.gpt import GPT, _rope_tables
from glassgpt.model.kv_cache import KVCache
from glassgpt.model.token_sampler import TokenSampler
from glassgpt.model.weights import from_transformers, load_weights

ARCHS = ["gpt2", "modern"]
PLAIN = TokenSampler(VOCABULARY)
few = settings(max_examples=20, deadline=None)
temperatures = st.just(0.0) | st.floats(0.01, 5.0)
top_ks = st.none() | st.integers(1, 40)
top_ps = st.none() | st.floats(0.01, 1.0)


def text(model: GPT, prompt: list[int], count: int = 20, **options: Any) -> list[int]:
    return list(generate(model, prompt, count, TokenSampler(**{"vocab_size": VOCABULARY} | options)))


def texts(
    model: GPT,
    prompt: list[int],
    samples: int | range,
    count: int = 20,
    sampler: TokenSampler = PLAIN,
    **reading: bool,
) -> list[list[int]]:
    """One list per sample."""
    numbers = range(samples) if isinstance(samples, int) else samples
    steps = list(generate_samples(model, prompt, count, sampler, samples=numbers, **reading))
    assert len(steps) == count
    return [list(sample) for sample in zip(*steps, strict=True)]


# --- which sample ---


def test_the_seed_decides() -> None:
    model = little_gpt()
    assert text(model, [1], seed=3) == text(model, [1], seed=3)
    assert text(model, [1], seed=3) != text(model, [1], seed=4)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_sample_does_not_depend_on_the_others(arch: str) -> None:
    model = little_gpt(arch=arch)
    many = texts(model, [1, 2, 3], samples=5, count=2 * CONTEXT)
    assert len({tuple(sample) for sample in many}) == 5
    assert texts(model, [1, 2, 3], samples=2, count=2 * CONTEXT) == many[:2]
    assert texts(model, [1, 2, 3], samples=range(2, 5), count=2 * CONTEXT) == many[2:]
    assert text(model, [1, 2, 3], count=2 * CONTEXT) == many[0]


def test_the_next_seed_has_samples_of_its_own(subtests: pytest.Subtests) -> None:
    for seed in (0, 3, 2**32 - 1, 2**63, -1):
        with subtests.test(repr(seed)):
            model = little_gpt()
            both = [
                texts(model, [1], 4, sampler=TokenSampler(VOCABULARY, seed=each)) for each in (seed, seed + 1)
            ]
            assert len({tuple(sample) for samples in both for sample in samples}) == 8


# --- from where ---


@pytest.mark.parametrize("arch", ARCHS)
@few
@given(
    st.integers(1, 2 * CONTEXT),
    st.integers(0, 2 * CONTEXT),
    st.integers(1, 3),
    temperatures,
    st.sampled_from(["sdpa", "manual"]),
    st.booleans(),
    st.integers(0, 99),
)
def test_the_cache_changes_no_token(
    arch: str,
    length: int,
    count: int,
    samples: int,
    temperature: float,
    attention: str,
    graph: bool,
    seed: int,
) -> None:
    """By steps that could be captured, too; with learned positions also past the context."""
    model = little_gpt(arch=arch)
    if arch == "modern":
        count = min(count, max(0, CONTEXT + 1 - length))
    model.backend.attention = attention
    prompt = some_tokens(1, length, seed)[0].tolist()
    sampler = TokenSampler(VOCABULARY, temperature, seed=seed)
    plain = texts(model, prompt, samples, count, sampler, use_cache=False)
    assert texts(model, prompt, samples, count, sampler, graph=graph) == plain


class SlidingWindow(KVCache):
    """No cache: one pass over a whole text, in which each token attends to the last CONTEXT ones."""

    def __init__(self, layers: int, length: int, head_width: int) -> None:
        self.rope = _rope_tables(length, head_width)
        self.layers = [self] * layers  # type: ignore[list-item]

    def next_positions(self, count: int) -> slice:
        return slice(count)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        near = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril().triu(1 - CONTEXT)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=near)


@few
@given(st.integers(1, 2 * CONTEXT), st.integers(1, 3 * CONTEXT), st.integers(1, 3), st.booleans())
@torch.no_grad()
def test_past_the_context_rotary_positions_slide(length: int, count: int, samples: int, graph: bool) -> None:
    model = little_gpt(arch="modern").eval()
    prompt = some_tokens(1, length)[0].tolist()
    greedy = TokenSampler(VOCABULARY, temperature=0.0)
    (found, *_) = texts(model, prompt, samples, count, greedy, graph=graph)
    read = torch.tensor([prompt[-CONTEXT:] + found])
    window = SlidingWindow(model.config.n_layer, read.shape[1], model.config.n_embd // model.config.n_head)
    logits = model.lm_head(model.forward_hidden(read, window))[0]
    assert logits[-count - 1 : -1].argmax(-1).tolist() == found


def test_the_plain_way_reads_all_again_and_the_cache_only_what_is_new() -> None:
    model = little_gpt()
    shapes: list[tuple[int, ...]] = []
    model.transformer.wte.register_forward_pre_hook(lambda _, inputs: shapes.append(tuple(inputs[0].shape)))
    texts(model, [1] * 14, samples=2, count=5)
    assert shapes == [(1, 14), (2, 1), (2, 1), (2, 16), (2, 16)]
    shapes.clear()
    texts(model, [1] * 14, samples=2, count=5, use_cache=False)
    assert shapes == [(1, 14), (2, 15), (2, 16), (2, 16), (2, 16)]


@torch.no_grad()
def test_greedy_text_is_that_of_transformers() -> None:
    hf_model, model = hf_gpt2(), little_gpt(activation="gelu_new")
    load_weights(model, from_transformers(hf_model.state_dict()), "transformers")
    for seed in range(5):
        prompt = some_tokens(rows=1, length=3, seed=seed)
        count = CONTEXT - 3
        expected = hf_model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=count,
            min_new_tokens=count,
            pad_token_id=0,
        )
        assert text(model, prompt[0].tolist(), count, temperature=0.0) == expected[0, 3:].tolist()


# --- which tokens ---


@few
@given(st.integers(1, VOCABULARY), temperatures, top_ks, top_ps, st.integers(0, 2**60))
def test_only_the_tokenizers_ids_come_out(
    vocab_size: int, temperature: float, top_k: int | None, top_p: float | None, seed: int
) -> None:
    model = little_gpt()
    with torch.no_grad():  # make the padding ids as tempting as can be
        model.get_parameter("transformer.ln_f.bias").add_(10 * model.lm_head.weight[-1])
    out = list(generate(model, [0], 20, TokenSampler(vocab_size, temperature, top_k, top_p, seed)))
    assert len(out) == 20
    assert all(0 <= token < vocab_size for token in out)


@pytest.mark.parametrize("arch", ARCHS)
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


@pytest.mark.parametrize("top_k", [VOCABULARY - 3, VOCABULARY, 10**9])
def test_more_than_there_are_is_all(top_k: int) -> None:
    """Of the tokenizer's ids, which may be fewer than the model's."""
    model = little_gpt()
    asked, every = (TokenSampler(VOCABULARY - 3, temperature=1.5, top_k=most) for most in (top_k, None))
    assert texts(model, [1], 3, 2 * CONTEXT, asked) == texts(model, [1], 3, 2 * CONTEXT, every)


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-320}])
def test_what_leaves_only_the_likeliest_is_temperature_0(options: dict[str, Any]) -> None:
    model = little_gpt()
    assert text(model, [1], **options) == text(model, [1], temperature=0.0)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("options", [{}, {"top_k": None}, {"top_p": 0.9}, {"temperature": 0.0}, {"top_k": 1}])
def test_a_model_whose_output_is_not_a_number_is_not_drawn_from(options: dict[str, Any], graph: bool) -> None:
    model, sampler = little_gpt(), TokenSampler(VOCABULARY, **options)
    with torch.no_grad():
        model.get_parameter("transformer.wpe.weight")[3] = math.nan
    steps = generate_samples(model, [1], 9, sampler, samples=range(2), graph=graph)
    assert len([next(steps) for _ in range(3)]) == 3
    with pytest.raises(UserError, match="not a number: its training went wrong"):
        next(steps)


@pytest.mark.parametrize(
    ("prompt", "named"), [([], "the prompt is empty"), ([1, VOCABULARY], f"tokens up to {VOCABULARY}")]
)
def test_a_prompt_that_makes_no_sense_is_refused_before_the_first_token(
    prompt: list[int], named: str
) -> None:
    with pytest.raises(UserError, match=named):
        next(generate(little_gpt(), prompt, 3, PLAIN))


@torch.no_grad()
def test_draws_follow_the_distribution() -> None:
    model = little_gpt().eval()
    expected = (model(torch.tensor([[7]]))[0, -1] / 0.8).softmax(-1)
    drawn = torch.tensor(texts(model, [7], samples=1500, count=1))
    assert (drawn.flatten().bincount(minlength=VOCABULARY) / 1500 - expected).abs().max() < 0.05


# --- what stays ---


@pytest.mark.parametrize("training", [True, False])
def test_nothing_is_left_changed(training: bool) -> None:
    model = little_gpt(dropout=0.5).train(training)
    torch_state, numpy_state = torch.get_rng_state(), repr(np.random.get_state())
    text(model, [1, 2])
    texts(model, [1, 2], samples=3, sampler=TokenSampler(VOCABULARY, top_p=0.9))
    half_read = generate(model, [1], 10, PLAIN)
    next(half_read)
    half_read.close()  # type: ignore[attr-defined]
    assert model.training is training
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert repr(np.random.get_state()) == numpy_state
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_dropout_does_not_reach_the_text() -> None:
    assert text(little_gpt(dropout=0.5).train(), [1]) == text(little_gpt(), [1])


@pytest.mark.parametrize("arch", ARCHS)
def test_the_callers_autocast_is_used_and_left_alone(arch: str) -> None:
    model = little_gpt(arch=arch)
    dtypes = set()
    model.lm_head.register_forward_hook(lambda module, inputs, output: dtypes.add(output.dtype))
    steps = generate(model, [1], 2 * CONTEXT, PLAIN)
    for _ in range(2 * CONTEXT):
        with torch.autocast("cpu", torch.bfloat16):
            next(steps)
            assert torch.is_autocast_enabled("cpu")
            assert torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")
    assert dtypes == {torch.bfloat16}
