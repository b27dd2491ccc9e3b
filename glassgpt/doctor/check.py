"""A check of this machine, the lines it prints, and the report of all checks."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from glassgpt.config import has_invalid_characters
from glassgpt.files import expand_user_path
from glassgpt.sanitize import sanitize_record
from glassgpt.version import VERSION

_GENERIC_NAMES = {"root", "user", "runs", "home", "tmp", "localhost"}


def redact(text: str, home: str | None = None, user: str | None = None, host: str | None = None) -> str:
    """With `~` for the home folder, and USER and HOST where a path or an address has their names."""
    home = str(Path.home()) if home is None else home
    user = Path(home).name if user is None else user
    host = platform.node() if host is None else host
    if len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?![\w-])", "~", text)
    for name in {user, os.environ.get("USER", ""), os.environ.get("USERNAME", "")} - {""} - _GENERIC_NAMES:
        # As a part of a path, or behind an underscore as in /tmp/torchinductor_NAME; never a word of a text.
        text = re.sub(rf"(?<=[/\\_]){re.escape(name)}(?=[/\\'\":\s]|$)", "USER", text)
    if host and host.lower() not in _GENERIC_NAMES:
        text = re.sub(rf"(?<=[@/]){re.escape(host)}(?![\w-])", "HOST", text)
    return text


CheckVerdict = Literal["ok", "note", "problem"]
ReportValue = str | float | int | bool | None


@dataclass(frozen=True)
class DiagnosticLine:
    """One line of the report."""

    name: str
    says: str
    verdict: CheckVerdict = "ok"
    fix: str = ""  # what to do about it
    numbers: Mapping[str, ReportValue] = field(default_factory=dict)  # the same for programs, in plain units
    error: str = ""  # in full, where a check failed

    def sanitized(self) -> DiagnosticLine:
        """Without control characters, and without names of the user and the machine."""
        numbers = {
            name: redact(value) if isinstance(value, str) else value for name, value in self.numbers.items()
        }
        texts = {name: redact(value) for name, value in asdict(self).items() if isinstance(value, str)}
        return replace(self, **sanitize_record(texts), numbers=sanitize_record(numbers))


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
    """A check and its lines."""

    check: Check
    lines: tuple[DiagnosticLine, ...]


@dataclass(frozen=True)
class DoctorReport:
    """All results, in order."""

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


@dataclass(frozen=True)
class DoctorOptions:
    """Look at this machine: what it has, how fast it is, and whether training here does what it should.

    Every line has a verdict: ok, note, or problem with a fix. Exit code 0: no problem. 1: at least one.
    """

    # Print everything as one JSON document.
    json: bool = False
    # Leave out what takes longer than a second: matmuls, compiling, self-tests.
    quick: bool = False
    # The folder whose disk is looked at: where runs go. Default: runs/.
    out_dir: str = ""


def check_doctor_options(options: DoctorOptions) -> list[str]:
    if has_invalid_characters(options.out_dir) or "\0" in options.out_dir:
        return ["--out_dir is no name that a folder can have"]
    for path in (place := runs_dir(options), *place.parents):
        if path.exists() and not path.is_dir():
            return [f"--out_dir={options.out_dir} cannot be a folder: {path} is a file"]
    return []


def runs_dir(options: DoctorOptions) -> Path:
    return expand_user_path(options.out_dir or "runs")
