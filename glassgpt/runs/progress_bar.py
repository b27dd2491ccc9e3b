"""What the lines of a progress bar (tqdm) say: how long the run took so far, and which of them are steps.

    bar_seconds("1:02:03")                                             # 3723.0
    bar = ProgressBar()
    bar.read_clock("20%|##   | 200/1000 [00:10<00:40, 19.8it/s, loss=3.21]", 200, builder)    # 10 s, 19.8

A bar moves at each iteration, or is drawn anew where it stands, and a loop may set the loss beside it rarely.
So a line that repeats a loss is no step with that loss. The rate is a moving average: the difference of two
lines' seconds is the better time of a step, where it is long enough.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import NamedTuple

from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.fields import Field, Line
from glassgpt.runs.log_numbers import parse_number

MIN_BAR_S = 10.0  # between two lines, for the difference of whole seconds to be a time
BAR_CLOCK = re.compile(
    r"%\|[^|]{0,300}\|\s*(\d{1,12})/(\d{1,12}) "
    r"\[([\d:]{4,12})<[\d:?]{1,12}(?:, {0,2}([\d.]{1,12})(?:s/it|it/s))?"
)
_MIN_LOSS_DECIMALS = 3  # with fewer, two losses may be equal by chance
_MAX_LOSS_REPEATS = 200  # from there on it is the training's loss that stays


def bar_seconds(clock: str) -> float:
    """What a progress bar says has passed: 1:02:03 or 02:03; NaN for anything else."""
    parts = clock.split(":")
    if not all(part.isdecimal() for part in parts):
        return math.nan
    return float(sum(int(part) * 60**power for power, part in enumerate(reversed(parts))))


def bar_step_ms(rate: str, unit: str) -> float:
    """A progress bar's rate, of `it/s` or `s/it`, as the time of an iteration; NaN for ?it/s."""
    number = float(rate) if rate.replace(".", "", 1).isdecimal() else 0.0
    if not number:
        return math.nan
    return 1000 / number if unit == "it/s" else number * 1000


class BarStep(NamedTuple):
    """A line of a bar that has a loss."""

    iteration: int
    step: Field | None  # where the line says the iteration
    loss: Field
    line: Line
    at: int  # its number in the file
    is_batch: bool  # it counts within an epoch


class BarClock(NamedTuple):
    """Of a bar that counts the whole run."""

    seconds: float  # since its start
    rate: float | None  # as printed, of `it/s` or `s/it`


class ProgressBar:
    """Of one log, line by line."""

    def __init__(self) -> None:
        self._loss = ""  # of the latest line, as printed
        self._at: int | None = None  # its iteration
        self._repeats = self._changes = 0  # lines with the loss of the line before; with another one
        self._held: list[BarStep] = []  # that repeat the first loss
        self._counts_run = False
        self._timed: tuple[int, float] | None = None  # its latest iteration with a new loss, and seconds

    def repeats_loss(self, step: BarStep) -> bool:
        """Whether the line has the loss of another iteration. Those that repeat the first loss are held: if
        it stays, they are steps."""
        loss, bar = step.loss.text, BAR_CLOCK.search(step.line.text)
        is_same = loss == self._loss and len(loss.partition(".")[2]) >= _MIN_LOSS_DECIMALS
        is_set = step.iteration == self._at and bar is not None and bar[1] != bar[2]
        self._loss, self._at = loss, step.iteration
        self._changes += not is_same
        if not is_same or (is_set and self._changes > 1):
            self._repeats, self._held = 0, []
            return False
        self._repeats += 1
        is_repeated = self._repeats < _MAX_LOSS_REPEATS
        if self._changes == 1 and is_repeated:
            self._held.append(step)
        return is_repeated

    def take_held(self) -> list[BarStep]:
        """Lines that are steps, now that their loss has stayed."""
        held, self._held = self._held, []
        return held

    def read_clock(self, text: str, iteration: int, builder: RunBuilder) -> BarClock | None:
        """None of a bar that counts an epoch. Else the time so far is that of the run."""
        if (bar := BAR_CLOCK.search(text)) is None:
            return None
        if int(bar[1]) == iteration and (self._counts_run or not builder.has_steps):
            self._counts_run, seconds = True, bar_seconds(bar[3])
            if builder.has_steps:  # the setup at the first step has priority over a later one
                builder.setup.values["wall_s"] = seconds
            return BarClock(seconds, None if bar[4] is None else parse_number(bar[4]))
        if self._counts_run:
            builder.setup.values.pop("wall_s", None)
        self._counts_run = False
        return None

    def measure_step(
        self, iteration: int, clock: BarClock, columns: dict[str, float], builder: RunBuilder
    ) -> None:
        """Replace a line's rate by the time since the previous line with a loss."""
        if clock.rate is None:
            return
        before, self._timed = self._timed, (iteration, clock.seconds)
        is_timed = before is not None and iteration > before[0] and clock.seconds - before[1] >= MIN_BAR_S
        if before is None or not is_timed or clock.rate not in (columns.get("s"), columns.get("it_per_s")):
            return
        for name in ("s", "it_per_s"):
            columns.pop(name, None)
        columns["ms"] = (clock.seconds - before[1]) / (iteration - before[0]) * 1000
        if not builder.trainer.step_time_is_interval_mean:
            builder.trainer = replace(builder.trainer, step_time_is_interval_mean=True)
