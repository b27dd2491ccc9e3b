"""Findings with given sentences, as an old journal holds them."""

from __future__ import annotations

from glassgpt.record.finding import Finding, Severity, read_finding


def written_finding(
    id: str, severity: Severity, title: str, evidence: str = "", explanation: str = "", advice: str = ""
) -> Finding:
    return read_finding(
        {
            "id": id,
            "severity": severity,
            "title": title,
            "evidence": evidence,
            "explanation": explanation,
            "advice": advice,
        }
    )
