"""What holds for every finding about learning, accidents and resumes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from learning_logs import about, any_history, cpu_run, gpu_run, healthy_run

from glassgpt.explain.rule import Finder
from glassgpt.explain.rules import crash_rules, learning_rules, resumes
from glassgpt.runs.run_log import History


@pytest.mark.parametrize("finder", [*crash_rules.FINDERS, *learning_rules.FINDERS, *resumes.FINDERS])
def test_a_healthy_run_has_none(finder: Finder) -> None:
    assert finder(about(healthy_run())) is None


@pytest.mark.parametrize("finder", [*crash_rules.FINDERS, *resumes.FINDERS])
def test_a_run_that_only_learns_as_usual_had_no_accident(finder: Finder) -> None:
    for history in (cpu_run(), gpu_run()):
        assert finder(about(history)) is None


@pytest.mark.parametrize("module", [crash_rules, learning_rules, resumes], ids=lambda module: module.__name__)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(any_history())
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_any_history_is_survived(module: object, history: History) -> None:
    case = about(history)
    for finder in module.FINDERS:  # type: ignore[attr-defined]
        finding = finder(case)
        assert finding is None or finding.evidence
