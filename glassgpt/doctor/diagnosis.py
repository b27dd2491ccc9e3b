"""A check of this machine, the report of all checks, and the options of `glass doctor`."""

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
    """The text with `~` for the home folder, and USER and HOST for their names in paths and addresses."""
    home = str(Path.home()) if home is None else home
    user = Path(home).name if user is None else user
    host = platform.node() if host is None else host
    if len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?![\w-])", "~", text)
    for name in {user, os.environ.get("USER", ""), os.environ.get("USERNAME", "")} - {""} - _GENERIC_NAMES:
        # Only as part of a path, or after an underscore as in /tmp/torchinductor_NAME; never a plain word.
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
    message: str
    verdict: CheckVerdict = "ok"
    fix: str = ""  # what to do about it
    values: Mapping[str, ReportValue] = field(default_factory=dict)  # machine-readable, in base units
    error: str = ""  # the traceback, if a check failed

    def note(self, remark: str = "", fix: str = "") -> DiagnosticLine:
        """This line as a note, with a remark at its end."""
        return replace(self, message=self.message + remark, verdict="note", fix=fix)

    def problem(self, remark: str, fix: str) -> DiagnosticLine:
        return replace(self, message=self.message + remark, verdict="problem", fix=fix)

    def sanitized(self) -> DiagnosticLine:
        """Without control characters, and without the names of the user and the machine."""
        values = {
            name: redact(value) if isinstance(value, str) else value for name, value in self.values.items()
        }
        texts = {name: redact(value) for name, value in asdict(self).items() if isinstance(value, str)}
        return replace(self, **sanitize_record(texts), values=sanitize_record(values))


@dataclass(frozen=True)
class CheckContext:
    """What a check may need."""

    out_dir: Path  # the folder of the runs
    scratch_dir: Path  # removed at the end
    quick: bool = False


@dataclass(frozen=True)
class Check:
    name: str
    section: str
    run: Callable[[CheckContext], Sequence[DiagnosticLine]]
    progress_text: str  # shown while it runs
    is_slow: bool = False  # takes longer than a second
    depends_on: str = ""  # a check that must not fail, else this one is skipped
    fix: str = ""  # shown if the check itself fails


@dataclass(frozen=True)
class CheckResult:
    check: Check
    lines: tuple[DiagnosticLine, ...]


@dataclass(frozen=True)
class DoctorReport:
    results: tuple[CheckResult, ...]
    skipped: tuple[Check, ...]
    seconds: float

    def lines_with(self, verdict: CheckVerdict) -> list[DiagnosticLine]:
        return [line for result in self.results for line in result.lines if line.verdict == verdict]

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
                {
                    "section": result.check.section,
                    "check": result.check.name,
                    "name": line.name,
                    "says": line.message,
                    "verdict": line.verdict,
                    "fix": line.fix,
                    "numbers": dict(line.values),
                    "error": line.error,
                }
                for result in self.results
                for line in result.lines
            ],
        }


@dataclass(frozen=True)
class DoctorOptions:
    """Check this machine: its hardware, its speed, and whether training on it is correct.

    Every line has a verdict: ok, note, or problem with a fix. Exit code 0: no problem. 1: at least one.
    """

    # Print everything as one JSON document.
    json: bool = False
    # Skip checks that take longer than a second: matmuls, compiling, self-tests.
    quick: bool = False
    # The folder of the runs, whose disk is checked. Default: runs/.
    out_dir: str = ""


def check_doctor_options(options: DoctorOptions) -> list[str]:
    if has_invalid_characters(options.out_dir):
        return ["--out_dir is not a valid folder name"]
    for path in (place := runs_dir(options), *place.parents):
        if path.exists() and not path.is_dir():
            return [f"--out_dir={options.out_dir} cannot be a folder: {path} is a file"]
    return []


def runs_dir(options: DoctorOptions) -> Path:
    return expand_user_path(options.out_dir or "runs")
