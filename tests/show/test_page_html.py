"""The offline file as text: what it holds, what cannot get into it, how large it is."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_pages import FINDINGS, bare_run, disable_translations, glassgpt_run, make_columns, nanogpt_run
from written_findings import written_finding

from glassgpt.errors import UserError
from glassgpt.explain.explanation import Explanation, explain
from glassgpt.i18n import has_message, translate, use_language
from glassgpt.record.finding import Finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.reading import read_run_log
from glassgpt.runs.run_log import LoggedEvaluation, LoggedSetup, RunLog
from glassgpt.show.page.html import ASSETS, LIVE_POLICY, asset, live_html, report_html, write_report
from glassgpt.show.page.time_strip import PHASE_COLOURS, build_timeline

STYLE = asset("style.css")
SCRIPTS = [asset(name) for name in ASSETS if name.endswith(".js")]


def explained(run_log: RunLog, findings: tuple[Finding, ...] = FINDINGS) -> Explanation:
    return Explanation(Analysis(run_log), list(findings), [])


def page_of(run_log: RunLog, findings: tuple[Finding, ...] = FINDINGS, name: str = "a run") -> str:
    return report_html(explained(run_log, findings), name)


def document_of(page: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="document">(.*?)</script>', page, re.DOTALL)
    assert match is not None
    document: dict[str, Any] = json.loads(match[1])
    return document


def view_of_run(run_log: RunLog, findings: tuple[Finding, ...] = FINDINGS) -> dict[str, Any]:
    view: dict[str, Any] = document_of(page_of(run_log, findings))["view"]
    return view


class _Structure(HTMLParser):
    """Complains about an element that is not closed in order; collects what stands where."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def structure_of(page: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = _Structure()
    parser.feed(page)
    assert parser.open == []
    return parser.seen


# --- safety ---


def test_the_policy_names_the_scripts_and_the_style_of_the_file_and_allows_no_other() -> None:
    page = page_of(nanogpt_run())
    match = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert match is not None
    policy = dict(part.strip().split(" ", 1) for part in match[1].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy.keys() == {"default-src", "script-src", "style-src", "img-src", "base-uri", "form-action"}
    for tag, rule, count in (("script", "script-src", len(SCRIPTS)), ("style", "style-src", 1)):
        texts = re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL)
        assert len(texts) == count
        assert "\r" not in "".join(texts)  # a browser would read it as a newline, and hash that
        digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
        assert policy[rule].split() == [f"'sha256-{digest}'" for digest in digests]


def test_the_live_page_has_neither_a_script_nor_a_style_in_it() -> None:
    assert "unsafe" not in LIVE_POLICY
    seen = structure_of(live_html())
    scripts = [attrs for tag, attrs in seen if tag == "script" and attrs.get("type") != "application/json"]
    assert [attrs["src"] for attrs in scripts] == [name for name in ASSETS if name.endswith(".js")]
    assert not [tag for tag, attrs in seen if tag == "style" or "style" in attrs]


def test_no_script_makes_markup_of_text() -> None:
    for script in SCRIPTS:
        for means in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
            assert means not in script
        assert not re.search(r"setAttribute\(\"(?:style|on)", script)


def test_the_charts_are_a_script_of_at_most_800_lines() -> None:
    lines = asset("charts.js").splitlines()
    assert len(lines) <= 800
    assert [line for line in lines if len(line) > 120] == []


EVIL = (
    '"><script>alert(1)</script><img src=x onerror=alert(1)><!--</style>&javascript:alert(1)'
    "\x1b[31m\u202e\ud800"
)


def test_nothing_from_a_log_becomes_markup() -> None:
    finding = written_finding(EVIL, "problem", EVIL, EVIL, EVIL, EVIL)
    setup = LoggedSetup(
        settings={EVIL: EVIL}, device_name=EVIL, machine={EVIL: {EVIL: EVIL}}, data={EVIL: EVIL}
    )
    history = replace(nanogpt_run(), setup=setup, name=EVIL, ledger={EVIL: 3.0})
    history = replace(history, trainer=replace(history.trainer, name=EVIL))
    page = page_of(history, (finding,), EVIL)
    page.encode()
    assert not {"\x1b", "\u202e", "\ud800"} & set(page)
    seen = structure_of(page)
    assert [tag for tag, _ in seen].count("script") == len(SCRIPTS) + 2
    assert not {"img", "b"} & {tag for tag, _ in seen}
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert not [attrs for _, attrs in seen if any(name.startswith("on") for name in attrs)]
    view = document_of(page)["view"]
    assert "</script><img src=x onerror" in view["name"]  # as text, whole


