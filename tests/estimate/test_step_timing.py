"""Every figure a run shows, by numbers and with a fake clock."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.estimate.peak import PeakFlops
from glassgpt.estimate.step_timing import (
    STEP_PHASES,
    LogInterval,
    Rates,
    RemainingWork,
    RunningMean,
    compute_rates,
    eta_s,
    remaining_work,
)
from glassgpt.record.ledger import Ledger

few = settings(max_examples=100, deadline=None)


class Bench:
    """A ledger with a fake clock, and the loop's moves on it."""

    def __init__(self) -> None:
        self.now = 50.0
        self.ledger = Ledger(lambda: self.now)
        self.interval = LogInterval(self.ledger)

    def spend(self, phase: str, seconds: float) -> None:
        with self.ledger.phase(phase):
            self.now += seconds

    def update(self, data: float, train: float) -> None:
        with self.ledger.phase("train"):
            with self.ledger.phase("data"):
                self.now += data
            self.now += train
        self.interval.count_update()

    def first_update(self, seconds: float) -> None:
        self.spend("compile", seconds)
        self.interval.count_update(seconds)


# --- rates


def test_rates_by_numbers() -> None:
    # 10 updates of 500 tokens in 2 s; 1 MFLOP a token; 10 GFLOP/s is the peak.
    found = compute_rates(10, 2.0, 500, 1_000_000, PeakFlops(table=10e9))
    assert found == Rates(step_ms=200.0, tokens_per_s=2500.0, flops_per_s=2.5e9, mfu=25.0)
    # Shared by five devices, of which each has that peak.
    found = compute_rates(10, 2.0, 500, 1_000_000, PeakFlops(table=10e9), ranks=5)
    assert found == Rates(step_ms=200.0, tokens_per_s=2500.0, flops_per_s=2.5e9, mfu=5.0)


@few
@given(
    st.integers(1, 1000),
    st.floats(1e-6, 1e6),
    st.integers(1, 10**6),
    st.integers(1, 10**12),
    st.floats(1e6, 1e18),
)
def test_the_identities_hold(updates: int, seconds: float, tokens: int, flops: int, peak: float) -> None:
    found = compute_rates(updates, seconds, tokens, flops, PeakFlops(measured=peak))
    assert found.step_ms is not None
    assert found.tokens_per_s is not None
    assert found.flops_per_s == found.tokens_per_s * flops
    assert found.mfu == pytest.approx(100 * found.flops_per_s / peak, rel=1e-12)
    assert found.tokens_per_s * found.step_ms / 1000 == pytest.approx(tokens, rel=1e-12)


def test_without_an_update_or_time_nothing_is_claimed() -> None:
    nothing = Rates(None, None, None, None)
    assert compute_rates(0, 3.0, 10, 10, PeakFlops(table=1e9)) == nothing
    assert compute_rates(4, 0.0, 10, 10, PeakFlops(table=1e9)) == nothing
    assert compute_rates(4, -1.0, 10, 10, PeakFlops(table=1e9)) == nothing


def test_without_a_peak_there_is_no_mfu() -> None:
    found = compute_rates(1, 1.0, 10, 10, PeakFlops())
    assert (found.tokens_per_s, found.flops_per_s, found.mfu) == (10.0, 100.0, None)


def test_the_table_counts_before_the_measurement() -> None:
    assert compute_rates(1, 1.0, 10, 10, PeakFlops(table=200.0, measured=1000.0)).mfu == 50.0


# --- intervals


def test_step_time_leaves_everything_else_out() -> None:
    bench = Bench()
    bench.update(data=1, train=4)
    bench.spend("eval", 100)
    bench.spend("checkpoint", 30)
    bench.spend("log", 7)
    bench.spend("compile", 60)
    bench.now += 3  # nobody's
    bench.update(data=0, train=5)
    assert bench.interval.updates == 2
    seconds, phases = bench.interval.close()
    assert seconds == 10.0
    assert compute_rates(2, seconds, 64, 1, PeakFlops()).step_ms == 5000.0
    assert {name: value for name, value in phases.items() if value} == {
        "data": 1.0,
        "train": 9.0,
        "eval": 100.0,
        "checkpoint": 30.0,
        "log": 7.0,
        "compile": 60.0,
        "other": 3.0,
    }
    assert STEP_PHASES == ("data", "train")


def test_the_first_update_is_compile_minus_a_steady_one() -> None:
    bench = Bench()
    bench.first_update(60)
    for _ in range(4):
        bench.update(data=1, train=2)
    assert bench.interval.updates == 4
    seconds, phases = bench.interval.close()
    assert seconds == 12.0  # four updates of 3 s: the first is in no step time
    assert phases["compile"] == 57.0  # 60 - 3
    assert phases["train"] == 11.0  # 4 x 2 + the steady one inside the first
    assert phases["data"] == 4.0
    assert sum(phases.values()) == 72.0
    bench.update(data=1, train=2)
    assert bench.interval.close() == (3.0, phases | {"compile": 0.0, "train": 2.0, "data": 1.0})


def test_what_lies_before_the_first_update_is_not_its_steady_one() -> None:
    bench = Bench()
    bench.update(data=0, train=40)  # before the first: not what is timed
    bench.interval.close()
    bench.spend("train", 9)  # waiting for the device counts as train
    bench.first_update(60)
    bench.update(data=0, train=2)
    seconds, phases = bench.interval.close()
    assert seconds == 2.0
    assert phases["compile"] == 58.0


