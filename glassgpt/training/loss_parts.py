"""The loss broken down: by kind of token, by frequency, by script, and by position in the context.

    parts = LossParts(token_classes(tokenizer, train_tokens), block_size=256, device=device)
    totals += parts.sums(x, y, losses)            # on the device, from losses that an evaluation has anyway
    parts.as_dict(totals, counts)                 # {"by_kind": {"space": [tokens, loss], …}, …}

Every token is in exactly one class of each partition, so the mean over a partition is the loss itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassgpt.data.batches import IGNORED_TARGET
from glassgpt.data.token_classes import FREQUENCIES, KINDS, TokenClasses


class LossParts:
    def __init__(self, classes: TokenClasses, block_size: int, device: torch.device) -> None:
        self._block_size = block_size
        self._names: dict[str, tuple[str, ...]] = {"by_frequency": FREQUENCIES}
        self._tables = [torch.from_numpy(classes.frequency).to(device)]
        self._kinds: Tensor | None = None
        if classes.kinds is not None and classes.script is not None:
            self._names |= {"by_script": classes.scripts, "by_kind": KINDS}
            self._tables.append(torch.from_numpy(classes.script).to(device))
            self._kinds = torch.from_numpy(np.stack(classes.kinds)).to(device)
            self._ends_in_letter = torch.from_numpy(classes.ends_in_letter).to(device, torch.int64)

    @property
    def size(self) -> int:
        return sum(map(len, self._names.values())) + self._block_size

    def sums(self, x: Tensor, y: Tensor, values: Tensor) -> Tensor:
        """`values` (B, T) of the targets, summed by class, then by position. Those ignored must be 0."""
        targets = y.clamp(min=0)
        classes = [table[targets] for table in self._tables]
        if self._kinds is not None:
            classes.append(self._kinds[self._ends_in_letter[x], targets])
        sums = []
        for of_token, names in zip(classes, self._names.values(), strict=True):
            by_class = values.new_zeros(len(names))
            sums.append(by_class.index_add_(0, of_token.flatten(), values.flatten()))
        return torch.cat([*sums, values.sum(0)])

    def counts(self, x: Tensor, y: Tensor) -> Tensor:
        return self.sums(x, y, (y != IGNORED_TARGET).double())

    def as_dict(self, sums: np.ndarray, counts: np.ndarray) -> dict[str, Any]:
        """The fields of an `eval` record; classes without a token are left out."""
        record: dict[str, Any] = {}
        start = 0
        for partition, names in self._names.items():
            rows = zip(names, counts[start:].tolist(), sums[start:].tolist(), strict=False)
            record[partition] = {name: [int(count), total / count] for name, count, total in rows if count}
            start += len(names)
        # Positions count the tokens of context before the target, in powers of two: 1, 2 to 3, 4 to 7, …
        record["by_position"] = []
        first = 1
        while first <= self._block_size:
            last = min(2 * first - 1, self._block_size)
            part = slice(start + first - 1, start + last)
            if count := int(counts[part].sum()):
                record["by_position"].append([first, last, count, float(sums[part].sum()) / count])
            first = 2 * first
        return record
