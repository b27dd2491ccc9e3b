"""How long a run took by the time stamps of its lines, and what its iterations leave of that."""

from __future__ import annotations

import numpy as np
import pytest
from log_checks import parse_log
from run_logs import make_run_log, make_steps

from glassgpt.runs import step_clock
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.step_clock import LineStamps, stamped_seconds
from glassgpt.runs.trainers import BY_ID


def stamp(seconds: int) -> str:
    return f"2026-03-31 14:{seconds // 60:02d}:{seconds % 60:02d},250"


def test_the_forms_of_a_stamp() -> None:
    stamps = LineStamps()
    for line, text in enumerate(
        (
            "START TIME: Tue Mar 31 14:09:57 CEST 2026",
            "[2026-03-31 14:11:11.448457] iteration",
            "14:12:00",
            "2026/03/31T14:12:00",
            "End time: Tue Mar 31 14:12:08 CEST 2026",
            "2026-13-45 14:00:00",
        ),
        1,
    ):
        stamps.add(line, text[:40], text)
    pairs = stamps.build()
    assert [line for line, _ in pairs] == [1, 2, 4, 5]
    assert stamped_seconds(pairs, 1, 6) == pytest.approx(131)
    assert stamped_seconds(pairs, 2, 4) == pytest.approx(48.551543)
    assert stamped_seconds(pairs, 3, 4) is None, "one stamp"
    assert stamped_seconds([(1, 1000.0), (2, 10.0)], 1, 2) is None, "the clock went back"


def test_stamps_that_do_not_surround_the_steps_tell_no_time() -> None:
    stamps, lines = [(1, 0.0), (5, 60.0)], np.arange(2, 102)
    assert stamped_seconds(stamps, 1, 200, lines) is None
    assert stamped_seconds([*stamps, (101, 600.0)], 1, 200, lines) == 600
    assert stamped_seconds([*stamps[1:], (101, 600.0)], 1, 200, lines) is None


def test_the_last_stamp_of_very_many_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_clock, "_MAX_STAMPS", 100)
    stamps = LineStamps()
    for line in range(1, 252):
        stamps.add(line, f"2026-03-31 14:{line // 60:02d}:{line % 60:02d}.0")
    pairs = stamps.build()
    assert len(pairs) <= 101
    assert stamped_seconds(pairs, 1, 251) == pytest.approx(250)


@pytest.mark.parametrize(("last", "total"), [(70, 70.0), (31, 30.0)])
def test_a_total_is_that_of_the_stamps_where_iterations_are_much_less(last: int, total: float) -> None:
    """Megatron's 30 iterations of a second each; the rest is loading and saving."""
    line = (
        " [{stamp}] iteration {at:8d}/      30 | consumed samples: {at} | elapsed time per iteration (ms): "
        "1000.0 | learning rate: 1.5E-04 | global batch size: 1 | lm loss: 1.0E+01 | loss scale: 1.0 | "
        "grad norm: 3.1 | number of skipped iterations: 0 | number of nan iterations: 0 |\n"
    )
    begin = last - 31 + 1
    text = f"{stamp(0)} - INFO - loading\n"
    text += "".join(line.format(stamp=stamp(begin + at), at=at) for at in range(1, 31))
    text += f"{stamp(last)} - INFO - done\n"
    analysis = Analysis(parse_log(text))
    facts = analysis.facts
    assert facts.stamped_s == pytest.approx(last)
    assert (facts.estimated_total_s, facts.regime_total_s) == pytest.approx((30.0, 30.0))
    assert facts.total_s == pytest.approx(total)
    assert facts.seconds_by_phase is not None
    assert sum(facts.seconds_by_phase.values()) == pytest.approx(total)


def test_rows_without_a_time_have_that_of_the_clocks_next_mean() -> None:
    """Each third row has a time, the mean over all iterations since the one before it."""
    ms = [float("nan"), float("nan"), 100.0] * 10 + [float("nan"), float("nan"), 400.0] * 10
    run_log = make_run_log(make_steps(range(1, 61), ms), trainer=BY_ID["mlx-lm"])
    assert run_log.trainer.step_time_is_interval_mean
    assert Analysis(run_log).total_s == pytest.approx(30 * 0.1 + 30 * 0.4)
