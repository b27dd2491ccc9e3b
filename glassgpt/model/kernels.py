"""The model's pieces between two matmuls, as one GPU kernel each, in Triton.

They move memory and hardly compute: what counts is how often a tensor is read and written. PyTorch would
launch five to ten kernels for each of these. torch.compile finds the same fusions, after half a minute of
importing and compiling; these are ready in a second. fused.py says when they are used, and has the formulas
they must equal.

A program of a kernel works on some whole rows (a token's channels, or its logits), or on a stretch of
elements. All arithmetic is in float32, whatever the tensors hold.
"""

# mypy: ignore-errors
# Triton's functions are no Python: the names below are types of its own language.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# How much a program takes on, and how many warps it has, as measured on an H200 (bench/LOG.md).
_FORWARD_BLOCK = 4096
_BACKWARD_BLOCK = 1024
_NORM_ROWS = 4  # of a norm
_QK_BLOCK = 4096  # of queries and keys
_LOGITS_BLOCK = 8192  # of a row of logits at a time
_TRANSPOSE_TILE = 64  # rows and columns, where a transposed copy is made along

_LOG2_E = tl.constexpr(1.4426950408889634)  # powers of two are what the hardware has


# --- norms ---


@triton.jit
def _normalize(v, ok, C, eps, RMS: tl.constexpr):
    """Rows v over their root mean square (about their mean, unless RMS), and one over that."""
    if RMS:
        centred = v
    else:
        centred = tl.where(ok, v - (tl.sum(v, 1) / C)[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 1) / C + eps)
    return centred * scale[:, None], scale


@triton.jit
def _add_norm(
    x, y, weight, bias, total, out, rows, C, eps,
    RMS: tl.constexpr, ADDS: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK)
    ok = (r < rows)[:, None] & (c < C)[None, :]
    at = r[:, None].to(tl.int64) * C + c[None, :]
    v = tl.load(x + at, ok, 0.0).to(tl.float32)
    if ADDS:
        v += tl.load(y + at, ok, 0.0).to(tl.float32)
        kept = v.to(total.dtype.element_ty)
        tl.store(total + at, kept, ok)
        v = kept.to(tl.float32)  # the backward pass will see it so
    n, _ = _normalize(v, ok, C, eps, RMS)
    n *= tl.load(weight + c, c < C, 0.0)[None, :]
    if BIAS:
        n += tl.load(bias + c, c < C, 0.0)[None, :]
    tl.store(out + at, n, ok)


