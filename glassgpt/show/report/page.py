"""The page itself: HTML around findings, charts and tables."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from glassgpt import format
from glassgpt.errors import UserError
from glassgpt.explain.rule import Finding
from glassgpt.explain.summary import compose_verdict
from glassgpt.files import abbreviate_home, atomic_write
from glassgpt.i18n import RIGHT_TO_LEFT, current_language, say
from glassgpt.runs.facts import Facts
from glassgpt.runs.run_log import RunLog
from glassgpt.sanitize import sanitize_keeping_bidi
from glassgpt.show import facts_table as facts_shown
from glassgpt.show.facts_table import TableRow
from glassgpt.show.report import tables
from glassgpt.show.report.charts import make_charts
from glassgpt.show.report.drawing import Chart, MissingChart
from glassgpt.show.timeline import build_timeline, seconds_by_phase

_BRAND = "GlassGPT"
_GENERATOR_TAG = f'<meta name="generator" content="{_BRAND}">'


def write_report(path: Path, history: RunLog, facts: Facts, findings: Sequence[Finding], name: str) -> None:
    """There is always the old file or the new one, whole."""
    page = report_html(history, facts, findings, name)
    try:
        atomic_write(path, page.encode())
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise UserError(f"{path} could not be written ({why}): choose another place with --out") from error


def check_report_path(path: Path, source: Path) -> None:
    """A report never takes the place of the log it is about, nor of anything but a report."""
    if not os.path.lexists(path):
        return
    if source.exists() and path.exists() and path.samefile(source):
        raise UserError(f"{path} is what the report is about: choose another place with --out")
    if not _is_report(path):
        raise UserError(f"{path} is there and is no report: choose another place with --out")


def _is_report(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return _GENERATOR_TAG.encode() in file.read(2048)


def report_html(history: RunLog, facts: Facts, findings: Sequence[Finding], name: str) -> str:
    """In the current language."""
    scripts = (_plotly_js(), f"\n{_read_resource('page.js')}\n")
    timeline = build_timeline(history, facts)
    shown = make_charts(history, facts, timeline)
    charts = [item for item in shown if isinstance(item, Chart)]
    absent = [item for item in shown if isinstance(item, MissingChart)]
    drawings = {chart.id: {"data": chart.traces, "layout": chart.layout} for chart in charts}
    language = current_language()
    direction = "rtl" if language in RIGHT_TO_LEFT else "ltr"
    return f"""<!DOCTYPE html>
<html lang="{language}" dir="{direction}">
{_head(name, scripts)}
<body>
{_header(history, facts, findings, name)}
<main>
{_findings(findings)}
{_charts(charts, absent, seconds_by_phase(history, timeline))}
{_tables(history, facts)}
</main>
<footer><p>{_made_by()}</p></footer>
<script type="application/json" id="figures">{_json(drawings)}</script>
{"".join(f"<script>{script}</script>" for script in scripts)}
</body>
</html>
"""


def _policy(scripts: Sequence[str]) -> str:
    """Nothing may be loaded from anywhere, and no script may run but these. Plotly writes style attributes,
    which have no hash that could be known beforehand."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _head(name: str, scripts: Sequence[str]) -> str:
    return f"""<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{_GENERATOR_TAG}
<title>{escape_text(name)} · {_BRAND}</title>
<style>
{_read_resource("style.css")}
</style>
</head>"""


def escape_text(value: str) -> str:
    """For HTML: escaped, and without characters that could reorder or hide what is around them.

    The marks that isolate a value in a right-to-left sentence are ours and stay.
    """
    return escape(sanitize_keeping_bidi(abbreviate_home(value)))


def _header(history: RunLog, facts: Facts, findings: Sequence[Finding], name: str) -> str:
    shown = "".join(
        f"<div><dt>{escape_text(row.name)}</dt><dd>{_isolate_bidi(row.value)}"
        + (f"<small>{escape_text(row.reason)}</small>" if row.reason else "")
        + "</dd></div>"
        for row in facts_shown.key_figures(facts, history.ledger)
    )
    kinds = [f"<bdi>{escape_text(history.trainer.name)}</bdi>"] if history.trainer.name != _BRAND else []
    kinds += [escape_text(say("still running"))] if history.live else []
    toggle = say("light or dark")
    return f"""<header>
<div class="top"><p class="kind"><span class="brand">{_BRAND}</span> {" · ".join(kinds)}</p>
<button type="button" id="theme" hidden>{escape_text(toggle)}</button></div>
<h1><bdi>{escape_text(name)}</bdi></h1>
<p class="verdict">{escape_text(" ".join(compose_verdict(history, facts, findings)))}</p>
<dl class="figures">{shown}</dl>
</header>"""


def _findings(findings: Sequence[Finding]) -> str:
    if not findings:
        healthy = say("Nothing to report: every check that this log allows found it healthy.")
        said = f"<p>{escape_text(healthy)}</p>"
    else:
        said = "\n".join(_finding(finding) for finding in findings)
    title = say("Findings")
    return f'<section id="findings">\n<h2>{escape_text(title)}</h2>\n{said}\n</section>'


