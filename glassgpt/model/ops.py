"""The operations between two matmuls: the plain PyTorch formula of each, and when its Triton kernel is used.

The formula is the definition, and runs on a CPU and under torch.compile. On a GPU with Triton, kernels.py has
a fused kernel for each that reads and writes every tensor once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassgpt.data.batches import IGNORED_TARGET
from glassgpt.model import float8
from glassgpt.model.loss_chunks import MAX_FLOAT32_GRADIENT_TOKENS

if TYPE_CHECKING:
    from types import ModuleType

NORM_EPSILON = {"layer": 1e-5, "rms": 1.2e-7}  # GPT-2's; torch.finfo(float32).eps


def _kernels() -> ModuleType:
    from glassgpt.model import kernels  # imports Triton, which takes a second and is not everywhere

    return kernels


def add_norm(
    x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor | None, rms: bool, kernel: bool
) -> tuple[Tensor, Tensor]:
    """x + y and its norm; without y, x and its norm."""
    eps = NORM_EPSILON["rms" if rms else "layer"]
    if kernel:
        return _kernels().AddNorm.apply(x, y, weight, bias, eps, rms)  # type: ignore[no-any-return]
    total = x if y is None else x + y
    if rms:  # weight in x's dtype: PyTorch has no fused RMSNorm for mixed dtypes
        return total, F.rms_norm(total, weight.shape, weight.to(total.dtype), eps)
    return total, F.layer_norm(total, weight.shape, weight, bias, eps)


def _sums_weight_gradient_in_float32(x: Tensor) -> bool:
    is_small = x.numel() // x.shape[-1] <= MAX_FLOAT32_GRADIENT_TOKENS
    return x.is_cuda and is_small and torch.is_autocast_enabled("cuda") and not torch.compiler.is_compiling()


class _AutocastLinear(torch.autograd.Function):
    """nn.Linear under autocast, with the weight's gradient in float32 as the matmul sums it. Autocast would
    round it to 16 bits, and convert it back in another pass over memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        dtype = torch.get_autocast_dtype("cuda")
        x, weight = x.to(dtype), weight.to(dtype)
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return F.linear(x, weight, None if bias is None else bias.to(dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad = grads[0].reshape(-1, len(weight))
        grad_x = (grad @ weight).view_as(x)
        grad_weight = torch.mm(grad.t(), x.reshape(-1, x.shape[-1]), out_dtype=torch.float32)
        return grad_x, grad_weight, grad.sum(0, dtype=torch.float32) if ctx.has_bias else None


def linear(layer: nn.Linear, x: Tensor, fp8: bool) -> Tensor:
    """layer(x); while gradients are enabled, with `fp8` as a float8 matmul."""
    if not torch.is_grad_enabled():
        return layer(x)  # type: ignore[no-any-return]
    if not fp8:
        if _sums_weight_gradient_in_float32(x):
            return _AutocastLinear.apply(x, layer.weight, layer.bias)  # type: ignore[no-any-return,no-untyped-call]
        return layer(x)  # type: ignore[no-any-return]
    (y,) = float8.linear(x, layer.weight)
    return y if layer.bias is None else y + layer.bias.to(y.dtype)


def linear_chunked(layer: nn.Linear, x: Tensor, chunks: int, fp8: bool) -> tuple[Tensor, ...]:
    """Like `linear`, with the output channels in `chunks` equal tensors."""
    if fp8 and layer.bias is None and torch.is_grad_enabled():
        return float8.linear(x, layer.weight, chunks)
    return linear(layer, x, fp8).view(*x.shape[:-1], chunks, -1).unbind(-2)


def rotary_qk_norm(qkv: Tensor, rope: tuple[Tensor, Tensor], kernel: bool) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v (B, T, H, D) of qkv (B, T, 3, H, D): q and k after RoPE and QK-norm. `rope`: cos and sin."""
    head_dim = qkv.shape[-1]
    is_power_of_two = head_dim & (head_dim - 1) == 0  # as Triton's blocks have to be
    if kernel and qkv.is_contiguous() and is_power_of_two:
        return _kernels().RotaryQKNorm.apply(qkv, *rope, NORM_EPSILON["rms"])  # type: ignore[no-any-return]
    rotated = _rotate(qkv[:, :, :2], rope)
    q, k = F.rms_norm(rotated, rotated.shape[-1:], eps=NORM_EPSILON["rms"]).unbind(2)
    return q, k, qkv[:, :, 2]


def _rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """RoPE: channel i of the first half and of the second half of a head are a pair."""
    cos, sin = (table.to(x.dtype)[:, None, None] for table in rope)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


def activate(x: Tensor, name: str, kernel: bool) -> Tensor:
    """`gelu` (exact), `gelu_new` (GPT-2's, with tanh) or `relu2`."""
    if kernel and name != "gelu_new":
        return _kernels().Activate.apply(x, name == "relu2")  # type: ignore[no-any-return]
    if name == "relu2":
        positive = F.relu(x)
        return positive * positive  # autocast on a card would compute `square` in float32, with a copy of x
    return F.gelu(x, approximate="tanh" if name == "gelu_new" else "none")


def mlp(c_fc: nn.Linear, c_proj: nn.Linear, x: Tensor, activation: str, kernel: bool, fp8: bool) -> Tensor:
    """c_proj(activation(c_fc(x))); `fp8` as in `linear`."""
    can_fuse = c_fc.bias is None and c_proj.bias is None and activation != "gelu_new"
    if fp8 and can_fuse and torch.is_grad_enabled():
        return float8.mlp(x, c_fc.weight, c_proj.weight, activation == "relu2")
    return linear(c_proj, activate(linear(c_fc, x, fp8), activation, kernel), fp8)


def cross_entropy_grad_inplace(logits: Tensor, targets: Tensor, kernel: bool) -> Tensor:
    """Overwrites logits (rows, V) with the gradient of their loss. Returns the losses (rows)."""
    if kernel:
        return _kernels().cross_entropy_grad_inplace(logits, targets, IGNORED_TARGET)  # type: ignore[no-any-return]
    log_probs = logits.float().log_softmax(-1)
    is_target = targets != IGNORED_TARGET
    rows = torch.arange(len(targets), device=targets.device)
    columns = targets.clamp(min=0)
    losses = -log_probs[rows, columns] * is_target
    gradient = log_probs.exp_()
    gradient[rows, columns] -= 1
    logits.copy_(gradient * is_target[:, None])
    return losses
