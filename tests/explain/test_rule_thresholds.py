"""What a rule makes of a value just below and just above its threshold."""

from __future__ import annotations

from run_logs import make_run_log, make_steps

from glassgpt.explain.rules.overfitting import overfitting
from glassgpt.explain.rules.step_time import find_throughput_drift
from glassgpt.runs.analysis import Analysis


def severity_after_rise(rise: float) -> str | None:
    """Of a run whose best validation loss is 2, and whose training loss falls all the time."""
    losses = [
        4.3,
        3.0,
        2.5,
        2.2,
        2.05,
        2.01,
        2.0,
        *(2 + share * rise for share in (0.25, 0.5, 0.9, 0.95, 1.0)),
    ]
    evals = [(50 * at, 2.0 - 0.02 * at, loss) for at, loss in enumerate(losses)]
    finding = overfitting(Analysis(make_run_log(make_steps(range(551)), evals=evals)))
    return None if finding is None else finding.severity


def test_overfitting_by_two_percent_of_the_best_loss_is_a_warning() -> None:
    assert [severity_after_rise(rise) for rise in (0.005, 0.039, 0.041)] == [None, "advice", "warning"]


def test_only_a_sudden_change_of_the_step_time_makes_a_regime() -> None:
    iterations = range(200)
    sudden = [100.0 + at % 3 + 50 * (at >= 120) for at in iterations]
    slow = [100.0 + at % 3 + 0.5 * at for at in iterations]
    for ms, starts in ((sudden, [0, 120]), (slow, [0])):
        analysis = Analysis(make_run_log(make_steps(iterations, ms)))
        assert [regime.first_iteration for regime in analysis.regimes] == starts
        assert (find_throughput_drift(analysis) is None) == (len(starts) > 1)
