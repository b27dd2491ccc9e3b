"""What stands between two matmuls: the formula of each piece, and when a kernel of our own does it.

The formulas are the meaning, and what runs on a CPU or under torch.compile. On a GPU with Triton, kernels.py
has a kernel for each that reads and writes every tensor once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassgpt.data.batches import IGNORED_TARGET
from glassgpt.model import float8

if TYPE_CHECKING:
    from types import ModuleType

NORM_EPSILON = {"layer": 1e-5, "rms": 1.2e-7}  # GPT-2's; float32's own


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
    if rms:
        return total, F.rms_norm(total, weight.shape, weight.to(total.dtype), eps)  # mixed, it is not fused
    return total, F.layer_norm(total, weight.shape, weight, bias, eps)


def linear(layer: nn.Linear, x: Tensor, low: bool) -> Tensor:
    """`low`: where gradients are wanted, in 8-bit floats."""
    if not low or not torch.is_grad_enabled():
        return layer(x)  # type: ignore[no-any-return]
    (y,) = float8.linear(x, layer.weight)
    return y if layer.bias is None else y + layer.bias.to(y.dtype)


def linear_chunked(layer: nn.Linear, x: Tensor, parts: int, low: bool) -> tuple[Tensor, ...]:
    """The same, its channels in so many equal parts."""
    if low and layer.bias is None and torch.is_grad_enabled():
        return float8.linear(x, layer.weight, parts)
    return linear(layer, x, low).view(*x.shape[:-1], parts, -1).unbind(-2)


def rotary_qk_norm(
    qkv: Tensor, rotation: tuple[Tensor, Tensor], kernel: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v (B, T, H, D) of qkv (B, T, 3, H, D): q and k turned by their positions, then normed."""
    if kernel and qkv.is_contiguous() and _is_power_of_two(qkv.shape[-1]):
        return _kernels().RotaryQKNorm.apply(qkv, *rotation, NORM_EPSILON["rms"])  # type: ignore[no-any-return]
    turned = _rotate(qkv[:, :, :2], rotation)
    q, k = F.rms_norm(turned, turned.shape[-1:], eps=NORM_EPSILON["rms"]).unbind(2)
    return q, k, qkv[:, :, 2]


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0  # Triton counts in no others


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = (table.to(x.dtype)[:, None, None] for table in rotation)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


def activate(x: Tensor, name: str, kernel: bool) -> Tensor:
    """`gelu` (exact), `gelu_new` (GPT-2's, with tanh) or `relu2`."""
    if kernel and name != "gelu_new":
        return _kernels().Activate.apply(x, name == "relu2")  # type: ignore[no-any-return]
    if name == "relu2":
        return F.relu(x).square()
    return F.gelu(x, approximate="tanh" if name == "gelu_new" else "none")


def mlp(first: nn.Linear, second: nn.Linear, x: Tensor, activation: str, kernel: bool, low: bool) -> Tensor:
    """A layer, activated, and another; `low` as in `linear`."""
    plain = first.bias is None and second.bias is None and activation != "gelu_new"
    if low and plain and torch.is_grad_enabled():
        return float8.mlp(x, first.weight, second.weight, activation == "relu2")
    return linear(second, activate(linear(first, x, low), activation, kernel), low)


def cross_entropy_grad_inplace(logits: Tensor, targets: Tensor, kernel: bool) -> Tensor:
    """Overwrites logits (rows, V) by the gradient of their loss. Returns the losses (rows)."""
    if kernel:
        return _kernels().cross_entropy_grad_inplace(logits, targets, IGNORED_TARGET)  # type: ignore[no-any-return]
    log_probabilities = logits.float().log_softmax(-1)
    real = targets != IGNORED_TARGET
    rows = torch.arange(len(targets), device=targets.device)
    chosen = targets.clamp(min=0)
    losses = -log_probabilities[rows, chosen] * real
    gradient = log_probabilities.exp_()
    gradient[rows, chosen] -= 1
    logits.copy_(gradient * real[:, None])
    return losses
