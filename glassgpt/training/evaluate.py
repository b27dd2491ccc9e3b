"""Evaluation: the same tokens every time, exactly the whole split where it is small enough.

It is deterministic and draws nothing from training's random numbers: evaluating more or less often changes no
training loss. Batches all have one shape (the last is padded with ignored targets), so that compiled code is
compiled once, and the result does not depend on the batch size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from glassgpt.data.batches import IGNORED_TARGET, evaluation_batch, evaluation_window_starts
from glassgpt.data.shards import TokenArray
from glassgpt.record.clock import Ledger
from glassgpt.training.distributed.process_group import ProcessGroup
from glassgpt.training.learner import Learner

_MAX_CACHED_TOKENS = 2**20  # of a split, on the device between evaluations: 16 MB


@dataclass(frozen=True)
class EvalResult:
    """The mean loss over `tokens` targets, and what it is made of: one mean per window."""

    loss: float
    tokens: int
    window_losses: np.ndarray
    window_tokens: np.ndarray

    @property
    def stderr(self) -> float:
        """Standard error of the mean, windows taken as independent draws."""
        return _stderr(self.window_losses, self.window_tokens)

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss) if self.loss < 700 else math.inf

    def bits_per_byte(self, bytes_per_token: float) -> float:
        """The loss per byte of text, which compares across tokenizers."""
        return self.loss / math.log(2) / bytes_per_token


def _stderr(values: np.ndarray, weights: np.ndarray) -> float:
    n = len(values)
    if n < 2:
        return math.nan
    share = weights / weights.sum()
    with np.errstate(invalid="ignore"):  # of what is not finite the error is nan, and that is all
        deviations = values - float((share * values).sum())
    return math.sqrt(float((share**2 * deviations**2).sum()) * n / (n - 1))


def is_gain(reference: EvalResult | None, now: EvalResult) -> bool:
    """Whether `now` is better than `reference` by more than noise.

    The noise is that of the difference, window by window: hard windows are hard for both, which cancels, so
    it is far smaller than either one's own error.
    """
    if reference is None or len(reference.window_losses) != len(now.window_losses):
        return True  # other windows do not compare; start anew from these
    noise = _stderr(reference.window_losses - now.window_losses, now.window_tokens)
    return reference.loss - now.loss > (0.0 if math.isnan(noise) else noise)


class EvalWindows:
    """What is evaluated of a split, as batches on the device: the same ones every time, and so, unless they
    are many, made once and kept there."""

    def __init__(
        self,
        tokens: TokenArray,
        block_size: int,
        eval_tokens: int | None,
        rows: int,
        device: torch.device,
        team: ProcessGroup | None = None,
    ) -> None:
        """`eval_tokens=None`: the whole split. `rows`: windows in a batch."""
        self._tokens, self._block_size, self._rows, self._device = tokens, block_size, rows, device
        self._process_group = team or ProcessGroup()
        self._starts = evaluation_window_starts(len(tokens), block_size, eval_tokens)
        self._cached_batches: list[tuple[Tensor, Tensor, np.ndarray]] | None = None

    def of_whole_split(self) -> EvalWindows:
        return EvalWindows(
            self._tokens, self._block_size, None, self._rows, self._device, self._process_group
        )

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, np.ndarray]]:
        """Inputs and targets, and how many targets each window has: of this process's batches, which are
        every so manieth. Everybody has as many; those past the end are all padding."""
        if len(self) * self._block_size > _MAX_CACHED_TOKENS:
            yield from self._make_batches()
            return
        if self._cached_batches is None:
            self._cached_batches = list(self._make_batches())
        yield from self._cached_batches

    @property
    def _padded_len(self) -> int:
        """Windows, with padding to whole batches for everybody."""
        in_a_round = self._rows * self._process_group.world_size
        return -(-len(self) // in_a_round) * in_a_round

    def gather_per_window(self, own: np.ndarray) -> np.ndarray:
        """A number for every window, from those for the windows of this process."""
        rounds = self._padded_len // (self._rows * self._process_group.world_size)
        whole = np.zeros((rounds, self._process_group.world_size, self._rows), own.dtype)
        whole[:, self._process_group.rank] = own.reshape(rounds, self._rows)
        return self._process_group.all_reduce_sum(whole).reshape(-1)[: len(self)]

    def _make_batches(self) -> Iterator[tuple[Tensor, Tensor, np.ndarray]]:
        for i in range(
            self._process_group.rank * self._rows,
            self._padded_len,
            self._process_group.world_size * self._rows,
        ):
            chunk = self._starts[i : i + self._rows]
            nothing = len(self._tokens)  # a window that starts there is all padding
            filled = np.pad(chunk, (0, self._rows - len(chunk)), constant_values=nothing)
            x, y = evaluation_batch(self._tokens, filled, self._block_size)
            counts = (y != IGNORED_TARGET).sum(1)
            yield torch.from_numpy(x).to(self._device), torch.from_numpy(y).to(self._device), counts


def evaluate(
    learner: Learner, windows: EvalWindows, ledger: Ledger, should_stop: Callable[[], bool] = lambda: False
) -> EvalResult | None:
    """The loss on these windows; None if asked to stop on the way."""
    sums: list[Tensor] = []
    counts: list[np.ndarray] = []
    first_call_s = None
    with ledger.phase("eval") as whole:
        for x, y, filled in windows:
            if should_stop():
                learner.reshard()
                return None
            if learner.is_first_call("score"):
                with ledger.phase("compile") as first_call:
                    sums.append(_window_sums(learner, x, y))
                    learner.execution.synchronize()
                first_call_s = first_call.seconds
            else:
                sums.append(_window_sums(learner, x, y))
            counts.append(filled)
        learner.reshard()
        window_sums = windows.gather_per_window(torch.cat(sums).cpu().numpy())
        window_tokens = windows.gather_per_window(np.concatenate(counts))
    if first_call_s is not None and len(sums) > 1:  # compile is the first call minus a steady one
        ledger.reassign("compile", "eval", (whole.seconds - first_call_s) / (len(sums) - 1))
    total = int(window_tokens.sum())
    return EvalResult(float(window_sums.sum()) / total, total, window_sums / window_tokens, window_tokens)


def _window_sums(learner: Learner, x: Tensor, y: Tensor) -> Tensor:
    """In float64, so that the order of summation does not show."""
    losses = learner.score(x, y)
    if losses.device.type == "mps":  # which has no float64
        losses = losses.cpu()
    return losses.double().sum(1)
