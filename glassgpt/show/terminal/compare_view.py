"""What `glass compare A B` prints: the verdict first, then what it rests on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassgpt.compare import Comparison
from glassgpt.compare.compared_run import ComparedRun
from glassgpt.compare.differences import GROUPS, bits_per_byte, format_setting, run_perplexity
from glassgpt.compare.loss_curve import AXES, format_axis_value
from glassgpt.format import (
    format_count,
    format_duration,
    format_flops,
    format_flops_per_s,
    format_integer,
    format_loss,
    format_ms,
    format_parameters,
    format_percent,
    format_percent_value,
)
from glassgpt.i18n import translate
from glassgpt.sanitize import sanitize_keeping_bidi, sanitize_line
from glassgpt.show.terminal.charts import bar, sparkline
from glassgpt.show.terminal.text_lines import print_indented, terminal_text

_CHART_POINTS = 40
_BAR_WIDTH = 30
_UNKNOWN = "?"


def print_comparison(comparison: Comparison, console: Console) -> None:
    runs = comparison.runs
    for run in runs:
        title = translate(
            "compare_view.run_title",
            run=run.label,
            name=sanitize_line(run.log.name),
            format=run.log.trainer.name,
        )
        console.print(_text(title))
    console.print()
    for conclusion in comparison.verdict:
        console.print(Text(terminal_text(conclusion.sentence), style="bold"))
        for detail in conclusion.details:
            print_indented(detail, "", console)
    _print_differences(comparison, console)
    _print_derived(runs, console)
    if any(len(run.curve) for run in runs):
        _print_losses(comparison, console)
    if comparison.losses_are_comparable:
        _print_loss_curves(runs, console)
    rates = [run.analysis.tokens_per_s or 0.0 for run in runs]
    if sum(rate > 0 for rate in rates) >= 2:
        _print_heading(translate("label.heading.tokens_per_second"), console)
        for run, rate in zip(runs, rates, strict=True):
            speed = format_count(rate) if rate else _UNKNOWN
            line = f"{run.label}  {bar(rate / max(rates), _BAR_WIDTH)} {speed}"
            console.print(_text(line), no_wrap=True, crop=True)


def _text(text: str, style: str = "") -> Text:
    return Text(sanitize_keeping_bidi(text), style=style)


def _print_heading(text: str, console: Console) -> None:
    console.print()
    console.print(_text(text, "bold"))


def _make_table(runs: Sequence[ComparedRun]) -> Table:
    """A column for the names of the rows, and one for each run."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(_text(""))
    for run in runs:
        table.add_column(_text(run.label), justify="right")
    return table


def _add_row(table: Table, name: str, cells: Sequence[str | None]) -> None:
    table.add_row(_text(name), *(_text(_UNKNOWN if cell is None else cell) for cell in cells))


def _print_differences(comparison: Comparison, console: Console) -> None:
    """The settings in which the runs differ, by group."""
    titles = {
        "configuration": translate("compare_view.group.configuration"),
        "data": translate("compare_view.group.data"),
        "machine": translate("compare_view.group.machine"),
        "code": translate("compare_view.group.code"),
        "versions": translate("compare_view.group.versions"),
    }
    known = [difference for difference in comparison.differences if difference.is_known]
    _print_heading(translate("compare_view.differences.title"), console)
    if known:
        table = _make_table(comparison.runs)
        for group in GROUPS:
            differences = [difference for difference in known if difference.group == group]
            if differences:
                table.add_row(_text(titles[group], "dim"), *[""] * len(comparison.runs))
            for difference in differences:
                _add_row(
                    table, "  " + difference.name, [format_setting(value) for value in difference.values]
                )
        console.print(table)
    else:
        console.print(_text(translate("compare_view.differences.none")))
    one_sided = [difference.name for difference in comparison.differences if not difference.is_known]
    if one_sided:
        note = translate("compare_view.differences.in_some_logs", settings=", ".join(one_sided))
        console.print(_text(note, "dim"))


def _print_derived(runs: Sequence[ComparedRun], console: Console) -> None:
    """Size, tokens, FLOPs, speed, MFU, computed from each log. A row that no log supports is left out."""
    _print_heading(translate("compare_view.derived.title"), console)
    table = _make_table(runs)

    def add_row(name: str, values: Sequence[float | None], format_value: Callable[[float], str]) -> None:
        if any(value is not None for value in values):
            _add_row(table, name, [None if value is None else format_value(value) for value in values])

    def add_metric(name: str, metric: str, format_value: Callable[[float], str]) -> None:
        add_row(name, [getattr(run.analysis, metric) for run in runs], format_value)

    sizes = [run.analysis.size for run in runs]
    if any(size.parameters is not None for size in sizes):
        cells: list[str | None] = []
        for size in sizes:
            inferred, count = size.parameters_source == "inferred", size.parameters
            shown = None if count is None else format_parameters(count, exact=not inferred)
            cells.append(f"{shown}*" if shown and inferred else shown)
        _add_row(table, translate("label.parameters"), cells)
    add_metric(translate("label.tokens_per_iteration"), "tokens_per_iteration", format_integer)
    add_row(
        translate("compare_view.iterations"),
        [run.analysis.trajectory.last_iteration if run.log.has_iteration_numbers else None for run in runs],
        format_integer,
    )
    add_metric(translate("compare_view.tokens_seen"), "tokens_seen", format_count)
    add_row(translate("label.flops_per_token"), [size.flops_per_token for size in sizes], format_flops)
    add_metric(translate("compare_view.total_flops"), "total_flops", format_flops)
    add_metric(translate("compare_view.time_per_iteration"), "steady_ms", format_ms)
    add_metric(translate("label.tokens_per_second"), "tokens_per_s", format_count)
    add_metric(
        translate("label.achieved_flops"), "achieved_tflops", lambda tflops: format_flops_per_s(tflops * 1e12)
    )
    known = [run for run in runs if run.mfu is not None]
    if all(run.shares_peak_with(known[0]) for run in known):  # else they are not to be compared
        add_row(_mfu_title(known), [run.mfu for run in runs], format_percent_value)
    whole = [run.analysis if run.is_whole else None for run in runs]
    facts = [one.facts if one else None for one in whole]
    add_row(
        translate("label.overhead_share"), [one.pause_share if one else None for one in facts], format_percent
    )
    stalls = [one.stall_share if one else None for one in facts]
    if any(stalls):
        add_row(translate("label.stall_share"), stalls, format_percent)
    add_row(
        translate("compare_view.total_time"), [one.total_s if one else None for one in whole], format_duration
    )
    console.print(table)
    if any(size.parameters_source == "inferred" for size in sizes):
        console.print(_text(translate("compare_view.inferred_note"), "dim"))


