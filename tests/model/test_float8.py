"""8-bit products are near the exact ones, and their gradients too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from glassgpt.model import float8, pieces
from glassgpt.model.gpt import GPT, GPTConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9),
        reason="no CUDA device with 8-bit floats here",
    ),
]


def distance(found: Tensor, wanted: Tensor) -> float:
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).cuda()


@pytest.mark.parametrize("shape", [(16, 16), (80, 48), (1024, 768)])
def test_a_matrix_comes_back_both_ways(shape: tuple[int, int]) -> None:
    x = normal(*shape).bfloat16()
    low = float8.low_activations(x)
    assert torch.equal(low.rows.float(), low.columns.float().t())
    assert distance(low.rows.float() * low.back, x) < 0.04


def test_what_is_too_large_is_at_the_limit() -> None:
    low = float8.low_activations(torch.full((16, 16), 1e4, device="cuda"))
    assert low.rows.float().unique().tolist() == [448.0]


@pytest.mark.parametrize("dtype", [float8.FORWARD, float8.BACKWARD])
def test_what_is_not_a_number_stays_none_and_is_alone(dtype: torch.dtype) -> None:
    x = normal(80, 48).bfloat16()
    x[3, 5], x[70, 40] = float("nan"), float("inf")
    low = float8.Low(x, 1.0, dtype)
    assert low.rows.float().isnan().nonzero().tolist() == [[3, 5]]
    assert low.columns.float().isnan().nonzero().tolist() == [[5, 3]]
    assert float(low.rows[70, 40].float()) == torch.finfo(dtype).max


def test_a_linear_layer_and_its_gradients() -> None:
    x, weight = (
        normal(4, 64, 96).bfloat16().requires_grad_(),
        (normal(160, 96, seed=1) * 0.05).requires_grad_(),
    )
    grad = normal(4, 64, 160, seed=2).bfloat16() / 256  # as small as a mean over all tokens makes it
    y = float8.linear(x, weight)
    exact = x.float() @ weight.t()
    assert distance(y, exact) < 0.06
    found = torch.autograd.grad(y, (x, weight), grad)
    wanted = torch.autograd.grad(exact, (x, weight), grad.float())
    assert distance(found[0], wanted[0]) < 0.12
    assert distance(found[1], wanted[1]) < 0.12


def test_long_sums_keep_their_small_terms() -> None:
    """One term of 1 and 50,000 of 2e-5 each, as a softmax over a large vocabulary has them."""
    terms = torch.full((16, 50304), 2e-5, device="cuda")
    terms[:, 0] = 1.0
    low, ones = float8.Low(terms, 2.0**14, float8.BACKWARD), float8.low_activations(normal(16, 50304) * 0 + 1)
    exact = low.rows.float().sum(1) * low.back
    found = float8.product(low.rows, ones.rows, low.back, ones.back)[:, 0].float()
    torch.testing.assert_close(found, exact, rtol=0.02, atol=0.0)


def test_the_kernel_is_sound_here() -> None:
    assert float8.is_sound(torch.device("cuda"))


def test_the_whole_model(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(1024, 64, 4, 4, 128)).cuda()
    model.set_kernels(True)
    tokens = torch.randint(0, 1024, (8, 65), device="cuda")
    monkeypatch.setattr(pieces, "FEW_BYTES", 0)
    monkeypatch.setitem(pieces.PIECE_BYTES, "cuda", 128 * 2 * 1024)

    def step(low: bool) -> tuple[float, Tensor]:
        model.set_float8(low)
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            result = model(tokens[:, :-1], tokens[:, 1:])
        result.backward()
        return float(result), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    (plain, wanted), (low, found) = step(False), step(True)
    assert low == pytest.approx(plain, abs=0.02)
    assert distance(found, wanted) < 0.2
