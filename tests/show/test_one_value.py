"""One quantity, one value: what page and text say about a run agrees to its last digit, wherever it is."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from report_pages import bare_run, glassgpt_run, make_columns, nanogpt_run
from rich.console import Console

from glassgpt import i18n
from glassgpt.explain.explanation import explain
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.run_log import LoggedEvaluation, RunLog
from glassgpt.show.page.view import make_view
from glassgpt.show.terminal.explain_view import print_explanation

MS, PERCENT, COUNT = r"[\d.]+ ms\b", r"[\d.]+%", r"\d[\d.]*[kMB]\b"
DURATION = r"(?:\d+[dhm] \d+[hms]|[\d.]+ m?s)\b"
# By quantity: its form, messages with the name of the value in them, and labels that a value follows.
QUANTITIES: dict[str, tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]] = {
    "steady iteration": (
        MS,
        (
            ("verdict.step_time", "ms"),
            ("verdict.step_time_and_overhead", "ms"),
            ("report.step_time.steady_and_slow", "time"),
            ("eval-spikes.evidence.spike_and_steady", "steady_ms"),
            ("startup-compile.evidence.first_with_eval", "steady_ms"),
        ),
        ("label.steady_iteration", "label.steady_iteration_median"),
    ),
    "total time": (
        DURATION,
        (
            ("eval-spikes.evidence.total_cost", "run_s"),
            ("eval-spikes.evidence.ledger_times", "run_s"),
            ("eval-spikes.evidence.ledger_with_closing", "run_s"),
            ("startup-compile.evidence.ledger", "run_s"),
        ),
        ("label.total_time", "label.estimated_total_time"),
    ),
    "evaluation, checkpoints and start-up": (
        PERCENT,
        (
            ("verdict.step_time_and_overhead", "share"),
            ("verdict.overhead", "share"),
            ("label.share_not_training", "share"),
            ("report.time.overhead_share", "share"),
        ),
        ("label.overhead_share",),
    ),
    "evaluation": (
        DURATION,
        (
            ("eval-spikes.evidence.total_cost", "eval_s"),
            ("eval-spikes.evidence.ledger_times", "eval_s"),
            ("eval-spikes.evidence.ledger_with_closing", "eval_s"),
        ),
        ("phase.pauses", "phase.eval"),
    ),
    "stalls": (DURATION, (("silent-spike.title.stood_still", "lost_s"),), ("phase.stall",)),
    "stalls, share": (
        PERCENT,
        (("silent-spike.title.stood_still", "lost_share"), ("verdict.stalls", "share")),
        ("label.stall_share",),
    ),
    "MFU": (PERCENT, (("report.mfu.usual", "mfu"),), ("label.mfu_reported_median",)),
    "tokens per second": (
        COUNT,
        (("report.tokens_per_second.usual", "number"),),
        ("label.tokens_per_second",),
    ),
}


def message_pattern(key: str, name: str, form: str) -> str:
    """Matches the message with any values, and captures that one."""
    template = i18n._catalogue("en").gettext(key)
    assert f"{{{name}" in template, key
    parts = re.split(r"\{(\w+)(?::[^}]*)?\}", template)
    return "".join(
        re.escape(part) if index % 2 == 0 else f"({form})" if part == name else ".+?"
        for index, part in enumerate(parts)
    )


# In a run with several regimes this is the step time of those around the evaluations, and says so.
OF_REGIMES = {"eval-spikes.evidence.spike_and_steady"}


def values_in(text: str, quantity: str, has_regimes: bool = False) -> list[str]:
    form, messages, labels = QUANTITIES[quantity]
    left_out = OF_REGIMES if has_regimes else set()
    patterns = [message_pattern(key, name, form) for key, name in messages if key not in left_out]
    patterns += [rf"(?<!\w){re.escape(i18n.translate(key))} +({form})" for key in labels]
    return [value for pattern in patterns for value in re.findall(pattern, text)]


def texts_of(value: Any) -> Iterator[str]:
    """All texts of a document, in its order."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts_of(inner)


def all_text(run_log: RunLog) -> str:
    """What the page, the report and the terminal show."""
    explanation = explain(run_log)
    view = make_view(explanation.analysis, explanation.findings, "run")
    out = io.StringIO()
    print_explanation(explanation, Console(file=out, width=400))
    phases = re.sub(r"^ +(\S.*?) +([\d.]+%)  \S* +(.+)$", r"\3 \1 \2", out.getvalue(), flags=re.M)
    text = " ".join(texts_of(view)) + phases
    return re.sub(r"[ \t\u2068\u2069]+", " ", text)


def sleeping_run() -> RunLog:
    """Evaluations of 8 s, but in eight of them the laptop slept; in between it was slower for a while."""
    at = np.arange(0, 3001, 10)
    ms = np.random.default_rng(3).normal(100, 1, len(at))
    ms[100:180] *= 1.5
    ms[at % 100 == 0] += 8000.0
    for stalled in (700, 800, 1100, 1200, 1300, 1400, 1600, 1900):
        ms[stalled // 10] += 900_000.0
    ms[0] += 5000.0
    evals = [LoggedEvaluation(int(i), 0, 2.0, 2.0) for i in at if i % 100 == 0]
    return bare_run(make_columns(at.tolist(), ms=ms, loss=np.linspace(4, 2, len(at))), *evals)


def closing_run() -> RunLog:
    """Most of its evaluation time is the closing one; logging belongs to no iteration."""
    ledger = {"startup": 9.0, "compile": 3.0, "data": 0.5, "train": 24.0, "eval": 25.9, "log": 1.6}
    return replace(glassgpt_run(), ledger=ledger)


RUNS = {
    "nanoGPT": nanogpt_run(),
    "GlassGPT": glassgpt_run(),
    "closing evaluation": closing_run(),
    "sleeping": sleeping_run(),
}
EXPECTED = {"steady iteration", "total time", "evaluation, checkpoints and start-up", "evaluation"}


@pytest.mark.parametrize("name", RUNS)
def test_a_quantity_has_one_value(name: str) -> None:
    text = all_text(RUNS[name])
    has_regimes = len(Analysis(RUNS[name]).regimes) > 1
    assert has_regimes == (name == "sleeping")
    found = {quantity: values_in(text, quantity, has_regimes) for quantity in QUANTITIES}
    assert {quantity: values for quantity, values in found.items() if len(set(values)) > 1} == {}
    often = {quantity for quantity, values in found.items() if len(values) > 1}
    assert often >= EXPECTED | ({"stalls", "stalls, share"} if name == "sleeping" else set())


def test_the_extraction_sees_a_contradiction() -> None:
    assert set(values_in("total time 47 s … estimated total time 64 s", "total time")) == {"47 s", "64 s"}
    share = "evaluation, checkpoints and start-up"
    said = [
        i18n.translate("verdict.overhead", share=0.407),
        i18n.translate("report.time.overhead_share", share=0.4),
    ]
    assert set(values_in(" ".join(said), share)) == {"41%", "40%"}
