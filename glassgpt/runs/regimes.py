"""Regimes: stretches of a run whose iterations take about the same time, between change points.

    regimes = find_regimes(run_log)
    [(one.first_iteration, one.last_iteration, one.steady_ms) for one in regimes]

A change point is where the median of the step times jumps at once by MIN_CHANGE or more and stays there for
MIN_ROWS log lines. Spikes are no regimes, since medians ignore them; nor is a slow drift, which has no jump;
nor the noise of a machine whose step time wanders, which jumps everywhere as it does here.

The search is seeded binary segmentation (Kovács et al., Biometrika 2023): windows of all lengths, each with
its best split. The narrowest windows whose split passes the tests are taken first (narrowest over threshold,
Baranowski et al., JRSS B 2019), since a narrow window holds one change and no other. It is deterministic and
takes O(n log n); above MAX_BLOCKS lines it looks at medians of blocks, and then refines each place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from glassgpt.runs.curve_statistics import MEDIAN_TO_MEAN_STDERR, SIGMA_PER_MAD, median_by_iteration
from glassgpt.runs.run_log import Bools, Floats, Ints, RunLog

MIN_ROWS = 8  # log lines on each side of a change
MIN_CHANGE = 0.10  # of the shorter time: below that nobody minds
MAX_WRONG_SIDE = 0.15  # of either side's lines, beyond the middle between the two medians
MIN_STANDARD_ERRORS = 9.0  # of the difference of the medians; many windows are looked at
MIN_LONG_RUN_ERRORS = 7.0  # the same, of a noise that is autocorrelated as the run's own
MIN_SUDDEN_SHARE = 0.6  # of the change, between the quarters next to it; of a steady drift it would be 0.25
MAX_FALSE_ALARMS = 0.05  # of runs whose step time only wanders
MIN_NOISE = 0.002  # relative: times are rounded, and no machine is steadier
MIN_WORK_SHARE = 0.7  # of the change in time, on a log scale, that a change in tokens per iteration explains
WANDER_ROWS, MIN_WANDER_PARTS = 16, 6  # log lines of a part, and parts, for a step time that wanders
MIN_WANDER_ERRORS = 2.0  # the spread of the medians of parts, over that of independent noise
MAX_BLOCKS = 2048
MAX_REGIMES = 64  # of a machine that goes up and down all the time, only the larger changes
_LENGTH_RATIO = math.sqrt(2)  # of two successive window lengths
_CLIP_SIGMAS = 3.0  # a spike counts no more than this
_MIN_WIDTHS = 6  # in the values, of the widest jumps that are compared with each other
_FREEDOM_PER_VALUE = 0.25  # of jumps one line wide: they overlap, and their spread is that of a median
_MIN_SPLIT_SIGMAS = 3.0  # of a split: a cheap test before the others

Cause = Literal["batch", "process"]


@dataclass(frozen=True)
class Regime:
    """Iterations between two changes: the rows `begin` to before `end` of RunLog.steps."""

    begin: int
    end: int
    first_iteration: int
    last_iteration: int
    steady_ms: float  # the median
    iterations: int  # logged or not
    # Of the lines of this regime and the one before, the share on their side of the middle between the two.
    separation: float | None = None
    cause: Cause | None = None  # of the change before it, where the log tells: another batch, another process

    def as_dict(self) -> dict[str, object]:
        names = ("first_iteration", "last_iteration", "steady_ms", "iterations", "separation", "cause")
        return {name: getattr(self, name) for name in names}


def find_regimes(run_log: RunLog) -> tuple[Regime, ...]:
    """In order; one where the step time never changes, none where no line has the time of an update alone."""
    steps, rows = run_log.steps, np.flatnonzero(_timed_alone(run_log))
    if not len(rows):
        return ()
    batch_changes = _batch_changes(run_log)
    starts: set[int] = set()  # of regimes, as indices of `rows`
    bounds = np.unique([0, *np.searchsorted(rows, batch_changes).tolist(), len(rows)])
    for begin, end in pairwise(bounds.tolist()):
        starts |= {begin, *(begin + at for at in find_changes(steps.ms[rows[begin:end]]))}
    unlogged = run_log.unlogged_before()
    parts = [rows[begin:end] for begin, end in pairwise([*sorted(starts), len(rows)])]
    # A regime begins with its first line, or with the process that this line belongs to.
    first_rows = [0]
    for before, part in pairwise(parts):
        last, first = int(before[-1]), int(part[0])
        between = steps.segment[last + 1 : first + 1]
        is_new_process = steps.segment[first] != steps.segment[last]
        own = int(np.argmax(between == steps.segment[first]))
        first_rows.append(last + 1 + own if is_new_process else first)
    regimes: list[Regime] = []
    for index, (begin, end) in enumerate(pairwise([*first_rows, len(steps)])):
        before, part = parts[max(0, index - 1)], parts[index]
        wrong_side = _wrong_side(np.log(steps.ms[before]), np.log(steps.ms[part]))
        regimes.append(
            Regime(
                begin,
                end,
                first_iteration=int(steps.iteration[begin]),
                last_iteration=int(steps.iteration[end - 1]),
                steady_ms=median_by_iteration(steps.ms[part], run_log.iterations_timed()[part]) or 0.0,
                iterations=end - begin + int(unlogged[begin:end].sum()),
                separation=1 - wrong_side if index else None,
                cause=_cause(run_log, batch_changes, before, part) if index else None,
            )
        )
    return tuple(regimes)


def local_steady_ms(regimes: tuple[Regime, ...], rows: int) -> Floats:
    """For each row of RunLog.steps the steady time of its regime; NaN without regimes."""
    local = np.full(rows, np.nan)
    for regime in regimes:
        local[regime.begin : regime.end] = regime.steady_ms
    return local


def find_wander(run_log: RunLog, regimes: tuple[Regime, ...]) -> tuple[float, float] | None:
    """Between which times the step time goes up and down, without a change of regime: the 10th and the 90th
    percentile of medians of WANDER_ROWS lines. None where they are closer than MIN_CHANGE, or where
    independent noise would let them be as far apart."""
    ms = run_log.steps.ms[_timed_alone(run_log)]
    if len(regimes) != 1 or len(ms) < MIN_WANDER_PARTS * WANDER_ROWS:
        return None
    whole = len(ms) // WANDER_ROWS * WANDER_ROWS
    parts = np.log(ms[:whole]).reshape(-1, WANDER_ROWS)
    medians = np.median(parts, axis=1)
    noise = SIGMA_PER_MAD * float(np.median(np.abs(parts - medians[:, None])))
    error = MEDIAN_TO_MEAN_STDERR * noise / math.sqrt(WANDER_ROWS)
    low, high = (float(value) for value in np.percentile(medians, (10, 90)))
    is_wide = high - low >= math.log1p(MIN_CHANGE) and float(np.std(medians)) >= MIN_WANDER_ERRORS * error
    return (math.exp(low), math.exp(high)) if is_wide else None


def _timed_alone(run_log: RunLog) -> Bools:
    """True where a time is that of an update alone, whatever its batch size."""
    ms = run_log.steps.ms
    alone = run_log.is_steady()
    if run_log.has_varying_batch_tokens:  # is_steady leaves the processes with other batch sizes out
        alone = np.isfinite(ms) & ~run_log.is_first_of_process() & ~run_log.includes_eval()
    return alone & (np.nan_to_num(ms, nan=0.0, posinf=0.0) > 0)


# --- what the log says about a change ---


def _batch_changes(run_log: RunLog) -> list[int]:
    """Rows from which on an iteration has another batch size, as the log says."""
    steps, segments = run_log.steps, run_log.segments
    tokens = np.array([segment.tokens_per_iteration or 0 for segment in segments])[steps.segment]
    rows: list[int] = (np.flatnonzero(np.diff(tokens)) + 1).tolist()
    size = None  # sequences per batch
    for index, segment in enumerate(segments):
        inside = np.flatnonzero(steps.segment == index) if segment.batch_size_changes else steps.segment[:0]
        for at, new_size in segment.batch_size_changes:
            later = inside[steps.iteration[inside] >= at]
            if len(later) and size not in (None, new_size):
                rows.append(int(later[0]))
            size = new_size
    return sorted(rows)


def _cause(run_log: RunLog, batch_changes: list[int], before: Ints, after: Ints) -> Cause | None:
    """By what the log states, and by the tokens per iteration that its tokens/s and its times imply."""
    steps = run_log.steps
    if any(before[-1] < row <= after[0] for row in batch_changes):
        return "batch"
    old_ms, new_ms = (float(np.median(steps.ms[part])) for part in (before, after))
    tokens = [steps.tokens_per_s[part] * steps.ms[part] for part in (before, after)]
    counted = [values[np.isfinite(values) & (values > 0)] for values in tokens]
    if all(len(values) >= MIN_ROWS for values in counted) and new_ms != old_ms:
        old_tokens, new_tokens = (float(np.median(values)) for values in counted)
        if math.log(new_tokens / old_tokens) / math.log(new_ms / old_ms) >= MIN_WORK_SHARE:
            return "batch"
    return "process" if steps.segment[before[-1]] != steps.segment[after[0]] else None


# --- the search ---


def find_changes(ms: Floats) -> list[int]:
    """Where another regime begins, as indices of `ms`, in order. All times are positive."""
    if len(ms) < 2 * MIN_ROWS:
        return []
    logs = np.log(ms)
    size = -(-len(logs) // MAX_BLOCKS)
    values = logs
    if size > 1:
        whole = len(logs) // size * size
        values = np.median(logs[:whole].reshape(-1, size), axis=1)  # the rest is less than a block
    changes = _without_weak(logs, sorted(at * size for at in _search(values)))
    return _without_weak(logs, _refined(logs, changes, MIN_ROWS * size))


def _search(values: Floats) -> list[int]:
    """Narrowest over threshold: of the windows with a change, the narrowest first, then those that do not
    contain its change."""
    found: list[tuple[int, float, int, int]] = []  # length, -standard errors, begin, change
    jumps = _jumps_by_width(values)
    length = 2 * MIN_ROWS
    while True:
        length = min(length, len(values))
        for begin, split in _candidate_splits(values, length):
            window, change = values[begin : begin + length], begin + split
            errors = _standard_errors(window, split)
            if errors >= MIN_STANDARD_ERRORS and _is_beyond_wander(window, split, change, jumps):
                found.append((length, -errors, begin, change))
        if length == len(values):
            break
        length = math.ceil(length * _LENGTH_RATIO)
    changes: list[int] = []
    for length, _, begin, change in sorted(found):
        if not any(begin < other < begin + length for other in changes):
            changes.append(change)
    return changes


def _candidate_splits(values: Floats, length: int) -> list[tuple[int, int]]:
    """Windows of this length, every quarter of it: begin and best split, where there may be a change."""
    begins = np.unique(
        np.append(np.arange(0, len(values) - length, max(1, length // 4)), len(values) - length)
    )
    windows = sliding_window_view(values, length)[begins]
    middle = np.median(windows, axis=1, keepdims=True)
    spread = np.median(np.abs(windows - middle), axis=1, keepdims=True) * SIGMA_PER_MAD
    limit = _CLIP_SIGMAS * np.maximum(spread, MIN_NOISE)
    clipped = np.clip(windows - middle, -limit, limit)
    clipped -= clipped.mean(axis=1, keepdims=True)
    split = np.arange(MIN_ROWS, length - MIN_ROWS + 1)
    gains = np.abs(np.cumsum(clipped, axis=1)[:, split - 1]) / np.sqrt(split * (length - split) / length)
    best = np.argmax(gains, axis=1)
    is_candidate = gains[np.arange(len(begins)), best] > _MIN_SPLIT_SIGMAS * np.maximum(
        clipped.std(axis=1), 1e-12
    )
    return [(int(begins[at]), int(split[best[at]])) for at in np.flatnonzero(is_candidate)]


def _standard_errors(window: Floats, split: int) -> float:
    """How sure a change is: the difference of the medians, in standard errors; 0 where it is none."""
    before, after = window[:split], window[split:]
    old, new = float(np.median(before)), float(np.median(after))
    change = new - old
    if abs(change) < math.log1p(MIN_CHANGE) or _wrong_side(before, after) > MAX_WRONG_SIDE:
        return 0.0
    near = (
        float(np.median(after[: max(MIN_ROWS // 2, len(after) // 4)]))
        - float(np.median(before[-max(MIN_ROWS // 2, len(before) // 4) :]))
    )  # fmt: skip
    if near / change < MIN_SUDDEN_SHARE:
        return 0.0
    residuals = np.abs(np.concatenate((before - old, after - new)))
    noise = max(SIGMA_PER_MAD * float(np.median(residuals)), MIN_NOISE)
    return abs(change) / (MEDIAN_TO_MEAN_STDERR * noise * math.sqrt(1 / len(before) + 1 / len(after)))


def _jumps_by_width(values: Floats) -> dict[int, Floats]:
    """By width, and then by place: the median of so many values from there on, minus that of those before.
    NaN near both ends."""
    jumps: dict[int, Floats] = {}
    width = 1
    while width <= max(1, len(values) // _MIN_WIDTHS):
        medians = np.median(sliding_window_view(values, width), axis=1)
        jumps[width] = np.full(len(values), np.nan)
        jumps[width][width : len(values) - width + 1] = medians[width:] - medians[:-width]
        width *= 2
    return jumps


def _is_beyond_wander(window: Floats, split: int, change: int, jumps: dict[int, Floats]) -> bool:
    """Whether the step time changes here as it does nowhere else in the run.

    The noise of a machine that wanders is autocorrelated, and then medians of a few lines differ by far more
    than independent noise would let them. So this change is compared with the jumps over the same number of
    lines elsewhere in the run, which have that autocorrelation, whatever it is. Either it stands out among
    the jumps of one width (the limit is Student's, since there may be few, and for all places that were
    looked at), or it is many standard errors, by the long-run variance that jumps of all widths show.
    """
    before, after = window[:split], window[split:]
    size = abs(float(np.median(after)) - float(np.median(before)))
    side = min(len(before), len(after))
    errors: dict[int, float] = {}  # by width
    for width, jump in jumps.items():
        if width > side:
            break
        others = np.concatenate((jump[: max(0, change - width + 1)], jump[change + width :]))
        others = others[np.isfinite(others)]
        if not len(others):
            break
        spread = max(SIGMA_PER_MAD * float(np.median(np.abs(others))), MIN_NOISE)
        here = jump[max(0, change - width // 4) : change + width // 4 + 1]
        z = NormalDist().inv_cdf(1 - MAX_FALSE_ALARMS * width / (2 * len(jump) * len(jumps)))
        freedom = max(1.0, _FREEDOM_PER_VALUE * len(others) / width)
        if np.nanmax(np.abs(here), initial=0.0) > spread * _student_quantile(z, freedom):
            return True
        errors[width] = spread * math.sqrt(width / 2 * (1 / len(before) + 1 / len(after)))
    if not errors:
        return False
    widest, largest = max(errors), max(errors.values())
    # Independent noise has the same error at all widths. Where it grows with them, it grows beyond them.
    growth = math.log(largest / errors[1]) / math.log(widest) if widest > 1 else 0.0
    least: float = MIN_LONG_RUN_ERRORS * largest * (side / widest) ** growth
    return size >= least


def _student_quantile(z: float, freedom: float) -> float:
    """The quantile of Student's t that is as rare as `z` is for a normal distribution (Wallace 1959)."""
    scaled = z * (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(min(scaled * scaled / freedom, 100.0)))


