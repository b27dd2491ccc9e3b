"""The report as text: what is on the page, what cannot get onto it, and the numbers behind the charts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_pages import FINDINGS, bare_run, disable_translations, glassgpt_run, make_columns, nanogpt_run
from written_findings import written_finding

from glassgpt.errors import UserError
from glassgpt.i18n import translate, use_language
from glassgpt.record.finding import Finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.run_log import LoggedEvaluation, LoggedSetup, RunLog
from glassgpt.show.report.drawing import smooth_series, thinned_indices
from glassgpt.show.report.page import report_html, write_report
from glassgpt.show.timeline import build_timeline

STYLE = (resources.files("glassgpt.show.report") / "style.css").read_text()


def page_of(history: RunLog, findings: tuple[Finding, ...] = FINDINGS, name: str = "a run") -> str:
    """Without plotly's own code, which is megabytes of other people's strings."""
    page = report_html(history, Analysis(history).facts, findings, name)
    return re.sub(r"<script>/\*\*.*?</script>", "<script></script>", page, flags=re.DOTALL)


def figures_of(page: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page)
    assert match is not None
    figures: dict[str, Any] = json.loads(match[1])
    return figures


class _Structure(HTMLParser):
    """Complains about an element that is not closed in order; collects what stands where."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def structure_of(page: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = _Structure()
    parser.feed(page)
    assert parser.open == []
    return parser.seen


def test_the_policy_names_the_scripts_of_the_page_and_allows_no_other() -> None:
    page = report_html(nanogpt_run(), Analysis(nanogpt_run()).facts, FINDINGS, "a run")
    match = re.search(r'http-equiv="Content-Security-Policy" content=".*?script-src ([^;]*);', page)
    assert match is not None
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    assert "\r" not in "".join(scripts)  # a browser would read it as a newline, and hash that
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    assert match[1].split() == [f"'sha256-{digest}'" for digest in digests]
    assert len(scripts) == 2


def test_the_home_folder_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    run = nanogpt_run()
    setup = replace(run.setup, settings={"out_dir": "/home/someone/out", "dataset": "/mnt/home/someone/x"})
    page = page_of(replace(run, setup=setup))
    assert "~/out" in page
    assert "/mnt/home/someone/x" in page
    assert page.count("/home/someone") == 1


@pytest.mark.parametrize("history", [nanogpt_run(), glassgpt_run()], ids=["log", "journal"])
def test_figures_are_what_plotly_accepts(history: RunLog) -> None:
    page = page_of(history)
    figures = figures_of(page)
    for figure in figures.values():
        go.Figure(figure)  # refuses unknown names and values
    colours = set(re.findall(r"var\((--[\w-]+)\)", json.dumps(figures)))
    assert colours
    assert colours <= set(re.findall(r"(--[\w-]+):", STYLE))
    drawn = [attrs["id"] for tag, attrs in structure_of(page) if attrs.get("class") == "chart"]
    assert drawn == list(figures)


def test_findings_are_complete_and_in_order() -> None:
    page = page_of(nanogpt_run())
    first = FINDINGS[0]
    parts = (first.title, first.evidence, first.explanation, first.advice)
    places = [page.index(escape(part)) for part in parts]
    assert places == sorted(places)
    assert page.index('class="finding warning"') < page.index('class="finding info"')
    assert page.count('class="do"') == 1  # the second has no advice
    verdict = re.search(r'<p class="verdict">(.*?)</p>', page)
    assert verdict is not None
    assert FINDINGS[0].title in verdict[1]


def test_a_healthy_run_has_a_sentence_instead_of_findings() -> None:
    page = page_of(nanogpt_run(), findings=())
    assert translate("report.findings.none") in page
    assert 'class="finding' not in page


def test_charts_without_data_are_left_out_and_say_why() -> None:
    page = page_of(nanogpt_run())
    assert list(figures_of(page)) == ["loss", "time", "step-time", "mfu"]
    missing = [translate(f"report.{name}.missing") for name in ("learning_rate", "gradient_norm", "memory")]
    assert all(sentence in page for sentence in missing)
    full = page_of(glassgpt_run())
    every = ["loss", "time", "step-time", "mfu", "tokens", "learning-rate", "gradient-norm", "memory"]
    assert list(figures_of(full)) == every
    assert not any(sentence in full for sentence in missing)


def test_loss_chart_marks_the_best_and_shows_the_noise() -> None:
    history = nanogpt_run()
    facts = Analysis(history).facts
    traces = {trace["name"]: trace for trace in figures_of(page_of(history))["loss"]["data"]}
    assert traces["best"]["x"] == [facts.best_val_step]
    assert traces["best"]["y"] == [pytest.approx(facts.best_val_loss)]
    assert traces["usual spread"]["fill"] == "toself"
    assert len(traces["validation loss"]["x"]) == len(history.evals)
    errors = [trace["name"] for trace in figures_of(page_of(glassgpt_run()))["loss"]["data"]]
    assert translate("report.band_standard_errors") in errors


