"""What an expert would say about a run: facts, findings in order of importance, and a verdict.

explanation = explain(read_run_log("train.log"))
print(explanation.verdict, [finding.id for finding in explanation.findings])
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from glassgpt.estimate.cards import Card
from glassgpt.explain.registry import RULES
from glassgpt.explain.rule import Finding, RunAnalysis
from glassgpt.explain.summary import compose_verdict
from glassgpt.runs.facts import Facts, compute_facts
from glassgpt.runs.run_log import RunLog

_SEVERITY_ORDER = {"problem": 0, "warning": 1, "advice": 2, "info": 3}


@dataclass(frozen=True)
class Explanation:
    log: RunLog
    facts: Facts
    findings: list[Finding]
    verdict: list[str]  # sentences, the most important first
    earlier: tuple[Explanation, ...] = ()  # of runs of other trainers before it in the same log

    def as_dict(self) -> dict[str, object]:
        document: dict[str, object] = {
            "format": self.log.trainer.id,
            "facts": self.facts.as_dict(),
            "findings": [asdict(finding) for finding in self.findings],
            "verdict": self.verdict,
        }
        if self.earlier:
            document["earlier"] = [explanation.as_dict() for explanation in self.earlier]
        return document


def explain(run_log: RunLog, card: Card | None = None) -> Explanation:
    """`card`: the one it ran on, if the user names it (--gpu)."""
    facts = compute_facts(run_log)
    analysis = RunAnalysis(run_log, facts, card)
    findings = [finding for rule in RULES if (finding := rule(analysis)) is not None]
    for record in run_log.journal_findings:  # those that a GlassGPT run made itself, while it trained
        severity = str(record.get("severity"))
        findings.append(
            Finding(
                id=str(record.get("id", "")),
                severity=severity if severity in _SEVERITY_ORDER else "info",  # type: ignore[arg-type]
                title=str(record.get("title", "")),
                evidence=str(record.get("evidence", "")),
                explanation=str(record.get("explanation", "")),
                advice=str(record.get("advice", "")),
            )
        )
    findings.sort(key=lambda finding: _SEVERITY_ORDER[finding.severity])
    earlier = tuple(explain(one, card) for one in run_log.earlier_runs)
    return Explanation(run_log, facts, findings, compose_verdict(run_log, facts, findings), earlier)
