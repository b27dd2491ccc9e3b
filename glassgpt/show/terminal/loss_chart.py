"""A small loss curve for the terminal: the training loss in dots, the validation loss over it, and lines for
the losses of tables of n-grams (data/ladder.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from rich.text import Text

from glassgpt.data.ladder import Ladder
from glassgpt.i18n import translate
from glassgpt.runs.run_log import RunLog
from glassgpt.show.terminal.chart import plot
from glassgpt.show.terminal.text_lines import terminal_text

_PERCENTILE = 97  # top of the chart: the initial drop would flatten the rest
_LABEL_WIDTH = 9
_LEVEL_WIDTH = 12  # " 6-gram 1.56"
_MIN_WIDTH, _MAX_WIDTH = 10, 64
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
    """Of training and validation; none of the latter where it is not measured as a loss."""
    steps = run_log.steps
    rows = np.flatnonzero(steps.has_loss & np.isfinite(steps.loss))
    rows = rows[:: max(1, len(rows) // _MAX_POINTS)]
    training = list(zip(steps.iteration[rows].tolist(), steps.loss[rows].tolist(), strict=True))
    if run_log.val_metric != "loss":
        return training, []
    return training, [
        (float(one.iteration), float(one.val_loss))
        for one in run_log.evals
        if one.val_loss is not None and one.iteration is not None
    ]


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
    """A title, `height` lines, and with `x_axis` one of iterations below; none if fewer than two losses are
    finite. `log_scale`: of the losses, where all are positive. `levels`: drawn where they are in the range,
    and the next one below the curve if it is near."""
    losses = [loss for _, loss in (*training, *validation) if np.isfinite(loss)]
    if len(losses) < 2:
        return []
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
    labels = {0: f"{top:.3g}", height - 1: f"{bottom:.3g}"}
    if height >= _MIN_HEIGHT_WITH_MIDDLE:
        share = 1 - (height // 2) / (height - 1)
        middle = bottom * (top / bottom) ** share if log_scale else bottom + share * (top - bottom)
        labels[height // 2] = f"{middle:.3g}"
    title = translate("explain_view.loss_chart.title") if validation else translate("label.training_loss")
    lines = [Text(terminal_text(title), style="bold")]
    scaled_top, scaled_bottom = (math.log(top), math.log(bottom)) if log_scale else (top, bottom)
    names: dict[int, str] = {}  # by line: of two levels in one, the lower
    for loss, name in drawn:
        scaled = math.log(loss) if log_scale else loss
        share = (scaled_top - scaled) / ((scaled_top - scaled_bottom) or 1.0)
        names[min(height - 1, round(share * (4 * height - 1)) // 4)] = f" {name} {loss:.3g}"
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
