"""Our GPU kernels equal the formulas in ops.py; in bfloat16 they are as near to float32 as PyTorch is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from glassgpt.data.batches import IGNORED_TARGET
from glassgpt.model import loss_chunks, ops
from glassgpt.model.gpt import GPT, GPTConfig, _rope_tables

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("exact_float32")]


def normal(*shape: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw).cuda().requires_grad_()


def check(piece: Callable[..., Any], *inputs: Tensor) -> None:
    """`piece(inputs, kernel)`: values and gradients with the kernel are those without."""
    results = []
    for kernel in (False, True):
        out = piece(*inputs, kernel)
        outs = [tensor for tensor in (out if isinstance(out, tuple) else (out,)) if tensor.requires_grad]
        weights = [normal(*tensor.shape, seed=7 + i).detach() for i, tensor in enumerate(outs)]
        total = sum(
            ((one * weight).sum() for one, weight in zip(outs, weights, strict=True)), torch.tensor(0.0)
        )
        results.append([*outs, *torch.autograd.grad(total, [x for x in inputs if x.requires_grad])])
    for plain, own in zip(*results, strict=True):
        torch.testing.assert_close(own, plain, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("width", [1, 48, 384, 768, 1600])
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_add_and_norm(width: int, rms: bool, bias: bool) -> None:
    if rms and bias:
        pytest.skip("RMSNorm has no bias")
    x, y, weight = normal(37, width), normal(37, width, seed=1), normal(width, seed=2)
    if not bias:
        check(lambda x, y, w, kernel: ops.add_norm(x, y, w, None, rms, kernel), x, y, weight)
        check(lambda x, w, kernel: ops.add_norm(x, None, w, None, rms, kernel), x, weight)
        return
    check(
        lambda x, y, w, b, kernel: ops.add_norm(x, y, w, b, rms, kernel),
        x,
        y,
        weight,
        normal(width, seed=3),
    )


@pytest.mark.parametrize("name", ["gelu", "relu2"])
@pytest.mark.parametrize("shape", [(1,), (5, 1023), (3, 4097)])
def test_activations(name: str, shape: tuple[int, ...]) -> None:
    check(lambda x, kernel: ops.activate(x, name, kernel), normal(*shape))


@pytest.mark.parametrize("name", ["gelu", "relu2"])
def test_an_activation_of_what_does_not_lie_row_by_row(name: str) -> None:
    check(lambda x, kernel: ops.activate(x, name, kernel), normal(70, 5).detach().t().requires_grad_())


@pytest.mark.parametrize("name", ["gelu", "relu2"])
def test_an_activation_hides_nothing_that_is_not_a_number(name: str) -> None:
    x = torch.tensor([1.0, math.nan, -2.0, 0.0], device="cuda", requires_grad=True)
    for kernel in (False, True):
        out = ops.activate(x, name, kernel)
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert out.isnan().tolist() == grad.isnan().tolist() == [False, True, False, False], kernel


def test_gelu_is_exact_far_out() -> None:
    x = torch.linspace(-12, 12, 20_001, device="cuda")
    wanted = torch.nn.functional.gelu(x.double())
    assert (ops.activate(x, "gelu", True).double() - wanted).abs().max() < 2e-6


@pytest.mark.parametrize(("heads", "width"), [(1, 2), (3, 32), (12, 64), (5, 128), (4, 48), (2, 96)])
def test_rotation_and_norm(heads: int, width: int) -> None:
    rotation = tuple(table.cuda() for table in _rope_tables(19, width))

    def piece(qkv: Tensor, kernel: bool) -> tuple[Tensor, Tensor, Tensor]:
        return ops.rotary_qk_norm(qkv, rotation, kernel)  # type: ignore[arg-type]

    check(piece, normal(2, 19, 3, heads, width))


@pytest.mark.parametrize("vocabulary", [2, 65, 8192, 8193, 50_257, 50_304])
def test_the_gradient_of_the_loss(vocabulary: int) -> None:
    logits = normal(9, vocabulary).detach() * 4
    targets = torch.randint(0, vocabulary, (9,), device="cuda")
    targets[3] = IGNORED_TARGET
    own, plain = logits.clone(), logits.clone()
    losses = [
        ops.cross_entropy_grad_inplace(x, targets, kernel) for x, kernel in ((plain, False), (own, True))
    ]
    torch.testing.assert_close(losses[1], losses[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(own, plain, atol=1e-6, rtol=1e-5)


def test_a_row_of_logits_that_is_not_a_number_has_no_loss_and_spoils_no_other() -> None:
    logits = normal(4, 9000).detach()
    logits[1, 8500], logits[2, 3] = math.nan, math.inf
    targets = torch.tensor([5, 6, 7, 8], device="cuda")
    for kernel in (False, True):
        own = logits.clone()
        losses = ops.cross_entropy_grad_inplace(own, targets, kernel)
        assert losses.isfinite().tolist() == [True, False, False, True], kernel
        assert own.isfinite().all(1).tolist() == [True, False, False, True], kernel


def test_logits_beyond_the_reach_of_32_bits() -> None:
    """The last row begins after 2^31 elements."""
    rows, vocabulary = 42_700, 50_304
    if torch.cuda.mem_get_info()[0] < 10 * 2**30:
        pytest.skip("needs 10 GiB of the card's memory")
    logits = torch.zeros(rows, vocabulary, dtype=torch.float16, device="cuda")
    logits[-1] = normal(vocabulary).detach()
    last = logits[-1:].clone()
    targets = torch.full((rows,), 3, device="cuda")
    losses = ops.cross_entropy_grad_inplace(logits, targets, True)
    wanted = ops.cross_entropy_grad_inplace(last, targets[:1], True)
    assert torch.equal(losses[-1:], wanted)
    assert torch.equal(logits[-1:], last)


# --- the whole model ---


def model_of(arch: str) -> GPT:
    torch.manual_seed(0)
    activation = "gelu" if arch == "gpt2" else "relu2"
    model = GPT(GPTConfig(1000, 64, 4, 4, 128, arch=arch, activation=activation, bias=arch == "gpt2"))
    with torch.no_grad():
        for parameter in model.parameters():  # away from zeros and ones
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.cuda()


def gradients(model: GPT, low: bool, kernels: bool) -> tuple[float, Tensor]:
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 1000, (8, 65), generator=draw).cuda()
    model.backend.kernels = kernels
    model.zero_grad()
    with torch.autocast("cuda", torch.bfloat16, enabled=low):
        result = model(tokens[:, :-1], tokens[:, 1:])
    result.backward()
    return float(result), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("arch", ["gpt2", "modern"])
@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_model_with_kernels_is_the_same_model(
    arch: str, in_pieces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(arch)
    plain_loss, plain = gradients(model, low=False, kernels=False)
    rough_loss, rough = gradients(model, low=True, kernels=False)
    if in_pieces:
        monkeypatch.setattr(loss_chunks, "MAX_UNCHUNKED_LOGIT_BYTES", 0)
        monkeypatch.setitem(loss_chunks.MAX_LOGIT_CHUNK_BYTES, "cuda", 100 * 2 * 1000)
    own_loss, own = gradients(model, low=False, kernels=True)
    assert own_loss == pytest.approx(plain_loss, abs=1e-5)
    assert (own - plain).norm() < 1e-5 * plain.norm()
    low_loss, low = gradients(model, low=True, kernels=True)
    assert abs(low_loss - plain_loss) <= abs(rough_loss - plain_loss) + 1e-3
    assert (low - plain).norm() <= 1.02 * (rough - plain).norm(), "no further from float32 than PyTorch's"