def test_a_first_update_alone_gives_no_speed_and_is_settled_later() -> None:
    bench = Bench()
    bench.first_update(60)
    assert bench.interval.updates == 0
    seconds, phases = bench.interval.close()
    assert seconds == 0.0
    assert phases["compile"] == 60.0
    bench.update(data=1, train=2)
    seconds, phases = bench.interval.close()
    assert seconds == 3.0
    assert sum(phases.values()) == 3.0
    total = bench.ledger.seconds()
    assert (total["compile"], total["train"], total["data"]) == (57.0, 5.0, 1.0)


def test_no_interval_has_a_negative_phase() -> None:
    bench = Bench()
    bench.first_update(60)
    bench.interval.close()
    bench.update(data=1, train=2)
    _, phases = bench.interval.close()
    assert min(phases.values()) >= 0


def test_a_first_update_faster_than_a_steady_one_leaves_no_negative_ledger() -> None:
    bench = Bench()
    bench.first_update(1)
    bench.update(data=0, train=5)
    bench.interval.close()
    total = bench.ledger.seconds()
    assert (total["compile"], total["train"]) == (0.0, 6.0)


def test_an_interval_without_updates() -> None:
    bench = Bench()
    bench.spend("eval", 8)
    seconds, phases = bench.interval.close()
    assert seconds == 0.0
    assert phases["eval"] == 8.0
    assert compute_rates(bench.interval.updates, seconds, 64, 1, PeakFlops(table=1.0)).step_ms is None
    seconds, phases = bench.interval.close()
    assert (seconds, sum(phases.values())) == (0.0, 0.0)


def test_intervals_join_without_gap_or_overlap() -> None:
    bench = Bench()
    total = 0.0
    for number in range(5):
        bench.update(data=number, train=2 * number)
        bench.now += number  # nobody's
        total += sum(bench.interval.close()[1].values())
    assert total == bench.now - 50.0


@pytest.mark.parametrize(("waited", "data", "train"), [(2.0, 2.0, 9.0), (9.0, 9.0, 2.0), (0.0, 0.0, 11.0)])
def test_data_is_what_the_device_waited_for(waited: float, data: float, train: float) -> None:
    bench = Bench()
    bench.update(data=4, train=7)
    bench.interval.correct_data_wait(waited)
    seconds, phases = bench.interval.close()
    assert seconds == 11.0  # the step time does not change
    assert (phases["data"], phases["train"]) == (data, train)


def test_where_the_device_does_not_say_the_hosts_view_stays() -> None:
    bench = Bench()
    bench.update(data=4, train=7)
    bench.interval.correct_data_wait(None)
    assert bench.interval.close()[1]["data"] == 4.0


def test_each_split_corrects_only_what_came_after_the_last() -> None:
    bench = Bench()
    bench.update(data=4, train=7)
    bench.interval.correct_data_wait(1.0)
    bench.update(data=5, train=6)
    bench.interval.correct_data_wait(2.0)
    bench.update(data=3, train=1)
    bench.interval.correct_data_wait(None)
    seconds, phases = bench.interval.close()
    assert (phases["data"], phases["train"], seconds) == (1 + 2 + 3, 10 + 9 + 1, 26.0)


@few
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 30)), min_size=1, max_size=8))
def test_splitting_never_changes_the_step_time_or_the_wall(story: list[tuple[int, int, int]]) -> None:
    bench = Bench()
    for data, train, waited in story:
        bench.update(data, train)
        bench.interval.correct_data_wait(float(waited))
    seconds, phases = bench.interval.close()
    assert seconds == sum(data + train for data, train, _ in story)
    assert min(phases.values()) >= 0


# --- time to go


def test_time_to_go_by_numbers() -> None:
    # 100 updates of 0.5 s, 3 evaluations of 7 s, 2 saves of 1.25 s
    assert eta_s(RemainingWork(100, 3, 2), 0.5, 7.0, 1.25) == 73.5
    assert eta_s(RemainingWork(0, 0, 0), 0.5, 7.0, 1.25) == 0.0
    assert eta_s(RemainingWork(100, 3, 2), None, 7.0, 1.25) is None


def test_what_is_left_of_a_run() -> None:
    # Evaluations at 0, 50, 100 and 120, the end.
    assert remaining_work(0, 120, 50) == RemainingWork(120, 4, 4)
    assert remaining_work(50, 120, 50) == RemainingWork(70, 3, 3)
    assert remaining_work(50, 120, 50, is_evaluated=True) == RemainingWork(70, 2, 2)
    assert remaining_work(50, 120, 50, 40, closing_eval=0.5) == RemainingWork(70, 3.5, 2)
    assert remaining_work(120, 120, 50, is_evaluated=True) == RemainingWork(0, 0, 0)
    assert remaining_work(200, 120, 50, is_evaluated=True) == RemainingWork(0, 0, 0)


def test_a_mean_of_nothing_is_nothing() -> None:
    mean = RunningMean()
    assert mean.value == 0.0
    mean.add(1.0)
    mean.add(4.0)
    assert mean.value == 2.5
    assert not math.isnan(mean.value)
