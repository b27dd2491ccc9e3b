"""Training batches on the device, each a pure function of the seed and of the sequence's number."""

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
    """Stateless: a resumed run gets the batches that it would have got without a break.

    On CUDA the whole training split lies on the card if there is room (`resident`), and batches are gathered
    there. Otherwise each batch is read from the file while the card computes the one before. A pair of CUDA
    events around each batch says how long the card waited for it; the host's clock would also count other
    work of the host.
    """

    def __init__(
        self,
        tokens: TokenArray,
        block_size: int,
        batch_plan: BatchPlan,
        seed: int,
        device: torch.device,
        resident: bool = False,
        document_windows: DocumentWindows | None = None,
    ) -> None:
        """`document_windows`: what to draw sequences from with --documents=apart."""
        self._tokens, self._block_size, self._batch_plan = tokens, block_size, batch_plan
        self._seed, self._device, self._document_windows = seed, device, document_windows
        self._resident = ResidentTokens(tokens, block_size, device) if resident else None
        self._prefetcher = BatchPrefetcher(self._pinned_batch)
        self._waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def micro_batch(self, first: int, next_first: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the sequences from `first` on, counted from the start of the run. The next
        call will ask for `next_first`."""
        if self._device.type != "cuda":
            x, y = self._host_batch(first)
            return x.to(self._device), y.to(self._device)
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        if self._resident is not None:
            x, y = self._resident_batch(self._resident, first)
        else:
            batch = self._prefetcher.take(first, next_first)
            x, y = (part.to(self._device, non_blocking=True) for part in batch)
        after.record()
        self._waits.append((before, after))
        return x, y

    @property
    def target_share(self) -> float:
        """The share of targets that count: with --documents=apart the rest is padding."""
        return 1.0 if self._document_windows is None else self._document_windows.filled_fraction

    def micro_batch_weight(self, first: int, update_first: int) -> tuple[Tensor, ...]:
        """The weight of a micro-batch's mean loss in its update, if micro-batches differ in targets; else ().

        `update_first`: the first sequence of the update. On average the weights are 1.
        """
        if self._document_windows is None:
            return ()
        size, sequences = self._batch_plan.batch_size, self._batch_plan.sequences
        targets = int(self._document_windows.draw(self._seed, first, size)[1].sum())
        update_targets = int(self._document_windows.draw(self._seed, update_first, sequences)[1].sum())
        # Filled in by the device: a copy from the host would wait for it.
        return (torch.full((), targets / update_targets * (sequences // size), device=self._device),)

    def _host_batch(self, first: int) -> tuple[Tensor, Tensor]:
        size = self._batch_plan.batch_size
        if self._document_windows is not None:
            starts, counts = self._document_windows.draw(self._seed, first, size)
            x, y = document_window_batch(self._tokens, starts, counts, self._block_size)
        else:
            x, y = training_batch(self._tokens, self._block_size, self._seed, first, size)
        return torch.from_numpy(x), torch.from_numpy(y)

    def _pinned_batch(self, first: int) -> tuple[Tensor, Tensor]:
        """In page-locked memory, from which the card copies without waiting for the host."""
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
        """Seconds the card waited for data since the last call; None where the host's clock is right.

        Only after a synchronize: the events must have happened.
        """
        if self._device.type != "cuda":
            return None
        waited_s: float = sum(before.elapsed_time(after) for before, after in self._waits) / 1000
        self._waits.clear()
        return waited_s


class BatchPrefetcher:
    """Makes the next batch in a thread, before it is needed."""

    def __init__(self, make: Callable[[int], tuple[Tensor, Tensor]]) -> None:
        self._make = make
        self._thread = ThreadPoolExecutor(1, "batches")  # starts with the first batch to make
        self._prefetched: tuple[int, Future[tuple[Tensor, Tensor]]] | None = None

    def take(self, first: int, next_first: int) -> tuple[Tensor, Tensor]:
        """The batch `first`; starts to make `next_first`."""
        expected, future = self._prefetched or (None, None)
        batch = future.result() if future is not None and expected == first else self._make(first)
        self._prefetched = next_first, self._thread.submit(self._make, next_first)
        return batch


class ResidentTokens:
    """A split's tokens on the card."""

    def __init__(self, tokens: TokenArray, block_size: int, device: torch.device) -> None:
        # torch computes little in unsigned types: the same bits as signed ones, and the sign undone below.
        signed = np.array(tokens).view(f"i{tokens.dtype.itemsize}")
        self._tokens = torch.from_numpy(signed).to(device)
        self._mask = 2 ** (8 * tokens.dtype.itemsize) - 1
        self._steps = torch.arange(block_size + 1, device=device)

    def rows(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the windows that begin at these tokens."""
        rows = self._tokens[self._to_device(starts)[:, None] + self._steps].long() & self._mask
        return rows[:, :-1], rows[:, 1:]

    def document_windows(self, starts: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Like `rows`, for windows that may reach past the end; only the first `counts` targets count."""
        positions = (self._to_device(starts)[:, None] + self._steps).clamp(max=len(self._tokens) - 1)
        rows = self._tokens[positions].long() & self._mask
        is_padding = self._steps[:-1] >= self._to_device(counts)[:, None]
        return rows[:, :-1], rows[:, 1:].masked_fill(is_padding, IGNORED_TARGET)

    def _to_device(self, values: Tensor) -> Tensor:
        if self._tokens.is_cuda:
            values = values.pin_memory()
        return values.to(self._tokens.device, non_blocking=True)
