"""Which columns of a table say when its rows were written, or how long a step took.

    columns = {"iteration": "step", "time": "time"}      # by their names
    time = choose_table_time(columns, rows, rows, "step")
    time.clock                                           # the column's values grow: the time since the start

A name says little: `time` may be the time of a step, since the start, or of the day. The values of the first
rows decide. A column of step times is preferred to a clock, whose differences have evaluations in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from glassgpt.runs.log_numbers import MAX_CELL_CHARS, MAX_COUNT, parse_cell
from glassgpt.runs.metric_columns import Role
from glassgpt.runs.step_clock import StepClock, parse_clock, parse_elapsed_ms, parse_timestamp

Row = Mapping[str, object]

MIN_GROWING_SHARE = 0.9  # of the pairs of rows in which a column grows, for it to count since the start
_MIN_CLOCK_VALUES = 20  # different ones: step times that rise once, and stay, are no clock
_MIN_DATE_S = 1e8  # seconds since 1970; fewer are since the start
# The median of step times without a unit: below the first they are seconds, above the second milliseconds. No
# step takes less than 0.1 ms, and none a quarter of an hour.
_MAX_BARE_SECONDS, _MIN_BARE_MS = 0.1, 1000.0
STEP_TIME_UNITS = {"ms": 1.0, "s": 1000.0}  # in milliseconds

_CLOCKS: dict[Role, tuple[Callable[[object], float | None], str]] = {
    "elapsed_s": (parse_clock, "s"),
    "elapsed_ms": (parse_elapsed_ms, "ms"),
    "timestamp": (parse_timestamp, "s"),
}
# A column called like the first is a clock like the second where its values grow.
_MAYBE_CLOCKS: dict[Role, Role] = {
    "time": "elapsed_s",
    "run_s": "elapsed_s",
    "step_time": "elapsed_s",
    "step_s": "elapsed_s",
    "step_ms": "elapsed_ms",
}


def parse_iteration(value: object) -> int | None:
    """A count of steps or epochs, also of `10/2353`, where the planned number follows."""
    number = parse_cell(value)
    if number is None and isinstance(value, str) and "/" in value:
        number = parse_cell(value[: 2 * MAX_CELL_CHARS].partition("/")[0])
    return int(number) if number is not None and 0 <= number <= MAX_COUNT and number % 1 == 0 else None


class ColumnClock(NamedTuple):
    """A column that shows a clock."""

    column: str
    parse: Callable[[object], float | None]
    clock: StepClock

    def seconds(self, row: Row) -> float | None:
        return self.parse(row.get(self.column))


@dataclass
class TableTime:
    """What was chosen. `units`: "s" or "ms", of the columns that step times come from, by role."""

    clock: ColumnClock | None = None  # that step times come from
    total_clock: ColumnClock | None = None  # since the start, whatever step times come from
    stamp_column: str = ""  # of dates
    units: dict[Role, str] = field(default_factory=dict)
    without_unit: str = ""  # a column of step times whose unit nothing shows


def choose_table_time(
    columns: dict[Role, str],
    rows: Sequence[Row],
    losses: Sequence[Row],
    counter: str | None,
    counts_epochs: bool,
) -> TableTime:
    """Of the first rows. `columns`: by role; those of time get their final role there, or are removed.
    `losses`: the rows that are steps. `counter`: the column that counts them. `counts_epochs`: where
    nothing else is counted, the time of an epoch is that of a step."""
    _find_clocks(columns, rows, losses, counter)
    time = TableTime()
    for role, (parse, unit) in _CLOCKS.items():
        if role not in columns:
            continue
        column = columns[role]
        values = [row[column] for row in losses if column in row and parse(row[column]) is not None]
        # Less than half: a total in the closing row.
        if time.clock is None and values and 2 * len(values) >= len(losses):
            time.clock = ColumnClock(column, parse, StepClock.of_values(values, parse))
            time.units[role] = unit
            time.total_clock = None if role == "timestamp" else time.clock
        if role == "timestamp" and values:
            time.stamp_column = column
    if (epoch_s := columns.pop("epoch_s", None)) and counts_epochs:
        columns.setdefault("step_s", epoch_s)
    _choose_step_time(time, columns, rows)
    return time


def _find_clocks(
    columns: dict[Role, str], rows: Sequence[Row], losses: Sequence[Row], counter: str | None
) -> None:
    """A column whose values grow from row to row is a clock, whatever its name says; no other one is."""
    for role in ("timestamp", "elapsed_s", "elapsed_ms"):
        if (column := columns.get(role)) is None:
            continue
        shown = [
            (time, parse_iteration(row.get(counter or "")))
            for row in losses
            if (time := parse_clock(row.get(column))) is not None
        ]
        # Where the count goes on, so does a clock, also that of a second process.
        pairs = [
            (one, other)
            for (one, before), (other, at) in pairwise(shown)
            if before is None or at is None or at > before
        ]
        grows = sum(other >= one for one, other in pairs) >= MIN_GROWING_SHARE * len(pairs)
        is_date = any(time > _MIN_DATE_S for time, _ in shown) or not shown
        if not grows or (role == "timestamp" and not is_date):
            del columns[role]
        if grows and role == "timestamp" and not is_date:
            columns["elapsed_s"] = column
        elif not grows and role == "elapsed_s":  # it begins again in each row
            columns.setdefault("epoch_s", column)
    for role, clock_role in _MAYBE_CLOCKS.items():
        if role in columns:
            times = [time for row in rows if (time := parse_clock(row.get(columns[role]))) is not None]
            is_clock = (
                len(times) >= max(3, len(losses) // 2)
                and times == sorted(times)
                and times[-1] > 1.5 * times[0]
                and len(set(times)) > min(_MIN_CLOCK_VALUES, len(times) // 2)
            )
            is_date = bool(times) and times[0] > _MIN_DATE_S and role == "time"
            if is_clock or is_date:
                columns.setdefault("timestamp" if is_date else clock_role, columns[role])
            if is_clock or role == "time":
                del columns[role]


def _choose_step_time(time: TableTime, columns: dict[Role, str], rows: Sequence[Row]) -> None:
    """A column of step times is better than a clock. Where its name has no unit, the clock shows the unit, or
    the size of its values does."""
    units = time.units
    if "step_ms" in columns or "step_s" in columns:
        columns.pop("step_time", None)
        units |= {"step_ms": "ms"} if "step_ms" in columns else {"step_s": "s"}
    elif "step_time" in columns:
        column = columns["step_time"]
        times = [known for row in rows if (known := parse_cell(row.get(column))) is not None and known > 0]
        usual = median(times) if times else math.nan
        clock_ms = _median_clock_ms(time.clock, columns.get("iteration"), rows)
        for unit, factor in STEP_TIME_UNITS.items():
            if 0.5 < usual * factor / clock_ms < 2:
                units["step_time"] = unit
        if math.isnan(clock_ms) and (usual < _MAX_BARE_SECONDS or usual > _MIN_BARE_MS):
            units["step_time"] = "s" if usual < _MAX_BARE_SECONDS else "ms"
        if "step_time" not in units:
            time.without_unit = column
    if any(role in units for role in ("step_ms", "step_s", "step_time")):
        for role in _CLOCKS:
            units.pop(role, None)
        time.clock = None


def _median_clock_ms(clock: ColumnClock | None, column: str | None, rows: Sequence[Row]) -> float:
    if clock is None or column is None:
        return math.nan
    trial = StepClock(clock.clock.resolution_s)
    shown = ((parse_iteration(row.get(column)), clock.seconds(row)) for row in rows)
    times = [trial.step_ms(at, seconds) for at, seconds in shown if at is not None and seconds is not None]
    times = [time for time in times if time > 0]
    return median(times) if times else math.nan
