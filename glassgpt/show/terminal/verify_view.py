"""What `glass verify` found, in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from glassgpt import format
from glassgpt.doctor.verify_files import Part, Verified
from glassgpt.sanitize import harmless

_STYLES = {"good": "green", "damaged": "bold red", "no digest": "yellow"}
_MOST_GOOD = 20  # a dataset may have hundreds of shards


def show_verified(result: Verified, out: Console, first: bool = True) -> None:
    if not first:
        out.print()
    out.print(Text(harmless(f"{result.kind} {result.path}"), style="bold"), soft_wrap=True)
    good = result.of("good")
    shown = [part for part in result.parts if part.verdict != "good" or len(good) <= _MOST_GOOD]
    if len(good) > _MOST_GOOD:
        shown.insert(0, Part(format.plural(len(good), "file"), "good", "as recorded"))
    width = max((len(part.name) for part in shown), default=0)
    for part in shown:
        _line(out, part.verdict, f"{part.name:<{width}}   {part.says}")
    counts = [f"{len(result.of(verdict))} {verdict}" for verdict in ("damaged", "good", "no digest")]
    _line(out, "damaged" if result.of("damaged") else "good", ", ".join(counts), "verdict")
    for step in result.next:
        _line(out, "", step.says, "next")
        _line(out, "", step.command, "")


def _line(out: Console, verdict: str, text: str, label: str | None = None) -> None:
    head = (f"{verdict if label is None else label:<10} ", _STYLES.get(verdict, "bold"))
    out.print(Text.assemble(head, harmless(text)), soft_wrap=True)
