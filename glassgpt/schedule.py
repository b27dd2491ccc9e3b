"""The learning rate over the run."""

from __future__ import annotations

from glassgpt.config import TrainConfig, decay_iters, min_lr, warmup_iters
from glassgpt.learning_rate import LearningRate


def learning_rate(config: TrainConfig, update: int) -> float:
    """The rate of update 0, 1, …"""
    return LearningRate(
        config.learning_rate,
        min_lr(config),
        warmup_iters(config),
        decay_iters(config),
        config.schedule if config.decay_lr else "constant",
        config.wsd_decay_fraction,
    ).at(update)


def describe(config: TrainConfig) -> str:
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
