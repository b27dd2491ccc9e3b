"""Recorded steps on a CUDA device write what plain ones write. Without one these tests skip, and say so."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tiny_models import CONTEXT, VOCABULARY, little_gpt, some_tokens
from torch import Tensor

from glassgpt.errors import UserError
from glassgpt.model.fused_decoder import FusedDecoder
from glassgpt.model.generate import CachedDecoder, WindowDecoder, generate_samples, prepare_for_decoding
from glassgpt.model.gpt import GPT
from glassgpt.model.token_sampler import TokenSampler

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
    assert graphed == texts(little_gpt(arch=arch), prompt, rows, 2 * CONTEXT, sampler)
    if arch == "gpt2":  # rotary positions slide instead
        assert graphed == texts(on_gpu(arch), prompt, rows, 2 * CONTEXT, sampler, use_cache=False)


@both
@pytest.mark.parametrize(("rows", "width"), [(1, 24), (3, 32), (8, 96), (17, 32)])
@pytest.mark.parametrize("length", [1, CONTEXT, 2 * CONTEXT])
@pytest.mark.parametrize(
    "sampler",
    [
        PLAIN,
        TokenSampler(VOCABULARY - 2, top_k=5, top_p=0.8, temperature=1.3),
        TokenSampler(VOCABULARY, top_k=1),
        TokenSampler(VOCABULARY, temperature=0.0),
    ],
)
def test_the_same_text_by_fused_kernels(
    arch: str, rows: int, width: int, length: int, sampler: TokenSampler
) -> None:
    model = on_gpu(arch, n_embd=width)
    prompt = some_tokens(1, length)[0].tolist()
    fused = texts(model, prompt, rows, 3 * CONTEXT, sampler, graph=True, kernels=True)
    assert fused == texts(model, prompt, rows, 3 * CONTEXT, sampler)


@both
@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize(("activation", "bias"), [("gelu", True), ("gelu_new", False), ("relu2", False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("capacity", "start"), [(CONTEXT, 1), (1500, 1490)])
@pytest.mark.usefixtures("exact_float32")
@torch.no_grad()
def test_fused_kernels_give_the_logits_of_the_model(
    arch: str, rows: int, activation: str, bias: bool, dtype: torch.dtype, capacity: int, start: int
) -> None:
    """From the first positions on, and to the end of a cache that several programs share."""
    changes: dict[str, Any] = {"activation": activation, "bias": bias, "n_embd": 160, "block_size": capacity}
    model = on_gpu(arch, vocab_size=1000, **changes)
    tokens = torch.randint(1000, (rows, capacity), generator=torch.Generator().manual_seed(0)).cuda()
    tokens[:, :start] = tokens[0, :start].clone()
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        ready = prepare_for_decoding(model)
        cache = ready.new_cache(capacity)
        ready.next_logits(tokens[:1, :start], cache)
        cache.repeat(rows)
        decoder = FusedDecoder(ready, cache, TokenSampler(1000, top_k=5))
        totals = torch.zeros(3, device="cuda")  # squares: distances of fused and plain, and the logits
        for length in range(start, capacity):
            logits = decoder.next_logits(tokens[:, length])
            plain = model.next_logits(tokens[:, : length + 1]).float()
            with torch.autocast("cuda", enabled=False):
                exact = model.next_logits(tokens[:, : length + 1])
            if dtype == torch.float32:
                torch.testing.assert_close(logits, exact, atol=1e-4, rtol=1e-4)
            totals += torch.stack([one.square().sum() for one in (logits - exact, plain - exact, exact)])
    fused_distance, plain_distance, size = totals.sqrt().tolist()
    assert fused_distance <= 1.5 * plain_distance + 1e-3 * size  # no further from float32 than autocast is


def sampled_by_kernel(logits: Tensor, noise: Tensor, sampler: TokenSampler) -> Tensor:
    """As after the head, which leaves the largest of every few logits, too."""
    import triton
    from sampling_kernel import sample_rows

    tiles = logits.clone()
    tiles[:, sampler.vocab_size :] = -math.inf
    tile_max = tiles.view(len(tiles), -1, 16).amax(-1)
    rows, count = len(logits), sampler.noise_width
    chosen = torch.zeros(rows, triton.next_power_of_2(count), dtype=torch.int32, device="cuda")
    tokens = torch.zeros(rows, dtype=torch.long, device="cuda")
    out = torch.zeros(1, rows, dtype=torch.long, device="cuda")
    tensors = (logits, tile_max, noise.cuda(), chosen, out, tokens)
    sizes = (rows, logits.shape[1], sampler.vocab_size, count, tile_max.shape[1])
    blocks = (16, triton.next_power_of_2(tile_max.shape[1]), chosen.shape[1])
    top_p = sampler.top_p
    sample_rows[(rows,)](
        *tensors, sampler.temperature, top_p or 1.0, *sizes, top_p is not None, *blocks, num_warps=8
    )
    assert out[0].tolist() == tokens.tolist()
    return out[0].cpu()


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("top_p", [None, 0.5, 0.95])
@pytest.mark.parametrize("logits_kind", ["normal", "coarse", "equal", "peaked"])
@torch.no_grad()
def test_the_kernel_samples_what_the_sampler_does(rows: int, top_p: float | None, logits_kind: str) -> None:
    """From a large vocabulary, also with equal logits: any of them may then be kept."""
    vocabulary = 50_257
    sampler = TokenSampler(vocabulary, 0.8, 200, top_p)
    for seed in range(5):
        generators = [torch.Generator().manual_seed(rows * seed + row) for row in range(rows)]
        logits = torch.randn(rows, 50_304, generator=generators[0])
        if logits_kind == "coarse":
            logits = (4 * logits).round()
        elif logits_kind == "equal":
            logits = torch.zeros_like(logits)
        elif logits_kind == "peaked":
            logits *= 8
        noise = torch.empty(rows, sampler.noise_width)
        sampler.draw_noise(noise, generators)
        found = sampled_by_kernel(logits.cuda(), noise, sampler)
        if logits_kind in ("normal", "peaked"):
            assert found.tolist() == sampler.choose_tokens(logits, noise).tolist()
        elif top_p is None:  # of equal logits the kernel keeps the first
            order = logits[:, :vocabulary].sort(descending=True, stable=True)
            ids = order.indices[:, :200].sort(-1).values
            probs = (logits.gather(1, ids) / 0.8).softmax(-1)
            expected = ids.gather(1, (probs / noise).argmax(-1, keepdim=True))[:, 0]
            assert found.tolist() == expected.tolist()
        assert (found < vocabulary).all()


def test_two_fused_texts_at_a_time_do_not_disturb_each_other() -> None:
    model = on_gpu("gpt2", n_embd=32)
    few = TokenSampler(VOCABULARY, top_k=5)
    alone = [texts(model, [prompt], 2, CONTEXT - 1, few) for prompt in (1, 2)]
    steps = [
        generate_samples(model, [prompt], CONTEXT - 1, few, samples=range(2), graph=True, kernels=True)
        for prompt in (1, 2)
    ]
    together = list(zip(*steps, strict=True))
    assert [list(text) for text in zip(*together, strict=True)] == alone


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
@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("sampler", [PLAIN, TokenSampler(VOCABULARY, top_k=5)])
def test_a_model_that_is_not_a_number_says_so(graph: bool, kernels: bool, sampler: TokenSampler) -> None:
    model = on_gpu("gpt2", n_embd=32)
    with torch.no_grad():
        model.get_parameter("transformer.wpe.weight")[5] = float("nan")
    steps = generate_samples(model, [1], CONTEXT, sampler, samples=range(2), graph=graph, kernels=kernels)
    with pytest.raises(UserError, match="not a number"):
        list(steps)
