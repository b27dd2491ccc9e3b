"""Labelled lines: whole in a pipe, wrapped at words on a terminal, in either direction of writing."""

from __future__ import annotations

import io

from rich.console import Console

from glassgpt.i18n import use_language
from glassgpt.show.terminal.text_lines import print_indented, print_line, print_values

RLM = "\N{RIGHT-TO-LEFT MARK}"


def console(width: int, is_terminal: bool = True) -> Console:
    return Console(
        file=io.StringIO(), width=width, force_terminal=is_terminal, color_system=None, highlight=False
    )


def lines_of(out: Console) -> list[str]:
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue().splitlines()


def test_a_pipe_gets_whole_lines() -> None:
    out = console(40, is_terminal=False)
    print_line(out, "label", "word " * 20, command="glass runs")
    print_values(out, "iter", [("loss 2.5000", 0), ("x" * 100, 9)])
    first, second = lines_of(out)
    assert first == f"label         {'word ' * 20}  glass runs"
    assert second == f"iter          loss 2.5000  {'x' * 100}"


def test_a_terminal_wraps_at_words_below_the_text() -> None:
    out = console(40)
    print_line(out, "device", "1 sequence of a model that takes long")
    assert lines_of(out) == ["device        1 sequence of a model that", "              takes long"]


def test_a_number_stays_with_its_unit() -> None:
    for text in ("measured in about 12.5 s", "measured in 3m 07s", "it is about 1.5 MiB", "with 9.4k tok/s"):
        for width in range(34, 60):
            out = console(width)
            print_line(out, "time", f"{text} and more of these words")
            assert any(text[-6:] in line for line in lines_of(out)), (text, width)


def test_a_command_is_never_wrapped() -> None:
    out, command = console(50), "glass train --init_from=resume --out_dir=runs/mine"
    print_line(out, "next", "train it longer:", command=command)
    assert lines_of(out) == ["next          train it longer:", f"  {command}"]


def test_values_that_do_not_fit_are_left_out_whole() -> None:
    parts = [("loss 2.5000", 0), ("38.1 ms", 1), ("norm 0.75", 2), ("lr 1.00e-03", 3)]
    last_values = {}
    for width in (120, 80, 44, 30, 20):
        out = console(width)
        print_values(out, "iter", parts)
        (line,) = lines_of(out)
        last_values[width] = line.split("  ")[-1]
    assert last_values == {
        120: "lr 1.00e-03",
        80: "norm 0.75",
        44: "38.1 ms",
        30: "loss 2.5000",
        20: "loss 2.5000",
    }


def test_each_line_of_a_right_to_left_text_says_so() -> None:
    """A terminal takes the direction of every line from its first letter: without a mark, a line that begins
    with a Latin word has its full stop on the wrong side."""
    text = "شغّل الأمر ثم " + "glass train --compile=off " * 4 + "."
    with use_language("ar"):
        for is_labelled in (True, False):
            out = console(40)
            if is_labelled:
                print_line(out, "label", text)
            else:
                print_indented(text, "", out, "label ")
            lines = lines_of(out)
            assert len(lines) > 2
            for number, line in enumerate(lines):
                assert line.lstrip().startswith(RLM) or (number == 0 and RLM in line), line
