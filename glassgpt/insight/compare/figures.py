"""Numbers for the sentences of a comparison. (`show/format.py` is a room above.)"""

from __future__ import annotations

import math


def count(value: float, digits: int = 3) -> str:
    """812, 19.4k, 10.7M, 1.56B"""
    if not math.isfinite(value):
        return "?"
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= limit * 0.9995:
            return f"{_digits(value / limit, digits)}{unit}"
    return f"{value:.0f}"


def _digits(value: float, digits: int) -> str:
    """`digits` of them with their zeros, but never an exponent: 48.0, 125, 0.80"""
    before = max(1, math.floor(math.log10(max(value, 1e-9))) + 1)
    return f"{value:.{max(0, digits - before)}f}"


def parameters(value: float, exact: bool = True) -> str:
    """0.80M, 10.65M, 33M, 123.6M; 40.5M where it is only inferred"""
    if value < 1e5:
        return count(value)
    large = value >= 0.9995e9
    number = value / 1e9 if large else value / 1e6
    digits = f"{number:.2f}" if exact and number < 100 else f"{number:.1f}"
    whole_number = digits.rstrip("0").rstrip(".")
    return (whole_number if "." not in whole_number else digits) + ("B" if large else "M")


def whole(value: float) -> str:
    return f"{value:,.0f}"


def loss(value: float) -> str:
    return f"{value:.4f}"


def gap(value: float) -> str:
    """A difference of losses: 0.428, 0.0134"""
    return f"{abs(value):.3f}" if abs(value) >= 0.1 else f"{abs(value):.4f}"


def times(value: float) -> str:
    """A ratio: 2.86x, 13.3x, 0.42x"""
    return f"{value:.0f}x" if value >= 99.5 else f"{value:.3g}x"


def percent(value: float) -> str:
    """12.9%, 60%, 0.03%"""
    return f"{value:.2f}%" if value < 0.995 else f"{value:.1f}%"


def tflops(value: float) -> str:
    """In TFLOP/s: 48.0 TFLOP/s, 96.0 GFLOP/s"""
    if value >= 0.9995:
        return f"{_digits(value, 3)} TFLOP/s"
    return f"{_digits(value * 1e3, 3)} GFLOP/s"


def flops(value: float) -> str:
    """An amount of arithmetic: 300 MFLOP, 5.81 PFLOP, 1.2e21 FLOP"""
    if value >= 0.9995e21:
        return f"{value:.2e} FLOP"
    for limit, unit in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= limit * 0.9995:
            return f"{_digits(value / limit, 3)} {unit}FLOP"
    return f"{value:.0f} FLOP"


def milliseconds(value: float) -> str:
    return f"{value:.1f} ms" if value < 999.95 else f"{value:.0f} ms"


def duration(seconds: float) -> str:
    """45 s, 3m 05s, 2h 07m, 3d 04h"""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60}m {total % 60:02d}s"
    if total < 86_400:
        return f"{total // 3600}h {total % 3600 // 60:02d}m"
    return f"{total // 86_400}d {total % 86_400 // 3600:02d}h"
