"""Cross-entropy in chunks: the logits of all tokens are never in memory together.

GPT-2 predicts 50,304 scores a token. An update of 65,536 tokens has 6.6 GB of logits in bfloat16, which plain
cross-entropy writes, reads in float32, and needs again for a gradient of the same size. Here a few thousand
tokens at a time go through the head. The gradient of a chunk is known with its loss (softmax minus one-hot),
so it overwrites the logits in place, is multiplied back at once, and is dropped.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from glassgpt.data.batches import IGNORED_TARGET
from glassgpt.model import float8, loss_chunks, ops


def token_losses(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The loss of each target (N), from hidden (N, C) and the head's weight (V, C)."""
    rows = loss_chunks.eval_rows_per_chunk(len(targets), len(weight), hidden.device.type)
    chunks = (slice(start, start + rows) for start in range(0, len(targets), rows))
    return torch.cat(
        [_unchunked_cross_entropy(hidden[chunk], weight, targets[chunk], "none") for chunk in chunks]
    )


def cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, kernel: bool = False, fp8: bool = False
) -> Tensor:
    """The mean loss over the targets. `fp8`: with float8 matmuls."""
    if loss_chunks.fits_unchunked(len(targets), len(weight)):
        return _unchunked_cross_entropy(hidden, weight, targets, "mean")
    return chunked_cross_entropy(hidden, weight, targets, kernel, fp8)


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, kernel: bool = False, fp8: bool = False
) -> Tensor:
    """The same, in chunks however few the tokens are."""
    rows = loss_chunks.rows_per_chunk(len(targets), len(weight), hidden.device.type, kernel)
    return _ChunkedCrossEntropy.apply(hidden, weight, targets, rows, kernel, fp8)  # type: ignore[no-any-return,no-untyped-call]


def _unchunked_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, reduction: str) -> Tensor:
    logits = F.linear(hidden, weight).float()
    return F.cross_entropy(logits, targets, ignore_index=IGNORED_TARGET, reduction=reduction)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """The forward pass computes the gradients too; `backward` only scales them."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, rows: int, kernel: bool, fp8: bool
    ) -> Tensor:
        fp8 = fp8 and loss_chunks.is_float8_aligned(len(weight))
        head = _Float8LMHeadLoss(hidden, weight) if fp8 else _LMHeadLoss(hidden, weight, kernel)
        total = torch.zeros((), device=hidden.device)
        for start in range(0, len(targets), rows):
            chunk = slice(start, start + rows)
            total += head.losses_with_grads(chunk, targets[chunk]).sum()
        # Divided by the count in `backward`, after the loss scale: float16 would underflow here.
        inverse_count = 1 / (targets != IGNORED_TARGET).sum()
        ctx.save_for_backward(
            head.hidden_grad.to(hidden.dtype), head.weight_grad.to(weight.dtype), inverse_count
        )
        return total * inverse_count

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad, weight_grad, inverse_count = ctx.saved_tensors
        factor = grads[0] * inverse_count
        return hidden_grad * factor, weight_grad * factor, None, None, None, None


class _LMHeadLoss:
    """The head's three matmuls in autocast's dtype. The weight's gradient accumulates in float32."""

    def __init__(self, hidden: Tensor, weight: Tensor, kernel: bool) -> None:
        device_type = hidden.device.type
        autocast = torch.is_autocast_enabled(device_type)
        dtype = torch.get_autocast_dtype(device_type) if autocast else hidden.dtype
        self._hidden, self._weight = hidden.detach().to(dtype), weight.detach().to(dtype)
        self._kernel = kernel
        self.hidden_grad = torch.empty_like(self._hidden)
        self.weight_grad = torch.zeros_like(weight, dtype=torch.float32)

    def losses_with_grads(self, chunk: slice, targets: Tensor) -> Tensor:
        """The losses of a chunk of tokens; adds their gradients to `hidden_grad` and `weight_grad`."""
        hidden, weight_grad = self._hidden[chunk], self.weight_grad
        logits = hidden @ self._weight.t()
        losses = ops.cross_entropy_grad_inplace(logits, targets, self._kernel)
        self.hidden_grad[chunk] = logits @ self._weight
        if hidden.is_cuda and hidden.dtype != torch.float32:
            # Accumulates in float32 inside the matmul: chunks are not rounded, and no second pass adds them.
            torch.addmm(weight_grad, logits.t(), hidden, out_dtype=torch.float32, out=weight_grad)
        else:
            weight_grad += logits.t() @ hidden
        return losses


class _Float8LMHeadLoss:
    """`_LMHeadLoss` with float8 matmuls. Gradients of logits lie in [-1, 1]: one constant scale is enough."""

    _GRAD_FACTOR = 2.0**14

    def __init__(self, hidden: Tensor, weight: Tensor) -> None:
        self._hidden = float8.quantize_activations(hidden.detach())
        self._weight = float8.quantize_weight(weight.detach())
        self._grad_scale = torch.full((), 1 / self._GRAD_FACTOR, device=hidden.device)
        self.hidden_grad = torch.empty(hidden.shape, dtype=torch.bfloat16, device=hidden.device)
        self.weight_grad = torch.zeros_like(weight, dtype=torch.float32)

    def losses_with_grads(self, chunk: slice, targets: Tensor) -> Tensor:
        x, w = self._hidden, self._weight
        logits = float8.float8_matmul(x.row_major[chunk], w.row_major, x.scale, w.scale)
        losses, grad, grad_t = float8.loss_gradient(logits, targets, self._GRAD_FACTOR)
        self.hidden_grad[chunk] = float8.float8_matmul(grad, w.column_major, self._grad_scale, w.scale)
        self.weight_grad += float8.float8_matmul(
            grad_t, x.column_major[:, chunk], self._grad_scale, x.scale, torch.float32
        )
        return losses
