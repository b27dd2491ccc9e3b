"""What an expert would say about a run: facts, findings in order of importance, and a verdict.

explanation = explain(read_run_log("train.log"))
print(explanation.verdict, [finding.id for finding in explanation.findings])
"""

from __future__ import annotations

from dataclasses import dataclass

from glassgpt.estimate.cards import Card
from glassgpt.explain.registry import RULES
from glassgpt.explain.summary import compose_verdict
from glassgpt.record.finding import Finding, read_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.facts import Facts
from glassgpt.runs.run_log import RunLog

SCHEMA_VERSION = 1  # of the JSON document; new keys do not raise it


@dataclass(frozen=True)
class Explanation:
    log: RunLog
    facts: Facts
    findings: list[Finding]
    verdict: list[str]  # sentences, the most important first
    earlier: tuple[Explanation, ...] = ()  # of runs of other trainers before it in the same log

    def as_dict(self) -> dict[str, object]:
        document: dict[str, object] = {
            "schema_version": SCHEMA_VERSION,
            "format": self.log.trainer.id,
            "facts": self.facts.as_dict(),
            "findings": [finding.as_dict() for finding in self.findings],
            "verdict": self.verdict,
        }
        if self.log.columns:
            document["columns"] = dict(self.log.columns)
        if self.earlier:
            document["earlier"] = [explanation.as_dict() for explanation in self.earlier]
        return document


def explain(run_log: RunLog, card: Card | None = None) -> Explanation:
    """`card`: the one it ran on, if the user names it (--gpu)."""
    analysis = Analysis(run_log, card)
    findings = [finding for rule in RULES if (finding := rule(analysis)) is not None]
    # Those that a GlassGPT run made itself, while it trained.
    findings += [read_finding(record) for record in run_log.journal_findings]
    findings.sort(key=lambda finding: finding.severity_level, reverse=True)
    earlier = tuple(explain(one, card) for one in run_log.earlier_runs)
    verdict = compose_verdict(run_log, analysis.facts, findings)
    return Explanation(run_log, analysis.facts, findings, verdict, earlier)
