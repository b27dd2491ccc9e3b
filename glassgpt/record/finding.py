"""A finding as the journal keeps it: one thing worth knowing about a run, said while it goes on.

docs/journal.md explains the fields; insight/findings has those that are worked out from a record afterwards.
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
    """`done`: updates so far. `name`: what kind of finding it is."""
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
    """What a console prints of it."""
    advice = f" {record['advice']}." if record["advice"] else ""
    return f"{record['title']} ({record['evidence']}).{advice}"
