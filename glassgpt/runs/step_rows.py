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
from numpy.typing import NDArray

from glassgpt.runs.curve_statistics import SIGMA_PER_MAD
from glassgpt.runs.run_log import Bools, Floats, Ints, LeftOut, Steps, marked_rows

MAX_ROWS = 1 << 20  # about 100 MB, and as much again for the rules
_BUFFERED_ROWS = 1 << 12  # before they are moved to the columns
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
    """Rows are appended to short buffers, and moved from there to columns, many at a time. `build` returns
    views of these columns, so that a run that is read while it grows is in memory once: a row of a column
    never changes but for a placeholder, and where rows are left out, the others move to new columns."""

    def __init__(self, columns: Sequence[str] = LOG_COLUMNS) -> None:
        self.line_count = 0  # of all lines, also those left out
        self._columns = tuple(columns)
        self._new_keys, self._new_values, self._new_has_loss = array("q"), array("d"), array("b")
        self._count = 0  # of rows in the columns; these are longer
        self._keys = [np.empty(0, dtype=np.int64) for _ in range(_KEYS)]
        self._values = [np.empty(0) for _ in self._columns]
        self._has_loss = np.empty(0, dtype=bool)
        self._level = 0  # of 2**level stretches one is kept
        self._left_out: dict[int, LeftOut] = {}  # by segment

    def __len__(self) -> int:
        return self._count + len(self._new_has_loss)

    @property
    def is_full(self) -> bool:
        """Then `thin` is due."""
        return len(self) >= MAX_ROWS

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """For an index: values for JSON, and the rows."""
        keys, values, has_loss = self._arrays()
        left_out = [(segment, one.lines, one.timed, one.ms) for segment, one in self._left_out.items()]
        numbers = {"line_count": self.line_count, "level": self._level, "left_out": left_out}
        rows = {f"key {index}": key for index, key in enumerate(keys)}
        return numbers, rows | dict(zip(self._columns, values, strict=True)) | {"has_loss": has_loss}

    def restore(self, values: Mapping[str, Any], rows: Mapping[str, NDArray[Any]]) -> None:
        """Raises ValueError where these are not arrays of as many rows each."""
        keys = [f"key {index}" for index in range(_KEYS)]
        kinds = dict.fromkeys(keys, "int64") | dict.fromkeys(self._columns, "float64") | {"has_loss": "bool"}
        if {name: one.dtype.name for name, one in rows.items()} != kinds:
            raise ValueError("these are not the arrays of rows")
        if len({one.shape for one in rows.values()}) != 1:
            raise ValueError("the arrays of rows have different lengths")
        self.line_count, self._level = values["line_count"], values["level"]
        self._left_out = {segment: LeftOut(*sums) for segment, *sums in values["left_out"]}
        self._keys, self._values = [rows[name] for name in keys], [rows[name] for name in self._columns]
        self._has_loss, self._count = rows["has_loss"], len(rows["has_loss"])

    def append(
        self, iteration: int, segment: int, has_loss: bool, values: Sequence[float], line: int = 0
    ) -> None:
        """`values`: by column. `line`: its number in the file, 0 where it is not known."""
        self._new_keys.extend((iteration, segment, self.line_count, line))
        self._new_values.extend(values)
        self._new_has_loss.append(has_loss)
        self.line_count += 1
        if len(self._new_has_loss) >= _BUFFERED_ROWS:
            self._flush()

    def extend(self, iterations: Ints, segment: int, columns: Mapping[str, Floats], first_line: int) -> None:
        """Rows of one segment, all with a loss, of consecutive lines of the file."""
        count = len(iterations)
        keys = (
            iterations,
            np.full(count, segment, dtype=np.int64),
            np.arange(self.line_count, self.line_count + count),
            np.arange(first_line, first_line + count),
        )
        unknown = np.full(count, np.nan)
        values = [columns.get(name, unknown) for name in self._columns]
        self._flush()
        self._add(keys, values, np.ones(count, dtype=bool))
        self.line_count += count

    def _flush(self) -> None:
        """Moves the buffered rows to the columns."""
        if self._new_has_loss:
            keys = np.frombuffer(self._new_keys, dtype=np.int64).reshape(-1, _KEYS).T
            values = np.frombuffer(self._new_values).reshape(-1, len(self._columns)).T
            self._add(list(keys), list(values), np.frombuffer(self._new_has_loss, dtype=bool))
            self._new_keys, self._new_values, self._new_has_loss = array("q"), array("d"), array("b")

    def _add(self, keys: Sequence[Ints], values: Sequence[Floats], has_loss: Bools) -> None:
        end = self._count + len(has_loss)
        if end > len(self._has_loss):  # views of the old columns stay as they are
            capacity = max(end + end // 2, 1 << 10)
            self._keys = [_grown(column, self._count, capacity) for column in self._keys]
            self._values = [_grown(column, self._count, capacity) for column in self._values]
            self._has_loss = _grown(self._has_loss, self._count, capacity)
        for column, new in zip((*self._keys, *self._values), (*keys, *values), strict=True):
            column[self._count : end] = new
        self._has_loss[self._count : end] = has_loss
        self._count = end

    def last(self, column: str) -> float:
        index = self._columns.index(column)
        if self._new_has_loss:
            return self._new_values[index - len(self._columns)]
        return float(self._values[index][self._count - 1])

    @property
    def last_gap(self) -> int:
        """Iterations between the last two rows; 0 for less than two."""
        return self._row(len(self) - 1)[0] - self._row(len(self) - 2)[0] if len(self) > 1 else 0

    @property
    def last_has_loss(self) -> bool:
        return bool(self._new_has_loss[-1] if self._new_has_loss else self._has_loss[self._count - 1])

    def has_recent(self, iteration: int, values: Sequence[float]) -> bool:
        """Whether one of the last few rows is the same."""
        for row in range(max(0, len(self) - _RECENT_ROWS), len(self)):
            at, old_values = self._row(row)
            if at == iteration and all(
                old == new or (math.isnan(old) and math.isnan(new))
                for old, new in zip(old_values, values, strict=True)
            ):
                return True
        return False

    def replace_placeholder(self, iteration: int, loss: float) -> bool:
        """Whether one of the last few rows is this iteration, of a rank that does not compute the loss and
        prints a whole number for it, 0 or below: torchtitan -1 for each micro-batch. It gets the loss."""
        for row in reversed(range(max(0, len(self) - _RECENT_ROWS), len(self))):  # an earlier run has it, too
            at, values = self._row(row)
            if at == iteration and loss > 0 >= values[0] and values[0] % 1 == 0:
                if row < self._count:
                    self._values[0][row] = loss
                else:
                    self._new_values[(row - self._count) * len(self._columns)] = loss
                return True
        return False

    def _row(self, row: int) -> tuple[int, Sequence[float]]:
        """Its iteration and its values."""
        width, new = len(self._columns), row - self._count
        if new < 0:
            return int(self._keys[0][row]), [float(column[row]) for column in self._values]
        return self._new_keys[new * _KEYS], self._new_values[new * width : (new + 1) * width]

    def drop_after(self, iteration: int) -> None:
        """A resume from there repeats the later ones."""
        keys, _, _ = self._arrays()
        at, segment, number, _ = keys
        keep = at <= iteration
        if keep.all():
            return
        segments = set(np.unique(segment[keep]).tolist())
        self._left_out = {segment: left for segment, left in self._left_out.items() if segment in segments}
        self.line_count = kept = int(np.count_nonzero(keep))
        if self._left_out:  # of the segment in which the iteration is, those up to it
            cut = int(segment[keep][-1])
            old, others = self._left_out.pop(cut, LeftOut()), sum(self._left_out.values(), LeftOut())
            count = int(np.interp(iteration, at, number)) + 1 - kept - others.lines
            share = min(old.lines, max(0, count)) / old.lines if old.lines else 0.0
            self._left_out[cut] = LeftOut(round(old.lines * share), round(old.timed * share), old.ms * share)
            self.line_count += self._left_out[cut].lines + others.lines
        self._keep(keep)

    def thin(self, marked: Mapping[int, Sequence[int]]) -> None:
        """`marked`: by segment, the iterations that evaluate or save."""
        keys, values, _ = self._arrays()
        keep = self._selected(keys, values, marked)
        while np.count_nonzero(keep) > MAX_ROWS // 2:
            self._level += 1
            keep = self._selected(keys, values, marked)
        self._left_out = self._all_left_out(keys, values, ~keep)
        self._keep(keep)

    def build(self, marked: Mapping[int, Sequence[int]]) -> tuple[Steps, Mapping[int, LeftOut]]:
        """The rows, and what was left out, by segment. Changes nothing here."""
        keys, values, has_loss = self._arrays()
        left_out = self._left_out
        if self._level and len(self):  # the latest lines, too: else they would count more
            keep = self._selected(keys, values, marked)
            left_out = self._all_left_out(keys, values, ~keep)
            keys, values, has_loss = (
                [key[keep] for key in keys], [column[keep] for column in values], has_loss[keep]
            )  # fmt: skip
        for column in (*keys, *values, has_loss):
            column.setflags(write=False)
        columns = dict(zip(self._columns, values, strict=True))
        return Steps(iteration=keys[0], segment=keys[1], line=keys[3], has_loss=has_loss, **columns), left_out

    def _arrays(self) -> tuple[list[Ints], list[Floats], Bools]:
        """Views of the columns: keys, values, whether there is a loss."""
        self._flush()
        count = self._count
        keys, values = [key[:count] for key in self._keys], [column[:count] for column in self._values]
        return keys, values, self._has_loss[:count]

    def _keep(self, keep: Bools) -> None:
        keys, values, has_loss = self._arrays()
        self._keys, self._values = [key[keep] for key in keys], [column[keep] for column in values]
        self._has_loss = has_loss[keep]
        self._count = len(self._has_loss)

    def _all_left_out(
        self, keys: Sequence[Ints], values: Sequence[Floats], these: Bools
    ) -> dict[int, LeftOut]:
        """What was left out before, and these rows."""
        left_out = dict(self._left_out)
        segments, ms = keys[1][these], values[self._columns.index("ms")][these]
        timed = np.isfinite(ms)
        numbers, inverse, lines = np.unique(segments, return_inverse=True, return_counts=True)
        timed_lines = np.bincount(inverse, weights=timed, minlength=len(numbers)).astype(np.int64)
        times = np.bincount(inverse, weights=np.where(timed, ms, 0.0), minlength=len(numbers))
        columns = [column.tolist() for column in (numbers, lines, timed_lines, times)]
        for segment, *sums in zip(*columns, strict=True):
            left_out[segment] = left_out.get(segment, LeftOut()) + LeftOut(*sums)
        return left_out

    def _selected(
        self, keys: Sequence[Ints], values: Sequence[Floats], marked: Mapping[int, Sequence[int]]
    ) -> Bools:
        """The rows to keep at this level."""
        iteration, segment, stretch = keys[0], keys[1], keys[2] // STRETCH
        loss, ms, grad_norm = (values[self._columns.index(name)] for name in ("loss", "ms", "grad_norm"))
        is_marked = marked_rows(iteration, segment, marked)
        regular: Bools = (stretch % (1 << self._level) == 0) | (stretch >= stretch[-1] - 1)
        return (
            regular
            | _turns(segment)
            | _marked_and_previous(is_marked)
            | _turns(np.isfinite(loss))
            | _turns(np.isfinite(grad_norm))
            | _outlier_stretches(stretch, loss, ms, is_marked)
        )


def _grown(column: NDArray[Any], count: int, capacity: int) -> NDArray[Any]:
    grown = np.empty(capacity, dtype=column.dtype)
    grown[:count] = column[:count]
    return grown


# --- rows that are never left out, as masks ---


def _mask(count: int, *rows: Ints) -> Bools:
    mask = np.zeros(count, dtype=bool)
    mask[np.concatenate(rows)] = True
    return mask


def _marked_and_previous(is_marked: Bools) -> Bools:
    """Every n-th only, where very many rows are marked."""
    rows = np.flatnonzero(is_marked)
    rows = rows[:: 1 + len(rows) // _MAX_MARKED]
    return _mask(len(is_marked), rows, np.maximum(rows - 1, 0))


def _turns(column: Ints | Bools) -> Bools:
    """Both rows where the value is another one than before."""
    last_before = np.flatnonzero(np.diff(column))[:_MAX_TURNS]
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
            spread = max(SIGMA_PER_MAD * float(np.median(deviations[np.isfinite(deviations)])), 1e-12)
        # 1 or more: an outlier.
        ms_score = np.where(is_marked, 0.0, ms / (_MIN_TIME_RATIO * usual_ms))
        loss_score = deviations / (_MIN_LOSS_DEVIATIONS * spread)
    row_scores = np.nan_to_num(np.fmax(ms_score, loss_score), nan=0.0, posinf=0.0)
    scores = np.maximum.reduceat(row_scores, starts)
    farthest = np.argsort(-scores, kind="stable")[:MAX_OUTLIERS]
    return np.repeat(_mask(len(scores), farthest[scores[farthest] >= 1]), lengths)
