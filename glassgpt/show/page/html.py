"""The HTML around the page: the live page, which a server sends, and the same page as one offline file.

    live_html()                                   # loads ASSETS from beside it: scripts and style.css
    offline_html({"view": …, "rows": …})          # holds them, and the document; opens without a server

Both have the same scripts, which build everything from the document by textContent. So nothing of a log, a
configuration or a sample is ever parsed as HTML, and the policy in the page lets no other script run.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from glassgpt.errors import UserError
from glassgpt.explain.explanation import Explanation
from glassgpt.files import atomic_write
from glassgpt.i18n import RIGHT_TO_LEFT, Message, current_language, translate
from glassgpt.show.page.series import rows_of
from glassgpt.show.page.view import make_view

_SCRIPTS = (
    "numbers.js",
    "elements.js",
    "charts.js",
    "page.js",
    "run_panels.js",
    "learned_panel.js",
    "sample_panel.js",
    "runs.js",
)
ASSETS = dict.fromkeys(_SCRIPTS, "text/javascript; charset=utf-8") | {"style.css": "text/css; charset=utf-8"}
# Of the live page, sent as a header. No style attribute either: scripts set styles through the CSSOM.
LIVE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_BRAND = "GlassGPT"
_ICON = (  # a falling curve
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Crect width='16' "
    "height='16' rx='4' fill='%232563b8'/%3E%3Cpath d='M3 3c1 7 4 9 10 9' fill='none' stroke='white' "
    "stroke-width='2' stroke-linecap='round'/%3E%3C/svg%3E"
)
_NAMED_MESSAGE = re.compile(r'\bsay\("([\w.]+)"\)')
_GENERATOR_TAG = f'<meta name="generator" content="{_BRAND}">'


def live_html() -> str:
    """In the current language. Names the run and everything else once page.js has asked for it."""
    head = '<link rel="stylesheet" href="style.css">'
    scripts = "\n".join(f'<script src="{name}" defer></script>' for name in _SCRIPTS)
    return _shell(_BRAND, head, _data_block("words", _words()), scripts)


def offline_html(document: Mapping[str, Any]) -> str:
    """`document`: {"view": View, "rows": {series: rows}}. In the current language."""
    style = f"\n{asset('style.css')}"
    scripts = [f"\n{asset(name)}" for name in _SCRIPTS]
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes([style])}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"{_GENERATOR_TAG}\n<style>{style}</style>"
    )
    data = _data_block("words", _words()) + "\n" + _data_block("document", document)
    name = f"{document['view']['name']} · {_BRAND}"
    return _shell(name, head, data, "".join(f"<script>{script}</script>\n" for script in scripts))


def report_html(explanation: Explanation, name: str) -> str:
    """The offline file about a run. `name`: what the reader calls it."""
    view = make_view(explanation.analysis, explanation.findings, name)
    return offline_html({"view": view, "rows": rows_of(explanation.log)})


def write_report(path: Path, explanation: Explanation, name: str) -> None:
    """Write the offline file atomically."""
    html = report_html(explanation, name)
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


@functools.cache
def asset(name: str) -> str:
    """The text of a script or of the style sheet."""
    return (resources.files("glassgpt.show.page") / name).read_text(encoding="utf-8")


def _words() -> dict[str, str]:
    """The messages that the scripts name, in the current language."""
    keys = {key for name in _SCRIPTS for key in _NAMED_MESSAGE.findall(asset(name))}
    return {key: str(Message(key, {})) for key in sorted(keys)}


def _shell(title: str, head: str, data: str, scripts: str) -> str:
    language = current_language()
    direction = "rtl" if language in RIGHT_TO_LEFT else "ltr"
    needs_javascript = translate("page.needs_javascript")
    return f"""<!DOCTYPE html>
<html lang="{language}" dir="{direction}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="{_ICON}">
{head}
<title>{escape(title)}</title>
</head>
<body>
<noscript><p>{escape(needs_javascript)}</p></noscript>
<div id="page"></div>
{data}
{scripts}
</body>
</html>
"""


def _data_block(name: str, value: Any) -> str:
    """JSON for the scripts to read. Inside a script element, no `<` may end it early."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    text = text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return f'<script type="application/json" id="{name}">{text}</script>'


def _hashes(texts: Sequence[str]) -> str:
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
