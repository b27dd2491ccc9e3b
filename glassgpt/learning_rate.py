"""The learning rate over a run: the trainer sets it, forecasts count on it, findings check it. No torch.

LearningRate(peak=6e-4, floor=6e-5, warmup=2000, end=600_000).at(2000)     # 6e-4
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class LearningRate:
    """Linear warm-up to the peak, then down to the floor by a `cosine`, or by `wsd`: late and straight."""

    peak: float
    floor: float
    warmup: float  # updates
    end: float  # the update from which on it stays at the floor
    schedule: str = "cosine"  # "wsd"; "constant": no warm-up either, as nanoGPT means it
    wsd_decay_fraction: float = 0.2  # of all updates until the end

    def at(self, update: float) -> float:
        """The rate of update 0, 1, …"""
        if self.schedule == "constant":
            return self.peak
        if update < self.warmup:
            return self.peak * (update + 1) / (self.warmup + 1)  # never 0: the first update should count
        if update >= self.end:
            return self.floor
        return self.floor + (self.peak - self.floor) * self._height(update)

    def _height(self, update: float) -> float:
        """Between the floor, 0, and the peak, 1."""
        if self.schedule == "wsd":
            fall = max(1, round(self.end * self.wsd_decay_fraction))
            return min(1.0, (self.end - update) / fall)
        done = (update - self.warmup) / (self.end - self.warmup)
        return 0.5 * (1.0 + math.cos(math.pi * done))
