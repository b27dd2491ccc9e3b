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
from glassgpt.schedule import LearningRateSchedule


@dataclass(frozen=True, kw_only=True)
class LossLawInputs:
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
    min_lr_ratio: float = 0.1  # of the learning rate, where the decay ends
    schedule: str = "cosine"  # "wsd", or "constant"
    wsd_decay_fraction: float = 0.2


_MAX_ITERS = 10**12  # updates: more are a slip of the finger


def loss_law_inputs(
    config: TrainConfig,
    *,
    vocab_size: int,
    batch_tokens: int,
    train_tokens: int,
    dataset: str,
    tokenizer: str,
    bytes_per_token: float,
) -> LossLawInputs:
    """`dataset`: its name, which tells whether there are curves of such text."""
    return LossLawInputs(
        parameters=flops.model_parameters(config, vocab_size, lookups=False),
        vocab_size=vocab_size,
        batch_tokens=batch_tokens,
        max_iters=min(config.max_iters, _MAX_ITERS),
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
        min_lr_ratio=settings.min_lr(config) / config.learning_rate,
        schedule=config.schedule if config.decay_lr else "constant",
        wsd_decay_fraction=config.wsd_decay_fraction,
    )


# --- the learning rate's course ---


def lr_fraction(setup: LossLawInputs, iteration: float) -> float:
    """The learning rate there, of its highest."""
    return _relative_lr_schedule(setup).at(iteration)


def _relative_lr_schedule(setup: LossLawInputs) -> LearningRateSchedule:
    end = setup.max_iters if setup.decay_iters is None else setup.decay_iters
    return LearningRateSchedule(
        1.0, setup.min_lr_ratio, setup.warmup_iters, end, setup.schedule, setup.wsd_decay_fraction
    )


# Progress goes with the learning rate's share of its highest to this power: of the same curves, both laws.
_LR_PROGRESS_EXPONENT = 0.6


@dataclass(frozen=True)
class LrWeightedProgress:
    """Updates, each counted by its share of the learning rate, as a line through these points."""

    iterations: Sequence[float]
    cumulative: Sequence[float]

    def at(self, iteration: int) -> float:
        if iteration >= self.iterations[-1]:
            return self.cumulative[-1]
        right = bisect_right(self.iterations, iteration)
        left = right - 1
        width = self.iterations[right] - self.iterations[left]
        part = (iteration - self.iterations[left]) / width
        return self.cumulative[left] + part * (self.cumulative[right] - self.cumulative[left])


_INTEGRATION_CELLS = 256


def lr_weighted_progress(setup: LossLawInputs) -> LrWeightedProgress:
    return _progress(_relative_lr_schedule(setup), setup.max_iters)


@lru_cache(1024)  # models of many widths are weighed by the same lengths
def _progress(shares: LearningRateSchedule, updates: int) -> LrWeightedProgress:
    """By trapezoids: a loop over 600,000 updates would be felt."""
    warmup = min(shares.warmup_iters, updates)
    knots = {float(updates) * cell / _INTEGRATION_CELLS for cell in range(_INTEGRATION_CELLS + 1)}
    knots |= {float(warmup) * cell / 32 for cell in range(33)}
    iterations = sorted(knots)
    powers = [shares.at(iteration) ** _LR_PROGRESS_EXPONENT for iteration in iterations]
    corners = pairwise(zip(iterations, powers, strict=True))
    areas = ((right - left) * (one + other) / 2 for (left, one), (right, other) in corners)
    return LrWeightedProgress(iterations, list(accumulate(areas, initial=0.0)))
