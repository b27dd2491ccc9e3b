"""The charts of a report, as plain plotly figures.

Colours are variables of the style sheet, `var(--train)`: page.js fills in their light or dark values.
"""

from __future__ import annotations

import numpy as np

from glassgpt import format
from glassgpt.i18n import say
from glassgpt.runs.facts import Facts
from glassgpt.runs.inference import stated_peak_flops
from glassgpt.runs.run_log import Bools, RunLog
from glassgpt.show.report.drawing import (
    Chart,
    Layout,
    MissingChart,
    Trace,
    base_layout,
    drawn_values,
    horizontal_line,
    json_floats,
    line_trace,
    needs_log_axis,
    set_log_axis,
    smoothed_line_traces,
    thinned_indices,
)
from glassgpt.show.report.loss_charts import bits_per_byte_chart, loss_chart
from glassgpt.show.timeline import Timeline


def make_charts(run_log: RunLog, facts: Facts, timeline: Timeline | None) -> list[Chart | MissingChart]:
    """In the order of the page."""
    charts: list[Chart | MissingChart | None] = [
        loss_chart(run_log, facts),
        bits_per_byte_chart(run_log, facts),
        _time_chart(run_log, facts, timeline),
        _step_time_chart(run_log, facts),
        _mfu_chart(run_log, facts),
        _tokens_per_s_chart(run_log),
        _learning_rate_chart(run_log),
        _gradient_norm_chart(run_log),
        _memory_chart(run_log),
    ]
    return [chart for chart in charts if chart is not None]


def _time_chart(run_log: RunLog, facts: Facts, timeline: Timeline | None) -> Chart | MissingChart:
    """Stacked bars: training, evaluation and checkpoints, start-up."""
    if timeline is None or timeline.total_s <= 0:
        return MissingChart(say("The time is not drawn: this log does not say how long its iterations took."))
    without_startup_s = timeline.train_s + timeline.eval_and_save_s
    top_s = float(without_startup_s.max())
    unit_s, unit = (1, " s") if top_s < 300 else (60, " min") if top_s < 5 * 3600 else (3600, " h")
    width = timeline.iterations_per_bin
    kinds = (
        (say("training"), "var(--train)", timeline.train_s),
        (say("evaluation and checkpoints"), "var(--val)", timeline.eval_and_save_s),
        (say("start-up"), "var(--startup)", timeline.startup_s),
    )
    traces = [
        {
            "type": "bar",
            "name": name,
            "x": timeline.bin_start.tolist(),
            "y": json_floats(seconds / unit_s),
            "width": width * 0.86,
            "offset": width * 0.07,
            "marker": {"color": colour},
            "hovertemplate": f"%{{y:.3~g}}{unit}",
        }
        for name, colour, seconds in kinds
        if bool((seconds > 0).any())
    ]
    layout = base_layout(run_log)
    layout |= {"barmode": "stack", "bargap": 0.15}
    layout["xaxis"]["unifiedhovertitle"] = {"text": say("from iteration {number} on", number="%{x:,d}")}
    layout["yaxis"]["ticksuffix"] = unit
    layout["shapes"] = []
    heights_s = without_startup_s + timeline.startup_s
    highest = int(np.argmax(heights_s))
    if top_s > 0 and heights_s[highest] >= 4 * top_s:  # a long start-up would flatten the rest: crop it
        layout["yaxis"]["range"] = [0, top_s * 1.6 / unit_s]
        height = format.format_duration(float(heights_s[highest]))
        label = {
            "x": int(timeline.bin_start[highest]) + width,
            "y": top_s * 1.5 / unit_s,
            "xanchor": "left",
            "showarrow": False,
            "text": say("← higher than drawn: {time}", time=height),
            "font": {"color": "var(--ink)", "size": 13},
        }
        layout["annotations"] = [label]
    summary = _time_summary(run_log, facts, timeline)
    return Chart("time", say("Where the time went"), summary, traces, layout, wide=True)


