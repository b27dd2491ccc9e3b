"""How far a run is and when it will be done, by a clock that the test sets."""

from __future__ import annotations

from dataclasses import replace

import journals
import pytest
from run_logs import make_run_log, make_steps

from glassgpt.runs.analysis import Analysis
from glassgpt.runs.from_journal import run_log_from_records
from glassgpt.runs.progress import Progress, is_growing, progress_of
from glassgpt.runs.run_log import RunLog

WRITTEN_AT = 1.0e9


def progress(run_log: RunLog, seconds_later: float = 0.0) -> Progress:
    return progress_of(Analysis(run_log), run_log, WRITTEN_AT + seconds_later, WRITTEN_AT)


def own_run(last: int, max_iters: int = 200, step_ms: float = 40.0) -> RunLog:
    """An update takes 40 ms, an evaluation of both splits 800 ms, a save 0.25 ms; both every 50 updates."""
    records = [journals.run(max_iters), journals.first_step()]
    for at in range(10, last + 1, 10):
        records.append(journals.step(at, step_ms=step_ms))
        if at % 50 == 0:
            records += [journals.evaluation(at, split, 3.0) for split in ("train", "val")]
            records.append(journals.checkpoint(at))
    return run_log_from_records(records, "run", live=True)


def test_the_end_counts_evaluations_and_checkpoints() -> None:
    now = progress(own_run(120))
    assert (now.state, now.done, now.planned) == ("training", 120, 200)
    # 80 updates, evaluations and saves at 150 and 200.
    assert now.eta_s == pytest.approx(80 * 0.04 + 2 * 0.8 + 2 * 0.00025)
    assert now.counts_evaluations
    assert now.share == pytest.approx(0.6)
    assert now.loss == pytest.approx(4.0 - 120 / 50)


def test_time_goes_on_after_the_last_line() -> None:
    run_log = own_run(120)
    at_once, later = progress(run_log).eta_s, progress(run_log, 2.0).eta_s
    assert at_once is not None
    assert later == pytest.approx(at_once - 2.0)
    assert progress(run_log, 20.0).eta_s == 0.0


def test_the_present_regime_counts() -> None:
    """The machine became three times as slow: what is left takes three times as long."""
    fast, slow = [20.0] * 60, [60.0] * 60
    steps = make_steps(range(0, 1200, 10), ms=[*fast, *slow], loss=[2.0] * 120)
    run_log = make_run_log(steps, settings={"max_iters": 2190}, live=True)
    assert progress(run_log).eta_s == pytest.approx(1000 * 0.06)


def test_an_evaluation_is_due() -> None:
    records = [journals.run(200), journals.first_step(), *(journals.step(at) for at in range(10, 60, 10))]
    assert progress(run_log_from_records(records, "run", live=True)).state == "evaluating"


def test_starting_stalled_and_over() -> None:
    starting = run_log_from_records([journals.run(200)], "run", live=True)
    assert (progress(starting, 100.0).state, progress(starting).eta_s) == ("starting", None)
    run_log = own_run(120)  # a line every 0.4 s
    assert progress(run_log, 25.0).state == "training"
    stalled = progress(run_log, 40.0)
    assert stalled.state == "stalled"
    assert stalled.quiet_s == 40.0
    assert stalled.usual_gap_s == pytest.approx(0.4)
    over = progress(replace(run_log, live=False), 40.0)
    assert (over.state, over.eta_s, over.is_over) == ("cut", None, True)


def test_a_slow_log_is_not_stalled() -> None:
    """A line every ten minutes."""
    steps = make_steps(range(0, 40), ms=600_000.0, loss=[2.0] * 40)
    run_log = make_run_log(steps, settings={"max_iters": 100}, live=True)
    assert progress(run_log, 3600.0).state == "training"
    assert progress(run_log, 7200.0).state == "stalled"
    assert is_growing(Analysis(run_log), run_log, WRITTEN_AT + 7200, WRITTEN_AT)
    assert not is_growing(Analysis(run_log), run_log, WRITTEN_AT + 100_000, WRITTEN_AT)


def test_a_log_that_says_it_is_over_is_not_growing() -> None:
    steps = make_steps(range(0, 101, 10), loss=[2.0] * 11)
    planned = make_run_log(steps, settings={"max_iters": 100})
    assert not is_growing(Analysis(planned), planned, WRITTEN_AT + 1, WRITTEN_AT)
    open_end = make_run_log(steps, settings={"max_iters": 1000})
    assert is_growing(Analysis(open_end), open_end, WRITTEN_AT + 1, WRITTEN_AT)


def test_a_plan_that_is_not_known() -> None:
    now = progress(make_run_log(make_steps(range(0, 200, 10), loss=[2.0] * 20), live=True))
    assert (now.planned, now.eta_s, now.share, now.done) == (None, None, None, 190)


@pytest.mark.parametrize(
    ("iterations", "interval"),
    [([1, 200, 400], 200), ([1, 20], None), ([1, 20, 39], 19), ([1, 2], 1), ([10, 20], 10), ([0, 5, 10], 5)],
)
def test_a_line_of_the_very_first_iteration_is_beside_the_interval(
    iterations: list[int], interval: int | None
) -> None:
    assert make_run_log(make_steps(iterations, loss=[3.0] * len(iterations))).log_interval() == interval
