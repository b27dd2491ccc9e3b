"""The learning rate ahead, and when the loss at the planned end is forecast."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from learning_logs import HF
from run_logs import make_run_log, make_steps

from glassgpt.config import ConfigValue
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.final_loss import FinalLossForecast
from glassgpt.runs.lr_course import LrCourse, lr_course
from glassgpt.runs.run_log import Floats, RunLog
from glassgpt.runs.trainers import TRAINERS
from glassgpt.schedule import LearningRateSchedule

END = 2000
NANOGPT, MODDED, NANOCHAT = (
    next(trainer for trainer in TRAINERS if trainer.id == name)
    for name in ("nanogpt", "modded-nanogpt", "nanochat")
)


def cosine(at: Floats, floor: float = 0.1) -> Floats:
    schedule = LearningRateSchedule(1.0, floor, 100, END)
    return np.array([schedule.at(x) for x in at])


def linear(at: Floats) -> Floats:
    return np.minimum(at / 100, np.maximum(0, (END - at) / (END - 100)))


def trapezoid(at: Floats) -> Floats:
    return np.minimum(1, np.maximum(0, (END - at) / 600))


def course_of(lr: Floats | None, at: Floats, trainer: object = HF, **settings: ConfigValue) -> LrCourse:
    columns = {} if lr is None else {"lr": lr.tolist()}
    run_log = make_run_log(make_steps(at.astype(int).tolist(), **columns), trainer=trainer, settings=settings)
    return lr_course(run_log, Analysis(run_log).trajectory, END)


@pytest.mark.parametrize(
    ("shape", "name", "seen"), [(cosine, "cosine", 900), (linear, "linear", 700), (trapezoid, "wsd", 1600)]
)
def test_the_shape_of_a_logged_rate_is_continued(shape: object, name: str, seen: int) -> None:
    at = np.arange(0, seen, 10.0)
    assert callable(shape)
    course = course_of(6e-4 * shape(at), at)
    assert (course.shape, course.is_known_ahead) == (name, True)
    ahead = np.linspace(seen, END, 20)
    assert course.share_at(ahead) == pytest.approx(shape(ahead), abs=0.03)
    dense = np.arange(0, END, 1.0)
    assert float(course.summed_to(END)) == pytest.approx(float(shape(dense).sum()), rel=0.02)


def test_a_constant_rate_leaves_the_future_open() -> None:
    at = np.arange(0, 900, 10.0)
    course = course_of(np.full(len(at), 2e-4), at)
    assert (course.shape, course.is_known_ahead) == ("constant", False)


def test_steps_of_the_rate_are_no_known_shape() -> None:
    at = np.arange(0, 900, 10.0)
    course = course_of(np.where(at < 400, 0.1, 0.01), at)
    assert (course.shape, course.is_known_ahead) == ("unknown", False)


def test_settings_tell_the_schedule_where_no_rate_is_logged() -> None:
    at = np.arange(0, 900, 10.0)
    stated: dict[str, ConfigValue] = {
        "learning_rate": 1e-3, "min_lr": 1e-4, "warmup_iters": 100, "lr_decay_iters": END, "max_iters": END,
    }  # fmt: skip
    course = course_of(None, at, NANOGPT, **stated)
    assert (course.shape, course.is_known_ahead) == ("cosine", True)
    grid = np.linspace(150, END, 20)
    assert course.share_at(grid) == pytest.approx(cosine(grid), abs=0.01)
    assert course_of(None, at, NANOGPT, **stated, decay_lr=False).shape == "constant"
    assert course_of(None, at).shape == "unknown"


def test_trainers_that_cool_down_say_so() -> None:
    at = np.arange(1, 900, 10.0)
    modded = course_of(None, at, MODDED, wsd_decay_iters=500)
    assert modded.shape == "wsd"
    assert modded.share_at(np.array([1500.0, 1750.0, 2000.0])) == pytest.approx([1, 0.5, 0], abs=0.01)
    nanochat = course_of(np.ones(len(at)), at, NANOCHAT)
    assert nanochat.is_known_ahead
    assert float(nanochat.share_at(END)) == 0


# --- forecasts ---


def run_until(
    last: int,
    *,
    noise: float = 0.003,
    trainer: object = HF,
    evals_every: int = 100,
    gap: float = 0.0,
    rise_from: int = END,
    warmup: int = 100,
) -> RunLog:
    """A run of the annealing law, with a linear schedule, logged up to `last`."""
    rng = np.random.default_rng(last)
    at = np.arange(10, last + 1, 10.0)

    def loss(x: Floats) -> Floats:
        progress = x - np.maximum(0, x - warmup) ** 2 / (2 * (END - warmup))
        base = 2.5 + 3.0 * (progress / 100) ** -0.5 + 0.25 * linear(x)
        return np.asarray(base + 0.002 * np.maximum(0, x - rise_from))

    rates = linear(at) if warmup == 100 else np.minimum(1, at / warmup)
    evaluated = np.arange(evals_every, last + 1, float(evals_every))
    losses = loss(at) + rng.normal(0, 10 * noise, len(at))
    return make_run_log(
        make_steps(at.astype(int).tolist(), loss=(losses - gap * at / END).tolist(), lr=rates.tolist()),
        [
            (int(x), float(value - gap * x / END), float(value))
            for x, value in zip(
                evaluated, loss(evaluated) + rng.normal(0, noise, len(evaluated)), strict=True
            )
        ],
        trainer=trainer,
        settings={"max_iters": END},
    )


def forecast_of(run_log: RunLog) -> FinalLossForecast | None:
    return Analysis(run_log).final_loss


TRUTH = 2.5 + 3.0 * ((END - (END - 100) / 2) / 100) ** -0.5


@pytest.mark.parametrize("last", [700, 1000, 1400])
def test_the_loss_at_the_planned_end_is_in_the_band(last: int) -> None:
    forecast = forecast_of(run_until(last))
    assert forecast is not None
    assert (forecast.metric, forecast.at_iteration) == ("val loss", END)
    assert forecast.is_schedule_known
    assert forecast.low < TRUTH < forecast.high
    assert forecast.high - forecast.low < 0.5


def test_without_evaluations_the_training_loss_is_forecast() -> None:
    forecast = forecast_of(run_until(1000, evals_every=900))
    assert forecast is not None
    assert forecast.metric == "train loss"
    assert forecast.low < TRUTH < forecast.high


def test_where_nothing_is_said() -> None:
    silent = {
        "the first quarter": run_until(400),
        "almost at the end": run_until(1950),
        "no plan": replace(run_until(1000), setup=replace(run_until(1000).setup, settings={})),
        "lines are not iterations": replace(run_until(1000), has_iteration_numbers=False),
        "warm-up": run_until(700, warmup=600),
        "wild": run_until(1000, noise=0.8),
        "past its best": run_until(1400, rise_from=700),
        "few losses": replace(
            run_until(600, evals_every=500),
            steps=make_steps([200, 300, 400, 500, 600], loss=[5.0, 4.5, 4.2, 4.0, 3.9]),
        ),
    }
    assert [why for why, run_log in silent.items() if forecast_of(run_log) is not None] == []


def test_a_growing_gap_to_the_training_loss_silences_it() -> None:
    assert forecast_of(run_until(1400, gap=0.1)) is not None
    assert forecast_of(run_until(1400, gap=2.0)) is None
