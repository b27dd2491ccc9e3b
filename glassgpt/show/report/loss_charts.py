"""The charts of what was learned: the loss of every logged iteration, the evaluations, and their noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from glassgpt.i18n import say
from glassgpt.runs.facts import Facts
from glassgpt.runs.run_log import LoggedEvaluation, RunLog
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
    vertical_line,
)
from glassgpt.show.report.thinning import thinned_indices

_TRAIN_BAND_COLOUR, _VAL_BAND_COLOUR = "var(--train-band)", "var(--val-band)"


def loss_chart(history: RunLog, facts: Facts) -> Chart | MissingChart:
    steps, in_loss = history.steps, history.val_metric == "loss"
    traces: list[Trace] = []
    if steps.has_loss.any():
        traces += _training_traces(history)
    trained = [done for done in history.evals if done.iteration is not None and done.train_loss is not None]
    if trained:
        losses = [done.train_loss for done in trained]
        traces.append(eval_trace(say("training loss, evaluated"), "var(--train-eval)", trained, losses))
    if in_loss:
        traces += _validation_traces(history, facts, say("validation loss"))
    values = drawn_values(traces)
    if len(values) == 0:
        return MissingChart(say("The loss is not drawn: this log has none that is finite and numbered."))
    layout, summary = base_layout(history), _loss_summary(history, facts, traces)
    if needs_log_axis(values, 30):
        set_log_axis(layout, values)
    elif crop_initial_drop(layout, traces):
        summary += " " + say("The beginning lies above the chart; a double click shows all of it.")
    if facts.nan_step is not None:
        layout["shapes"].append(vertical_line(history, facts.nan_step, "var(--problem)", say("not a number")))
    return Chart("loss", say("Loss"), summary.strip(), traces, layout, wide=True)


def _loss_summary(history: RunLog, facts: Facts, traces: Sequence[Trace]) -> str:
    sentences = []
    if facts.loss_first is not None and facts.loss_last is not None and facts.iterations_logged > 1:
        first, last = f"{facts.loss_first:.4f}", f"{facts.loss_last:.4f}"
        sentences.append(say("The training loss went from {first} to {last}.", first=first, last=last))
    if history.val_metric == "loss":
        sentences += _best_and_last(facts)
    shaded = {trace["fillcolor"] for trace in traces if "fill" in trace}
    if _TRAIN_BAND_COLOUR in shaded:
        sentences.append(say("The band around the smoothed loss is one standard deviation of single lines."))
    if _VAL_BAND_COLOUR in shaded:
        sentences.append(say("The band around the evaluations is two standard errors to each side."))
    unplaced = sum(done.iteration is None for done in history.evals)
    if unplaced:
        number = f"{unplaced:,}"
        sentences.append(say("Evaluations without an iteration number, not drawn: {number}.", number=number))
    return " ".join(sentences)


def _best_and_last(facts: Facts) -> list[str]:
    if facts.best_val_loss is None:
        return []
    best = f"{facts.best_val_loss:.4f}"
    if facts.best_val_step is None:
        sentences = [say("The best validation loss was {best}.", best=best)]
    else:
        at = f"{facts.best_val_step:,}"
        sentences = [say("The best validation loss was {best}, at iteration {at}.", best=best, at=at)]
    if facts.final_val_loss is not None:
        sentences.append(say("The last one was {last}.", last=f"{facts.final_val_loss:.4f}"))
    return sentences


def _training_traces(history: RunLog) -> list[Trace]:
    """Every line of the log, and where there are enough of them, their course and their spread."""
    rows = np.flatnonzero(history.steps.has_loss)
    losses = history.steps.loss[rows]
    raw = line_trace(history, rows, losses, say("training loss"), "var(--train)", 1.5)
    courses = smooth_per_process(history, rows, losses)
    if not courses:
        return [raw]
    spread = [(at, band.mean - band.std, band.mean + band.std) for at, band in courses]
    middle = [(at, band.mean) for at, band in courses]
    return [
        raw | {"opacity": 0.3, "showlegend": False, "line": {"color": "var(--train)", "width": 1}},
        band_trace(spread, say("usual spread"), _TRAIN_BAND_COLOUR),
        segmented_line_trace(middle, say("training loss, smoothed"), "var(--train)"),
    ]


def _validation_traces(history: RunLog, facts: Facts, name: str) -> list[Trace]:
    evals = [done for done in history.evals if done.iteration is not None and done.val_loss is not None]
    if not evals:
        return []
    traces = _stderr_band(evals)
    traces.append(eval_trace(name, "var(--val)", evals, [done.val_loss for done in evals]))
    if facts.best_val_loss is not None and facts.best_val_step is not None:
        traces.append(_best_marker(history, facts.best_val_step, facts.best_val_loss))
    return traces


def _stderr_band(evals: Sequence[LoggedEvaluation]) -> list[Trace]:
    """A band of two standard errors, where the log has them."""
    rows = [
        (done.iteration, done.segment, done.val_loss, 2 * done.stderr)
        for done in evals
        if done.val_loss is not None and done.stderr is not None
        and math.isfinite(done.val_loss) and math.isfinite(done.stderr)
    ]  # fmt: skip
    if len(rows) < 2:
        return []
    at, segment, loss, doubt = np.array(rows, dtype=float)[
        thinned_indices(np.array([row[2] for row in rows]), 1000)
    ].T
    breaks = np.flatnonzero(np.diff(segment)) + 1
    columns = (at.astype(np.int64), loss - doubt, loss + doubt)
    parts = zip(*(np.split(column, breaks) for column in columns), strict=True)
    return [band_trace(list(parts), say("two standard errors"), _VAL_BAND_COLOUR)]


def _best_marker(history: RunLog, iteration: int, value: float) -> Trace:
    low, high = iteration_range(history)
    place = (iteration - low) / (high - low)
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": say("best"),
        "x": [iteration],
        "y": json_floats(np.array([value])),
        "text": [say("best {value}", value=f"{value:.4f}")],
        # beside it where a label in the middle would leave the chart
        "textposition": "top left" if place > 0.8 else "top right" if place < 0.2 else "top center",
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


def bits_per_byte_chart(history: RunLog, facts: Facts) -> Chart | MissingChart | None:
    """A chart of its own: bits per byte do not belong on the axis of a loss."""
    if history.val_metric != "bits_per_byte":
        return None
    traces = _validation_traces(history, facts, say("validation bits per byte"))
    if len(drawn_values(traces)) == 0:
        return MissingChart(
            say("Bits per byte are not drawn: no evaluation in this log has an iteration number.")
        )
    summary = say(
        "The evaluations of this log are in bits per byte, which is not the unit of its training loss."
    )
    layout = base_layout(history)
    if crop_initial_drop(layout, traces):
        summary += " " + say("The beginning lies above the chart; a double click shows all of it.")
    return Chart("bits", say("Validation, bits per byte"), summary, traces, layout, wide=True)
