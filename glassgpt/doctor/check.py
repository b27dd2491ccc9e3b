"""What a check is, what it finds, and the page made of all findings."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from pathlib import Path
from typing import Any
from typing import Literal

from glassgpt.doctor.redact import redact
from glassgpt.sanitize import sanitize_record
from glassgpt.version import VERSION

CheckVerdict = Literal["ok", "note", "problem"]
ReportValue = str | float | int | bool | None


@dataclass(frozen=True)
class DiagnosticLine:
    """One thing that was found."""

    name: str
    says: str
    verdict: CheckVerdict = "ok"
    fix: str = ""  # what to do about it
    numbers: Mapping[str, ReportValue] = field(default_factory=dict)  # the same for programs, in plain units
    error: str = ""  # in full, where a check failed

    def sanitized(self) -> DiagnosticLine:
        """Without what could harm a terminal, and without what says whose machine it is."""
        texts = {name: redact(value) for name, value in asdict(self).items() if isinstance(value, str)}
        return replace(self, **sanitize_record(texts), numbers=sanitize_record(_discreet(self.numbers)))


def _discreet(numbers: Mapping[str, ReportValue]) -> dict[str, ReportValue]:
    return {name: redact(value) if isinstance(value, str) else value for name, value in numbers.items()}


@dataclass(frozen=True)
class CheckContext:
    """What a check may need to know."""

    out_dir: Path  # where runs would go
    scratch_dir: Path  # to work in; gone afterwards
    quick: bool = False


@dataclass(frozen=True)
class Check:
    name: str
    section: str
    run: Callable[[CheckContext], Sequence[DiagnosticLine]]
    progress_text: str  # what is shown while it is under way
    is_slow: bool = False  # takes longer than a second
    depends_on: str = ""  # another check, without which this one makes no sense
    fix: str = ""  # if the check itself fails


@dataclass(frozen=True)
class CheckResult:
    """A check and what it found."""

    check: Check
    lines: tuple[DiagnosticLine, ...]


@dataclass(frozen=True)
class DoctorReport:
    """Everything that was found, in order."""

    results: tuple[CheckResult, ...]
    skipped: tuple[Check, ...]
    seconds: float

    def lines_with(self, verdict: CheckVerdict) -> list[DiagnosticLine]:
        return [line for answer in self.results for line in answer.lines if line.verdict == verdict]

    @property
    def verdict(self) -> CheckVerdict:
        return "problem" if self.lines_with("problem") else "note" if self.lines_with("note") else "ok"

    @property
    def exit_code(self) -> int:
        return 1 if self.verdict == "problem" else 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "glassgpt": VERSION,
            "verdict": self.verdict,
            "problems": len(self.lines_with("problem")),
            "notes": len(self.lines_with("note")),
            "ok": len(self.lines_with("ok")),
            "seconds": round(self.seconds, 3),
            "left_out": [check.name for check in self.skipped],
            "lines": [
                {"section": answer.check.section, "check": answer.check.name, **asdict(line)}
                for answer in self.results
                for line in answer.lines
            ],
        }
