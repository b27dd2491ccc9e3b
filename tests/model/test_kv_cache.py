"""Reading a text piece by piece gives what reading it whole gives, and each piece is read once."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import CONTEXT, little_gpt, some_batch, some_tokens
from torch import Tensor, nn

from glassgpt.model.gpt import GPT
from glassgpt.model.kv_cache import LayerKVCache, StaticKVCache

both = pytest.mark.parametrize("arch", ["gpt2", "modern"])
few = settings(max_examples=40, deadline=None)


def read_in_pieces(model: GPT, tokens: Tensor, cuts: list[int]) -> Tensor:
    """Logits of all tokens, the text being cut before each of the places `cuts`."""
    cache = model.new_cache(tokens.shape[1])
    edges = [0, *cuts, tokens.shape[1]]
    pieces = [tokens[:, start:end] for start, end in pairwise(edges)]
    logits: Tensor = model.lm_head(torch.cat([model.forward_hidden(piece, cache) for piece in pieces], dim=1))
    assert cache.length == tokens.shape[1]
    return logits


@both
@pytest.mark.parametrize("attention", ["sdpa", "manual"])
@few
@given(st.sets(st.integers(1, CONTEXT - 1)), st.integers(1, 3), st.integers(0, 9))
@torch.no_grad()
def test_any_pieces_make_the_same_logits(
    arch: str, attention: str, cuts: set[int], rows: int, seed: int
) -> None:
    model = little_gpt(arch=arch).eval()
    model.backend.attention = attention
    tokens = some_tokens(rows, seed=seed)
    pieces = read_in_pieces(model, tokens, sorted(cuts))
    torch.testing.assert_close(pieces, model(tokens), atol=1e-5, rtol=0)


@both
@torch.no_grad()
def test_the_next_logits_are_the_last_ones(arch: str) -> None:
    model = little_gpt(arch=arch).eval()
    tokens = some_tokens()
    cache = model.new_cache(CONTEXT)
    torch.testing.assert_close(model.next_logits(tokens), model(tokens)[:, -1], atol=1e-5, rtol=0)
    torch.testing.assert_close(model.next_logits(tokens, cache), model(tokens)[:, -1], atol=1e-5, rtol=0)


@both
@torch.no_grad()
def test_a_text_read_once_goes_on_in_several_ways(arch: str) -> None:
    model = little_gpt(arch=arch).eval()
    start, ways = some_tokens(rows=1, length=5), some_tokens(rows=4, length=3, seed=2)
    cache = model.new_cache(8)
    model.next_logits(start, cache)
    cache.repeat(4)
    whole = model(torch.cat([start.expand(4, -1), ways], dim=1))
    torch.testing.assert_close(model.next_logits(ways, cache), whole[:, -1], atol=1e-5, rtol=0)


@both
@pytest.mark.parametrize("fill", [1e9, -1e9])
@torch.no_grad()
def test_a_fixed_cache_goes_on_and_sees_nothing_of_what_is_not_written_yet(arch: str, fill: float) -> None:
    model = little_gpt(arch=arch).eval()
    tokens = some_tokens()
    cache = model.new_cache(CONTEXT)
    model.next_logits(tokens[:, :5], cache)
    for layer in cache.layers:
        layer.keys[:, :, 5:] = layer.values[:, :, 5:] = fill
    fixed, whole = StaticKVCache(cache), model(tokens)
    for place in range(5, CONTEXT):
        logits = model.next_logits(tokens[:, place : place + 1], fixed)
        torch.testing.assert_close(logits, whole[:, place], atol=1e-5, rtol=0)


@torch.no_grad()
def test_only_new_tokens_are_computed_and_the_head_only_for_the_last() -> None:
    model = little_gpt().eval()
    seen: list[tuple[int, ...]] = []

    def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(tuple(inputs[0].shape))

    model.transformer.h[1].register_forward_pre_hook(note)
    model.lm_head.register_forward_pre_hook(note)
    cache = model.new_cache(CONTEXT)
    model.next_logits(some_tokens(length=9), cache)
    model.next_logits(some_tokens(length=1), cache)
    assert seen == [(3, 9, 24), (3, 24), (3, 1, 24), (3, 24)]


@both
@torch.no_grad()
def test_more_than_the_context_is_an_error(arch: str) -> None:
    model = little_gpt(arch=arch).eval()
    cache = model.new_cache(100 * CONTEXT)
    model.next_logits(some_tokens(), cache)
    for length in (1, 2) if arch == "gpt2" else (2,):  # rotary positions slide, one by one
        with pytest.raises((RuntimeError, IndexError)):
            model.next_logits(some_tokens(length=length), cache)


@both
@pytest.mark.parametrize("attention", ["sdpa", "manual"])
@torch.no_grad()
def test_it_remembers_in_the_precision_of_autocast(arch: str, attention: str) -> None:
    model = little_gpt(arch=arch).eval()
    model.backend.attention = attention
    tokens = some_tokens()
    with torch.autocast("cpu", torch.bfloat16):
        cache = model.new_cache(CONTEXT)
        model.next_logits(tokens[:, :9], cache)
        logits = model.next_logits(tokens[:, 9:], cache)
        expected = model(tokens)[:, -1]
    keys, values = cache.layers[0].extend(*torch.zeros(2, 3, 2, 0, 12))
    assert keys.dtype == values.dtype == logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits, expected, atol=0.05, rtol=0)


@both
@torch.no_grad()
def test_in_bfloat16_it_is_as_near_to_float32_as_reading_the_whole(arch: str) -> None:
    by_steps = whole = 0.0
    for seed in range(6):
        model, tokens = little_gpt(seed, arch=arch).eval(), some_tokens(seed=seed)
        exact = model(tokens)
        with torch.autocast("cpu", torch.bfloat16):
            whole += float((model(tokens) - exact).square().sum())
            by_steps += float((read_in_pieces(model, tokens, list(range(1, CONTEXT))) - exact).square().sum())
    assert 0 < by_steps < 1.1 * whole


def test_keys_that_a_norm_made_float32_are_kept_as_the_values_are() -> None:
    k = torch.randn(1, 2, 3, 4)
    keys, values = LayerKVCache(5).extend(k, k.bfloat16())
    assert torch.equal(keys, k.bfloat16())
    assert torch.equal(values, k.bfloat16())


@both
@pytest.mark.parametrize("attention", ["sdpa", "manual"])
def test_training_still_compiles_into_one_graph(arch: str, attention: str) -> None:
    model = little_gpt(arch=arch)
    model.backend.attention = attention
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    tokens, targets = some_batch()
    assert compiled(tokens, targets).item() == model(tokens, targets).item()
