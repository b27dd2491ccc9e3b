"""Clocks: how logs and tables say the time, and step times from a clock that lines or rows show.

clock = StepClock(resolution_s=1.0)
clock.step_ms(100, 52.0), clock.step_ms(200, 90.0)      # nan, 380.0
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np

from glassgpt.runs.curve_statistics import robust_std
from glassgpt.runs.log_numbers import MAX_CELL_CHARS, parse_cell
from glassgpt.runs.run_log import Floats, Ints, Steps

_MIN_GROWING_LINES, _MIN_GROWTH = 8, 3.0  # no series of step times grows so
_MIN_GROWING_FROM_0 = 3  # and none begins at nothing: the first one is the slowest
_MIN_SPAN = 20  # units of the clock in a time: its error is at most 1 in 20
_MIN_SPANS, _MIN_PAUSE_STDS = 3, 3.0  # to tell how much longer the spans with an evaluation are
_MAX_PAUSES = 10_000  # spans with an evaluation, and evaluations in one: of more, no duration is known
_MAX_PAUSE_RATIO = 2.5  # of the typical pause: a longer one has a stall in it
_MAX_BACK_S = 60.0  # lines of several processes are not in the order of their stamps
_MAX_SILENCE_S = 6 * 3600.0
_MAX_UNSTAMPED_SHARE = 0.02  # of the steps, before the first or after the last stamp
_MAX_STAMPS = 100_000  # kept of one file
_STAMP = re.compile(r"(\d{4})[-/](\d{2})[-/](\d{2})[T ](\d{2}:\d{2}:\d{2})(?:[.,](\d{1,9}))?")
_TIME_ALONE = re.compile(r"\[?(\d{2}):([0-5]\d):([0-5]\d(?:[.,]\d{1,6})?)(?![\d:])")  # of the day, or so far
_DAY_S = 86400.0
# START TIME: Tue Mar 31 14:09:57 CEST 2026, as `date` prints it
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_DATE_COMMAND = re.compile(
    r"(?i:start|begin|end|finish)\w{0,4}[ _]?(?i:time|date|at|on)?\s?:\s*"
    r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) +(\d{1,2}) "
    r"(\d{2}:\d{2}:\d{2}) (?:[A-Z]{2,5} )?(\d{4})$"
)
_DURATION = re.compile(r"(?:(\d{1,6}) days?, )?(\d{1,6}):(\d{2}):(\d{2}(?:\.\d{1,9})?)")
_UNITS = re.compile(r"(?:(\d{1,6})d)? ?(?:(\d{1,6})h)? ?(?:(\d{1,6})m)? ?(?:(\d{1,6}(?:\.\d{1,9})?)s)?")


def parse_clock(value: object) -> float | None:
    """Seconds, of a number, of 1 day, 2:03:04, of 1d 2h 3m 4s or of a date."""
    number = parse_cell(value)
    if number is not None:
        return number if math.isfinite(number) else None
    if not isinstance(value, str) or len(value) > MAX_CELL_CHARS:
        return None
    if match := _DURATION.fullmatch(value.strip()):
        days, hours, minutes, seconds = match.groups()
        return int(days or 0) * 86400.0 + int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    if (match := _UNITS.fullmatch(value.strip())) and match.lastindex:
        return sum(
            float(part or 0) * seconds
            for part, seconds in zip(match.groups(), (86400, 3600, 60, 1), strict=True)
        )
    try:
        date = datetime.fromisoformat(value.strip().replace(",", "."))
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def parse_timestamp(value: object) -> float | None:
    """Seconds since 1970, also of milli-, micro- and nanoseconds."""
    seconds = parse_clock(value)
    while seconds is not None and abs(seconds) > 1e11:
        seconds /= 1000
    return seconds


def clock_us(clock: str) -> int | None:
    """Microseconds since 1970, of a time that `strip_prefixes` has stripped. None without a date or fractions
    of a second: the difference of two would be too uncertain for the time of a step."""
    match = _STAMP.search(clock)
    return _stamp_us(match) if match is not None and match[5] else None


def stamp_seconds(clock: str) -> float | None:
    """Since 1970, as `clock_us`, also in whole seconds: for a StepClock."""
    match = _STAMP.search(clock)
    stamp_us = None if match is None else _stamp_us(match)
    return None if stamp_us is None else stamp_us / 1e6


def _stamp_us(match: re.Match[str]) -> int | None:
    try:
        whole = datetime.fromisoformat(f"{match[1]}-{match[2]}-{match[3]}T{match[4]}")
    except ValueError:
        return None  # 2024-13-45
    return int(whole.replace(tzinfo=UTC).timestamp()) * 1_000_000 + int(f"{match[5] or '':0<6}"[:6])


class LineStamps:
    """When lines were printed, by the dates and times before them; of very many lines, every few."""

    def __init__(self) -> None:
        self._lines, self._seconds = array("q"), array("d")
        self._stride, self._passed = 1, 0
        self._latest: tuple[int, float] | None = None
        self._days = 1  # of times without a date; 0: there are dates, and only these count

    def add(self, line: int, clock: str, text: str = "") -> None:
        """`clock`: as printed before the line. `text`: of a line without one."""
        if match := _STAMP.search(clock):
            stamp_us = _stamp_us(match)
            seconds = None if stamp_us is None else stamp_us / 1e6
        elif match := _DATE_COMMAND.match(text):
            month = _MONTHS.find(match[1]) // 3 + 1
            seconds = parse_clock(f"{match[4]}-{month:02}-{int(match[2]):02}T{match[3]}")
        elif self._days and (match := _TIME_ALONE.match(clock)):
            of_day = int(match[1]) * 3600 + int(match[2]) * 60 + float(match[3].replace(",", "."))
            before = self._latest[1] - self._days * _DAY_S if self._latest else of_day
            self._days += before - of_day > _DAY_S / 2  # midnight
            self.add_seconds(line, self._days * _DAY_S + of_day)
            return
        else:
            return
        if self._days and self._latest is not None:
            del self._lines[:], self._seconds[:]
        self._days = 0
        self.add_seconds(line, seconds)

    def add_seconds(self, line: int, seconds: float | None) -> None:
        if not seconds or not math.isfinite(seconds):
            return
        self._latest = line, seconds
        self._passed += 1
        if self._passed >= self._stride:
            self._passed = 0
            self._lines.append(line)
            self._seconds.append(seconds)
            if len(self._lines) >= _MAX_STAMPS:
                self._stride *= 2
                del self._lines[1::2], self._seconds[1::2]

    def build(self) -> tuple[tuple[int, float], ...]:
        pairs = tuple(zip(self._lines, self._seconds, strict=True))
        return pairs if self._latest is None or self._latest in pairs[-1:] else (*pairs, self._latest)


def stamped_seconds(
    stamps: Sequence[tuple[int, float]], first_line: int, last_line: int, step_lines: Ints | None = None
) -> float | None:
    """From the first to the last stamp of these lines; None where the clock goes back, nothing is printed for
    so long that another start is likely, or lines of steps come before or after the stamps."""
    inside = [(line, at) for line, at in stamps if first_line <= line <= last_line]
    seconds = [at for _, at in inside]
    if inside and step_lines is not None:
        outside = (step_lines < inside[0][0]) | (step_lines > inside[-1][0])
        if np.count_nonzero(outside & (step_lines > 0)) > _MAX_UNSTAMPED_SHARE * len(step_lines):
            return None
    gaps = [later - at for at, later in pairwise(seconds)]
    if not gaps or min(gaps) < -_MAX_BACK_S or max(gaps) > _MAX_SILENCE_S:
        return None
    return max(seconds) - seconds[0] or None


def parse_elapsed_ms(value: object) -> float | None:
    ms = parse_cell(value)
    return ms / 1000 if ms is not None and math.isfinite(ms) else None


class StepClock:
    """Step times from a clock that rows show: the mean over the iterations since an earlier row.

    A time covers at least _MIN_SPAN units of the clock, so that rounding does not show; rows inside such a
    span have no time. Evaluations are subtracted, or, if their duration is not known, leave no time at all.
    """

    def __init__(self, resolution_s: float) -> None:
        self.resolution_s = resolution_s
        self._start: tuple[int, float] | None = None  # iteration and seconds where the span begins
        self._span_s = 0.0  # the latest one with a time
        self._eval_s: float | None = 0.0  # inside the span; None: not known
        self._eval_lines: list[int] = []  # of those inside the span whose duration is not known
        self._paused: list[tuple[list[int], int, float]] = []  # spans with such: lines, iterations, seconds
        self.last_s = -math.inf

    @classmethod
    def of_values(
        cls, values: Sequence[object], parse: Callable[[object], float | None] = parse_clock
    ) -> StepClock:
        """A clock that shows these; its resolution is the unit of their last digit."""
        digits = max((len(str(value)[:40].partition(".")[2]) for value in values), default=0)
        unit = parse(1) if parse is not parse_timestamp else 1.0  # 1 in the column's unit
        return cls(max(1e-6, (unit or 1.0) * 10.0 ** -min(digits, 6)))

    def add_eval(self, seconds: float | None, line: int = 0) -> None:
        if seconds is None and len(self._eval_lines) < _MAX_PAUSES:
            self._eval_lines.append(line)
        known = seconds is not None and 0 <= seconds < math.inf
        self._eval_s = self._eval_s + (seconds or 0.0) if known and self._eval_s is not None else None

    def step_ms(self, iteration: int, seconds: float) -> float:
        start, self.last_s = self._start, seconds
        if start is not None and iteration == start[0] and 0 <= seconds - start[1] < self._span_s:
            return math.nan  # another process printed it too
        if start is None or iteration <= start[0] or seconds < start[1] or self._eval_s is None:
            is_paused = (
                start is not None and iteration > start[0] and seconds >= start[1] and self._eval_lines
            )
            if start is not None and is_paused and len(self._paused) < _MAX_PAUSES:
                self._paused.append((self._eval_lines, iteration - start[0], seconds - start[1]))
            self._start, self._eval_s, self._eval_lines = (iteration, seconds), 0.0, []
            return math.nan
        spent_s = seconds - start[1] - self._eval_s
        if spent_s < _MIN_SPAN * self.resolution_s:
            return math.nan
        self._start, self._eval_s, self._span_s = (iteration, seconds), 0.0, spent_s
        return spent_s / (iteration - start[0]) * 1000

    def eval_ms(self, step_ms: Sequence[float] | Floats) -> dict[int, float]:
        """By line, what evaluations of unknown duration took, with a save beside them: a span that has one is
        so much longer than the others, whose steps took these times. One after the last span took as long as
        is usual. Empty where that is not clear."""
        steady = np.asarray(step_ms)[np.isfinite(step_ms)]
        if not _MIN_SPANS <= len(self._paused) < _MAX_PAUSES or len(steady) < _MIN_SPANS:
            return {}
        usual, std = float(np.median(steady)), robust_std(steady)
        pauses = [1000 * seconds - count * usual for _, count, seconds in self._paused]
        typical = float(np.median(pauses))
        error = std * max(count for _, count, _ in self._paused)
        if typical < max(_MIN_PAUSE_STDS * error, 1000 * _MIN_SPAN * self.resolution_s):
            return {}
        lines = [lines for lines, _, _ in self._paused]
        shares = [
            min(max(pause, 0.0), _MAX_PAUSE_RATIO * typical) / len(of_span)
            for of_span, pause in zip(lines, pauses, strict=True)
        ]
        lines, shares = [*lines, self._eval_lines], [*shares, float(np.median(shares))]
        return {line: share for of_span, share in zip(lines, shares, strict=True) for line in of_span}


def times_between(steps: Steps) -> Steps | None:
    """Where what lines say as a time grows with every line, it is the time since the start: the same steps
    with the time between the lines. None: it does not.

    Of whole seconds, the difference of two lines may be nothing but rounding: then no time is known."""
    timed = np.flatnonzero(np.isfinite(steps.ms))
    ms = steps.ms[timed]
    is_same = np.diff(steps.segment[timed]) == 0
    growth = np.diff(ms)[is_same]
    least = _MIN_GROWING_FROM_0 if len(ms) and ms[0] == 0 else _MIN_GROWING_LINES
    if len(growth) < least or not (growth > 0).all() or ms.max() < _MIN_GROWTH * ms.min():
        return None
    iterations = np.diff(steps.iteration[timed])
    between = np.full(len(steps.ms), np.nan)
    is_rounded = not (ms % 1000).any() and np.median(growth) < 1000 * _MIN_SPAN
    if not is_rounded:
        is_measured = is_same & (iterations > 0)
        between[timed[1:][is_measured]] = np.diff(ms)[is_measured] / iterations[is_measured]
    return replace(steps, ms=between)
