"""Writing text: reproducible, within the vocabulary, without a trace in the model or its random numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from little import CONTEXT, VOCABULARY, little_gpt, reference, some_tokens
from numpy.typing import NDArray

from glassgpt.errors import UserError
from glassgpt.model.generate import _draw, _nucleus, generate, generate_samples
from glassgpt.model.gpt import GPT
from glassgpt.model.weights import from_transformers, load_weights

ARCHS = ["gpt2", "modern"]
few = settings(max_examples=20, deadline=None)
temperatures = st.just(0.0) | st.floats(0.01, 5.0)
top_ks = st.none() | st.integers(1, 40)
top_ps = st.none() | st.floats(0.01, 1.0)


def text(model: GPT, prompt: list[int], count: int = 20, **options: Any) -> list[int]:
    return list(generate(model, prompt, count, **{"vocab_size": VOCABULARY} | options))


def texts(
    model: GPT, prompt: list[int], samples: int | range, count: int = 20, **options: Any
) -> list[list[int]]:
    """One list per sample."""
    options = {"vocab_size": VOCABULARY} | options
    numbers = range(samples) if isinstance(samples, int) else samples
    steps = list(generate_samples(model, prompt, count, samples=numbers, **options))
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


@pytest.mark.parametrize("seed", [0, 3, 2**32 - 1, 2**63, -1])
def test_the_next_seed_has_samples_of_its_own(seed: int) -> None:
    model = little_gpt()
    both = texts(model, [1], samples=4, seed=seed) + texts(model, [1], samples=4, seed=seed + 1)
    assert len({tuple(sample) for sample in both}) == 8


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
    """Also with a prompt longer than the context, across its edge, and by steps that could be recorded."""
    model = little_gpt(arch=arch)
    model.set_attention(attention)
    prompt = some_tokens(1, length, seed)[0].tolist()
    options: dict[str, Any] = {"count": count, "temperature": temperature, "seed": seed}
    plain = texts(model, prompt, samples, use_cache=False, **options)
    assert texts(model, prompt, samples, graph=graph, **options) == plain


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
    theirs, model = reference(), little_gpt(activation="gelu_new")
    load_weights(model, from_transformers(theirs.state_dict()), "transformers")
    for seed in range(5):
        prompt = some_tokens(rows=1, length=3, seed=seed)
        count = CONTEXT - 3
        expected = theirs.generate(  # type: ignore[misc]
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
    options: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    out = text(model, [0], vocab_size=vocab_size, **options)
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
    options: dict[str, Any] = {"vocab_size": VOCABULARY - 3, "temperature": 1.5, "count": 2 * CONTEXT}
    assert texts(model, [1], 3, top_k=top_k, **options) == texts(model, [1], 3, top_k=None, **options)


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-320}])
def test_what_leaves_only_the_likeliest_is_temperature_0(options: dict[str, Any]) -> None:
    model = little_gpt()
    assert text(model, [1], **options) == text(model, [1], temperature=0.0)


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
@given(st.integers(0, 99), st.floats(0.3, 3.0), top_ks, top_ps)
def test_draws_are_by_the_definitions_of_temperature_top_k_and_top_p(
    seed: int, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed))
    expected = chances(logits.double().numpy(), temperature, top_k, top_p)
    generators = [torch.Generator().manual_seed(number) for number in range(1000)]
    drawn = _draw(logits[None], temperature, top_k, top_p, generators).tolist()
    assert set(drawn) <= expected.keys()
    for token, chance in expected.items():
        assert drawn.count(token) / 1000 == pytest.approx(chance, abs=0.08), token


@few
@given(st.lists(st.integers(0, 4), min_size=1, max_size=30).filter(any), st.integers(1, 32))
def test_the_nucleus_is_the_smallest_set_that_reaches_top_p(weights: list[int], parts: int) -> None:
    """With many equal probabilities, and sums that are met exactly."""
    probabilities = torch.tensor(weights, dtype=torch.float64) / 32
    top_p = parts / 32
    kept = _nucleus(probabilities, top_p)
    left_out = probabilities[kept == 0]
    kept = kept[kept > 0]
    assert len(kept) >= 1
    assert kept.min() >= left_out.max() if len(left_out) else True
    assert kept.sum() >= min(top_p, float(probabilities.sum()))
    assert len(kept) == 1 or kept.sum() - kept.min() < top_p


def test_top_p_counts_what_top_k_left() -> None:
    logits = torch.tensor([[0.4, 0.4, 0.1, 0.1]]).log()
    generators = [torch.Generator().manual_seed(number) for number in range(100)]
    assert set(_draw(logits, 1.0, 2, 0.5, generators).tolist()) == {0}  # 0.4 of 0.8 is half
    assert set(_draw(logits, 1.0, None, 0.5, generators).tolist()) == {0, 1}


def test_rows_are_drawn_from_at_once_as_torch_draws_from_each() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    ours, theirs = ([torch.Generator().manual_seed(number) for number in range(3)] for _ in range(2))
    for _ in range(20):
        rows = zip(logits.softmax(-1), theirs, strict=True)
        expected = [int(torch.multinomial(row, 1, generator=generator)) for row, generator in rows]
        assert _draw(logits, 1.0, None, None, ours).tolist() == expected


@pytest.mark.parametrize(
    "options", [{}, {"top_k": None}, {"top_p": 0.9}, {"graph": True}, {"temperature": 0.0}, {"top_k": 1}]
)
def test_a_model_whose_output_is_not_a_number_is_not_drawn_from(options: dict[str, Any]) -> None:
    model = little_gpt()
    with torch.no_grad():
        model.get_parameter("transformer.wpe.weight")[3] = math.nan
    steps = generate_samples(model, [1], 9, samples=range(2), vocab_size=VOCABULARY, **options)
    assert len([next(steps) for _ in range(3)]) == 3
    with pytest.raises(UserError, match="not a number: its training went wrong"):
        next(steps)


def test_each_row_is_drawn_from_by_its_own_generator() -> None:
    logits = torch.full((3, 9), -50.0)
    logits[[0, 1, 2], [5, 1, 8]] = 50.0
    generators = [torch.Generator() for _ in range(3)]
    for temperature, top_k, top_p in ((0.0, None, None), (1.0, None, None), (1.0, 4, None), (1.0, 4, 0.9)):
        assert _draw(logits, temperature, top_k, top_p, generators).tolist() == [5, 1, 8]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"temperature": -0.1}, "--temperature=-0.1"),
        ({"temperature": float("nan")}, "--temperature=nan"),
        ({"temperature": float("inf")}, "--temperature=inf"),
        ({"top_k": 0}, "--top_k=0"),
        ({"top_p": 0.0}, "--top_p=0.0"),
        ({"top_p": 1.1}, "--top_p=1.1"),
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": [1, VOCABULARY]}, f"tokens up to {VOCABULARY}"),
    ],
)
def test_what_makes_no_sense_is_refused_before_the_first_token(options: dict[str, Any], named: str) -> None:
    arguments: dict[str, Any] = {"prompt": [1], "count": 3, "vocab_size": VOCABULARY} | options
    with pytest.raises(UserError, match=named):
        generate(little_gpt(), **arguments)


@torch.no_grad()
def test_draws_follow_the_distribution() -> None:
    model = little_gpt().eval()
    expected = (model(torch.tensor([[7]]))[0, -1] / 0.8).softmax(-1)
    counts = torch.zeros(VOCABULARY)
    for seed in range(1500):
        counts[text(model, [7], count=1, seed=seed)[0]] += 1
    assert (counts / 1500 - expected).abs().max() < 0.05


# --- what stays ---


@pytest.mark.parametrize("training", [True, False])
def test_nothing_is_left_changed(training: bool) -> None:
    model = little_gpt(dropout=0.5).train(training)
    torch_state, numpy_state = torch.get_rng_state(), repr(np.random.get_state())
    text(model, [1, 2])
    texts(model, [1, 2], samples=3, top_p=0.9)
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


@pytest.mark.parametrize("arch", ARCHS)
def test_the_callers_autocast_is_used_and_left_alone(arch: str) -> None:
    model = little_gpt(arch=arch)
    dtypes = set()
    model.lm_head.register_forward_hook(lambda module, inputs, output: dtypes.add(output.dtype))
    steps = generate(model, [1], 2 * CONTEXT, vocab_size=VOCABULARY)
    for _ in range(2 * CONTEXT):
        with torch.autocast("cpu", torch.bfloat16):
            next(steps)
            assert torch.is_autocast_enabled("cpu")
            assert torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")
    assert dtypes == {torch.bfloat16}
