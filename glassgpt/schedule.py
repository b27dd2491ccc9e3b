"""The learning-rate schedule. Training sets it, forecasts and explain's rules read it. No torch.

LearningRateSchedule(peak_lr=6e-4, min_lr=6e-5, warmup_iters=2000, decay_iters=600_000).at(2000)     # 6e-4
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from glassgpt.config import TrainConfig


@dataclass(frozen=True)
class LearningRateSchedule:
    """Linear warm-up to `peak_lr`, then decay to `min_lr`: `cosine`, or `wsd` (linear, late)."""

    peak_lr: float
    min_lr: float
    warmup_iters: float
    decay_iters: float  # from this update on it is min_lr
    schedule: str = "cosine"  # or "wsd"; "constant": without warm-up too, as in nanoGPT
    wsd_decay_fraction: float = 0.2  # of decay_iters

    def at(self, update: float) -> float:
        """The learning rate of update 0, 1, …"""
        if self.schedule == "constant":
            return self.peak_lr
        if update < self.warmup_iters:
            # + 1: never 0, so that the first update counts
            return self.peak_lr * (update + 1) / (self.warmup_iters + 1)
        if update >= self.decay_iters:
            return self.min_lr
        if self.schedule == "wsd":
            decay_updates = max(1, round(self.decay_iters * self.wsd_decay_fraction))
            fraction = min(1.0, (self.decay_iters - update) / decay_updates)
        else:
            progress = (update - self.warmup_iters) / (self.decay_iters - self.warmup_iters)
            fraction = 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.min_lr + (self.peak_lr - self.min_lr) * fraction


def default_warmup_iters(max_iters: int) -> int:
    return min(2000, max_iters // 20)


def default_min_lr(peak_lr: float) -> float:
    return peak_lr / 10


def schedule_of(config: TrainConfig) -> LearningRateSchedule:
    """What the config leaves open follows from the length of the run and the learning rate."""
    return LearningRateSchedule(
        config.learning_rate,
        default_min_lr(config.learning_rate) if config.min_lr is None else config.min_lr,
        default_warmup_iters(config.max_iters) if config.warmup_iters is None else config.warmup_iters,
        config.max_iters if config.lr_decay_iters is None else config.lr_decay_iters,
        config.schedule if config.decay_lr else "constant",
        config.wsd_decay_fraction,
    )


def learning_rate(config: TrainConfig, update: int) -> float:
    """The learning rate of update 0, 1, …"""
    return schedule_of(config).at(update)


def describe_schedule(config: TrainConfig) -> str:
    """One sentence about the schedule, and about what is unusual in it."""
    schedule = schedule_of(config)
    warmup, end = schedule.warmup_iters, schedule.decay_iters
    if not config.decay_lr:
        return f"constant {config.learning_rate:g}, without warm-up"
    if warmup >= config.max_iters:
        updates = "its only update does" if warmup == 1 else f"its {warmup} updates do"
        return f"warm-up only: {updates} not end before --max_iters={config.max_iters}"
    text = (
        f"warm-up over {warmup} {'update' if warmup == 1 else 'updates'} to {config.learning_rate:g}, then "
    )
    decay = "constant, then linear" if config.schedule == "wsd" else config.schedule
    text += f"{decay} to {schedule.min_lr:g} at update {end}"
    if end < config.max_iters:
        left = config.max_iters - end
        text += "; the last update stays there" if left == 1 else f"; the last {left} updates stay there"
    elif end > config.max_iters:
        last = learning_rate(config, config.max_iters - 1)
        text += f"; the run ends before, at {last:.3g}"
    return text
