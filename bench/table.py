"""The table: the threshold of each row, its result, and whether it counts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.results import LossByContext, Result, to_json


@dataclass(frozen=True)
class Threshold:
    """What a row must reach, and its goal. None: reported without a threshold."""

    title: str
    required: float | None
    goal: float | None
    form: str = (
        "x"  # "x": a ratio, more is better. "<x": a ratio, less is better. "<%": a share, less is better.
    )

    @property
    def less_is_better(self) -> bool:
        return self.form.startswith("<")

    def is_met(self, value: float, mark: float | None) -> bool:
        return mark is not None and (value <= mark if self.less_is_better else value >= mark)

    def format_value(self, value: float | None) -> str:
        if value is None:
            return ""
        return f"{value:.2%}" if self.form == "<%" else f"{value:.2f}x"


THRESHOLDS: dict[tuple[str, str], Threshold] = {
    ("gpt2-speed", "cuda"): Threshold("GPT-2 124M, tokens/s", 1.20, 1.35),
    ("gpt2-500", "cuda"): Threshold("GPT-2 124M, tokens/s, 500 updates", 1.20, 1.35),
    ("fp8", "cuda"): Threshold("GPT-2 124M in FP8, tokens/s, 500 updates", 1.30, 1.6),
    ("gpt2-speed-fp8", "cuda"): Threshold("GPT-2 124M in FP8, tokens/s", None, None),
    ("gpt2-memory", "cuda"): Threshold("GPT-2 124M, peak memory", 0.75, 0.5, "<x"),
    ("gpt2-memory-fp8", "cuda"): Threshold("GPT-2 124M in FP8, peak memory", None, None, "<x"),
    ("shakespeare-whole", "cuda"): Threshold("shakespeare_char, the whole command", 2.5, 4.0),
    ("shakespeare-whole-warm", "cuda"): Threshold("the same, compile caches warm", None, None),
    ("shakespeare-to-loss", "cuda"): Threshold("shakespeare_char, time to loss", 4.0, 7.0),
    ("mdn-to-loss", "cuda"): Threshold("GPT-2 124M on mdn, time to loss", 2.5, 4.0),
    ("sampling-1", "cuda"): Threshold("sampling, one sample, GPT-2 124M", 10, 40),
    ("sampling-8", "cuda"): Threshold("sampling, eight at once, GPT-2 124M", 10, 40),
    ("overhead", "cuda"): Threshold("evaluation, checkpoints and logging: share", 0.03, 0.01, "<%"),
    ("steadiness", "cuda"): Threshold("an update's p99 over p50", 1.15, 1.05, "<x"),
    ("cpu-speed", "cpu"): Threshold("README CPU run, tokens/s", 1.2, 1.6),
    ("cpu-to-loss", "cpu"): Threshold("README CPU run, time to loss", 4.0, 8.0),
    ("sampling-1", "cpu"): Threshold("sampling, one sample, GPT-2 124M", 4, 10),
    ("sampling-8", "cpu"): Threshold("sampling, eight at once, GPT-2 124M", 4, 10),
    ("overhead", "cpu"): Threshold("evaluation, checkpoints and logging: share", 0.03, 0.01, "<%"),
}  # fmt: skip


# The part of a page that holds the table.
_TABLE_MARKS = re.compile(r"(?<=<!-- measured -->\n).*?(?=<!-- end -->)", re.S)


def threshold_of(result: Result) -> Threshold | None:
    return THRESHOLDS.get(result.key)


def verdict(result: Result) -> str:
    bar = threshold_of(result)
    if result.objection:
        return f"does not count: {result.objection}"
    if bar is None or bar.required is None:
        return ""
    if bar.is_met(result.value, bar.goal):
        return "reached"
    return "bar met" if bar.is_met(result.value, bar.required) else "missed"


def in_table_order(results: Sequence[Result]) -> list[Result]:
    """As the bars are listed; what has none is not part of the table."""
    found = {result.key: result for result in results}
    return [found[key] for key in THRESHOLDS if key in found]


def device_label(result: Result) -> str:
    return "CPU" if result.device == "cpu" else "GPU"


def describe_machines(results: Sequence[Result]) -> str:
    """Which ones they are, for a line below the table."""
    named = dict.fromkeys(f"{device_label(result)}: {result.machine}" for result in in_table_order(results))
    return ". ".join(named)


def fill_page(page: str, results: Sequence[Result]) -> str:
    """The page with the table between its marks made anew."""
    content = f"\n{markdown_table(results)}\n\n{describe_machines(results)}.\n\n"
    page, marks = _TABLE_MARKS.subn(lambda part: content, page)
    if marks != 1:
        raise ValueError(f"a page has one place for the table, this one has {marks}")
    return page


def markdown_table(results: Sequence[Result]) -> str:
    """In Markdown."""
    head = ("", "machine", "bar", "reach", "nanoGPT", "GlassGPT", "value", "spread", "loss", "verdict")
    rows = [head, ("---",) * len(head), *(_cells(result) for result in in_table_order(results))]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cells(result: Result) -> tuple[str, ...]:
    bar = THRESHOLDS[result.key]
    spread = ""
    if len(result.values) > 1:
        spread = f"{bar.format_value(min(result.values))} to {bar.format_value(max(result.values))}"
    return (
        bar.title,
        device_label(result),
        bar.format_value(bar.required),
        bar.format_value(bar.goal),
        _figure(result.nanogpt, result.unit),
        "" if bar.form == "<%" else _figure(result.glassgpt, result.unit),
        bar.format_value(result.value),
        spread,
        _losses(result),
        verdict(result),
    )


def _figure(values: Sequence[float], unit: str) -> str:
    if not values:
        return ""
    value = median(values)
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.4g} {unit}"


def _losses(result: Result) -> str:
    sides = [result.nanogpt_losses, result.glassgpt_losses]
    return " / ".join(_loss(side) for side in sides) if all(sides) else ""


def _loss(losses: Sequence[LossByContext]) -> str:
    """`1.4691 @256`: the median, and the context; the baseline's after it, if that is another."""
    contexts = sorted({context for one in losses for context in one}, reverse=True)
    return ", ".join(f"{median(one[c] for one in losses if c in one):.4f} @{c}" for c in contexts)


def results_document(results: Sequence[Result]) -> dict[str, Any]:
    rows = [to_json(result) | {"verdict": verdict(result)} for result in results]
    return {"bench": "side by side", "rows": rows}
