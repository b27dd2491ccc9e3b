"""Matmuls in 8-bit floats, for cards that have them: twice as fast as in bfloat16.

What goes forward is e4m3 (four bits of exponent, three of mantissa), what goes backward is e5m2, whose range
is wide enough that one fixed factor serves every layer: activations here are of the size of 1, and a token's
gradient, before it is averaged over all tokens, is not far below. Weights are scaled by their largest entry.
The hardware wants both factors of a product by rows along what is summed over, so each is kept both ways.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from glassgpt.data.batches import IGNORED_TARGET

if TYPE_CHECKING:
    from types import ModuleType

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
_ACTIVATIONS = 8.0  # times this they fill e4m3's range of 0.002 to 448
_GRADIENTS = 1024.0  # times this and the number of tokens


def _kernels() -> ModuleType:
    from glassgpt.model import kernels

    return kernels


class Low:
    """A matrix in 8 bits, by rows and by columns, and what to multiply it by to have it back."""

    def __init__(self, matrix: Tensor, factor: Tensor | float, dtype: torch.dtype) -> None:
        if not isinstance(factor, Tensor):
            factor = torch.full((), factor, device=matrix.device)  # made there: nothing is copied over
        self.rows, self.columns = _kernels().to_float8(matrix.bfloat16(), factor, dtype)
        self.back = 1 / factor


def low_weight(weight: Tensor) -> Low:
    largest = torch.linalg.vector_norm(weight, float("inf")).clamp(min=1e-12)
    return Low(weight, torch.finfo(FORWARD).max / largest, FORWARD)


def low_activations(x: Tensor) -> Low:
    return Low(x, _ACTIVATIONS, FORWARD)


def is_sound(device: torch.device) -> bool:
    """Whether the kernel does here what it must. Triton 3.6 gets the transposed copy wrong for some tiles."""
    x = torch.randn(192, 128, device=device, dtype=torch.bfloat16)
    for dtype in (FORWARD, BACKWARD):
        low = Low(x, 16.0, dtype)
        same = torch.equal(low.rows.float().t(), low.columns.float())
        near = torch.allclose(low.rows.float() * low.back, x.float(), rtol=0.13, atol=1e-3)
        if not (same and near):
            return False
    return True


def product(
    a: Tensor, b: Tensor, back_a: Tensor, back_b: Tensor, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """a (M, K) times b (N, K) transposed.

    Added up in float32. In a hurry the hardware keeps 14 bits of a sum, where the many small terms vanish
    beside the few large ones: an update would be 2% faster, and learn less.
    """
    return torch._scaled_mm(a, b.t(), scale_a=back_a, scale_b=back_b, out_dtype=dtype, use_fast_accum=False)


class Linear8(torch.autograd.Function):
    """x (…, C) by a weight (N, C), all three products in 8 bits."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        flat, w = low_activations(x.reshape(-1, x.shape[-1])), low_weight(weight)
        ctx.save_for_backward(flat.columns, flat.back, w.columns, w.back)
        return product(flat.rows, w.rows, flat.back, w.back).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x_columns, x_back, w_columns, w_back = ctx.saved_tensors
        grad = grads[0].reshape(-1, grads[0].shape[-1])
        low = Low(grad, _GRADIENTS * len(grad), BACKWARD)
        grad_x = product(low.rows, w_columns, low.back, w_back)
        grad_weight = product(low.columns, x_columns, low.back, x_back, torch.float32)
        return grad_x.view(*grads[0].shape[:-1], -1), grad_weight


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return Linear8.apply(x, weight)  # type: ignore[no-any-return,no-untyped-call]


def loss_gradient(logits: Tensor, targets: Tensor, factor: float) -> tuple[Tensor, Tensor, Tensor]:
    """Losses; `factor` times their gradient to the logits, by rows; and by columns."""
    found: tuple[Tensor, Tensor, Tensor] = _kernels().float8_gradient(
        logits, targets, factor, BACKWARD, IGNORED_TARGET
    )
    return found