def _time_summary(run_log: RunLog, facts: Facts, timeline: Timeline) -> str:
    # Logging, and updates under the profiler, are in a journal's total and in no bar.
    total_s, share = facts.estimated_total_s or timeline.total_s, facts.overhead_share
    if run_log.ledger and timeline.total_s > 0:
        total_s = timeline.total_s
        share = float(timeline.eval_and_save_s.sum() + timeline.startup_s.sum()) / total_s
    total = format.format_duration(total_s)
    sentences = [
        say(
            "Iterations in each bar: {width}. All bars together: about {total}.",
            width=f"{timeline.iterations_per_bin:,}",
            total=total,
        )
    ]
    if not timeline.is_complete:
        sentences.append(
            say("What the evaluations took is not in this log, so only the training time is shown.")
        )
    elif share is not None:
        sentences.append(say("Evaluation, checkpoints and start-up are {share} of it.", share=f"{share:.1%}"))
    if run_log.ledger and len(run_log.segments) > 1 and not timeline.startup_s.any():
        sentences.append(say("Start-up and compiling of the processes are in the total only."))
    return " ".join(sentences)


def _step_time_chart(run_log: RunLog, facts: Facts) -> Chart | MissingChart:
    steps, is_steady, includes_eval = run_log.steps, run_log.is_steady(), run_log.includes_eval()
    timed = np.isfinite(steps.ms)
    if not timed.any():
        return MissingChart(
            say("The step time is not drawn: this log does not say how long its iterations took.")
        )
    rows = np.flatnonzero(is_steady)
    traces = []
    if len(rows):
        names = say("training only"), say("training only, smoothed")
        traces += smoothed_line_traces(run_log, rows, steps.ms[rows], names, "var(--train)", " ms")
    # A trainer that does not time its start-up has a first iteration like any other.
    slow_start = timed & ~is_steady & ~includes_eval & (steps.ms > 2 * (facts.steady_ms or 0.0))
    traces += _spike_markers(run_log, timed & includes_eval, say("with evaluation"), "var(--val)")
    traces += _spike_markers(run_log, slow_start, say("with start-up"), "var(--startup)")
    if not traces:
        return MissingChart(say("The step time is not drawn: this log has only one iteration that is timed."))
    layout = base_layout(run_log)
    layout["yaxis"]["ticksuffix"] = " ms"
    if needs_log_axis(drawn_values(traces), 6):
        set_log_axis(layout, drawn_values(traces), " ms")
    summary = say("This log has too few iterations to tell a steady one.")
    if facts.steady_ms is not None:
        usual = format.format_ms(facts.steady_ms)
        summary = say("A steady iteration takes {time}.", time=usual)
        if facts.steady_p95_ms is not None:
            slow = format.format_ms(facts.steady_p95_ms)
            summary = say(
                "A steady iteration takes {time}; one in twenty more than {slow}.", time=usual, slow=slow
            )
    return Chart("step-time", say("Step time"), summary, traces, layout)


def _spike_markers(run_log: RunLog, is_spike: Bools, name: str, colour: str) -> list[Trace]:
    rows = np.flatnonzero(is_spike)
    if len(rows) == 0:
        return []
    rows = rows[thinned_indices(run_log.steps.ms[rows], 500)]
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": run_log.steps.iteration[rows].tolist(),
            "y": json_floats(run_log.steps.ms[rows]),
            "marker": {"color": colour, "size": 7},
            "hovertemplate": "%{y:,.5~g} ms",
        }
    ]


def _single_curve_layout(run_log: RunLog, **yaxis: str) -> Layout:
    """Without a legend: the title names the curve."""
    layout = base_layout(run_log)
    layout["yaxis"] |= yaxis
    return layout | {"showlegend": False}


def _mfu_chart(run_log: RunLog, facts: Facts) -> Chart | MissingChart:
    rows = np.flatnonzero(np.isfinite(run_log.steps.mfu))
    if len(rows) == 0:
        return MissingChart(
            say("The MFU (model FLOPs utilisation) is not drawn: this log does not report it.")
        )
    names, mfu = (say("MFU as the log reports it"), say("smoothed")), run_log.steps.mfu[rows]
    traces = (
        [line_trace(run_log, rows, mfu, names[0], "var(--speed)", 1.5, " %")]
        if run_log.trainer.mfu_is_running_average
        else smoothed_line_traces(run_log, rows, mfu, names, "var(--speed)", " %")
    )
    layout = _single_curve_layout(run_log, rangemode="tozero", ticksuffix=" %")
    sentences = []
    if facts.mfu_reported_steady is not None:
        sentences.append(say("Usually {mfu}.", mfu=f"{facts.mfu_reported_steady:.1f}%"))
    peak = stated_peak_flops(run_log)
    if peak:
        sentences.append(say("{peak} counts as 100%.", peak=format.format_flops_per_s(peak)))
    if run_log.trainer.mfu_is_running_average:
        sentences.append(say("It is a running average, so an evaluation pulls it down for a while."))
    summary = " ".join(sentences) or say("The share of the peak that the model's own FLOPs reach.")
    return Chart("mfu", say("MFU (model FLOPs utilisation)"), summary, traces, layout)


