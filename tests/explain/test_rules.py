"""What holds for every finding about learning, accidents and resumes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from learning_logs import analyse, any_history, cpu_run, gpu_run, healthy_run

from glassgpt.explain.rule import Rule
from glassgpt.explain.rules import crash_rules, learning_rules, resumes
from glassgpt.runs.run_log import RunLog


@pytest.mark.parametrize("finder", [*crash_rules.RULES, *learning_rules.RULES, *resumes.RULES])
def test_a_healthy_run_has_none(finder: Rule) -> None:
    assert finder(analyse(healthy_run())) is None


@pytest.mark.parametrize("finder", [*crash_rules.RULES, *resumes.RULES])
def test_a_run_that_only_learns_as_usual_had_no_accident(finder: Rule) -> None:
    for history in (cpu_run(), gpu_run()):
        assert finder(analyse(history)) is None


@pytest.mark.parametrize("module", [crash_rules, learning_rules, resumes], ids=lambda module: module.__name__)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(any_history())
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_any_history_is_survived(module: object, history: RunLog) -> None:
    case = analyse(history)
    for finder in module.FINDERS:  # type: ignore[attr-defined]
        finding = finder(case)
        assert finding is None or finding.evidence
