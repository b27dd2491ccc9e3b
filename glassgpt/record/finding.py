"""A finding: one thing worth knowing about a run. Training reports some while it runs, into the journal; the
rules of explain/ derive the others from a journal or a log.

It consists of message keys and values; the sentences are in the catalogues of i18n. docs/journal.md
explains the fields of the record.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from glassgpt.i18n import (
    Message,
    Text,
    has_message,
    make_text,
    message_values,
    render_text,
    use_language,
    verbatim,
)
from glassgpt.record.journal import Record
from glassgpt.record.suggested_commands import suggested_commands

Severity = Literal["info", "advice", "warning", "problem"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)  # the least serious first
SERIOUS = SEVERITIES[2:]  # those that a run rings for
MAX_LINES = 8  # of a log, that show a finding
PARTS = ("title", "evidence", "explanation", "advice", "more")
_STORED_PARTS = PARTS[:-1]  # in a journal: what training reports is short

Sentences = Message | None | Iterable[Message | None]


@dataclass(frozen=True)
class Finding:
    """What, how bad, the evidence, the reason, and what to do. See `make_finding`."""

    id: str
    severity: Severity
    text: Mapping[str, Text]  # the messages of each of PARTS
    at: int | None = None  # its iteration, where it has one
    # What it says of a subject that others speak of too: findings of a run must not contradict each other.
    claims: Mapping[str, object] = field(default_factory=dict)
    lines: tuple[int, ...] = ()  # of the log, that show it, from 1: the first MAX_LINES

    @property
    def title(self) -> str:
        """One sentence without a full stop. Like the other parts, in the current language."""
        return render_text(self.text["title"])

    @property
    def evidence(self) -> str:
        return render_text(self.text["evidence"])

    @property
    def explanation(self) -> str:
        return render_text(self.text["explanation"])

    @property
    def advice(self) -> str:
        """What to do, with its computed effect; "" where nothing is to be done."""
        return render_text(self.text["advice"])

    @property
    def more(self) -> str:
        """Detail that one or two lines of evidence, explanation and advice have no room for; mostly ""."""
        return render_text(self.text["more"])

    @property
    def commands(self) -> list[dict[str, object]]:
        """What the advice says to change, as data."""
        return suggested_commands(self.text["advice"])

    @property
    def values(self) -> dict[str, object]:
        """What its sentences say, by name."""
        return message_values(message for part in PARTS for message in self.text[part])

    @property
    def severity_level(self) -> int:
        """The higher, the more serious."""
        return SEVERITIES.index(self.severity)

    def as_dict(self) -> dict[str, object]:
        """For JSON, with the sentences in the current language."""
        sentences = {part: render_text(self.text[part]) for part in PARTS}
        head = {"id": self.id, "severity": self.severity}
        place = {"at": self.at, "lines": list(self.lines)}
        details = {"values": self.values, **place, "claims": dict(self.claims), "commands": self.commands}
        return {**head, **sentences, **details}


def make_finding(
    id: str,
    severity: Severity,
    *,
    title: Message,
    evidence: Sentences = None,
    explanation: Sentences = None,
    advice: Sentences = None,
    more: Sentences = None,
    at: int | None = None,
    claims: Mapping[str, object] | None = None,
    lines: Iterable[int] = (),
) -> Finding:
    """`evidence`: numbers from this run. `advice`: what to do. `more`: detail that is shown on request, so
    that the other parts are at most two lines each. Sentences that are None are left out.

    `lines`: of the log, that show it; `Analysis.lines_at` finds them. 0 is not known, and left out."""
    parts = (title, evidence, explanation, advice, more)
    text = {name: make_text(part) for name, part in zip(PARTS, parts, strict=True)}
    known_lines = sorted({int(line) for line in lines if line > 0})
    return Finding(id, severity, text, at, claims or {}, tuple(known_lines[:MAX_LINES]))


def finding_record(
    done: int,
    id: str,
    severity: Severity,
    *,
    title: Message,
    evidence: Sentences,
    explanation: Sentences,
    advice: Sentences = None,
) -> Record:
    """The record of a finding that training reports. `done`: updates so far.

    Its sentences are stored in English, for programs that read journals, and as keys, so that they can be
    shown in other languages.
    """
    finding = make_finding(
        id, severity, title=title, evidence=evidence, explanation=explanation, advice=advice, at=done
    )
    with use_language("en"):
        fields = finding.as_dict()
    for name in ("claims", "lines", "more", "commands"):  # of a finding of explain
        del fields[name]
    messages = {part: [message.key for message in finding.text[part]] for part in _STORED_PARTS}
    return {"kind": "finding", "iter": done, **fields, "messages": messages}


def read_finding(record: Mapping[str, object]) -> Finding:
    """From a journal, which may be damaged. Where it names messages that changed, its stored text is kept."""
    severities: dict[str, Severity] = {name: name for name in SEVERITIES}
    severity = severities.get(str(record.get("severity")), "info")
    stored = {part: str(record.get(part, "")) for part in PARTS}
    keys, values, at = record.get("messages"), record.get("values"), record.get("at")
    text: dict[str, Text] = {
        part: make_text(verbatim(stored[part]) if stored[part] else None) for part in PARTS
    }
    if isinstance(keys, Mapping) and isinstance(values, Mapping):
        text |= {
            part: messages
            for part in _STORED_PARTS
            if (messages := _read_messages(keys.get(part), values, stored[part])) is not None
        }
    return Finding(str(record.get("id", "")), severity, text, at if isinstance(at, int) else None)


def _read_messages(keys: object, values: Mapping[str, object], stored: str) -> Text | None:
    """None where they do not give the stored English text any more."""
    if not isinstance(keys, list) or not all(isinstance(key, str) and has_message(key) for key in keys):
        return None
    text = tuple(Message(key, dict(values)) for key in keys)
    try:
        with use_language("en"):
            rendered = render_text(text)
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError):  # values of another version
        return None
    return text if rendered == stored else None


def capitalized(text: str) -> str:
    """What training reports follows a label; elsewhere it begins a sentence. Names stay."""
    return text[:1].upper() + text[1:] if re.match(r"(?!(?:glass|mfu)\b)[a-z]+ ", text) else text


def finding_line(record: Record) -> str:
    """The finding in one line, for a console."""
    advice = f" {capitalized(str(record['advice']))}." if record["advice"] else ""
    return f"{record['title']} ({record['evidence']}).{advice}"
