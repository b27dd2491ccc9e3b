"""All ways to read a growing text find the same next token, and leave the model as it was."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import CONTEXT, little_gpt, some_tokens
from torch import nn

from glassgpt.model.generate import (
    CachedDecoder,
    DecodingGraphRunner,
    Float16Linear,
    WindowDecoder,
    generate_samples,
    has_float16_linear,
    pack_float16_weights,
    prepare_for_decoding,
)
from glassgpt.model.gpt import GPT
from glassgpt.model.token_sampler import TokenSampler

both = pytest.mark.parametrize("arch", ["gpt2", "modern"])
needs_float16_linear = pytest.mark.skipif(not has_float16_linear(), reason="FBGEMM is for x86 with AVX2")
few = settings(max_examples=20, deadline=None)


def matrices(model: GPT) -> dict[str, torch.Tensor]:
    return {name: module.weight for name, module in model.named_modules() if isinstance(module, nn.Linear)}


@both
@pytest.mark.parametrize("graph", [True, False])
@few
@given(st.integers(1, CONTEXT), st.integers(1, 4), st.integers(0, 9))
@torch.no_grad()
def test_step_by_step_is_the_whole_text_at_once(
    arch: str, graph: bool, length: int, rows: int, seed: int
) -> None:
    model = little_gpt(arch=arch).eval()
    tokens = some_tokens(rows, seed=seed)
    tokens[:, :length] = tokens[0, :length].clone()
    whole = model(tokens)
    for reader in (
        WindowDecoder(model, graph),
        CachedDecoder(prepare_for_decoding(model), CONTEXT, rows, graph),
    ):
        for end in range(length, CONTEXT + 1):
            logits = reader.next_logits(tokens[: 1 if end == length else rows, :end])
            torch.testing.assert_close(logits, whole[: len(logits), end - 1], atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_longer_text_is_read_by_its_end() -> None:
    model = little_gpt().eval()
    tokens = some_tokens(length=3 * CONTEXT)
    logits = WindowDecoder(model).next_logits(tokens)
    torch.testing.assert_close(logits, model(tokens[:, -CONTEXT:])[:, -1], atol=1e-5, rtol=0)


@both
@torch.no_grad()
def test_a_prepared_model_computes_the_same_with_matrices_of_its_own(arch: str) -> None:
    model = little_gpt(arch=arch, dropout=0.5).eval()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    ready = prepare_for_decoding(model)
    torch.testing.assert_close(ready(some_tokens()), model(some_tokens()), atol=1e-5, rtol=0)
    assert not ready.training
    assert ready.transformer.wte.weight is model.transformer.wte.weight
    for name, weight in matrices(ready).items():
        assert torch.equal(weight, matrices(model)[name])
        assert weight.t().is_contiguous() == (weight.shape[0] > weight.shape[1]), name
    assert model.lm_head.weight is model.transformer.wte.weight
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@both
@torch.no_grad()
def test_in_an_autocast_matrices_are_cast_once_and_the_result_is_autocasts(arch: str) -> None:
    model = little_gpt(arch=arch).eval()
    with torch.autocast("cpu", torch.bfloat16):
        ready = prepare_for_decoding(model)
        assert torch.equal(ready(some_tokens()), model(some_tokens()))
    assert {weight.dtype for weight in matrices(ready).values()} == {torch.bfloat16}
    others = {
        name: parameter for name, parameter in ready.named_parameters() if "ln" in name or "wte" in name
    }
    assert all(parameter is model.get_parameter(name) for name, parameter in others.items())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@needs_float16_linear
@both
@torch.no_grad()
def test_float16_weights_are_rounded_once_and_summed_in_float32(arch: str) -> None:
    model = little_gpt(arch=arch).eval()
    rounded, packed = copy.deepcopy(model), copy.deepcopy(model)
    for layer in [module for module in rounded.modules() if isinstance(module, nn.Linear)]:
        layer.weight = nn.Parameter(layer.weight.half().float())  # the tied embedding stays exact
    pack_float16_weights(packed)
    assert sum(isinstance(module, Float16Linear) for module in packed.modules()) == len(matrices(model))
    for tokens in (some_tokens(), some_tokens(1, 1), some_tokens(9, 5)):
        torch.testing.assert_close(packed(tokens), rounded(tokens), atol=1e-5, rtol=0)
        torch.testing.assert_close(packed(tokens), model(tokens), atol=0.05, rtol=0)
        assert not torch.equal(packed(tokens), model(tokens))
    assert prepare_for_decoding(packed) is packed
    assert packed.parameter_count() == model.parameter_count()
    assert all(torch.equal(weight, model.state_dict()[name]) for name, weight in packed.state_dict().items())


@needs_float16_linear
@both
def test_with_float16_weights_a_sample_does_not_depend_on_those_beside_it(arch: str) -> None:
    model = little_gpt(arch=arch).eval()
    pack_float16_weights(model)
    draws = TokenSampler(model.config.vocab_size, temperature=1.0)
    together = list(generate_samples(model, [1, 2], CONTEXT, draws, samples=range(7)))
    for number in (0, 6):
        alone = list(generate_samples(model, [1, 2], CONTEXT, draws, samples=[number]))
        assert [token for (token,) in alone] == [tokens[number] for tokens in together]


@needs_float16_linear
@torch.no_grad()
@pytest.mark.parametrize("scale", [1e6, 1e-6, float("inf"), float("nan")])
def test_matrices_that_float16_cannot_hold_stay_in_float32(scale: float) -> None:
    model = little_gpt().eval()
    name = "transformer.h.1.mlp.c_fc"
    matrices(model)[name].mul_(scale)
    packed = copy.deepcopy(model)
    pack_float16_weights(packed)
    assert list(matrices(packed)) == [name]
    torch.testing.assert_close(
        packed(some_tokens()), model(some_tokens()), atol=0.05, rtol=2e-3, equal_nan=True
    )


def test_what_is_repeated_may_change_its_shape() -> None:
    repeated = DecodingGraphRunner(lambda tokens: 2 * tokens)
    for rows in (2, 2, 2, 5, 5):
        tokens = some_tokens(rows, 1)
        assert torch.equal(repeated(tokens), 2 * tokens)