def test_a_high_beginning_is_cut_off_unless_that_hides_a_line() -> None:
    figure = figures_of(page_of(nanogpt_run()))["loss"]
    highest = max(value for value in figure["data"][0]["y"])
    assert figure["layout"]["yaxis"]["range"][1] < highest
    assert translate("report.beginning_cropped") in page_of(nanogpt_run())
    few = replace(nanogpt_run(), evals=(LoggedEvaluation(0, 0, 4.3), LoggedEvaluation(3000, 0, 1.4)))
    page = page_of(few)
    assert "range" not in figures_of(page)["loss"]["layout"]["yaxis"]
    assert translate("report.beginning_cropped") not in page


def test_bits_per_byte_have_a_chart_of_their_own() -> None:
    history = replace(nanogpt_run(), val_metric="bits_per_byte")
    figures = figures_of(page_of(history))
    assert "validation loss" not in [trace["name"] for trace in figures["loss"]["data"]]
    assert translate("report.bits.curve") in [trace["name"] for trace in figures["bits"]["data"]]


def test_lines_break_where_a_process_ends() -> None:
    rate = next(trace for trace in figures_of(page_of(glassgpt_run()))["learning-rate"]["data"])
    assert rate["x"].count(None) == 1
    assert rate["x"][rate["x"].index(None) - 1] == 1500


def test_time_in_the_chart_is_the_time_in_the_facts() -> None:
    history = nanogpt_run()
    facts, timeline = Analysis(history).facts, build_timeline(history, Analysis(history).facts)
    assert timeline is not None
    assert facts.overhead_share is not None
    assert timeline.total_s == pytest.approx(facts.estimated_total_s)
    assert 1 - timeline.train_s.sum() / timeline.total_s == pytest.approx(facts.overhead_share)
    assert (
        timeline.iterations_per_bin == 250
    )  # one evaluation in each bar, so that none sticks out for having two
    assert timeline.eval_and_save_s[1:].max() < 1.05 * timeline.eval_and_save_s[1:].min()
    assert facts.seconds_by_phase is not None
    assert sum(facts.seconds_by_phase.values()) == pytest.approx(facts.estimated_total_s)
    assert facts.pause_share == pytest.approx(facts.overhead_share)


def test_time_of_a_journal_is_its_ledger() -> None:
    history = glassgpt_run()
    page = page_of(history)
    assert history.ledger is not None
    assert Analysis(history).seconds_by_phase == dict(history.ledger)
    for words in ("compiling", "135", "waiting for data", "72%"):
        assert words in page
    timeline = build_timeline(history, Analysis(history).facts)
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
    timeline = build_timeline(history, Analysis(history).facts)
    assert timeline is not None
    assert {int(at): s for at, s in zip(timeline.bin_start, timeline.startup_s, strict=True) if s} == {
        0: 20.0,
        1500: 40.0,
    }
    assert timeline.total_s == pytest.approx(60 + 135 + 11.7, rel=0.01)
    page = page_of(history)
    width = timeline.iterations_per_bin
    assert translate("report.time.bar_width_and_total", width=width, total=706.7) in page
    assert translate("report.time.not_drawn", rest=500.0) in page
    assert "10%" in translate("report.time.overhead_share", share=71.7 / 706.7) in page
    assert translate("report.time.startup_in_total_only") not in page


def test_evaluations_that_the_log_does_not_time_are_not_called_free() -> None:
    history = replace(glassgpt_run(), ledger=None)
    untimed = replace(history, evals=tuple(replace(done, ms=None) for done in history.evals))
    page = page_of(untimed)
    assert translate("report.time.evaluations_unknown") in page
    assert 'class="bar"' not in page


def test_settings_come_with_the_reasons_for_chosen_ones() -> None:
    page = page_of(glassgpt_run())
    assert re.search(
        r"dtype</code></th><td><code[^>]*>bfloat16</code><small>compute capability 9.0</small>", page
    )
    assert "versions.torch" in page
    unknown = translate("report.configuration.unknown")
    assert unknown in page_of(replace(nanogpt_run(), setup=LoggedSetup()))
    assert unknown not in page
    damaged = LoggedSetup(settings={"a": 1}, machine={"choices": [None, 3, {"value": 1}, {"name": "b"}]})
    assert "<code" in page_of(replace(nanogpt_run(), setup=damaged))


EVIL = '"><script>alert(1)</script><!--</style>&\x1b[31m\u202e\ud800'


