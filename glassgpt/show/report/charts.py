"""The charts of a report, as plain plotly figures.

Colours are names of the style sheet, `var(--train)`: page.js puts in what they are in the light or the dark.
"""

from __future__ import annotations

import numpy as np

from glassgpt import format
from glassgpt.i18n import say
from glassgpt.runs.facts import Facts
from glassgpt.runs.run_log import Bools, Floats, History
from glassgpt.show.report.drawing import (
    Chart,
    Layout,
    Missing,
    Trace,
    drawn_values,
    is_wide,
    level_at,
    line,
    noisy_line,
    numbers,
    plain_layout,
    set_logarithmic,
)
from glassgpt.show.report.loss_charts import bits_per_byte_chart, loss_chart
from glassgpt.show.report.thinning import thinned
from glassgpt.show.timeline import Timeline


def charts_of(history: History, facts: Facts, timeline: Timeline | None) -> list[Chart | Missing]:
    """In the order of the page."""
    charts: list[Chart | Missing | None] = [
        loss_chart(history, facts),
        bits_per_byte_chart(history, facts),
        _over_time(history, facts, timeline),
        _step_time(history, facts),
        _mfu(history, facts),
        _tokens_per_s(history),
        _learning_rate(history),
        _gradient_norm(history),
        _memory(history),
    ]
    return [chart for chart in charts if chart is not None]


def _over_time(history: History, facts: Facts, timeline: Timeline | None) -> Chart | Missing:
    if timeline is None or timeline.total_s <= 0:
        return Missing(say("The time is not drawn: this log does not say how long its iterations took."))
    kinds = (
        (say("training"), "var(--train)", timeline.train),
        (say("evaluation and checkpoints"), "var(--val)", timeline.pauses),
        (say("start-up"), "var(--startup)", timeline.startup),
    )
    unit_s, unit = _time_unit(float((timeline.train + timeline.pauses).max()))
    traces = [
        _bars(timeline, seconds / unit_s, unit, name, colour)
        for name, colour, seconds in kinds
        if bool((seconds > 0).any())
    ]
    layout = plain_layout(history)
    layout |= {"barmode": "stack", "bargap": 0.15}
    layout["xaxis"]["unifiedhovertitle"] = {"text": say("from iteration {number} on", number="%{x:,d}")}
    layout["yaxis"]["ticksuffix"] = unit
    layout["shapes"] = []
    _keep_low_bars_visible(layout, timeline, unit_s)
    return Chart(
        "time", say("Where the time went"), _time_summary(history, facts, timeline), traces, layout, wide=True
    )


def _time_unit(seconds: float) -> tuple[float, str]:
    return (1, " s") if seconds < 300 else (60, " min") if seconds < 5 * 3600 else (3600, " h")


def _bars(timeline: Timeline, heights: Floats, unit: str, name: str, colour: str) -> Trace:
    return {
        "type": "bar",
        "name": name,
        "x": timeline.start.tolist(),
        "y": numbers(heights),
        "width": timeline.width * 0.86,
        "offset": timeline.width * 0.07,
        "marker": {"color": colour},
        "hovertemplate": f"%{{y:.3~g}}{unit}",
    }


def _keep_low_bars_visible(layout: Layout, timeline: Timeline, unit_s: float) -> None:
    """A start-up many times longer than all the rest is cut off at the top, and says so."""
    heights = timeline.train + timeline.pauses + timeline.startup
    rest = float((timeline.train + timeline.pauses).max())
    top = int(np.argmax(heights))
    if rest <= 0 or heights[top] < 4 * rest:
        return
    layout["yaxis"]["range"] = [0, rest * 1.6 / unit_s]
    layout["annotations"] = [
        {
            "x": int(timeline.start[top]) + timeline.width,
            "y": rest * 1.5 / unit_s,
            "xanchor": "left",
            "showarrow": False,
            "text": say("← higher than drawn: {time}", time=format.duration(float(heights[top]))),
            "font": {"color": "var(--ink)", "size": 13},
        }
    ]


