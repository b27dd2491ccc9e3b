"""Numbers formatted for people: durations, counts, bytes, FLOPs, losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_COUNT_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_METRIC_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))


def format_if_known(format_value: Callable[[T], str], value: T | None) -> str:
    return "" if value is None else format_value(value)


def format_duration(seconds: float) -> str:
    """42 ms, 1.2 s, 45 s, 3m 05s, 2h 07m, 3d 04h"""
    if not abs(seconds) < 1e15:
        return "?"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
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


def format_rough_duration(seconds: float) -> str:
    """5 s, 45 s, 4 min, 49 min, 1h 05m, 1d 03h: of a time ahead, which nobody knows to the second"""
    if not 0 <= seconds < 3570:
        return format_duration(seconds)
    if seconds < 55:
        return f"{max(1, round(seconds / 5) * 5 if seconds >= 10 else round(seconds))} s"
    return f"{max(1, round(seconds / 60))} min"


def format_ms(value: float) -> str:
    """0.42 ms, 38.1 ms, 5985 ms, 11.5 s, 3m 05s"""
    if value >= 10_000:
        return f"{value / 1000:.1f} s" if value < 59_950 else format_duration(value / 1000)
    return f"{value:.2f} ms" if value < 9.995 else f"{value:.1f} ms" if value < 999.95 else f"{value:.0f} ms"


def format_count(value: float) -> str:
    """1.38, 812, 19.4k, 10.7M, 1.56B"""
    if not math.isfinite(value):
        return "?"
    for limit, unit in _COUNT_UNITS:
        if value >= limit * 0.9995:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.0f}"


def format_integer(value: float) -> str:
    """12,345"""
    return f"{value:,.0f}"


def format_parameters(value: float, exact: bool = True) -> str:
    """0.80M, 10.65M, 33M, 123.6M; with exact=False 40.5M, for an inferred number"""
    if value < 1e5:
        return format_count(value)
    scale, unit = (1e9, "B") if value >= 0.9995e9 else (1e6, "M")
    number = value / scale
    digits = f"{number:.2f}" if exact and number < 100 else f"{number:.1f}"
    rounded = digits.rstrip("0").rstrip(".")
    return (rounded if "." not in rounded else digits) + unit


def pluralize(number: int, noun: str) -> str:
    """1 layer, 2 layers"""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_bytes(value: float) -> str:
    """Bytes in binary units: 9.7 MiB"""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def format_flops(flops: float) -> str:
    """A number of operations: 186 kFLOP, 300 MFLOP, 5.81 PFLOP, 1.20e+21 FLOP"""
    if flops >= 0.9995e21:
        return f"{flops:.2e} FLOP"
    for limit, unit in _METRIC_PREFIXES:
        if flops >= limit * 0.9995:
            return f"{_three_digits(flops / limit)} {unit}FLOP"
    return f"{_three_digits(flops / 1e3)} kFLOP" if flops >= 999.5 else f"{flops:.0f} FLOP"


def format_flops_per_token(flops: float) -> str:
    """In one unit for all models, with four digits: 0.1812 MFLOP, 854.8 MFLOP, 10,304 MFLOP"""
    millions = flops / 1e6
    return f"{millions:.4g} MFLOP" if millions < 9999.5 else f"{millions:,.0f} MFLOP"


def format_flops_per_s(flops_per_s: float) -> str:
    """48.0 TFLOP/s, 312 TFLOP/s, 96.0 GFLOP/s"""
    for limit, unit in _METRIC_PREFIXES[1:-1]:
        if flops_per_s >= limit * 0.9995:
            return f"{_three_digits(flops_per_s / limit)} {unit}FLOP/s"
    return f"{_three_digits(flops_per_s / 1e6)} MFLOP/s"


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def format_percent(share: float) -> str:
    """A fraction of 1: 0.4%, 9.9%, 65%"""
    points = 100 * share
    return f"{points:.0f}%" if abs(points) >= 9.95 else f"{points:.1f}%"


def format_percent_value(percent: float) -> str:
    """A number of percent, such as an MFU: 0.08%, 9.99%, 15.4%, 61%"""
    if percent < 9.995:
        return f"{percent:.2f}%"
    return f"{percent:.1f}%" if percent < 59.95 else f"{percent:.0f}%"


def format_ratio(ratio: float) -> str:
    """1.8, 34, 1200"""
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def format_factor(ratio: float) -> str:
    """2.86x, 13.3x, 0.42x"""
    return f"{ratio:.0f}x" if ratio >= 99.5 else f"{ratio:.3g}x"


def format_loss(value: float) -> str:
    """2.3456, 1.235e+04, 0.00018"""
    if 0 < abs(value) < 0.00095:
        return f"{value:.2g}"
    return f"{value:.4f}" if not abs(value) >= 1000 else f"{value:.4g}"


def format_norm(value: float) -> str:
    """A gradient norm: 0.75, 0.0064, 1.23e+08"""
    return f"{value:.2f}" if 0.095 <= value < 1000 or not math.isfinite(value) else f"{value:.3g}"


def format_epochs(value: float) -> str:
    """Passes over the training split: 0.0043, 1.6, 21, 260"""
    return f"{value:.2g}" if value < 99.5 else format_integer(value)


def format_loss_difference(value: float) -> str:
    """With two significant digits: 0.25, 0.0064"""
    return f"{value:.2f}" if abs(value) >= 0.095 else f"{value:.2g}"


def format_lr(value: float) -> str:
    """A learning rate: 6e-05, 0.0008"""
    return f"{value:.3g}"
