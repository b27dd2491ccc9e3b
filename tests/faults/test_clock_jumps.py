"""A clock that jumps, as clocks do when a laptop wakes up or a time server corrects them."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.config import TrainConfig
from glassgpt.record import journal
from glassgpt.runs.run_list import summarize
from glassgpt.training.session import resume, train


@pytest.mark.parametrize("jump_s", [-86_400.0, -3.0, 3600.0, 365 * 86_400.0])
def test_a_jump_changes_dates_and_nothing_else(
    tiny: object, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    config: TrainConfig = tiny(max_iters=20, log_interval=1)  # type: ignore[operator]
    real, calls = time.time, itertools.count()
    started = time.perf_counter()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real() + (jump_s if next(calls) > 10 else 0.0))
        run = train(config)
    wall = time.perf_counter() - started
    assert run.reason == "finished"
    records = list(journal.read(run.out_dir / journal.FILE_NAME))
    jumps = [abs(b["time"] - a["time"]) > 2 for a, b in itertools.pairwise(records)]
    assert sum(jumps) == 1, "the jump is in the journal"
    end = records[-1]
    assert 0 < end["wall_s"] <= wall
    assert all(0 <= seconds <= wall for seconds in end["ledger"].values())
    for step in (record for record in records if record["kind"] == "step" and record["step_ms"]):
        assert 0 < step["step_ms"] < wall * 1000
        assert step["eta_s"] is None or 0 <= step["eta_s"] < 60
    assert summarize(run.out_dir).state == "finished"
    assert resume(str(run.out_dir), max_iters=22).iter == 22


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e9, 1e9), min_size=3, max_size=3))
def test_the_order_of_records_is_that_of_the_file(dates: list[float]) -> None:
    records = [
        {"kind": "step", "time": dates[0], "iter": 1},
        {"kind": "step", "time": dates[1], "iter": 2},
        {"kind": "resume", "time": dates[2], "iter": 1, "from_iter": 1},
    ]
    assert [record["iter"] for record in journal.effective_records(records)] == [1, 1]
