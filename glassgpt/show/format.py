"""Numbers as people read them, and text that cannot harm a terminal."""

from __future__ import annotations

import unicodedata


def duration(seconds: float) -> str:
    """1.2 s, 45 s, 3m 05s, 2h 07m, 3d 04h"""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d {whole % 86_400 // 3600:02d}h"


def milliseconds(value: float) -> str:
    """0.42 ms, 38.1 ms, 5985 ms"""
    return f"{value:.2f} ms" if value < 9.995 else f"{value:.1f} ms" if value < 999.95 else f"{value:.0f} ms"


def count(value: float) -> str:
    """812, 19.4k, 10.7M, 1.56B"""
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= limit * 0.9995:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.0f}"


def size(value: float) -> str:
    """Bytes in binary units: 9.7 MiB"""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def flops(value: float) -> str:
    """48.0 TFLOP/s, 96 GFLOP/s"""
    for limit, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G")):
        if value >= limit * 0.9995:
            return f"{value / limit:.3g} {unit}FLOP/s"
    return f"{value / 1e6:.3g} MFLOP/s"


def plural(number: int, noun: str) -> str:
    """1 layer, 2 layers"""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def harmless(text: str) -> str:
    """Without control characters, so that text from a file cannot move the cursor or hide anything."""
    return "".join("\N{REPLACEMENT CHARACTER}" if _is_harmful(char) else char for char in text)


def _is_harmful(char: str) -> bool:
    if char in "\n\t\u200c\u200d":  # the last two join or part letters, in Hindi and Persian for example
        return False
    is_nothing = ord(char) & 0xFFFE == 0xFFFE  # no character at all, and forbidden in XML
    return is_nothing or unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co")
