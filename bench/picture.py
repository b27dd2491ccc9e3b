"""Pictures without a plotting library: SVG that reads well on a light page and on a dark one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from bench.results import Result
from bench.table import THRESHOLDS, device_label, in_table_order, verdict

# Greys and blues that stand out from white and from near-black alike: a picture does not know its page.
_STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #768390 }
.strong { font-weight: 600 } .small { font-size: 11px } .end { text-anchor: end } .mid { text-anchor: middle }
.ours { fill: #2f81f7 } .void { fill: none; stroke: #8b949e; stroke-dasharray: 3 3 }
.mark { stroke: #8b949e; stroke-width: 1.5 } .reach { stroke: #3fb950; stroke-width: 2.5 }
.grid { stroke: #8b949e; stroke-opacity: .3 } .line { fill: none; stroke: #2f81f7; stroke-width: 2 }
"""

_LABEL_WIDTH, _BAR_WIDTH, _ROW_HEIGHT = 350, 400, 34
_WIDTH = _LABEL_WIDTH + _BAR_WIDTH + 110


def _svg(width: int, height: int, label: str, body: Sequence[str]) -> str:
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(label)}">'
    )
    return "\n".join([opening, f"<style>{_STYLE}</style>", *body, "</svg>", ""])


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


# --- how many times faster ---


def ratios_alt_text(results: Sequence[Result]) -> str:
    """The picture for who cannot see it."""
    words = [f"{THRESHOLDS[one.key].title}, {device_label(one)}: {_times(one)}" for one in _shown(results)]
    return "Times nanoGPT, same machine, same command. " + "; ".join(words)


def _shown(results: Sequence[Result]) -> list[Result]:
    return [
        one
        for one in in_table_order(results)
        if THRESHOLDS[one.key].form == "x" and THRESHOLDS[one.key].required is not None
    ]


def _times(result: Result) -> str:
    words = f"{result.value:.{0 if result.value >= 10 else 2}f}x"
    return words + (" does not count" if verdict(result).startswith("does not") else "")


def ratios_picture(results: Sequence[Result]) -> str:
    """A bar for each ratio where more is better, from 1 on, with its bar and its reach marked."""
    shown = _shown(results)
    ends = [mark for one in shown for mark in (THRESHOLDS[one.key].goal, one.value) if mark is not None]
    most = max([*ends, 2.0]) * 1.08
    x = _scale(1, most, _LABEL_WIDTH, _LABEL_WIDTH + _BAR_WIDTH)
    bottom = 40 + _ROW_HEIGHT * len(shown)
    body = [_text(0, 16, "times nanoGPT, same machine, same command", "strong")]
    for tick in (1, 1.5, 2, 3, 4, 5, 7, 10, 20, 40, 100):
        if tick <= most:
            body += [
                _line(x(tick), 28, x(tick), bottom, "grid"),
                _text(x(tick), bottom + 16, f"{tick:g}x", "mid small"),
            ]
    for number, one in enumerate(shown):
        body += _ratio(one, x, 34 + _ROW_HEIGHT * number)
    body += [
        _line(_LABEL_WIDTH, bottom + 28, _LABEL_WIDTH, bottom + 40, "mark"),
        _text(_LABEL_WIDTH + 6, bottom + 38, "bar", "small"),
        _line(_LABEL_WIDTH + 40, bottom + 28, _LABEL_WIDTH + 40, bottom + 40, "reach"),
        _text(_LABEL_WIDTH + 46, bottom + 38, "reached for", "small"),
    ]
    return _svg(_WIDTH, bottom + 48, ratios_alt_text(results), body)


def _ratio(result: Result, x: Callable[[float], float], top: float) -> list[str]:
    bar = THRESHOLDS[result.key]
    assert bar.required is not None
    assert bar.goal is not None
    left, right = sorted((x(1), x(max(result.value, 0.1))))
    kind = "void" if result.objection else "ours"
    return [
        _text(_LABEL_WIDTH - 12, top + 17, f"{bar.title}, {device_label(result)}", "end"),
        f'<rect x="{left:.1f}" y="{top + 4}" width="{max(1.0, right - left):.1f}" height="18" rx="2" '
        f'class="{kind}"/>',
        _line(x(bar.required), top + 1, x(bar.required), top + 25, "mark"),
        _line(x(bar.goal), top + 1, x(bar.goal), top + 25, "reach"),
        _text(max(right, x(bar.goal)) + 8, top + 17, _times(result), "strong"),
    ]


def _scale(low: float, high: float, left: float, right: float) -> Callable[[float], float]:
    """Logarithmic: twice as fast is as far from once as four times from twice."""
    width = math.log(high / low)
    return lambda value: left + (right - left) * math.log(max(value, 1e-12) / low) / width


# --- the ladder ---

_LADDER_WIDTH, _LADDER_HEIGHT, _LADDER_GAP = 250, 230, 110
_MIN_LABEL_GAP = 12  # pixels between the names of two rungs


def ladder_picture(found: Mapping[str, Mapping[str, Any]], preset: str) -> str:
    """For each text the validation curve of a run, and the loss of each table of n-grams: bench/ladder.py."""
    body = [_text(0, 16, f"validation loss of {preset}, nats per character, and tables of n-grams", "strong")]
    for column, (name, row) in enumerate(found.items()):
        left = 34 + column * (_LADDER_WIDTH + _LADDER_GAP)
        body += _ladder_panel(name, row, left, top=56)
    label = "; ".join(
        f"{name}: passed at update "
        + ", ".join(f"{at} the table of order {order}" for order, at in row["passed_at"].items())
        for name, row in found.items()
    )
    width = 34 + len(found) * (_LADDER_WIDTH + _LADDER_GAP)
    return _svg(width, 56 + _LADDER_HEIGHT + 30, label, body)


def _ladder_panel(name: str, row: Mapping[str, Any], left: float, top: float) -> list[str]:
    curve, losses = row["curve"], row["losses"]
    last, right = max(at for at, _ in curve), left + _LADDER_WIDTH
    low, high = min(*losses, *(loss for _, loss in curve)) - 0.1, max(losses) + 0.1

    def y(loss: float) -> float:
        return float(top + (high - loss) / (high - low) * _LADDER_HEIGHT)

    body = [_text(left, top - 14, f"{name}: {row['characters']:,} characters", "small")]
    label_at = -math.inf
    for order, loss in enumerate(losses):
        passed = row["passed_at"].get(order)
        words = ("chance", "frequencies", "pairs", "triples")[order] if order < 4 else f"{order}-grams"
        label_at = max(y(loss) + 4, label_at + _MIN_LABEL_GAP)
        if passed is None:
            body.append(_line(left, y(loss), right, y(loss), "grid"))
            body.append(_text(right + 5, label_at, words, "small"))
        else:
            body.append(_line(left, y(loss), right, y(loss), "mark"))
            body.append(_text(right + 5, label_at, f"{words}, {passed:,}", "strong small"))
    points = " ".join(f"{left + at / last * _LADDER_WIDTH:.1f},{y(loss):.1f}" for at, loss in curve)
    body.append(f'<polyline points="{points}" class="line"/>')
    body.append(_text(left, top + _LADDER_HEIGHT + 16, "0", "small"))
    body.append(_text(right, top + _LADDER_HEIGHT + 16, f"{last:,} updates", "end small"))
    ticks = range(math.ceil(low), math.floor(high) + 1)
    return body + [_text(left - 6, y(tick) + 4, str(tick), "end small") for tick in ticks]
