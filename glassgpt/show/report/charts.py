"""The charts of a report, as plain plotly figures.

Colours are variables of the style sheet, `var(--train)`: page.js fills in their light or dark values.
"""

from __future__ import annotations

import numpy as np

from glassgpt.format import format_bytes, format_count, format_duration, format_ms
from glassgpt.i18n import translate
from glassgpt.runs.facts import Facts
from glassgpt.runs.model_size import stated_peak_flops
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

MIN_UNDRAWN_SHARE = 0.01  # of the run


def make_charts(run_log: RunLog, facts: Facts, timeline: Timeline | None) -> list[Chart | MissingChart]:
    """In the order of the page."""
    charts: list[Chart | MissingChart | None] = [
        loss_chart(run_log, facts),
        bits_per_byte_chart(run_log, facts),
        _time_chart(run_log, facts, timeline),
        _step_time_chart(run_log, facts),
        _mfu_chart(run_log, facts),
        _tokens_per_s_chart(run_log, facts),
        _learning_rate_chart(run_log),
        _gradient_norm_chart(run_log),
        _memory_chart(run_log),
    ]
    return [chart for chart in charts if chart is not None]


def _time_chart(run_log: RunLog, facts: Facts, timeline: Timeline | None) -> Chart | MissingChart:
    """Stacked bars: training, evaluation and checkpoints, start-up."""
    if timeline is None or timeline.total_s <= 0:
        return MissingChart(translate("report.time.missing"))
    without_startup_s = timeline.train_s + timeline.eval_and_save_s + timeline.stall_s
    top_s = float(without_startup_s.max())
    unit_s, unit = (1, " s") if top_s < 300 else (60, " min") if top_s < 5 * 3600 else (3600, " h")
    width = timeline.iterations_per_bin
    kinds = (
        (translate("phase.train"), "var(--train)", timeline.train_s),
        (translate("phase.pauses"), "var(--val)", timeline.eval_and_save_s),
        (translate("phase.stall"), "var(--norm)", timeline.stall_s),
        (translate("phase.startup"), "var(--startup)", timeline.startup_s),
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
    layout["xaxis"]["unifiedhovertitle"] = {
        "text": translate("report.time.hover_from_iteration", number="%{x:,d}")
    }
    layout["yaxis"]["ticksuffix"] = unit
    layout["shapes"] = []
    heights_s = without_startup_s + timeline.startup_s
    highest = int(np.argmax(heights_s))
    if top_s > 0 and heights_s[highest] >= 4 * top_s:  # a long start-up would flatten the rest: crop it
        layout["yaxis"]["range"] = [0, top_s * 1.6 / unit_s]
        height = format_duration(float(heights_s[highest]))
        label = {
            "x": int(timeline.bin_start[highest]) + width,
            "y": top_s * 1.5 / unit_s,
            "xanchor": "left",
            "showarrow": False,
            "text": translate("report.time.higher_than_drawn", time=height),
            "font": {"color": "var(--ink)", "size": 13},
        }
        layout["annotations"] = [label]
    summary = _time_summary(run_log, facts, timeline)
    return Chart("time", translate("report.time.title"), summary, traces, layout, wide=True)


def _time_summary(run_log: RunLog, facts: Facts, timeline: Timeline) -> str:
    total_s = facts.regime_total_s or timeline.total_s
    sentences = [
        translate("report.time.bar_width_and_total", width=timeline.iterations_per_bin, total=total_s)
    ]
    # Logging, sampling, and updates under the profiler are in a journal's total, and belong to no iteration.
    if (rest_s := total_s - timeline.total_s) > MIN_UNDRAWN_SHARE * total_s:
        sentences.append(translate("report.time.not_drawn", rest=rest_s))
    if not timeline.is_complete:
        sentences.append(translate("report.time.evaluations_unknown"))
    elif facts.pause_share is not None:
        sentences.append(translate("report.time.overhead_share", share=facts.pause_share))
    if run_log.ledger and len(run_log.segments) > 1 and not timeline.startup_s.any():
        sentences.append(translate("report.time.startup_in_total_only"))
    return " ".join(sentences)


def _step_time_chart(run_log: RunLog, facts: Facts) -> Chart | MissingChart:
    steps, is_steady, includes_eval = run_log.steps, run_log.is_steady(), run_log.includes_eval()
    timed = np.isfinite(steps.ms)
    if not timed.any():
        return MissingChart(translate("report.step_time.missing"))
    rows = np.flatnonzero(is_steady)
    traces = []
    if len(rows):
        names = (
            translate("report.step_time.curve_training"),
            translate("report.step_time.curve_training_smoothed"),
        )
        traces += smoothed_line_traces(run_log, rows, steps.ms[rows], names, "var(--train)", " ms")
    # A trainer that does not time its start-up has a first iteration like any other.
    slow_start = timed & ~is_steady & ~includes_eval & (steps.ms > 2 * (facts.steady_ms or 0.0))
    traces += _spike_markers(
        run_log, timed & includes_eval, translate("report.step_time.curve_with_evaluation"), "var(--val)"
    )
    traces += _spike_markers(
        run_log, slow_start, translate("report.step_time.curve_with_startup"), "var(--startup)"
    )
    if not traces:
        return MissingChart(translate("report.step_time.missing_one_iteration"))
    layout = base_layout(run_log)
    layout["yaxis"]["ticksuffix"] = " ms"
    if needs_log_axis(drawn_values(traces), 6):
        set_log_axis(layout, drawn_values(traces), " ms")
    summary = translate("report.step_time.too_few_iterations")
    if facts.steady_ms is not None:
        usual = format_ms(facts.steady_ms)
        summary = translate("report.step_time.steady", time=usual)
        if facts.steady_p95_ms is not None:
            slow = format_ms(facts.steady_p95_ms)
            summary = translate("report.step_time.steady_and_slow", time=usual, slow=slow)
    return Chart("step-time", translate("report.step_time.title"), summary, traces, layout)


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
        return MissingChart(translate("report.mfu.missing"))
    names, mfu = (translate("report.mfu.curve"), translate("report.curve_smoothed")), run_log.steps.mfu[rows]
    traces = (
        [line_trace(run_log, rows, mfu, names[0], "var(--speed)", 1.5, " %")]
        if run_log.trainer.mfu_is_running_average
        else smoothed_line_traces(run_log, rows, mfu, names, "var(--speed)", " %")
    )
    layout = _single_curve_layout(run_log, rangemode="tozero", ticksuffix=" %")
    sentences = []
    if facts.mfu_reported_steady is not None:
        sentences.append(translate("report.mfu.usual", mfu=facts.mfu_reported_steady))
    peak = stated_peak_flops(run_log)
    if peak:
        sentences.append(translate("report.mfu.peak", peak=peak))
    if run_log.setup.peak_is_disturbed:
        sentences.append(translate("report.mfu.disturbed"))
    if run_log.trainer.mfu_is_running_average:
        sentences.append(translate("report.mfu.running_average"))
    summary = " ".join(sentences) or translate("report.mfu.meaning")
    return Chart("mfu", translate("report.mfu.title"), summary, traces, layout)


def _tokens_per_s_chart(run_log: RunLog, facts: Facts) -> Chart | None:
    rows = np.flatnonzero(np.isfinite(run_log.steps.tokens_per_s))
    if len(rows) == 0 or facts.tokens_per_s is None:
        return None  # no MissingChart: the step time shows the same
    names = translate("label.tokens_per_second"), translate("report.curve_smoothed")
    traces = smoothed_line_traces(run_log, rows, run_log.steps.tokens_per_s[rows], names, "var(--speed)")
    layout = _single_curve_layout(run_log, rangemode="tozero", tickformat="~s")
    usual = format_count(facts.tokens_per_s)
    return Chart(
        "tokens",
        translate("label.heading.tokens_per_second"),
        translate("report.tokens_per_second.usual", number=usual),
        traces,
        layout,
    )


def _learning_rate_chart(run_log: RunLog) -> Chart | MissingChart:
    rows = np.flatnonzero(np.isfinite(run_log.steps.lr))
    if len(rows) == 0 or run_log.trainer.lr_is_share_of_peak:
        return MissingChart(translate("report.learning_rate.missing"))
    rates = run_log.steps.lr[rows]
    traces = [line_trace(run_log, rows, rates, translate("report.learning_rate.curve"), "var(--rate)", 2)]
    layout = _single_curve_layout(run_log, rangemode="tozero", tickformat="~g")
    summary = translate("report.learning_rate.highest_and_last", highest=rates.max(), last=rates[-1])
    return Chart("learning-rate", translate("report.learning_rate.title"), summary, traces, layout)


def _gradient_norm_chart(run_log: RunLog) -> Chart | MissingChart:
    rows = np.flatnonzero(np.isfinite(run_log.steps.grad_norm))
    if len(rows) == 0:
        return MissingChart(translate("report.gradient_norm.missing"))
    norms = run_log.steps.grad_norm[rows]
    traces = smoothed_line_traces(
        run_log,
        rows,
        norms,
        (translate("report.gradient_norm.curve"), translate("report.curve_smoothed")),
        "var(--norm)",
    )
    layout = _single_curve_layout(run_log)
    if needs_log_axis(norms, 30):
        set_log_axis(layout, norms)
    clip = run_log.setup.settings.get("grad_clip")
    if isinstance(clip, int | float) and 0 < clip <= norms.max():
        layout["shapes"].append(
            horizontal_line(float(clip), translate("report.gradient_norm.clip_line", level=clip))
        )
    summary = translate(
        "report.gradient_norm.usual_and_highest", median=float(np.median(norms)), highest=norms.max()
    )
    return Chart("gradient-norm", translate("report.gradient_norm.title"), summary, traces, layout)


def _memory_chart(run_log: RunLog) -> Chart | MissingChart:
    used_bytes = run_log.steps.memory_bytes
    if used_bytes is None or not np.isfinite(used_bytes).any():
        return MissingChart(translate("report.memory.missing"))
    rows = np.flatnonzero(np.isfinite(used_bytes))
    traces = [
        line_trace(run_log, rows, used_bytes[rows] / 2**30, translate("axis.gib_in_use"), "var(--rate)", 2)
    ]
    layout = _single_curve_layout(run_log, rangemode="tozero", ticksuffix=" GiB")
    highest = format_bytes(float(used_bytes[rows].max()))
    capacity = run_log.setup.memory_bytes
    if capacity:
        summary = translate("report.memory.highest_of_capacity", highest=highest, capacity=capacity)
    else:
        summary = translate("report.memory.highest", highest=highest)
    return Chart("memory", translate("report.memory.title"), summary, traces, layout)