def _finding(finding: Finding) -> str:
    todo = say("What to do")
    advice = (
        f'<p class="do"><strong>{escape_text(todo)}</strong> {escape_text(finding.advice)}</p>'
        if finding.advice
        else ""
    )
    return f"""<article class="finding {escape_text(finding.severity)}">
<h3><span class="badge">{escape_text(facts_shown.severity_label(finding.severity))}</span> {escape_text(finding.title)}</h3>
<p class="evidence">{escape_text(finding.evidence)}</p>
<p>{escape_text(finding.explanation)}</p>
{advice}
<p class="id"><code dir="ltr">{escape_text(finding.id)}</code></p>
</article>"""


def _charts(charts: Sequence[Chart], absent: Sequence[MissingChart], phases: dict[str, float]) -> str:
    drawn = "\n".join(_figure(chart, phases if chart.id == "time" else {}) for chart in charts)
    reasons = "".join(f"<li>{escape_text(missing.reason)}</li>" for missing in absent)
    title, need = say("Charts"), say("The charts need JavaScript; what they say is written below each.")
    return f"""<section id="charts">
<h2>{escape_text(title)}</h2>
<noscript><p>{escape_text(need)}</p></noscript>
<div class="grid">
{drawn}
</div>
{f'<ul class="absent">{reasons}</ul>' if reasons else ""}
</section>"""


def _figure(chart: Chart, phases: dict[str, float]) -> str:
    label = escape_text(f"{chart.title}. {chart.summary}")
    return f"""<figure class="{"wide" if chart.wide else "half"}">
<h3>{escape_text(chart.title)}</h3>
<figcaption>{escape_text(chart.summary)}</figcaption>
{_phase_bar(phases)}
<div class="chart" id="{chart.id}" dir="ltr" role="img" aria-label="{label}"></div>
</figure>"""


def _phase_bar(phases: dict[str, float]) -> str:
    """The whole run as one bar; its list is what a screen reader reads."""
    total = sum(phases.values())
    if total <= 0:
        return ""
    names = facts_shown.phase_labels()
    parts = "".join(
        f'<i class="phase-{name}" style="flex-grow:{seconds / total:.6f}"></i>'
        for name, seconds in phases.items()
    )
    listed = "".join(
        f'<li><i class="phase-{name}"></i><span>{escape_text(names[name])}</span>'
        f"{_isolate_bidi(format.format_duration(seconds))}{_isolate_bidi(f'{seconds / total:.1%}')}</li>"
        for name, seconds in phases.items()
    )
    return f'<div class="bar" aria-hidden="true">{parts}</div>\n<ul class="phases">{listed}</ul>'


def _tables(history: RunLog, facts: Facts) -> str:
    settings, machine = tables.setting_rows(history), tables.machine_rows(history)
    numbers = [_table(title, _plain_rows(rows)) for title, rows in facts_shown.fact_groups(facts) if rows]
    looks = [tables.profile_table(record) for record in history.profiles]
    profiles = "\n".join(_table(caption, _code_rows(rows), "code") for caption, rows in looks)
    parts = [_section("profile", say("What took the time"), profiles)] if looks else []
    parts += [
        _section("facts", say("Facts"), f'<div class="facts">{"".join(numbers)}</div>'),
        _section("configuration", say("Configuration"), _configuration(settings)),
    ]
    if machine:
        listed = _table(say("Where and on what it ran"), _code_rows(machine), "code")
        parts.append(_section("machine", say("Machine and data"), listed))
    return "\n".join(parts)


def _configuration(settings: Sequence[TableRow]) -> str:
    if not settings:
        unknown = say("This log does not say how the run was configured.")
        return f"<p>{escape_text(unknown)}</p>"
    caption = say("Settings, and why a value was chosen where the run chose it itself")
    return _table(caption, _code_rows(settings), "code")


def _section(anchor: str, title: str, inside: str) -> str:
    return f'<section id="{anchor}">\n<h2>{escape_text(title)}</h2>\n{inside}\n</section>'


def _table(caption: str, rows: Iterable[str], kind: str = "plain") -> str:
    body = "".join(rows)
    return f'<table class="{kind}">\n<caption>{escape_text(caption)}</caption>\n<tbody>\n{body}</tbody>\n</table>'


def _plain_rows(rows: Sequence[TableRow]) -> Iterable[str]:
    for row in rows:
        yield f'<tr><th scope="row">{escape_text(row.name)}</th><td>{_isolate_bidi(row.value)}</td></tr>\n'


def _code_rows(rows: Sequence[TableRow]) -> Iterable[str]:
    for row in rows:
        reason = f"<small>{escape_text(row.reason)}</small>" if row.reason else ""
        yield (
            f'<tr><th scope="row"><code dir="ltr">{escape_text(row.name)}</code></th>'
            f'<td><code dir="ltr">{escape_text(row.value)}</code>{reason}</td></tr>\n'
        )


def _isolate_bidi(value: str) -> str:
    return f"<bdi>{escape_text(value)}</bdi>"


def _made_by() -> str:
    return escape_text(say("Made by GlassGPT. This file needs no network: everything it shows is in it."))


def _json(value: object) -> str:
    """For a script element: no `<` can end it early."""
    plain = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _read_resource(name: str) -> str:
    return (resources.files("glassgpt.show.report") / name).read_text(encoding="utf-8")


def _plotly_js() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise UserError("a report needs plotly: pip install 'glassgpt[report]'") from error
    return str(get_plotlyjs())
