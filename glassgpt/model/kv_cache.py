"""What attention remembers while text is written: the keys and values of the tokens read so far.

Each new token then costs one token's work, not that of the whole text before it again.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_CAPACITY_MULTIPLE = (
    64  # there is room for a multiple of so many tokens: masks of other lengths make kernels slow
)


class LayerKVCache:
    """Keys and values (B, H, T, D) of one layer, with room for `capacity` tokens."""

    keys: Tensor  # made when the first tokens come, which say how many rows and which dtype
    values: Tensor

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length = capacity, 0

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of new tokens to themselves and all before; takes them in."""
        keys, values = self.extend(k, v)
        T, S = q.shape[2], self.length
        if T == S:
            return F.scaled_dot_product_attention(q, keys, values, is_causal=True)
        # `is_causal` would take the first query for the first of all tokens.
        past = None if T == 1 else torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=past)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Takes in those of new tokens; gives those of all so far."""
        if self.length == 0:
            B, H, _, D = k.shape
            # The values' dtype: CUDA's autocast makes QK-norm's keys float32, which attention rounds anyway.
            self.keys = v.new_zeros(B, H, self.capacity, D)
            self.values = v.new_zeros(B, H, self.capacity, D)
        start, count = self.length, k.shape[2]
        self.keys.narrow(2, start, count).copy_(k)
        self.values.narrow(2, start, count).copy_(v)
        self.length = start + count
        return self.keys.narrow(2, 0, self.length), self.values.narrow(2, 0, self.length)

    def repeat(self, rows: int) -> None:
        """Makes `rows` equal texts of the one read so far."""
        if rows > 1:
            self.keys = self.keys.repeat(rows, 1, 1, 1)
            self.values = self.values.repeat(rows, 1, 1, 1)


class KVCache:
    """One LayerCache per layer; all have read the same tokens."""

    def __init__(self, n_layer: int, capacity: int) -> None:
        room = -(-capacity // _CAPACITY_MULTIPLE) * _CAPACITY_MULTIPLE
        self.layers = [LayerKVCache(room) for _ in range(n_layer)]

    @property
    def length(self) -> int:
        return self.layers[0].length

    def next_positions(self, count: int) -> slice | Tensor:
        """The positions of the `count` tokens that come next."""
        return slice(self.length, self.length + count)

    def repeat(self, rows: int) -> None:
        for layer in self.layers:
            layer.repeat(rows)


class StaticLayerKVCache(LayerKVCache):
    """One layer of a FixedCache, which owns `place` and `mask`."""

    def __init__(self, start: LayerKVCache, place: Tensor, mask: Tensor) -> None:
        super().__init__(start.capacity)
        self.keys, self.values = start.keys, start.values
        self._place, self._mask = place, mask

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.keys.index_copy_(2, self._place, k.to(self.keys.dtype))
        self.values.index_copy_(2, self._place, v)
        return F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=self._mask)


class StaticKVCache(KVCache):
    """Goes on where another cache has come to, one token at a time, always by the same kernels on the same
    memory: Python decides nothing between the steps, so one recorded step serves for all.

    The device itself counts where the next token goes. Attention looks at all there is room for, through a
    mask that opens by one token at each step.
    """

    def __init__(self, start: KVCache) -> None:
        keys = start.layers[0].keys
        self._place = torch.tensor([start.length - 1], device=keys.device)
        self._mask = keys.new_full((1, 1, 1, keys.shape[2]), float("-inf"))
        self._mask[..., : start.length] = 0.0
        self.layers = [StaticLayerKVCache(layer, self._place, self._mask) for layer in start.layers]

    def next_positions(self, count: int) -> Tensor:
        """Moves on to the next token's."""
        assert count == 1
        self._place.add_(1)
        self._mask.index_fill_(-1, self._place, 0.0)
        return self._place
