"""Evaluation: the same tokens every time, exactly the whole split where it is small enough.

It is deterministic and uses none of training's random numbers: evaluating more or less often changes no
training loss. All batches have one shape (the last is padded with ignored targets), so that code is compiled
once. The result does not depend on the batch size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassgpt.data.batches import IGNORED_TARGET, evaluation_batch, evaluation_window_starts
from glassgpt.data.passage import PASSAGE_TOKENS, passage_window, piece_texts
from glassgpt.data.shards import TokenArray
from glassgpt.data.tokenizers import Tokenizer
from glassgpt.estimate.loss_law import bits_per_byte, perplexity
from glassgpt.record.ledger import Ledger
from glassgpt.training.distributed.process_group import ALONE, ProcessGroup
from glassgpt.training.learner import Learner
from glassgpt.training.loss_parts import LossParts

_MAX_CACHED_TOKENS = 2**20  # of a split, kept on the device between evaluations


@dataclass(frozen=True)
class EvalResult:
    """The mean loss over `tokens` targets, and the mean of each window."""

    loss: float
    tokens: int
    window_losses: np.ndarray
    window_tokens: np.ndarray
    parts: Mapping[str, Any] = field(default_factory=dict)  # the loss broken down, for the record

    @property
    def stderr(self) -> float:
        """Standard error of the mean, with windows as independent samples."""
        return _stderr(self.window_losses, self.window_tokens)

    @property
    def perplexity(self) -> float:
        return perplexity(self.loss)

    def bits_per_byte(self, bytes_per_token: float) -> float:
        return bits_per_byte(self.loss, bytes_per_token)


def _stderr(values: np.ndarray, weights: np.ndarray) -> float:
    n = len(values)
    if n < 2:
        return math.nan
    share = weights / weights.sum()
    with np.errstate(invalid="ignore"):  # the error of non-finite losses is nan
        deviations = values - float((share * values).sum())
    return math.sqrt(float((share**2 * deviations**2).sum()) * n / (n - 1))


def is_gain(reference: EvalResult | None, now: EvalResult) -> bool:
    """Whether `now` is better than `reference` by more than noise.

    The noise is that of the difference, window by window. Hard windows are hard for both, which cancels: it
    is far smaller than the standard error of either result.
    """
    if reference is None or len(reference.window_losses) != len(now.window_losses):
        return True  # losses of other windows are not comparable; these are the new reference
    noise = _stderr(reference.window_losses - now.window_losses, now.window_tokens)
    return reference.loss - now.loss > (0.0 if math.isnan(noise) else noise)


class EvalWindows:
    """The evaluated windows of a split, as batches on the device. They are the same in every evaluation, so
    they stay on the device unless they are many."""

    def __init__(
        self,
        tokens: TokenArray,
        block_size: int,
        eval_tokens: int | None,
        rows: int,
        device: torch.device,
        group: ProcessGroup = ALONE,
    ) -> None:
        """`eval_tokens=None`: the whole split. `rows`: windows in a batch."""
        self._tokens, self._block_size, self._rows, self._device = tokens, block_size, rows, device
        self._group = group
        self._starts = evaluation_window_starts(len(tokens), block_size, eval_tokens)
        self._cached_batches: list[tuple[Tensor, Tensor, np.ndarray]] | None = None
        self._part_counts: np.ndarray | None = None
        self._passage: int | None = None  # the window whose first losses are kept, token by token

    def choose_passage(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """From now on evaluations keep the losses of its tokens. Where it begins, and the text of each."""
        self._passage = passage_window(self._tokens, self._starts, tokenizer)
        first = int(self._starts[self._passage]) + 1
        tokens = self._tokens[first : first + self._passage_tokens].tolist()
        return {"start": first, "tokens": piece_texts(tokenizer, tokens)}

    @property
    def _passage_tokens(self) -> int:
        assert self._passage is not None
        left = len(self._tokens) - 1 - int(self._starts[self._passage])
        return min(PASSAGE_TOKENS, self._block_size, left)

    def of_whole_split(self) -> EvalWindows:
        return EvalWindows(self._tokens, self._block_size, None, self._rows, self._device, self._group)

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, np.ndarray]]:
        """Inputs, targets, and the number of targets of each window. Rank r of N has batches r, r + N,
        r + 2N, ... All ranks have equally many; batches past the end are all padding."""
        if len(self) * self._block_size > _MAX_CACHED_TOKENS:
            yield from self._make_batches()
            return
        if self._cached_batches is None:
            self._cached_batches = list(self._make_batches())
        yield from self._cached_batches

    @property
    def _padded_len(self) -> int:
        """The number of windows, padded to as many whole batches for every rank."""
        windows_of_all_ranks = self._rows * self._group.world_size
        return -(-len(self) // windows_of_all_ranks) * windows_of_all_ranks

    @property
    def own_len(self) -> int:
        """Windows of this rank, padding included."""
        return self._padded_len // self._group.world_size

    def gather_per_window(self, own: np.ndarray) -> np.ndarray:
        """A value for every window of the split, from those that this rank has evaluated. Collective."""
        rounds = self._padded_len // (self._rows * self._group.world_size)
        values = np.zeros((rounds, self._group.world_size, self._rows), own.dtype)
        values[:, self._group.rank] = own.reshape(rounds, self._rows)
        return self._group.all_reduce_sum(values).reshape(-1)[: len(self)]

    def part_counts(self, parts: LossParts) -> np.ndarray:
        """Targets of all ranks in each class of `parts`: the same in every evaluation. Collective."""
        if self._part_counts is None:
            own = torch.stack([parts.counts(x, y) for x, y, _ in self]).sum(0)
            self._part_counts = self.all_reduce_sum(own.cpu().numpy())
        return self._part_counts

    def all_reduce_sum(self, own: np.ndarray) -> np.ndarray:
        return self._group.all_reduce_sum(own)

    def passage_losses(self, batch: int, losses: Tensor) -> Tensor | None:
        """Of this rank's batch of that number; None where the passage is not in it."""
        if self._passage is None:
            return None
        row = self._passage - (batch * self._group.world_size + self._group.rank) * self._rows
        return losses[row, : self._passage_tokens] if 0 <= row < self._rows else None

    def gather_passage(self, own: Tensor | None) -> dict[str, list[float]]:
        """The field of the `eval` record, from the rank that has evaluated it. Collective."""
        if self._passage is None:
            return {}
        values = np.zeros(self._passage_tokens) if own is None else own.cpu().numpy()
        return {"passage_losses": [round(value, 4) for value in self.all_reduce_sum(values).tolist()]}

    def _make_batches(self) -> Iterator[tuple[Tensor, Tensor, np.ndarray]]:
        first, step = self._group.rank * self._rows, self._group.world_size * self._rows
        for i in range(first, self._padded_len, step):
            starts = self._starts[i : i + self._rows]
            # A window that starts after the last token is all padding.
            padded = np.pad(starts, (0, self._rows - len(starts)), constant_values=len(self._tokens))
            x, y = evaluation_batch(self._tokens, padded, self._block_size)
            counts = (y != IGNORED_TARGET).sum(1)
            yield torch.from_numpy(x).to(self._device), torch.from_numpy(y).to(self._device), counts


