"""Attention's kernels, compiled code and CUDA graphs on a card have the plain path's loss and gradients.

In float32 within 1e-5; in bfloat16 no further from float32 than the plain path is.
"""

from __future__ import annotations

import pytest
import torch
from tiny_models import VOCABULARY, little_gpt
from torch import Tensor

from glassgpt.model import loss_chunks, ops
from glassgpt.model.cuda_graph import CudaGraphRunner
from glassgpt.model.gpt import GPT

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("exact_float32")]
both = pytest.mark.parametrize("arch", ["gpt2", "modern"])
CONTEXT = 32


def model_of(arch: str) -> GPT:
    return little_gpt(arch=arch, n_embd=64, block_size=CONTEXT).cuda()


def batch(seed: int = 1) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (8, CONTEXT + 1), generator=draw).cuda()
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def gradients(model: GPT, low: bool = False) -> tuple[float, Tensor]:
    model.zero_grad()
    with torch.autocast("cuda", torch.bfloat16, enabled=low):
        loss = model(*batch())
    loss.backward()
    return loss.item(), gradient_of(model)


def gradient_of(model: GPT) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@both
def test_fused_attention_in_float32_is_textbook_attention(arch: str) -> None:
    model = model_of(arch)
    model.backend.attention = "manual"
    plain_loss, plain = gradients(model)
    for how in ("efficient", "sdpa"):  # the others have no float32
        model.backend.attention = how
        loss, found = gradients(model)
        assert loss == pytest.approx(plain_loss, abs=1e-5), how
        torch.testing.assert_close(found, plain, atol=1e-5, rtol=1e-5)


@both
@pytest.mark.parametrize("how", ["flash", "cudnn", "efficient", "sdpa"])
def test_fused_attention_in_bfloat16_is_as_near_to_float32(arch: str, how: str) -> None:
    model = model_of(arch)
    model.backend.attention = "manual"
    plain_loss, plain = gradients(model)
    rough_loss, rough = gradients(model, low=True)
    model.backend.attention = how
    try:
        loss, found = gradients(model, low=True)
    except RuntimeError as error:
        pytest.skip(f"{how} cannot do this here: {str(error).splitlines()[0]}")
    assert abs(loss - plain_loss) <= abs(rough_loss - plain_loss) + 5e-3
    assert (found - plain).norm() <= 1.05 * (rough - plain).norm()


@both
def test_compiled_it_has_the_same_loss_and_gradients(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        loss_chunks, "MAX_UNCHUNKED_LOGIT_BYTES", 0
    )  # the loss in pieces, as large vocabularies have it
    model = model_of(arch)
    plain_loss, plain = gradients(model)
    model.set_compiled(True)
    loss, found = gradients(model)
    assert loss == pytest.approx(plain_loss, abs=1e-5)
    torch.testing.assert_close(found, plain, atol=1e-5, rtol=1e-5)


@both
@pytest.mark.parametrize("kernels", [False, True])
def test_recorded_it_has_the_same_loss_and_gradients(arch: str, kernels: bool) -> None:
    """Of a batch that it was not captured with, and they add up over micro-batches."""
    model = model_of(arch)
    model.backend.kernels = kernels

    def work(tokens: Tensor, targets: Tensor) -> tuple[Tensor]:
        loss = model(tokens, targets)
        loss.backward()
        return (loss.detach(),)

    runner = CudaGraphRunner(work)
    for seed in range(4):
        runner(*batch(seed))
    assert runner.capture_error is None
    model.zero_grad(set_to_none=False)
    losses = [float(runner(*batch(seed))[0]) for seed in (7, 8)]
    found = gradient_of(model).clone()
    model.zero_grad()
    wanted = [float(work(*batch(seed))[0]) for seed in (7, 8)]
    assert losses == pytest.approx(wanted, abs=1e-5)
    torch.testing.assert_close(found, gradient_of(model), atol=1e-5, rtol=1e-5)


def test_relu_squared_stays_in_half_precision() -> None:
    """Autocast computes a power in float32, which would take three times the memory."""
    x = torch.randn(64, 32, device="cuda", dtype=torch.bfloat16)
    with torch.autocast("cuda", torch.bfloat16):
        y = ops.activate(x, "relu2", kernel=False)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, x.float().relu().square().to(torch.bfloat16))
