"""The logged iterations while a log is read: rows that grow, and are thinned before they fill the memory.

    rows = StepRows()
    rows.append(250, 0, True, values)
    steps, left_out = rows.build(marked)

Up to MAX_ROWS every line is kept. Of a longer log, whole stretches of lines are left out, every second one
and again every second one, so that what is kept has the distances, differences and windows of the log
itself; rules see it as a log with gaps. Never left out are

- the first and the last lines of the log;
- iterations that evaluate or save, and the lines before them (of very many, every n-th);
- the first and the last line of each process, and lines where the loss or the gradient norm becomes finite,
  or stops being so (the first few thousand of each);
- stretches with a time or a loss far off the others, the farthest MAX_OUTLIERS of them.

`LeftOut` has the exact number of the other lines, and their time. So counts and totals are of the whole log;
medians, percentiles and charts are of the lines kept.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glassgpt.runs.run_log import Bools, Floats, Ints, LeftOut, Steps, marked_rows

MAX_ROWS = 1 << 20  # about 100 MB, and as much again for the rules
_RECENT_ROWS = 8  # in which a repeated line is recognised
STRETCH = 64  # lines that are kept or left out together
MAX_OUTLIERS = 1 << 10  # stretches
_MAX_MARKED = MAX_ROWS // 16  # iterations that evaluate or save
_MAX_TURNS = 1 << 12  # lines where a process starts, or a value becomes finite, or stops being so
_MIN_TIME_RATIO = 4.0  # to the median: rules about slow iterations look at larger ones
_MIN_LOSS_DEVIATIONS = 10.0  # robust standard deviations from the median of the stretch

LOG_COLUMNS = ("loss", "ms", "mfu", "lr", "grad_norm", "tokens_per_s")
JOURNAL_COLUMNS = (*LOG_COLUMNS, "memory_bytes", "tokens")
_KEYS = 4  # iteration, segment, number of the line among the steps, and in the file


class StepRows:
    def __init__(self, columns: Sequence[str] = LOG_COLUMNS) -> None:
        self.line_count = 0  # of all lines, also those left out
        self._columns = tuple(columns)
        self._keys, self._values, self._has_loss = array("q"), array("d"), array("b")
        self._level = 0  # of 2**level stretches one is kept
        self._left_out: dict[int, LeftOut] = {}  # by segment

    def __len__(self) -> int:
        return len(self._has_loss)

    @property
    def is_full(self) -> bool:
        """Then `thin` is due."""
        return len(self._has_loss) >= MAX_ROWS

    def state(self) -> tuple[dict[str, Any], dict[str, array[Any]]]:
        """For an index: values for JSON, and the rows."""
        left_out = [(segment, one.lines, one.timed, one.ms) for segment, one in self._left_out.items()]
        values = {"line_count": self.line_count, "level": self._level, "left_out": left_out}
        return values, {"keys": self._keys, "values": self._values, "has_loss": self._has_loss}

    def restore(self, values: Mapping[str, Any], rows: Mapping[str, array[Any]]) -> None:
        """Raises ValueError where these are not arrays of as many rows each."""
        count = len(rows["has_loss"])
        shapes = {"keys": ("q", count * _KEYS), "values": ("d", count * len(self._columns))}
        if {name: (one.typecode, len(one)) for name, one in rows.items()} != shapes | {
            "has_loss": ("b", count)
        }:
            raise ValueError("these are not the arrays of rows")
        self.line_count, self._level = values["line_count"], values["level"]
        self._left_out = {segment: LeftOut(*sums) for segment, *sums in values["left_out"]}
        self._keys, self._values, self._has_loss = rows["keys"], rows["values"], rows["has_loss"]

    def append(
        self, iteration: int, segment: int, has_loss: bool, values: Sequence[float], line: int = 0
    ) -> None:
        """`values`: by column. `line`: its number in the file, 0 where it is not known."""
        self._keys.extend((iteration, segment, self.line_count, line))
        self._values.extend(values)
        self._has_loss.append(has_loss)
        self.line_count += 1

    def extend(self, iterations: Ints, segment: int, columns: Mapping[str, Floats], first_line: int) -> None:
        """Rows of one segment, all with a loss, of consecutive lines of the file."""
        count = len(iterations)
        keys = np.empty((count, _KEYS), dtype=np.int64)
        keys[:, 0], keys[:, 1] = iterations, segment
        keys[:, 2] = np.arange(self.line_count, self.line_count + count)
        keys[:, 3] = np.arange(first_line, first_line + count)
        values = np.full((count, len(self._columns)), np.nan)
        for name, column in columns.items():
            values[:, self._columns.index(name)] = column
        self._keys.frombytes(keys.tobytes())
        self._values.frombytes(values.tobytes())
        self._has_loss.frombytes(b"\1" * count)
        self.line_count += count

    def last(self, column: str) -> float:
        return self._values[self._columns.index(column) - len(self._columns)]

    @property
    def last_has_loss(self) -> bool:
        return bool(self._has_loss[-1])

    def has_recent(self, iteration: int, values: Sequence[float]) -> bool:
        """Whether one of the last few rows is the same."""
        width = len(self._columns)
        for row in range(max(0, len(self) - _RECENT_ROWS), len(self)):
            if self._keys[row * _KEYS] == iteration and all(
                old == new or (math.isnan(old) and math.isnan(new))
                for old, new in zip(self._values[row * width : (row + 1) * width], values, strict=True)
            ):
                return True
        return False

    def drop_after(self, iteration: int) -> None:
        """A resume from there repeats the later ones."""
        keys, values, has_loss = self._arrays()
        keep = keys[:, 0] <= iteration
        if keep.all():
            return
        segments = set(np.unique(keys[keep, 1]).tolist())
        self._left_out = {segment: left for segment, left in self._left_out.items() if segment in segments}
        self.line_count = kept = int(np.count_nonzero(keep))
        if self._left_out:  # of the segment in which the iteration is, those up to it
            cut = int(keys[keep, 1][-1])
            old, others = self._left_out.pop(cut, LeftOut()), sum(self._left_out.values(), LeftOut())
            count = int(np.interp(iteration, keys[:, 0], keys[:, 2])) + 1 - kept - others.lines
            share = min(old.lines, max(0, count)) / old.lines if old.lines else 0.0
            self._left_out[cut] = LeftOut(round(old.lines * share), round(old.timed * share), old.ms * share)
            self.line_count += self._left_out[cut].lines + others.lines
        self._keep(keep, keys, values, has_loss)

    def thin(self, marked: Mapping[int, Sequence[int]]) -> None:
        """`marked`: by segment, the iterations that evaluate or save."""
        keys, values, has_loss = self._arrays()
        keep = self._selected(keys, values, marked)
        while np.count_nonzero(keep) > MAX_ROWS // 2:
            self._level += 1
            keep = self._selected(keys, values, marked)
        self._left_out = self._all_left_out(keys[~keep, 1], values[~keep])
        self._keep(keep, keys, values, has_loss)

    def build(self, marked: Mapping[int, Sequence[int]]) -> tuple[Steps, Mapping[int, LeftOut]]:
        """Copies of the rows, and what was left out, by segment. Changes nothing here."""
        keys, values, has_loss = self._arrays()
        left_out = self._left_out
        if self._level and len(self):  # the latest lines, too: else they would count more
            keep = self._selected(keys, values, marked)
            left_out = self._all_left_out(keys[~keep, 1], values[~keep])
            keys, values, has_loss = keys[keep], values[keep], has_loss[keep]
        steps = Steps(
            iteration=keys[:, 0].copy(),
            segment=keys[:, 1].copy(),
            line=keys[:, 3].copy(),
            has_loss=has_loss.copy(),
            **{name: values[:, index].copy() for index, name in enumerate(self._columns)},
        )
        return steps, left_out

    def _arrays(self) -> tuple[Ints, Floats, Bools]:
        """Views: the arrays cannot grow while one exists."""
        return (
            np.frombuffer(self._keys, dtype=np.int64).reshape(-1, _KEYS),
            np.frombuffer(self._values, dtype=float).reshape(-1, len(self._columns)),
            np.frombuffer(self._has_loss, dtype=bool),
        )

    def _keep(self, keep: Bools, keys: Ints, values: Floats, has_loss: Bools) -> None:
        self._keys = array("q", keys[keep].tobytes())
        self._values = array("d", values[keep].tobytes())
        self._has_loss = array("b", has_loss[keep].tobytes())

    def _all_left_out(self, segments: Ints, values: Floats) -> dict[int, LeftOut]:
        """What was left out before, and these rows."""
        left_out = dict(self._left_out)
        ms = values[:, self._columns.index("ms")]
        timed = np.isfinite(ms)
        numbers, inverse, lines = np.unique(segments, return_inverse=True, return_counts=True)
        timed_lines = np.bincount(inverse, weights=timed, minlength=len(numbers)).astype(np.int64)
        times = np.bincount(inverse, weights=np.where(timed, ms, 0.0), minlength=len(numbers))
        columns = [column.tolist() for column in (numbers, lines, timed_lines, times)]
        for segment, *sums in zip(*columns, strict=True):
            left_out[segment] = left_out.get(segment, LeftOut()) + LeftOut(*sums)
        return left_out

    def _selected(self, keys: Ints, values: Floats, marked: Mapping[int, Sequence[int]]) -> Bools:
        """The rows to keep at this level."""
        iteration, segment, stretch = keys[:, 0], keys[:, 1], keys[:, 2] // STRETCH
        loss, ms, grad_norm = (values[:, self._columns.index(name)] for name in ("loss", "ms", "grad_norm"))
        is_marked = marked_rows(iteration, segment, marked)
        regular: Bools = (stretch % (1 << self._level) == 0) | (stretch >= stretch[-1] - 1)
        return (
            regular
            | _process_starts(segment)
            | _marked_and_previous(is_marked)
            | _finite_turns(loss)
            | _finite_turns(grad_norm)
            | _outlier_stretches(stretch, loss, ms, is_marked)
        )


# --- rows that are never left out, as masks ---


def _mask(count: int, *rows: Ints) -> Bools:
    mask = np.zeros(count, dtype=bool)
    mask[np.concatenate(rows)] = True
    return mask


def _process_starts(segment: Ints) -> Bools:
    """The first row of each process, and the last one of the process before."""
    last_before = np.flatnonzero(np.diff(segment))[:_MAX_TURNS]
    return _mask(len(segment), last_before, last_before + 1)


def _marked_and_previous(is_marked: Bools) -> Bools:
    """Every n-th only, where very many rows are marked."""
    rows = np.flatnonzero(is_marked)
    rows = rows[:: 1 + len(rows) // _MAX_MARKED]
    return _mask(len(is_marked), rows, np.maximum(rows - 1, 0))


def _finite_turns(column: Floats) -> Bools:
    """Both rows where the value becomes finite, or stops being so."""
    last_before = np.flatnonzero(np.diff(np.isfinite(column)))[:_MAX_TURNS]
    return _mask(len(column), last_before, last_before + 1)


def _outlier_stretches(stretch: Ints, loss: Floats, ms: Floats, is_marked: Bools) -> Bools:
    """The MAX_OUTLIERS stretches with the times and losses farthest off. Marked rows are slow anyway."""
    starts = np.flatnonzero(np.concatenate(([True], np.diff(stretch) != 0)))
    lengths = np.diff(np.append(starts, len(stretch)))
    steady_ms = ms[np.isfinite(ms) & ~is_marked]
    usual_ms = float(np.median(steady_ms)) if len(steady_ms) else math.nan
    # The middle row of a stretch, by its loss, has the median loss of the stretch.
    by_loss = np.lexsort((loss, stretch))
    usual_loss = np.repeat(loss[by_loss[starts + lengths // 2]], lengths)
    with np.errstate(all="ignore"):
        deviations = np.abs(loss - usual_loss)
        spread = 1.0  # the standard deviation, estimated by the median deviation
        if np.isfinite(loss).any():
            spread = max(1.4826 * float(np.median(deviations[np.isfinite(deviations)])), 1e-12)
        # 1 or more: an outlier.
        ms_score = np.where(is_marked, 0.0, ms / (_MIN_TIME_RATIO * usual_ms))
        loss_score = deviations / (_MIN_LOSS_DEVIATIONS * spread)
    row_scores = np.nan_to_num(np.fmax(ms_score, loss_score), nan=0.0, posinf=0.0)
    scores = np.maximum.reduceat(row_scores, starts)
    farthest = np.argsort(-scores, kind="stable")[:MAX_OUTLIERS]
    return np.repeat(_mask(len(scores), farthest[scores[farthest] >= 1]), lengths)
