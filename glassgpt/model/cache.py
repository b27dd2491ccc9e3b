"""What attention remembers while text is written: the keys and values of the tokens read so far.

Each new token then costs one token's work, not that of the whole text before it again.
"""

from __future__ import annotations

from torch import Tensor


class LayerCache:
    """Keys and values (B, H, T, D) of one layer, with room for `capacity` tokens."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length = capacity, 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Takes in those of new tokens; gives those of all so far."""
        if self._keys is None or self._values is None:
            B, H, _, D = k.shape
            # The values' dtype: CUDA's autocast makes QK-norm's keys float32, which attention rounds anyway.
            self._keys = v.new_empty(B, H, self.capacity, D)
            self._values = v.new_empty(B, H, self.capacity, D)
        start, count = self.length, k.shape[2]
        self._keys.narrow(2, start, count).copy_(k)
        self._values.narrow(2, start, count).copy_(v)
        self.length = start + count
        return self._keys.narrow(2, 0, self.length), self._values.narrow(2, 0, self.length)

    def repeat(self, rows: int) -> None:
        """Makes `rows` equal texts of the one read so far."""
        if self._keys is not None and self._values is not None:
            self._keys = self._keys.repeat(rows, 1, 1, 1)
            self._values = self._values.repeat(rows, 1, 1, 1)


class Cache:
    """One LayerCache per layer; all have read the same tokens."""

    def __init__(self, n_layer: int, capacity: int) -> None:
        self.layers = [LayerCache(capacity) for _ in range(n_layer)]

    @property
    def length(self) -> int:
        return self.layers[0].length

    def repeat(self, rows: int) -> None:
        for layer in self.layers:
            layer.repeat(rows)
