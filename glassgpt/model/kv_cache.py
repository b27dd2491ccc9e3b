"""KV cache: the keys and values of the tokens read so far, so that a new token costs one token's work.

cache = model.new_cache(tokens=256)
logits = model.next_logits(prompt, cache)       # (B, T): fills the cache
logits = model.next_logits(token, cache)        # (B, 1): attends to everything before

When `window` tokens are in the cache, the next one takes the place of the oldest. Its position goes on
counting, which only rotary positions can. Attention does not depend on the order of its keys.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_CAPACITY_MULTIPLE = 64  # attention kernels are slow with masks of other lengths


class LayerKVCache:
    """Keys and values (B, H, T, D) of one layer: a ring of `window` slots."""

    keys: Tensor  # allocated with the first tokens, which give batch size and dtype
    values: Tensor

    def __init__(self, window: int) -> None:
        self.window, self.length = window, 0

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Adds the new tokens to the cache. Returns their attention to themselves and to all before."""
        keys, values = self.extend(k, v)
        T, S = q.shape[2], keys.shape[2]
        if T == S:
            return F.scaled_dot_product_attention(q, keys, values, is_causal=True)
        # `is_causal` would align the first query with the first key.
        mask = None if T == 1 else torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Adds the keys and values of new tokens. Returns those of all tokens so far."""
        if self.length == 0:
            B, H, _, D = k.shape
            # v's dtype: under CUDA autocast QK-norm gives float32 keys, which attention rounds anyway.
            capacity = -(-self.window // _CAPACITY_MULTIPLE) * _CAPACITY_MULTIPLE
            self.keys = v.new_zeros(B, H, capacity, D)
            self.values = v.new_zeros(B, H, capacity, D)
        start, count = self.length % self.window, k.shape[2]
        if count > 1 and self.length + count > self.window:
            raise IndexError("beyond the context, tokens are added one by one")
        self.keys.narrow(2, start, count).copy_(k)
        self.values.narrow(2, start, count).copy_(v)
        self.length += count
        used = min(self.length, self.window)
        return self.keys.narrow(2, 0, used), self.values.narrow(2, 0, used)

    def repeat(self, rows: int) -> None:
        """Copies the one sequence read so far to a batch of `rows`."""
        if rows > 1:
            self.keys = self.keys.repeat(rows, 1, 1, 1)
            self.values = self.values.repeat(rows, 1, 1, 1)


class KVCache:
    """One LayerKVCache per layer; all hold the last `window` tokens. `rope`: cosines, sines of positions."""

    def __init__(self, n_layer: int, window: int, rope: tuple[Tensor, Tensor] | None = None) -> None:
        self.window, self.rope = window, rope
        self.layers = [LayerKVCache(window) for _ in range(n_layer)]

    @property
    def length(self) -> int:
        """The number of tokens read so far."""
        return self.layers[0].length

    def advance(self) -> None:
        """Another token's keys and values were written into the layers' tensors."""
        for layer in self.layers:
            layer.length += 1

    def next_positions(self, count: int) -> slice | Tensor:
        """The positions of the next `count` tokens."""
        return slice(self.length, self.length + count)

    def repeat(self, rows: int) -> None:
        for layer in self.layers:
            layer.repeat(rows)


class StaticLayerKVCache(LayerKVCache):
    """One layer of a StaticKVCache, which owns `slot` and `mask`."""

    def __init__(self, start: LayerKVCache, slot: Tensor, mask: Tensor) -> None:
        super().__init__(start.window)
        self.keys, self.values = start.keys, start.values
        self._slot, self._mask = slot, mask

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.keys.index_copy_(2, self._slot, k.to(self.keys.dtype))
        self.values.index_copy_(2, self._slot, v)
        return F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=self._mask)


class StaticKVCache(KVCache):
    """Continues another cache one token at a time, with the same kernels on the same memory at each step. So
    one step can be captured as a CUDA graph and replayed for all.

    The position is counted on the device. Attention reads the whole capacity through a mask, which opens by
    one token at each step.
    """

    def __init__(self, start: KVCache) -> None:
        keys = start.layers[0].keys
        self.window, self.rope = start.window, start.rope
        self._position = torch.tensor([start.length - 1], device=keys.device)
        self._slot = self._position.clone()
        self._mask = keys.new_full((1, 1, 1, keys.shape[2]), float("-inf"))
        self._mask[..., : start.length] = 0.0
        self.layers = [StaticLayerKVCache(layer, self._slot, self._mask) for layer in start.layers]

    def next_positions(self, count: int) -> Tensor:
        """Advances the position by one token, on the device."""
        assert count == 1
        self._position.add_(1)
        torch.remainder(self._position, self.window, out=self._slot)
        self._mask.index_fill_(-1, self._slot, 0.0)
        return self._position