def test_the_home_folder_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    run = nanogpt_run()
    setup = replace(run.setup, settings={"out_dir": "/home/someone/out", "dataset": "/mnt/home/someone/x"})
    page = page_of(replace(run, setup=setup))
    assert "~/out" in page
    assert "/mnt/home/someone/x" in page
    assert page.count("/home/someone") == 1


def test_the_file_asks_for_nothing() -> None:
    page = page_of(glassgpt_run())
    for _, attrs in structure_of(page):
        assert not {"src", "srcset", "data", "action"} & set(attrs)
        assert (attrs.get("href") or "data:").startswith("data:")
    assert "@import" not in STYLE
    assert "url(" not in STYLE
    for script in SCRIPTS:
        assert set(re.findall(r"https?://[^\s\"'`]*", script)) <= {"http://www.w3.org/2000/svg"}  # a name


# --- what is in it ---


def test_every_word_of_the_scripts_is_a_message_and_none_is_computed() -> None:
    block = re.search(r'id="words">(.*?)</script>', live_html())
    assert block is not None
    named = {key for script in SCRIPTS for key in re.findall(r"\bsay\(([^)]*)\)", script)} - {"key"}
    assert named == {f'"{key}"' for key in json.loads(block[1])}
    assert all(has_message(key.strip('"')) for key in named)


def test_every_colour_that_is_named_is_in_the_style() -> None:
    known = set(re.findall(r"--([\w-]+):", STYLE))
    used = set(PHASE_COLOURS.values())
    for run in (nanogpt_run(), glassgpt_run()):
        for panel in view_of_run(run)["panels"]:
            used |= {part["colour"] for key in ("series", "bands", "lines") for part in panel[key]}
    used |= {name for script in SCRIPTS for name in re.findall(r"\bcolour\(\"([\w-]+)\"\)", script)}
    assert used - known == set()


def test_findings_are_complete_and_in_order() -> None:
    view = view_of_run(nanogpt_run())
    assert [(one["id"], one["severity"]) for one in view["findings"]] == [
        (finding.id, finding.severity) for finding in FINDINGS
    ]
    first = view["findings"][0]
    assert (first["title"], first["advice"]) == (FINDINGS[0].title, f"{FINDINGS[0].advice}.")
    assert view["findings"][1]["explanation"] == FINDINGS[1].explanation  # it has its full stop
    assert view["findings"][1]["advice"] == ""
    assert FINDINGS[0].title in " ".join(view["verdict"])


def test_charts_without_data_are_left_out_and_say_why() -> None:
    view = view_of_run(nanogpt_run())
    assert {panel["id"] for panel in view["panels"]} == {"loss", "step-time", "mfu"}
    missing = [translate(f"report.{name}.missing") for name in ("learning_rate", "gradient_norm", "memory")]
    assert set(missing) <= set(view["missing"])
    full = view_of_run(glassgpt_run())
    every = {"loss", "step-time", "mfu", "tokens", "learning-rate", "gradient-norm", "memory"}
    assert {panel["id"] for panel in full["panels"]} >= every
    assert not set(missing) & set(full["missing"])


def test_settings_come_with_the_reasons_for_chosen_ones() -> None:
    tables = {table["id"]: table for table in view_of_run(glassgpt_run())["tables"]}
    dtype = {"name": "dtype", "value": "bfloat16", "reason": "compute capability 9.0"}
    assert dtype in tables["configuration"]["rows"]
    assert "versions.torch" in [row["name"] for row in tables["machine"]["rows"]]
    damaged = LoggedSetup(settings={"a": 1}, machine={"choices": [None, 3, {"value": 1}, {"name": "b"}]})
    assert view_of_run(replace(nanogpt_run(), setup=damaged))["tables"]


