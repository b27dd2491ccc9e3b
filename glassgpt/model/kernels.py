"""Fused Triton kernels for the operations between two matmuls, with their autograd functions.

These operations are memory-bound: what counts is how often a tensor is read and written. PyTorch would launch
several kernels for each. torch.compile finds the same fusions, but takes much longer to import and compile.
ops.py says when the kernels are used, and has the formulas they must equal.

A program of a kernel works on some whole rows (a token's channels, or its logits), or on a block of elements.
All arithmetic is in float32, whatever the dtype of the tensors.
"""

# mypy: ignore-errors
# Functions under @triton.jit are Triton's language, which mypy cannot check.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Elements or rows per program; like the num_warps below, tuned on an H200 (bench/LOG.md).
_FORWARD_BLOCK = 4096  # elements of an activation
_BACKWARD_BLOCK = 1024
_NORM_ROWS = 4  # rows of a norm
_QK_BLOCK = 4096  # elements of queries and keys
_LOGITS_BLOCK = 8192  # logits of a row at a time
_TRANSPOSE_TILE = 64  # rows and columns, where a transposed copy is stored too

_LOG2_E = tl.constexpr(1.4426950408889634)  # exp2 is what the hardware has: exp(x) = exp2(x * log2(e))


# --- norms ---


@triton.jit
def _normalize(v, mask, C, eps, RMS: tl.constexpr):
    """Rows v divided by their RMS (after subtracting their mean, unless RMS), and the reciprocal of that."""
    if RMS:
        centred = v
    else:
        centred = tl.where(mask, v - (tl.sum(v, 1) / C)[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 1) / C + eps)
    return centred * scale[:, None], scale


@triton.jit
def _add_norm(
    x, y, weight, bias, total, out, rows, C, eps,
    RMS: tl.constexpr, ADDS: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK)
    mask = (r < rows)[:, None] & (c < C)[None, :]
    at = r[:, None].to(tl.int64) * C + c[None, :]
    v = tl.load(x + at, mask, 0.0).to(tl.float32)
    if ADDS:
        v += tl.load(y + at, mask, 0.0).to(tl.float32)
        rounded = v.to(total.dtype.element_ty)
        tl.store(total + at, rounded, mask)
        v = rounded.to(tl.float32)  # as the backward pass will load it
    n, _ = _normalize(v, mask, C, eps, RMS)
    n *= tl.load(weight + c, c < C, 0.0)[None, :]
    if BIAS:
        n += tl.load(bias + c, c < C, 0.0)[None, :]
    tl.store(out + at, n, mask)


@triton.jit
def _add_norm_backward(
    x, weight, grad_out, grad_total, grad_x, weight_parts, bias_parts, rows, C, eps,
    RMS: tl.constexpr, ADDS: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    c = tl.arange(0, BLOCK)
    w = tl.load(weight + c, c < C, 0.0)[None, :]
    weight_sum = tl.zeros((BLOCK,), tl.float32)
    bias_sum = tl.zeros((BLOCK,), tl.float32)
    # Pipelined: two rows are loaded while one is computed.
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=3):
        r = row + tl.arange(0, 1)
        mask = (r < rows)[:, None] & (c < C)[None, :]
        at = r[:, None].to(tl.int64) * C + c[None, :]
        n, scale = _normalize(tl.load(x + at, mask, 0.0).to(tl.float32), mask, C, eps, RMS)
        grad = tl.load(grad_out + at, mask, 0.0).to(tl.float32)
        weight_sum += tl.sum(grad * n, 0)
        if BIAS:
            bias_sum += tl.sum(grad, 0)
        grad *= w
        grad_v = grad - n * (tl.sum(grad * n, 1) / C)[:, None]
        if not RMS:
            grad_v -= (tl.sum(grad, 1) / C)[:, None]
        grad_v *= scale[:, None]
        if ADDS:
            grad_v += tl.load(grad_total + at, mask, 0.0).to(tl.float32)
        tl.store(grad_x + at, grad_v, mask)
    part = tl.program_id(0) * C + c
    tl.store(weight_parts + part, weight_sum, c < C)
    if BIAS:
        tl.store(bias_parts + part, bias_sum, c < C)