@triton.jit
def _add_norm_backward(
    x, weight, grad_out, grad_total, grad_x, weight_parts, bias_parts, rows, C, eps,
    RMS: tl.constexpr, ADDS: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    c = tl.arange(0, BLOCK)
    w = tl.load(weight + c, c < C, 0.0)[None, :]
    weight_sum = tl.zeros((BLOCK,), tl.float32)
    bias_sum = tl.zeros((BLOCK,), tl.float32)
    # Three rows are under way at a time: two are fetched while one is computed.
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=3):
        r = row + tl.arange(0, 1)
        ok = (r < rows)[:, None] & (c < C)[None, :]
        at = r[:, None].to(tl.int64) * C + c[None, :]
        n, scale = _normalize(tl.load(x + at, ok, 0.0).to(tl.float32), ok, C, eps, RMS)
        grad = tl.load(grad_out + at, ok, 0.0).to(tl.float32)
        weight_sum += tl.sum(grad * n, 0)
        if BIAS:
            bias_sum += tl.sum(grad, 0)
        grad *= w
        moved = grad - n * (tl.sum(grad * n, 1) / C)[:, None]
        if not RMS:
            moved -= (tl.sum(grad, 1) / C)[:, None]
        moved *= scale[:, None]
        if ADDS:
            moved += tl.load(grad_total + at, ok, 0.0).to(tl.float32)
        tl.store(grad_x + at, moved, ok)
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
        ctx.how = (rows, C, eps, flags, block)
        ctx.set_materialize_grads(False)  # nobody reads the sum after the last norm
        return total, out

    @staticmethod
    def backward(ctx, grad_total: Tensor | None, grad_out: Tensor):
        x, weight = ctx.saved_tensors
        rows, C, eps, flags, block = ctx.how
        grad_x = torch.empty_like(x)
        programs = min(8 * _processors(x.device), rows)
        weight_parts = torch.empty(programs, C, device=x.device)
        bias_parts = torch.empty(programs, C, device=x.device) if flags["BIAS"] else None
        from_later = grad_out if grad_total is None else grad_total.contiguous()
        _add_norm_backward[(programs,)](
            x, weight, grad_out.contiguous(), from_later, grad_x, weight_parts, bias_parts, rows, C, eps,
            **(flags | {"ADDS": grad_total is not None}), BLOCK=block, num_warps=max(1, block // 1024),
        )  # fmt: skip
        grad_bias = bias_parts.sum(0) if flags["BIAS"] else None
        return grad_x, grad_x if flags["ADDS"] else None, weight_parts.sum(0), grad_bias, None, None


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


# --- queries and keys ---


@triton.jit
def _head_rows(cos, sin, n, T, H, HALF: tl.constexpr, ROWS: tl.constexpr):
    """For ROWS of the n query and key vectors: where both halves lie in qkv, their angles, what exists."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token, kind, head = row // (2 * H), row // H % 2, row % H
    i = tl.arange(0, HALF)[None, :]
    at = (token.to(tl.int64) * 3 * H + kind * H + head)[:, None] * (2 * HALF) + i
    ok = (row < n)[:, None] & (i >= 0)
    angle = (token % T)[:, None] * HALF + i
    return at, ok, tl.load(cos + angle, ok, 0.0), tl.load(sin + angle, ok, 0.0)


@triton.jit
def _rotary_qk_norm(qkv, cos, sin, out, n, T, H, eps, HALF: tl.constexpr, ROWS: tl.constexpr):
    at, ok, c, s = _head_rows(cos, sin, n, T, H, HALF, ROWS)
    a = tl.load(qkv + at, ok, 0.0).to(tl.float32)
    b = tl.load(qkv + at + HALF, ok, 0.0).to(tl.float32)
    scale = 1 / tl.sqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * HALF) + eps)[:, None]
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    to = row[:, None].to(tl.int64) * (2 * HALF) + tl.arange(0, HALF)[None, :]
    tl.store(out + to, (a * c - b * s) * scale, ok)
    tl.store(out + to + HALF, (a * s + b * c) * scale, ok)


@triton.jit
def _rotary_qk_norm_backward(
    qkv, cos, sin, grad_q, grad_k, grad_v, grad_qkv, n, T, H, eps,
    qb, qt, qh, kb, kt, kh, vb, vt, vh, HALF: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    at, ok, c, s = _head_rows(cos, sin, n, T, H, HALF, ROWS)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token, head, is_key = row // (2 * H), row % H, row // H % 2 == 1
    batch, time = (token // T).to(tl.int64), token % T
    i = tl.arange(0, HALF)[None, :]
    from_q = (batch * qb + time * qt + head * qh)[:, None] + i
    from_k = (batch * kb + time * kt + head * kh)[:, None] + i
    of_q, of_k = ok & ~is_key[:, None], ok & is_key[:, None]
    first = (tl.load(grad_q + from_q, of_q, 0.0) + tl.load(grad_k + from_k, of_k, 0.0)).to(tl.float32)
    second = (tl.load(grad_q + from_q + HALF, of_q, 0.0) + tl.load(grad_k + from_k + HALF, of_k, 0.0)).to(
        tl.float32
    )
    ga, gb = first * c + second * s, second * c - first * s  # turned back
    a = tl.load(qkv + at, ok, 0.0).to(tl.float32)
    b = tl.load(qkv + at + HALF, ok, 0.0).to(tl.float32)
    scale = 1 / tl.sqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * HALF) + eps)[:, None]
    along = ((tl.sum(a * ga, 1) + tl.sum(b * gb, 1)) / (2 * HALF))[:, None] * scale * scale
    tl.store(grad_qkv + at, (ga - a * along) * scale, ok)
    tl.store(grad_qkv + at + HALF, (gb - b * along) * scale, ok)
    # The values' gradient passes unchanged; the programs of the keys carry it along.
    to_v = at + H * 2 * HALF
    from_v = (batch * vb + time * vt + head * vh)[:, None] + i
    tl.store(grad_qkv + to_v, tl.load(grad_v + from_v, of_k, 0.0), of_k)
    tl.store(grad_qkv + to_v + HALF, tl.load(grad_v + from_v + HALF, of_k, 0.0), of_k)


class RotaryQKNorm(torch.autograd.Function):
    """Queries and keys turned by their positions and normed; qkv is (B, T, 3, H, D), q, k, v (B, T, H, D)."""

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
    """The share of a normal distribution below x, and its density there.

    The share by Hastings' polynomial (Abramowitz and Stegun, 7.1.26), right to 1e-7: half the cost of an erf.
    """
    density = tl.exp2(x * x * -0.7213475204444817)
    t = 1 / (1 + 0.2316418882663604 * tl.abs(x))
    p = 0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    tail = 0.5 * density * t * p
    return tl.where(x < 0, tail, 1 - tail), density * 0.3989422804014327


@triton.jit
def _relu(x):
    """x, or 0 if it is negative. The hardware's maximum would make 0 of what is not a number, and hide it."""
    return tl.where(x < 0, 0.0, x)


@triton.jit
def _activation(x, RELU2: tl.constexpr):
    if RELU2:
        return _relu(x) * _relu(x)
    below, _ = _normal_cdf_pdf(x)
    return x * below


@triton.jit
def _activation_grad(x, RELU2: tl.constexpr):
    if RELU2:
        return 2 * _relu(x)
    below, density = _normal_cdf_pdf(x)
    return below + x * density


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
        x = x.contiguous()  # as the gradient will be: one place in memory is one element of both
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
def _row_loss(here, target, V, IGNORED: tl.constexpr, BLOCK: tl.constexpr):
    """The loss of a row of logits, and the logarithm to base 2 of what its softmax divides by."""
    most, total = -float("inf"), 0.0
    for first in range(0, V, BLOCK):
        c = first + tl.arange(0, BLOCK)
        x = tl.load(here + c, c < V, -float("inf")).to(tl.float32) * _LOG2_E
        new_most = tl.maximum(most, tl.max(x))
        total = total * tl.exp2(most - new_most) + tl.sum(tl.exp2(x - new_most))
        most = new_most
    log_total = most + tl.log2(total)
    real = target != IGNORED
    chosen = tl.load(here + target, real, 0.0).to(tl.float32) * _LOG2_E
    return tl.where(real, (log_total - chosen) / _LOG2_E, 0.0), log_total


@triton.jit
def _cross_entropy_grad_inplace(logits, targets, losses, V, IGNORED: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    here = logits + row * V
    target = tl.load(targets + row)
    loss, log_total = _row_loss(here, target, V, IGNORED, BLOCK)
    tl.store(losses + row, loss)
    factor = tl.where(target != IGNORED, 1.0, 0.0)
    tl.debug_barrier()  # nobody overwrites the target's logit before all have read it
    for first in range(0, V, BLOCK):
        c = first + tl.arange(0, BLOCK)
        x = tl.load(here + c, c < V, -float("inf")).to(tl.float32) * _LOG2_E
        gradient = tl.exp2(x - log_total) - (c == target).to(tl.float32)
        tl.store(here + c, gradient * factor, c < V)


def cross_entropy_grad_inplace(logits: Tensor, targets: Tensor, ignored: int) -> Tensor:
    """Overwrites logits (rows, V) by their loss's gradient. Returns the losses (rows)."""
    assert logits.is_contiguous()
    losses = torch.empty(len(logits), device=logits.device)
    _cross_entropy_grad_inplace[(len(logits),)](
        logits, targets, losses, logits.shape[1], ignored, _LOGITS_BLOCK, num_warps=16
    )
    return losses


# --- 8-bit floats ---


@triton.jit
def _store_with_transpose(v, out, out_t, r, c, R, C, S):
    """Rows r and columns c of a matrix (R, C), rounded to what `out` holds; and the same transposed.

    From one row of `out` to the next it is S entries.

    It is turned while it has 16 bits: tiles of 8 bits Triton 3.6 exchanges wrongly between threads.
    """
    v = v.to(tl.bfloat16).to(tl.float32)
    ok = (r < R)[:, None] & (c < C)[None, :]
    tl.store(out + r[:, None].to(tl.int64) * S + c[None, :], v.to(out.dtype.element_ty), ok)
    turned = tl.trans(v).to(out.dtype.element_ty)
    tl.store(out_t + c[:, None].to(tl.int64) * R + r[None, :], turned, (c < C)[:, None] & (r < R)[None, :])


@triton.jit
def _to_float8(
    x, grad, unit, out, out_t, R, C, S,
    RELU2: tl.constexpr, LIMIT: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    ok = (r < R)[:, None] & (c < C)[None, :]
    at = r[:, None].to(tl.int64) * C + c[None, :]
    v = tl.load(x + at, ok, 0.0).to(tl.float32)
    if grad is not None:
        v = tl.load(grad + at, ok, 0.0).to(tl.float32) * _activation_grad(v, RELU2)
    elif RELU2 is not None:
        v = _activation(v, RELU2)
    within = tl.clamp(v * (1 / tl.load(unit)), -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL)
    _store_with_transpose(within, out, out_t, r, c, R, C, S)


def to_float8(
    x: Tensor, unit: Tensor, out: Tensor, out_t: Tensor, relu2: bool | None = None, grad: Tensor | None = None
) -> None:
    """x (R, C) in units of `unit` into 8 bits, what is too large at their limit; in `out_t` transposed.

    With `relu2`, of x's activation instead (that, or GELU); with `grad`, the gradient to its activation, of
    that to x. What is not a number stays none: at the limit, a run that went wrong would look sound.
    """
    R, C = x.shape
    grid = (triton.cdiv(C, _TRANSPOSE_TILE), triton.cdiv(R, _TRANSPOSE_TILE))
    grad = None if grad is None else grad.contiguous()
    S, limit = out.stride(0), torch.finfo(out.dtype).max
    _to_float8[grid](
        x.contiguous(),
        grad,
        unit,
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
    ok = (r < R)[:, None] & (c < V)[None, :]
    at = r[:, None].to(tl.int64) * V + c[None, :]
    target = tl.load(targets + r, r < R, IGNORED)[:, None]
    x = tl.load(logits + at, ok, -float("inf")).to(tl.float32) * _LOG2_E
    gradient = tl.exp2(x - tl.load(totals + r, r < R, 0.0)[:, None]) - (c[None, :] == target).to(tl.float32)
    _store_with_transpose(tl.where(target != IGNORED, gradient * FACTOR, 0.0), out, out_t, r, c, R, V, V)


def float8_gradient(
    logits: Tensor, targets: Tensor, factor: float, dtype: torch.dtype, ignored: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses (R); `factor` times their gradient to the logits (R, V) in an 8-bit dtype; that transposed."""
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
