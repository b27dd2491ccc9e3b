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

from glassgpt.data.batches import IGNORED_TARGET, evaluation_batch, evaluation_windows
from glassgpt.data.shards import Tokens
from glassgpt.record.clock import Ledger
from glassgpt.training.distributed.process_group import Team
from glassgpt.training.learner import Learner

_KEPT_TOKENS = 2**20  # of a split, on the device between evaluations: 16 MB


@dataclass(frozen=True)
class Evaluation:
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


def is_gain(reference: Evaluation | None, now: Evaluation) -> bool:
    """Whether `now` is better than `reference` by more than noise.

    The noise is that of the difference, window by window: hard windows are hard for both, which cancels, so
    it is far smaller than either one's own error.
    """
    if reference is None or len(reference.window_losses) != len(now.window_losses):
        return True  # other windows do not compare; start anew from these
    noise = _stderr(reference.window_losses - now.window_losses, now.window_tokens)
    return reference.loss - now.loss > (0.0 if math.isnan(noise) else noise)


class Windows:
    """What is evaluated of a split, as batches on the device: the same ones every time, and so, unless they
    are many, made once and kept there."""

    def __init__(
        self,
        tokens: Tokens,
        block_size: int,
        eval_tokens: int | None,
        rows: int,
        device: torch.device,
        team: Team | None = None,
    ) -> None:
        """`eval_tokens=None`: the whole split. `rows`: windows in a batch."""
        self._tokens, self._block_size, self._rows, self._device = tokens, block_size, rows, device
        self._team = team or Team()
        self._starts = evaluation_windows(len(tokens), block_size, eval_tokens)
        self._kept: list[tuple[Tensor, Tensor, np.ndarray]] | None = None

    def of_whole_split(self) -> Windows:
        return Windows(self._tokens, self._block_size, None, self._rows, self._device, self._team)

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, np.ndarray]]:
        """Inputs and targets, and how many targets each window has: of this process's batches, which are
        every so manieth. Everybody has as many; those past the end are all padding."""
        if len(self) * self._block_size > _KEPT_TOKENS:
            yield from self._made()
            return
        if self._kept is None:
            self._kept = list(self._made())
        yield from self._kept

    @property
    def _end(self) -> int:
        """Windows, with padding to whole batches for everybody."""
        in_a_round = self._rows * self._team.size
        return -(-len(self) // in_a_round) * in_a_round

    def everybodys(self, own: np.ndarray) -> np.ndarray:
        """A number for every window, from those for the windows of this process."""
        rounds = self._end // (self._rows * self._team.size)
        whole = np.zeros((rounds, self._team.size, self._rows), own.dtype)
        whole[:, self._team.rank] = own.reshape(rounds, self._rows)
        return self._team.total(whole).reshape(-1)[: len(self)]

    def _made(self) -> Iterator[tuple[Tensor, Tensor, np.ndarray]]:
        for i in range(self._team.rank * self._rows, self._end, self._team.size * self._rows):
            chunk = self._starts[i : i + self._rows]
            nothing = len(self._tokens)  # a window that starts there is all padding
            filled = np.pad(chunk, (0, self._rows - len(chunk)), constant_values=nothing)
            x, y = evaluation_batch(self._tokens, filled, self._block_size)
            counts = (y != IGNORED_TARGET).sum(1)
            yield torch.from_numpy(x).to(self._device), torch.from_numpy(y).to(self._device), counts


def evaluate(
    learner: Learner, windows: Windows, ledger: Ledger, should_stop: Callable[[], bool] = lambda: False
) -> Evaluation | None:
    """The loss on these windows; None if asked to stop on the way."""
    sums: list[Tensor] = []
    counts: list[np.ndarray] = []
    first_call_s = None
    with ledger.phase("eval") as whole:
        for x, y, filled in windows:
            if should_stop():
                learner.let_go()
                return None
            if learner.is_first("score"):
                with ledger.phase("compile") as first_call:
                    sums.append(_window_sums(learner, x, y))
                    learner.placement.synchronize()
                first_call_s = first_call.seconds
            else:
                sums.append(_window_sums(learner, x, y))
            counts.append(filled)
        learner.let_go()
        window_sums = windows.everybodys(torch.cat(sums).cpu().numpy())
        window_tokens = windows.everybodys(np.concatenate(counts))
    if first_call_s is not None and len(sums) > 1:  # compile is the first call minus a steady one
        ledger.move("compile", "eval", (whole.seconds - first_call_s) / (len(sums) - 1))
    total = int(window_tokens.sum())
    return Evaluation(float(window_sums.sum()) / total, total, window_sums / window_tokens, window_tokens)


def _window_sums(learner: Learner, x: Tensor, y: Tensor) -> Tensor:
    """In float64, so that the order of summation does not show."""
    losses = learner.score(x, y)
    if losses.device.type == "mps":  # which has no float64
        losses = losses.cpu()
    return losses.double().sum(1)
