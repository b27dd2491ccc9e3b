"""The live area by a fake clock: how far, how fast, how long, and what the run is doing."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from run_records import checkpoint_record, eval_record, run_record, step_record, whole_run

from glassgpt.i18n import LANGUAGES, use_language
from glassgpt.record.journal import Record
from glassgpt.show.terminal.live_area import LiveArea
from glassgpt.show.terminal.run_console import RunConsole


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def terminal(width: int = 80, height: int = 24) -> Console:
    return Console(
        file=io.StringIO(),
        width=width,
        height=height,
        force_terminal=True,
        color_system=None,
        highlight=False,
    )


def live_area(max_iters: int = 100, **config: Any) -> tuple[LiveArea, FakeClock]:
    run, clock = run_record(max_iters), FakeClock()
    run["config"] |= {"eval_interval": 50, "closing_eval": False} | config
    return LiveArea(terminal(), run, clock), clock


def evaluate(area: LiveArea, iteration: int, **changes: Any) -> None:
    area.update(eval_record(iteration, "train", 2.2, ms=1500.0, **changes))
    area.update(eval_record(iteration, "val", 2.25, ms=500.0, **changes))


def test_it_moves_between_two_records() -> None:
    area, clock = live_area()
    evaluate(area, 0)
    assert area.line(79).plain.startswith("0/100 ")
    for second in range(1, 11):  # the first update takes a second, as all of them do
        clock.now += 1
        area.tick("train", second)
    text = area.line(79).plain
    assert text.startswith("10/100 ")
    assert " 10%  " in text
    assert text.endswith("  training")
    assert area.step_s == pytest.approx(1.0)
    # 90 updates of 1 s, evaluations of 2 s at 50 and 100; saving was not timed yet.
    assert area.eta_s == pytest.approx(90 + 4)
    clock.now += 0.75
    assert area.eta_s == pytest.approx(90 + 4 - 0.75)
    clock.now += 5  # an update that takes longer than expected: the time to go waits for it
    assert area.eta_s == pytest.approx(90 + 4 - 1)


def test_a_step_record_sets_speed_and_loss() -> None:
    area, _ = live_area()
    evaluate(area, 0)
    area.update(step_record(20, step_ms=500.0, tokens_per_s=19_412.0, loss=2.5))
    area.update(checkpoint_record(10, blocking_ms=250.0))
    assert area.eta_s == pytest.approx(80 * 0.5 + 2 * (2.0 + 0.25))
    assert re.search(
        r"^20/100 .* 20%  loss 2\.5000  19\.4k tok/s  44 s to go  training$", area.line(79).plain
    )


def test_the_time_to_go_is_that_of_the_step_record() -> None:
    """The journal's eta_s, from the same formula: 40 updates of 0.5 s, an evaluation and a save at 100, and
    the whole validation split, which is 111,540 / (2 x 32,768) of an evaluation."""
    area, _ = live_area(closing_eval=True)
    evaluate(area, 0)
    evaluate(area, 50)
    area.update(step_record(60, step_ms=500.0))
    assert area.eta_s == pytest.approx(40 * 0.5 + 2.0 + 2.0 * 111_540 / (2 * 32_768))


def test_it_says_what_the_run_is_doing_and_for_how_long() -> None:
    area, clock = live_area()
    words = {"compile": "warming up", "eval": "evaluating", "checkpoint": "saving", "sample": "sampling"}
    for activity, word in words.items():
        area.tick(activity, 1)
        assert area.line(79).plain.endswith(f"  {word}")
        clock.now += 12
        area.tick(activity, 1)
        assert area.line(79).plain.endswith(f"  {word} 12 s")
    for activity in ("train", "log", "other"):
        area.tick(activity, 1)
        clock.now += 12
        assert area.line(79).plain.endswith("  training")
    area.tick("data", 1)
    assert area.line(79).plain.endswith("  training")
    clock.now += 2
    assert area.line(79).plain.endswith("  waiting for data")


def test_a_run_that_compiles_says_so() -> None:
    choices = [{"name": "compile", "value": "on", "reason": ""}]
    area = LiveArea(terminal(), run_record(choices=choices))
    area.tick("compile", 0)
    assert "  compiling" in area.line(79).plain


def test_an_evaluation_counts_down_too() -> None:
    area, clock = live_area()
    evaluate(area, 0)
    area.update(step_record(50, step_ms=500.0))
    before = area.eta_s
    area.tick("eval", 50)
    clock.now += 1.5
    assert before is not None
    assert area.eta_s == pytest.approx(before - 1.5)
    evaluate(area, 50)
    assert area.eta_s == pytest.approx(before - 2.0)


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_width_is_exceeded_and_no_number_cut(language: str) -> None:
    area, _ = live_area(max_iters=600_000)
    evaluate(area, 0)
    area.update(step_record(123_456, loss=11.0932, tokens_per_s=1.234e6))
    with use_language(language):
        for width in range(30, 140):
            text = area.line(width).plain
            assert cell_len(text) <= width
            assert text.startswith("123,456/600,000 ")
            for number in re.findall(r"loss [\d.]+|[\d.]+M tok/s|\d+%", text):
                assert number in ("loss 11.0932", "1.23M tok/s", "21%")
    assert "loss 11.0932" in area.line(79).plain


def test_the_curve_comes_with_the_second_evaluation_and_stays_in_place() -> None:
    area, _ = live_area()
    evaluate(area, 0)
    assert area.chart() == []
    for number in (10, 20):  # two losses are no curve
        area.update(step_record(number))
    assert area.chart() == []
    area.update(step_record(30))
    evaluate(area, 50)
    chart = area.chart()
    assert len(chart) == 6
    assert all(line.cell_len <= 80 for line in chart)
    for number in range(10_000):  # the training loss of a long run is thinned
        area.update(step_record(number))
    assert len(area._training) <= 2000


def printed(out: Console) -> str:
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_a_terminal_gets_the_curve_once_when_the_run_is_over() -> None:
    out = terminal()
    console = RunConsole(out, live=True)
    for record in whole_run():
        console(record)
        console.tick("train", record["iter"])
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed(out))
    assert "where the time went" in text
    assert re.findall(r"[\u2801-\u28ff]", text.rpartition("sample        ")[2])
    assert printed(out).endswith("\n")
    assert "\x1b[?25h" in printed(out)  # the cursor is back


def test_a_pipe_gets_neither_line_nor_curve() -> None:
    out = Console(file=io.StringIO(), width=160, highlight=False)
    console = RunConsole(out)
    for record in whole_run():
        console(record)
        console.tick("eval", record["iter"])
    assert not re.search(r"[\u2800-\u28ff░\r\x1b]", printed(out))


def lines_on_terminal(width: int, records: list[Record]) -> list[str]:
    out = terminal(width)
    console = RunConsole(out, verbose=True)
    for record in records:
        console(record)
    return printed(out).splitlines()


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_line_is_wider_than_the_terminal(language: str) -> None:
    """All but the commands at the end, which are to be copied."""
    with use_language(language):
        for width in (60, 80, 132):
            wide = [line for line in lines_on_terminal(width, whole_run()) if cell_len(line) > width]
            assert [line for line in wide if not line.startswith("  glass ")] == []
