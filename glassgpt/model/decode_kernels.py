"""Triton kernels of one decoding step: a token's way through the model, and the sampling of the next one.

A step reads every weight once and computes next to nothing, so its time is that of reading them, plus that
of launching kernels. A layer is five launches: norm and queries, keys, values; attention over the cache;
projection and residual; norm, first matrix and activation; second matrix and residual. fused_decoder.py
launches them.

`position` is the token's index in the text, on the device. The head, which comes after all that read it,
advances it. Arithmetic is in float32; with several rows the factors of a matmul have the weights' dtype.
"""

# mypy: ignore-errors
# Functions under @triton.jit are Triton's language, which mypy cannot check.

from __future__ import annotations

import triton
import triton.language as tl

from glassgpt.model.kernels import _activation

_INT_MIN = tl.constexpr(-2147483648)


# --- embedding ---


@triton.jit
def embed(
    tokens, wte, wpe, position, residual, stats, C, eps,
    TILES: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_TILES: tl.constexpr,
):  # fmt: skip
    """The residual stream of the token of each row. Without `wpe`: its embedding divided by its RMS."""
    b = tl.program_id(0)
    c = tl.arange(0, BLOCK_C)
    token = tl.load(tokens + b)
    v = tl.load(wte + token * C + c, c < C, 0.0).to(tl.float32)
    if wpe is not None:
        v += tl.load(wpe + tl.load(position) * C + c, c < C, 0.0).to(tl.float32)
    else:
        v *= 1 / tl.sqrt(tl.sum(v * v) / C + eps)
    tl.store(residual + b * C + c, v, c < C)
    if stats is not None:  # as if each tile had its share
        mean = tl.sum(v) / C
        centred = tl.where(c < C, v - mean, 0.0)
        i = tl.arange(0, BLOCK_TILES)
        tl.store(stats + i * 2 * BLOCK_B + b, i * 0.0 + mean, i < TILES)
        tl.store(stats + (i * 2 + 1) * BLOCK_B + b, i * 0.0 + tl.sum(centred * centred) / TILES, i < TILES)


# --- linear layers ---


@triton.jit
def _mean_and_scale(
    stats, C, eps,
    RMS: tl.constexpr, TILES: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_TILES: tl.constexpr,
):  # fmt: skip
    """Mean (0 if RMS) and reciprocal deviation of each row, from those of its tiles of channels."""
    i = tl.arange(0, BLOCK_TILES)[:, None]
    at = stats + i * 2 * BLOCK_B + tl.arange(0, BLOCK_B)[None, :]
    means = tl.load(at, i < TILES, 0.0)
    squares = tl.load(at + BLOCK_B, i < TILES, 0.0)
    mean = tl.sum(means, 0) / TILES
    distance = tl.where(i < TILES, means - mean[None, :], 0.0)
    variance = tl.sum(squares, 0) / C + tl.sum(distance * distance, 0) / TILES
    if RMS:
        return mean * 0.0, 1 / tl.sqrt(variance + mean * mean + eps)
    return mean, 1 / tl.sqrt(variance + eps)


@triton.jit
def _gelu_new(x):
    return x / (1 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))


