"""Triton kernels of decoding: a token's way through the model, and the sampling of the next one.

A step reads every weight once and computes next to nothing. So its time is that of reading them, and of the
steps that have to wait for each other: five in a layer. As kernels of their own, each of them costs a launch
and an empty card before it reads anything. Here `decode_step` is one launch of as many programs as run at the
same time. Between two stages they wait for each other, and before they wait they load what the next stage
reads first of its weights, or of the cache. fused_decoder.py launches it.

    norm and queries, keys, values | attention over the cache | projection and residual |
    norm, first matrix and activation | second matrix and residual | ... | norm, head

`position` is the token's index in the text, on the device; a step advances it. Arithmetic is in float32; with
several rows the factors of a matmul have the weights' dtype. What other programs wrote in this launch is
read past the L1 cache (".cg"), which may hold what was there before.
"""

# mypy: ignore-errors
# Functions under @triton.jit are Triton's language, which mypy cannot check.

from __future__ import annotations

import triton
import triton.language as tl

from glassgpt.model.kernels import _activation

_INT_MIN = tl.constexpr(-2147483648)

# What `layers` holds for each layer: addresses, 0 where there is none.
LAYER_FIELDS = (
    "ln_1.weight", "ln_1.bias",
    "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
    "ln_2.weight", "ln_2.bias",
    "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias",
)  # fmt: skip
_FIELDS = tl.constexpr(14)  # these, keys and values


@triton.jit
def _arrive(arrivals):
    """What this program wrote can be read by every other one that waits for it."""
    tl.debug_barrier()  # all threads have written before one says so
    tl.atomic_add(arrivals, 1, sem="release")


@triton.jit
def _wait(arrivals, stage):
    """Until every program of the launch has arrived for the `stage`th time."""
    if tl.num_programs(0) > 1:
        while _acquire(arrivals) < stage * tl.num_programs(0):
            pass
    tl.debug_barrier()


@triton.jit
def _acquire(counter):
    return tl.inline_asm_elementwise(
        "ld.acquire.gpu.global.b32 $0, [$1];", "=r,l", [counter], tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _address(layers, layer, field: tl.constexpr, dtype: tl.constexpr):
    address = tl.load(layers + layer * _FIELDS + field).to(tl.pointer_type(dtype))
    return tl.multiple_of(address, 16)


# --- embedding ---


@triton.jit
def _embed(b, tokens, wte, wpe, position, residual, eps, C: tl.constexpr, BLOCK_C: tl.constexpr):
    """The residual stream of row `b`. Without `wpe`: its embedding divided by its RMS."""
    c = tl.arange(0, BLOCK_C)
    token = tl.load(tokens + b)
    v = tl.load(wte + token * C + c, c < C, 0.0).to(tl.float32)
    if wpe is not None:
        v += tl.load(wpe + position * C + c, c < C, 0.0).to(tl.float32)
    else:
        v *= 1 / tl.sqrt(tl.sum(v * v) / C + eps)
    tl.store(residual + b * C + c, v, c < C)


# --- linear layers ---


@triton.jit
def _gelu_new(x):
    return x / (1 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))


@triton.jit
def _share(N: tl.constexpr, UNIT: tl.constexpr):
    """The channels of this program, from the first to behind the last: equally many, in multiples of UNIT."""
    size = tl.cdiv(tl.cdiv(N, UNIT), tl.num_programs(0)) * UNIT
    return tl.minimum(tl.program_id(0) * size, N), tl.minimum(tl.program_id(0) * size + size, N)


@triton.jit
def _inputs(first_k, SLICES: tl.constexpr, BLOCK_K: tl.constexpr):
    """Indices (SLICES, BLOCK_K) of consecutive inputs."""
    return first_k + tl.arange(0, SLICES)[:, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]


