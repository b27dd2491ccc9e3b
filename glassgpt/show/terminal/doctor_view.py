"""The page of `glass doctor` in a terminal, line by line as it is found."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from glassgpt import format
from glassgpt.doctor.check import CheckResult, DiagnosticLine, DoctorReport

_STYLES = {"ok": "green", "note": "bold yellow", "problem": "bold red"}
_VERDICT_WIDTH, _NAME_WIDTH = 9, 14


class DoctorConsole:
    """Prints answers under the headings of their sections."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._section = ""

    def print_answer(self, answer: CheckResult) -> None:
        if not answer.lines:
            return
        if answer.check.section != self._section:
            if self._section:
                self._out.print()
            self._section = answer.check.section
            self._out.print(Text(self._section, style="bold"))
        for line in answer.lines:
            self._print_check_line(line)

    def _print_check_line(self, line: DiagnosticLine) -> None:
        verdict = f"{line.verdict:<{_VERDICT_WIDTH}}"
        head = Text.assemble((verdict, _STYLES[line.verdict]), (f"{line.name:<{_NAME_WIDTH}} ", "bold"))
        _print_hanging_indent(head, line.says, "", self._out)
        if line.fix:
            _print_hanging_indent(Text(" " * len(head)), f"fix: {line.fix}", "cyan", self._out)

    def print_summary(self, page: DoctorReport) -> None:
        """The verdict on all of it."""
        counts = [
            format.pluralize(len(page.lines_with("problem")), "problem"),
            format.pluralize(len(page.lines_with("note")), "note"),
        ]
        said = (
            f"{', '.join(counts)}, {len(page.lines_with('ok'))} ok, in {format.format_duration(page.seconds)}"
        )
        head = Text.assemble((f"{'verdict':<{_VERDICT_WIDTH}}", _STYLES[page.verdict]))
        self._out.print()
        _print_hanging_indent(head, said, "bold", self._out)
        for line in page.lines_with("problem"):
            _print_hanging_indent(
                Text(" " * len(head)), f"{line.name}: {line.fix or line.says}", "red", self._out
            )
        if page.skipped:
            names = ", ".join(check.name for check in page.skipped)
            _print_hanging_indent(Text(" " * len(head)), f"left out by --quick: {names}", "dim", self._out)


def _print_hanging_indent(head: Text, text: str, style: str, out: Console) -> None:
    """The text beside its head; further lines begin under the first."""
    lines = Text(" ".join(text.split()), style=style).wrap(out, max(20, out.width - len(head)))
    for number, line in enumerate(lines):
        line.rstrip()
        start = head if number == 0 else Text(" " * len(head))
        out.print(start.copy().append_text(line), soft_wrap=True)
