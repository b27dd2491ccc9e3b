"""Charts made of characters: a sparkline, a bar, curves in Braille dots. And the loss of a run: training in
dots, validation over it, and lines for the losses of tables of n-grams (data/ladder.py)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from rich.text import Text

from glassgpt.data.ladder import Ladder
from glassgpt.i18n import translate
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trajectory import trajectory_of
from glassgpt.show.terminal.text_lines import terminal_text

_SPARK_LEVELS = "▁▂▃▄▅▆▇█"
_BAR_EIGHTHS = " ▏▎▍▌▋▊▉"


def sparkline(values: Sequence[float]) -> str:
    """One character per value, from the lowest to the highest; a value that cannot be drawn is a blank."""
    finite = [value for value in values if _is_drawable(value)]
    if len(finite) < 2:
        return ""
    low, high = min(finite), max(finite)
    span = (high - low) or 1.0
    return "".join(
        _SPARK_LEVELS[round((value - low) / span * (len(_SPARK_LEVELS) - 1))] if _is_drawable(value) else " "
        for value in values
    )


def shorten(values: Sequence[float], count: int) -> Sequence[float]:
    """At most `count` values: of more, the means of neighbours, without those that cannot be drawn."""
    size = math.ceil(len(values) / count)
    if size <= 1:
        return values
    groups = [values[begin : begin + size] for begin in range(0, len(values), size)]
    drawable = [[value for value in group if _is_drawable(value)] for group in groups]
    return [math.fsum(group) / len(group) if group else math.nan for group in drawable]


def bar(share: float, width: int) -> str:
    """A bar of `share` (0 to 1) of the width, exact to an eighth of a character."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return ("█" * (eighths // 8) + _BAR_EIGHTHS[eighths % 8]).rstrip()


def _is_drawable(*values: float) -> bool:
    """Finite, and so small that differences are finite too."""
    return all(abs(value) < 1e100 for value in values)