# --- where the time went ---


def test_time_in_the_chart_is_the_time_in_the_facts() -> None:
    history = nanogpt_run()
    facts, timeline = Analysis(history).facts, build_timeline(Analysis(history))
    assert timeline is not None
    assert facts.overhead_share is not None
    assert timeline.total_s == pytest.approx(facts.estimated_total_s)
    assert 1 - timeline.train_s.sum() / timeline.total_s == pytest.approx(facts.overhead_share)
    # One evaluation in each bar, so that none sticks out for having two.
    assert timeline.iterations_per_bin == 250
    assert timeline.eval_and_save_s[1:].max() < 1.05 * timeline.eval_and_save_s[1:].min()
    assert facts.seconds_by_phase is not None
    assert sum(facts.seconds_by_phase.values()) == pytest.approx(facts.estimated_total_s)
    assert facts.pause_share == pytest.approx(facts.overhead_share)


def test_time_of_a_journal_is_its_ledger() -> None:
    history = glassgpt_run()
    assert history.ledger is not None
    assert Analysis(history).seconds_by_phase == dict(history.ledger)
    ledger = view_of_run(history)["ledger"]
    assert {phase["id"]: phase["seconds"] for phase in ledger["phases"]} == dict(history.ledger)
    assert ledger["total_s"] == pytest.approx(sum(history.ledger.values()))
    timeline = build_timeline(Analysis(history))
    assert timeline is not None
    assert timeline.train_s.sum() == pytest.approx(135, rel=0.01)
    assert timeline.train_s.min() > 0.95 * timeline.train_s.max()
    strange = replace(history, ledger={"train": 5.0, "<b>": 1.0, "other": 1.0, "eval": float("nan")})
    assert Analysis(strange).seconds_by_phase == {"train": 5.0, "other": 2.0}


def test_logging_is_neither_startup_nor_evaluation() -> None:
    ledger = {"startup": 7.0, "eval": 3.0, "train": 25.0, "data": 5.0, "log": 60.0}
    history = replace(glassgpt_run(), ledger=ledger)
    assert "10%" in translate("label.share_not_training", share=0.1) in page_of(history)


def test_bars_and_what_is_not_drawn_add_up_to_the_total() -> None:
    """Also of a run of two processes: each one's start-up stands where it began; logging is in no bar."""
    history = glassgpt_run()
    parts = tuple(replace(part, startup_s=s) for part, s in zip(history.segments, (20.0, 40.0), strict=True))
    parts = (*parts[:1], replace(parts[1], first_iteration=1500))
    ledger = {"startup": 60.0, "train": 135.0, "eval": 11.7, "log": 500.0}
    history = replace(history, segments=parts, ledger=ledger)
    timeline = build_timeline(Analysis(history))
    assert timeline is not None
    assert {int(at): s for at, s in zip(timeline.bin_start, timeline.startup_s, strict=True) if s} == {
        0: 20.0,
        1500: 40.0,
    }
    assert timeline.total_s == pytest.approx(60 + 135 + 11.7, rel=0.01)
    caption = view_of_run(history)["ledger"]["caption"]
    assert translate("report.time.not_drawn", rest=500.0) in caption
    assert "10%" in translate("report.time.overhead_share", share=71.7 / 706.7) in caption
    assert translate("report.time.startup_in_total_only") not in caption


def test_evaluations_that_the_log_does_not_time_are_not_called_free() -> None:
    history = replace(glassgpt_run(), ledger=None)
    untimed = replace(history, evals=tuple(replace(done, ms=None) for done in history.evals))
    assert translate("report.time.evaluations_unknown") in view_of_run(untimed)["ledger"]["caption"]


# --- for everyone ---


