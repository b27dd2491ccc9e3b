"""The chart of the training loss, the evaluations and their noise; and that of bits per byte."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from glassgpt.i18n import translate
from glassgpt.runs.facts import Facts
from glassgpt.runs.run_log import RunLog
from glassgpt.show.report.drawing import (
    Chart,
    MissingChart,
    Trace,
    band_trace,
    base_layout,
    crop_initial_drop,
    drawn_values,
    eval_trace,
    iteration_range,
    json_floats,
    line_trace,
    needs_log_axis,
    segmented_line_trace,
    set_log_axis,
    smooth_per_process,
    thinned_indices,
    vertical_line,
)

_TRAIN_BAND_COLOUR, _VAL_BAND_COLOUR = "var(--train-band)", "var(--val-band)"


def loss_chart(run_log: RunLog, facts: Facts) -> Chart | MissingChart:
    traces: list[Trace] = []
    rows = np.flatnonzero(run_log.steps.has_loss)
    if len(rows):
        # Every line of the log; where there are enough of them, pale, under their moving mean.
        losses = run_log.steps.loss[rows]
        raw = line_trace(run_log, rows, losses, translate("label.training_loss"), "var(--train)", 1.5)
        smoothed = smooth_per_process(run_log, rows, losses)
        if smoothed:
            spread = [(at, series.mean - series.std, series.mean + series.std) for at, series in smoothed]
            mean = [(at, series.mean) for at, series in smoothed]
            pale = {"opacity": 0.3, "showlegend": False, "line": {"color": "var(--train)", "width": 1}}
            traces += [
                raw | pale,
                band_trace(spread, translate("report.loss.curve_usual_spread"), _TRAIN_BAND_COLOUR),
                segmented_line_trace(mean, translate("report.loss.curve_training_smoothed"), "var(--train)"),
            ]
        else:
            traces.append(raw)
    evals = [one for one in run_log.evals if one.iteration is not None and one.train_loss is not None]
    if evals:
        train_losses = [evaluation.train_loss for evaluation in evals]
        traces.append(
            eval_trace(
                translate("report.loss.curve_training_evaluated"), "var(--train-eval)", evals, train_losses
            )
        )
    if run_log.val_metric == "loss":
        traces += _validation_traces(run_log, facts, translate("report.loss.curve_validation"))
    values = drawn_values(traces)
    if len(values) == 0:
        return MissingChart(translate("report.loss.missing"))
    layout, summary = base_layout(run_log), _loss_summary(run_log, facts, traces)
    if needs_log_axis(values, 30):
        set_log_axis(layout, values)
    elif crop_initial_drop(layout, traces):
        summary += " " + translate("report.beginning_cropped")
    if facts.nan_step is not None:
        line = vertical_line(
            run_log, facts.nan_step, "var(--problem)", translate("report.loss.nonfinite_line")
        )
        layout["shapes"].append(line)
    return Chart("loss", translate("report.loss.title"), summary.strip(), traces, layout, wide=True)


def _loss_summary(run_log: RunLog, facts: Facts, traces: Sequence[Trace]) -> str:
    sentences = []
    if facts.loss_first is not None and facts.loss_last is not None and facts.iterations_logged > 1:
        first, last = f"{facts.loss_first:.4f}", f"{facts.loss_last:.4f}"
        sentences.append(translate("report.loss.training_from_to", first=first, last=last))
    if run_log.val_metric == "loss" and facts.best_val_loss is not None:
        best = f"{facts.best_val_loss:.4f}"
        if facts.best_val_step is None:
            sentences.append(translate("report.loss.best_validation", best=best))
        else:
            at = f"{facts.best_val_step:,}"
            sentences.append(translate("report.loss.best_validation_at", best=best, at=at))
        if facts.final_val_loss is not None:
            sentences.append(translate("report.loss.last_validation", last=facts.final_val_loss))
    band_colours = {trace["fillcolor"] for trace in traces if "fill" in trace}
    if _TRAIN_BAND_COLOUR in band_colours:
        sentences.append(translate("report.loss.band_training"))
    if _VAL_BAND_COLOUR in band_colours:
        sentences.append(translate("report.loss.band_evaluations"))
    unplaced = sum(evaluation.iteration is None for evaluation in run_log.evals)
    if unplaced:
        number = f"{unplaced:,}"
        sentences.append(translate("report.loss.unplaced_evaluations", number=number))
    return " ".join(sentences)


def _validation_traces(run_log: RunLog, facts: Facts, name: str) -> list[Trace]:
    """The evaluations, a band of two standard errors where the log has them, and the best one."""
    evals = [one for one in run_log.evals if one.iteration is not None and one.val_loss is not None]
    if not evals:
        return []
    traces = []
    with_stderr = [
        (one.iteration, one.segment, one.val_loss, 2 * one.stderr)
        for one in evals
        if one.val_loss is not None and one.stderr is not None
        and math.isfinite(one.val_loss) and math.isfinite(one.stderr)
    ]  # fmt: skip
    if len(with_stderr) >= 2:
        columns = np.array(with_stderr, dtype=float)
        iterations, segment, loss, error = columns[thinned_indices(columns[:, 2], 1000)].T
        breaks = np.flatnonzero(np.diff(segment)) + 1
        band = (iterations.astype(np.int64), loss - error, loss + error)
        parts = zip(*(np.split(column, breaks) for column in band), strict=True)
        traces.append(band_trace(list(parts), translate("report.band_standard_errors"), _VAL_BAND_COLOUR))
    traces.append(eval_trace(name, "var(--val)", evals, [one.val_loss for one in evals]))
    if facts.best_val_loss is not None and facts.best_val_step is not None:
        traces.append(_best_marker(run_log, facts.best_val_step, facts.best_val_loss))
    return traces


def _best_marker(run_log: RunLog, iteration: int, value: float) -> Trace:
    low, high = iteration_range(run_log)
    position = (iteration - low) / (high - low)
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": translate("label.best"),
        "x": [iteration],
        "y": json_floats(np.array([value])),
        "text": [translate("report.best_marker", value=value)],
        # Near an edge, a centred label would leave the chart.
        "textposition": "top left" if position > 0.8 else "top right" if position < 0.2 else "top center",
        "textfont": {"color": "var(--ink)", "size": 13},
        "marker": {
            "symbol": "star",
            "size": 15,
            "color": "var(--best)",
            "line": {"color": "var(--card)", "width": 1.5},
        },
        "cliponaxis": False,
        "hoverinfo": "skip",
        "showlegend": False,
    }


def bits_per_byte_chart(run_log: RunLog, facts: Facts) -> Chart | MissingChart | None:
    """A separate chart: bits per byte do not belong on the axis of a loss."""
    if run_log.val_metric != "bits_per_byte":
        return None
    traces = _validation_traces(run_log, facts, translate("report.bits.curve"))
    if len(drawn_values(traces)) == 0:
        return MissingChart(translate("report.bits.missing"))
    summary = translate("report.bits.other_unit")
    layout = base_layout(run_log)
    if crop_initial_drop(layout, traces):
        summary += " " + translate("report.beginning_cropped")
    return Chart("bits", translate("report.bits.title"), summary, traces, layout, wide=True)
