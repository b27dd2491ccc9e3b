"""Small charts made of characters: a sparkline, a bar, curves in Braille dots."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

_SPARK_LEVELS = "▁▂▃▄▅▆▇█"
_BAR_EIGHTHS = " ▏▎▍▌▋▊▉"


def sparkline(values: Sequence[float]) -> str:
    """One character per value, from the lowest to the highest; a value that cannot be drawn is a blank."""
    finite = [value for value in values if _is_drawable(value)]
    if len(finite) < 2:
        return ""
    low, high = min(finite), max(finite)
    span = (high - low) or 1.0
    return "".join(
        _SPARK_LEVELS[round((value - low) / span * (len(_SPARK_LEVELS) - 1))] if _is_drawable(value) else " "
        for value in values
    )


def shorten(values: Sequence[float], count: int) -> Sequence[float]:
    """At most `count` values: of more, the means of neighbours, without those that cannot be drawn."""
    size = math.ceil(len(values) / count)
    if size <= 1:
        return values
    groups = [values[begin : begin + size] for begin in range(0, len(values), size)]
    drawable = [[value for value in group if _is_drawable(value)] for group in groups]
    return [math.fsum(group) / len(group) if group else math.nan for group in drawable]


def bar(share: float, width: int) -> str:
    """A bar of `share` (0 to 1) of the width, exact to an eighth of a character."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return ("█" * (eighths // 8) + _BAR_EIGHTHS[eighths % 8]).rstrip()


def _is_drawable(*values: float) -> bool:
    """Finite, and so small that differences are finite too."""
    return all(abs(value) < 1e100 for value in values)


# Bits of the eight dots of a Braille character, two wide and four high.
_BRAILLE_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def plot(
    curves: Sequence[tuple[Sequence[float], Sequence[float]]],
    width: int,
    height: int,
    bottom: float = math.inf,
) -> list[list[tuple[str, int]]]:
    """Curves of (x, y) on one pair of axes: rows of (character, index of the curve), the last curve on top.

    Values that are not finite are left out. Empty if fewer than two points are left. The axis reaches down to
    `bottom` at least.
    """
    clean = [[(a, b) for a, b in zip(x, y, strict=True) if _is_drawable(a, b)] for x, y in curves]
    points = [point for curve in clean for point in curve]
    if len(points) < 2:
        return []
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(bottom, *(y for _, y in points)), max(y for _, y in points)
    masks = [[0] * width for _ in range(height)]
    owners = [[0] * width for _ in range(height)]
    for index, curve in enumerate(clean):
        # Connect points that are further apart than a dot.
        dot = (right - left) / (2 * width) or 1.0
        dots = curve[:1]
        for (x0, y0), (x1, y1) in itertools.pairwise(curve):
            count = min(1000, max(1, round((x1 - x0) / dot)))
            dots += [(x0 + (x1 - x0) * i / count, y0 + (y1 - y0) * i / count) for i in range(1, count + 1)]
        for x, y in dots:
            column = round((x - left) / ((right - left) or 1.0) * (2 * width - 1))
            row = round((high - y) / ((high - low) or 1.0) * (4 * height - 1))
            masks[row // 4][column // 2] |= _BRAILLE_DOTS[row % 4][column % 2]
            owners[row // 4][column // 2] = index
    return [
        [(chr(0x2800 + mask), owner) for mask, owner in zip(mask_row, owner_row, strict=True)]
        for mask_row, owner_row in zip(masks, owners, strict=True)
    ]
