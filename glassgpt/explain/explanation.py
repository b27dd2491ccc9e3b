"""What an expert would say about a run: facts, findings in order of importance, and a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from glassgpt.estimate.cards import Card
from glassgpt.explain.rule import Finding, RunAnalysis
from glassgpt.explain.rules import crash_rules, learning_rules, mfu, resumes, timing_rules
from glassgpt.explain.summary import compose_verdict
from glassgpt.runs.facts import Facts, compute_facts
from glassgpt.runs.run_log import RunLog

_RULES = (
    *crash_rules.RULES,
    *learning_rules.RULES,
    *resumes.RULES,
    *timing_rules.RULES,
    *mfu.RULES,
)
_SEVERITY_ORDER = {"problem": 0, "warning": 1, "advice": 2, "info": 3}


@dataclass(frozen=True)
class Explanation:
    log: RunLog
    facts: Facts
    findings: list[Finding]
    verdict: list[str]  # sentences, the most important first
    earlier: tuple[Explanation, ...] = ()  # of runs of other trainers before it in the same log

    def as_dict(self) -> dict[str, object]:
        told: dict[str, object] = {
            "format": self.log.trainer.id,
            "facts": self.facts.as_dict(),
            "findings": [asdict(finding) for finding in self.findings],
            "verdict": self.verdict,
        }
        return told | ({"earlier": [one.as_dict() for one in self.earlier]} if self.earlier else {})


def explain(history: RunLog, card: Card | None = None) -> Explanation:
    """`card`: the one it ran on, where the reader says so."""
    with np.errstate(over="ignore", invalid="ignore"):  # a log may say anything; what comes of it is checked
        facts = compute_facts(history)
        case = RunAnalysis(history, facts, card)
        found = [finding for finder in _RULES if (finding := finder(case)) is not None]
    found += [_recorded(record) for record in history.journal_findings]
    findings = sorted(found, key=lambda finding: _SEVERITY_ORDER[finding.severity])
    earlier = tuple(explain(one, card) for one in history.earlier)
    return Explanation(history, facts, findings, compose_verdict(history, facts, findings), earlier)


def _recorded(record: Mapping[str, object]) -> Finding:
    """One that the run made itself, while it went on."""
    severity = str(record.get("severity"))
    return Finding(
        id=str(record.get("id", "")),
        severity=severity if severity in _SEVERITY_ORDER else "info",  # type: ignore[arg-type]
        title=str(record.get("title", "")),
        evidence=str(record.get("evidence", "")),
        explanation=str(record.get("explanation", "")),
        advice=str(record.get("advice", "")),
    )
