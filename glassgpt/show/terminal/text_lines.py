"""Sentences and labelled lines in the terminal, wrapped at words with a hanging indent.

A pipe has no width: there every line stays whole, because scripts read lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from glassgpt.i18n import RIGHT_TO_LEFT, current_language
from glassgpt.sanitize import sanitize_keeping_bidi, sanitize_text

_RIGHT_TO_LEFT_MARK = "\N{RIGHT-TO-LEFT MARK}"
LABEL_WIDTH = 14  # cells in front of the text of a line, a blank included
_WIDE = 100  # columns: terminals are mostly 80 wide, or much wider
NARROW_RANK = 2  # values of higher ranks are for wide terminals
# The blank in 5.3 s, 1.5 MiB, 19.4k tok/s, 3m 07s.
_BEFORE_UNIT = re.compile(
    r"(?<=\d) (?=(?:ms|s|[KMGT]?i?B|[kMGTPE]?FLOP)\b)|(?<=[\dkMBT]) (?=tok)|(?<=\d[dhm]) (?=\d\d[hms]\b)"
)
_JOINT = "\ue000"  # stands for that blank while words are wrapped; no text has it after sanitizing
_MIN_WIDTH = 10  # of wrapped text, however narrow the terminal is


def terminal_text(text: str) -> str:
    """A sentence without control characters; every printed sentence passes this function.

    In a right-to-left language it begins with a mark, because a terminal takes the direction of a line from
    its first letter, which may be Latin.
    """
    clean = sanitize_keeping_bidi(text)
    return f"{_RIGHT_TO_LEFT_MARK}{clean}" if current_language() in RIGHT_TO_LEFT else clean


def print_line(out: Console, label: str, text: str, style: str = "", command: str = "") -> None:
    """A bold label in a column, and the text beside it. On a terminal long text continues below itself.

    `command`: to be copied, so it is not wrapped. Where it does not fit beside the text it gets a line of its
    own.
    """
    clean = sanitize_keeping_bidi(label)
    head = Text(terminal_text(clean + " " * max(1, LABEL_WIDTH - cell_len(clean))), style="bold")
    body = Text(sanitize_keeping_bidi(text), style=style)
    whole = Text.assemble(body, f"  {sanitize_text(command)}") if command else body
    if not out.is_terminal or head.cell_len + whole.cell_len <= out.width:
        out.print(head + whole, soft_wrap=True)
        return
    for line in wrap_words(body.plain, out, out.width - LABEL_WIDTH):
        out.print(head + Text(line, style=style), soft_wrap=True)
        head = Text(terminal_text(" " * LABEL_WIDTH))
    if command:
        out.print(Text(f"  {sanitize_text(command)}"), soft_wrap=True)


def wrap_words(text: str, out: Console, width: int) -> list[str]:
    """Lines of at most `width` cells. A number stays with its unit."""
    joined = _BEFORE_UNIT.sub(_JOINT, text)
    lines = Text(joined).wrap(out, max(_MIN_WIDTH, width))
    return [line.plain.rstrip().replace(_JOINT, " ") for line in lines]


def print_values(out: Console, label: str, parts: Sequence[tuple[str, int]], style: str = "") -> None:
    """Values in one line, in the same words in every language. Each has a rank: a terminal that is too
    narrow for all of them gets those of the lowest ranks, the same in every line. No value is cut."""
    is_narrow = out.is_terminal and out.width < _WIDE
    shown = [(text, rank) for text, rank in parts if rank <= NARROW_RANK or not is_narrow]
    room = out.width - LABEL_WIDTH
    while out.is_terminal and len(shown) > 1 and cell_len("  ".join(text for text, _ in shown)) > room:
        shown.remove(max(reversed(shown), key=lambda part: part[1]))
    text = "  ".join(text for text, _ in shown)
    line = Text.assemble((f"{sanitize_text(label):<{LABEL_WIDTH}}", "bold"), (sanitize_text(text), style))
    out.print(line, soft_wrap=True)


def print_indented(text: str, style: str, out: Console, label: str = "") -> None:
    """Wrap the text ourselves: rich would pad the lines with blanks. `label`: before its first line."""
    if not text:
        return
    indent = cell_len(label)
    for line in wrap_words(terminal_text(text), out, out.width - 2 - indent):
        out.print(Text("  ").append(label, style="dim italic").append(line, style=style), soft_wrap=True)
        label = terminal_text(" " * indent)  # each line of the terminal has its own direction
