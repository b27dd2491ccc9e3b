"""What `glass doctor` and `glass verify` print."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from glassgpt.doctor.diagnosis import CheckResult, DoctorReport
from glassgpt.format import format_duration, pluralize
from glassgpt.sanitize import sanitize_text
from glassgpt.show.terminal.text_lines import wrap_words
from glassgpt.verify_files import CheckedPart, VerifyReport

_CHECK_STYLES = {"ok": "green", "note": "bold yellow", "problem": "bold red"}
_VERDICT_WIDTH, _NAME_WIDTH = 9, 14
_FILE_STYLES = {"good": "green", "damaged": "bold red", "no digest": "yellow"}
_MAX_GOOD_LISTED = 20  # a dataset may have hundreds of shards


class DoctorConsole:
    """Prints the results of checks as they come in, under the headings of their sections."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._section = ""

    def print_result(self, result: CheckResult) -> None:
        if not result.lines:
            return
        if result.check.section != self._section:
            if self._section:
                self._out.print()
            self._section = result.check.section
            self._out.print(Text(self._section, style="bold"))
        for line in result.lines:
            verdict = f"{line.verdict:<{_VERDICT_WIDTH}}"
            name = f"{line.name:<{_NAME_WIDTH}} "
            head = Text.assemble((verdict, _CHECK_STYLES[line.verdict]), (name, "bold"))
            _print_hanging_indent(head, line.message, "", self._out)
            if line.fix:
                _print_hanging_indent(Text(" " * len(head)), f"fix: {line.fix}", "cyan", self._out)

    def print_summary(self, report: DoctorReport) -> None:
        """The counts, the problems again, and the checks that --quick skipped."""
        problems, notes, oks = (report.lines_with(verdict) for verdict in ("problem", "note", "ok"))
        counts = f"{pluralize(len(problems), 'problem')}, {pluralize(len(notes), 'note')}"
        summary = f"{counts}, {len(oks)} ok, in {format_duration(report.seconds)}"
        head = Text.assemble((f"{'verdict':<{_VERDICT_WIDTH}}", _CHECK_STYLES[report.verdict]))
        indent = Text(" " * len(head))
        self._out.print()
        _print_hanging_indent(head, summary, "bold", self._out)
        for line in problems:
            _print_hanging_indent(indent, f"{line.name}: {line.fix or line.message}", "red", self._out)
        if report.skipped:
            names = ", ".join(check.name for check in report.skipped)
            _print_hanging_indent(indent, f"skipped by --quick: {names}", "dim", self._out)


def _print_hanging_indent(head: Text, text: str, style: str, out: Console) -> None:
    """Print `head` and the text beside it, wrapped with a hanging indent."""
    for line in wrap_words(" ".join(text.split()), out, out.width - len(head)):
        out.print(head + Text(line, style=style), soft_wrap=True)
        head = Text(" " * len(head))


def print_verification(report: VerifyReport, out: Console, first: bool = True) -> None:
    """The files of one run, export or dataset, each with its verdict, and what to do next."""

    def print_line(label: str, style: str, text: str) -> None:
        out.print(Text.assemble((f"{label:<10} ", style), sanitize_text(text)), soft_wrap=True)

    if not first:
        out.print()
    out.print(Text(sanitize_text(f"{report.kind} {report.path}"), style="bold"), soft_wrap=True)
    good = report.with_verdict("good")
    shown = [part for part in report.parts if part.verdict != "good" or len(good) <= _MAX_GOOD_LISTED]
    if len(good) > _MAX_GOOD_LISTED:
        shown.insert(0, CheckedPart(pluralize(len(good), "file"), "good", "as recorded"))
    width = max((len(part.name) for part in shown), default=0)
    for part in shown:
        print_line(part.verdict, _FILE_STYLES[part.verdict], f"{part.name:<{width}}   {part.message}")
    damaged = report.with_verdict("damaged")
    counts = f"{len(damaged)} damaged, {len(good)} good, {len(report.with_verdict('no digest'))} no digest"
    print_line("verdict", _FILE_STYLES["damaged" if damaged else "good"], counts)
    for step in report.next:
        print_line("next", "bold", step.message)
        print_line("", "bold", step.command)
