"""Where the time went: each millisecond once, and a sleeping laptop is no evaluation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from run_logs import NANOGPT, make_run_log, make_steps
from timed_logs import any_timed_run

from glassgpt.explain.rules.eval_cost import eval_spikes
from glassgpt.explain.rules.stalls import silent_spike
from glassgpt.runs import time_split
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.run_log import LoggedEvaluation, LoggedProcess, RunLog
from glassgpt.runs.step_clock import StepClock


def evaluated(eval_ms: dict[int, float], stalls_ms: dict[int, float] | None = None) -> RunLog:
    """2,001 iterations of 100 ms, a line every ten; `eval_ms`: what an evaluation adds to its iteration."""
    at = range(0, 2001, 10)
    added = {**eval_ms, **(stalls_ms or {})}
    ms = [100.0 + added.get(i, 0.0) for i in at]
    ms[0] += 5000.0
    return make_run_log(make_steps(at, ms), [(i, 2.0, 2.0) for i in eval_ms], ended="finished")


AWAKE = dict.fromkeys(range(0, 2001, 100), 8000.0)
ASLEEP = {**AWAKE, **dict.fromkeys((700, 800, 1100, 1200, 1300, 1400, 1600, 1900), 900000.0)}


def test_every_millisecond_is_in_one_phase() -> None:
    phases = Analysis(evaluated(AWAKE)).seconds_by_phase
    assert phases == pytest.approx({"startup": 5.0, "train": 2001 * 0.1, "pauses": 21 * 8.0})
    assert Analysis(evaluated(AWAKE)).total_s == pytest.approx(5 + 200.1 + 168)


def test_sleep_is_no_evaluation() -> None:
    """Evaluations take 8 s; eight of them, and one other iteration, took 15 minutes more."""
    run_log = evaluated(ASLEEP, {1550: 900_000.0})
    analysis = Analysis(run_log)
    stall_s = 8 * 892.0 + 900.0
    assert analysis.eval_overhead_typical_ms == 8000.0
    assert analysis.seconds_by_phase == pytest.approx(
        {"startup": 5.0, "train": 200.1, "pauses": 168.0, "stall": stall_s}
    )
    cost, stalls = eval_spikes(analysis), silent_spike(analysis)
    assert cost is not None
    assert stalls is not None
    total_s = 5 + 200.1 + 168 + stall_s
    assert cost.values["eval_share"] == pytest.approx(168 / total_s)
    assert (stalls.severity, stalls.values["stalled_evals"], stalls.values["evaluations"]) == (
        "warning",
        8,
        20,
    )
    assert stalls.values["lost_share"] == pytest.approx(stall_s / total_s)
    # The plain definition stays what it was.
    assert analysis.facts.eval_overhead_ms == pytest.approx(8000.0)
    most = {**AWAKE, **dict.fromkeys(range(300, 1900, 100), 900_000.0)}
    plain = Analysis(evaluated(most)).facts
    assert (plain.eval_overhead_ms, plain.eval_overhead_typical_ms) == (900_000.0, 8000.0)


def test_the_first_line_of_an_excerpt_is_no_stall() -> None:
    """Its time may be that of many iterations; that of a later line, or of lines one apart, is its own."""
    for row, every, is_found in ((0, 100, False), (7, 100, True), (0, 1, True)):
        ms = [100.0] * 40
        ms[row] = 60_000.0
        at = range(5000, 5000 + 40 * every, every)
        run_log = make_run_log(make_steps(at, ms), segments=(LoggedProcess(has_startup=False),))
        assert (silent_spike(Analysis(run_log)) is not None) == is_found


def test_regular_extra_work_is_no_stall() -> None:
    """Every fourth evaluation also samples; or the few that save take longer."""
    sampling = {at: 40_000.0 if at % 400 == 0 else 8000.0 for at in range(0, 2001, 100)}
    assert "stall" not in (Analysis(evaluated(sampling)).seconds_by_phase or {})
    saving = {at: 40_000.0 if at in (100, 200, 500) else 8000.0 for at in range(0, 2001, 100)}
    run_log = evaluated(saving)
    saves = make_run_log(run_log.steps, checkpoints=[100, 200, 500]).checkpoints
    assert "stall" not in (Analysis(replace(run_log, checkpoints=saves)).seconds_by_phase or {})


def test_evaluations_timed_apart_are_in_the_total() -> None:
    steps = make_steps(range(1, 101), 100.0)
    apart = replace(NANOGPT, step_time_includes_eval=False, evaluates_before_first_step=False)
    evals = tuple(LoggedEvaluation(at, 0, 2.0, ms=3000.0) for at in (50, 100))
    analysis = Analysis(replace(make_run_log(steps, trainer=apart), evals=evals))
    assert analysis.seconds_by_phase == pytest.approx({"train": 10.0, "pauses": 6.0})
    assert analysis.total_s == pytest.approx(16.0)
    untimed = replace(analysis.log, evals=tuple(replace(one, ms=None) for one in evals))
    assert Analysis(untimed).seconds_by_phase is None  # not "no evaluation"


def test_with_one_regime_and_no_stall_both_definitions_agree() -> None:
    noisy = np.random.default_rng(0).normal(100, 3, 201)
    run_log = evaluated(AWAKE)
    run_log = replace(run_log, steps=replace(run_log.steps, ms=run_log.steps.ms - 100 + noisy))
    facts = Analysis(run_log).facts
    assert facts.regime_total_s == pytest.approx(facts.estimated_total_s)
    assert facts.eval_overhead_typical_ms == pytest.approx(facts.eval_overhead_ms)


@given(any_timed_run())
def test_phases_sum_to_the_total(run_log: RunLog) -> None:
    analysis = Analysis(run_log)
    phases, total_s = analysis.seconds_by_phase, analysis.total_s
    assert phases is None or all(seconds > 0 for seconds in phases.values())
    if phases and run_log.ledger is None:
        assert sum(phases.values()) == pytest.approx(total_s)


def test_slow_rows_of_one_iteration_have_no_interval() -> None:
    """Iterations that go back, as those of hostile logs do: the distance of two slow ones may be 0."""
    iterations = list(range(100, 0, -5))
    run_log = make_run_log(make_steps(iterations, 10.0, [3.0] * len(iterations)), [], [])
    assert run_log.log_interval() == -5
    assert time_split._regular_interval(run_log, np.array([70, 70, 80])) is None


def test_the_first_of_means_is_of_all_iterations_before_it() -> None:
    means = replace(NANOGPT, step_time_is_interval_mean=True)
    for first, total_s in ((5, 4 * 5 * 0.1 + 5 * 0.9), (100, 4 * 5 * 0.1 + 0.9)):  # of an excerpt: unknown
        at = range(first, first + 25, 5)
        run_log = replace(make_run_log(make_steps(at, [900.0] + 4 * [100.0])), trainer=means)
        assert Analysis(run_log).stepped_s == pytest.approx(total_s)


def test_of_very_many_evaluations_no_duration_is_known() -> None:
    for count in (20, 20_000):
        clock = StepClock(0.001)
        ms = []
        for at in range(count):
            ms.append(clock.step_ms(2 * at, 3.0 * at))
            ms.append(clock.step_ms(2 * at + 1, 3.0 * at + 1))
            clock.add_eval(None, at)
        durations = clock.eval_ms(np.array(ms))
        assert len(durations) == (20 if count == 20 else 0)
