"""`glass look` on a terminal with colours: each token of the passage in the colour of its loss."""

from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from glassgpt.show.terminal import look_view


def test_each_token_has_the_colour_of_its_loss() -> None:
    texts, losses = ["a", "", "क\n", "\t", "b\x1b[2J", "\n"], [0.1, 9.0, 1.0, 2.0, 4.0, float("nan")]
    lines = look_view._coloured_lines(texts, losses, look_view._LOSS_COLOURS)
    assert [line.plain for line in lines] == ["aक⏎", "    b\N{REPLACEMENT CHARACTER}[2J⏎"]
    styles = [style for _, style in look_view._LOSS_COLOURS]
    shown = [(line.plain[span.start : span.end], span.style) for line in lines for span in line.spans]
    expected = [("a", 0), ("क⏎", 1), ("    ", 2), ("b\N{REPLACEMENT CHARACTER}[2J", 3), ("⏎", 4)]
    assert shown == [(text, styles[index]) for text, index in expected]


@pytest.mark.parametrize(("width", "longest"), [(40, 12), (120, 30)])
def test_bars_are_as_long_as_their_losses(width: int, longest: int) -> None:
    out = Console(file=io.StringIO(), width=width)
    look_view._print_bars("by kind", [("line end", 10, 4.0), ("क", 30, 1.0), ("none", 0, 0.0)], out)
    title, *rows = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert title.strip() == "by kind"
    assert [row.count("█") for row in rows] == [longest, longest // 4, 0]
    assert max(map(cell_len, rows)) <= width
    assert [re.findall(r"[\d.]+%?", row) for row in rows] == [
        ["4.000", "25%"],
        ["1.000", "75%"],
        ["0.000", "0%"],
    ]
