"""One thing worth knowing about a run: what, how bad, by what evidence, why, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from glassgpt.account.hardware import Card
from glassgpt.insight.facts import Facts
from glassgpt.insight.history import History

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
    """What a finding may look at."""

    history: History
    facts: Facts
    card: Card | None = None  # --gpu


Finder = Callable[[Case], Finding | None]
