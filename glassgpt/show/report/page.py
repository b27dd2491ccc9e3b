"""The page of `glass report`: HTML around findings, charts and tables."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path

from glassgpt.errors import UserError
from glassgpt.explain.summary import compose_verdict
from glassgpt.files import abbreviate_home, atomic_write
from glassgpt.format import format_duration, format_percent
from glassgpt.i18n import RIGHT_TO_LEFT, current_language, translate
from glassgpt.record.finding import Finding
from glassgpt.runs.facts import Facts
from glassgpt.runs.run_log import RunLog
from glassgpt.sanitize import sanitize_keeping_bidi
from glassgpt.show import facts_table
from glassgpt.show.facts_table import TableRow
from glassgpt.show.report import tables
from glassgpt.show.report.charts import make_charts
from glassgpt.show.report.drawing import Chart, MissingChart
from glassgpt.show.timeline import build_timeline

_BRAND = "GlassGPT"
_GENERATOR_TAG = f'<meta name="generator" content="{_BRAND}">'


def write_report(path: Path, run_log: RunLog, facts: Facts, findings: Sequence[Finding], name: str) -> None:
    """Write the report atomically."""
    html = report_html(run_log, facts, findings, name)
    try:
        atomic_write(path, html.encode())
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UserError(f"{path} could not be written ({reason}): choose another file with --out") from error


def check_report_path(path: Path, source: Path) -> None:
    """Raise if the report would overwrite the log itself, or a file that is not a report."""
    if not os.path.lexists(path):
        return
    if source.exists() and path.exists() and path.samefile(source):
        raise UserError(f"{path} is the log itself: choose another file with --out")
    is_report = False
    if path.is_file() and not path.is_symlink():
        with path.open("rb") as file:
            is_report = _GENERATOR_TAG.encode() in file.read(2048)
    if not is_report:
        raise UserError(f"{path} exists and is not a report: choose another file with --out")


def report_html(run_log: RunLog, facts: Facts, findings: Sequence[Finding], name: str) -> str:
    """The whole page, in the current language."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise UserError("a report needs plotly: pip install 'glassgpt[report]'") from error
    scripts = (str(get_plotlyjs()), f"\n{_read_resource('page.js')}\n")
    timeline = build_timeline(run_log, facts)
    charts = make_charts(run_log, facts, timeline)
    figures = {
        chart.id: {"data": chart.traces, "layout": chart.layout}
        for chart in charts
        if isinstance(chart, Chart)
    }
    # Inside a script element, no `<` may end it early.
    figures_json = json.dumps(figures, separators=(",", ":"), allow_nan=False)
    figures_json = figures_json.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    language = current_language()
    direction = "rtl" if language in RIGHT_TO_LEFT else "ltr"
    footer = translate("report.footer")
    return f"""<!DOCTYPE html>
<html lang="{language}" dir="{direction}">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_content_security_policy(scripts)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{_GENERATOR_TAG}
<title>{escape_text(name)} · {_BRAND}</title>
<style>
{_read_resource("style.css")}
</style>
</head>
<body>
{_header(run_log, facts, findings, name)}
<main>
{_findings(findings)}
{_charts(charts, facts.seconds_by_phase or {})}
{_tables(run_log, facts)}
</main>
<footer><p>{escape_text(footer)}</p></footer>
<script type="application/json" id="figures">{figures_json}</script>
{"".join(f"<script>{script}</script>" for script in scripts)}
</body>
</html>
"""


def escape_text(value: str) -> str:
    """Escaped for HTML, without characters that could reorder or hide the text around them.

    The marks that isolate a value in a right-to-left sentence are ours and stay.
    """
    return escape(sanitize_keeping_bidi(abbreviate_home(value)))


def _isolate_bidi(value: str) -> str:
    return f"<bdi>{escape_text(value)}</bdi>"


def _read_resource(name: str) -> str:
    return (resources.files("glassgpt.show.report") / name).read_text(encoding="utf-8")


def _content_security_policy(scripts: Sequence[str]) -> str:
    """Nothing is loaded from elsewhere, and only these scripts run. Plotly writes style attributes, whose
    hashes cannot be known beforehand."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _header(run_log: RunLog, facts: Facts, findings: Sequence[Finding], name: str) -> str:
    figures = "".join(
        f"<div><dt>{escape_text(row.name)}</dt><dd>{_isolate_bidi(row.value)}"
        + (f"<small>{escape_text(row.reason)}</small>" if row.reason else "")
        + "</dd></div>"
        for row in facts_table.key_figures(facts)
    )
    tags = [_isolate_bidi(run_log.trainer.name)] if run_log.trainer.name != _BRAND else []
    tags += [escape_text(translate("report.still_running"))] if run_log.live else []
    toggle = translate("report.theme_button")
    return f"""<header>