def _wrong_side(before: Floats, after: Floats) -> float:
    """The share of lines beyond the middle between the two medians, of the side that has more of them."""
    old, new = float(np.median(before)), float(np.median(after))
    middle = (old + new) / 2
    rises = new > old
    return max(float(np.mean((before > middle) == rises)), float(np.mean((after < middle) == rises)))


def _refined(values: Floats, changes: list[int], reach: int) -> list[int]:
    """Each change moved, by `reach` lines at most, to where the fewest lines are on the wrong side of the
    middle between the medians before and after it. Further away the step time may have wandered."""
    bounds = [0, *changes, len(values)]
    refined = []
    for before, change, after in zip(bounds, bounds[1:], bounds[2:], strict=False):
        old = float(np.median(values[max(before, change - 4 * reach) : change]))
        new = float(np.median(values[change : min(after, change + 4 * reach)]))
        begin = max((before + change) // 2, change - reach)
        end = min((change + after + 1) // 2, change + reach)
        is_after = (values[begin:end] > (old + new) / 2) == (new > old)
        # At each place: lines like the later ones before it, minus lines like the later ones after it.
        wrong = np.cumsum(np.where(is_after, 1, -1))
        refined.append(begin + 1 + int(np.argmin(wrong)))
    return refined


def _without_weak(values: Floats, changes: list[int]) -> list[int]:
    """Without changes that neighbouring regimes, in full, do not bear out; at most MAX_REGIMES - 1."""
    changes = list(changes)
    while changes:
        parts = [values[begin:end] for begin, end in pairwise([0, *changes, len(values)])]
        medians = [float(np.median(part)) for part in parts]
        sizes = [
            abs(new - old) if _wrong_side(before, after) <= 2 * MAX_WRONG_SIDE else 0.0
            for (old, new), (before, after) in zip(pairwise(medians), pairwise(parts), strict=True)
        ]
        weakest = int(np.argmin(sizes))
        if sizes[weakest] >= math.log1p(MIN_CHANGE) and len(changes) < MAX_REGIMES:
            break
        del changes[weakest]
    return changes
