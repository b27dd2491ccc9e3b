"""Plotly traces and layouts as dicts: lines, bands, markers, axes; thinning and smoothing of series."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glassgpt.i18n import translate
from glassgpt.runs.run_log import Floats, Ints, LoggedEvaluation, RunLog

Trace = dict[str, Any]
Layout = dict[str, Any]

MAX_POINTS = 2000  # of a line
SMOOTHED_POINTS = 240
MAX_SEGMENTS = 20  # of a line, one per process
_MAX_HALF_WINDOW = 50  # of the smoothing, in points
_INITIAL_DROP_SHARE = 0.08  # of the iterations: the loss may be cropped there
_MAX_DRAWN_VALUE = 1e100  # above it a value is a gap: no loss is as large
_TRANSPARENT = "rgba(0,0,0,0)"


@dataclass(frozen=True)
class Chart:
    id: str
    title: str
    summary: str  # what it shows, with numbers: the caption and the alternative text
    traces: list[Trace]
    layout: Layout
    wide: bool = False


@dataclass(frozen=True)
class MissingChart:
    """Why a chart is missing."""

    reason: str


def thinned_indices(values: Floats, limit: int = MAX_POINTS) -> Ints:
    """Indices of at most `limit` values, without losing spikes: the extremes of each bin, and both ends."""
    count = len(values)
    if count <= limit:
        return np.arange(count)
    indices = {0, count - 1}
    edges = np.linspace(0, count, (limit - 2) // 2 + 1).astype(int)
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        bin_values = values[start:stop]
        drawable = np.flatnonzero(np.isfinite(bin_values))
        if len(drawable) == 0:
            indices.add(start)  # leaves a gap in the line, as there is one in the log
            continue
        indices.add(start + int(drawable[np.argmin(bin_values[drawable])]))
        indices.add(start + int(drawable[np.argmax(bin_values[drawable])]))
    return np.array(sorted(indices), dtype=np.int64)


@dataclass(frozen=True)
class SmoothedSeries:
    """Moving mean of a noisy series, and the standard deviation of single values around it."""

    index: Ints  # into the series
    mean: Floats
    std: Floats


def smooth_series(values: Floats, points: int = SMOOTHED_POINTS) -> SmoothedSeries | None:
    """None if there are too few values to smooth, or some that are not finite.

    The deviation comes from differences of neighbours, so that a falling loss does not count as noise.
    """

    def window_means(of: Floats, start: Ints, stop: Ints) -> Floats:
        totals = np.concatenate(([0.0], np.cumsum(of)))
        result: Floats = (totals[stop] - totals[start]) / (stop - start)
        return result

    count = len(values)
    if count < 20 or not np.isfinite(values).all():
        return None
    widest = min(_MAX_HALF_WINDOW, max(3, count // 40))
    margin = widest // 4
    index = np.unique(np.linspace(margin, count - 1 - margin, min(points, count)).astype(np.int64))
    # The window shrinks towards the ends and stays symmetric: a one-sided one would bend the mean there.
    half = np.minimum(np.minimum(index, count - 1 - index), widest)
    mean = window_means(values, index - half, index + half + 1)
    squares = np.diff(values) ** 2 / 2
    reach = np.maximum(half, 5)
    start, stop = np.maximum(index - reach, 0), np.minimum(index + reach, count - 1)
    return SmoothedSeries(index, mean, np.sqrt(np.maximum(window_means(squares, start, stop), 0)))


def line_trace(
    run_log: RunLog, rows: Ints, values: Floats, name: str, colour: str, width: float, unit: str = ""
) -> Trace:
    """A thinned line, broken where another process begins."""
    thinned = thinned_indices(values)
    rows, values = rows[thinned], values[thinned]
    breaks = np.flatnonzero(np.diff(run_log.steps.segment[rows])) + 1
    parts = zip(np.split(run_log.steps.iteration[rows], breaks), np.split(values, breaks), strict=True)
    trace = segmented_line_trace(list(parts), name, colour)
    return trace | {"line": {"color": colour, "width": width}, "hovertemplate": f"%{{y:.5~g}}{unit}"}


def smoothed_line_traces(
    run_log: RunLog, rows: Ints, values: Floats, names: tuple[str, str], colour: str, unit: str = ""
) -> list[Trace]:
    """The raw line; where it has many points, pale, with the smoothed line on top. `names`: of both."""
    raw = line_trace(run_log, rows, values, names[0], colour, 1.3, unit)
    smoothed = smooth_per_process(run_log, rows, values) if len(rows) > 100 else []
    if not smoothed:
        return [raw]
    parts = [(iterations, series.mean) for iterations, series in smoothed]
    smooth_line = segmented_line_trace(parts, names[1], colour) | {"hovertemplate": raw["hovertemplate"]}
    return [raw | {"opacity": 0.35, "showlegend": False}, smooth_line]


def smooth_per_process(run_log: RunLog, rows: Ints, values: Floats) -> list[tuple[Ints, SmoothedSeries]]:
    """For each process, iterations and the smoothed finite values at them."""
    finite = np.isfinite(values)
    rows, values = rows[finite], values[finite]
    breaks = np.flatnonzero(np.diff(run_log.steps.segment[rows])) + 1
    smoothed = []
    for process_rows, process_values in zip(np.split(rows, breaks), np.split(values, breaks), strict=True):
        points = max(20, SMOOTHED_POINTS * len(process_rows) // max(len(rows), 1))
        series = smooth_series(process_values, points)
        if series is not None:
            smoothed.append((run_log.steps.iteration[process_rows[series.index]], series))
    return smoothed[:MAX_SEGMENTS]


def segmented_line_trace(parts: Sequence[tuple[Ints, Floats]], name: str, colour: str) -> Trace:
    x, y = _join_with_gaps(parts)
    return {
        "type": "scatter",
        "mode": "lines" if len(x) > 1 else "markers",
        "name": name,
        "x": x,
        "y": y,
        "line": {"color": colour, "width": 2},
        "hovertemplate": "%{y:.5~g}",
    }


def band_trace(parts: Sequence[tuple[Ints, Floats, Floats]], name: str, colour: str) -> Trace:
    """The area between a lower and an upper line; one closed shape for each part."""
    x, y = _join_with_gaps(
        [
            (np.concatenate((iterations, iterations[::-1])), np.concatenate((lower, upper[::-1])))
            for iterations, lower, upper in parts
        ]
    )
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": y,
        "fill": "toself",
        "fillcolor": colour,
        "line": {"width": 0, "color": _TRANSPARENT},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def eval_trace(
    name: str, colour: str, evals: Sequence[LoggedEvaluation], losses: Sequence[float | None]
) -> Trace:
    values = np.array(losses, dtype=float)
    thinned = thinned_indices(values, 1000)
    values, evals = values[thinned], [evals[index] for index in thinned.tolist()]
    iterations = np.array([evaluation.iteration for evaluation in evals], dtype=np.int64)
    breaks = np.flatnonzero(np.diff([evaluation.segment for evaluation in evals])) + 1
    parts = zip(np.split(iterations, breaks), np.split(values, breaks), strict=True)
    trace = segmented_line_trace(list(parts), name, colour)
    return trace | {"mode": "lines+markers", "marker": {"color": colour, "size": 6}}


def _join_with_gaps(parts: Sequence[tuple[Ints, Floats]]) -> tuple[list[int | None], list[float | None]]:
    """One x and one y for all parts, with a gap (None) between each two."""
    x: list[int | None] = []
    y: list[float | None] = []
    for iterations, values in parts:
        if x:
            x.append(None)
            y.append(None)
        x += iterations.tolist()
        y += json_floats(values)
    return x, y


def json_floats(values: Floats) -> list[float | None]:
    """Rounded to eight digits, more than a screen shows; a value that cannot be drawn is a gap (None)."""
    return [float(f"{value:.8g}") if abs(value) < _MAX_DRAWN_VALUE else None for value in values.tolist()]


def drawn_values(traces: Sequence[Trace]) -> Floats:
    return np.array([value for trace in traces for value in trace["y"] if value is not None], dtype=float)


def needs_log_axis(values: Floats, ratio: float) -> bool:
    """All are positive, and the highest is over `ratio` times the median: it would flatten the others."""
    return (
        len(values) > 0 and float(values.min()) > 0 and float(values.max()) > ratio * float(np.median(values))
    )


def crop_initial_drop(layout: Layout, traces: Sequence[Trace]) -> bool:
    """Crop the initial drop of the loss at the top if it would flatten the rest; True if it was cropped."""
    series = []
    for trace in traces:
        points = [pair for pair in zip(trace["x"], trace["y"], strict=True) if pair[1] is not None]
        series.append(np.array(points, dtype=float).reshape(-1, 2).T)
    iterations, values = np.concatenate(series, axis=1)
    span = iterations.max() - iterations.min()
    later = values[iterations >= iterations.min() + _INITIAL_DROP_SHARE * span]
    low, high, top = float(values.min()), float(later.max()), float(values.max())
    if high <= low or top - low < 1.5 * (high - low):
        return False
    if any(y.size > 1 and np.mean(y <= high) < 0.7 for _, y in series):
        return False  # a line of few points would lose most of them
    margin = (high - low) * 0.06
    layout["yaxis"]["range"] = [low - margin, high + margin]
    return True


def base_layout(run_log: RunLog) -> Layout:
    axis = {"gridcolor": "var(--grid)", "zeroline": False, "automargin": True, "linecolor": "var(--line)"}
    low, high = iteration_range(run_log)
    number = "%{x:,d}"  # plotly fills it in
    hover = (
        translate("axis.iteration_number", number=number)
        if run_log.has_iteration_numbers
        else translate("axis.line_number", number=number)
    )
    resumes = [
        segment.first_iteration for segment in run_log.segments[1:] if segment.first_iteration is not None
    ]
    return {
        "autosize": True,
        "margin": {"l": 4, "r": 24, "t": 8, "b": 4},
        "paper_bgcolor": _TRANSPARENT,
        "plot_bgcolor": _TRANSPARENT,
        "font": {"color": "var(--muted)", "size": 12},
        "hovermode": "x unified",
        "hoverlabel": {
            "bgcolor": "var(--card)",
            "bordercolor": "var(--line)",
            "font": {"color": "var(--ink)"},
        },
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
            "font": {"color": "var(--ink)"},
        },
        "showlegend": True,
        "xaxis": axis
        | {
            "title": {
                "text": translate("axis.iteration")
                if run_log.has_iteration_numbers
                else translate("axis.line"),
                "standoff": 8,
            },
            "tickformat": ",~d",
            "unifiedhovertitle": {"text": hover},
            "showgrid": False,
            "range": [low, high],
            "spikecolor": "var(--muted)",
            "spikethickness": 1,
        }
        | ({"dtick": 1} if high - low < 8 else {}),
        "yaxis": axis | {"exponentformat": "none", "separatethousands": True},
        "shapes": [
            vertical_line(run_log, iteration, "var(--muted)", translate("report.resumed_line"))
            for iteration in resumes[:MAX_SEGMENTS]
        ],
    }


def set_log_axis(layout: Layout, values: Floats, unit: str = "") -> None:
    """With ticks at 1, 2 and 5 of each power of ten, or at the powers alone if there are many."""
    low, high = float(np.log10(values.min())), float(np.log10(values.max()))
    mantissas = (1, 2, 5) if high - low < 1.7 else (1,)
    powers = range(math.floor(low), math.ceil(high) + 1)
    ticks = [mantissa * 10.0**power for power in powers for mantissa in mantissas]
    margin = max((high - low) * 0.06, 0.02)
    layout["yaxis"] |= {
        "type": "log",
        "range": [low - margin, high + margin],
        "tickvals": ticks,
        "ticktext": [(f"{tick:,.0f}" if tick >= 1 else f"{tick:g}") + unit for tick in ticks],
    }


def iteration_range(run_log: RunLog) -> tuple[float, float]:
    """First and last iteration, with a margin: the same for all charts, which are read side by side."""
    eval_iterations = [one.iteration for one in run_log.evals if one.iteration is not None]
    iterations = np.concatenate((run_log.steps.iteration, np.array(eval_iterations, dtype=np.int64)))
    if len(iterations) == 0:
        return 0.0, 1.0
    low, high = float(iterations.min()), float(iterations.max())
    margin = (high - low) * 0.015 or 1.0
    return low - margin, high + margin


def vertical_line(run_log: RunLog, iteration: int, colour: str, text: str) -> Layout:
    low, high = iteration_range(run_log)
    return {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "x0": iteration,
        "x1": iteration,
        "y0": 0,
        "y1": 1,
        "line": {"color": colour, "width": 1, "dash": "dot"},
        "label": {
            "text": text,
            "font": {"color": colour, "size": 11},
            "textangle": 0,
            "textposition": "end",
            "xanchor": "left" if iteration < low + 0.8 * (high - low) else "right",
            "yanchor": "top",
        },
    }


def horizontal_line(value: float, text: str) -> Layout:
    return {
        "type": "line",
        "xref": "paper",
        "yref": "y",
        "x0": 0,
        "x1": 1,
        "y0": value,
        "y1": value,
        "line": {"color": "var(--muted)", "width": 1, "dash": "dot"},
        "label": {"text": text, "font": {"color": "var(--muted)", "size": 11}, "textposition": "end"},
    }
