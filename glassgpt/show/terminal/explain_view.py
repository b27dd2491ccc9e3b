"""An explanation in the terminal: the verdict, the findings, the facts, and two small charts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassgpt import format
from glassgpt.explain.explanation import Explanation
from glassgpt.explain.rule import Finding
from glassgpt.i18n import RIGHT_TO_LEFT, current_language, say
from glassgpt.runs.facts import Facts
from glassgpt.runs.glossary import GlossaryEntry, glossary
from glassgpt.runs.run_log import RunLog
from glassgpt.sanitize import sanitize_keeping_bidi, sanitize_line, sanitize_text
from glassgpt.show.facts_table import fact_groups, phase_labels, severity_label
from glassgpt.show.terminal.chart import bar, plot
from glassgpt.show.timeline import build_timeline, seconds_by_phase

_STYLES = {"problem": "bold red", "warning": "bold yellow", "advice": "bold cyan", "info": "bold"}
_RIGHT_TO_LEFT_MARK = "\N{RIGHT-TO-LEFT MARK}"


def print_explanation(explanation: Explanation, out: Console, full: bool = False) -> None:
    for earlier in explanation.earlier:
        print_explanation(earlier, out, full)
    history, facts = explanation.log, explanation.facts
    out.print(Text(sanitize_line(history.name), style="bold"), soft_wrap=True)
    for sentence in explanation.verdict:
        _print_paragraph(sentence, out)
    out.print()
    for finding in explanation.findings:
        print_finding(finding, out)
    _print_facts(facts, out)
    _print_loss_chart(history, out)
    _print_time_chart(history, facts, out)
    if full:
        _print_glossary(glossary(history, facts), out)


def print_finding(finding: Finding, out: Console) -> None:
    severity = severity_label(finding.severity)
    head = Text.assemble(
        (f"{severity}  ", _STYLES[finding.severity]), (_terminal_text(finding.title), "bold")
    )
    head.append(f"  [{finding.id}]" if finding.id else "", style="dim")
    out.print(head)
    for text, style in ((finding.evidence, ""), (finding.explanation, "dim"), (finding.advice, "green")):
        _print_indented(text, style, out)
    out.print()


def _print_indented(text: str, style: str, out: Console) -> None:
    """Wrapped here: rich would fill the lines up with blanks."""
    for line in Text(_terminal_text(text), style=style).wrap(out, max(20, out.width - 2)) if text else ():
        line.rstrip()
        out.print(Text("  ").append_text(line), soft_wrap=True)


def _terminal_text(text: str) -> str:
    """Every sentence goes through here: nothing in it may harm a terminal.

    One that can write from right to left takes the direction of a line from its first letter.
    """
    clean = sanitize_keeping_bidi(text)
    return f"{_RIGHT_TO_LEFT_MARK}{clean}" if current_language() in RIGHT_TO_LEFT else clean


def _print_paragraph(text: str, out: Console) -> None:
    out.print(Text(_terminal_text(text)))


# --- facts ---


def _print_facts(facts: Facts, out: Console) -> None:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    for _, rows in fact_groups(facts):
        for row in rows:
            table.add_row(_terminal_text(row.name), row.value)
    out.print(table)
    out.print()


# --- charts ---


def _print_loss_chart(history: RunLog, out: Console, height: int = 8) -> None:
    """The training loss in dots, the validation loss over it."""
    width = max(10, min(64, out.width - 10))
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
    out.print(Text(_terminal_text(title), style="bold"))
    for number, row in enumerate(rows):
        line = Text(f"{labels.get(number, ''):>8} ")
        for character, curve in row:
            line.append(character, style="bold cyan" if curve == 1 else "dim")
        out.print(line, soft_wrap=True)
    out.print()


def _print_time_chart(history: RunLog, facts: Facts, out: Console) -> None:
    phases = seconds_by_phase(history, build_timeline(history, facts))
    total = sum(phases.values())
    if not total:
        return
    names = phase_labels()
    out.print(Text(_terminal_text(say("where the time went")), style="bold"))
    for phase, seconds in sorted(phases.items(), key=lambda part: -part[1]):
        share = seconds / total
        line = Text(f"{format.format_duration(seconds):>9} {share:>7.1%}  ")
        width = max(0, min(30, out.width - 48))
        line.append(f"{bar(share, width):<{width}}  ", style="cyan").append(names[phase])
        out.print(line, soft_wrap=True)
    out.print()


def _print_glossary(entries: Sequence[GlossaryEntry], out: Console) -> None:
    out.print(Text(_terminal_text(say("what the lines mean")), style="bold"))
    for entry in entries:
        out.print(Text(sanitize_text(entry.log_text), style="bold cyan"), soft_wrap=True)
        _print_indented(entry.meaning, "", out)
    out.print()
