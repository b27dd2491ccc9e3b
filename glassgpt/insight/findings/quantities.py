"""Numbers for sentences about a run. (`show/format.py` is a room above, so it cannot be used here.)"""

from __future__ import annotations


def loss(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.4g}"


def difference(value: float) -> str:
    """Two digits that count: 0.25, 0.0064"""
    return f"{value:.2f}" if abs(value) >= 0.095 else f"{value:.2g}"


def percent(share: float) -> str:
    points = 100 * share
    return f"{points:.0f}%" if abs(points) >= 9.95 else f"{points:.1f}%"


def whole(value: float) -> str:
    return f"{value:,.0f}"


def rate(value: float) -> str:
    """A learning rate: 6e-05, 0.0008"""
    return f"{value:.3g}"


def gib(value: float) -> str:
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


def count(value: float) -> str:
    """812, 19.4k, 10.7M, 1.56B"""
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= limit * 0.9995:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """1.2 s, 45 s, 3m 05s, 2h 07m, 3d 04h"""
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
