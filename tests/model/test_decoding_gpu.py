"""Recorded steps on a CUDA device write what plain ones write. Without one these tests skip, and say so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import CONTEXT, VOCABULARY, little_gpt, some_tokens

from glassgpt.errors import UserError
from glassgpt.model.generate import (
    CachedDecoder,
    TokenSampler,
    WindowDecoder,
    generate_samples,
    prepare_for_decoding,
)
from glassgpt.model.gpt import GPT

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("exact_float32")]
both = pytest.mark.parametrize("arch", ["gpt2", "modern"])
one_or_several = pytest.mark.parametrize("rows", [1, 5])
PLAIN = TokenSampler(VOCABULARY)


def on_gpu(arch: str, **changes: Any) -> GPT:
    return little_gpt(arch=arch, **changes).cuda().eval()


def texts(
    model: GPT, prompt: list[int], samples: int, count: int, sampler: TokenSampler = PLAIN, **reading: bool
) -> list[list[int]]:
    return list(generate_samples(model, prompt, count, sampler, samples=range(samples), **reading))


@both
@one_or_several
@pytest.mark.parametrize("length", [1, 7])
@torch.no_grad()
def test_a_recorded_step_gives_the_logits_of_a_plain_one(arch: str, rows: int, length: int) -> None:
    model = on_gpu(arch)
    tokens = some_tokens(rows).cuda()
    tokens[:, :length] = tokens[0, :length].clone()
    readers: list[CachedDecoder | WindowDecoder] = [
        CachedDecoder(model, CONTEXT, rows, graph=True),
        CachedDecoder(model, CONTEXT, rows),
        WindowDecoder(model),
    ]
    for end in range(length, CONTEXT + 1):
        known = tokens[: 1 if end == length else rows, :end]
        graphed, plain, whole = (reader.next_logits(known).clone() for reader in readers)
        torch.testing.assert_close(graphed, plain, atol=1e-5, rtol=0)
        torch.testing.assert_close(graphed, whole, atol=1e-5, rtol=0)


@both
@one_or_several
@pytest.mark.parametrize("length", [1, 7, CONTEXT, 2 * CONTEXT])
@pytest.mark.parametrize(
    "sampler",
    [
        PLAIN,
        TokenSampler(VOCABULARY, top_k=5),
        TokenSampler(VOCABULARY, top_p=0.8, temperature=1.3),
        TokenSampler(VOCABULARY, temperature=0.0),
    ],
)
def test_the_same_text_recorded_or_not_and_on_a_cpu(
    arch: str, rows: int, length: int, sampler: TokenSampler
) -> None:
    """Across the edge of the context, too."""
    prompt = some_tokens(1, length)[0].tolist()
    graphed = texts(on_gpu(arch), prompt, rows, 2 * CONTEXT, sampler, graph=True)
    assert graphed == texts(on_gpu(arch), prompt, rows, 2 * CONTEXT, sampler)
    assert graphed == texts(on_gpu(arch), prompt, rows, 2 * CONTEXT, sampler, use_cache=False)
    assert graphed == texts(little_gpt(arch=arch), prompt, rows, 2 * CONTEXT, sampler)


@both
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_in_half_precision_it_is_what_autocast_computes(arch: str, dtype: torch.dtype) -> None:
    model = on_gpu(arch)
    tokens = some_tokens().cuda()
    tokens[:, :3] = tokens[0, :3].clone()
    with torch.autocast("cuda", dtype):
        reader = CachedDecoder(prepare_for_decoding(model), CONTEXT, 3, graph=True)
        for end in range(3, CONTEXT + 1):
            logits = reader.next_logits(tokens[: 1 if end == 3 else 3, :end])
            assert logits.dtype == dtype
            expected = model.next_logits(tokens[: len(logits), :end])
            torch.testing.assert_close(logits, expected, atol=0.1, rtol=0)


@pytest.mark.parametrize("graph", [True, False])
def test_steps_in_their_callers_autocast(graph: bool) -> None:
    model = on_gpu("gpt2")
    few = TokenSampler(VOCABULARY, top_k=5)
    steps = generate_samples(model, [1], 2 * CONTEXT, few, samples=range(4), graph=graph)
    for _ in range(2 * CONTEXT):
        with torch.autocast("cuda", torch.bfloat16):
            assert len(next(steps)) == 4
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_two_texts_at_a_time_do_not_disturb_each_other() -> None:
    model = on_gpu("gpt2")
    alone = [texts(model, [prompt], 2, CONTEXT - 1) for prompt in (1, 2)]
    steps = [
        generate_samples(model, [prompt], CONTEXT - 1, PLAIN, samples=range(2), graph=True)
        for prompt in (1, 2)
    ]
    together = list(zip(*steps, strict=True))
    assert [list(text) for text in zip(*together, strict=True)] == alone


@pytest.mark.parametrize("graph", [True, False])
def test_a_model_that_is_not_a_number_says_so(graph: bool) -> None:
    model = on_gpu("gpt2")
    with torch.no_grad():
        model.get_parameter("transformer.wpe.weight")[5] = float("nan")
    steps = generate_samples(model, [1], CONTEXT, PLAIN, samples=range(2), graph=graph)
    with pytest.raises(UserError, match="not a number"):
        list(steps)
