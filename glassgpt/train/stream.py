"""Training batches on the device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from glassgpt.data.batches import training_batch
from glassgpt.train.batching import BatchPlan


class Stream:
    """A pure function of the seed and of a sequence's number: a resumed run reads on as if nothing was.

    On CUDA the copy is asynchronous, and a pair of events around each fetch tells afterwards how long the
    card waited for it. Asking the host's clock instead would blame whatever the host happened to do.
    """

    def __init__(
        self, tokens: np.ndarray, block_size: int, plan: BatchPlan, seed: int, device: torch.device
    ) -> None:
        self._tokens, self._block_size, self._plan = tokens, block_size, plan
        self._seed, self._device = seed, device
        self._waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def micro_batch(self, first: int) -> tuple[Tensor, Tensor]:
        """Sequences `first` and on, counted from the start of the run."""
        if self._device.type != "cuda":
            x, y = self._host_batch(first)
            return x.to(self._device), y.to(self._device)
        before, after = _event(), _event()
        before.record()
        x, y = (t.pin_memory().to(self._device, non_blocking=True) for t in self._host_batch(first))
        after.record()
        self._waits.append((before, after))
        return x, y

    def _host_batch(self, first: int) -> tuple[Tensor, Tensor]:
        x, y = training_batch(self._tokens, self._block_size, self._seed, first, self._plan.batch_size)
        return torch.from_numpy(x), torch.from_numpy(y)

    def waited_s(self) -> float | None:
        """Seconds the card waited for data since last asked; None where the host's clock is right.

        Only after a synchronize: the events must have happened.
        """
        if self._device.type != "cuda":
            return None
        waited: float = sum(before.elapsed_time(after) for before, after in self._waits) / 1000
        self._waits.clear()
        return waited


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
