"""Small charts made of characters."""

from __future__ import annotations

import math
from collections.abc import Sequence

_STEPS = "▁▂▃▄▅▆▇█"
_PARTS = " ▏▎▍▌▋▊▉"


def sparkline(values: Sequence[float]) -> str:
    """One character per value, the lowest to the highest; a value that is not finite is a blank."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2:
        return ""
    low, high = min(finite), max(finite)
    span = (high - low) or 1.0
    return "".join(
        _STEPS[round((value - low) / span * (len(_STEPS) - 1))] if math.isfinite(value) else " "
        for value in values
    )


def bar(share: float, width: int) -> str:
    """A bar of `share` (0 to 1) of the width, exact to an eighth of a character."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return ("█" * (eighths // 8) + _PARTS[eighths % 8]).rstrip()