def _time_summary(history: History, facts: Facts, timeline: Timeline) -> str:
    # Logging, and updates under the profiler, are in a journal's total and in no bar.
    total_s, share = facts.estimated_total_s or timeline.total_s, facts.overhead_share
    if history.ledger and timeline.total_s > 0:
        total_s = timeline.total_s
        share = float(timeline.pauses.sum() + timeline.startup.sum()) / total_s
    total = format.duration(total_s)
    sentences = [
        say(
            "Iterations in each bar: {width}. All bars together: about {total}.",
            width=f"{timeline.width:,}",
            total=total,
        )
    ]
    if not timeline.complete:
        sentences.append(
            say("What the evaluations took is not in this log, so only the training time is shown.")
        )
    elif share is not None:
        sentences.append(say("Evaluation, checkpoints and start-up are {share} of it.", share=f"{share:.1%}"))
    if history.ledger and len(history.segments) > 1 and not timeline.startup.any():
        sentences.append(say("Start-up and compiling of the processes are in the total only."))
    return " ".join(sentences)


def _step_time(history: History, facts: Facts) -> Chart | Missing:
    steps, steady, holds_eval = history.steps, history.steady(), history.holds_eval()
    timed = np.isfinite(steps.ms)
    if not timed.any():
        return Missing(say("The step time is not drawn: this log does not say how long its iterations took."))
    rows = np.flatnonzero(steady)
    traces = []
    if len(rows):
        names = say("training only"), say("training only, smoothed")
        traces += noisy_line(history, rows, steps.ms[rows], names, "var(--train)", " ms")
    # A trainer that does not time its start-up has a first iteration like any other.
    slow_start = timed & ~steady & ~holds_eval & (steps.ms > 2 * (facts.steady_ms or 0.0))
    traces += _spikes(history, timed & holds_eval, say("with evaluation"), "var(--val)")
    traces += _spikes(history, slow_start, say("with start-up"), "var(--startup)")
    if not traces:
        return Missing(say("The step time is not drawn: this log has only one iteration that is timed."))
    layout = plain_layout(history)
    layout["yaxis"]["ticksuffix"] = " ms"
    if is_wide(drawn_values(traces), 6):
        set_logarithmic(layout, drawn_values(traces), " ms")
    summary = say("This log has too few iterations to tell a steady one.")
    if facts.steady_ms is not None:
        usual = format.milliseconds(facts.steady_ms)
        summary = say("A steady iteration takes {time}.", time=usual)
        if facts.steady_p95_ms is not None:
            slow = format.milliseconds(facts.steady_p95_ms)
            summary = say(
                "A steady iteration takes {time}; one in twenty more than {slow}.", time=usual, slow=slow
            )
    return Chart("step-time", say("Step time"), summary, traces, layout)


def _spikes(history: History, where: Bools, name: str, colour: str) -> list[Trace]:
    rows = np.flatnonzero(where)
    if len(rows) == 0:
        return []
    rows = rows[thinned(history.steps.ms[rows], 500)]
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": history.steps.iteration[rows].tolist(),
            "y": numbers(history.steps.ms[rows]),
            "marker": {"color": colour, "size": 7},
            "hovertemplate": "%{y:,.5~g} ms",
        }
    ]


def _layout_of_one(history: History, **yaxis: str) -> Layout:
    """Of a chart whose one curve is named by its title."""
    layout = plain_layout(history)
    layout["yaxis"] |= yaxis
    return layout | {"showlegend": False}


