"""One thing worth knowing about a run: what, how bad, by what evidence, why, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from glassgpt.estimate.cards import Card
from glassgpt.explain.loss_rise import Rise, rise_of
from glassgpt.explain.step_flops import Work, work_of
from glassgpt.runs.facts import Facts
from glassgpt.runs.noise import Noise, evaluation_noise
from glassgpt.runs.run_log import History
from glassgpt.runs.trajectory import Course, course_of

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
class Case:
    """What a finding may look at. What several of them ask for is worked out once."""

    history: History
    facts: Facts
    card: Card | None = None  # --gpu

    @cached_property
    def course(self) -> Course:
        return course_of(self.history)

    @cached_property
    def noise(self) -> Noise | None:
        """Of one evaluation."""
        return evaluation_noise(self.history, self.course.evals, self.course.losses()[1], of_one_course=True)

    @cached_property
    def rise(self) -> Rise | None:
        return rise_of(self.course)

    @cached_property
    def work(self) -> Work | None:
        return work_of(self.history, self.facts)


Finder = Callable[[Case], Finding | None]
