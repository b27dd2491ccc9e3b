"""The loss over a large vocabulary, without ever holding the logits of all tokens.

GPT-2 predicts 50,304 scores a token: at 65,536 tokens an update, 6.6 GB in bfloat16, which plain
cross-entropy writes, reads in float32 and mirrors in a gradient of the same size. Here the tokens go through
the head a few thousand at a time. Each piece's gradient is known the moment its loss is (softmax minus
one-hot), so the piece is turned into it in place, multiplied back at once, and forgotten.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from glassgpt.data.batches import IGNORED_TARGET
from glassgpt.model import float8, fused, loss_chunks


def token_losses(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Of each of the targets (N), from `hidden` (N, C) by a head of `weight` (V, C)."""
    rows = loss_chunks.eval_rows_per_chunk(len(targets), len(weight), hidden.device.type)
    parts = (slice(start, start + rows) for start in range(0, len(targets), rows))
    return torch.cat(
        [_unchunked_cross_entropy(hidden[part], weight, targets[part], "none") for part in parts]
    )


def cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, kernel: bool = False, low: bool = False
) -> Tensor:
    """Their mean. `low`: by products in 8-bit floats."""
    if loss_chunks.fits_unchunked(len(targets), len(weight)):
        return _unchunked_cross_entropy(hidden, weight, targets, "mean")
    rows = loss_chunks.rows_per_chunk(len(targets), len(weight), hidden.device.type, kernel)
    return _ChunkedCrossEntropy.apply(hidden, weight, targets, rows, kernel, low)  # type: ignore[no-any-return,no-untyped-call]


def _unchunked_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, reduction: str) -> Tensor:
    logits = F.linear(hidden, weight).float()
    return F.cross_entropy(logits, targets, ignore_index=IGNORED_TARGET, reduction=reduction)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Does the backward pass along with the forward one; `backward` only hands out what is there."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, rows: int, kernel: bool, low: bool
    ) -> Tensor:
        low = low and loss_chunks.is_float8_aligned(len(weight))
        head = _Float8LMHeadLoss(hidden, weight) if low else _LMHeadLoss(hidden, weight, kernel)
        total = torch.zeros((), device=hidden.device)
        for start in range(0, len(targets), rows):
            piece = slice(start, start + rows)
            total += head.losses_with_grads(piece, targets[piece]).sum()
        # The share of the mean comes later, with a loss scaler's factor: float16 would lose what is so small.
        share = 1 / (targets != IGNORED_TARGET).sum()
        ctx.save_for_backward(head.hidden_grad.to(hidden.dtype), head.weight_grad.to(weight.dtype), share)
        return total * share

    @staticmethod
    def backward(ctx: Any, *scale: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad, weight_grad, share = ctx.saved_tensors
        factor = scale[0] * share
        return hidden_grad * factor, weight_grad * factor, None, None, None, None


class _LMHeadLoss:
    """The head's three products, in autocast's dtype. The weight's gradient adds up in float32."""

    def __init__(self, hidden: Tensor, weight: Tensor, kernel: bool) -> None:
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        self._hidden, self._weight, self._kernel = (
            hidden.detach().to(dtype),
            weight.detach().to(dtype),
            kernel,
        )
        self.hidden_grad = torch.empty_like(self._hidden)
        self.weight_grad = torch.zeros_like(weight, dtype=torch.float32)

    def losses_with_grads(self, piece: slice, targets: Tensor) -> Tensor:
        """Of a piece of the tokens; takes their gradients along."""
        logits = self._hidden[piece] @ self._weight.t()
        losses = fused.cross_entropy_grad_inplace(logits, targets, self._kernel)
        self.hidden_grad[piece] = logits @ self._weight
        self._add_to_weight(logits.t(), self._hidden[piece])
        return losses

    def _add_to_weight(self, gradient: Tensor, hidden: Tensor) -> None:
        if hidden.is_cuda and hidden.dtype != torch.float32:
            # Straight into float32: no rounding of the pieces, no second pass to add them.
            grad = self.weight_grad
            torch.addmm(grad, gradient, hidden, out_dtype=torch.float32, out=grad)
        else:
            self.weight_grad += gradient @ hidden


class _Float8LMHeadLoss:
    """The same in 8-bit floats. A gradient to logits is between -1 and 1: its factor is known beforehand."""

    _GRAD_FACTOR = 2.0**14

    def __init__(self, hidden: Tensor, weight: Tensor) -> None:
        self._hidden = float8.quantize_activations(hidden.detach())
        self._weight = float8.quantize_weight(weight.detach())
        self._unit = torch.full((), 1 / self._GRAD_FACTOR, device=hidden.device)
        self.hidden_grad = torch.empty(hidden.shape, dtype=torch.bfloat16, device=hidden.device)
        self.weight_grad = torch.zeros_like(weight, dtype=torch.float32)

    def losses_with_grads(self, piece: slice, targets: Tensor) -> Tensor:
        x, w = self._hidden, self._weight
        logits = float8.float8_matmul(x.row_major[piece], w.row_major, x.scale, w.scale)
        losses, rows, columns = float8.loss_gradient(logits, targets, self._GRAD_FACTOR)
        self.hidden_grad[piece] = float8.float8_matmul(rows, w.column_major, self._unit, w.scale)
        self.weight_grad += float8.float8_matmul(
            columns, x.column_major[:, piece], self._unit, x.scale, torch.float32
        )
        return losses