<div class="top"><p class="kind"><span class="brand">{_BRAND}</span> {" · ".join(tags)}</p>
<button type="button" id="theme" hidden>{escape_text(toggle)}</button></div>
<h1><bdi>{escape_text(name)}</bdi></h1>
<p class="verdict">{escape_text(" ".join(compose_verdict(run_log, facts, findings)))}</p>
<dl class="figures">{figures}</dl>
</header>"""


def _findings(findings: Sequence[Finding]) -> str:
    advice_label = translate("report.what_to_do")
    articles = []
    for finding in findings:
        advice = ""
        if finding.advice:
            label = escape_text(advice_label)
            advice = f'<p class="do"><strong>{label}</strong> {escape_text(finding.advice)}</p>'
        severity = escape_text(facts_table.severity_label(finding.severity))
        articles.append(f"""<article class="finding {escape_text(finding.severity)}">
<h3><span class="badge">{severity}</span> {escape_text(finding.title)}</h3>
<p class="evidence">{escape_text(finding.evidence)}</p>
<p>{escape_text(" ".join(text for text in (finding.explanation, finding.more) if text))}</p>
{advice}
<p class="id"><code dir="ltr">{escape_text(finding.id)}</code></p>
</article>""")
    if not findings:
        healthy = translate("report.findings.none")
        articles.append(f"<p>{escape_text(healthy)}</p>")
    return _section("findings", translate("report.findings.title"), "\n".join(articles))


def _charts(charts: Sequence[Chart | MissingChart], phases: dict[str, float]) -> str:
    figures, reasons = [], []
    for chart in charts:
        if isinstance(chart, MissingChart):
            reasons.append(f"<li>{escape_text(chart.reason)}</li>")
            continue
        alternative = escape_text(f"{chart.title}. {chart.summary}")
        figures.append(f"""<figure class="{"wide" if chart.wide else "half"}">
<h3>{escape_text(chart.title)}</h3>
<figcaption>{escape_text(chart.summary)}</figcaption>
{_phase_bar(phases) if chart.id == "time" else ""}
<div class="chart" id="{chart.id}" dir="ltr" role="img" aria-label="{alternative}"></div>
</figure>""")
    note = translate("report.needs_javascript")
    drawn = "\n".join(figures)
    missing = f'<ul class="absent">{"".join(reasons)}</ul>' if reasons else ""
    content = f"""<noscript><p>{escape_text(note)}</p></noscript>
<div class="grid">
{drawn}
</div>
{missing}"""
    return _section("charts", translate("report.charts.title"), content)


def _phase_bar(phases: dict[str, float]) -> str:
    """The time of the run as one bar; screen readers read its list."""
    total = sum(phases.values())
    if total <= 0:
        return ""
    labels = facts_table.phase_labels()
    parts = "".join(
        f'<i class="phase-{name}" style="flex-grow:{seconds / total:.6f}"></i>'
        for name, seconds in phases.items()
    )
    items = "".join(
        f'<li><i class="phase-{name}"></i><span>{escape_text(labels[name])}</span>'
        f"{_isolate_bidi(format_duration(seconds))}{_isolate_bidi(format_percent(seconds / total))}</li>"
        for name, seconds in phases.items()
    )
    return f'<div class="bar" aria-hidden="true">{parts}</div>\n<ul class="phases">{items}</ul>'


def _tables(run_log: RunLog, facts: Facts) -> str:
    """Sections: the profile if there is one, facts, configuration, machine and data if the log has them."""
    sections = []
    profiles = [tables.profile_table(record) for record in run_log.profiles]
    if profiles:
        profile = "\n".join(_code_table(caption, rows) for caption, rows in profiles)
        sections.append(_section("profile", translate("report.profile.title"), profile))
    groups = []
    for title, rows in facts_table.fact_groups(facts):
        cells = "".join(
            f'<tr><th scope="row">{escape_text(row.name)}</th><td>{_isolate_bidi(row.value)}</td></tr>\n'
            for row in rows
        )
        if cells:
            groups.append(_table(title, cells, "plain"))
    sections.append(
        _section("facts", translate("report.facts.title"), f'<div class="facts">{"".join(groups)}</div>')
    )
    settings = tables.setting_rows(run_log)
    if settings:
        caption = translate("report.configuration.caption")
        configuration = _code_table(caption, settings)
    else:
        unknown = translate("report.configuration.unknown")
        configuration = f"<p>{escape_text(unknown)}</p>"
    sections.append(_section("configuration", translate("report.configuration.title"), configuration))
    machine = tables.machine_rows(run_log)
    if machine:
        table = _code_table(translate("report.machine.caption"), machine)
        sections.append(_section("machine", translate("report.machine.title"), table))
    return "\n".join(sections)


def _section(anchor: str, title: str, content: str) -> str:
    return f'<section id="{anchor}">\n<h2>{escape_text(title)}</h2>\n{content}\n</section>'


def _code_table(caption: str, rows: Sequence[TableRow]) -> str:
    """Names and values in a monospace font, from left to right in every language."""
    cells = "".join(
        f'<tr><th scope="row"><code dir="ltr">{escape_text(row.name)}</code></th>'
        f'<td><code dir="ltr">{escape_text(row.value)}</code>'
        + (f"<small>{escape_text(row.reason)}</small>" if row.reason else "")
        + "</td></tr>\n"
        for row in rows
    )
    return _table(caption, cells, "code")


def _table(caption: str, cells: str, css_class: str) -> str:
    head = f'<table class="{css_class}">\n<caption>{escape_text(caption)}</caption>'
    return f"{head}\n<tbody>\n{cells}</tbody>\n</table>"
