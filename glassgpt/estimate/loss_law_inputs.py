"""What of a run decides how it learns, and how far its learning rate lets it come. No torch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

from glassgpt import config as settings
from glassgpt.config import TrainConfig
from glassgpt.estimate import flops
from glassgpt.schedule import LearningRate


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What of a run decides how it learns."""

    parameters: int  # that are multiplied with: no positions, no separate input embedding
    vocab_size: int
    batch_tokens: int  # per update
    max_iters: int
    train_tokens: int  # of the dataset, each once
    tokenizer: str = "gpt2"  # "char", "byte", or anything else of several bytes a token
    bytes_per_token: float = 4.5
    dataset: str = ""
    arch: str = "gpt2"
    optimizer: str = "adamw"
    dropout: float = 0.0
    learning_rate: float | None = None  # AdamW's; None: a usual one
    warmup_iters: int = 0
    decay_iters: int | None = None  # None: max_iters
    least_share: float = 0.1  # of the learning rate, where the decay ends
    schedule: str = "cosine"  # "wsd", or "constant"
    wsd_decay_fraction: float = 0.2


_LONGEST = 10**12  # updates: more are a slip of the finger


def setup_of(
    config: TrainConfig,
    *,
    vocab_size: int,
    batch_tokens: int,
    train_tokens: int,
    dataset: str,
    tokenizer: str,
    bytes_per_token: float,
) -> Setup:
    """`dataset`: its name, which tells whether there are curves of such text."""
    return Setup(
        parameters=flops.parameters_of(config, vocab_size, lookups=False),
        vocab_size=vocab_size,
        batch_tokens=batch_tokens,
        max_iters=min(config.max_iters, _LONGEST),
        train_tokens=train_tokens,
        tokenizer=tokenizer,
        bytes_per_token=bytes_per_token,
        dataset=dataset,
        arch=config.arch,
        optimizer=config.optimizer,
        dropout=config.dropout,
        learning_rate=config.learning_rate,
        warmup_iters=settings.warmup_iters(config),
        decay_iters=settings.decay_iters(config),
        least_share=settings.min_lr(config) / config.learning_rate,
        schedule=config.schedule if config.decay_lr else "constant",
        wsd_decay_fraction=config.wsd_decay_fraction,
    )


# --- the learning rate's course ---


def rate_share(setup: Setup, iteration: float) -> float:
    """The learning rate there, of its highest."""
    return _shares(setup).at(iteration)


def _shares(setup: Setup) -> LearningRate:
    end = setup.max_iters if setup.decay_iters is None else setup.decay_iters
    return LearningRate(
        1.0, setup.least_share, setup.warmup_iters, end, setup.schedule, setup.wsd_decay_fraction
    )


# Progress goes with the learning rate's share of its highest to this power: of the same curves, both laws.
_RATE_POWER = 0.6


@dataclass(frozen=True)
class Progress:
    """Updates, each counted by its share of the learning rate, as a line through these points."""

    iterations: Sequence[float]
    sums: Sequence[float]

    def at(self, iteration: int) -> float:
        if iteration >= self.iterations[-1]:
            return self.sums[-1]
        right = bisect_right(self.iterations, iteration)
        left = right - 1
        width = self.iterations[right] - self.iterations[left]
        part = (iteration - self.iterations[left]) / width
        return self.sums[left] + part * (self.sums[right] - self.sums[left])


_CELLS = 256


def progress_of(setup: Setup) -> Progress:
    return _progress(_shares(setup), setup.max_iters)


@lru_cache(1024)  # models of many widths are weighed by the same lengths
def _progress(shares: LearningRate, updates: int) -> Progress:
    """By trapezoids: a loop over 600,000 updates would be felt."""
    warmup = min(shares.warmup, updates)
    knots = {float(updates) * cell / _CELLS for cell in range(_CELLS + 1)}
    knots |= {float(warmup) * cell / 32 for cell in range(33)}
    iterations = sorted(knots)
    powers = [shares.at(iteration) ** _RATE_POWER for iteration in iterations]
    corners = pairwise(zip(iterations, powers, strict=True))
    areas = ((right - left) * (one + other) / 2 for (left, one), (right, other) in corners)
    return Progress(iterations, list(accumulate(areas, initial=0.0)))
