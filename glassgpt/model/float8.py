"""Matmuls in 8-bit floats, for cards that have them: twice as fast as in bfloat16.

What goes forward is e4m3 (four bits of exponent, three of mantissa), what goes backward is e5m2, whose range
is wide enough that one fixed unit serves every layer: activations here are of the size of 1, and a token's
gradient, before it is averaged over all tokens, is not far below. Of weights, the largest entry sets it.
The hardware wants both factors of a product by rows along what is summed over, so each is kept both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from glassgpt.data.batches import IGNORED_TARGET

if TYPE_CHECKING:
    from types import ModuleType

FORWARD_DTYPE, BACKWARD_DTYPE = torch.float8_e4m3fn, torch.float8_e5m2
_ACTIVATION_SCALE = 1 / 8  # in these units they fill e4m3's range of 0.002 to 448
_GRADIENT_SCALE = 1 / 1024  # of a token's, before they are averaged


def _kernels() -> ModuleType:
    from glassgpt.model import kernels

    return kernels


class Float8Matrix:
    """Matrices side by side in 8 bits, by rows and by columns, and the unit that their entries are in.

    With `relu2` or `grad`: their activation, or the gradient to them, as kernels.to_float8 has it.
    """

    def __init__(
        self,
        matrices: Sequence[Tensor],
        unit: Tensor | float,
        dtype: torch.dtype,
        relu2: bool | None = None,
        grad: Tensor | None = None,
    ) -> None:
        rows, widths = len(matrices[0]), [matrix.shape[1] for matrix in matrices]
        device = matrices[0].device
        self.scale = unit if isinstance(unit, Tensor) else _constant(unit, device)
        self.row_major = torch.empty(rows, sum(widths), dtype=dtype, device=device)
        self.column_major = torch.empty(sum(widths), rows, dtype=dtype, device=device)
        places = zip(
            torch.split(self.row_major, widths, 1), torch.split(self.column_major, widths), strict=True
        )
        for matrix, place in zip(matrices, places, strict=True):
            _kernels().to_float8(matrix, self.scale, *place, relu2, grad)


@cache
def _constant(value: float, device: torch.device) -> Tensor:
    """Made there, once: nothing is copied over, nothing launched."""
    return torch.full((), value, device=device)


def quantize_weight(weight: Tensor) -> Float8Matrix:
    largest = torch.linalg.vector_norm(weight, float("inf")).clamp_(min=1e-12)
    return Float8Matrix((weight,), largest.div_(torch.finfo(FORWARD_DTYPE).max), FORWARD_DTYPE)


def quantize_activations(x: Tensor) -> Float8Matrix:
    return Float8Matrix((x,), _ACTIVATION_SCALE, FORWARD_DTYPE)


def is_float8_kernel_correct(device: torch.device) -> bool:
    """Whether the kernel does here what it must: versions of Triton got the transposed copy wrong."""
    x, grad = torch.randn(2, 192, 128, device=device, dtype=torch.bfloat16)
    for dtype in (FORWARD_DTYPE, BACKWARD_DTYPE):
        exact = x.float().requires_grad_()
        active = F.gelu(exact)
        (slope,) = torch.autograd.grad(active, exact, grad.float())
        forms: tuple[tuple[Any, ...], ...] = ((), (False,), (False, grad))
        for form, wanted in zip(forms, (exact, active, slope), strict=True):
            low = Float8Matrix((x,), 1 / 16, dtype, *form)
            same = torch.equal(low.row_major.float().t(), low.column_major.float())
            near = torch.allclose(low.row_major.float() * low.scale, wanted, rtol=0.13, atol=2e-3)
            if not (same and near):
                return False
    return True


def float8_matmul(
    a: Tensor, b: Tensor, unit_a: Tensor, unit_b: Tensor, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """a (M, K) times b (N, K) transposed.

    Added up in float32. In a hurry the hardware keeps 14 bits of a sum, where the many small terms vanish
    beside the few large ones: an update would be 2% faster, and learn less.
    """
    return torch._scaled_mm(a, b.t(), scale_a=unit_a, scale_b=unit_b, out_dtype=dtype, use_fast_accum=False)


def float8_matmul_backward(
    low: Float8Matrix, x_columns: Tensor, x_unit: Tensor, w_columns: Tensor, w_unit: Tensor
) -> tuple[Tensor, Tensor]:
    """Those to x and to the weight of their product, `low` being the one to it."""
    grad_x = float8_matmul(low.row_major, w_columns, low.scale, w_unit)
    return grad_x, float8_matmul(low.column_major, x_columns, low.scale, x_unit, torch.float32)


class Float8Linear(torch.autograd.Function):
    """x (N, C) by a weight (M, C), all three products in 8 bits; in so many equal parts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, parts: int) -> tuple[Tensor, ...]:
        x8, w8 = quantize_activations(x), quantize_weight(weight)
        ctx.save_for_backward(x8.column_major, x8.scale, w8.column_major, w8.scale)
        return float8_matmul(x8.row_major, w8.row_major, x8.scale, w8.scale).chunk(parts, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        # Put together on the way to 8 bits, not before: that would be one more reading and writing of all.
        low = Float8Matrix(grads, _GRADIENT_SCALE / len(grads[0]), BACKWARD_DTYPE)
        return *float8_matmul_backward(low, *ctx.saved_tensors), None


def linear(x: Tensor, weight: Tensor, parts: int = 1) -> tuple[Tensor, ...]:
    found = Float8Linear.apply(x.reshape(-1, x.shape[-1]), weight, parts)  # type: ignore[no-untyped-call]
    return tuple(part.view(*x.shape[:-1], -1) for part in found)


class Float8MLP(torch.autograd.Function):
    """x (N, C) by a weight (M, C), activated, by another (C, M): six products in 8 bits.

    Between them lie the largest matrices of a block. Activating and rounding them in one go, each way, is one
    reading and one writing less.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_in: Tensor, weight_out: Tensor, relu2: bool) -> Tensor:
        x8, in8, out8 = quantize_activations(x), quantize_weight(weight_in), quantize_weight(weight_out)
        between = float8_matmul(x8.row_major, in8.row_major, x8.scale, in8.scale)
        active8 = Float8Matrix((between,), _ACTIVATION_SCALE, FORWARD_DTYPE, relu2)
        ctx.save_for_backward(
            between,
            *(x8.column_major, x8.scale, in8.column_major, in8.scale),
            *(active8.column_major, active8.scale, out8.column_major, out8.scale),
        )
        ctx.relu2 = relu2
        return float8_matmul(active8.row_major, out8.row_major, active8.scale, out8.scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        (grad,), (between, *saved) = grads, ctx.saved_tensors
        unit = _GRADIENT_SCALE / len(grad)
        grad_active, grad_out = float8_matmul_backward(
            Float8Matrix((grad,), unit, BACKWARD_DTYPE), *saved[4:]
        )
        grad_x, grad_in = float8_matmul_backward(
            Float8Matrix((between,), unit, BACKWARD_DTYPE, ctx.relu2, grad_active), *saved[:4]
        )
        return grad_x, grad_in, grad_out, None


def mlp(x: Tensor, weight_in: Tensor, weight_out: Tensor, relu2: bool) -> Tensor:
    y = Float8MLP.apply(x.reshape(-1, x.shape[-1]), weight_in, weight_out, relu2)  # type: ignore[no-untyped-call]
    return y.view_as(x)  # type: ignore[no-any-return]


def loss_gradient(logits: Tensor, targets: Tensor, factor: float) -> tuple[Tensor, Tensor, Tensor]:
    """Losses; `factor` times their gradient to the logits, by rows; and by columns."""
    found: tuple[Tensor, Tensor, Tensor] = _kernels().float8_gradient(
        logits, targets, factor, BACKWARD_DTYPE, IGNORED_TARGET
    )
    return found
