"""What the pages say was measured is what bench/measured.jsonl holds."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median

import pytest

from bench import results
from bench.picture import ratios_alt_text, ratios_picture
from bench.results import Result
from bench.table import THRESHOLDS, fill_page, verdict

ROOT = Path(__file__).parent.parent
FOUND = results.read_latest(ROOT / "bench/measured.jsonl")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_page_and_the_pictures_are_made_of_it() -> None:
    page = text("bench/README.md")
    assert fill_page(page, FOUND) == page
    assert f"![{ratios_alt_text(FOUND)}](../docs/speed.svg)" in page
    assert text("docs/speed.svg") == ratios_picture(FOUND)


def test_every_row_with_a_bar_was_measured() -> None:
    """But the two that others stand for: 500 updates for 100, and a process's loss for a warm one."""
    asked = {key for key, bar in THRESHOLDS.items() if bar.required is not None} - {("gpt2-speed", "cuda")}
    assert asked <= {result.key for result in FOUND}


def test_the_readme_says_what_was_measured() -> None:
    """Every ratio of its table is one of the file, to the digits shown; so are the figures beside it."""
    section = text("README.md").partition("## How fast")[2].partition("\n## ")[0]
    rows = re.findall(r"^\|.*\| ([^|]+) \| ([^|]+) \| ([\d.]+)x \|$", section, re.M)
    assert len(rows) >= 8
    counted = [result for result in FOUND if counts(result)]
    measured = {f"{result.value:.2f}": (result.nanogpt, result.glassgpt) for result in counted}
    for result in counted:  # a process's later samples are beside its first one
        if later := result.details.get("later_ratios"):
            texts = result.details["later_texts"]
            measured[f"{median(later):.2f}"] = (texts["nanogpt"], texts["glassgpt"])
    for nanogpt, glassgpt, ratio in rows:
        theirs, ours = measured[ratio]
        assert shown(nanogpt, median(theirs)), (nanogpt, ratio)
        assert shown(glassgpt, median(ours)), (glassgpt, ratio)


def shown(figure: str, value: float) -> bool:
    """Whether `26.7k`, `12 s` or `613 tok/s` is this value, rounded as it is written."""
    number, thousands = re.match(r"([\d.]+)(k?)", figure).groups()  # type: ignore[union-attr]
    places = len(number.partition(".")[2])
    return f"{value / (1000 if thousands else 1):.{places}f}" == number


def counts(result: Result) -> bool:
    return not verdict(result).startswith("does not")


def test_a_page_has_one_place_for_the_table() -> None:
    with pytest.raises(ValueError, match="this one has 0"):
        fill_page("no place", FOUND)
