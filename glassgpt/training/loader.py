"""Training batches on the device."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from glassgpt.data.batches import (
    IGNORED_TARGET,
    DocumentWindows,
    document_window_batch,
    training_batch,
    window_starts,
)
from glassgpt.data.shards import TokenArray
from glassgpt.estimate.batching import BatchPlan


class BatchLoader:
    """A pure function of the seed and of a sequence's number: a resumed run reads on as if nothing was.

    On CUDA the whole text lies on the card if there is room (`resident`), and batches are cut there;
    otherwise each is read from the file while the card works on the one before. A pair of events around
    each fetch tells afterwards how long the card waited for it. Asking the host's clock instead would blame
    whatever the host happened to do.
    """

    def __init__(
        self,
        tokens: TokenArray,
        block_size: int,
        plan: BatchPlan,
        seed: int,
        device: torch.device,
        resident: bool = False,
        passages: DocumentWindows | None = None,
    ) -> None:
        """`passages`: of which the sequences are to be, if documents are kept apart."""
        self._tokens, self._block_size, self._batch_plan = tokens, block_size, plan
        self._seed, self._device, self._document_windows = seed, device, passages
        self._resident = ResidentTokens(tokens, block_size, device) if resident else None
        self._prefetcher = BatchPrefetcher(self._pinned_batch)
        self._waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def micro_batch(self, first: int, following: int) -> tuple[Tensor, Tensor]:
        """Sequences `first` and on, counted from the start of the run; next time it will be `following`."""
        if self._device.type != "cuda":
            x, y = self._host_batch(first)
            return x.to(self._device), y.to(self._device)
        before, after = _event(), _event()
        before.record()
        if self._resident is not None:
            x, y = self._resident_batch(self._resident, first)
        else:
            batch = self._prefetcher.take(first, following)
            x, y = (part.to(self._device, non_blocking=True) for part in batch)
        after.record()
        self._waits.append((before, after))
        return x, y

    @property
    def target_share(self) -> float:
        """The share of targets that are learned from: where documents are kept apart, the rest is padding."""
        return 1.0 if self._document_windows is None else self._document_windows.filled_fraction

    def micro_batch_weight(self, first: int, update_first: int) -> tuple[Tensor, ...]:
        """What a micro-batch's mean loss counts in its update, if its targets are not as many as others'.

        `update_first`: the first sequence of the update. On average the weights are 1.
        """
        if self._document_windows is None:
            return ()
        size, sequences = self._batch_plan.batch_size, self._batch_plan.sequences
        here = int(self._document_windows.draw(self._seed, first, size)[1].sum())
        all_targets = int(self._document_windows.draw(self._seed, update_first, sequences)[1].sum())
        # Filled in by the device: a copy from the host would wait for it.
        return (torch.full((), here / all_targets * (sequences // size), device=self._device),)

    def _host_batch(self, first: int) -> tuple[Tensor, Tensor]:
        if self._document_windows is not None:
            drawn = self._document_windows.draw(self._seed, first, self._batch_plan.batch_size)
            x, y = document_window_batch(self._tokens, *drawn, self._block_size)
        else:
            x, y = training_batch(
                self._tokens, self._block_size, self._seed, first, self._batch_plan.batch_size
            )
        return torch.from_numpy(x), torch.from_numpy(y)

    def _pinned_batch(self, first: int) -> tuple[Tensor, Tensor]:
        """Where the card can fetch it from by itself."""
        x, y = self._host_batch(first)
        return x.pin_memory(), y.pin_memory()

    def _resident_batch(self, resident: ResidentTokens, first: int) -> tuple[Tensor, Tensor]:
        size = self._batch_plan.batch_size
        if self._document_windows is not None:
            starts, counts = self._document_windows.draw(self._seed, first, size)
            return resident.document_windows(torch.from_numpy(starts), torch.from_numpy(counts))
        starts = window_starts(self._seed, first, size, len(self._tokens), self._block_size)
        return resident.rows(torch.from_numpy(starts))

    def take_data_wait_s(self) -> float | None:
        """Seconds the card waited for data since last asked; None where the host's clock is right.

        Only after a synchronize: the events must have happened.
        """
        if self._device.type != "cuda":
            return None
        waited: float = sum(before.elapsed_time(after) for before, after in self._waits) / 1000
        self._waits.clear()
        return waited


class BatchPrefetcher:
    """Makes the batch that will be asked for next, in a thread, before it is asked for."""

    def __init__(self, make: Callable[[int], tuple[Tensor, Tensor]]) -> None:
        self._make = make
        self._thread = ThreadPoolExecutor(1, "batches")  # starts with the first batch to make
        self._prefetched: tuple[int, Future[tuple[Tensor, Tensor]]] | None = None

    def take(self, first: int, following: int) -> tuple[Tensor, Tensor]:
        """The batch `first`; begins with `following`."""
        expected, coming = self._prefetched or (None, None)
        batch = coming.result() if coming is not None and expected == first else self._make(first)
        self._prefetched = following, self._thread.submit(self._make, following)
        return batch


class ResidentTokens:
    """A text on the card."""

    def __init__(self, tokens: TokenArray, block_size: int, device: torch.device) -> None:
        # torch computes little in unsigned types: the same bits as signed ones, and the sign undone below.
        signed = np.array(tokens).view(f"i{tokens.dtype.itemsize}")
        self._tokens = torch.from_numpy(signed).to(device)
        self._mask = 2 ** (8 * tokens.dtype.itemsize) - 1
        self._steps = torch.arange(block_size + 1, device=device)

    def rows(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets that begin at these places of the text."""
        rows = self._tokens[self._to_device(starts)[:, None] + self._steps].long() & self._mask
        return rows[:, :-1], rows[:, 1:]

    def document_windows(self, starts: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """The same of windows that may reach beyond the text; only the first `counts` targets count."""
        places = (self._to_device(starts)[:, None] + self._steps).clamp(max=len(self._tokens) - 1)
        rows = self._tokens[places].long() & self._mask
        beyond = self._steps[:-1] >= self._to_device(counts)[:, None]
        return rows[:, :-1], rows[:, 1:].masked_fill(beyond, IGNORED_TARGET)

    def _to_device(self, numbers: Tensor) -> Tensor:
        if self._tokens.is_cuda:
            numbers = numbers.pin_memory()
        return numbers.to(self._tokens.device, non_blocking=True)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
