"""The learning rate over a run: the trainer sets it, forecasts count on it, rules check it. No torch.

LearningRate(peak=6e-4, floor=6e-5, warmup=2000, end=600_000).at(2000)     # 6e-4
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from glassgpt.config import TrainConfig, decay_iters, min_lr, warmup_iters


@dataclass(frozen=True)
class LearningRateSchedule:
    """Linear warm-up to the peak, then down to the floor by a `cosine`, or by `wsd`: late and straight."""

    peak_lr: float
    min_lr: float
    warmup_iters: float  # updates
    decay_iters: float  # the update from which on it stays at the floor
    schedule: str = "cosine"  # "wsd"; "constant": no warm-up either, as nanoGPT means it
    wsd_decay_fraction: float = 0.2  # of all updates until the end

    def at(self, update: float) -> float:
        """The rate of update 0, 1, …"""
        if self.schedule == "constant":
            return self.peak_lr
        if update < self.warmup_iters:
            return (
                self.peak_lr * (update + 1) / (self.warmup_iters + 1)
            )  # never 0: the first update should count
        if update >= self.decay_iters:
            return self.min_lr
        return self.min_lr + (self.peak_lr - self.min_lr) * self._height(update)

    def _height(self, update: float) -> float:
        """Between the floor, 0, and the peak, 1."""
        if self.schedule == "wsd":
            fall = max(1, round(self.decay_iters * self.wsd_decay_fraction))
            return min(1.0, (self.decay_iters - update) / fall)
        done = (update - self.warmup_iters) / (self.decay_iters - self.warmup_iters)
        return 0.5 * (1.0 + math.cos(math.pi * done))


def learning_rate(config: TrainConfig, update: int) -> float:
    """The rate of update 0, 1, …"""
    return LearningRateSchedule(
        config.learning_rate,
        min_lr(config),
        warmup_iters(config),
        decay_iters(config),
        config.schedule if config.decay_lr else "constant",
        config.wsd_decay_fraction,
    ).at(update)


def describe_schedule(config: TrainConfig) -> str:
    """One sentence about the schedule, with what is odd about it."""
    warmup, end = warmup_iters(config), decay_iters(config)
    if not config.decay_lr:
        return f"constant {config.learning_rate:g}, without warm-up"
    if warmup >= config.max_iters:
        whole = "its only update does" if warmup == 1 else f"its {warmup} updates do"
        return f"warm-up only: {whole} not end before --max_iters={config.max_iters}"
    text = (
        f"warm-up over {warmup} {'update' if warmup == 1 else 'updates'} to {config.learning_rate:g}, then "
    )
    text += f"{config.schedule} to {min_lr(config):g} at update {end}"
    if end < config.max_iters:
        left = config.max_iters - end
        text += "; the last update stays there" if left == 1 else f"; the last {left} updates stay there"
    elif end > config.max_iters:
        last = learning_rate(config, config.max_iters - 1)
        text += f"; the run ends before, at {last:.3g}"
    return text
