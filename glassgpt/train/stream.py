"""Training batches on the device."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from glassgpt.data.batches import training_batch, window_starts
from glassgpt.train.batching import BatchPlan


class Stream:
    """A pure function of the seed and of a sequence's number: a resumed run reads on as if nothing was.

    On CUDA the whole text lies on the card if there is room (`resident`), and batches are cut there;
    otherwise each is read from the file while the card works on the one before. A pair of events around
    each fetch tells afterwards how long the card waited for it. Asking the host's clock instead would blame
    whatever the host happened to do.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        block_size: int,
        plan: BatchPlan,
        seed: int,
        device: torch.device,
        resident: bool = False,
    ) -> None:
        self._tokens, self._block_size, self._plan = tokens, block_size, plan
        self._seed, self._device = seed, device
        self._resident = Resident(tokens, block_size, device) if resident else None
        self._ahead = Ahead(self._pinned_batch)
        self._waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def micro_batch(self, first: int) -> tuple[Tensor, Tensor]:
        """Sequences `first` and on, counted from the start of the run."""
        if self._device.type != "cuda":
            x, y = self._host_batch(first)
            return x.to(self._device), y.to(self._device)
        before, after = _event(), _event()
        before.record()
        if self._resident is not None:
            starts = window_starts(
                self._seed, first, self._plan.batch_size, len(self._tokens), self._block_size
            )
            x, y = self._resident.rows(torch.from_numpy(starts))
        else:
            batch = self._ahead.take(first, following=first + self._plan.batch_size)
            x, y = (part.to(self._device, non_blocking=True) for part in batch)
        after.record()
        self._waits.append((before, after))
        return x, y

    def _host_batch(self, first: int) -> tuple[Tensor, Tensor]:
        x, y = training_batch(self._tokens, self._block_size, self._seed, first, self._plan.batch_size)
        return torch.from_numpy(x), torch.from_numpy(y)

    def _pinned_batch(self, first: int) -> tuple[Tensor, Tensor]:
        """Where the card can fetch it from by itself."""
        x, y = self._host_batch(first)
        return x.pin_memory(), y.pin_memory()

    def waited_s(self) -> float | None:
        """Seconds the card waited for data since last asked; None where the host's clock is right.

        Only after a synchronize: the events must have happened.
        """
        if self._device.type != "cuda":
            return None
        waited: float = sum(before.elapsed_time(after) for before, after in self._waits) / 1000
        self._waits.clear()
        return waited


class Ahead:
    """Makes the batch that will be asked for next, in a thread, before it is asked for."""

    def __init__(self, make: Callable[[int], tuple[Tensor, Tensor]]) -> None:
        self._make = make
        self._thread = ThreadPoolExecutor(1, "batches")  # starts with the first batch to make
        self._coming: tuple[int, Future[tuple[Tensor, Tensor]]] | None = None

    def take(self, first: int, following: int) -> tuple[Tensor, Tensor]:
        """The batch `first`; begins with `following`."""
        expected, coming = self._coming or (None, None)
        batch = coming.result() if coming is not None and expected == first else self._make(first)
        self._coming = following, self._thread.submit(self._make, following)
        return batch


class Resident:
    """A text on the card."""

    def __init__(self, tokens: np.ndarray, block_size: int, device: torch.device) -> None:
        # torch computes little in unsigned types: the same bits as signed ones, and the sign undone below.
        signed = np.array(tokens).view(f"i{tokens.dtype.itemsize}")
        self._tokens = torch.from_numpy(signed).to(device)
        self._mask = 2 ** (8 * tokens.dtype.itemsize) - 1
        self._steps = torch.arange(block_size + 1, device=device)

    def rows(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets that begin at these places of the text."""
        if self._tokens.is_cuda:
            starts = starts.pin_memory()
        there = starts.to(self._tokens.device, non_blocking=True)
        rows = self._tokens[there[:, None] + self._steps].long() & self._mask
        return rows[:, :-1], rows[:, 1:]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
