"""Every second is in exactly one phase, whatever the nesting, and the sum is the wall time."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.record.ledger import PHASES, Ledger, phase_seconds_between

few = settings(max_examples=50, deadline=None)


class FakeClock:
    """Whole seconds, so that sums of floats are exact."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Piece(NamedTuple):
    """A phase that lasts `before`, has pieces in it with `pause` after each, and perhaps ends in an error."""

    phase: str
    before: int
    inner: list[Piece]
    pause: int
    fails: bool


seconds = st.integers(0, 100)
phases = st.sampled_from(PHASES)
pieces: st.SearchStrategy[Piece] = st.recursive(
    st.builds(Piece, phases, seconds, st.just([]), seconds, st.booleans()),
    lambda inner: st.builds(Piece, phases, seconds, st.lists(inner, max_size=3), seconds, st.booleans()),
    max_leaves=8,
)


def play(piece: Piece, ledger: Ledger, clock: FakeClock, expected: dict[str, float]) -> float:
    """Lives through a piece; adds to `expected` what each phase should have got. Returns how long it took."""
    begin = clock.now

    def wait(duration: int) -> None:
        clock.now += duration
        expected[piece.phase] += duration

    try:
        with ledger.phase(piece.phase) as phase:
            wait(piece.before)
            for inner in piece.inner:
                play(inner, ledger, clock, expected)
                wait(piece.pause)
            if piece.fails:
                raise RuntimeError(piece.phase)
    except RuntimeError:
        assert piece.fails
    assert phase.seconds == clock.now - begin  # nested ones included
    return phase.seconds


@few
@given(st.lists(pieces, max_size=3), seconds, seconds)
def test_any_nesting_is_exclusive_and_sums_to_the_wall_time(program: list[Piece], gap: int, age: int) -> None:
    clock = FakeClock()
    ledger = Ledger(clock, age_s=age)
    expected: dict[str, float] = dict.fromkeys(PHASES, 0.0) | {"startup": age}
    for piece in program:
        play(piece, ledger, clock, expected)
        clock.now += gap  # in no phase
        expected["other"] += gap
        assert sum(ledger.seconds().values()) == age + clock.now - 1000
    assert ledger.seconds() == expected


def test_nesting_by_numbers() -> None:
    clock = FakeClock()
    ledger = Ledger(clock, age_s=2.0)
    with ledger.phase("train") as train:
        clock.now += 10
        with ledger.phase("data") as data:
            clock.now += 3
        clock.now += 1
    clock.now += 5
    assert ledger.seconds() == dict.fromkeys(PHASES, 0.0) | {
        "startup": 2.0,
        "train": 11.0,
        "data": 3.0,
        "other": 5.0,
    }
    assert (train.seconds, data.seconds) == (14.0, 3.0)


def test_a_reading_in_the_middle_of_a_phase_is_up_to_date() -> None:
    clock = FakeClock()
    ledger = Ledger(clock)
    with ledger.phase("eval"):
        clock.now += 4
        before = ledger.seconds()
        clock.now += 6
        assert before["eval"] == 4
        assert phase_seconds_between(before, ledger.seconds()) == dict.fromkeys(PHASES, 0.0) | {"eval": 6.0}
    before["eval"] = 99.0  # a reading is a copy
    assert ledger.seconds()["eval"] == 10


def test_a_phase_within_itself_counts_once() -> None:
    clock = FakeClock()
    ledger = Ledger(clock)
    with ledger.phase("log"), ledger.phase("log"):
        clock.now += 7
    assert ledger.seconds()["log"] == 7


def test_an_exception_ends_its_phases_and_goes_on() -> None:
    clock = FakeClock()
    ledger = Ledger(clock)

    def work() -> None:
        with ledger.phase("train"), ledger.phase("data"):
            clock.now += 2
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    clock.now += 3
    seconds = ledger.seconds()
    assert (seconds["data"], seconds["train"], seconds["other"]) == (2, 0, 3)


@pytest.mark.parametrize("name", ["", "Train", "evaluation", "wall"])
def test_an_unknown_phase_is_refused(name: str) -> None:
    ledger = Ledger(FakeClock())
    with pytest.raises(ValueError, match="is not a phase of the ledger"):
        ledger.phase(name)
    assert set(ledger.seconds()) == set(PHASES)


@few
@given(
    st.lists(st.tuples(phases, phases, st.integers(-50, 200)), max_size=20),
    st.lists(seconds, min_size=8, max_size=8),
)
def test_moving_keeps_the_sum_and_nothing_goes_negative(
    moves: list[tuple[str, str, int]], spent: list[int]
) -> None:
    clock = FakeClock()
    ledger = Ledger(clock)
    for name, duration in zip(PHASES, spent, strict=True):
        with ledger.phase(name):
            clock.now += duration
    for source, target, amount in moves:
        before = ledger.seconds()
        ledger.reassign(source, target, amount)
        after = ledger.seconds()
        assert sum(after.values()) == sum(spent)
        assert min(after.values()) >= 0
        moved = 0 if source == target else max(0, min(amount, before[source]))
        assert after[source] == before[source] - moved
        assert after[target] - before[target] == (moved if source != target else 0)


def test_moving_does_not_reach_time_that_no_reading_has_charged_yet() -> None:
    clock = FakeClock()
    ledger = Ledger(clock)
    with ledger.phase("train"):
        clock.now += 5
        ledger.reassign("train", "data", 3)  # nothing is in `train` yet
    assert (ledger.seconds()["train"], ledger.seconds()["data"]) == (5, 0)


def test_the_real_clock_only_moves_forward() -> None:
    ledger = Ledger()
    with ledger.phase("train") as phase:
        sum(range(1000))
    assert phase.seconds > 0
    assert all(value >= 0 for value in ledger.seconds().values())


def test_a_phase_can_say_more_than_its_name() -> None:
    ledger = Ledger(FakeClock())
    assert (ledger.current, ledger.activity) == ("other", "other")
    with ledger.phase("eval", activity="sample"):
        assert (ledger.current, ledger.activity) == ("eval", "sample")
        with ledger.phase("log"):
            assert ledger.activity == "log"
        assert ledger.activity == "sample"
    assert ledger.activity == "other"
