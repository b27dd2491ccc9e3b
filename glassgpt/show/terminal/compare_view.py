"""What `glass compare` prints: the verdict first, then what it rests on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from glassgpt import format as written
from glassgpt.compare import Comparison
from glassgpt.compare.compared_run import ComparedRun
from glassgpt.compare.differences import (
    GROUPS,
    Difference,
    DifferenceGroup,
    bits_per_byte,
    format_setting,
    perplexity,
)
from glassgpt.compare.loss_curve import AXES, Axis, InterpolatedLoss, format_axis_value
from glassgpt.i18n import say
from glassgpt.sanitize import sanitize_keeping_bidi, sanitize_line
from glassgpt.show.terminal.chart import bar, sparkline

_CHART_POINTS = 40
_BAR_WIDTH = 30
_UNKNOWN = "?"


def print_comparison(comparison: Comparison, console: Console) -> None:
    _print_runs(comparison, console)
    _print_verdict(comparison, console)
    _print_differences(comparison, console)
    _print_derived(comparison, console)
    _print_losses(comparison, console)
    _print_charts(comparison, console)


def _text(words: str, style: str = "") -> Text:
    return Text(sanitize_keeping_bidi(words), style=style)


def _heading(words: str, console: Console) -> None:
    console.print()
    console.print(_text(words, "bold"))


def _table(first: str, sides: Sequence[ComparedRun]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(_text(first))
    for side in sides:
        table.add_column(_text(side.label), justify="right")
    return table


# --- verdict ---


def _print_runs(comparison: Comparison, console: Console) -> None:
    for side in comparison.runs:
        words = say(
            "{run}: {name} ({format})",
            run=side.label,
            name=sanitize_line(side.log.name),
            format=side.log.trainer.name,
        )
        console.print(_text(words))


def _print_verdict(comparison: Comparison, console: Console) -> None:
    console.print()
    for conclusion in comparison.verdict:
        console.print(_text(conclusion.sentence, "bold"))
        for detail in conclusion.details:
            console.print(Padding(_text(detail), (0, 0, 0, 2), expand=False))


# --- what differs ---


def _print_differences(comparison: Comparison, console: Console) -> None:
    known = [one for one in comparison.differences if one.is_known]
    _heading(say("What differs"), console)
    if not known:
        console.print(_text(say("nothing that the logs say")))
    else:
        table = _table("", comparison.runs)
        for group in GROUPS:
            _add_group(table, group, [one for one in known if one.group == group], len(comparison.runs))
        console.print(table)
    unsaid = [one.name for one in comparison.differences if not one.is_known]
    if unsaid:
        words = say("said by some of the logs only: {settings}", settings=", ".join(unsaid))
        console.print(_text(words, "dim"))


def _group_title(group: DifferenceGroup) -> str:
    if group == "configuration":
        return say("configuration")
    if group == "data":
        return say("data")
    if group == "machine":
        return say("machine")
    return say("code") if group == "code" else say("versions")


def _add_group(table: Table, group: DifferenceGroup, differences: Sequence[Difference], runs: int) -> None:
    if not differences:
        return
    table.add_row(_text(_group_title(group), "dim"), *[""] * runs)
    for one in differences:
        table.add_row(_text("  " + one.name), *(_text(format_setting(value)) for value in one.values))


# --- what follows ---


def _print_derived(comparison: Comparison, console: Console) -> None:
    sides = comparison.runs
    _heading(say("What follows from that"), console)
    table = _table("", sides)
    for title, cell in _derived_rows(sides):
        cells = [cell(side) for side in sides]
        if any(cells):
            table.add_row(_text(title), *(_text(value or _UNKNOWN) for value in cells))
    console.print(table)
    notes = {side.metrics.size.parameters_source for side in sides}
    if "inferred" in notes:
        console.print(_text(say("* inferred from MFU and times"), "dim"))


def _derived_rows(sides: Sequence[ComparedRun]) -> list[tuple[str, Callable[[ComparedRun], str | None]]]:
    def number(name: str, form: Callable[[float], str]) -> Callable[[ComparedRun], str | None]:
        def cell(side: ComparedRun) -> str | None:
            value = getattr(side.metrics, name)
            return None if value is None else form(value)

        return cell

    return [
        (say("parameters"), _parameters),
        (say("tokens per iteration"), number("tokens_per_iteration", written.format_integer)),
        (say("iterations"), number("iterations", written.format_integer)),
        (say("tokens seen"), number("tokens_seen", written.format_count)),
        (say("FLOPs per token"), _flops_per_token),
        (say("total FLOPs"), number("total_flops", written.format_flops)),
        (say("time per iteration"), number("steady_ms", written.format_ms)),
        (say("tokens per second"), number("tokens_per_s", written.format_count)),
        (say("achieved"), number("achieved_tflops", lambda value: written.format_flops_per_s(value * 1e12))),
        (_mfu_title(sides), number("mfu", written.format_percent_value)),
        (
            say("evaluation, checkpoints, start-up"),
            number("overhead_share", lambda x: written.format_percent_value(100 * x)),
        ),
        (say("time"), number("time_s", written.format_duration)),
    ]


def _parameters(side: ComparedRun) -> str | None:
    size = side.metrics.size
    if size.parameters is None:
        return None
    inferred = size.parameters_source == "inferred"
    return written.format_parameters(size.parameters, not inferred) + ("*" if inferred else "")


def _flops_per_token(side: ComparedRun) -> str | None:
    value = side.metrics.size.flops_per_token
    return None if value is None else written.format_flops(value)


def _mfu_title(sides: Sequence[ComparedRun]) -> str:
    """MFU is never shown without what it is a part of."""
    peaks = {side.metrics.peak for side in sides}
    peak = next(iter(peaks))
    if len(peaks) > 1 or peak is None or peak.source == "own":
        return say("MFU, each of its own peak")
    if peak.name:
        return say("MFU of {peak} ({card})", peak=written.format_flops_per_s(peak.flops), card=peak.name)
    return say("MFU of {peak}, as the logs assume", peak=written.format_flops_per_s(peak.flops))


# --- losses ---


def _print_losses(comparison: Comparison, console: Console) -> None:
    sides = comparison.runs
    if not any(len(side.curve) for side in sides):
        return
    validation = comparison.loss_kind == "validation"
    _heading(say("Validation loss") if validation else say("Training loss"), console)
    table = _table("", sides)
    _add_best(table, sides, validation)
    refused = []
    for axis in AXES:
        alignment = comparison.aligned[axis]
        for point in alignment.points:
            cells = [_reading(reading) for reading in point.losses]
            table.add_row(_text(_axis_title(axis, point.at)), *map(_text, cells))
        if not alignment.points:
            refused.append(f"{_axis_name(axis)}: {alignment.reason}")
    console.print(table)
    readings = [one for axis in AXES for point in comparison.aligned[axis].points for one in point.losses]
    if any(reading and not reading.is_exact for reading in readings):
        console.print(_text(say("≈ read between two evaluations"), "dim"))
    for line in refused:
        console.print(_text(line, "dim"))


def _add_best(table: Table, sides: Sequence[ComparedRun], validation: bool) -> None:
    bests = [side.best for side in sides]
    table.add_row(
        _text(say("best")), *(_text(written.format_loss(best[0]) if best else _UNKNOWN) for best in bests)
    )
    places = (_text(written.format_integer(best[1]) if best else _UNKNOWN) for best in bests)
    table.add_row(_text(say("  at iteration")), *places)
    if not validation:
        return
    perplexities = [perplexity(side, side.best[0]) if side.best else None for side in sides]
    bits = [bits_per_byte(side, side.best[0]) if side.best else None for side in sides]
    if any(value is not None for value in perplexities):
        cells = (_text(_UNKNOWN if value is None else f"{value:.4g}") for value in perplexities)
        table.add_row(_text(say("  perplexity")), *cells)
    if any(value is not None for value in bits):
        cells = (_text(_UNKNOWN if value is None else written.format_loss(value)) for value in bits)
        table.add_row(_text(say("  bits per byte")), *cells)
    lasts = [side.last for side in sides]
    table.add_row(
        _text(say("last")), *(_text(written.format_loss(last[0]) if last else _UNKNOWN) for last in lasts)
    )


def _reading(reading: InterpolatedLoss | None) -> str:
    if reading is None:
        return _UNKNOWN
    return written.format_loss(reading.loss) if reading.is_exact else f"≈{written.format_loss(reading.loss)}"


def _axis_title(axis: Axis, at: float) -> str:
    if axis == "iterations":
        return say("after {count} iterations", count=format_axis_value(axis, at))
    if axis == "tokens":
        return say("after {count} tokens", count=format_axis_value(axis, at))
    if axis == "time":
        return say("after {time}", time=format_axis_value(axis, at))
    return say("after {flops} of arithmetic", flops=format_axis_value(axis, at))


def _axis_name(axis: Axis) -> str:
    if axis == "iterations":
        return say("equal iterations")
    if axis == "tokens":
        return say("equal tokens")
    return say("equal time") if axis == "time" else say("equal FLOPs")


# --- charts ---


def _print_charts(comparison: Comparison, console: Console) -> None:
    _print_curves(comparison, console)
    _print_speeds(comparison.runs, console)


def _print_curves(comparison: Comparison, console: Console) -> None:
    """All on one scale, each over its own run from the first loss to the last."""
    drawn = [side for side in comparison.runs if len(side.curve) > 1]
    if not drawn or not comparison.losses_are_comparable:
        return
    series = [_picked(side) for side in drawn]
    together = [value for values in series for value in values]  # so that the scale is one
    line = sparkline(together) if math.isfinite(max(together) - min(together)) else ""
    if not line:
        return
    _heading(say("Loss over the run, on one scale"), console)
    start = 0
    for side, values in zip(drawn, series, strict=True):
        part = line[start : start + len(values)]
        start += len(values)
        ends = f"{written.format_loss(values[0])} → {written.format_loss(values[-1])}"
        console.print(_text(f"{side.label}  {part}  {ends}"), no_wrap=True, crop=True)


def _picked(side: ComparedRun) -> list[float]:
    """At most as many values as there is room for, evenly, with the first and the last."""
    losses = side.curve.losses
    count = min(len(losses), _CHART_POINTS)
    return [float(losses[round(i * (len(losses) - 1) / max(1, count - 1))]) for i in range(count)]


def _print_speeds(sides: Sequence[ComparedRun], console: Console) -> None:
    rates = [side.metrics.tokens_per_s or 0.0 for side in sides]
    if sum(rate > 0 for rate in rates) < 2:
        return
    _heading(say("Tokens per second"), console)
    for side, rate in zip(sides, rates, strict=True):
        drawn = bar(rate / max(rates), _BAR_WIDTH)
        told = written.format_count(rate) if rate else _UNKNOWN
        console.print(_text(f"{side.label}  {drawn} {told}"), no_wrap=True, crop=True)