@triton.jit
def linear(
    x, weight, bias, gain, shift, out, stats, tile_max, position, N, limit, eps,
    K: tl.constexpr, ROWS: tl.constexpr, NORM: tl.constexpr, ACTIVATION: tl.constexpr, ADD: tl.constexpr,
    TILES: tl.constexpr, LOGIT_TILE: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_TILES: tl.constexpr,
):  # fmt: skip
    """out (ROWS, N) = activation(norm(x) (ROWS, K) @ weight (N, K)^T + bias); ADD: added to `out`.

    A program computes BLOCK_N channels of all rows. One row: by products and sums, and it norms the row
    itself. Several rows: by tl.dot, and each norm takes mean and deviation from `stats`, where the programs
    that wrote its input have left those of their BLOCK_N channels.
    With `tile_max`, it is the head: `limit` is the size of the vocabulary, and the largest of every
    LOGIT_TILE logits is stored too, infinity if one is no number.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    b = tl.arange(0, BLOCK_B)
    k = tl.arange(0, BLOCK_K)
    row_of_weight = weight + n.to(tl.int64)[:, None] * K
    if ROWS == 1:
        products = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
        for first in tl.static_range(0, K, BLOCK_K):
            c = first + k
            w = tl.load(row_of_weight + c[None, :], (n < N)[:, None] & (c < K)[None, :], 0.0)
            v = tl.load(x + c, c < K, 0.0).to(tl.float32)
            if NORM != "none":
                if NORM == "layer":
                    v = tl.where(c < K, v - tl.sum(v) / K, 0.0)
                v *= 1 / tl.sqrt(tl.sum(v * v) / K + eps)
                v *= tl.load(gain + c, c < K, 0.0).to(tl.float32)
                if shift is not None:
                    v += tl.load(shift + c, c < K, 0.0).to(tl.float32)
            products += w.to(tl.float32) * v[None, :]
        y = tl.sum(products, 1)[:, None]
    else:
        if NORM != "none":
            mean, scale = _mean_and_scale(stats, K, eps, NORM == "rms", TILES, BLOCK_B, BLOCK_TILES)
        y = tl.zeros((BLOCK_N, BLOCK_B), tl.float32)
        for first in range(0, K, BLOCK_K):
            c = first + k
            w = tl.load(row_of_weight + c[None, :], (n < N)[:, None] & (c < K)[None, :], 0.0)
            v = tl.load(x + b[None, :] * K + c[:, None], (b < ROWS)[None, :] & (c < K)[:, None], 0.0)
            if NORM != "none":
                v = (v.to(tl.float32) - mean[None, :]) * scale[None, :]
                v *= tl.load(gain + c, c < K, 0.0).to(tl.float32)[:, None]
                if shift is not None:
                    v += tl.load(shift + c, c < K, 0.0).to(tl.float32)[:, None]
            y = tl.dot(w, v.to(w.dtype), y, input_precision="ieee")
    if bias is not None:
        y += tl.load(bias + n, n < N, 0.0).to(tl.float32)[:, None]
    if ACTIVATION == "gelu_new":
        y = _gelu_new(y)
    elif ACTIVATION != "none":
        y = _activation(y, ACTIVATION == "relu2")
    at = b[None, :] * N + n[:, None]
    mask = (n < N)[:, None] & (b < ROWS)[None, :]
    if ADD:
        y += tl.load(out + at, mask, 0.0)
    tl.store(out + at, y.to(out.dtype.element_ty), mask)
    if ADD and ROWS > 1:
        mean_of_tile = tl.sum(y, 0) / BLOCK_N
        centred = y - mean_of_tile[None, :]
        tile = tl.program_id(0) * 2 * BLOCK_B
        tl.store(stats + tile + b, mean_of_tile)
        tl.store(stats + tile + BLOCK_B + b, tl.sum(centred * centred, 0))
    if tile_max is not None:
        is_token = (n < limit)[:, None]
        largest = tl.where(is_token, y, -float("inf"))
        largest = tl.where(is_token & (y != y), float("inf"), largest)
        largest = tl.max(tl.reshape(largest, (BLOCK_N // LOGIT_TILE, LOGIT_TILE, BLOCK_B)), 1)
        tiles = (N + LOGIT_TILE - 1) // LOGIT_TILE
        t = tl.program_id(0) * (BLOCK_N // LOGIT_TILE) + tl.arange(0, BLOCK_N // LOGIT_TILE)
        in_range = (t < tiles)[:, None] & (b < ROWS)[None, :]
        tl.store(tile_max + b[None, :] * tiles + t[:, None], largest, in_range)
        if tl.program_id(0) == 0:
            tl.store(position, tl.load(position) + 1)


# --- attention ---


@triton.jit
def _rotated_and_normed(x, cos, sin, d, eps, D: tl.constexpr):
    """RoPE and QK-norm of the head at `x`; cos and sin are those of its position."""
    in_first_half = d < D // 2
    i = tl.where(in_first_half, d, d - D // 2)
    v = tl.load(x + d, d < D, 0.0).to(tl.float32)
    partner = tl.load(x + tl.where(in_first_half, d + D // 2, d - D // 2), d < D, 0.0).to(tl.float32)
    c = tl.load(cos + i, d < D, 0.0)
    s = tl.load(sin + i, d < D, 0.0)
    v = v * c + tl.where(in_first_half, -partner, partner) * s
    return v * (1 / tl.sqrt(tl.sum(v * v) / D + eps))


@triton.jit
def attend(
    qkv, cos, sin, keys, values, position, out, parts, arrived, window, capacity, chunk, scale, eps,
    H: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Attention (B, H * D) of one token per row to the last `window` ones; its key and value are cached.

    Keys and values (B, H, capacity, D) are a ring: a token's slot is its position modulo `window`. A program
    reads `chunk` slots for one head of one row; the last of the SPLITS programs to arrive sums up.
    """
    row = tl.program_id(0)
    split = tl.program_id(1)
    h = row % H
    d = tl.arange(0, BLOCK_D)
    of_head = qkv + (row // H) * (3 * H * D) + h * D
    p = tl.load(position)
    slot = p % window
    end = tl.minimum(tl.minimum(p + 1, window), (split + 1) * chunk)
    if cos is not None:
        angles = p.to(tl.int64) * (D // 2)
        q = _rotated_and_normed(of_head, cos + angles, sin + angles, d, eps, D)
        k = _rotated_and_normed(of_head + H * D, cos + angles, sin + angles, d, eps, D)
    else:
        q = tl.load(of_head + d, d < D, 0.0).to(tl.float32)
        k = tl.load(of_head + H * D + d, d < D, 0.0).to(tl.float32)
    q *= scale
    k = k.to(keys.dtype.element_ty)
    v = tl.load(of_head + 2 * H * D + d, d < D, 0.0).to(values.dtype.element_ty)
    cached = row.to(tl.int64) * capacity * D
    if split == 0:
        tl.store(keys + cached + slot * D + d, k, d < D)
        tl.store(values + cached + slot * D + d, v, d < D)
    # The token itself is counted by the first program, from registers.
    is_first = (split == 0).to(tl.float32)
    largest = tl.where(split == 0, tl.sum(q * k.to(tl.float32)), -float("inf"))
    total = is_first
    y = v.to(tl.float32) * is_first
    for start in range(split * chunk, end, BLOCK_S):
        s = start + tl.arange(0, BLOCK_S)
        known = (s < end) & (s != slot)
        at = cached + s[:, None] * D + d[None, :]
        mask = known[:, None] & (d < D)[None, :]
        block_keys = tl.load(keys + at, mask, 0.0).to(tl.float32)
        block_values = tl.load(values + at, mask, 0.0).to(tl.float32)
        scores = tl.where(known, tl.sum(block_keys * q[None, :], 1), -float("inf"))
        new_largest = tl.maximum(largest, tl.max(scores))
        reference = tl.where(new_largest == -float("inf"), 0.0, new_largest)  # nothing known yet
        weights = tl.exp(scores - reference)
        shrink = tl.exp(largest - reference)
        y = y * shrink + tl.sum(block_values * weights[:, None], 0)
        total = total * shrink + tl.sum(weights)
        largest = new_largest
    at_out = out + (row // H) * (H * D) + h * D + d
    if SPLITS == 1:
        tl.store(at_out, (y / total).to(out.dtype.element_ty), d < D)
    else:
        part = parts + (row * SPLITS + split) * (BLOCK_D + 2)
        tl.store(part + d, y)
        tl.store(part + BLOCK_D, largest)
        tl.store(part + BLOCK_D + 1, total)
        tl.debug_barrier()  # all threads have stored before one says so
        if tl.atomic_add(arrived + row, 1) == SPLITS - 1:
            tl.store(arrived + row, 0)  # for the next launch
            tl.debug_barrier()
            i = tl.arange(0, SPLITS)
            part_of = parts + (row * SPLITS + i) * (BLOCK_D + 2)
            # ".cg": from the L2 cache, where the other programs' stores are.
            maxima = tl.load(part_of + BLOCK_D, cache_modifier=".cg")
            totals = tl.load(part_of + BLOCK_D + 1, cache_modifier=".cg")
            factors = tl.exp(maxima - tl.max(maxima))
            all_y = tl.load(part_of[:, None] + d[None, :], cache_modifier=".cg")
            result = tl.sum(all_y * factors[:, None], 0) / tl.sum(totals * factors)
            tl.store(at_out, result.to(out.dtype.element_ty), d < D)


# --- sampling ---


@triton.jit
def _sortable(x):
    """Integers in the order of the float32 numbers x."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _select_largest(order, count):
    """Whether each of `order` is among the `count` largest; of equal ones the first are."""
    threshold = tl.where(tl.sum((order >= 0).to(tl.int32)) >= count, 0, _INT_MIN)
    for i in range(31):
        higher = threshold + (1 << (30 - i))
        threshold = tl.where(tl.sum((order >= higher).to(tl.int32)) >= count, higher, threshold)
    above = order > threshold
    equal = (order == threshold).to(tl.int32)
    left = count - tl.sum(above.to(tl.int32))
    return above | ((equal == 1) & (tl.cumsum(equal, 0) <= left))


@triton.jit
def _nucleus(order, weights, mass):
    """Whether each belongs to the largest `weights`, as few as together reach `mass`."""
    threshold = tl.where(tl.sum(tl.where(order >= 0, weights, 0.0)) >= mass, 0, _INT_MIN)
    for i in range(31):
        higher = threshold + (1 << (30 - i))
        reaches = tl.sum(tl.where(order >= higher, weights, 0.0)) >= mass
        threshold = tl.where(reaches, higher, threshold)
    above = order > threshold
    equal = tl.where(order == threshold, weights, 0.0)
    before = tl.sum(tl.where(above, weights, 0.0)) + tl.cumsum(equal, 0) - equal
    return above | ((order == threshold) & (before < mass))


@triton.jit
def sample(
    logits, tile_max, noise, position, chosen_tiles, out, next_tokens, temperature, top_p,
    rows, V, limit, count, tiles, ring,
    TOP_P: tl.constexpr, TILE: tl.constexpr, BLOCK_TILES: tl.constexpr, BLOCK_CHOSEN: tl.constexpr,
):  # fmt: skip
    """TokenSampler.choose_tokens for a `count` of most likely tokens below `limit`.

    These are in the `count` tiles with the largest maxima. Writes to `out` (ring, rows) and `next_tokens`;
    -1 to `out` where a logit is no number.
    """
    b = tl.program_id(0)
    step = tl.load(position) % ring
    t = tl.arange(0, BLOCK_TILES)
    maxima = tl.load(tile_max + b * tiles + t, t < tiles, -float("inf"))
    largest = tl.max(maxima)
    selected = _select_largest(tl.where(t < tiles, _sortable(maxima), _INT_MIN), tl.minimum(count, tiles))
    selected = selected & (t < tiles)
    place = tl.cumsum(selected.to(tl.int32), 0) - 1
    mine = chosen_tiles + b * BLOCK_CHOSEN
    tl.store(mine + place, t, selected)
    tl.debug_barrier()  # stored by all threads, and now read by others
    j = tl.arange(0, BLOCK_CHOSEN * TILE)
    is_chosen = j // TILE < tl.minimum(count, tiles)
    token = tl.load(mine + j // TILE, is_chosen, 0) * TILE + j % TILE
    is_token = is_chosen & (token < limit)
    x = tl.load(logits + b * V + token, is_token, -float("inf"))
    order = tl.where(is_token, _sortable(x), _INT_MIN)
    kept = _select_largest(order, count) & is_token
    rank = tl.cumsum(kept.to(tl.int32), 0) - 1  # by id: tiles are in order
    exponential = tl.load(noise + (step * rows + b) * count + rank, kept, 1.0)
    weights = tl.where(kept, tl.exp((x - largest) / temperature), 0.0)
    if TOP_P:
        kept = kept & _nucleus(tl.where(kept, order, _INT_MIN), weights, top_p * tl.sum(weights))
    race = tl.where(kept, weights / exponential, -1.0)
    winner = tl.argmax(race, 0)
    drawn = tl.sum(tl.where(j == winner, token, 0))
    is_number = (largest == largest) & (tl.abs(largest) < float("inf"))
    tl.store(out + step * rows + b, tl.where(is_number, drawn, -1).to(tl.int64))
    tl.store(next_tokens + b, drawn.to(tl.int64))
