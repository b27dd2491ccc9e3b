"""Numbers as the findings about time and speed write them, beside those of `quantities`."""

from __future__ import annotations


def milliseconds(ms: float) -> str:
    """0.42 ms, 38.1 ms, 5985 ms"""
    return f"{ms:.2f} ms" if ms < 9.995 else f"{ms:.1f} ms" if ms < 999.95 else f"{ms:.0f} ms"


def times(ratio: float) -> str:
    """1.8, 34, 1200: how many times"""
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def points(percent: float) -> str:
    """An MFU, which is in percent already: 0.08%, 9.99%, 15.4%, 61%"""
    return (
        f"{percent:.2f}%" if percent < 9.995 else f"{percent:.1f}%" if percent < 59.95 else f"{percent:.0f}%"
    )


def flop_rate(flops_per_s: float) -> str:
    """48.0 TFLOP/s, 312 TFLOP/s, 96.0 GFLOP/s"""
    for limit, unit in ((1e12, "T"), (1e9, "G")):
        if flops_per_s >= limit * 0.9995:
            value = flops_per_s / limit
            return f"{value:.1f} {unit}FLOP/s" if value < 99.95 else f"{value:.0f} {unit}FLOP/s"
    return f"{flops_per_s / 1e6:.1f} MFLOP/s"
