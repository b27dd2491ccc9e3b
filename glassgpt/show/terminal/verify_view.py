"""What `glass verify` found, in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from glassgpt import format
from glassgpt.doctor.verify_files import CheckedPart, VerifyReport
from glassgpt.sanitize import sanitize_text

_STYLES = {"good": "green", "damaged": "bold red", "no digest": "yellow"}
_MAX_GOOD_LISTED = 20  # a dataset may have hundreds of shards


def print_verification(result: VerifyReport, out: Console, first: bool = True) -> None:
    if not first:
        out.print()
    out.print(Text(sanitize_text(f"{result.kind} {result.path}"), style="bold"), soft_wrap=True)
    good = result.with_verdict("good")
    shown = [part for part in result.parts if part.verdict != "good" or len(good) <= _MAX_GOOD_LISTED]
    if len(good) > _MAX_GOOD_LISTED:
        shown.insert(0, CheckedPart(format.pluralize(len(good), "file"), "good", "as recorded"))
    width = max((len(part.name) for part in shown), default=0)
    for part in shown:
        _print_line(out, part.verdict, f"{part.name:<{width}}   {part.says}")
    counts = [
        f"{len(result.with_verdict(verdict))} {verdict}" for verdict in ("damaged", "good", "no digest")
    ]
    _print_line(out, "damaged" if result.with_verdict("damaged") else "good", ", ".join(counts), "verdict")
    for step in result.next:
        _print_line(out, "", step.says, "next")
        _print_line(out, "", step.command, "")


def _print_line(out: Console, verdict: str, text: str, label: str | None = None) -> None:
    head = (f"{verdict if label is None else label:<10} ", _STYLES.get(verdict, "bold"))
    out.print(Text.assemble(head, sanitize_text(text)), soft_wrap=True)
