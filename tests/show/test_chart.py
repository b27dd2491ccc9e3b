"""Small charts made of characters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_pages import glassgpt_run, make_columns

from glassgpt.show.terminal.charts import bar, loss_chart, loss_points, plot, shorten, sparkline

few = settings(max_examples=150, deadline=None)


def test_a_sparkline_goes_from_lowest_to_highest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([3.0, 1.0]) == "█▁"
    assert sparkline([2.0, 2.0, 2.0]) == "▁▁▁"
    assert sparkline([1.0, float("nan"), 2.0, float("inf")]) == "▁ █ "


def test_very_many_values_are_shortened_to_means_of_neighbours() -> None:
    assert shorten([1.0, 2.0, 3.0], 3) == [1.0, 2.0, 3.0]
    assert shorten([1.0, 3.0, 5.0, float("nan"), 9.0], 3) == [2.0, 5.0, 9.0]
    assert len(shorten([1.0] * 20_000, 60)) == 60
    assert sparkline(shorten([float("nan")] * 2 + [1.0, 1.0, 4.0, 6.0], 3)) == " ▁█"


@pytest.mark.parametrize("values", [[], [1.0], [float("nan"), 1.0], [float("nan")] * 3])
def test_a_sparkline_of_fewer_than_two_values_is_none(values: list[float]) -> None:
    assert sparkline(values) == ""


@few
@given(st.lists(st.floats(-1e100, 1e100) | st.sampled_from([float("nan"), float("inf")]), max_size=20))
def test_a_sparkline_has_a_character_per_value(values: list[float]) -> None:
    assert len(sparkline(values)) in (0, len(values))


def test_a_bar_is_exact_to_an_eighth() -> None:
    assert bar(0.0, 20) == ""
    assert bar(1.0, 4) == "████"
    assert bar(0.5, 4) == "██"
    assert bar(1 / 32, 4) == "▏"
    assert bar(7 / 32, 4) == "▉"
    assert bar(-3.0, 4) == ""
    assert bar(9.0, 4) == "████"


@few
@given(st.floats(-1, 2), st.floats(-1, 2), st.integers(1, 40))
def test_a_larger_share_never_has_a_shorter_bar(a: float, b: float, width: int) -> None:
    low, high = sorted((a, b))
    assert len(bar(low, width)) <= len(bar(high, width)) <= width


def test_a_plot_holds_every_point_and_joins_them() -> None:
    rows = plot([([0, 10], [1.0, 0.0])], width=10, height=4)
    assert len(rows) == 4
    assert all(len(row) == 10 for row in rows)
    drawn = [[character != "\u2800" for character, _ in row] for row in rows]
    assert drawn[0][0]  # the highest, at the left
    assert drawn[3][9]
    assert all(any(column) for column in zip(*drawn, strict=True))  # a line, not two points


def test_the_last_curve_of_a_plot_is_on_top() -> None:
    rows = plot([([0, 1], [0.0, 0.0]), ([0, 1], [0.0, 0.0])], width=3, height=2)
    assert {owner for row in rows for character, owner in row if character != "\u2800"} == {1}


@pytest.mark.parametrize("curve", [([], []), ([1.0], [1.0]), ([0.0, 1.0], [float("nan"), 1.0])])
def test_a_plot_of_fewer_than_two_points_is_none(curve: tuple[list[float], list[float]]) -> None:
    assert plot([curve], 10, 4) == []


@given(
    st.lists(st.tuples(st.floats(allow_nan=True), st.floats(allow_nan=True)), max_size=20),
    st.integers(1, 30),
    st.integers(1, 10),
)
@few
def test_any_values_can_be_plotted(points: list[tuple[float, float]], width: int, height: int) -> None:
    bounded = [(x, y) for x, y in points if not (abs(x) > 1e100 or abs(y) > 1e100)]
    rows = plot([([x for x, _ in bounded], [y for _, y in bounded])], width, height)
    assert all(len(row) == width for row in rows)


def test_tables_of_ngrams_are_lines_in_the_loss_chart() -> None:
    points = [(float(at), 3.0 - at / 100) for at in range(0, 101, 5)]  # down to 2.0
    levels = [(2.5, "2-gram"), (1.9, "3-gram"), (1.2, "4-gram")]
    plain = [line.plain for line in loss_chart(points, [], 80, 8)]
    lines = [line.plain for line in loss_chart(points, [], 80, 8, levels=levels)]
    assert not any("gram" in line for line in plain)
    # The middle; and the next one below the curve, which is near; the one after is not.
    (at,) = (number for number, line in enumerate(lines) if line.endswith(" 2-gram 2.50"))
    assert "┈" in lines[at]
    assert 3 <= at <= 5
    assert lines[-1].endswith(" 3-gram 1.90")
    assert lines[-1].split()[0] == "1.90"
    assert not any("4-gram" in line for line in lines)
    assert max(map(len, lines)) <= 80
    # On a logarithmic axis, too.
    logarithmic = loss_chart(points, [], 80, 8, log_scale=True, levels=levels)
    assert any(line.plain.endswith("2-gram 2.50") for line in logarithmic)


def test_the_curve_of_a_resumed_run_is_without_what_the_resume_repeated() -> None:
    at = [*range(10, 1501, 10), *range(1010, 3001, 10)]
    steps = make_columns(at, segment=np.repeat([0.0, 1.0], (150, 200)), loss=4 - np.arange(len(at)) / 1000)
    run = glassgpt_run()
    processes = (run.segments[0], replace(run.segments[1], first_iteration=1005))
    training, validation = loss_points(replace(run, steps=steps, segments=processes))
    assert [at for at, _ in training] == list(range(10, 3001, 10))
    assert [at for at, _ in validation] == [0, 250, 500, 750, 1000, *range(1750, 3001, 250)]


def test_the_labels_of_a_loss_have_three_digits_or_all() -> None:
    for losses, labels in (((2934.0, 4.5), ("2934", "4.50")), ((4.2, 0.0123), ("4.20", "0.0123"))):
        points = [(at, losses[at // 50]) for at in range(100)]  # the highest twentieth is cut off
        lines = [line.plain for line in loss_chart(points, [], 60, 5)]
        assert (lines[1].split()[0], lines[-1].split()[0]) == labels
