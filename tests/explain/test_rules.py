"""What holds for every rule about learning, crashes and resumes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from learning_logs import analyse, any_run_log, cpu_run, gpu_run, healthy_run

from glassgpt.explain.registry import FAILURE_RULES, LEARNING_RULES, RESUME_RULES, Rule
from glassgpt.runs.run_log import RunLog


@pytest.mark.parametrize("rule", [*FAILURE_RULES, *LEARNING_RULES, *RESUME_RULES])
def test_a_healthy_run_has_no_finding(rule: Rule) -> None:
    assert rule(analyse(healthy_run())) is None


@pytest.mark.parametrize("rule", [*FAILURE_RULES, *RESUME_RULES])
def test_a_run_that_only_learns_as_usual_did_not_crash(rule: Rule) -> None:
    for run_log in (cpu_run(), gpu_run()):
        assert rule(analyse(run_log)) is None


@pytest.mark.parametrize(
    "rules", [FAILURE_RULES, LEARNING_RULES, RESUME_RULES], ids=["failure", "learning", "resume"]
)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(any_run_log())
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_any_run_log_is_survived(rules: tuple[Rule, ...], run_log: RunLog) -> None:
    analysis = analyse(run_log)
    for rule in rules:
        finding = rule(analysis)
        assert finding is None or finding.evidence


# Pairs of findings that cannot both be true of one run.
EXCLUSIVE = (
    {"loss-explosion", "divergence"},
    {"overfitting", "still-improving"},
    {"plateau", "still-improving"},
    {"overfitting", "leaked-data"},
    {"plateau", "divergence"},
    {"crashed", "interrupted"},
    {"ended-early", "crashed"},
)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(any_run_log())
def test_findings_of_any_run_neither_contradict_nor_exclude_each_other(run_log: RunLog) -> None:
    analysis = analyse(run_log)
    stated: dict[str, tuple[object, str]] = {}
    found = set()
    for rule in (*FAILURE_RULES, *LEARNING_RULES, *RESUME_RULES):
        if (finding := rule(analysis)) is not None:
            found.add(finding.id)
            for subject, value in finding.claims.items():
                before = stated.setdefault(subject, (value, finding.id))
                assert before[0] == value, (subject, before, finding.id)
    assert not [pair for pair in EXCLUSIVE if pair <= found]
