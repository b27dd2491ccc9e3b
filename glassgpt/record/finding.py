"""A finding as a record of the journal: one thing worth knowing about a run, reported while it trains.

docs/journal.md explains the fields. Findings that are derived from a finished journal or log are in explain/.
"""

from __future__ import annotations

from typing import Literal

from glassgpt.record.journal import Record

Severity = Literal["info", "advice", "warning"]


def finding_record(
    done: int,
    name: str,
    severity: Severity,
    title: str,
    *,
    evidence: str,
    explanation: str,
    advice: str,
) -> Record:
    """`done`: updates so far. `name`: the finding's id."""
    return {
        "kind": "finding",
        "iter": done,
        "id": name,
        "severity": severity,
        "title": title,
        "evidence": evidence,
        "explanation": explanation,
        "advice": advice,
    }


def finding_line(record: Record) -> str:
    """The finding in one line, for a console."""
    advice = f" {record['advice']}." if record["advice"] else ""
    return f"{record['title']} ({record['evidence']}).{advice}"
