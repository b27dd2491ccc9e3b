"""What the charts are made of: lines, shaded areas, marks and axes, as plotly writes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glassgpt.i18n import say
from glassgpt.runs.run_log import Floats, Ints, LoggedEvaluation, RunLog
from glassgpt.show.report.thinning import SMOOTHED_POINTS, SmoothedSeries, smooth_series, thinned_indices

Trace = dict[str, Any]
Layout = dict[str, Any]

MAX_SEGMENTS = 20  # of a line, one per process
_BEGINNING_SHARE = 0.08  # of a run
_TRANSPARENT = "rgba(0,0,0,0)"


@dataclass(frozen=True)
class Chart:
    id: str
    title: str
    summary: str  # what it shows, with numbers: the caption, and the text for those who cannot see it
    traces: list[Trace]
    layout: Layout
    wide: bool = False


@dataclass(frozen=True)
class MissingChart:
    """Why a chart is not there."""

    reason: str


def line_trace(
    history: RunLog, rows: Ints, values: Floats, name: str, colour: str, width: float, unit: str = ""
) -> Trace:
    """Thinned, and broken where another process begins."""
    kept = thinned_indices(values)
    rows, values = rows[kept], values[kept]
    breaks = np.flatnonzero(np.diff(history.steps.segment[rows])) + 1
    parts = zip(np.split(history.steps.iteration[rows], breaks), np.split(values, breaks), strict=True)
    trace = segmented_line_trace(list(parts), name, colour)
    return trace | {"line": {"color": colour, "width": width}, "hovertemplate": f"%{{y:.5~g}}{unit}"}


def smoothed_line_traces(
    history: RunLog, rows: Ints, values: Floats, names: tuple[str, str], colour: str, unit: str = ""
) -> list[Trace]:
    """All values; where there are many, pale, and their course on top. Names: of both, in this order."""
    whole = line_trace(history, rows, values, names[0], colour, 1.3, unit)
    courses = smooth_per_process(history, rows, values) if len(rows) > 100 else []
    if not courses:
        return [whole]
    parts = [(at, band.mean) for at, band in courses]
    smooth = segmented_line_trace(parts, names[1], colour) | {"hovertemplate": whole["hovertemplate"]}
    return [whole | {"opacity": 0.35, "showlegend": False}, smooth]


def smooth_per_process(history: RunLog, rows: Ints, values: Floats) -> list[tuple[Ints, SmoothedSeries]]:
    """The course of finite values and their spread, one per process; with the iterations it is given at."""
    finite = np.isfinite(values)
    rows, values = rows[finite], values[finite]
    breaks = np.flatnonzero(np.diff(history.steps.segment[rows])) + 1
    courses = []
    for own_rows, own_values in zip(np.split(rows, breaks), np.split(values, breaks), strict=True):
        points = max(20, SMOOTHED_POINTS * len(own_rows) // max(len(rows), 1))
        band = smooth_series(own_values, points)
        if band is not None:
            courses.append((history.steps.iteration[own_rows[band.index]], band))
    return courses[:MAX_SEGMENTS]


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
        [(np.concatenate((at, at[::-1])), np.concatenate((lower, upper[::-1]))) for at, lower, upper in parts]
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
    kept = thinned_indices(values, 1000)
    values, evals = values[kept], [evals[index] for index in kept.tolist()]
    at = np.array([done.iteration for done in evals], dtype=np.int64)
    breaks = np.flatnonzero(np.diff([done.segment for done in evals])) + 1
    trace = segmented_line_trace(
        list(zip(np.split(at, breaks), np.split(values, breaks), strict=True)), name, colour
    )
    return trace | {"mode": "lines+markers", "marker": {"color": colour, "size": 6}}


def _join_with_gaps(parts: Sequence[tuple[Ints, Floats]]) -> tuple[list[int | None], list[float | None]]:
    """With a gap between each two."""
    x: list[int | None] = []
    y: list[float | None] = []
    for at, values in parts:
        if x:
            x.append(None)
            y.append(None)
        x += at.tolist()
        y += json_floats(values)
    return x, y


def json_floats(values: Floats) -> list[float | None]:
    """Eight digits are more than a screen shows; what is not finite, or as large as no loss is, is a gap."""
    return [float(f"{value:.8g}") if abs(value) < 1e100 else None for value in values.tolist()]


def drawn_values(traces: Sequence[Trace]) -> Floats:
    return np.array([value for trace in traces for value in trace["y"] if value is not None], dtype=float)


def needs_log_axis(values: Floats, times: float) -> bool:
    """A logarithmic axis: the highest value would press all the others flat."""
    return (
        len(values) > 0 and float(values.min()) > 0 and float(values.max()) > times * float(np.median(values))
    )


def crop_initial_drop(layout: Layout, traces: Sequence[Trace]) -> bool:
    """Cuts the beginning off at the top where a fall from there would press all the rest flat."""
    series = [_finite_points(trace) for trace in traces]
    at, values = np.concatenate(series, axis=1)
    later = values[at >= at.min() + _BEGINNING_SHARE * (at.max() - at.min())]
    low, high, top = float(values.min()), float(later.max()), float(values.max())
    if high <= low or top - low < 1.5 * (high - low):
        return False
    if any(y.size > 1 and np.mean(y <= high) < 0.7 for _, y in series):
        return False  # a line of few points would lose what it has to say
    margin = (high - low) * 0.06
    layout["yaxis"]["range"] = [low - margin, high + margin]
    return True


def _finite_points(trace: Trace) -> Floats:
    points = [pair for pair in zip(trace["x"], trace["y"], strict=True) if pair[1] is not None]
    return np.array(points, dtype=float).reshape(-1, 2).T


def base_layout(history: RunLog) -> Layout:
    axis = {"gridcolor": "var(--grid)", "zeroline": False, "automargin": True, "linecolor": "var(--line)"}
    low, high = iteration_range(history)
    place = "%{x:,d}"  # plotly puts the number in
    over = say("iteration {number}", number=place) if history.numbered else say("line {number}", number=place)
    resumes = [part.first_iteration for part in history.segments[1:] if part.first_iteration is not None]
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
            "title": {"text": say("iteration") if history.numbered else say("line"), "standoff": 8},
            "tickformat": ",~d",
            "unifiedhovertitle": {"text": over},
            "showgrid": False,
            "range": [low, high],
            "spikecolor": "var(--muted)",
            "spikethickness": 1,
        }
        | ({"dtick": 1} if high - low < 8 else {}),
        "yaxis": axis | {"exponentformat": "none", "separatethousands": True},
        "shapes": [
            vertical_line(history, at, "var(--muted)", say("resumed")) for at in resumes[:MAX_SEGMENTS]
        ],
    }


def set_log_axis(layout: Layout, values: Floats, unit: str = "") -> None:
    """With a label at 1, 2 and 5 of each power of ten, or at the powers only where there are many."""
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


def iteration_range(history: RunLog) -> tuple[float, float]:
    """Its first and last iteration, with a margin: the same for all charts, which are read side by side."""
    numbered = [done.iteration for done in history.evals if done.iteration is not None]
    at = np.concatenate((history.steps.iteration, np.array(numbered, dtype=np.int64)))
    if len(at) == 0:
        return 0.0, 1.0
    low, high = float(at.min()), float(at.max())
    margin = (high - low) * 0.015 or 1.0
    return low - margin, high + margin


def vertical_line(history: RunLog, iteration: int, colour: str, text: str) -> Layout:
    low, high = iteration_range(history)
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
