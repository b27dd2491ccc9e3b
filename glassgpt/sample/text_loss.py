"""The loss of a model on a text, token by token, with bootstrap intervals; two models compared on one text.

    losses = token_losses(model, execution, tokens, context=256, stride=128)
    summarize("my.txt", tokens, losses, block_tokens=256).loss      # Estimate(2.23, 2.21, 2.25)

Windows of `context` tokens slide over each document by `stride`. Every token but the first of a document is
predicted once, with at least context - stride tokens before it (fewer at the beginning of the document).
The bootstrap resamples blocks of text as long as the context: neighbouring tokens are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from glassgpt.estimate.loss_law import bits_per_byte, perplexity
from glassgpt.model import loss
from glassgpt.model.gpt import GPT
from glassgpt.training.device import ExecutionConfig

RESAMPLES = 1000
CONFIDENCE = 0.95
MIN_BLOCKS = 10  # fewer say nothing about their spread
_SEED = 1337
_MAX_BLOCKS = 10_000  # neighbours are merged above: the interval hardly changes, the bootstrap stays fast
_MAX_DRAWS = 2**22  # in memory at once
_BATCH_TOKENS = 16_384  # of one forward pass

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class TokenizedDocuments:
    """The tokens of several documents, end to end. No window crosses from one into the next."""

    ids: Ints
    lengths: Ints  # tokens of each document
    byte_counts: Ints | None  # bytes of text of each token; None: unknown

    @cached_property
    def is_predicted(self) -> NDArray[np.bool_]:
        """All tokens but the first of each document, which has nothing before it."""
        mask = np.ones(len(self.ids), dtype=np.bool_)
        mask[self.starts[self.lengths > 0]] = False
        return mask

    @property
    def starts(self) -> Ints:
        return np.cumsum(self.lengths) - self.lengths


@dataclass(frozen=True)
class Estimate:
    """A value with the bounds of its 95% interval; None where the text is too short for one."""

    value: float
    low: float | None
    high: float | None

    def convert(self, function: Callable[[float], float]) -> Estimate:
        """The value and its interval under an increasing function."""
        low, high = (None if bound is None else function(bound) for bound in (self.low, self.high))
        return Estimate(function(self.value), low, high)


@dataclass(frozen=True)
class TextLoss:
    """The loss of a model on a text. `blocks`: what the bootstrap resampled."""

    name: str
    tokens: int  # that were predicted
    bytes: int | None  # of text they stand for
    blocks: int
    loss: Estimate  # nats per token
    bits_per_byte: Estimate | None

    @property
    def perplexity(self) -> Estimate:
        return self.loss.convert(perplexity)


@dataclass(frozen=True)
class LossComparison:
    """Two models on the same bytes of text. `difference`: bits per byte of the first minus the second."""

    bytes: int
    blocks: int
    bits_per_byte: tuple[float, float]
    difference: Estimate

    @property
    def better(self) -> int | None:
        """0 or 1: the model that is better by more than noise; None: neither, or the text is too short."""
        low, high = self.difference.low, self.difference.high
        if low is None or high is None or not (low > 0 or high < 0):
            return None
        return 0 if high < 0 else 1


# --- losses ---


def sliding_windows(lengths: Sequence[int] | Ints, context: int, stride: int) -> Ints:
    """A row for each window: its first token, the end of its inputs, and the first target that counts in it.

    The inputs of window k of a document start at k * stride. Its targets are the tokens after its inputs;
    those that an earlier window has predicted do not count.
    """
    rows = [np.empty((0, 3), dtype=np.int64)]
    offset = 0
    for length in map(int, lengths):
        targets = length - 1
        if targets > 0:
            first = np.arange(1 + -(-max(0, targets - context) // stride), dtype=np.int64) * stride
            end = np.minimum(first + context, targets)
            counted = np.concatenate([[1], end[:-1] + 1])
            rows.append(np.stack([first, end, counted], axis=1) + offset)
        offset += length
    return np.concatenate(rows)


@torch.inference_mode()
def token_losses(
    model: GPT,
    execution: ExecutionConfig,
    documents: TokenizedDocuments,
    context: int,
    stride: int,
    advance: Callable[[int], None] = lambda done: None,
) -> Floats:
    """The loss of each token in nats; NaN for the first of each document. `advance`: called with the number
    of tokens of each batch."""
    losses = np.full(len(documents.ids), np.nan)
    windows = sliding_windows(documents.lengths, context, stride)
    rows = max(1, _BATCH_TOKENS // context)
    for start in range(0, len(windows), rows):
        first, end, counted = windows[start : start + rows].T[:, :, None]
        positions = first + np.arange((end - first).max())
        is_input = positions < end
        # Padding follows the inputs, which a causal model does not see from there.
        x = torch.from_numpy(documents.ids[np.where(is_input, positions, first)]).to(execution.device)
        is_counted = is_input & (positions + 1 >= counted)
        targets = positions[is_counted] + 1
        with execution.autocast():
            hidden = model.forward_hidden(x)[torch.from_numpy(is_counted).to(execution.device)]
            y = torch.from_numpy(documents.ids[targets]).to(execution.device)
            batch_losses = loss.token_losses(hidden, model.lm_head.weight, y)
        losses[targets] = batch_losses.float().cpu().numpy()
        advance(len(targets))
    return losses


# --- intervals ---


def bootstrap_sums(columns: Floats) -> Floats:
    """Sums (RESAMPLES, k) of the rows of `columns` (n, k), drawn with replacement. Always the same draws."""
    n, rng = len(columns), np.random.default_rng(_SEED)
    sums = np.empty((RESAMPLES, columns.shape[1]))
    step = max(1, _MAX_DRAWS // n)
    for start in range(0, RESAMPLES, step):
        drawn = rng.integers(0, n, (min(step, RESAMPLES - start), n))
        for column, values in enumerate(columns.T):
            sums[start : start + step, column] = values[drawn].sum(1)
    return sums


def estimate_ratio(numerators: Floats, denominators: Floats) -> Estimate:
    """The sum of one column over the sum of the other, with its bootstrap interval over rows."""
    value = float(numerators.sum() / denominators.sum())
    if len(numerators) < MIN_BLOCKS or not math.isfinite(value):
        return Estimate(value, None, None)
    above, below = bootstrap_sums(np.stack([numerators, denominators], axis=1)).T
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(above / below, [tail, 1 - tail])
    return Estimate(value, float(low), float(high))


def summarize(name: str, documents: TokenizedDocuments, losses: Floats, block_tokens: int) -> TextLoss:
    """`block_tokens`: the context. A shorter document is one block."""
    predicted = documents.is_predicted
    blocks_per_document = -(-np.maximum(documents.lengths - 1, 0) // block_tokens)
    first_block = np.repeat(np.cumsum(blocks_per_document) - blocks_per_document, documents.lengths)
    position = np.arange(len(documents.ids)) - np.repeat(documents.starts, documents.lengths)
    block = (first_block + (position - 1) // block_tokens)[predicted]
    count = int(blocks_per_document.sum())
    if count > _MAX_BLOCKS:
        block, count = block * _MAX_BLOCKS // count, _MAX_BLOCKS
    nats = _sum_by(block, losses[predicted], count)
    token_counts = _sum_by(block, np.ones(len(block)), count)
    text_bytes, bits = None, None
    if documents.byte_counts is not None:
        byte_counts = documents.byte_counts[predicted]
        text_bytes = int(byte_counts.sum())
        bits = _estimate_bits(nats, _sum_by(block, byte_counts, count))
    return TextLoss(name, int(predicted.sum()), text_bytes, count, estimate_ratio(nats, token_counts), bits)


def _sum_by(group: Ints, values: Floats | Ints, count: int) -> Floats:
    return np.bincount(group, values, count).astype(np.float64)


def _estimate_bits(nats: Floats, byte_counts: Floats) -> Estimate:
    # Nats per byte: a loss of tokens of one byte.
    return estimate_ratio(nats, byte_counts).convert(lambda ratio: bits_per_byte(ratio, 1))


# --- two models ---


def common_spans(first: TokenizedDocuments, other: TokenizedDocuments, span_bytes: int) -> tuple[Ints, Ints]:
    """Starts and ends, in bytes, of pieces of text at whose ends a token ends in both tokenizations.

    A piece has at least `span_bytes`, if the document has. A document's first piece starts where both have
    predicted: after the first token of each.
    """
    cuts = np.intersect1d(_byte_ends(first), _byte_ends(other))
    document_ends = np.concatenate([[0], _byte_ends(first)])[np.cumsum(first.lengths)]
    starts: list[int] = []
    ends: list[int] = []
    low = 0
    for document_end in document_ends.tolist():
        inside = cuts[np.searchsorted(cuts, low, "right") : np.searchsorted(cuts, document_end, "right")]
        low = document_end
        index = 0
        while index < len(inside) - 1:
            following = min(int(np.searchsorted(inside, inside[index] + span_bytes)), len(inside) - 1)
            if inside[-1] - inside[following] < span_bytes / 2:  # a short rest belongs to the last piece
                following = len(inside) - 1
            starts.append(int(inside[index]))
            ends.append(int(inside[following]))
            index = following
    return np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)


def compare_losses(
    first: tuple[TokenizedDocuments, Floats], other: tuple[TokenizedDocuments, Floats], span_bytes: int
) -> LossComparison | None:
    """Bits per byte of two models, paired by pieces of text; None if their tokens end nowhere together.

    Both must have been made from the same documents, and the bytes of their tokens must be known.
    """
    starts, ends = common_spans(first[0], other[0], span_bytes)
    if not len(starts):
        return None
    span_index = np.arange(len(starts))
    if len(starts) > _MAX_BLOCKS:
        span_index = span_index * _MAX_BLOCKS // len(starts)
    count = int(span_index[-1]) + 1
    nats = []
    for documents, losses in (first, other):
        token_ends = _byte_ends(documents)
        span = np.minimum(np.searchsorted(ends, token_ends), len(ends) - 1)
        inside = (starts[span] < token_ends) & (token_ends <= ends[span])
        nats.append(_sum_by(span_index[span[inside]], losses[inside], count))
    lengths = _sum_by(span_index, ends - starts, count)
    total = float(lengths.sum())
    # The difference is summed by itself: a model compared with itself differs by exactly 0.
    return LossComparison(
        bytes=int(total),
        blocks=count,
        bits_per_byte=(
            bits_per_byte(float(nats[0].sum()) / total, 1),
            bits_per_byte(float(nats[1].sum()) / total, 1),
        ),
        difference=_estimate_bits(nats[0] - nats[1], lengths),
    )


def _byte_ends(documents: TokenizedDocuments) -> Ints:
    assert documents.byte_counts is not None
    return np.cumsum(documents.byte_counts)
