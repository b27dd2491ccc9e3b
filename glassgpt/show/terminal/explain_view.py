"""`glass explain` in the terminal: verdict, findings, facts, two small charts; and the lines of --watch."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassgpt.explain.explanation import Explanation
from glassgpt.explain.watch import WatchUpdate
from glassgpt.format import format_duration, format_if_known, format_loss, format_ms, format_percent
from glassgpt.i18n import translate
from glassgpt.record.finding import Finding
from glassgpt.runs.facts import Facts
from glassgpt.runs.glossary import glossary
from glassgpt.sanitize import sanitize_line, sanitize_text
from glassgpt.show.facts_table import exit_status_label, fact_groups, phase_labels, severity_label
from glassgpt.show.terminal.charts import bar, ladder_levels, loss_chart, loss_points
from glassgpt.show.terminal.text_lines import print_indented, terminal_text

SEVERITY_STYLES = {"problem": "bold red", "warning": "bold yellow", "advice": "bold cyan", "info": "bold"}
_MAX_RUN_ROWS = 12
_CHART_HEIGHT = 8


def print_explanation(explanation: Explanation, out: Console, full: bool = False, more: bool = False) -> None:
    """`more`: with the details of findings. `full`: also print the glossary of this trainer's log lines."""
    run_log, facts = explanation.log, explanation.facts
    out.print(Text(sanitize_line(run_log.name), style="bold"), soft_wrap=True)
    first = explanation.findings[0].title if explanation.findings else ""
    named = translate("verdict.most_important", title=first)  # it stands right below
    for sentence in explanation.verdict:
        if explanation.runs or sentence != named:
            out.print(Text(terminal_text(sentence)))
    out.print()
    if explanation.runs:
        _print_runs(explanation, out)
    for finding in explanation.findings:
        print_finding(finding, out, more or full)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    for _, rows in fact_groups(facts):
        for row in rows:
            table.add_row(terminal_text(row.name), row.value)
    out.print(table)
    out.print()
    progress = explanation.analysis.ladder_progress
    levels = ladder_levels(progress.ladder if progress else None)
    if chart := loss_chart(*loss_points(run_log), out.width, _CHART_HEIGHT, levels=levels):
        for line in chart:
            out.print(line, soft_wrap=True)
        out.print()
    _print_time_chart(facts, out)
    if full:
        out.print(Text(terminal_text(translate("explain_view.glossary.title")), style="bold"))
        for entry in glossary(run_log, facts):
            out.print(Text(sanitize_text(entry.log_text), style="bold cyan"), soft_wrap=True)
            print_indented(entry.meaning, "", out)
        out.print()


def _print_runs(explanation: Explanation, out: Console) -> None:
    """All runs of the file, one row each. Of very many: that which is explained, the best and the worst one,
    those that failed, and the longest."""
    results = [one.facts.best_val_loss for one in explanation.runs if one.facts.best_val_loss is not None]
    extremes = (min(results), max(results)) if results else ()

    def rank(one: Explanation) -> tuple[object, ...]:
        is_extreme = one.facts.best_val_loss in extremes
        has_failed = one.facts.ended in ("crashed", "oom") or any(
            finding.severity == "problem" for finding in one.findings
        )
        return one.log is explanation.log, is_extreme, has_failed, *one.log.length

    by_length = sorted(explanation.runs, key=rank, reverse=True)
    shown = sorted(by_length[:_MAX_RUN_ROWS], key=lambda one: one.log.first_line)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    validation = [_validation(one.facts, one.facts.best_val_loss) for one in shown]
    last = [_validation(one.facts, one.facts.final_val_loss) for one in shown]
    columns = {
        translate("label.run"): [terminal_text(sanitize_line(one.log.label)) for one in shown],
        translate("label.lines"): [
            " - ".join(dict.fromkeys((f"{one.log.first_line:,}", f"{one.log.last_line:,}")))
            if one.log.has_line_numbers
            else ""
            for one in shown
        ],
        translate("label.logged_iterations"): [f"{one.facts.iterations_logged:,}" for one in shown],
        translate("label.steady_iteration"): [
            format_if_known(format_ms, one.facts.steady_ms) for one in shown
        ],
        translate("label.best_validation"): validation,
        translate("label.last_validation"): last if last != validation else [],
        translate("label.how_it_ended"): [exit_status_label(one.facts) for one in shown],
    }
    if not all(validation):
        columns[translate("label.training_loss_last_line")] = [
            format_if_known(format_loss, one.facts.loss_last) for one in shown
        ]
    columns = {label: cells for label, cells in columns.items() if any(cells)}
    for label in columns:
        table.add_column(terminal_text(label))
    for one, *cells in zip(shown, *columns.values(), strict=True):
        table.add_row(*cells, style="bold" if one.log is explanation.log else "")
    out.print(table)
    if left_out := [one.facts.iterations_logged for one in by_length[_MAX_RUN_ROWS:]]:
        more = translate("explain_view.more_runs", runs=len(left_out), most=max(left_out))
        out.print(Text(terminal_text(more)))
    out.print()


