"""What a check is, what it finds, and the page made of all findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from glassgpt.doctor.redact import discreet
from glassgpt.sanitize import harmless_record
from glassgpt.version import VERSION

Verdict = Literal["ok", "note", "problem"]
Number = str | float | int | bool | None


@dataclass(frozen=True)
class Line:
    """One thing that was found."""

    name: str
    says: str
    verdict: Verdict = "ok"
    fix: str = ""  # what to do about it
    numbers: Mapping[str, Number] = field(default_factory=dict)  # the same for programs, in plain units
    error: str = ""  # in full, where a check failed

    def clean(self) -> Line:
        """Without what could harm a terminal, and without what says whose machine it is."""
        texts = {name: discreet(value) for name, value in asdict(self).items() if isinstance(value, str)}
        return replace(self, **harmless_record(texts), numbers=harmless_record(_discreet(self.numbers)))


def _discreet(numbers: Mapping[str, Number]) -> dict[str, Number]:
    return {name: discreet(value) if isinstance(value, str) else value for name, value in numbers.items()}


@dataclass(frozen=True)
class Visit:
    """What a check may need to know."""

    out_dir: Path  # where runs would go
    folder: Path  # to work in; gone afterwards
    quick: bool = False


@dataclass(frozen=True)
class Check:
    name: str
    section: str
    look: Callable[[Visit], Sequence[Line]]
    doing: str  # what is shown while it is under way
    slow: bool = False  # takes longer than a second
    needs: str = ""  # another check, without which this one makes no sense
    fix: str = ""  # if the check itself fails


@dataclass(frozen=True)
class Answer:
    """A check and what it found."""

    check: Check
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Page:
    """Everything that was found, in order."""

    answers: tuple[Answer, ...]
    left_out: tuple[Check, ...]
    seconds: float

    def of(self, verdict: Verdict) -> list[Line]:
        return [line for answer in self.answers for line in answer.lines if line.verdict == verdict]

    @property
    def verdict(self) -> Verdict:
        return "problem" if self.of("problem") else "note" if self.of("note") else "ok"

    @property
    def exit_code(self) -> int:
        return 1 if self.verdict == "problem" else 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "glassgpt": VERSION,
            "verdict": self.verdict,
            "problems": len(self.of("problem")),
            "notes": len(self.of("note")),
            "ok": len(self.of("ok")),
            "seconds": round(self.seconds, 3),
            "left_out": [check.name for check in self.left_out],
            "lines": [
                {"section": answer.check.section, "check": answer.check.name, **asdict(line)}
                for answer in self.answers
                for line in answer.lines
            ],
        }
