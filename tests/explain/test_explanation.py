"""Facts, findings and verdict together."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from learning_logs import any_run_log, cpu_run, gpu_run, healthy_run, split_run
from run_logs import make_run_log, make_steps
from timed_logs import any_timed_run, even_run
from written_findings import written_finding

from glassgpt.estimate.cards import find_card
from glassgpt.explain import rules
from glassgpt.explain.explanation import Explanation, explain
from glassgpt.explain.registry import RULES
from glassgpt.i18n import LANGUAGES, use_language
from glassgpt.record import journal
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.run_log import LogEvent, RunLog

SEVERITIES = ("problem", "warning", "advice", "info")

# As the issue names them: at least these.
# fmt: off
NAMED = (
    "eval-spikes", "startup-compile", "mfu-dip-is-eval", "mfu-wrong-peak", "clock-before-sync",
    "hidden-accumulation", "parameters-inferred", "overfitting", "still-improving", "plateau",
    "underfit-capacity", "loss-nan", "loss-spike", "divergence", "init-loss", "skipped-steps",
    "resume-replays-data", "resume-jump", "horizon-changed", "lr-schedule-mismatch", "throughput-drift",
    "jitter", "never-checkpointed", "best-overwritten", "oom", "interrupted", "eval-noise", "ppl-vs-loss",
)
# fmt: on


def checked(explanation: Explanation) -> None:
    """What holds for every explanation."""
    weights = [SEVERITIES.index(finding.severity) for finding in explanation.findings]
    assert weights == sorted(weights)
    ids = [finding.id for finding in explanation.findings]
    assert len(ids) == len(set(ids))
    for finding in explanation.findings:
        assert finding.title
        assert not finding.title.endswith(".")
        assert any(sign.isdigit() for sign in finding.evidence), finding
        assert finding.explanation
        assert finding.advice or finding.severity != "advice", finding
        text = f"{finding.title} {finding.evidence} {finding.explanation} {finding.advice}"
        assert "None" not in text
        assert "{" not in text
        assert "  " not in text
    json.dumps(journal.nonfinite_to_words(explanation.as_dict()), allow_nan=False)


@pytest.mark.parametrize("make", [gpu_run, cpu_run, healthy_run])
def test_runs_as_they_are(make: object) -> None:
    assert callable(make)
    explanation = explain(make())
    checked(explanation)
    assert explanation.facts == Analysis(explanation.log).facts


def test_every_finding_of_the_issue_can_be_made() -> None:
    """By its id in the source of the findings."""
    modules = {inspect.getmodule(rule) for rule in RULES}
    text = "".join(inspect.getsource(module) for module in modules if module is not None)
    assert [name for name in NAMED if f'"{name}"' not in text] == []
    assert len(set(RULES)) == len(RULES)


def test_no_rule_is_missed() -> None:
    """A public function of rules/ that returns a finding is a rule, however its annotation is written."""
    modules = {inspect.getmodule(rule) for rule in RULES}
    returning = {
        function
        for module in modules
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__.startswith("glassgpt.explain.rules")
        and not name.startswith("_")
        and re.search(r"\bFinding\b", str(function.__annotations__.get("return")))
    }
    assert returning == set(RULES)
    files = {path.stem for path in Path(rules.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == {str(module).split("rules.")[1].split("'")[0] for module in modules}


def test_the_gpu_run_is_past_its_best() -> None:
    explanation = explain(gpu_run())
    assert "overfitting" in [finding.id for finding in explanation.findings]
    assert "1.4576 at iteration 1,750" in " ".join(explanation.verdict)


def test_a_crash_comes_first() -> None:
    run = gpu_run()
    event = LogEvent("oom", "CUDA out of memory. Tried to allocate 2.00 GiB", 900, 5000)
    explanation = explain(replace(run, events=(event,), last_step_line=800))
    assert explanation.findings[0].id == "oom"
    assert explanation.facts.ended == "oom"


def test_the_card_is_used() -> None:
    run = make_run_log(make_steps(range(0, 1000, 10), 100.0, [2.0] * 100, mfu=[11.0] * 100))
    card = find_card("RTX 4070 Ti")
    assert "RTX 4070 Ti" in str(explain(run, card).findings)


def test_findings_of_the_run_itself() -> None:
    record = {
        "kind": "finding",
        "id": "rate-jump",
        "severity": "warning",
        "title": "T",
        "evidence": "E",
        "advice": "A",
    }
    strange = {"kind": "finding", "severity": ["fatal"], "title": None, "evidence": 5}
    explanation = explain(replace(healthy_run(), journal_findings=(record, strange)))
    assert written_finding("rate-jump", "warning", "T", "E", "", "A") in explanation.findings
    json.dumps(journal.nonfinite_to_words(explanation.as_dict()), allow_nan=False)


def test_json_has_exactly_these_parts() -> None:
    assert list(explain(gpu_run()).as_dict()) == [
        "schema_version",
        "format",
        "facts",
        "findings",
        "verdict",
        "runs",
    ]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("make", [gpu_run, cpu_run, healthy_run])
def test_the_same_is_found_in_every_language(make: object, language: str) -> None:
    assert callable(make)
    english = explain(make())
    with use_language(language):
        other = explain(make())
        translated = [finding.title for finding in other.findings]
    assert other.facts == english.facts
    assert other.findings == english.findings
    for finding, title in zip(english.findings, translated, strict=True):
        assert (finding.title == title) == (language == "en")


@pytest.mark.parametrize("language", sorted(set(LANGUAGES) - {"en"}))
def test_no_english_sentence_is_left(language: str) -> None:
    in_bits = replace(gpu_run(), val_metric="bits_per_byte")
    nan = replace(
        gpu_run().steps, loss=np.where(gpu_run().steps.iteration > 4000, np.nan, gpu_run().steps.loss)
    )
    resumed = split_run(cpu_run(), 1000, 1200)
    runs = [gpu_run(), cpu_run(), healthy_run(), in_bits, replace(gpu_run(), steps=nan), resumed, even_run()]
    with use_language(language):
        for explanation in map(explain, runs):
            texts = [*explanation.verdict]
            for one in explanation.findings:
                texts += [one.title, one.evidence, one.explanation, one.advice, one.more]
            assert not re.findall(
                r"(?<![\w=.`-])[A-Za-z][a-z]+ [a-z]{2,} [a-z]{2,}(?![\w=`-])", "\n".join(texts)
            )


@settings(max_examples=40, deadline=None)
@given(any_run_log())
def test_any_run_can_be_explained(run_log: RunLog) -> None:
    explanation = explain(run_log)
    assert explanation.verdict
    json.dumps(journal.nonfinite_to_words(explanation.as_dict()), allow_nan=False)


@settings(max_examples=40, deadline=None)
@given(any_timed_run())
def test_any_times_can_be_explained_in_any_language(run_log: RunLog) -> None:
    for language in LANGUAGES:
        with use_language(language):
            assert explain(run_log).verdict