# Bits of the eight dots of a Braille character, two wide and four high.
_BRAILLE_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def plot(
    curves: Sequence[tuple[Sequence[float], Sequence[float]]],
    width: int,
    height: int,
    bottom: float = math.inf,
) -> list[list[tuple[str, int]]]:
    """Curves of (x, y) on one pair of axes: rows of (character, index of the curve), the last curve on top.

    Values that are not finite are left out. Empty if fewer than two points are left. The axis reaches down to
    `bottom` at least.
    """
    clean = [[(a, b) for a, b in zip(x, y, strict=True) if _is_drawable(a, b)] for x, y in curves]
    points = [point for curve in clean for point in curve]
    if len(points) < 2:
        return []
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(bottom, *(y for _, y in points)), max(y for _, y in points)
    masks = [[0] * width for _ in range(height)]
    owners = [[0] * width for _ in range(height)]
    for index, curve in enumerate(clean):
        # Connect points that are further apart than a dot.
        dot = (right - left) / (2 * width) or 1.0
        dots = curve[:1]
        for (x0, y0), (x1, y1) in itertools.pairwise(curve):
            count = min(1000, max(1, round((x1 - x0) / dot)))
            dots += [(x0 + (x1 - x0) * i / count, y0 + (y1 - y0) * i / count) for i in range(1, count + 1)]
        for x, y in dots:
            column = round((x - left) / ((right - left) or 1.0) * (2 * width - 1))
            row = round((high - y) / ((high - low) or 1.0) * (4 * height - 1))
            masks[row // 4][column // 2] |= _BRAILLE_DOTS[row % 4][column % 2]
            owners[row // 4][column // 2] = index
    return [
        [(chr(0x2800 + mask), owner) for mask, owner in zip(mask_row, owner_row, strict=True)]
        for mask_row, owner_row in zip(masks, owners, strict=True)
    ]


# --- the loss of a run ---

_PERCENTILE = 97  # top of the chart: the initial drop would flatten the rest
_LABEL_WIDTH = 9
_LEVEL_WIDTH = 12  # " 6-gram 1.56"
_MIN_WIDTH, _MAX_WIDTH = 10, 64
_MIN_POINTS = 3  # of a curve: two losses are read faster as numbers
_MIN_HEIGHT_WITH_MIDDLE = 9  # lines: a label in the middle, too

_BLANK = "\u2800"  # a Braille character without dots
_MAX_POINTS = 4000  # of the training loss that are drawn

Points = Sequence[tuple[float, float]]  # iteration and loss
Levels = Sequence[tuple[float, str]]  # loss and name of a horizontal line
_MAX_EXTENSION = 0.35  # of the losses' range: so far below the curve the next rung is drawn, too


def ladder_levels(ladder: Ladder | None) -> Levels:
    """The rungs that are worth a line: pairs of tokens and more."""
    return [(rung.loss, f"{rung.order}-gram") for rung in ladder.rungs if rung.order > 1] if ladder else []


def loss_points(run_log: RunLog) -> tuple[Points, Points]:
    """Of training and validation, without what a resume repeated; none of the latter where it is not measured
    as a loss."""
    steps, trajectory = run_log.steps, trajectory_of(run_log)
    rows = trajectory.rows[np.isfinite(np.where(steps.has_loss, steps.loss, np.nan)[trajectory.rows])]
    rows = rows[:: max(1, len(rows) // _MAX_POINTS)]
    training = list(zip(steps.iteration[rows].tolist(), steps.loss[rows].tolist(), strict=True))
    if run_log.val_metric != "loss":
        return training, []
    at, losses = trajectory.val_curve()
    return training, list(zip(at.tolist(), losses.tolist(), strict=True))


def loss_chart(
    training: Points,
    validation: Points,
    terminal_width: int,
    height: int,
    max_width: int = _MAX_WIDTH,
    log_scale: bool = False,
    x_axis: bool = False,
    levels: Levels = (),
) -> list[Text]:
    """A title, `height` lines, and with `x_axis` one of iterations below; none without a curve of three
    finite losses. `log_scale`: of the losses, where all are positive. `levels`: drawn where they are in the
    range, and the next one below the curve if it is near."""
    trained, evaluated = (
        [loss for _, loss in curve if np.isfinite(loss)] for curve in (training, validation)
    )
    if max(len(trained), len(evaluated)) < _MIN_POINTS:
        return []
    losses = [*trained, *evaluated]
    top, bottom = float(np.percentile(losses, _PERCENTILE)), min(losses)
    ahead = max((loss for loss, _ in levels if loss < bottom), default=None)
    if ahead is not None and bottom - ahead < _MAX_EXTENSION * (top - bottom):
        bottom = ahead
    log_scale = log_scale and bottom > 0
    curves = [
        (
            [at for at, _ in points],
            [math.log(min(loss, top)) if log_scale else min(loss, top) for _, loss in points],
        )
        for points in (training, validation)
    ]
    drawn = [level for level in levels if bottom <= level[0] <= top]
    margin = _LEVEL_WIDTH if drawn else 0
    width = max(_MIN_WIDTH, min(max_width, terminal_width - _LABEL_WIDTH - 1) - margin)
    labels = {0: _format_level(top), height - 1: _format_level(bottom)}
    if height >= _MIN_HEIGHT_WITH_MIDDLE:
        share = 1 - (height // 2) / (height - 1)
        middle = bottom * (top / bottom) ** share if log_scale else bottom + share * (top - bottom)
        labels[height // 2] = _format_level(middle)
    title = translate("explain_view.loss_chart.title") if validation else translate("label.training_loss")
    lines = [Text(terminal_text(title), style="bold")]
    scaled_top, scaled_bottom = (math.log(top), math.log(bottom)) if log_scale else (top, bottom)
    names: dict[int, str] = {}  # by line: of two levels in one, the lower
    for loss, name in drawn:
        scaled = math.log(loss) if log_scale else loss
        share = (scaled_top - scaled) / ((scaled_top - scaled_bottom) or 1.0)
        names[min(height - 1, round(share * (4 * height - 1)) // 4)] = f" {name} {_format_level(loss)}"
    for number, characters in enumerate(plot(curves, width, height, scaled_bottom)):
        line = Text(f"{labels.get(number, ''):>{_LABEL_WIDTH - 1}} ")
        for character, curve in characters:
            if number in names and character == _BLANK:
                line.append("┈", style="magenta")
            else:
                line.append(character, style="bold cyan" if curve == 1 else "dim")
        line.append(names.get(number, ""), style="magenta")
        lines.append(line)
    if x_axis:
        iterations = [at for at, _ in (*training, *validation)]
        first, last = f"{min(iterations):,.0f}", f"{max(iterations):,.0f}"
        gap = max(1, width - len(first) - len(last))
        lines.append(Text(" " * _LABEL_WIDTH + first + " " * gap + last, style="dim"))
    return lines


def _format_level(loss: float) -> str:
    """Three digits, of a large loss all before the point: 1.30, 2934."""
    return f"{loss:#.3g}".rstrip(".") if abs(loss) < 999.5 or abs(loss) >= 1e6 else f"{loss:.0f}"
