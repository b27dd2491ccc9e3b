"""What `glass explain` prints."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from report_pages import make_columns
from rich.cells import cell_len
from rich.console import Console
from written_findings import written_finding

from glassgpt.explain.explanation import explain, explain_runs
from glassgpt.i18n import LANGUAGES, say, translate, use_language, verbatim
from glassgpt.record.finding import Severity, make_finding
from glassgpt.runs.lines import LogLine
from glassgpt.runs.recognise import read_logs
from glassgpt.runs.run_log import LoggedEvaluation, LoggedProcess, LoggedSetup, RunLog
from glassgpt.runs.table_files import read_tables
from glassgpt.runs.trainers import BY_ID
from glassgpt.show.terminal.explain_view import print_explanation, print_finding, print_watch_update

NANOGPT = BY_ID["nanogpt"]
MARKS = "\N{RIGHT-TO-LEFT MARK}\N{FIRST STRONG ISOLATE}\N{LEFT-TO-RIGHT ISOLATE}\N{POP DIRECTIONAL ISOLATE}"


def run(name: str = "a.log") -> RunLog:
    at = range(0, 1001, 10)
    losses = [4.2 / (1 + i / 300) for i in at]
    ms = [5000.0 if i % 250 == 0 else 100.0 for i in at]
    steps = make_columns(list(at), loss=losses, ms=ms, mfu=[11.0] * len(losses))
    evals = tuple(LoggedEvaluation(i, 0, losses[i // 10] + 0.1, losses[i // 10]) for i in range(0, 1001, 250))
    setup = LoggedSetup(settings={"max_iters": 1000}, tokens_per_iteration=16_384)
    return RunLog(NANOGPT, name, steps, evals, (), (LoggedProcess(has_startup=True),), setup=setup)


def printed(history: RunLog, width: int = 100, full: bool = False, **console: object) -> str:
    out = io.StringIO()
    print_explanation(explain(history), Console(file=out, width=width, **console), full)  # type: ignore[arg-type]
    return out.getvalue()


def test_the_order() -> None:
    text = printed(run(), full=True)
    order = ["a.log", "A nanoGPT run", "eval-spikes", "how it ended", "logged iterations",
             "loss: training in dots", "where the time went", "what the lines mean", "iter 1000"]  # fmt: skip
    place = 0
    for part in order:
        place = text.index(part, place)


def test_a_finding() -> None:
    out = io.StringIO()
    finding = written_finding(
        "my-id", "warning", "A [bold]title[/bold]", "evidence 5", "because [x]", "do [this]"
    )
    print_finding(finding, Console(file=out, width=100))
    assert out.getvalue().splitlines() == [
        "warning  A [bold]title[/bold]  [my-id]",
        "  evidence  evidence 5",
        "  why       because [x]",
        "  do        do [this]",
        "",
    ]
    out = io.StringIO()
    print_finding(replace(finding, lines=(12, 4000)), Console(file=out, width=100))
    assert out.getvalue().splitlines()[1] == "  evidence  evidence 5 Log lines: 12, 4,000."


def test_a_quoted_line_is_named_once() -> None:
    quoted = say("crashed.evidence.quoted_line", line=7, quoted="ValueError: x")
    out = io.StringIO()
    finding = make_finding("x", "problem", title=verbatim("T"), evidence=quoted, lines=(7, 9))
    print_finding(finding, Console(file=out, width=100))
    assert re.findall(r"\d+", out.getvalue()) == ["7", "9"]


def test_details_are_shown_on_request() -> None:
    finding = make_finding(
        "x", "info", title=verbatim("T"), evidence=verbatim("E"), more=verbatim("long " * 30)
    )
    for more in (False, True):
        out = io.StringIO()
        print_finding(finding, Console(file=out, width=60), more)
        lines = out.getvalue().splitlines()
        assert lines[1] == "  evidence  E"
        assert [line for line in lines if "long" in line] == lines[2:-1]
        assert (len(lines) > 3) == more
        assert all(line.startswith(" " * 12) for line in lines[3:-1])  # aligned behind the label


def truncated(history: RunLog, count: int) -> RunLog:
    """Its first lines, and no evaluation."""
    names = ("iteration", "segment", "loss", "has_loss", "ms", "mfu", "lr", "grad_norm", "tokens_per_s")
    steps = replace(history.steps, **{name: getattr(history.steps, name)[:count] for name in names})
    return replace(history, steps=steps, evals=())


def test_a_file_with_several_runs_lists_them() -> None:
    def steps(count: int) -> str:
        lines = (f"iter {at}: loss {4 - at / 100:.4f}, time {count}.00ms, mfu 1.00%" for at in range(count))
        return "\n".join(lines) + "\n"

    runs = read_logs([LogLine(line) for line in (steps(3) + steps(50) + steps(20)).splitlines()], "x.log")
    out = io.StringIO()
    print_explanation(explain_runs(runs), Console(file=out, width=120))
    rows = [line.split()[1:5] for line in out.getvalue().splitlines() if line.startswith("nanoGPT ")]
    assert rows == [["1", "-", "3", "3"], ["4", "-", "53", "50"], ["54", "-", "73", "20"]]


def test_runs_without_an_evaluation_are_listed_with_their_training_loss() -> None:
    runs, _ = read_tables(
        iter(["run_name,step,loss\n", "a,0,4\n", "a,1,3.5\n", "b,0,4\n", "b,1,12.5\n"]), "x.csv"
    )
    out = io.StringIO()
    print_explanation(explain_runs(runs), Console(file=out, width=120))
    rows = [line.split() for line in out.getvalue().splitlines()[1:] if line.startswith(("a ", "b "))]
    assert [(row[0], row[-1]) for row in rows] == [("a", "3.5000"), ("b", "12.5000")]


def test_two_losses_are_no_curve() -> None:
    history = run()
    drawn = [
        any("⠀" <= character <= "⣿" for character in printed(truncated(history, count))) for count in (2, 3)
    ]
    assert drawn == [False, True]


@pytest.mark.parametrize("severity", ["problem", "warning", "advice", "info"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_finding_with_little_to_say(severity: Severity, language: str) -> None:
    out = io.StringIO()
    with use_language(language):
        print_finding(
            written_finding("", severity, "title", "evidence", "", ""), Console(file=out, width=100)
        )
    first, *rest = out.getvalue().splitlines()
    assert "[]" not in first
    assert (severity in first) == (language == "en")
    with use_language(language):
        label = translate("explain_view.part.evidence")
    assert [re.sub(f"[{MARKS}]", "", line).split() for line in rest] == [[label, "evidence"], []]


@pytest.mark.parametrize("width", [30, 40, 60, 79])
def test_a_narrow_terminal_gets_narrow_lines(width: int) -> None:
    """The name behind a share of the time may be wrapped by the terminal; a chart may not."""
    text = printed(run(), width)
    assert max(cell_len(line) for line in text.splitlines()) <= max(width, 50)
    charts = [line for line in text.splitlines() if re.search("[\u2580-\u259f\u2800-\u28ff]", line)]
    assert len(charts) >= 8
    assert max(map(cell_len, charts)) <= width


@pytest.mark.parametrize("width", [1, 2, 5, 10])
def test_an_absurd_terminal(width: int) -> None:
    assert printed(run(), width, full=True)


def test_no_line_ends_in_blanks() -> None:
    """Who copies it from a pipe gets what he sees."""
    lines = printed(run(), 160, full=True).splitlines()
    prose = [line for line in lines if re.match(r"  \w", line)]
    assert len(prose) > 5
    assert [line for line in prose if line.endswith(" ")] == []


def test_colours_only_where_they_are_wanted() -> None:
    colourful = printed(run(), force_terminal=True, color_system="standard", no_color=False)
    assert "\x1b[1;36m" in colourful
    plain = printed(run(), force_terminal=True, color_system="standard", no_color=True)
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", plain)
    assert re.sub(r"\x1b\[[0-9;]*m", "", colourful) == re.sub(r"\x1b\[[0-9;]*m", "", plain)


def test_names_cannot_harm_the_terminal() -> None:
    text = printed(run("\x1b]0;x\x07[red]a\nb\u202e.log"))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[red]a b" in text.splitlines()[0]


@pytest.mark.parametrize("language", ["hi", "ar"])
def test_other_languages(language: str) -> None:
    with use_language(language):
        text = printed(run(), full=True)
    assert "\N{REPLACEMENT CHARACTER}" not in text
    for english in ("A nanoGPT run", "how it ended", "where the time went", "what the lines mean", "advice"):
        assert english not in text
    assert "eval_interval" in text
    assert "mfu 11.00%" in text


def test_arabic_lines_begin_from_the_right() -> None:
    with use_language("ar"):
        lines = printed(run()).splitlines()
    assert lines[1].startswith("\N{RIGHT-TO-LEFT MARK}")
    with use_language("hi"):
        assert not set(MARKS) & set(printed(run()))


# --- odd runs ---


def test_odd_losses(subtests: pytest.Subtests) -> None:
    for value in (math.nan, math.inf, -math.inf, 0.0, -1.0, 1e300):
        with subtests.test(repr(value)):
            history = run()
            loss = np.full(len(history.steps), value)
            evals = tuple(replace(done, val_loss=value, train_loss=value) for done in history.evals)
            assert printed(replace(history, steps=replace(history.steps, loss=loss), evals=evals), full=True)
            loss[:50] = 2.0
            assert printed(replace(history, steps=replace(history.steps, loss=loss)), full=True)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_lines(count: int) -> None:
    history = run()
    for evals in ((), history.evals[:1], history.evals):
        for live in (False, True):
            assert printed(replace(truncated(history, count), evals=evals, live=live), full=True)


def test_bits_per_byte_are_not_drawn_as_losses() -> None:
    text = printed(replace(run(), val_metric="bits_per_byte"))
    assert "bits per byte" in text
    assert "validation bright" not in text


def test_a_hundred_thousand_lines_are_drawn_at_once() -> None:
    count = 100_000
    steps = make_columns(
        list(range(count)), loss=[2.0 + i % 7 / 10 for i in range(count)], ms=[100.0] * count
    )
    assert "training loss" in printed(replace(run(), steps=steps, evals=()))


# --- news ---


def test_news() -> None:
    from glassgpt.explain.watch import WatchUpdate

    explanation = explain(run())
    out = io.StringIO()
    news = WatchUpdate(1000, explanation.log.evals, tuple(explanation.findings[:1]), explanation)
    print_watch_update(news, Console(file=out, width=100))
    lines = out.getvalue().splitlines()
    evals = [line for line in lines if "validation" in line]
    assert [re.findall(r"[\d.,]+", line) for line in evals] == [
        ["500", "1.6750"],
        ["750", "1.3000"],
        ["1,000", "1.0692"],
    ]
    assert ["best" in line for line in evals] == [False, False, True]
    assert "glass  at iteration 1,000" in lines


def test_news_without_numbers() -> None:
    from glassgpt.explain.watch import WatchUpdate

    out = io.StringIO()
    evals = (LoggedEvaluation(None, 0, 2.5), LoggedEvaluation(5, 0, None), LoggedEvaluation(6, 0, math.nan))
    print_watch_update(WatchUpdate(None, evals, (), explain(run())), Console(file=out, width=100))
    assert out.getvalue().splitlines() == [
        "glass  iteration ?: validation 2.5000",
        "glass  iteration 6: validation nan",
    ]
