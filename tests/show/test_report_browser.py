"""The report in a real browser: Chromium from Debian's packages, without a window and without a network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from report_pages import FINDINGS, disable_translations, glassgpt_run, nanogpt_run

from glassgpt.i18n import use_language
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.run_log import RunLog
from glassgpt.show.report.page import report_html

CHROMIUM = shutil.which("chromium")

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here (apt-get install chromium), so no browser looked at the report"
)

# Listens from the start, looks when all is drawn, turns light into dark and looks again.
_LISTEN = """
const complaints = [];
addEventListener("error", event => complaints.push(event.message));
addEventListener("unhandledrejection", event => complaints.push(String(event.reason)));
addEventListener("securitypolicyviolation", event => complaints.push("blocked: " + event.blockedURI));
"""
_LOOK = """
const fill = name => getComputedStyle(document.querySelector(name)).fill;
const look = () => ({
  page: getComputedStyle(document.body).backgroundColor,
  ticks: fill(".xtick text"),
  legend: fill(".legendtext"),
});
const chart = element => ({
  id: element.id,
  drawings: element.querySelectorAll(".main-svg").length,
  lines: [...element.querySelectorAll(".scatterlayer .trace path.js-line, .scatterlayer .point")].length,
  bars: element.querySelectorAll(".barlayer .point path").length,
  width: element.getBoundingClientRect().width,
  cut: [...element.querySelectorAll(".ytick text, .xtick text, .legendtext")].filter(label => {
    const [inner, outer] = [label.getBoundingClientRect(), element.getBoundingClientRect()];
    return inner.left < outer.left - 1 || inner.right > outer.right + 1;
  }).map(label => label.textContent),
});
addEventListener("load", () => setTimeout(() => {
  const seen = {
    width: innerWidth,
    overflow: document.documentElement.scrollWidth,
    charts: [...document.querySelectorAll(".chart")].map(chart),
    requests: performance.getEntriesByType("resource").map(entry => entry.name),
    title: document.title,
    brand: document.querySelector(".brand").getBoundingClientRect().left,
    before: look(),
  };
  document.getElementById("theme").click();
  setTimeout(() => {
    seen.after = look();
    seen.complaints = complaints;
    console.log("SEEN " + btoa(unescape(encodeURIComponent(JSON.stringify(seen)))) + " END");
  }, 500);
}, 1500));
"""


def look_at(page: str, folder: Path, width: int, dark: bool = False, blocked: int = 0) -> dict[str, Any]:
    """In a frame of that width: a window cannot be as narrow as a phone. `blocked`: scripts that must be."""
    digests = (hashlib.sha256(script.encode()).digest() for script in (_LISTEN, _LOOK))
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    page = page.replace("script-src ", f"script-src {allowed} ", 1)
    page = page.replace("<style>", f"<script>{_LISTEN}</script><style>", 1)
    page = page.replace("</body>", f"<script>{_LOOK}</script></body>")
    (folder / "report.html").write_text(page, encoding="utf-8")
    frame = (
        f'<body style="margin:0"><iframe src="report.html" style="border:0;width:{width}px;height:4000px">'
    )
    (folder / "frame.html").write_text(frame)
    assert CHROMIUM is not None
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={folder / 'profile'}",
        "--window-size=1400,4000",
        "--virtual-time-budget=10000",
        "--enable-logging=stderr",
        "--v=0",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        "--dump-dom",
        (folder / "frame.html").as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    console_lines = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    answer = next((match for line in console_lines if (match := re.search(r"SEEN (\S+) END", line))), None)
    assert answer is not None, done.stderr[-3000:]
    assert len(console_lines) == 1 + blocked, console_lines  # our own line, and no other error or warning
    seen: dict[str, Any] = json.loads(base64.b64decode(answer[1]))
    return seen


def page_of(history: RunLog) -> str:
    return report_html(
        history, Analysis(history).facts, FINDINGS, "a-log-with-quite-a-long-name-from-some-cluster.log"
    )


def assert_well_drawn(seen: dict[str, Any], charts: int, width: int) -> None:
    assert seen["complaints"] == []
    assert seen["requests"] == []
    assert seen["width"] == width
    assert seen["overflow"] <= width
    assert len(seen["charts"]) == charts
    for chart in seen["charts"]:
        assert chart["drawings"] >= 2, chart
        assert chart["lines"] + chart["bars"] > 0, chart
        assert 0 < chart["width"] < width, chart
        assert chart["cut"] == [], chart


def brightness(colour: str) -> int:
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3])


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_charts_are_drawn_in_the_colours_of_the_page(width: int, dark: bool, tmp_path: Path) -> None:
    seen = look_at(page_of(glassgpt_run()), tmp_path, width, dark)
    assert_well_drawn(seen, 8, width)
    bars = next(chart["bars"] for chart in seen["charts"] if chart["id"] == "time")
    assert bars >= 12
    in_dark, in_light = (seen["before"], seen["after"]) if dark else (seen["after"], seen["before"])
    assert brightness(in_dark["page"]) < 150 < 600 < brightness(in_light["page"])
    for text in ("ticks", "legend"):
        assert brightness(in_light[text]) < 350 < 400 < brightness(in_dark[text])


@pytest.mark.parametrize("width", [1280, 360])
def test_right_to_left(width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disable_translations(monkeypatch)
    with use_language("ar"):
        seen = look_at(page_of(nanogpt_run()), tmp_path, width)
    assert_well_drawn(seen, 4, width)
    assert seen["brand"] > width / 2  # the line begins on the right


def test_no_other_script_runs(tmp_path: Path) -> None:
    """As if something got through all the escaping."""
    attacks = (
        "<script>document.title = 'script'</script>",
        """<img src="data:," onerror="document.title = 'handler'">""",
    )
    page = page_of(nanogpt_run()).replace("</header>", "".join(attacks) + "</header>")
    seen = look_at(page, tmp_path, 1280, blocked=len(attacks))
    assert seen["title"].endswith("GlassGPT")
    assert sorted(seen["complaints"]) == ["blocked: inline"] * len(attacks)