def _luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_contrast_is_enough(mode: int) -> None:
    pairs = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", STYLE)
    colours = {name: (light, dark)[mode] for name, light, dark in pairs}
    # Of WCAG: 4.5 for text, 3 for what is drawn.
    texts = dict.fromkeys(("ink", "muted", "problem", "warning", "advice", "info"), 4.5)
    drawn = ("train", "train-eval", "val", "best", "startup", "speed", "rate", "norm", "highlight")
    runs = tuple(f"run-{number}" for number in range(1, 7))
    for name, needed in (texts | dict.fromkeys(drawn + runs, 3.0)).items():
        for ground in ("card", "page"):
            bright, dim = sorted((_luminance(colours[name]), _luminance(colours[ground])), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= needed, f"{name} on {ground}"


@pytest.mark.parametrize(("language", "direction"), [("en", "ltr"), ("hi", "ltr"), ("ar", "rtl")])
def test_language_and_direction(language: str, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disable_translations(monkeypatch)
    with use_language(language):
        for page in (page_of(glassgpt_run()), live_html()):
            assert dict(structure_of(page))["html"] == {"lang": language, "dir": direction}
    assert not re.search(r"\b(margin|padding|border)-(left|right)\b|text-align: (left|right)", STYLE)


# --- any log ---


def test_strange_logs_make_a_page(subtests: pytest.Subtests) -> None:
    cases: list[RunLog] = [
        bare_run(make_columns([])),
        bare_run(make_columns([7])),
        bare_run(make_columns([0], loss=[4.0], ms=[129_000.0]), LoggedEvaluation(0, 0, 4.0)),
        bare_run(make_columns(range(50), loss=[np.nan] * 50, ms=[np.nan] * 50)),
        bare_run(make_columns(range(50), loss=[np.inf, *[3.0] * 49], ms=[0.0] * 50, grad_norm=[np.inf] * 50)),
        bare_run(make_columns([5] * 30, loss=[2.0] * 30, ms=[1.0] * 30, lr=[0.0] * 30)),
        bare_run(make_columns(range(30), loss=[1e-30] * 15 + [1e30] * 15, ms=[1e-9] * 29 + [1e12])),
        bare_run(
            make_columns(range(3), ms=[1.0] * 3),
            LoggedEvaluation(None, 0, 3.0),
            LoggedEvaluation(2, 0, np.nan, np.inf),
        ),
        bare_run(
            make_columns([9, 3, 5, 1], loss=[1.0] * 4, ms=[5.0] * 4), has_iteration_numbers=False, live=True
        ),
        bare_run(make_columns([0, 2**62], loss=[1.0, 2.0], ms=[1.0, 1.0])),
    ]
    for number, history in enumerate(cases):
        with subtests.test(f"case {number}"):
            page = page_of(history, ())
            structure_of(page)
            assert document_of(page)["view"]["panels"] is not None


@pytest.mark.parametrize("name", ["demo:gpu", "demo:cpu"])
def test_a_demo_log_makes_a_small_file(name: str) -> None:
    assert len(report_html(explain(read_run_log(name)), name).encode()) < 300_000


def test_a_million_steps_make_a_file_of_less_than_a_megabyte() -> None:
    count = 1_000_000
    noise = np.random.default_rng(0).standard_normal(count)
    loss = 3 + noise
    loss[123_456], loss[200_001] = 55.0, -44.0
    columns = {
        "loss": loss,
        "ms": 5 + 0.1 * noise,
        "grad_norm": noise**2,
        "lr": 1e-3 + 1e-5 * noise,
        "mfu": 40 + noise,
        "tokens_per_s": 5e5 + noise,
        "memory_bytes": 1e9 + noise,
    }
    history = bare_run(make_columns(range(count), **columns))
    page = page_of(history)
    assert len(page.encode()) < 1_000_000
    rows = document_of(page)["rows"]["loss"]
    assert len(rows) <= 1500
    assert max(row[3] for row in rows if len(row) == 4) == 55.0
    assert min(row[2] for row in rows if len(row) == 4) == -44.0


def test_writing_replaces_the_old_report_at_once(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    write_report(path, explained(nanogpt_run()), "x")
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(UserError, match="could not be written"):
        write_report(tmp_path / "none" / "report.html", explained(nanogpt_run()), "x")


def test_torch_is_not_loaded() -> None:
    check = "import sys, glassgpt.show.page.html; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
