"""What a rule receives and returns: `RunAnalysis` in, one `Finding` or None out.

    def loss_spike(analysis: RunAnalysis) -> Finding | None: ...

The rules are in `rules/`, one file per theme; `registry.py` lists them in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from glassgpt.estimate.cards import Card
from glassgpt.runs.curve import block_medians
from glassgpt.runs.facts import Facts
from glassgpt.runs.inference import MAX_FLOPS_ERROR, device_count, flops_per_iteration, stated_peak_flops
from glassgpt.runs.noise import EvalNoise, estimate_eval_noise
from glassgpt.runs.run_log import Ints, RunLog
from glassgpt.runs.trajectory import Trajectory, seconds_between, trajectory_of

Severity = Literal["info", "advice", "warning", "problem"]

# A loss rise: how far the smoothed training loss has to end above its lowest value. These are compared with
# the rise, so that neither noise nor a harder part of the data counts as one.
MIN_LOSS_RISE_STEPS = 25  # logged losses
MAX_LOSS_RISE_BLOCKS = 120  # blocks of at least three losses: a median of fewer does not smooth
MIN_RISE_SHARE_OF_GAIN = 0.04  # of first loss - lowest loss
MIN_RISE_SHARE_OF_LOWEST = 0.05  # of the lowest loss
MIN_RISE_STANDARD_ERRORS = 6.0  # of a block's median
MIN_SUSTAINED_RISE_SHARE = 0.5  # of the required rise, in every block of the last fifth


@dataclass(frozen=True)
class Finding:
    """One thing worth knowing about a run: what, how bad, the evidence, the reason, and what to do."""

    id: str
    severity: Severity
    title: str  # one sentence without a full stop
    evidence: str  # numbers from this log
    explanation: str
    advice: str  # what to do, with its computed effect; "" where nothing is to be done


@dataclass(frozen=True)
class LossRise:
    """A training loss that ended far above its lowest value."""

    first_loss: float
    lowest_loss: float
    lowest_iteration: int
    end_loss: float
    end_iteration: int


@dataclass(frozen=True)
class DeviceThroughput:
    """One steady iteration on one device, as the logged MFU implies it."""

    flops: float
    relative_error: float
    mfu_percent: float
    flops_per_s: float


@dataclass(frozen=True)
class RunAnalysis:
    """What a rule may look at. Values that several rules need are computed once, on first use."""

    log: RunLog
    facts: Facts
    card: Card | None = None  # --gpu

    @cached_property
    def trajectory(self) -> Trajectory:
        return trajectory_of(self.log)

    @cached_property
    def eval_noise(self) -> EvalNoise | None:
        """The noise of one evaluation."""
        return estimate_eval_noise(
            self.log, self.trajectory.evals, self.trajectory.finite_losses()[1], within_run=True
        )

    @cached_property
    def loss_rise(self) -> LossRise | None:
        """A rise of the smoothed training loss; None unless it stayed up until the end."""
        at, losses = self.trajectory.finite_losses()
        if len(losses) < MIN_LOSS_RISE_STEPS:
            return None
        smooth = block_medians(at, losses, min(MAX_LOSS_RISE_BLOCKS, len(losses) // 3))
        lowest_block = int(np.argmin(smooth.medians))
        lowest, first = float(smooth.medians[lowest_block]), float(losses[0])
        last_fifth = smooth.medians[-max(2, len(smooth) // 5) :]
        end = float(np.median(last_fifth))
        required = max(
            MIN_RISE_SHARE_OF_GAIN * (first - lowest),
            MIN_RISE_SHARE_OF_LOWEST * abs(lowest),
            MIN_RISE_STANDARD_ERRORS * float(np.median(smooth.stderrs)),
        )
        stays_up = (
            lowest_block < len(smooth) - len(last_fifth)
            and float(last_fifth.min()) - lowest > MIN_SUSTAINED_RISE_SHARE * required
        )
        if not stays_up or not end - lowest > required:
            return None
        return LossRise(first, lowest, round(float(smooth.centers[lowest_block])), end, int(at[-1]))

    @cached_property
    def throughput(self) -> DeviceThroughput | None:
        """FLOPs of one iteration, from the logged MFU; None where the log has none, or rounds too much."""
        trainer, steady_ms, peak = self.log.trainer, self.facts.steady_ms, stated_peak_flops(self.log)
        if not peak or not steady_ms or not trainer.mfu_peak or not trainer.mfu_is_running_average:
            return None
        iteration = flops_per_iteration(self.log)
        if iteration is None or not iteration.relative_error <= MAX_FLOPS_ERROR:
            return None
        flops = iteration.flops / device_count(self.log)
        flops_per_s = flops / (steady_ms / 1000)
        if not math.isfinite(flops_per_s):
            return None
        return DeviceThroughput(flops, iteration.relative_error, 100 * flops_per_s / peak, flops_per_s)

    def seconds_and_share_after(
        self, after: int, until: int, rows: Ints | None = None
    ) -> tuple[float, float] | None:
        """Seconds of the iterations past `after`, up to `until`, and their share of the run.

        `rows`: count these log lines only, instead of the trajectory's.
        """
        steps, total_s, trajectory = self.log.steps, self.facts.estimated_total_s, self.trajectory
        if rows is not None:
            trajectory = replace(trajectory, iteration=steps.iteration[rows], ms=steps.ms[rows])
        seconds = seconds_between(trajectory, after, until, self.facts.steady_ms)
        if not total_s or not seconds or not math.isfinite(total_s) or not 0 < seconds <= total_s:
            return None
        return seconds, seconds / total_s


Rule = Callable[[RunAnalysis], Finding | None]