@triton.jit
def _weights(
    weight, first, first_k, last, K: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, SLICES: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A block of a matrix: (BLOCK_N, BLOCK_K); for several rows (SLICES, BLOCK_N, BLOCK_K). 0 outside."""
    n = first + tl.arange(0, BLOCK_N)
    if ROWS == 1:
        k = first_k + tl.arange(0, BLOCK_K)
        at = n.to(tl.int64)[:, None] * K + k[None, :]
        return tl.load(weight + at, (n < last)[:, None] & (k < K)[None, :], 0.0)
    else:
        k = _inputs(first_k, SLICES, BLOCK_K)[:, None, :]
        at = n.to(tl.int64)[None, :, None] * K + k
        return tl.load(weight + at, (n < last)[None, :, None] & (k < K), 0.0)


@triton.jit
def _first_weights(
    weight, N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_N: tl.constexpr, SLICES: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The first block that this program reads of a matrix."""
    first, last = _share(N, UNIT)
    return _weights(weight, first, 0, last, K, ROWS, BLOCK_N, SLICES, BLOCK_K)


@triton.jit
def _first_vector(
    address, N: tl.constexpr, HAS: tl.constexpr, UNIT: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """A bias's first BLOCK_N channels of this program."""
    if HAS:
        first, last = _share(N, UNIT)
        n = first + tl.arange(0, BLOCK_N)
        return tl.load(address + n, n < last, 0.0).to(tl.float32)
    else:
        return tl.zeros((BLOCK_N,), tl.float32)


@triton.jit
def _norm_vector(
    address, K: tl.constexpr, HAS: tl.constexpr, ROWS: tl.constexpr,
    SLICES: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A norm's gain or shift, in the shape of the inputs."""
    if ROWS == 1:
        k = tl.arange(0, BLOCK_K)
    else:
        k = _inputs(0, SLICES, BLOCK_K)
    if HAS:
        return tl.load(address + k, k < K, 0.0).to(tl.float32)
    else:
        return k.to(tl.float32) * 0.0


@triton.jit
def _normed_row(v, gain, shift, k, K: tl.constexpr, NORM: tl.constexpr, eps):
    if NORM == "layer":
        v = tl.where(k < K, v - tl.sum(v) / K, 0.0)
    return v * (1 / tl.sqrt(tl.sum(v * v) / K + eps)) * gain + shift


@triton.jit
def _normed_rows(v, gain, shift, k, K: tl.constexpr, NORM: tl.constexpr, eps):
    """v (SLICES, BLOCK_K, rows)"""
    if NORM == "layer":
        v = tl.where(k[:, :, None] < K, v - (tl.sum(tl.sum(v, 1), 0) / K)[None, None, :], 0.0)
    scale = 1 / tl.sqrt(tl.sum(tl.sum(v * v, 1), 0) / K + eps)
    return v * scale[None, None, :] * gain[:, :, None] + shift[:, :, None]


@triton.jit
def _linear(
    w, bias, gain, shift, x, weight, all_bias, out, tile_max, limit, eps,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, NORM: tl.constexpr, ACTIVATION: tl.constexpr,
    BIAS: tl.constexpr, ADD: tl.constexpr, HEAD: tl.constexpr, LOGIT_TILE: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_N: tl.constexpr, SLICES: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """out (ROWS, N) = activation(norm(x) (ROWS, K) @ weight (N, K)^T + bias); ADD: added to `out`.

    A program computes its channels for all rows, BLOCK_N at a time. `w` and `bias` are the first of them;
    each block is loaded while the one before is in use. One row: by products and sums over all of K. Several
    rows: by tl.dot, with slices of K for different warps, which are summed up. A norm needs all of K.
    HEAD: `limit` is the size of the vocabulary, and the largest of every LOGIT_TILE logits is stored too,
    infinity if one is no number.
    """
    b = tl.arange(0, BLOCK_B)
    begin, last = _share(N, UNIT)
    if ROWS == 1:
        k = tl.arange(0, BLOCK_K)
        v = tl.load(x + k, k < K, 0.0, cache_modifier=".cg").to(tl.float32)
        if NORM != "none":
            v = _normed_row(v, gain, shift, k, K, NORM, eps)
    else:
        k = _inputs(0, SLICES, BLOCK_K)
        v = _rows(x, k, b, K, ROWS)
        if NORM != "none":
            v = _normed_rows(v.to(tl.float32), gain, shift, k, K, NORM, eps)
        v = v.to(w.dtype)
    for first in range(begin, last, BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        at = b[None, :] * N + n[:, None]
        mask = (n < last)[:, None] & (b < ROWS)[None, :]
        if ADD:
            before = tl.load(out + at, mask, 0.0, cache_modifier=".cg")
        if ROWS == 1:
            block = w
            w = _weights(weight, first + BLOCK_N, 0, last, K, ROWS, BLOCK_N, SLICES, BLOCK_K)
            y = tl.sum(block.to(tl.float32) * v[None, :], 1)[:, None]
        elif SLICES * BLOCK_K >= K:
            block = w
            w = _weights(weight, first + BLOCK_N, 0, last, K, ROWS, BLOCK_N, SLICES, BLOCK_K)
            y = tl.sum(tl.dot(block, v, input_precision="ieee"), 0)
        else:
            products = tl.zeros((SLICES, BLOCK_N, BLOCK_B), tl.float32)
            for first_k in range(0, K, SLICES * BLOCK_K):
                block, v_block = w, v
                is_last = first_k + SLICES * BLOCK_K >= K
                next_first = tl.where(is_last, first + BLOCK_N, first)
                next_k = tl.where(is_last, 0, first_k + SLICES * BLOCK_K)
                w = _weights(weight, next_first, next_k, last, K, ROWS, BLOCK_N, SLICES, BLOCK_K)
                v = _rows(x, next_k + k, b, K, ROWS).to(w.dtype)
                products = tl.dot(block, v_block, products, input_precision="ieee")
            y = tl.sum(products, 0)
        if BIAS:
            y += bias[:, None]
            bias = tl.load(all_bias + n + BLOCK_N, n + BLOCK_N < last, 0.0).to(tl.float32)
        if ACTIVATION == "gelu_new":
            y = _gelu_new(y)
        elif ACTIVATION != "none":
            y = _activation(y, ACTIVATION == "relu2")
        if ADD:
            y += before
        tl.store(out + at, y.to(out.dtype.element_ty), mask)
        if HEAD:
            is_token = (n < limit)[:, None]
            largest = tl.where(is_token, y, -float("inf"))
            largest = tl.where(is_token & (y != y), float("inf"), largest)
            largest = tl.max(tl.reshape(largest, (BLOCK_N // LOGIT_TILE, LOGIT_TILE, BLOCK_B)), 1)
            t = first // LOGIT_TILE + tl.arange(0, BLOCK_N // LOGIT_TILE)
            in_range = (t * LOGIT_TILE < last)[:, None] & (b < ROWS)[None, :]
            tl.store(tile_max + b[None, :] * tl.cdiv(N, LOGIT_TILE) + t[:, None], largest, in_range)


@triton.jit
def _rows(x, k, b, K: tl.constexpr, ROWS: tl.constexpr):
    """x (SLICES, BLOCK_K, rows) at the inputs `k`, as other programs wrote it."""
    mask = (k < K)[:, :, None] & (b < ROWS)[None, None, :]
    return tl.load(x + b[None, None, :] * K + k[:, :, None], mask, 0.0, cache_modifier=".cg")


# --- attention ---


@triton.jit
def _rotated_and_normed(x, cos, sin, d, eps, D: tl.constexpr):
    """RoPE and QK-norm of the head at `x`; cos and sin are those of its position."""
    in_first_half = d < D // 2
    i = tl.where(in_first_half, d, d - D // 2)
    v = tl.load(x + d, d < D, 0.0, cache_modifier=".cg").to(tl.float32)
    at_partner = tl.where(in_first_half, d + D // 2, d - D // 2)
    partner = tl.load(x + at_partner, d < D, 0.0, cache_modifier=".cg").to(tl.float32)
    c = tl.load(cos + i, d < D, 0.0)
    s = tl.load(sin + i, d < D, 0.0)
    v = v * c + tl.where(in_first_half, -partner, partner) * s
    return v * (1 / tl.sqrt(tl.sum(v * v) / D + eps))


@triton.jit
def _cached(
    cache, row, start, end, slot, capacity, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr
):
    """Keys or values of the slots from `start` on, before `end`; 0 for `slot`, which is the new token's."""
    s, d = start + tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_D)
    mask = ((s < end) & (s != slot))[:, None] & (d < D)[None, :]
    return tl.load(cache + row.to(tl.int64) * capacity * D + s[:, None] * D + d[None, :], mask, 0.0)


@triton.jit
def _slots(task, position, window, chunk, SPLITS: tl.constexpr):
    """The slots of the cache that this task reads: (first, behind the last)."""
    split = task % SPLITS
    return split * chunk, tl.minimum(tl.minimum(position + 1, window), (split + 1) * chunk)


@triton.jit
def _attend(
    k_block, v_block, qkv, cos, sin, keys, values, p, out, parts, arrived,
    window, capacity, chunk, scale, eps,
    ROWS: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Attention (ROWS, H * D) of one token per row to the last `window`; its key and value are cached.

    Keys and values (ROWS, H, capacity, D) are a ring: a token's slot is its position modulo `window`. A task
    is `chunk` slots for one head of one row; the last of the SPLITS tasks to be done sums up. `k_block` and
    `v_block` are the first slots of this program's first task.
    """
    d = tl.arange(0, BLOCK_D)
    slot = p % window
    for task in range(tl.program_id(0), ROWS * H * SPLITS, tl.num_programs(0)):
        row = task // SPLITS
        split = task % SPLITS
        of_head = qkv + (row // H) * (3 * H * D) + row % H * D
        begin, end = _slots(task, p, window, chunk, SPLITS)
        if cos is not None:
            angles = p.to(tl.int64) * (D // 2)
            q = _rotated_and_normed(of_head, cos + angles, sin + angles, d, eps, D)
            k = _rotated_and_normed(of_head + H * D, cos + angles, sin + angles, d, eps, D)
        else:
            q = tl.load(of_head + d, d < D, 0.0, cache_modifier=".cg").to(tl.float32)
            k = tl.load(of_head + H * D + d, d < D, 0.0, cache_modifier=".cg").to(tl.float32)
        q *= scale
        k = k.to(keys.dtype.element_ty)
        v = tl.load(of_head + 2 * H * D + d, d < D, 0.0, cache_modifier=".cg").to(values.dtype.element_ty)
        if split == 0:
            cached = row.to(tl.int64) * capacity * D + slot * D
            tl.store(keys + cached + d, k, d < D)
            tl.store(values + cached + d, v, d < D)
        # The token itself is counted by the first task, from registers.
        is_first = (split == 0).to(tl.float32)
        largest = tl.where(split == 0, tl.sum(q * k.to(tl.float32)), -float("inf"))
        total = is_first
        y = v.to(tl.float32) * is_first
        for start in range(begin, end, BLOCK_S):
            s = start + tl.arange(0, BLOCK_S)
            keys_now, values_now = k_block.to(tl.float32), v_block.to(tl.float32)
            k_block = _cached(keys, row, start + BLOCK_S, end, slot, capacity, D, BLOCK_D, BLOCK_S)
            v_block = _cached(values, row, start + BLOCK_S, end, slot, capacity, D, BLOCK_D, BLOCK_S)
            scores = tl.where((s < end) & (s != slot), tl.sum(keys_now * q[None, :], 1), -float("inf"))
            new_largest = tl.maximum(largest, tl.max(scores))
            reference = tl.where(new_largest == -float("inf"), 0.0, new_largest)  # nothing known yet
            weights = tl.exp(scores - reference)
            shrink = tl.exp(largest - reference)
            y = y * shrink + tl.sum(values_now * weights[:, None], 0)
            total = total * shrink + tl.sum(weights)
            largest = new_largest
        at_out = out + (row // H) * (H * D) + row % H * D + d
        if SPLITS == 1:
            tl.store(at_out, (y / total).to(out.dtype.element_ty), d < D)
        else:
            part = parts + task * (BLOCK_D + 2)
            tl.store(part + d, y)
            tl.store(part + BLOCK_D, largest)
            tl.store(part + BLOCK_D + 1, total)
            tl.debug_barrier()  # all threads have stored before one says so
            if tl.atomic_add(arrived + row, 1) == SPLITS - 1:
                tl.store(arrived + row, 0)  # for the next layer
                tl.debug_barrier()
                i = tl.arange(0, SPLITS)
                part_of = parts + (row * SPLITS + i) * (BLOCK_D + 2)
                maxima = tl.load(part_of + BLOCK_D, cache_modifier=".cg")
                totals = tl.load(part_of + BLOCK_D + 1, cache_modifier=".cg")
                factors = tl.exp(maxima - tl.max(maxima))
                all_y = tl.load(part_of[:, None] + d[None, :], cache_modifier=".cg")
                result = tl.sum(all_y * factors[:, None], 0) / tl.sum(totals * factors)
                tl.store(at_out, result.to(out.dtype.element_ty), d < D)
        next_task = task + tl.num_programs(0)
        next_row = next_task // SPLITS
        begin, end = _slots(next_task, p, window, chunk, SPLITS)
        end = tl.where(next_task < ROWS * H * SPLITS, end, 0)
        k_block = _cached(keys, next_row, begin, end, slot, capacity, D, BLOCK_D, BLOCK_S)
        v_block = _cached(values, next_row, begin, end, slot, capacity, D, BLOCK_D, BLOCK_S)


# --- sampling ---


@triton.jit
def _sortable(x):
    """Integers in the order of the float32 numbers x."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _count_from(order, threshold, SHIFT: tl.constexpr):
    return (order >= threshold).to(tl.int64) << SHIFT


@triton.jit
def _select_largest(order, count):
    """Whether each of `order`, fewer than 2**20, is among the `count` largest; of equal ones the first."""
    threshold = _INT_MIN
    for i in range(16):  # two bits at a time: three counts in one sum
        unit = 1 << (30 - 2 * i)
        counts = _count_from(order, threshold + unit, 0) + _count_from(order, threshold + 2 * unit, 20)
        found = tl.sum(counts + _count_from(order, threshold + 3 * unit, 40))
        steps = ((found & 0xFFFFF) >= count).to(tl.int32) + ((found >> 20 & 0xFFFFF) >= count).to(tl.int32)
        threshold += unit * (steps + (found >> 40 >= count).to(tl.int32))
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
    b, step, logits, tile_max, noise, chosen_tiles, out, next_tokens, temperature, top_p,
    rows, V, limit, count, tiles,
    TOP_P: tl.constexpr, TILE: tl.constexpr, BLOCK_TILES: tl.constexpr, BLOCK_CHOSEN: tl.constexpr,
):  # fmt: skip
    """TokenSampler.choose_tokens of row `b`, for a `count` of most likely tokens below `limit`.

    These are in the `count` tiles with the largest maxima. Writes to row `step` of `out` (ring, rows) and to
    `next_tokens`; -1 to `out` where a logit is no number.
    """
    t = tl.arange(0, BLOCK_TILES)
    maxima = tl.load(tile_max + b * tiles + t, t < tiles, -float("inf"), cache_modifier=".cg")
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
    x = tl.load(logits + b * V + token, is_token, -float("inf"), cache_modifier=".cg")
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


# --- a step ---


@triton.jit
def decode_step(
    tokens, wte, wpe, layers, gain_f, shift_f, head, cache_like, cos, sin, position, arrivals,
    residual, qkv, attended, hidden, logits, tile_max, parts, arrived,
    noise, chosen_tiles, out, temperature, top_p,
    limit, window, capacity, chunk, scale, eps, rms_eps, count, ring,
    L: tl.constexpr, ROWS: tl.constexpr, C: tl.constexpr, V: tl.constexpr, H: tl.constexpr,
    NORM: tl.constexpr, ACTIVATION: tl.constexpr, BIAS: tl.constexpr, SHIFT: tl.constexpr,
    SAMPLE: tl.constexpr, TOP_P: tl.constexpr, LOGIT_TILE: tl.constexpr, SPLITS: tl.constexpr,
    QKV_N: tl.constexpr, PROJ_N: tl.constexpr, UP_N: tl.constexpr, DOWN_N: tl.constexpr, HEAD_N: tl.constexpr,
    SLICES: tl.constexpr, BLOCK_K: tl.constexpr, DOWN_K: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
    BLOCK_TILES: tl.constexpr, BLOCK_CHOSEN: tl.constexpr,
):  # fmt: skip
    """Logits (ROWS, V) of the tokens after `tokens` (ROWS,), whose keys and values are cached. SAMPLE: also
    the next tokens, in `tokens` and `out` (ring, ROWS)."""
    matrix: tl.constexpr = head.dtype.element_ty
    norm: tl.constexpr = gain_f.dtype.element_ty
    cached: tl.constexpr = cache_like.dtype.element_ty
    D: tl.constexpr = C // H
    pid = tl.program_id(0)
    p = tl.load(position)
    slot = p % window
    spare = arrivals + (p + 1) % 2
    arrivals += p % 2
    for text in range(pid, ROWS, tl.num_programs(0)):
        _embed(text, tokens, wte, wpe, p, residual, rms_eps, C, BLOCK_K * SLICES)
    row = pid // SPLITS
    first_slot, end_slot = _slots(pid, p, window, chunk, SPLITS)
    end_slot = tl.where(pid < ROWS * H * SPLITS, end_slot, 0)
    for layer in range(L):
        _arrive(arrivals)
        weight, bias = _address(layers, layer, 2, matrix), _address(layers, layer, 3, matrix)
        w = _first_weights(weight, 3 * C, C, ROWS, 1, QKV_N, SLICES, BLOCK_K)
        gain = _norm_vector(_address(layers, layer, 0, norm), C, True, ROWS, SLICES, BLOCK_K)
        shift = _norm_vector(_address(layers, layer, 1, norm), C, SHIFT, ROWS, SLICES, BLOCK_K)
        b = _first_vector(bias, 3 * C, BIAS, 1, QKV_N)
        _wait(arrivals, 5 * layer + 1)
        _linear(
            w, b, gain, shift, residual, weight, bias, qkv, tile_max, limit, eps,
            3 * C, C, ROWS, NORM, "none", BIAS, False, False, LOGIT_TILE, 1, QKV_N, SLICES, BLOCK_K, BLOCK_B,
        )  # fmt: skip
        _arrive(arrivals)
        keys, values = _address(layers, layer, 12, cached), _address(layers, layer, 13, cached)
        k_block = _cached(keys, row, first_slot, end_slot, slot, capacity, D, BLOCK_D, BLOCK_S)
        v_block = _cached(values, row, first_slot, end_slot, slot, capacity, D, BLOCK_D, BLOCK_S)
        _wait(arrivals, 5 * layer + 2)
        _attend(
            k_block, v_block, qkv, cos, sin, keys, values, p, attended, parts, arrived,
            window, capacity, chunk, scale, rms_eps, ROWS, H, D, BLOCK_D, BLOCK_S, SPLITS,
        )  # fmt: skip
        _arrive(arrivals)
        weight, bias = _address(layers, layer, 4, matrix), _address(layers, layer, 5, matrix)
        w = _first_weights(weight, C, C, ROWS, 1, PROJ_N, SLICES, BLOCK_K)
        b = _first_vector(bias, C, BIAS, 1, PROJ_N)
        _wait(arrivals, 5 * layer + 3)
        _linear(
            w, b, gain, shift, attended, weight, bias, residual, tile_max, limit, eps,
            C, C, ROWS, "none", "none", BIAS, True, False, LOGIT_TILE, 1, PROJ_N, SLICES, BLOCK_K, BLOCK_B,
        )  # fmt: skip
        _arrive(arrivals)
        weight, bias = _address(layers, layer, 8, matrix), _address(layers, layer, 9, matrix)
        w = _first_weights(weight, 4 * C, C, ROWS, 1, UP_N, SLICES, BLOCK_K)
        gain = _norm_vector(_address(layers, layer, 6, norm), C, True, ROWS, SLICES, BLOCK_K)
        shift = _norm_vector(_address(layers, layer, 7, norm), C, SHIFT, ROWS, SLICES, BLOCK_K)
        b = _first_vector(bias, 4 * C, BIAS, 1, UP_N)
        _wait(arrivals, 5 * layer + 4)
        _linear(
            w, b, gain, shift, residual, weight, bias, hidden, tile_max, limit, eps,
            4 * C, C, ROWS, NORM, ACTIVATION, BIAS, False, False,
            LOGIT_TILE, 1, UP_N, SLICES, BLOCK_K, BLOCK_B,
        )  # fmt: skip
        _arrive(arrivals)
        weight, bias = _address(layers, layer, 10, matrix), _address(layers, layer, 11, matrix)
        w = _first_weights(weight, C, 4 * C, ROWS, 1, DOWN_N, SLICES, DOWN_K)
        b = _first_vector(bias, C, BIAS, 1, DOWN_N)
        _wait(arrivals, 5 * layer + 5)
        _linear(
            w, b, gain, shift, hidden, weight, bias, residual, tile_max, limit, eps,
            C, 4 * C, ROWS, "none", "none", BIAS, True, False, LOGIT_TILE, 1, DOWN_N, SLICES, DOWN_K, BLOCK_B,
        )  # fmt: skip
    _arrive(arrivals)
    w = _first_weights(head, V, C, ROWS, LOGIT_TILE, HEAD_N, SLICES, BLOCK_K)
    gain = _norm_vector(gain_f, C, True, ROWS, SLICES, BLOCK_K)
    shift = _norm_vector(shift_f, C, SHIFT, ROWS, SLICES, BLOCK_K)
    b = _first_vector(head, V, False, LOGIT_TILE, HEAD_N)
    _wait(arrivals, 5 * L + 1)
    _linear(
        w, b, gain, shift, residual, head, head, logits, tile_max, limit, eps,
        V, C, ROWS, NORM, "none", False, False, True,
        LOGIT_TILE, LOGIT_TILE, HEAD_N, SLICES, BLOCK_K, BLOCK_B,
    )  # fmt: skip
    _arrive(arrivals)
    if pid == 0:
        tl.store(position, p + 1)  # all have read it, since they were all here
        tl.store(spare, 0)  # of the launch before; the two counters take turns
    if SAMPLE:
        for text in range(pid, ROWS, tl.num_programs(0)):
            _wait(arrivals, 5 * L + 2)
            sample(
                text, (p + 1) % ring, logits, tile_max, noise, chosen_tiles, out, tokens, temperature, top_p,
                ROWS, V, limit, count, tl.cdiv(V, LOGIT_TILE), TOP_P, LOGIT_TILE, BLOCK_TILES, BLOCK_CHOSEN,
            )  # fmt: skip
