"""A small loss curve for the terminal: the training loss in dots, the validation loss over it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from rich.text import Text

from glassgpt.i18n import translate
from glassgpt.runs.run_log import RunLog
from glassgpt.show.terminal.chart import plot
from glassgpt.show.terminal.text_lines import terminal_text

_PERCENTILE = 97  # top of the chart: the initial drop would flatten the rest
_LABEL_WIDTH = 9
_MIN_WIDTH, _MAX_WIDTH = 10, 64
_MIN_HEIGHT_WITH_MIDDLE = 9  # lines: a label in the middle, too

_MAX_POINTS = 4000  # of the training loss that are drawn

Points = Sequence[tuple[float, float]]  # iteration and loss


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
) -> list[Text]:
    """A title, `height` lines, and with `x_axis` one of iterations below; none if fewer than two losses are
    finite. `log_scale`: of the losses, where all are positive."""
    losses = [loss for _, loss in (*training, *validation) if np.isfinite(loss)]
    if len(losses) < 2:
        return []
    top, bottom = float(np.percentile(losses, _PERCENTILE)), min(losses)
    log_scale = log_scale and bottom > 0
    curves = [
        (
            [at for at, _ in points],
            [math.log(min(loss, top)) if log_scale else min(loss, top) for _, loss in points],
        )
        for points in (training, validation)
    ]
    width = max(_MIN_WIDTH, min(max_width, terminal_width - _LABEL_WIDTH - 1))
    labels = {0: f"{top:.3g}", height - 1: f"{bottom:.3g}"}
    if height >= _MIN_HEIGHT_WITH_MIDDLE:
        share = 1 - (height // 2) / (height - 1)
        middle = bottom * (top / bottom) ** share if log_scale else bottom + share * (top - bottom)
        labels[height // 2] = f"{middle:.3g}"
    title = translate("explain_view.loss_chart.title") if validation else translate("label.training_loss")
    lines = [Text(terminal_text(title), style="bold")]
    for number, characters in enumerate(plot(curves, width, height)):
        line = Text(f"{labels.get(number, ''):>{_LABEL_WIDTH - 1}} ")
        for character, curve in characters:
            line.append(character, style="bold cyan" if curve == 1 else "dim")
        lines.append(line)
    if x_axis:
        iterations = [at for at, _ in (*training, *validation)]
        first, last = f"{min(iterations):,.0f}", f"{max(iterations):,.0f}"
        gap = max(1, width - len(first) - len(last))
        lines.append(Text(" " * _LABEL_WIDTH + first + " " * gap + last, style="dim"))
    return lines