def _tokens_per_s_chart(run_log: RunLog) -> Chart | None:
    rows = np.flatnonzero(np.isfinite(run_log.steps.tokens_per_s))
    if len(rows) == 0:
        return None  # no MissingChart: the step time shows the same
    names = say("tokens per second"), say("smoothed")
    traces = smoothed_line_traces(run_log, rows, run_log.steps.tokens_per_s[rows], names, "var(--speed)")
    layout = _single_curve_layout(run_log, rangemode="tozero", tickformat="~s")
    usual = format.format_count(float(np.median(run_log.steps.tokens_per_s[rows])))
    return Chart("tokens", say("Tokens per second"), say("Usually {number}.", number=usual), traces, layout)


def _learning_rate_chart(run_log: RunLog) -> Chart | MissingChart:
    rows = np.flatnonzero(np.isfinite(run_log.steps.lr))
    if len(rows) == 0:
        return MissingChart(say("The learning rate is not drawn: this log does not report it."))
    rates = run_log.steps.lr[rows]
    traces = [line_trace(run_log, rows, rates, say("learning rate"), "var(--rate)", 2)]
    layout = _single_curve_layout(run_log, rangemode="tozero", tickformat="~g")
    summary = say(
        "Highest {highest}, at the end {last}.", highest=f"{rates.max():.3g}", last=f"{rates[-1]:.3g}"
    )
    return Chart("learning-rate", say("Learning rate"), summary, traces, layout)


def _gradient_norm_chart(run_log: RunLog) -> Chart | MissingChart:
    rows = np.flatnonzero(np.isfinite(run_log.steps.grad_norm))
    if len(rows) == 0:
        return MissingChart(say("The gradient norm is not drawn: this log does not report it."))
    norms = run_log.steps.grad_norm[rows]
    traces = smoothed_line_traces(
        run_log, rows, norms, (say("gradient norm"), say("smoothed")), "var(--norm)"
    )
    layout = _single_curve_layout(run_log)
    if needs_log_axis(norms, 30):
        set_log_axis(layout, norms)
    clip = run_log.setup.settings.get("grad_clip")
    if isinstance(clip, int | float) and 0 < clip <= norms.max():
        layout["shapes"].append(horizontal_line(float(clip), say("clipped above {level}", level=f"{clip:g}")))
    summary = say(
        "Usually {median}, highest {highest}.",
        median=f"{float(np.median(norms)):.3g}",
        highest=f"{norms.max():.3g}",
    )
    return Chart("gradient-norm", say("Gradient norm"), summary, traces, layout)


def _memory_chart(run_log: RunLog) -> Chart | MissingChart:
    used_bytes = run_log.steps.memory_bytes
    if used_bytes is None or not np.isfinite(used_bytes).any():
        return MissingChart(say("Memory is not drawn: this log does not report it."))
    rows = np.flatnonzero(np.isfinite(used_bytes))
    traces = [line_trace(run_log, rows, used_bytes[rows] / 2**30, say("GiB in use"), "var(--rate)", 2)]
    layout = _single_curve_layout(run_log, rangemode="tozero", ticksuffix=" GiB")
    highest = format.format_bytes(float(used_bytes[rows].max()))
    capacity = run_log.setup.memory_bytes
    if capacity:
        summary = say(
            "At most {highest} of {capacity}.", highest=highest, capacity=format.format_bytes(capacity)
        )
    else:
        summary = say("At most {highest}.", highest=highest)
    return Chart("memory", say("Memory"), summary, traces, layout)
