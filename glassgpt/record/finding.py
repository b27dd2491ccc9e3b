"""A finding: one thing worth knowing about a run. Training reports some while it runs, into the journal; the
rules of explain/ derive the others from a journal or a log.

docs/journal.md explains the fields of the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, get_args

from glassgpt.record.journal import Record

Severity = Literal["info", "advice", "warning", "problem"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)  # the least serious first


@dataclass(frozen=True)
class Finding:
    """What, how bad, the evidence, the reason, and what to do."""

    id: str
    severity: Severity
    title: str  # one sentence without a full stop
    evidence: str  # numbers from this run
    explanation: str
    advice: str  # what to do, with its computed effect; "" where nothing is to be done
    values: Mapping[str, object] = field(default_factory=dict)  # the numbers of its sentences, by name
    at: int | None = None  # its iteration, where it has one

    @property
    def rank(self) -> int:
        """The higher, the more serious."""
        return SEVERITIES.index(self.severity)


def finding_record(
    done: int, id: str, severity: Severity, title: str, *, evidence: str, explanation: str, advice: str
) -> Record:
    """Of a finding that training reports. `done`: updates so far."""
    fields = asdict(Finding(id, severity, title, evidence, explanation, advice))
    del fields["values"], fields["at"]
    return {"kind": "finding", "iter": done, **fields}


def read_finding(record: Mapping[str, object]) -> Finding:
    """From a journal, which may be damaged."""
    severities: dict[str, Severity] = {name: name for name in SEVERITIES}
    title, evidence, explanation, advice = (
        str(record.get(name, "")) for name in ("title", "evidence", "explanation", "advice")
    )
    severity = severities.get(str(record.get("severity")), "info")
    return Finding(str(record.get("id", "")), severity, title, evidence, explanation, advice)


def finding_line(record: Record) -> str:
    """The finding in one line, for a console."""
    advice = f" {record['advice']}." if record["advice"] else ""
    return f"{record['title']} ({record['evidence']}).{advice}"
