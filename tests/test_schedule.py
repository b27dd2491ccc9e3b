"""The learning rate: nanoGPT's formula where it is nanoGPT's, and never out of bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassgpt.config import TrainConfig
from glassgpt.schedule import describe_schedule, learning_rate

few = settings(max_examples=150, deadline=None)


def nanogpt(it: int, learning_rate: float, warmup_iters: int, lr_decay_iters: int, min_lr: float) -> float:
    """get_lr of nanoGPT's train.py, from its description: warm-up, cosine, floor."""
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    if it > lr_decay_iters:
        return min_lr
    ratio = (it - warmup_iters) / (lr_decay_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


@few
@given(
    st.floats(1e-6, 1.0),
    st.floats(0.0, 1.0),
    st.integers(0, 300),
    st.integers(1, 2000),
    st.integers(0, 3000),
)
def test_cosine_is_nanogpts(peak: float, share: float, warmup: int, length: int, update: int) -> None:
    config = TrainConfig(
        learning_rate=peak, min_lr=share * peak, warmup_iters=warmup, lr_decay_iters=warmup + length
    )
    expected = nanogpt(update, peak, warmup, warmup + length, share * peak)
    assert learning_rate(config, update) == pytest.approx(expected, rel=1e-9)


def configs(schedule: str) -> st.SearchStrategy[TrainConfig]:
    return st.builds(
        lambda peak, share, warmup, end, iters, part, decay: TrainConfig(
            schedule=schedule,  # type: ignore[arg-type]
            learning_rate=peak,
            min_lr=share and share * peak,
            warmup_iters=warmup,
            lr_decay_iters=end,
            max_iters=iters,
            wsd_decay_fraction=part,
            decay_lr=decay,
        ),
        st.floats(1e-6, 10.0),
        st.none() | st.floats(0.0, 1.0),
        st.none() | st.integers(0, 500),
        st.none() | st.integers(1, 1000),
        st.integers(1, 1000),
        st.floats(1e-6, 1.0),
        st.booleans(),
    )


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
@few
@given(st.data())
def test_never_negative_never_above_the_peak(schedule: str, data: st.DataObject) -> None:
    config = data.draw(configs(schedule))
    rate = learning_rate(config, data.draw(st.integers(0, 5000)))
    assert 0 <= rate <= config.learning_rate * (1 + 1e-12)
    assert learning_rate(config, 0) > 0 or config.min_lr == 0
    assert describe_schedule(config)


@few
@given(st.integers(1, 500), st.floats(0.01, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_wsd_rises_stays_and_falls_evenly(end: int, part: float, early: float, share: float) -> None:
    fall = max(1, round(end * part))
    warmup = int((end - fall) * early)
    config = TrainConfig(
        schedule="wsd",
        learning_rate=1.0,
        min_lr=share,
        warmup_iters=warmup,
        lr_decay_iters=end,
        max_iters=end + 10,
        wsd_decay_fraction=part,
    )
    rates = np.array([learning_rate(config, update) for update in range(end + 10)])
    turn = end - fall  # the first update whose successor is lower
    assert np.allclose(rates[:warmup], np.arange(1, warmup + 1) / (warmup + 1))
    assert np.allclose(rates[warmup : turn + 1], 1.0)
    assert np.allclose(np.diff(rates[turn : end + 1]), (share - 1.0) / fall)
    assert (rates[end:] == share).all()


def test_defaults_follow_from_the_length() -> None:
    config = TrainConfig(max_iters=1000, learning_rate=1e-3)
    assert learning_rate(config, 49) < 1e-3
    assert learning_rate(config, 50) == 1e-3  # 5% of warm-up
    assert learning_rate(config, 1000) == pytest.approx(1e-4)  # a tenth, at the end
    long = TrainConfig(max_iters=10**6, learning_rate=1e-3)
    assert learning_rate(long, 1999) < learning_rate(long, 2000)  # and at most 2000 of warm-up
    assert learning_rate(long, 2000) > learning_rate(long, 2001)


def test_without_decay_it_stays_up() -> None:
    config = TrainConfig(max_iters=100, warmup_iters=10, decay_lr=False, learning_rate=0.5)
    assert [learning_rate(config, update) for update in (0, 10, 50, 99, 10_000)] == [0.5] * 5
    assert describe_schedule(config) == "constant 0.5, without warm-up"


def test_what_is_odd_is_said() -> None:
    cases: list[tuple[TrainConfig, str]] = [
        (TrainConfig(max_iters=100, warmup_iters=100), "warm-up only"),
        (TrainConfig(max_iters=100, lr_decay_iters=60), "the last 40 updates stay there"),
        (TrainConfig(max_iters=100, lr_decay_iters=99), "the last update stays there"),
        (TrainConfig(max_iters=1, warmup_iters=1), "its only update does not end before"),
        (TrainConfig(max_iters=100, lr_decay_iters=200), "the run ends before, at 0.000345"),
    ]
    wrong = [(config, said) for config, said in cases if said not in describe_schedule(config)]
    assert wrong == []