def _mfu_title(runs: Sequence[ComparedRun]) -> str:
    """MFU is never shown without the peak that is 100%. The runs share one."""
    peak = runs[0].peak if runs else None
    if peak is None:
        return ""
    if peak.name:
        return translate("compare_view.mfu.card_peak", peak=peak.flops, card=peak.name)
    return translate("compare_view.mfu.assumed_peak", peak=peak.flops)


def _print_losses(comparison: Comparison, console: Console) -> None:
    """Best and last loss, then the losses after equal iterations, tokens, time and FLOPs."""
    is_validation = comparison.loss_kind == "validation"
    _print_heading(
        translate("compare_view.validation_loss.title")
        if is_validation
        else translate("compare_view.training_loss.title"),
        console,
    )
    table = _make_table(comparison.runs)
    _add_best_and_last(table, comparison.runs, is_validation)
    not_aligned = []
    has_batches = False
    for axis in AXES:
        alignment = comparison.aligned[axis]
        for point in alignment.points:
            after = format_axis_value(axis, point.at)
            title = {
                "iterations": translate("compare_view.after.iterations", count=after),
                "tokens": translate("compare_view.after.tokens", count=after),
                "time": translate("compare_view.after.time", time=after),
                "flops": translate("compare_view.after.flops", flops=after),
            }[axis]
            is_of_batches = is_validation and alignment.kind == "training"
            has_batches |= is_of_batches
            cells = [None if one is None else format_loss(one.loss) for one in point.losses]
            _add_row(table, f"{title} †" if is_of_batches else title, cells)
        if not alignment.points:
            names = {
                "iterations": translate("compare_view.equal.iterations"),
                "tokens": translate("compare_view.equal.tokens"),
                "time": translate("compare_view.equal.time"),
                "flops": translate("compare_view.equal.flops"),
            }
            not_aligned.append(f"{names[axis]}: {alignment.reason}")
    console.print(table)
    if has_batches:
        console.print(_text(translate("compare_view.batches_note"), "dim"))
    for line in not_aligned:
        console.print(_text(line, "dim"))


def _add_best_and_last(table: Table, runs: Sequence[ComparedRun], is_validation: bool) -> None:
    bests = [run.best for run in runs]
    _add_row(table, translate("label.best"), [format_loss(best[0]) if best else None for best in bests])
    _add_row(
        table,
        "  " + translate("compare_view.best_iteration"),
        [format_integer(best[1]) if best else None for best in bests],
    )
    if not is_validation:
        return
    perplexities = [run_perplexity(run, run.best[0]) if run.best else None for run in runs]
    bits = [bits_per_byte(run, run.best[0]) if run.best else None for run in runs]
    if any(value is not None for value in perplexities):
        cells = [None if value is None else f"{value:.4g}" for value in perplexities]
        _add_row(table, "  " + translate("compare_view.best_perplexity"), cells)
    if any(value is not None for value in bits):
        cells = [None if value is None else format_loss(value) for value in bits]
        _add_row(table, "  " + translate("compare_view.best_bits_per_byte"), cells)
    lasts = [run.last for run in runs]
    _add_row(
        table, translate("compare_view.last_loss"), [format_loss(last[0]) if last else None for last in lasts]
    )


def _print_loss_curves(runs: Sequence[ComparedRun], console: Console) -> None:
    """Sparklines on one scale, each over its whole run from the first loss to the last."""
    drawn = [run for run in runs if len(run.curve) > 1]
    series = []
    for run in drawn:
        last = len(run.curve) - 1
        count = min(len(run.curve), _CHART_POINTS)  # evenly spaced, with the first and the last
        indices = [round(i * last / max(1, count - 1)) for i in range(count)]
        series.append([float(run.curve.losses[index]) for index in indices])
    values = [loss for losses in series for loss in losses]
    if not values or not math.isfinite(max(values) - min(values)):
        return
    curves = sparkline(values)  # one sparkline of all, so that the scale is one
    if not curves:
        return
    _print_heading(translate("compare_view.loss_curves.title"), console)
    start = 0
    for run, losses in zip(drawn, series, strict=True):
        curve = curves[start : start + len(losses)]
        start += len(losses)
        ends = f"{format_loss(losses[0])} → {format_loss(losses[-1])}"
        console.print(_text(f"{run.label}  {curve}  {ends}"), no_wrap=True, crop=True)