def _mfu(history: History, facts: Facts) -> Chart | Missing:
    rows = np.flatnonzero(np.isfinite(history.steps.mfu))
    if len(rows) == 0:
        return Missing(say("The MFU (model FLOPs utilisation) is not drawn: this log does not report it."))
    names, mfu = (say("MFU as the log reports it"), say("smoothed")), history.steps.mfu[rows]
    traces = (
        [line(history, rows, mfu, names[0], "var(--speed)", 1.5, " %")]
        if history.trainer.mfu_is_running_average
        else noisy_line(history, rows, mfu, names, "var(--speed)", " %")
    )
    layout = _layout_of_one(history, rangemode="tozero", ticksuffix=" %")
    sentences = []
    if facts.mfu_reported_steady is not None:
        sentences.append(say("Usually {mfu}.", mfu=f"{facts.mfu_reported_steady:.1f}%"))
    peak = history.setup.peak_flops or history.trainer.mfu_peak
    if peak:
        sentences.append(say("{peak} counts as 100%.", peak=format.flop_rate(peak)))
    if history.trainer.mfu_is_running_average:
        sentences.append(say("It is a running average, so an evaluation pulls it down for a while."))
    summary = " ".join(sentences) or say("The share of the peak that the model's own FLOPs reach.")
    return Chart("mfu", say("MFU (model FLOPs utilisation)"), summary, traces, layout)


def _tokens_per_s(history: History) -> Chart | None:
    rows = np.flatnonzero(np.isfinite(history.steps.tokens_per_s))
    if len(rows) == 0:
        return None  # no sentence: where it is not reported, the step time says the same
    names = say("tokens per second"), say("smoothed")
    traces = noisy_line(history, rows, history.steps.tokens_per_s[rows], names, "var(--speed)")
    layout = _layout_of_one(history, rangemode="tozero", tickformat="~s")
    usual = format.count(float(np.median(history.steps.tokens_per_s[rows])))
    return Chart("tokens", say("Tokens per second"), say("Usually {number}.", number=usual), traces, layout)


def _learning_rate(history: History) -> Chart | Missing:
    rows = np.flatnonzero(np.isfinite(history.steps.lr))
    if len(rows) == 0:
        return Missing(say("The learning rate is not drawn: this log does not report it."))
    rates = history.steps.lr[rows]
    traces = [line(history, rows, rates, say("learning rate"), "var(--rate)", 2)]
    layout = _layout_of_one(history, rangemode="tozero", tickformat="~g")
    summary = say(
        "Highest {highest}, at the end {last}.", highest=f"{rates.max():.3g}", last=f"{rates[-1]:.3g}"
    )
    return Chart("learning-rate", say("Learning rate"), summary, traces, layout)


def _gradient_norm(history: History) -> Chart | Missing:
    rows = np.flatnonzero(np.isfinite(history.steps.grad_norm))
    if len(rows) == 0:
        return Missing(say("The gradient norm is not drawn: this log does not report it."))
    norms = history.steps.grad_norm[rows]
    traces = noisy_line(history, rows, norms, (say("gradient norm"), say("smoothed")), "var(--norm)")
    layout = _layout_of_one(history)
    if is_wide(norms, 30):
        set_logarithmic(layout, norms)
    clip = history.setup.settings.get("grad_clip")
    if isinstance(clip, int | float) and 0 < clip <= norms.max():
        layout["shapes"].append(level_at(float(clip), say("clipped above {level}", level=f"{clip:g}")))
    summary = say(
        "Usually {median}, highest {highest}.",
        median=f"{float(np.median(norms)):.3g}",
        highest=f"{norms.max():.3g}",
    )
    return Chart("gradient-norm", say("Gradient norm"), summary, traces, layout)


def _memory(history: History) -> Chart | Missing:
    used = history.steps.memory_bytes
    if used is None or not np.isfinite(used).any():
        return Missing(say("Memory is not drawn: this log does not report it."))
    rows = np.flatnonzero(np.isfinite(used))
    traces = [line(history, rows, used[rows] / 2**30, say("GiB in use"), "var(--rate)", 2)]
    layout = _layout_of_one(history, rangemode="tozero", ticksuffix=" GiB")
    highest = format.size(float(used[rows].max()))
    capacity = history.setup.memory_bytes
    if capacity:
        summary = say("At most {highest} of {capacity}.", highest=highest, capacity=format.size(capacity))
    else:
        summary = say("At most {highest}.", highest=highest)
    return Chart("memory", say("Memory"), summary, traces, layout)