class AddNorm(torch.autograd.Function):
    """x + y and its norm. Without y: x and its norm."""

    @staticmethod
    def forward(ctx, x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float, rms: bool):
        C = x.shape[-1]
        rows, block = x.numel() // C, triton.next_power_of_2(C)
        x = x.contiguous()
        total = x if y is None else torch.empty_like(x)
        out = torch.empty_like(x)
        sizes = {"ROWS": _NORM_ROWS, "BLOCK": block}
        flags = {"RMS": rms, "ADDS": y is not None, "BIAS": bias is not None}
        grid = (triton.cdiv(rows, _NORM_ROWS),)
        y = x if y is None else y.contiguous()
        _add_norm[grid](x, y, weight, bias, total, out, rows, C, eps, **flags, **sizes, num_warps=4)
        ctx.save_for_backward(total, weight)
        ctx.launch = (rows, C, eps, flags, block)
        ctx.set_materialize_grads(False)  # the sum after the last norm has no gradient
        return total, out

    @staticmethod
    def backward(ctx, grad_total: Tensor | None, grad_out: Tensor):
        x, weight = ctx.saved_tensors
        rows, C, eps, flags, block = ctx.launch
        grad_x = torch.empty_like(x)
        programs = min(8 * torch.cuda.get_device_properties(x.device).multi_processor_count, rows)
        weight_parts = torch.empty(programs, C, device=x.device)
        bias_parts = torch.empty(programs, C, device=x.device) if flags["BIAS"] else None
        grad_residual = grad_out if grad_total is None else grad_total.contiguous()
        _add_norm_backward[(programs,)](
            x, weight, grad_out.contiguous(), grad_residual, grad_x, weight_parts, bias_parts, rows, C, eps,
            **(flags | {"ADDS": grad_total is not None}), BLOCK=block, num_warps=max(1, block // 1024),
        )  # fmt: skip
        grad_bias = bias_parts.sum(0) if flags["BIAS"] else None
        return grad_x, grad_x if flags["ADDS"] else None, weight_parts.sum(0), grad_bias, None, None


# --- queries and keys ---


@triton.jit
def _head_rows(cos, sin, n, T, H, HALF: tl.constexpr, ROWS: tl.constexpr):
    """For ROWS of the n query and key vectors: offset of the first half in qkv, mask, cosines and sines."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token, kind, head = row // (2 * H), row // H % 2, row % H
    i = tl.arange(0, HALF)[None, :]
    at = (token.to(tl.int64) * 3 * H + kind * H + head)[:, None] * (2 * HALF) + i
    mask = (row < n)[:, None] & (i >= 0)
    angle = (token % T)[:, None] * HALF + i
    return at, mask, tl.load(cos + angle, mask, 0.0), tl.load(sin + angle, mask, 0.0)


@triton.jit
def _rotary_qk_norm(qkv, cos, sin, out, n, T, H, eps, HALF: tl.constexpr, ROWS: tl.constexpr):
    at, mask, c, s = _head_rows(cos, sin, n, T, H, HALF, ROWS)
    a = tl.load(qkv + at, mask, 0.0).to(tl.float32)
    b = tl.load(qkv + at + HALF, mask, 0.0).to(tl.float32)
    scale = 1 / tl.sqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * HALF) + eps)[:, None]
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    to = row[:, None].to(tl.int64) * (2 * HALF) + tl.arange(0, HALF)[None, :]
    tl.store(out + to, (a * c - b * s) * scale, mask)
    tl.store(out + to + HALF, (a * s + b * c) * scale, mask)


@triton.jit
def _rotary_qk_norm_backward(
    qkv, cos, sin, grad_q, grad_k, grad_v, grad_qkv, n, T, H, eps,
    qb, qt, qh, kb, kt, kh, vb, vt, vh, HALF: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    at, mask, c, s = _head_rows(cos, sin, n, T, H, HALF, ROWS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token, head, is_key = row // (2 * H), row % H, row // H % 2 == 1
    batch, time = (token // T).to(tl.int64), token % T
    i = tl.arange(0, HALF)[None, :]
    from_q = (batch * qb + time * qt + head * qh)[:, None] + i
    from_k = (batch * kb + time * kt + head * kh)[:, None] + i
    of_q, of_k = mask & ~is_key[:, None], mask & is_key[:, None]
    first = (tl.load(grad_q + from_q, of_q, 0.0) + tl.load(grad_k + from_k, of_k, 0.0)).to(tl.float32)
    second = (tl.load(grad_q + from_q + HALF, of_q, 0.0) + tl.load(grad_k + from_k + HALF, of_k, 0.0)).to(
        tl.float32
    )
    ga, gb = first * c + second * s, second * c - first * s  # rotated back
    a = tl.load(qkv + at, mask, 0.0).to(tl.float32)
    b = tl.load(qkv + at + HALF, mask, 0.0).to(tl.float32)
    scale = 1 / tl.sqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * HALF) + eps)[:, None]
    along = ((tl.sum(a * ga, 1) + tl.sum(b * gb, 1)) / (2 * HALF))[:, None] * scale * scale
    tl.store(grad_qkv + at, (ga - a * along) * scale, mask)
    tl.store(grad_qkv + at + HALF, (gb - b * along) * scale, mask)
    # The gradient of the values is only copied, by the programs of the keys.
    to_v = at + H * 2 * HALF
    from_v = (batch * vb + time * vt + head * vh)[:, None] + i
    tl.store(grad_qkv + to_v, tl.load(grad_v + from_v, of_k, 0.0), of_k)
    tl.store(grad_qkv + to_v + HALF, tl.load(grad_v + from_v + HALF, of_k, 0.0), of_k)


class RotaryQKNorm(torch.autograd.Function):
    """RoPE and QK-norm: q, k, v (B, T, H, D) of qkv (B, T, 3, H, D)."""

    @staticmethod
    def forward(ctx, qkv: Tensor, cos: Tensor, sin: Tensor, eps: float):
        B, T, _, H, D = qkv.shape
        out = qkv.new_empty(B, T, 2, H, D)
        n, rows = B * T * 2 * H, _QK_BLOCK // D
        _rotary_qk_norm[(triton.cdiv(n, rows),)](qkv, cos, sin, out, n, T, H, eps, D // 2, rows)
        ctx.save_for_backward(qkv, cos, sin)
        ctx.eps = eps
        return out[:, :, 0], out[:, :, 1], qkv[:, :, 2]

    @staticmethod
    def backward(ctx, *grads: Tensor):
        qkv, cos, sin = ctx.saved_tensors
        B, T, _, H, D = qkv.shape
        grads = [grad if grad.stride(-1) == 1 else grad.contiguous() for grad in grads]
        strides = [stride for grad in grads for stride in grad.stride()[:3]]
        grad_qkv = torch.empty_like(qkv)
        n, rows = B * T * 2 * H, _QK_BLOCK // D
        _rotary_qk_norm_backward[(triton.cdiv(n, rows),)](
            qkv, cos, sin, *grads, grad_qkv, n, T, H, ctx.eps, *strides, D // 2, rows
        )
        return grad_qkv, None, None, None


# --- activations ---


@triton.jit
def _normal_cdf_pdf(x):
    """The CDF and the PDF of a standard normal distribution at x.

    The CDF by Hastings' polynomial (Abramowitz and Stegun, 7.1.26), which is cheaper than erf.
    """
    gaussian = tl.exp2(x * x * -0.7213475204444817)
    t = 1 / (1 + 0.2316418882663604 * tl.abs(x))
    p = 0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    tail = 0.5 * gaussian * t * p
    return tl.where(x < 0, tail, 1 - tail), gaussian * 0.3989422804014327


@triton.jit
def _relu(x):
    """Not tl.maximum(x, 0), which would turn NaN into 0 and hide it."""
    return tl.where(x < 0, 0.0, x)


@triton.jit
def _activation(x, RELU2: tl.constexpr):
    if RELU2:
        return _relu(x) * _relu(x)
    cdf, _ = _normal_cdf_pdf(x)
    return x * cdf


@triton.jit
def _activation_grad(x, RELU2: tl.constexpr):
    if RELU2:
        return 2 * _relu(x)
    cdf, pdf = _normal_cdf_pdf(x)
    return cdf + x * pdf


@triton.jit
def _activate(x, out, n, RELU2: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, _activation(tl.load(x + at, at < n, 0.0).to(tl.float32), RELU2), at < n)


@triton.jit
def _activate_backward(x, grad_out, grad_x, n, RELU2: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    grad = tl.load(grad_out + at, at < n, 0.0).to(tl.float32)
    tl.store(grad_x + at, grad * _activation_grad(tl.load(x + at, at < n, 0.0).to(tl.float32), RELU2), at < n)


class Activate(torch.autograd.Function):
    """GELU, or relu squared."""

    @staticmethod
    def forward(ctx, x: Tensor, relu2: bool):
        x = x.contiguous()  # like the gradient, so that equal offsets are equal elements
        ctx.save_for_backward(x)
        ctx.relu2 = relu2
        out = torch.empty_like(x)
        _activate[(triton.cdiv(x.numel(), _FORWARD_BLOCK),)](
            x, out, x.numel(), relu2, _FORWARD_BLOCK, num_warps=4
        )
        return out

    @staticmethod
    def backward(ctx, grad_out: Tensor):
        (x,) = ctx.saved_tensors
        grad_x, n = torch.empty_like(x), x.numel()
        _activate_backward[(triton.cdiv(n, _BACKWARD_BLOCK),)](
            x, grad_out.contiguous(), grad_x, n, ctx.relu2, _BACKWARD_BLOCK, num_warps=4
        )
        return grad_x, None


# --- cross-entropy ---


@triton.jit
def _row_loss(row_logits, target, V, IGNORED: tl.constexpr, BLOCK: tl.constexpr):
    """The loss of a row of logits, and its log2-sum-exp, in one pass (online softmax)."""
    largest, total = -float("inf"), 0.0
    for first in range(0, V, BLOCK):
        c = first + tl.arange(0, BLOCK)
        x = tl.load(row_logits + c, c < V, -float("inf")).to(tl.float32) * _LOG2_E
        new_largest = tl.maximum(largest, tl.max(x))
        total = total * tl.exp2(largest - new_largest) + tl.sum(tl.exp2(x - new_largest))
        largest = new_largest
    log_total = largest + tl.log2(total)
    is_target = target != IGNORED
    target_logit = tl.load(row_logits + target, is_target, 0.0).to(tl.float32) * _LOG2_E
    return tl.where(is_target, (log_total - target_logit) / _LOG2_E, 0.0), log_total


@triton.jit
def _cross_entropy_grad_inplace(logits, targets, losses, V, IGNORED: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    row_logits = logits + row * V
    target = tl.load(targets + row)
    loss, log_total = _row_loss(row_logits, target, V, IGNORED, BLOCK)
    tl.store(losses + row, loss)
    factor = tl.where(target != IGNORED, 1.0, 0.0)
    tl.debug_barrier()  # all threads have read the target's logit before one overwrites it
    for first in range(0, V, BLOCK):
        c = first + tl.arange(0, BLOCK)
        x = tl.load(row_logits + c, c < V, -float("inf")).to(tl.float32) * _LOG2_E
        gradient = tl.exp2(x - log_total) - (c == target).to(tl.float32)
        tl.store(row_logits + c, gradient * factor, c < V)


def cross_entropy_grad_inplace(logits: Tensor, targets: Tensor, ignored: int) -> Tensor:
    """Overwrites logits (rows, V) with the gradient of their loss. Returns the losses (rows)."""
    assert logits.is_contiguous()
    losses = torch.empty(len(logits), device=logits.device)
    _cross_entropy_grad_inplace[(len(logits),)](
        logits, targets, losses, logits.shape[1], ignored, _LOGITS_BLOCK, num_warps=16
    )
    return losses


# --- float8 ---


@triton.jit
def _store_with_transpose(v, out, out_t, r, c, R, C, S):
    """Stores rows r and columns c of a matrix (R, C) in the dtype of `out`, and transposed in `out_t`.

    `out` has a row stride of S. The tile is transposed in 16 bits: Triton 3.6 transposes 8-bit tiles wrongly.
    """
    v = v.to(tl.bfloat16).to(tl.float32)
    mask = (r < R)[:, None] & (c < C)[None, :]
    tl.store(out + r[:, None].to(tl.int64) * S + c[None, :], v.to(out.dtype.element_ty), mask)
    transposed = tl.trans(v).to(out.dtype.element_ty)
    tl.store(
        out_t + c[:, None].to(tl.int64) * R + r[None, :], transposed, (c < C)[:, None] & (r < R)[None, :]
    )


@triton.jit
def _to_float8(
    x, grad, scale, out, out_t, R, C, S,
    RELU2: tl.constexpr, LIMIT: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = (r < R)[:, None] & (c < C)[None, :]
    at = r[:, None].to(tl.int64) * C + c[None, :]
    v = tl.load(x + at, mask, 0.0).to(tl.float32)
    if grad is not None:
        v = tl.load(grad + at, mask, 0.0).to(tl.float32) * _activation_grad(v, RELU2)
    elif RELU2 is not None:
        v = _activation(v, RELU2)
    clamped = tl.clamp(v * (1 / tl.load(scale)), -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL)
    _store_with_transpose(clamped, out, out_t, r, c, R, C, S)


def to_float8(
    x: Tensor,
    scale: Tensor,
    out: Tensor,
    out_t: Tensor,
    relu2: bool | None = None,
    grad: Tensor | None = None,
) -> None:
    """x (R, C) / scale in float8, clamped to its range, into `out`; transposed into `out_t`.

    With `relu2` set, of x's activation instead (relu squared, or GELU if False). With `grad` too, the
    gradient of x, given that of its activation. NaN stays NaN: clamped, a diverged run would look sound.
    """
    R, C = x.shape
    grid = (triton.cdiv(C, _TRANSPOSE_TILE), triton.cdiv(R, _TRANSPOSE_TILE))
    grad = None if grad is None else grad.contiguous()
    S, limit = out.stride(0), torch.finfo(out.dtype).max
    _to_float8[grid](
        x.contiguous(),
        grad,
        scale,
        out,
        out_t,
        R,
        C,
        S,
        relu2,
        limit,
        _TRANSPOSE_TILE,
        _TRANSPOSE_TILE,
        num_warps=8,
    )


@triton.jit
def _log_sum_exp(logits, targets, losses, totals, V, IGNORED: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    loss, log_total = _row_loss(logits + row * V, tl.load(targets + row), V, IGNORED, BLOCK)
    tl.store(losses + row, loss)
    tl.store(totals + row, log_total)


@triton.jit
def _float8_gradient(
    logits, targets, totals, out, out_t, R, V,
    FACTOR: tl.constexpr, IGNORED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = (r < R)[:, None] & (c < V)[None, :]
    at = r[:, None].to(tl.int64) * V + c[None, :]
    target = tl.load(targets + r, r < R, IGNORED)[:, None]
    x = tl.load(logits + at, mask, -float("inf")).to(tl.float32) * _LOG2_E
    gradient = tl.exp2(x - tl.load(totals + r, r < R, 0.0)[:, None]) - (c[None, :] == target).to(tl.float32)
    _store_with_transpose(tl.where(target != IGNORED, gradient * FACTOR, 0.0), out, out_t, r, c, R, V, V)


def float8_gradient(
    logits: Tensor, targets: Tensor, factor: float, dtype: torch.dtype, ignored: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses (R); `factor` times the gradient of the logits (R, V) in a float8 dtype; the same transposed."""
    R, V = logits.shape
    losses, totals = (torch.empty(R, device=logits.device) for _ in range(2))
    out = torch.empty(R, V, dtype=dtype, device=logits.device)
    out_t = torch.empty(V, R, dtype=dtype, device=logits.device)
    _log_sum_exp[(R,)](logits, targets, losses, totals, V, ignored, _LOGITS_BLOCK, num_warps=16)
    grid = (triton.cdiv(V, _TRANSPOSE_TILE), triton.cdiv(R, _TRANSPOSE_TILE))
    _float8_gradient[grid](
        logits,
        targets,
        totals,
        out,
        out_t,
        R,
        V,
        factor,
        ignored,
        _TRANSPOSE_TILE,
        _TRANSPOSE_TILE,
        num_warps=4,
    )
    return losses, out, out_t
