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


def table(*runs: RunSummary, width: int = 200) -> list[str]:
    file = io.StringIO()
    print_runs(runs, Path("runs"), Console(file=file, width=width, highlight=False, emoji=False))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_line_per_run() -> None:
    head, first, second = table(summary(), summary("runs/mine-2", state="died", iter=7))
    assert head.split() == ["run", "state", "iter", "loss", "best", "val", "at", "iter", "tokens/s", "size"]
    assert " ".join(first.split()) == "runs/mine finished 100/100 2.5123 2.2500 50 19.4k 161 KiB"
    assert second.split()[:3] == ["runs/mine-2", "died", "7/100"]


def test_what_is_not_known_is_blank() -> None:
    unknown: dict[str, Any] = dict.fromkeys(
        ["max_iters", "loss", "best_val_loss", "best_iter", "tokens_per_s"]
    )
    assert table(summary(state="died", iter=0, **unknown))[1].split() == [
        "runs/mine",
        "died",
        "0",
        "161",
        "KiB",
    ]


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