def evaluate(
    learner: Learner,
    windows: EvalWindows,
    ledger: Ledger,
    should_stop: Callable[[], bool] = lambda: False,
    parts: LossParts | None = None,
) -> EvalResult | None:
    """The loss on these windows; None if `should_stop` returned true before a batch. `parts`: how to break it
    down."""
    # Allocated once: a small tensor kept from each batch would split what the heap has free, and the next
    # batch's activations would not fit there. Resident memory grew by 1 MiB per batch.
    sums = torch.zeros(windows.own_len, dtype=torch.float64)
    counts = np.zeros(windows.own_len, dtype=np.int64)
    part_sums: Tensor | None = None
    passage: Tensor | None = None
    first_call_s, batches, done = None, 0, 0
    with ledger.phase("eval") as whole:
        for x, y, window_counts in windows:
            if should_stop():
                learner.reshard()
                return None
            if learner.is_first_call("token_losses"):
                with ledger.phase("compile") as first_call:
                    losses = _token_losses(learner, x, y)
                    learner.execution.synchronize()
                first_call_s = first_call.seconds
            else:
                losses = _token_losses(learner, x, y)
            own_passage = windows.passage_losses(batches, losses)
            passage = passage if own_passage is None else own_passage
            if not done:
                sums = sums.to(losses.device)
            batch = slice(done, done + len(losses))
            sums[batch], counts[batch] = losses.sum(1), window_counts
            batches, done = batches + 1, batch.stop
            if parts is not None:
                batch_sums = parts.sums(x.to(losses.device), y.to(losses.device), losses)
                part_sums = batch_sums if part_sums is None else part_sums.add_(batch_sums)
        learner.reshard()
        window_sums = windows.gather_per_window(sums.cpu().numpy())
        window_tokens = windows.gather_per_window(counts)
        breakdown: dict[str, Any] = windows.gather_passage(passage)
        if parts is not None and part_sums is not None:
            totals = windows.all_reduce_sum(part_sums.cpu().numpy())
            breakdown |= parts.as_dict(totals, windows.part_counts(parts))
    if first_call_s is not None and batches > 1:  # compiling takes the first call minus a steady one
        ledger.reassign("compile", "eval", (whole.seconds - first_call_s) / (batches - 1))
    total = int(window_tokens.sum())
    loss = float(window_sums.sum()) / total
    return EvalResult(loss, total, window_sums / window_tokens, window_tokens, breakdown)


def _token_losses(learner: Learner, x: Tensor, y: Tensor) -> Tensor:
    """In float64, so that the order of summation does not matter."""
    losses = learner.token_losses(x, y)
    if losses.device.type == "mps":  # which has no float64
        losses = losses.cpu()
    return losses.double()
