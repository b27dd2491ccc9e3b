"""Which charts a run has: their curves, names, colours, units, bands, marks and captions; and why one is
missing.

    panels, missing = make_panels(Analysis(run_log), curves_of(run_log), findings)

All of it is data for charts.js. A colour is the name of a variable of style.css. The rows of a series are
apart, in series.py, since they change all the time and this rarely does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from glassgpt.explain.rules.learned import baseline_name
from glassgpt.explain.summary import forecast_positions, training_loss_sentence
from glassgpt.format import format_bytes, format_count, format_ms
from glassgpt.i18n import render_text, translate
from glassgpt.record.finding import Finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.model_size import stated_peak_flops
from glassgpt.runs.run_log import Bools, Floats
from glassgpt.runs.trajectory import planned_end_iteration
from glassgpt.show.page.series import MAX_DRAWN_VALUE, Curve, rounded

MAX_RESUME_LINES = 20
_INITIAL_DROP_SHARE = 0.08  # of the iterations: the loss may be cropped there
_MIN_LOG_RATIO = 30.0  # highest value over the median, from which an axis is logarithmic
_MIN_TIME_LOG_RATIO = 6.0

Curves = Mapping[str, Curve]


@dataclass(frozen=True)
class Axis:
    unit: str = ""  # "", "ms", "%", "bytes", "count" (1.2k), "lr"
    log: bool = False
    from_zero: bool = False
    range: tuple[float, float] | None = None


@dataclass(frozen=True)
class Series:
    id: str
    name: str
    colour: str
    style: str = "line"  # "points", "line+points"
    spread: str = "range"  # what low and high of a row are: "range" of a bin, "error" of an evaluation
    smooth: bool = False  # noisy enough to be drawn pale under its moving mean
    compared: bool = True  # drawn of other runs, too: each of them has one colour for all its lines


@dataclass(frozen=True)
class Band:
    """An area that the curve is expected in."""

    name: str
    colour: str
    rows: list[list[float]]  # update, low, high
    note: str = ""


@dataclass(frozen=True)
class Panel:
    id: str
    title: str
    caption: str  # what it shows, with numbers; also the alternative text
    y: Axis
    series: Sequence[Series]
    wide: bool = False
    bands: Sequence[Band] = ()
    lines: Sequence[Mapping[str, Any]] = ()  # x or y, label, colour
    marks: Sequence[Mapping[str, Any]] = ()  # x, y, label, kind, finding


def make_panels(
    run: Analysis, curves: Curves, findings: Sequence[Finding] = ()
) -> tuple[list[Panel], list[str]]:
    """In the order of the page; and the reasons why others are missing. A maker of a chart returns such a
    reason; None where another chart shows the same."""
    made: list[Panel | str | None] = [
        _loss_panel(run, curves, findings),
        _bits_per_byte_panel(run, curves),
        _learning_rate_panel(run, curves),
        _gradient_norm_panel(run, curves),
        _tokens_per_s_panel(run, curves),
        _mfu_panel(run, curves),
        _step_time_panel(run, curves),
        _memory_panel(run, curves),
    ]
    label = translate("report.resumed_line")
    starts = [part.first_iteration for part in run.log.segments[1:] if part.first_iteration is not None]
    resumed = [{"x": at, "label": label, "colour": "muted"} for at in starts[:MAX_RESUME_LINES]]
    panels = [replace(one, lines=[*resumed, *one.lines]) for one in made if isinstance(one, Panel)]
    return panels, [one for one in made if isinstance(one, str)]


# --- losses ---


def _loss_panel(run: Analysis, curves: Curves, findings: Sequence[Finding]) -> Panel | str:
    candidates = (
        Series("loss", translate("label.training_loss"), "train", smooth=True),
        Series(
            "train_eval",
            translate("report.loss.curve_training_evaluated"),
            "train-eval",
            "line+points",
            compared=not len(_drawn(curves, "val")),
        ),
        Series("val", translate("report.loss.curve_validation"), "val", "line+points", "error"),
    )
    series = [one for one in candidates if len(_drawn(curves, one.id))]
    if not series:
        return translate("report.loss.missing")
    sentences = _loss_sentences(run, curves)
    axis = _loss_axis([curves[one.id] for one in series])
    if axis.range is not None:
        sentences.append(translate("report.beginning_cropped"))
    lines = _ladder_lines(run)
    if run.facts.nan_step is not None:
        label = translate("report.loss.nonfinite_line")
        lines.append({"x": run.facts.nan_step, "label": label, "colour": "problem"})
    return Panel(
        "loss",
        translate("report.loss.title"),
        " ".join(sentences),
        axis,
        series,
        wide=True,
        bands=_loss_bands(run),
        lines=lines,
        marks=[*_best_mark(run, "loss"), *_finding_marks(findings, curves)],
    )


def _ladder_lines(run: Analysis) -> list[Mapping[str, Any]]:
    """Baselines that give the loss a meaning: the last that it passed, the next, and the best table."""
    progress = run.ladder_progress
    if progress is None:
        return []
    shown = (progress.highest, progress.next_rung, progress.ladder.best)
    return [
        {"y": rung.loss, "label": render_text([baseline_name(rung.order)]), "colour": "muted"}
        for rung in progress.ladder.rungs
        if rung in shown and rung.order > 0
    ]


def _loss_bands(run: Analysis) -> list[Band]:
    """The forecast made before the run; or that of the end, from what a log shows."""
    log, forecast = run.log, run.log.forecast.loss
    if forecast and log.val_metric == "loss":
        position = forecast_positions(log, run.facts).get("loss")
        notes = {
            "on": translate("page.band.loss_inside"),
            "above": translate("status.loss_above"),
            "below": translate("status.loss_below"),
        }
        rows = [[at, rounded(low), rounded(high)] for at, low, high in forecast]
        return [Band(translate("page.band.before_run"), "val", rows, notes.get(position or "", ""))]
    final, last = run.final_loss, run.trajectory.last_iteration
    if final is None or last is None or final.metric == "val bpb":
        return []
    if final.metric == "train loss":
        now = float(run.trajectory.finite_losses()[1][-20:].mean())
    else:
        now = float(run.trajectory.val_curve()[1][-1])
    rows = [
        [last, rounded(now), rounded(now)],
        [final.at_iteration, rounded(final.low), rounded(final.high)],
    ]
    colour = "train" if final.metric == "train loss" else "val"
    note = translate("page.band.end_note", low=final.low, high=final.high, at=final.at_iteration)
    return [Band(translate("page.band.end"), colour, rows, note)]


def _speed_bands(run: Analysis, scale: float = 1.0) -> list[Band]:
    """The speed expected before the run, and as its first updates made it expect. `scale`: from tokens per
    second to the unit of the chart."""
    forecast, last = run.log.forecast, run.trajectory.last_iteration
    end = max(planned_end_iteration(run.log) or 0, last or 0)
    bands = []
    if forecast.tokens_per_s is not None:
        low, high = (rounded(scale * edge) for edge in forecast.tokens_per_s)
        rows = [[0.0, low, high], [float(end), low, high]]
        bands.append(Band(translate("page.band.before_run"), "muted", rows))
    if forecast.revised_tokens_per_s is not None:
        at, *rates = forecast.revised_tokens_per_s
        low, high = (rounded(scale * edge) for edge in rates)
        rows = [[float(at), low, high], [float(end), low, high]]
        bands.append(Band(translate("page.band.first_updates"), "speed", rows))
    return bands


def _loss_sentences(run: Analysis, curves: Curves) -> list[str]:
    facts, log = run.facts, run.log
    sentences = []
    # Of a run that goes on, the key figures have the latest values; captions are sent less often.
    if not log.live and facts.iterations_logged > 1 and (training := training_loss_sentence(facts)):
        sentences.append(training)
    if not log.live and log.val_metric == "loss" and facts.best_val_loss is not None:
        best = f"{facts.best_val_loss:.4f}"
        if facts.best_val_step is None:
            sentences.append(translate("report.loss.best_validation", best=best))
        else:
            at = f"{facts.best_val_step:,}"
            sentences.append(translate("report.loss.best_validation_at", best=best, at=at))
        if facts.final_val_loss not in (None, facts.best_val_loss):
            sentences.append(translate("report.loss.last_validation", last=facts.final_val_loss))
    if "val" in curves and curves["val"].low is not None:
        sentences.append(translate("report.loss.band_evaluations"))
    if unplaced := sum(evaluation.iteration is None for evaluation in log.evals):
        sentences.append(translate("report.loss.unplaced_evaluations", number=f"{unplaced:,}"))
    return sentences


def _bits_per_byte_panel(run: Analysis, curves: Curves) -> Panel | str | None:
    """A separate chart: bits per byte do not belong on the axis of a loss."""
    if run.log.val_metric != "bits_per_byte":
        return None
    if not len(_drawn(curves, "bits_per_byte")):
        return translate("report.bits.missing")
    axis = _loss_axis([curves["bits_per_byte"]])
    sentences = [translate("report.bits.other_unit")]
    if axis.range is not None:
        sentences.append(translate("report.beginning_cropped"))
    series = Series("bits_per_byte", translate("report.bits.curve"), "val", "line+points", "error")
    title, marks = translate("report.bits.title"), _best_mark(run, "bits_per_byte")
    return Panel("bits", title, " ".join(sentences), axis, [series], wide=True, marks=marks)


def _loss_axis(curves: Sequence[Curve]) -> Axis:
    """Logarithmic where the highest loss would flatten the others; else the initial drop may be cropped."""
    points = [(curve.x[_is_drawn(curve)], curve.y[_is_drawn(curve)]) for curve in curves]
    x, values = (np.concatenate(parts) for parts in zip(*points, strict=True))
    if _needs_log_axis(values, _MIN_LOG_RATIO):
        return Axis(log=True)
    later = values[x >= x.min() + _INITIAL_DROP_SHARE * (x.max() - x.min())]
    low, high, top = float(values.min()), float(later.max()), float(values.max())
    if high <= low or top - low < 1.5 * (high - low):
        return Axis()
    if any(len(y) > 1 and np.mean(y <= high) < 0.7 for _, y in points):
        return Axis()  # a line of few points would lose most of them
    margin = (high - low) * 0.06
    return Axis(range=(rounded(low - margin), rounded(high + margin)))


def _best_mark(run: Analysis, metric: str) -> list[Mapping[str, Any]]:
    value, at = run.facts.best_val_loss, run.facts.best_val_step
    if value is None or at is None or run.log.val_metric != metric:
        return []
    label = translate("report.best_marker", value=value)
    return [{"x": at, "y": rounded(value), "label": label, "kind": "best", "finding": None}]


def _finding_marks(findings: Sequence[Finding], curves: Curves) -> list[Mapping[str, Any]]:
    """Each finding at its place on the curve; `y` is null where the chart has no loss."""
    marks: list[Mapping[str, Any]] = []
    curve = curves.get("loss") or curves.get("val")
    for finding in findings:
        if finding.at is None:
            continue
        y = None
        if curve is not None and (drawn := _is_drawn(curve)).any():
            y = rounded(float(np.interp(finding.at, curve.x[drawn], curve.y[drawn])))
        marks.append(
            {"x": finding.at, "y": y, "label": finding.title, "kind": "finding", "finding": finding.id}
        )
    return marks


# --- learning rate, gradients, speed, memory ---


def _learning_rate_panel(run: Analysis, curves: Curves) -> Panel | str:
    if not len(rates := _drawn(curves, "lr")):
        return translate("report.learning_rate.missing")
    return Panel(
        "learning-rate",
        translate("report.learning_rate.title"),
        translate("report.learning_rate.highest_and_last", highest=rates.max(), last=rates[-1]),
        Axis("lr", from_zero=True),
        [Series("lr", translate("report.learning_rate.curve"), "rate")],
    )


def _gradient_norm_panel(run: Analysis, curves: Curves) -> Panel | str:
    if not len(norms := _drawn(curves, "grad_norm")):
        return translate("report.gradient_norm.missing")
    median, highest = float(np.median(norms)), norms.max()
    clip, lines = run.log.setup.settings.get("grad_clip"), []
    if isinstance(clip, int | float) and 0 < clip <= highest:
        label = translate("report.gradient_norm.clip_line", level=clip)
        lines = [{"y": float(clip), "label": label, "colour": "muted"}]
    return Panel(
        "gradient-norm",
        translate("report.gradient_norm.title"),
        translate("report.gradient_norm.usual_and_highest", median=median, highest=highest),
        Axis(log=_needs_log_axis(norms, _MIN_LOG_RATIO)),
        [Series("grad_norm", translate("report.gradient_norm.curve"), "norm", smooth=True)],
        lines=lines,
    )


def _tokens_per_s_panel(run: Analysis, curves: Curves) -> Panel | None:
    if "tokens_per_s" not in curves or run.tokens_per_s is None:
        return None  # the step time shows the same
    return Panel(
        "tokens",
        translate("label.heading.tokens_per_second"),
        translate("report.tokens_per_second.usual", number=format_count(run.tokens_per_s)),
        Axis("count", from_zero=True),
        [Series("tokens_per_s", translate("label.tokens_per_second"), "speed", smooth=True)],
        bands=_speed_bands(run),
    )


def _mfu_panel(run: Analysis, curves: Curves) -> Panel | str:
    if not len(_drawn(curves, "mfu")):
        return translate("report.mfu.missing")
    log, sentences = run.log, []
    if run.reported_mfu is not None:
        sentences.append(translate("report.mfu.usual", mfu=run.reported_mfu))
    if peak := stated_peak_flops(log):
        sentences.append(translate("report.mfu.peak", peak=peak))
    if log.setup.peak_is_disturbed:
        sentences.append(translate("report.mfu.disturbed"))
    if log.trainer.mfu_is_running_average:
        sentences.append(translate("report.mfu.running_average"))
    forecast, scale = log.forecast, None
    if forecast.mfu is not None and forecast.tokens_per_s is not None and forecast.tokens_per_s[1] > 0:
        scale = forecast.mfu[1] / forecast.tokens_per_s[1]  # percent per token per second
    is_noisy = not log.trainer.mfu_is_running_average
    return Panel(
        "mfu",
        translate("report.mfu.title"),
        " ".join(sentences) or translate("report.mfu.meaning"),
        Axis("%", from_zero=True),
        [Series("mfu", translate("report.mfu.curve"), "speed", smooth=is_noisy)],
        bands=_speed_bands(run, scale) if scale else [],
    )


def _step_time_panel(run: Analysis, curves: Curves) -> Panel | str:
    if not np.isfinite(run.log.steps.ms).any():
        return translate("report.step_time.missing")
    candidates = (
        Series("step_ms", translate("report.step_time.curve_training"), "train", smooth=True),
        Series("step_ms_eval", translate("report.step_time.curve_with_evaluation"), "val", "points"),
        Series("step_ms_startup", translate("report.step_time.curve_with_startup"), "startup", "points"),
    )
    series = [one for one in candidates if one.id in curves]
    if not series:
        return translate("report.step_time.missing_one_iteration")
    values = np.concatenate([_drawn(curves, one.id) for one in series])
    caption = translate("report.step_time.too_few_iterations")
    facts = run.facts
    if facts.steady_ms is not None:
        usual = format_ms(facts.steady_ms)
        caption = translate("report.step_time.steady", time=usual)
        if facts.steady_p95_ms is not None:
            slow = format_ms(facts.steady_p95_ms)
            caption = translate("report.step_time.steady_and_slow", time=usual, slow=slow)
    axis = Axis("ms", log=_needs_log_axis(values, _MIN_TIME_LOG_RATIO))
    return Panel("step-time", translate("report.step_time.title"), caption, axis, series)


def _memory_panel(run: Analysis, curves: Curves) -> Panel | str:
    if not len(used := _drawn(curves, "memory")):
        return translate("report.memory.missing")
    highest, capacity = format_bytes(float(used.max())), run.log.setup.memory_bytes
    caption = translate("report.memory.highest", highest=highest)
    if capacity:
        caption = translate("report.memory.highest_of_capacity", highest=highest, capacity=capacity)
    title = translate("report.memory.title")
    return Panel("memory", title, caption, Axis("bytes", from_zero=True), [Series("memory", title, "rate")])


# --- parts of several ---


def _is_drawn(curve: Curve) -> Bools:
    drawn: Bools = np.abs(curve.y) < MAX_DRAWN_VALUE
    return drawn


def _drawn(curves: Curves, name: str) -> Floats:
    """The values of a curve that can be drawn; none of a curve that the run does not have."""
    curve = curves.get(name)
    return np.empty(0) if curve is None else curve.y[_is_drawn(curve)]


def _needs_log_axis(values: Floats, ratio: float) -> bool:
    """All are positive, and the highest is over `ratio` times the median: it would flatten the others."""
    return (
        len(values) > 0 and float(values.min()) > 0 and float(values.max()) > ratio * float(np.median(values))
    )
