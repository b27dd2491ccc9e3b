"""One thing worth knowing about a run: what, how bad, by what evidence, why, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from glassgpt.estimate.cards import Card
from glassgpt.explain.loss_rise import LossRise, find_loss_rise
from glassgpt.explain.step_flops import DeviceThroughput, infer_device_throughput
from glassgpt.runs.facts import Facts
from glassgpt.runs.noise import EvalNoise, estimate_eval_noise
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trajectory import Trajectory, trajectory_of

Severity = Literal["info", "advice", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    id: str
    severity: Severity
    title: str  # one sentence without a full stop
    evidence: str  # numbers from this log
    explanation: str
    advice: str  # what to do, with its computed effect; "" where nothing is to be done


@dataclass(frozen=True)
class RunAnalysis:
    """What a finding may look at. What several of them ask for is worked out once."""

    log: RunLog
    facts: Facts
    card: Card | None = None  # --gpu

    @cached_property
    def trajectory(self) -> Trajectory:
        return trajectory_of(self.log)

    @cached_property
    def eval_noise(self) -> EvalNoise | None:
        """Of one evaluation."""
        return estimate_eval_noise(
            self.log, self.trajectory.evals, self.trajectory.finite_losses()[1], of_one_course=True
        )

    @cached_property
    def loss_rise(self) -> LossRise | None:
        return find_loss_rise(self.trajectory)

    @cached_property
    def throughput(self) -> DeviceThroughput | None:
        return infer_device_throughput(self.log, self.facts)


Rule = Callable[[RunAnalysis], Finding | None]
