"""The curves of a run as rows: [update, value], or [update, mean, low, high] of several lines together.

    rows = rows_of(run_log)                      # {"loss": [[10, 4.1], [20, 3.9], …], "val": …}
    rows = rows_of(run_log, first=500, last=600) # the same at another zoom

A long curve is decimated: lines are joined in bins of equal width, each with its mean, its lowest and its
highest value, so that no spike is lost. A bin's width is a power of two and its edges are multiples of that,
so the bins of a run that grows stay where they are. A value of null is a gap: a loss that is NaN or
infinite, or the beginning of another process.

`csv_lines` has every logged line, for a spreadsheet or a script; of all series, or of those of one chart.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from glassgpt.runs.run_log import Bools, Floats, Ints, LoggedEvaluation, RunLog
from glassgpt.runs.trajectory import trajectory_of

Row = list[float | None]
Rows = list[Row]

MAX_ROWS = 1500  # of a curve
MAX_DRAWN_VALUE = 1e100  # above it a value is a gap: no loss is as large
_DIGITS = 8  # four more than a loss is shown with: rounding twice must not show


@dataclass(frozen=True)
class Curve:
    """One value over the updates. `low` and `high`: two standard errors around it, where these are known."""

    x: Ints  # ascending
    y: Floats
    segment: Ints  # the process that wrote it
    low: Floats | None = None
    high: Floats | None = None

    def __len__(self) -> int:
        return len(self.x)

    def between(self, first: float | None, last: float | None) -> Curve:
        """With one point more on each side, so that a line reaches the edges of the chart."""
        begin = 0 if first is None else max(0, int(np.searchsorted(self.x, first)) - 1)
        end = len(self) if last is None else int(np.searchsorted(self.x, last, side="right")) + 1
        return self.rows(slice(begin, end))

    def after(self, update: int) -> Curve:
        return self.rows(slice(int(np.searchsorted(self.x, update, side="right")), None))

    def rows(self, part: slice) -> Curve:
        low, high = (None if edge is None else edge[part] for edge in (self.low, self.high))
        return Curve(self.x[part], self.y[part], self.segment[part], low, high)


def rows_of(
    run_log: RunLog, first: float | None = None, last: float | None = None, points: int = MAX_ROWS
) -> dict[str, Rows]:
    """By series, at most `points` rows each; those between two updates, if these are given."""
    return {name: decimate(curve.between(first, last), points) for name, curve in curves_of(run_log).items()}


def curves_of(run_log: RunLog, since: int | None = None) -> dict[str, Curve]:
    """Every series that the run has, without the iterations that a resume repeated. `since`: after this one,
    and maybe some before it."""
    steps = run_log.steps
    rows = _valid_rows(run_log, since)
    x, segment = steps.iteration[rows], steps.segment[rows]

    def column(values: Floats | None, mask: Bools | None = None) -> Curve:
        if values is None or not len(x):
            return Curve(x[:0], np.empty(0), segment[:0])
        values = values[rows]
        keep = ~np.isnan(values) if mask is None else mask
        first, count = int(np.argmax(keep)), int(np.count_nonzero(keep))
        if keep[first : first + count].all():  # mostly: the first line lacks it; a slice copies nothing
            part = slice(first, first + count)
            return Curve(x[part], values[part], segment[part])
        return Curve(x[keep], values[keep], segment[keep])

    is_steady, includes_eval = run_log.is_steady()[rows], run_log.includes_eval()[rows]
    timed = np.isfinite(steps.ms[rows])
    slow_start = timed & ~is_steady & ~includes_eval
    if slow_start.any():  # a trainer that does not time its start-up has a first iteration like any other
        usual_ms = float(np.median(steps.ms[run_log.is_steady()])) if run_log.is_steady().any() else 0.0
        slow_start &= np.nan_to_num(steps.ms[rows]) > 2 * usual_ms
    is_bits = run_log.val_metric == "bits_per_byte"
    curves = {
        "loss": column(steps.loss, steps.has_loss),
        "train_eval": _eval_curve(run_log, [one.train_loss for one in run_log.evals]),
        "bits_per_byte" if is_bits else "val": _eval_curve(
            run_log, [one.val_loss for one in run_log.evals], [one.stderr for one in run_log.evals]
        ),
        "lr": column(None if run_log.trainer.lr_is_share_of_peak else steps.lr),
        "grad_norm": column(steps.grad_norm),
        "tokens_per_s": column(steps.tokens_per_s),
        "mfu": column(steps.mfu),
        "step_ms": column(steps.ms, is_steady),
        "step_ms_eval": column(steps.ms, timed & includes_eval),
        "step_ms_startup": column(steps.ms, slow_start),
        "memory": column(steps.memory_bytes),
    }
    return {name: curve for name, curve in curves.items() if len(curve)}


def _valid_rows(run_log: RunLog, since: int | None) -> Ints | slice:
    """Of RunLog.steps, in the order of their updates. A slice where possible: it copies nothing."""
    at = run_log.steps.iteration
    if len(at) < 2 or not (at[1:] < at[:-1]).any():  # nothing is repeated
        begin = 0 if since is None else int(np.searchsorted(at, since))
        return slice(begin, None)
    rows = trajectory_of(run_log).rows
    rows = rows[np.argsort(at[rows], kind="stable")]
    return rows if since is None else rows[int(np.searchsorted(at[rows], since)) :]


def _eval_curve(
    run_log: RunLog, values: Sequence[float | None], stderrs: Sequence[float | None] | None = None
) -> Curve:
    """Of the evaluations that have an iteration; of one that a resume repeated, the later."""
    last_of: dict[int, int] = {}
    for index, (one, value) in enumerate(zip(run_log.evals, values, strict=True)):
        if one.iteration is not None and value is not None and not _is_superseded(run_log, one):
            last_of[one.iteration] = index
    order = [last_of[at] for at in sorted(last_of)]
    y = np.array([values[index] for index in order], dtype=float)
    error = np.full(len(y), np.nan)
    if stderrs is not None:
        error = 2 * np.array([stderrs[index] for index in order], dtype=float)
    has_error = bool(np.isfinite(error).any())
    error = np.where(np.isfinite(error), error, 0.0)
    return Curve(
        np.array(sorted(last_of), dtype=np.int64),
        y,
        np.array([run_log.evals[index].segment for index in order], dtype=np.int64),
        y - error if has_error else None,
        y + error if has_error else None,
    )


def _is_superseded(run_log: RunLog, evaluation: LoggedEvaluation) -> bool:
    later = [one.first_iteration for one in run_log.segments[evaluation.segment + 1 :]]
    return any(start is not None and start < (evaluation.iteration or 0) for start in later)


# --- decimation ---


def decimate(curve: Curve, points: int = MAX_ROWS) -> Rows:
    """At most `points` rows. Of more than a quarter as many processes, the gaps between them are left out."""
    if not len(curve):
        return []
    drawable = np.abs(curve.y) < MAX_DRAWN_VALUE  # False for NaN
    gaps = np.flatnonzero(np.diff(curve.segment)) + 1  # another process begins: a gap before it
    if len(gaps) > points // 4:
        gaps = gaps[:0]
    limit = max(2, points - len(gaps))
    if len(curve) <= limit:
        return _rows_of_bins(curve, np.arange(len(curve)), drawable, gaps)
    width = 1 << max(0, math.ceil(math.log2(max(1, int(curve.x[-1]) - int(curve.x[0])) / limit)))
    lost = np.flatnonzero(~drawable)
    while True:
        begins = _bin_begins(curve.x, width, gaps)
        # A bin with a value that cannot be drawn has a gap as well.
        if len(begins) + len(np.unique(np.searchsorted(begins, lost, side="right"))) <= limit:
            return _rows_of_bins(curve, begins, drawable, gaps)
        width *= 2


def _bin_begins(x: Ints, width: int, gaps: Ints) -> Ints:
    """The first row of each bin that has one; a bin ends where another process begins."""
    edges = np.arange(int(x[0]) // width + 1, int(x[-1]) // width + 1) * width
    return np.unique(np.concatenate(([0], np.searchsorted(x, edges), gaps)))


def _rows_of_bins(curve: Curve, begins: Ints, drawable: Bools, gaps: Ints) -> Rows:
    """One row for each bin with a value, and a gap for each with one that cannot be drawn."""
    y, low, high = curve.y, curve.low, curve.high
    low, high = y if low is None else low, y if high is None else high
    gap_x = curve.x[gaps]
    count = np.diff(np.append(begins, len(curve))).astype(float)
    x = np.add.reduceat(curve.x, begins) / count
    if not drawable.all():
        lost = np.flatnonzero(~drawable)
        first_lost = lost[np.unique(np.searchsorted(begins, lost, side="right"), return_index=True)[1]]
        gap_x = np.concatenate((gap_x, curve.x[first_lost]))
        count = np.add.reduceat(drawable.astype(float), begins)
        x = np.add.reduceat(np.where(drawable, curve.x, 0), begins) / np.maximum(count, 1.0)
        y, low, high = (
            np.where(drawable, values, filler)
            for values, filler in ((y, 0.0), (low, math.inf), (high, -math.inf))
        )
    mean = np.add.reduceat(y, begins) / np.maximum(count, 1.0)
    lowest, highest = np.minimum.reduceat(low, begins), np.maximum.reduceat(high, begins)
    rows: list[tuple[float, bool, Row]] = [(at, False, [at, None]) for at in gap_x.tolist()]
    columns = (x, mean, lowest, highest, count > 0)
    for at, middle, least, most, has_value in zip(*(column.tolist() for column in columns), strict=True):
        if has_value:
            row: Row = [int(at) if at == int(at) else round(at, 1), rounded(middle)]
            rows.append((at, True, [*row, rounded(least), rounded(most)] if least < most else row))
    rows.sort(key=lambda row: row[:2])
    return [row for _, _, row in rows]


def rounded(value: float) -> float:
    """For JSON: short, and exact enough to draw."""
    return float(f"{value:.{_DIGITS}g}")


# --- every logged line, as a table ---

_STEP_COLUMNS = {  # of RunLog.steps, and the series that show it; nothing shows the count of tokens
    "loss": ("loss",),
    "lr": ("lr",),
    "grad_norm": ("grad_norm",),
    "ms": ("step_ms", "step_ms_eval", "step_ms_startup"),
    "tokens_per_s": ("tokens_per_s",),
    "mfu": ("mfu",),
    "memory_bytes": ("memory",),
    "tokens": (),
}
_STEP_NAMES = {"ms": "step_ms", "mfu": "mfu_percent"}  # where the table has another name
_EVAL_COLUMNS = {"train_eval": ("train_loss",), "val": ("val_loss", "stderr")}
_CHUNK_ROWS = 2000


def csv_lines(run_log: RunLog, series: Collection[str] = ()) -> Iterator[str]:
    """In pieces, so that a long run is never one text. Evaluations stand beside the iteration that they
    belong to; lines that a resume repeated are there too, under the number of their process. `series`: only
    their columns, and only lines that have one of them."""
    steps = run_log.steps
    is_bits = run_log.val_metric == "bits_per_byte"
    shown = {"val" if name == "bits_per_byte" else name for name in series}
    names = [name for name, shown_by in _STEP_COLUMNS.items() if not series or shown & set(shown_by)]
    fields = [
        one for name, columns in _EVAL_COLUMNS.items() if not series or name in shown for one in columns
    ]
    titles = {"train_loss": "train_eval_loss", "stderr": "val_stderr"}
    titles["val_loss"] = "val_bits_per_byte" if is_bits else "val_loss"
    header = [_STEP_NAMES.get(name, name) for name in names] + [titles[name] for name in fields]
    yield ",".join(["iteration", "process", *header]) + "\n"
    evals: dict[tuple[int, int], LoggedEvaluation] = {}
    for one in run_log.evals if fields else ():
        if one.iteration is not None:
            evals[one.segment, one.iteration] = one
    at_steps = set(zip(steps.segment.tolist(), steps.iteration.tolist(), strict=True)) & evals.keys()

    def line(key: tuple[int, int], cells: Sequence[str], evaluation: LoggedEvaluation | None) -> str:
        measured = [None if evaluation is None else getattr(evaluation, name) for name in fields]
        cells = [*cells, *("" if value is None else repr(float(value)) for value in measured)]
        return f"{key[1]},{key[0]},{','.join(cells)}\n" if not series or any(cells) else ""

    # Evaluations at iterations that were not logged, in the order of the run.
    left, empty = sorted(evals.keys() - at_steps, reverse=True), [""] * len(names)
    for begin in range(0, len(steps), _CHUNK_ROWS):
        part = slice(begin, begin + _CHUNK_ROWS)
        columns = [_cells(run_log, name, part) for name in names]
        rows = []
        keys = zip(steps.segment[part].tolist(), steps.iteration[part].tolist(), strict=True)
        for index, key in enumerate(keys):
            while left and left[-1] < key:
                rows.append(line(left[-1], empty, evals[left.pop()]))
            rows.append(line(key, [column[index] for column in columns], evals.get(key)))
        yield "".join(rows)
    yield "".join(line(key, empty, evals[key]) for key in reversed(left))


def _cells(run_log: RunLog, name: str, part: slice) -> list[str]:
    """Of one column. What is unknown is empty; a loss that was logged as NaN is not unknown."""
    steps = run_log.steps
    values: Floats | None = getattr(steps, name)
    if values is None:
        return [""] * len(steps.iteration[part])
    known = steps.has_loss[part] if name == "loss" else ~np.isnan(values[part])
    pairs = zip(values[part].tolist(), known.tolist(), strict=True)
    return [repr(value) if is_known else "" for value, is_known in pairs]
