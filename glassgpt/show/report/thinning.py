"""Long series made short enough to draw, without hiding a spike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glassgpt.runs.run_log import Floats, Ints

MAX_POINTS = 2000
SMOOTHED_POINTS = 240
_MAX_HALF_WINDOW = 50


def thinned_indices(values: Floats, limit: int = MAX_POINTS) -> Ints:
    """Indices of at most `limit` values: the lowest and highest of each stretch, the first and the last."""
    count = len(values)
    if count <= limit:
        return np.arange(count)
    kept = {0, count - 1}
    edges = np.linspace(0, count, (limit - 2) // 2 + 1).astype(int)
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        stretch = values[start:stop]
        drawable = np.flatnonzero(np.isfinite(stretch))
        if len(drawable) == 0:
            kept.add(start)  # leaves a gap in the line, as there is one in the log
            continue
        kept.add(start + int(drawable[np.argmin(stretch[drawable])]))
        kept.add(start + int(drawable[np.argmax(stretch[drawable])]))
    return np.array(sorted(kept), dtype=np.int64)


@dataclass(frozen=True)
class SmoothedSeries:
    """The course of a noisy series, and how far a single value usually lies from it."""

    index: Ints  # into the series
    mean: Floats
    std: Floats  # one standard deviation


def smooth_series(values: Floats, points: int = SMOOTHED_POINTS) -> SmoothedSeries | None:
    """None where there are too few values to tell noise from course, or some that are not finite.

    The spread comes from the differences of neighbours, so that a falling loss does not count as a noisy one.
    """
    count = len(values)
    if count < 20 or not np.isfinite(values).all():
        return None
    widest = min(_MAX_HALF_WINDOW, max(3, count // 40))
    margin = widest // 4
    index = np.unique(np.linspace(margin, count - 1 - margin, min(points, count)).astype(np.int64))
    # The window shrinks towards the ends and stays symmetric: a one-sided one would bend the course there.
    half = np.minimum(np.minimum(index, count - 1 - index), widest)
    middle = _means(values, index - half, index + half + 1)
    squares = np.diff(values) ** 2 / 2
    reach = np.maximum(half, 5)
    start, stop = np.maximum(index - reach, 0), np.minimum(index + reach, count - 1)
    return SmoothedSeries(index, middle, np.sqrt(np.maximum(_means(squares, start, stop), 0)))


def _means(values: Floats, start: Ints, stop: Ints) -> Floats:
    totals = np.concatenate(([0.0], np.cumsum(values)))
    result: Floats = (totals[stop] - totals[start]) / (stop - start)
    return result
