"""An explanation in the terminal: the verdict, the findings, the facts, and two small charts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from glassgpt.insight.explain import Explanation
from glassgpt.insight.facts import Facts
from glassgpt.insight.findings.finding import Finding
from glassgpt.insight.glossary import Entry, glossary
from glassgpt.insight.history import History
from glassgpt.insight.timeline import where_time_went
from glassgpt.show import format
from glassgpt.show.chart import bar, plot
from glassgpt.show.format import harmless
from glassgpt.words import RIGHT_TO_LEFT, current_language, say

_STYLES = {"problem": "bold red", "warning": "bold yellow", "advice": "bold cyan", "info": "bold"}
_RIGHT_TO_LEFT_MARK = "\N{RIGHT-TO-LEFT MARK}"


def print_explanation(explanation: Explanation, out: Console, full: bool = False) -> None:
    history, facts = explanation.history, explanation.facts
    out.print(Text(harmless(history.name), style="bold"), soft_wrap=True)
    for sentence in explanation.verdict:
        _paragraph(sentence, out)
    out.print()
    for finding in explanation.findings:
        print_finding(finding, out)
    _print_facts(facts, history, out)
    _print_loss(history, out)
    _print_time(history, facts, out)
    if full:
        _print_glossary(glossary(history, facts), out)


def print_finding(finding: Finding, out: Console) -> None:
    severity = {
        "problem": say("problem"),
        "warning": say("warning"),
        "advice": say("advice"),
        "info": say("info"),
    }[finding.severity]
    head = Text.assemble((f"{severity}  ", _STYLES[finding.severity]), (_in_line(finding.title), "bold"))
    head.append(f"  [{finding.id}]", style="dim")
    out.print(head)
    for text, style in ((finding.evidence, ""), (finding.explanation, "dim"), (finding.advice, "green")):
        if text:
            out.print(Padding(Text(_in_line(text), style=style), (0, 0, 0, 2), expand=False))
    out.print()


def _in_line(text: str) -> str:
    """A terminal that can write from right to left takes the direction of a line from its first letter."""
    return f"{_RIGHT_TO_LEFT_MARK}{text}" if current_language() in RIGHT_TO_LEFT else text


def _paragraph(text: str, out: Console) -> None:
    out.print(Text(_in_line(text)))


# --- facts ---


def _print_facts(facts: Facts, history: History, out: Console) -> None:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    for label, value in fact_rows(facts, history):
        table.add_row(_in_line(label), value)
    out.print(table)
    out.print()


def fact_rows(facts: Facts, history: History) -> list[tuple[str, str]]:
    """What people look for, in words and units; what the log does not say is left out."""
    rows: list[tuple[str, str | None]] = [
        (say("trainer"), history.format.title),
        (say("iterations"), _span(facts)),
        (say("parameters"), _maybe(facts.parameters, format.count)),
        (say("tokens per iteration"), _maybe(facts.tokens_per_iteration, "{:,}".format)),
        (say("a steady iteration"), _steady(facts)),
        (say("tokens per second"), _maybe(facts.tokens_per_s, format.count)),
        (say("the first iteration"), _maybe(facts.first_iteration_ms, format.milliseconds)),
        (say("start-up in it"), _maybe(facts.startup_ms, format.milliseconds)),
        (say("an evaluation adds"), _maybe(facts.eval_overhead_ms, format.milliseconds)),
        (say("evaluations"), _listed(facts.eval_steps)),
        (say("checkpoints"), _listed(facts.checkpoint_steps)),
        (say("whole run, estimated"), _maybe(facts.estimated_total_s, format.duration)),
        (say("not training"), _maybe(facts.overhead_share, "{:.1%}".format)),
        (say("MFU as printed"), _maybe(facts.mfu_reported_steady, "{:.4g}%".format)),
        (say("FLOPs per token"), _maybe(facts.flops_per_token, format.count)),
        (say("achieved"), _maybe(facts.achieved_tflops, lambda value: format.flops(value * 1e12))),
        (say("validation, best"), _at(facts.best_val_loss, facts.best_val_step)),
        (say("validation, last"), _maybe(facts.final_val_loss, "{:.4f}".format)),
        (say("training loss"), _from_to(facts.loss_first, facts.loss_last)),
        (say("processes"), f"{facts.segments}" if facts.segments > 1 else None),
        (say("ended"), facts.ended or say("still running")),
    ]
    return [(label, value) for label, value in rows if value is not None]


def _maybe(value: float | None, show: object) -> str | None:
    return None if value is None else str(show(value))  # type: ignore[operator]


def _span(facts: Facts) -> str | None:
    if facts.first_iteration is None:
        return None
    span = f"{facts.first_iteration:,} … {facts.last_iteration:,}  ({facts.iterations_logged:,})"
    return span if facts.log_interval in (None, 1) else f"{span}  /{facts.log_interval:,}"


def _steady(facts: Facts) -> str | None:
    if facts.steady_ms is None:
        return None
    text = format.milliseconds(facts.steady_ms)
    return (
        text if facts.steady_p95_ms is None else f"{text}  (p95 {format.milliseconds(facts.steady_p95_ms)})"
    )


def _listed(steps: Sequence[int] | None) -> str | None:
    if not steps:
        return None
    shown = ", ".join(f"{step:,}" for step in steps[:4])
    return f"{len(steps)}:  {shown}" if len(steps) <= 4 else f"{len(steps)}:  {shown}, … {steps[-1]:,}"


def _at(value: float | None, step: int | None) -> str | None:
    if value is None:
        return None
    return f"{value:.4f}" if step is None else f"{value:.4f}  @ {step:,}"


def _from_to(first: float | None, last: float | None) -> str | None:
    return None if first is None or last is None else f"{first:.4f} → {last:.4f}"


# --- charts ---


def _print_loss(history: History, out: Console, width: int = 64, height: int = 8) -> None:
    """The training loss in dots, the validation loss over it."""
    steps = history.steps
    keep = np.flatnonzero(steps.has_loss & np.isfinite(steps.loss))
    keep = keep[:: max(1, len(keep) // 4000)]
    told = [done for done in history.evals if done.val_loss is not None and done.iteration is not None]
    if history.val_metric != "loss":
        told = []
    curves = [
        (steps.iteration[keep].tolist(), steps.loss[keep].tolist()),
        ([float(done.iteration or 0) for done in told], [float(done.val_loss or 0.0) for done in told]),
    ]
    values = [value for _, ys in curves for value in ys if np.isfinite(value)]
    if len(values) < 2:
        return
    top = float(np.percentile(values, 97))  # the first fall would press all the rest against the bottom
    rows = plot([(xs, [min(y, top) for y in ys]) for xs, ys in curves], width, height)
    labels = {0: f"{top:.3g}", height - 1: f"{min(values):.3g}"}
    title = say("loss: training in dots, validation bright") if told else say("training loss")
    out.print(Text(_in_line(title), style="bold"))
    for number, row in enumerate(rows):
        line = Text(f"{labels.get(number, ''):>8} ")
        for character, curve in row:
            line.append(character, style="bold cyan" if curve == 1 else "dim")
        out.print(line, soft_wrap=True)
    out.print()


def _print_time(history: History, facts: Facts, out: Console) -> None:
    parts = where_time_went(history, facts)
    total = sum(seconds for _, seconds in parts)
    if not total:
        return
    out.print(Text(_in_line(say("where the time went")), style="bold"))
    for name, seconds in parts:
        share = seconds / total
        line = Text(f"{format.duration(seconds):>9} {share:>7.1%}  ")
        line.append(f"{bar(share, 30):<30}  ", style="cyan").append(name)
        out.print(line, soft_wrap=True)
    out.print()


def _print_glossary(entries: Sequence[Entry], out: Console) -> None:
    out.print(Text(_in_line(say("what the lines mean")), style="bold"))
    for entry in entries:
        out.print(Text(harmless(entry.piece), style="bold cyan"), soft_wrap=True)
        out.print(Padding(Text(_in_line(entry.meaning)), (0, 0, 0, 2), expand=False))
    out.print()
