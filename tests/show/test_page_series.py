"""The rows of a run's curves: what is decimated, what is not lost, where the gaps are."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from run_logs import make_run_log, make_steps

from glassgpt.runs.analysis import Analysis
from glassgpt.runs.run_log import LoggedProcess
from glassgpt.show.page.axes import MAX_KNOTS, knots_of
from glassgpt.show.page.series import Curve, Rows, decimate, rows_of

LOSSES = st.one_of(st.floats(-1e6, 1e6), st.just(math.nan), st.just(math.inf))


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    count = draw(st.integers(0, 400))
    distances = draw(st.lists(st.integers(1, 50), min_size=count, max_size=count))
    values = draw(st.lists(LOSSES, min_size=count, max_size=count))
    process = sorted(draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)))
    return Curve(
        np.cumsum(np.array(distances, dtype=np.int64)),
        np.array(values, dtype=float),
        np.array(process, dtype=np.int64),
    )


def values_of(rows: Rows) -> Rows:
    return [row for row in rows if row[1] is not None]


@given(curves(), st.integers(16, 200))
def test_no_value_is_outside_its_bin_and_no_extreme_is_lost(curve: Curve, points: int) -> None:
    rows = decimate(curve, points)
    assert len(rows) <= points
    assert [row[0] for row in rows] == sorted(row[0] or 0 for row in rows)
    finite = curve.y[np.isfinite(curve.y)]
    bins = values_of(rows)
    if not len(finite):
        assert bins == []
        return
    lows, highs = [row[2] if len(row) > 2 else row[1] for row in bins], [row[-1] for row in bins]
    assert math.isclose(min(low or 0.0 for low in lows), finite.min(), rel_tol=1e-5, abs_tol=1e-9)
    assert math.isclose(max(high or 0.0 for high in highs), finite.max(), rel_tol=1e-5, abs_tol=1e-9)
    for row, low, high in zip(bins, lows, highs, strict=True):
        assert None not in (low, high, row[1])
        low, high, mean = low or 0.0, high or 0.0, row[1] or 0.0
        assert low - 1e-5 * abs(low) <= mean <= high + 1e-5 * abs(high)


@given(curves())
def test_few_values_are_all_there(curve: Curve) -> None:
    rows = decimate(curve, 2000)
    finite = np.isfinite(curve.y)
    assert [row[0] for row in values_of(rows)] == curve.x[finite].tolist()
    gaps = {row[0] for row in rows if row[1] is None}
    starts = set(curve.x[1:][np.diff(curve.segment) != 0].tolist())
    assert gaps == set(curve.x[~finite].tolist()) | starts  # NaN, infinite, or another process begins


@given(curves(), st.integers(1, 300), st.integers(16, 100))
def test_bins_stay_where_they_are_while_a_run_grows(curve: Curve, count: int, points: int) -> None:
    """A page that appends must not see its old rows move: all bins but the last, while the width is equal."""
    part = curve.rows(slice(0, min(count, len(curve))))
    short, whole = decimate(part, 2000), decimate(curve, 2000)
    assert whole[: len(short)] == short
    edges = {row[0] for row in decimate(curve, points)}
    assert len(edges) <= points


def test_a_spike_among_a_million_lines() -> None:
    loss = np.full(1_000_000, 2.0)
    loss[123_456], loss[777_777] = 9.0, math.nan
    curve = Curve(np.arange(1_000_000), loss, np.zeros(1_000_000, dtype=np.int64))
    rows = decimate(curve, 1500)
    assert 700 <= len(rows) <= 1500
    assert [row for row in rows if row[-1] == 9.0] == [
        [row[0], row[1], 2.0, 9.0] for row in rows if row[-1] == 9.0
    ]
    assert [row for row in rows if row[1] is None] == [[777_777, None]]


def test_zooming_shows_every_line() -> None:
    run_log = make_run_log(make_steps(range(0, 100_000, 10), loss=[1.0 + at % 7 for at in range(10_000)]))
    rows = rows_of(run_log, first=5000, last=5100, points=1500)["loss"]
    assert [row[0] for row in rows] == list(range(4990, 5111, 10))  # one more on each side


def test_what_a_resume_repeats_is_not_drawn() -> None:
    iterations = [*range(0, 60, 10), *range(30, 90, 10)]
    run_log = make_run_log(
        make_steps(iterations, loss=[float(at) for at in range(12)], segment=[0] * 6 + [1] * 6),
        segments=(LoggedProcess(True, first_iteration=0), LoggedProcess(True, True, first_iteration=30)),
    )
    assert rows_of(run_log)["loss"] == [
        [0, 0.0], [10, 1.0], [20, 2.0], [30, None], [30, 6.0], [40, 7.0], [50, 8.0], [60, 9.0], [70, 10.0],
        [80, 11.0],
    ]  # fmt: skip


# --- axes ---


def test_axes_are_known_up_to_the_planned_end() -> None:
    steps = make_steps(range(0, 501, 10), ms=100.0, loss=[2.0] * 51)
    setup = {"max_iters": 1000, "batch_size": 4, "block_size": 8, "gradient_accumulation_steps": 1}
    knots = knots_of(Analysis(make_run_log(steps, settings=setup)), planned=1000, eta_s=50.0)
    assert knots["update"][0] == 0
    assert knots["update"][-1] == 1000
    assert knots["tokens"][-1] == 1000 * 32
    assert np.interp(500, knots["update"], knots["tokens"]) == 500 * 32
    assert math.isclose(knots["seconds"][-1], 100.1, rel_tol=0.01)
    assert math.isclose(np.interp(500, knots["update"], knots["seconds"]), 50.1, rel_tol=0.01)
    assert len(knots["update"]) < 5  # a straight line needs no more
    assert all(len(values) <= MAX_KNOTS for values in knots.values())
    assert "epochs" not in knots