def _validation(facts: Facts, result: float | None) -> str:
    bits = " bpb" if result is not None and facts.val_metric == "bits_per_byte" else ""
    return format_if_known(format_loss, result) + bits


def print_watch_update(update: WatchUpdate, out: Console) -> None:
    """New evaluations and findings of a running log, as lines between those of the log."""
    for evaluation in update.evaluations[-3:]:
        if evaluation.val_loss is None:
            continue
        at = "?" if evaluation.iteration is None else f"{evaluation.iteration:,}"
        text = translate("explain_view.watch.evaluation", at=at, loss=evaluation.val_loss)
        line = Text.assemble(("glass  ", "bold cyan"), text)
        best_so_far = translate("explain_view.watch.best_so_far")
        is_best = evaluation.val_loss == update.explanation.facts.best_val_loss
        out.print(line.append(f"  ({best_so_far})" if is_best else ""), soft_wrap=True)
    for finding in update.findings:
        at = (
            ""
            if update.iteration is None
            else translate("explain_view.watch.at_iteration", at=update.iteration)
        )
        out.print(Text.assemble(("glass  ", "bold cyan"), (at, "dim")), soft_wrap=True)
        print_finding(finding, out)


def print_finding(finding: Finding, out: Console, more: bool = False) -> None:
    severity = severity_label(finding.severity)
    head = Text.assemble(
        (f"{severity}  ", SEVERITY_STYLES[finding.severity]), (terminal_text(finding.title), "bold")
    )
    head.append(f"  [{finding.id}]" if finding.id else "", style="dim")
    out.print(head)
    quoted = finding.values.get("line")  # the evidence names the number of a line that it quotes
    lines = ", ".join(f"{line:,}" for line in finding.lines if line != quoted)
    shown_at = translate("explain_view.finding_lines", lines=lines) if lines else ""
    evidence = " ".join(text for text in (finding.evidence, shown_at) if text)
    parts = (
        (translate("explain_view.part.evidence"), evidence, ""),
        (translate("explain_view.part.explanation"), finding.explanation, "dim"),
        (translate("explain_view.part.advice"), finding.advice, "green"),
        (translate("explain_view.part.more"), finding.more if more else "", "dim"),
    )
    width = max(cell_len(label) for label, _, _ in parts) + 2
    for label, text, style in parts:
        print_indented(text, style, out, terminal_text(set_cell_size(label, width)))
    out.print()


def _print_time_chart(facts: Facts, out: Console) -> None:
    phases = facts.seconds_by_phase or {}
    total = sum(phases.values())
    if not total:
        return
    labels = phase_labels()
    out.print(Text(terminal_text(translate("explain_view.time_chart.title")), style="bold"))
    for phase, seconds in sorted(phases.items(), key=lambda item: -item[1]):
        share = seconds / total
        line = Text(f"{format_duration(seconds):>9} {format_percent(share):>7}  ")
        width = max(0, min(30, out.width - 48))
        line.append(f"{bar(share, width):<{width}}  ", style="cyan").append(labels[phase])
        out.print(line, soft_wrap=True)
    out.print()
