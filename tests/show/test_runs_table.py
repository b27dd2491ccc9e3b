"""The table of `glass runs`: one line per run, whatever the run is called."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from glassgpt.runs.run_list import RunSummary
from glassgpt.show.terminal.runs_view import print_runs


def summary(path: str = "runs/mine", **changes: Any) -> RunSummary:
    fields: dict[str, Any] = {
        "path": Path(path),
        "state": "finished",
        "iter": 100,
        "max_iters": 100,
        "loss": 2.51234,
        "best_val_loss": 2.25,
        "best_iter": 50,
        "tokens_per_s": 19_412.0,
        "bytes": 164_768,
        "started": 1.0,
    }
    return RunSummary(**fields | changes)


def table(*runs: RunSummary, width: int = 200, is_terminal: bool = False) -> list[str]:
    file = io.StringIO()
    out = Console(file=file, width=width, force_terminal=is_terminal, color_system=None, highlight=False)
    print_runs(runs, Path("runs"), out, clock=lambda: 3601.0)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_line_per_run() -> None:
    head, first, second = table(summary(), summary("runs/mine-2", state="died", iter=7))
    assert re.split("  +", head) == [
        "run", "state", "updates", "best val", "at", "tok/s", "started", "loss", "size",
    ]  # fmt: skip
    assert re.split("  +", first) == [
        "runs/mine", "finished", "100/100", "2.2500", "50", "19.4k", "1h 00m ago", "2.5123", "161 KiB",
    ]  # fmt: skip
    assert second.split()[:3] == ["runs/mine-2", "died", "7/100"]


def test_what_is_not_known_is_blank() -> None:
    unknown: dict[str, Any] = dict.fromkeys(
        ["max_iters", "loss", "best_val_loss", "best_iter", "tokens_per_s"]
    )
    line = table(summary(state="died", iter=0, started=None, **unknown))[1]
    assert line.split() == ["runs/mine", "died", "0", "161", "KiB"]


def test_a_loss_that_is_not_finite_is_shown() -> None:
    assert "nan" in table(summary(loss=float("nan")))[1]


def test_no_runs_says_how_to_start_one() -> None:
    (line,) = table()
    assert re.search("runs/ .*  glass train  .*  glass runs FOLDER$", line)


def test_names_cannot_harm_the_terminal() -> None:
    assert "\x1b" not in "".join(table(summary("runs/\x1b[2Jx", state="\x1b[31m")))
    assert len(table(summary("runs/a\nb"))) == len(table(summary("runs/ab")))  # one line, whatever its name


@pytest.mark.parametrize("name", ["runs/x[red]y", "runs/x[/b]", "runs/[bold]"])
def test_names_with_brackets_are_shown_as_they_are(name: str) -> None:
    assert table(summary(name))[1].startswith(name)


def test_a_loss_that_exploded_fits_its_column() -> None:
    assert " 1.093e+31 " in table(summary(loss=1.0932e31))[1]


NUMBERS = ("60000/600000", "2.2500", "50000", "19.4k", "1h 00m ago", "2.5123", "161 KiB")


def test_a_narrow_terminal_lacks_columns_but_cuts_no_number() -> None:
    name = "runs/a-long-name-of-a-run-that-has-a-number-at-its-end-12"
    run = summary(name, iter=60_000, max_iters=600_000, best_iter=50_000, state="finished")
    for width in range(40, 160):
        head, line = table(run, width=width, is_terminal=True)
        assert len(line) <= width
        cells = re.split("  +", line)
        assert tuple(cells[2:]) == NUMBERS[: len(cells) - 2]
        assert cells[0].startswith("runs/")
        assert cells[0].endswith("12")
        assert len(re.split("  +", head)) == len(cells)
    at_80 = re.split("  +", table(run, width=80, is_terminal=True)[1])
    assert at_80[1:] == ["finished", *NUMBERS[:5]]
    assert "…" in at_80[0]
    assert table(run, width=40)[1].startswith(name)  # a pipe has no width


def test_a_long_state_does_not_hide_the_numbers() -> None:
    refused = summary(state="refused: its journal cannot be read, or is a link")
    line = table(refused, width=80, is_terminal=True)[1]
    assert len(line) <= 80
    assert " 2.2500 " in line