def test_nothing_from_a_log_becomes_markup() -> None:
    finding = written_finding(EVIL, "problem", EVIL, EVIL, EVIL, EVIL)
    setup = LoggedSetup(
        settings={EVIL: EVIL}, device_name=EVIL, machine={EVIL: {EVIL: EVIL}}, data={EVIL: EVIL}
    )
    history = replace(nanogpt_run(), setup=setup, name=EVIL, ledger={EVIL: 3.0})
    history = replace(history, trainer=replace(history.trainer, name=EVIL))
    page = page_of(history, (finding,), EVIL)
    page.encode()
    assert "\x1b" not in page
    assert "\u202e" not in page
    tags = [tag for tag, _ in structure_of(page)]
    assert tags.count("script") == 3
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert not [attrs for _, attrs in structure_of(page) if any(name.startswith("on") for name in attrs)]


def test_the_page_asks_for_nothing() -> None:
    page = page_of(glassgpt_run())
    assert "default-src 'none'" in page
    for _, attrs in structure_of(page):
        assert not {"src", "href", "srcset", "data", "action"} & set(attrs)
    assert "@import" not in page
    assert "url(" not in page
    assert "http" not in page.replace("http-equiv", "")


def test_the_page_can_be_read_by_everyone() -> None:
    seen = structure_of(page_of(glassgpt_run()))
    levels = [int(tag[1]) for tag, _ in seen if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))
    tags = [tag for tag, _ in seen]
    assert tags.count("table") == tags.count("caption")
    assert all(attrs.get("scope") == "row" for tag, attrs in seen if tag == "th")
    charts = [attrs for _, attrs in seen if attrs.get("class") == "chart"]
    assert all(attrs["role"] == "img" and len(attrs["aria-label"] or "") > 20 for attrs in charts)


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
    drawn = dict.fromkeys(("train", "train-eval", "val", "best", "startup", "speed", "rate", "norm"), 3.0)
    for name, needed in (texts | drawn).items():
        for ground in ("card", "page"):
            bright, dim = sorted((_luminance(colours[name]), _luminance(colours[ground])), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= needed, f"{name} on {ground}"


@pytest.mark.parametrize(("language", "direction"), [("en", "ltr"), ("hi", "ltr"), ("ar", "rtl")])
def test_language_and_direction(language: str, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disable_translations(monkeypatch)
    with use_language(language):
        seen = structure_of(page_of(glassgpt_run()))
    assert dict(seen)["html"] == {"lang": language, "dir": direction}
    assert all(attrs["dir"] == "ltr" for tag, attrs in seen if tag == "code" or attrs.get("class") == "chart")
    assert not re.search(r"\b(margin|padding|border)-(left|right)\b|text-align: (left|right)", STYLE)


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
            for figure in figures_of(page).values():
                go.Figure(figure)


def test_a_long_log_makes_a_small_page() -> None:
    count = 300_000
    loss = 3 + np.random.default_rng(0).standard_normal(count)
    loss[123_456], loss[200_001] = 55.0, -44.0
    history = bare_run(make_columns(range(count), loss=loss, ms=np.full(count, 5.0), grad_norm=loss**2))
    page = page_of(history)
    assert len(page) < 1_000_000
    training = figures_of(page)["loss"]["data"][0]
    assert len(training["x"]) <= 2000
    assert {55.0, -44.0} <= set(training["y"])


@given(st.lists(st.floats(allow_nan=True), max_size=300), st.integers(10, 60))
def test_thinning_keeps_the_extremes(values: list[float], limit: int) -> None:
    series = np.array(values, dtype=float)
    indices = thinned_indices(series, limit)
    assert len(indices) <= max(limit, 0)
    assert (np.diff(indices) > 0).all()
    finite = series[np.isfinite(series)]
    if len(finite):
        assert {finite.min(), finite.max()} <= set(series[indices])
    if len(series):
        assert indices[0] == 0
        assert indices[-1] == len(series) - 1


def test_band_tells_noise_from_a_fall() -> None:
    line = np.linspace(9, 3, 2000)
    band = smooth_series(line + 0.2 * np.random.default_rng(3).standard_normal(2000))
    assert band is not None
    assert np.median(band.std) == pytest.approx(0.2, rel=0.1)
    assert band.mean == pytest.approx(line[band.index], abs=0.2)
    assert smooth_series(line[:10]) is None


def test_without_plotly_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    history = nanogpt_run()
    with pytest.raises(UserError, match=r"pip install 'glassgpt\[report\]'"):
        write_report(tmp_path / "report.html", history, Analysis(history).facts, (), "x")
    assert list(tmp_path.iterdir()) == []


def test_writing_replaces_the_old_report_at_once(tmp_path: Path) -> None:
    history, path = nanogpt_run(), tmp_path / "report.html"
    path.write_text("old")
    write_report(path, history, Analysis(history).facts, FINDINGS, "x")
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(UserError, match="could not be written"):
        write_report(tmp_path / "none" / "report.html", history, Analysis(history).facts, (), "x")


def test_neither_torch_nor_plotly_is_loaded_before_it_is_needed() -> None:
    check = "import sys, glassgpt.show.report.page; print({'torch', 'plotly'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
