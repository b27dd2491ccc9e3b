"""Float8 matmuls, for GPUs that have them: twice as fast as in bfloat16.

Activations and weights are e4m3 (4 bits of exponent, 3 of mantissa), gradients are e5m2, whose range is wide
enough for one fixed scale in all layers: activations are about 1, and the gradient of a token, before it is
averaged over all tokens, is not far below. The scale of a weight is set by its largest entry.
The hardware multiplies matrices that are contiguous along the summed dimension. So each matrix is stored
twice, row-major and column-major.
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
_ACTIVATION_SCALE = 1 / 8  # divided by this, activations fill e4m3's range of 0.002 to 448
_GRADIENT_SCALE = 1 / 1024  # of one token's gradient, before averaging


def _kernels() -> ModuleType:
    from glassgpt.model import kernels

    return kernels


class Float8Matrix:
    """Matrices side by side in float8, row-major and column-major: entry x scale is the value.

    With `relu2` or `grad`: their activation, or the gradient through it, as in kernels.to_float8.
    """

    def __init__(
        self,
        matrices: Sequence[Tensor],
        scale: Tensor | float,
        dtype: torch.dtype,
        relu2: bool | None = None,
        grad: Tensor | None = None,
    ) -> None:
        rows, widths = len(matrices[0]), [matrix.shape[1] for matrix in matrices]
        device = matrices[0].device
        self.scale = scale if isinstance(scale, Tensor) else _constant(scale, device)
        self.row_major = torch.empty(rows, sum(widths), dtype=dtype, device=device)
        self.column_major = torch.empty(sum(widths), rows, dtype=dtype, device=device)
        outs, outs_t = torch.split(self.row_major, widths, 1), torch.split(self.column_major, widths)
        for matrix, out, out_t in zip(matrices, outs, outs_t, strict=True):
            _kernels().to_float8(matrix, self.scale, out, out_t, relu2, grad)


@cache
def _constant(value: float, device: torch.device) -> Tensor:
    """A scalar on the device, made once: no copy and no kernel launch per call."""
    return torch.full((), value, device=device)


def quantize_weight(weight: Tensor) -> Float8Matrix:
    largest = torch.linalg.vector_norm(weight, float("inf")).clamp_(min=1e-12)
    return Float8Matrix((weight,), largest.div_(torch.finfo(FORWARD_DTYPE).max), FORWARD_DTYPE)


def quantize_activations(x: Tensor) -> Float8Matrix:
    return Float8Matrix((x,), _ACTIVATION_SCALE, FORWARD_DTYPE)


def is_float8_kernel_correct(device: torch.device) -> bool:
    """Compares the kernel with float32 on this device: some Triton versions get the transposed copy wrong."""
    x, grad = torch.randn(2, 192, 128, device=device, dtype=torch.bfloat16)
    for dtype in (FORWARD_DTYPE, BACKWARD_DTYPE):
        exact = x.float().requires_grad_()
        activated = F.gelu(exact)
        (exact_grad,) = torch.autograd.grad(activated, exact, grad.float())
        forms: tuple[tuple[Any, ...], ...] = ((), (False,), (False, grad))
        for form, expected in zip(forms, (exact, activated, exact_grad), strict=True):
            matrix = Float8Matrix((x,), 1 / 16, dtype, *form)
            same = torch.equal(matrix.row_major.float().t(), matrix.column_major.float())
            near = torch.allclose(matrix.row_major.float() * matrix.scale, expected, rtol=0.13, atol=2e-3)
            if not (same and near):
                return False
    return True


def float8_matmul(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """a (M, K) times b (N, K) transposed, accumulated in float32.

    Not with use_fast_accum: it keeps 14 bits of a sum, in which the many small terms vanish beside the few
    large ones. An update would be faster, and learn less.
    """
    return torch._scaled_mm(a, b.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=dtype, use_fast_accum=False)


def float8_matmul_backward(
    grad: Float8Matrix, x_columns: Tensor, x_scale: Tensor, w_columns: Tensor, w_scale: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the weight, given that of their product."""
    grad_x = float8_matmul(grad.row_major, w_columns, grad.scale, w_scale)
    return grad_x, float8_matmul(grad.column_major, x_columns, grad.scale, x_scale, torch.float32)


class Float8Linear(torch.autograd.Function):
    """x (N, C) times a weight (M, C), all three matmuls in float8; the result in `chunks` equal tensors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, chunks: int) -> tuple[Tensor, ...]:
        x8, w8 = quantize_activations(x), quantize_weight(weight)
        ctx.save_for_backward(x8.column_major, x8.scale, w8.column_major, w8.scale)
        return float8_matmul(x8.row_major, w8.row_major, x8.scale, w8.scale).chunk(chunks, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        # The chunks are concatenated while they are quantized. Before would cost one more pass over memory.
        grad8 = Float8Matrix(grads, _GRADIENT_SCALE / len(grads[0]), BACKWARD_DTYPE)
        return *float8_matmul_backward(grad8, *ctx.saved_tensors), None


def linear(x: Tensor, weight: Tensor, chunks: int = 1) -> tuple[Tensor, ...]:
    outputs = Float8Linear.apply(x.reshape(-1, x.shape[-1]), weight, chunks)  # type: ignore[no-untyped-call]
    return tuple(output.view(*x.shape[:-1], -1) for output in outputs)


class Float8MLP(torch.autograd.Function):
    """x (N, C) times a weight (M, C), activated, times another (C, M): six matmuls in float8.

    The largest matrices of a block are between them. Activating and quantizing in one kernel, in both passes,
    saves one pass over memory.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_in: Tensor, weight_out: Tensor, relu2: bool) -> Tensor:
        x8, in8, out8 = quantize_activations(x), quantize_weight(weight_in), quantize_weight(weight_out)
        pre_activation = float8_matmul(x8.row_major, in8.row_major, x8.scale, in8.scale)
        active8 = Float8Matrix((pre_activation,), _ACTIVATION_SCALE, FORWARD_DTYPE, relu2)
        ctx.save_for_backward(
            pre_activation,
            *(x8.column_major, x8.scale, in8.column_major, in8.scale),
            *(active8.column_major, active8.scale, out8.column_major, out8.scale),
        )
        ctx.relu2 = relu2
        return float8_matmul(active8.row_major, out8.row_major, active8.scale, out8.scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        (grad,), (pre_activation, *saved) = grads, ctx.saved_tensors
        scale = _GRADIENT_SCALE / len(grad)
        grad_active, grad_out = float8_matmul_backward(
            Float8Matrix((grad,), scale, BACKWARD_DTYPE), *saved[4:]
        )
        grad_x, grad_in = float8_matmul_backward(
            Float8Matrix((pre_activation,), scale, BACKWARD_DTYPE, ctx.relu2, grad_active), *saved[:4]
        )
        return grad_x, grad_in, grad_out, None


def mlp(x: Tensor, weight_in: Tensor, weight_out: Tensor, relu2: bool) -> Tensor:
    y = Float8MLP.apply(x.reshape(-1, x.shape[-1]), weight_in, weight_out, relu2)  # type: ignore[no-untyped-call]
    return y.view_as(x)  # type: ignore[no-any-return]


def loss_gradient(logits: Tensor, targets: Tensor, factor: float) -> tuple[Tensor, Tensor, Tensor]:
    """Losses; `factor` times the gradient of the logits; the same transposed."""
    losses, grad, grad_t = _kernels().float8_gradient(logits, targets, factor, BACKWARD_DTYPE, IGNORED_TARGET)
    return losses, grad, grad_t
