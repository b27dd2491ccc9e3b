"""The learning rate of a run from its start to its planned end, as a share of its peak.

    course = lr_course(run_log, trajectory, end_iteration=5000)
    course.share_at(4000), course.shape

The past is the logged column, where there is one. What lies ahead follows from the settings, or from the
shape that the logged column has so far: a cosine or a line is recognised from its first part. A constant rate
may still be lowered later, so it leaves the future open.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from glassgpt.config import TrainConfig
from glassgpt.runs.run_log import Floats, RunLog
from glassgpt.runs.trajectory import Trajectory, numeric_setting, takes_known_settings
from glassgpt.schedule import LearningRateSchedule, schedule_of

LrShape = Literal["cosine", "linear", "wsd", "constant", "unknown"]

_SHAPES: dict[str, LrShape] = {"cosine": "cosine", "wsd": "wsd", "constant": "constant"}
_GRID_CELLS = 512
_MIN_LOGGED_RATES = 6
_MAX_SHAPE_ERROR = 0.02  # of the peak, between the logged rates and a shape: they are rounded when printed
_MIN_DECAY_SEEN = 0.01  # of the peak: with less, the shape of a decay cannot be recognised
_MIN_PLATEAU_SHARE = 0.05  # of the run, at the peak: with less, a decay is not called late
_DECAYED_SHARE = 0.999  # of the peak: below it the decay has begun


@dataclass(frozen=True)
class LrCourse:
    """Iterations and learning rates over the peak, on a grid from 0 to the planned end."""

    at: Floats
    share: Floats
    shape: LrShape
    is_known_ahead: bool  # past the last logged iteration

    @property
    def first_peak_iteration(self) -> float:
        """Where the warm-up ends."""
        return float(self.at[int(np.argmax(self.share >= _DECAYED_SHARE * self.share.max()))])

    def share_at(self, iteration: float | Floats) -> Floats:
        return np.asarray(np.interp(iteration, self.at, self.share))

    def summed_to(self, iteration: float | Floats) -> Floats:
        """The sum of the shares up to an iteration: updates, each weighted by its learning rate."""
        areas = np.diff(self.at) * (self.share[1:] + self.share[:-1]) / 2
        return np.asarray(np.interp(iteration, self.at, np.concatenate(([0.0], np.cumsum(areas)))))


def lr_course(run_log: RunLog, trajectory: Trajectory, end_iteration: int) -> LrCourse:
    """A constant of unknown future where neither settings nor a column say more."""
    grid = np.linspace(0.0, end_iteration, _GRID_CELLS + 1)
    rates = run_log.steps.lr[trajectory.rows]
    is_logged = np.isfinite(rates) & (rates >= 0)
    at, rates = trajectory.iteration[is_logged].astype(float), rates[is_logged]
    stated = _stated_schedule(run_log, end_iteration)
    if len(rates) >= _MIN_LOGGED_RATES and rates.max() > 0:
        course = _from_logged_rates(grid, at, rates / rates.max(), stated)
        if course is not None:
            return course
    if stated is not None:
        return LrCourse(grid, _shares(stated, grid), _SHAPES[stated.schedule], is_known_ahead=True)
    return LrCourse(grid, np.ones(len(grid)), "unknown", is_known_ahead=False)


def _from_logged_rates(
    grid: Floats, at: Floats, shares: Floats, stated: LearningRateSchedule | None
) -> LrCourse | None:
    """The logged rates, and past them the shape that they have had since their peak."""
    end, last = float(grid[-1]), float(at[-1])
    peak_row = int(np.flatnonzero(shares >= _DECAYED_SHARE)[-1])
    first_peak_row = int(np.flatnonzero(shares >= _DECAYED_SHARE)[0])
    past = np.interp(grid, at, shares)
    ahead = grid > last

    def course(shape: LrShape, future: Floats, known: bool = True) -> LrCourse:
        return LrCourse(grid, np.where(ahead, np.clip(future, 0.0, 1.0), past), shape, known)

    if shares[-1] >= 1 - _MIN_DECAY_SEEN:  # constant since its peak, or still warming up
        if stated is not None and stated.schedule == "wsd":  # it falls later than stated, or as stated
            start = max(last, end * (1 - stated.wsd_decay_fraction))
            return course("wsd", (end - grid) / max(1.0, end - start))
        if stated is not None:
            return course(_SHAPES[stated.schedule], _shares(stated, grid))
        return course("constant", np.ones(len(grid)), known=False)

    fits: list[tuple[float, LrShape, Floats]] = []
    for start_row in sorted({first_peak_row, peak_row}):
        start = float(at[start_row])
        if end <= start or len(at) - start_row < 3:
            continue
        decay_at, decay = at[start_row:], shares[start_row:]
        shape: LrShape
        for shape in ("cosine", "linear"):
            # share = floor + (1 - floor) * fall: linear in the floor
            fall, fall_ahead = (_fall(shape, (x - start) / (end - start)) for x in (decay_at, grid))
            rest = 1 - fall
            floor = float(rest @ (decay - fall) / max(float(rest @ rest), 1e-12))
            floor = min(max(floor, 0.0), 1.0)
            error = float(np.abs(floor + (1 - floor) * fall - decay).max())
            is_late = start - at[first_peak_row] > _MIN_PLATEAU_SHARE * end and shape == "linear"
            fits.append((error, "wsd" if is_late else shape, floor + (1 - floor) * fall_ahead))
    if not fits:
        return None
    error, shape, future = min(fits, key=lambda fit: fit[0])
    if error <= _MAX_SHAPE_ERROR:
        return course(shape, future)
    return course("unknown", np.full(len(grid), shares[-1]), known=False)


def _shares(schedule: LearningRateSchedule, grid: Floats) -> Floats:
    rates = np.array([schedule.at(iteration) for iteration in grid])
    shares: Floats = rates / max(schedule.peak_lr, schedule.min_lr)
    return shares


def _fall(shape: LrShape, progress: Floats) -> Floats:
    """From 1 at the peak to 0 at the planned end."""
    progress = np.clip(progress, 0.0, 1.0)
    return 1 - progress if shape == "linear" else 0.5 * (1 + np.cos(math.pi * progress))


def _stated_schedule(run_log: RunLog, end: int) -> LearningRateSchedule | None:
    """From the settings of the log, with the trainer's defaults for what it need not show."""
    settings = run_log.setup.settings
    fraction = numeric_setting(run_log, "wsd_decay_fraction")
    if decay_iters := numeric_setting(run_log, "wsd_decay_iters"):
        fraction = decay_iters / end
    if fraction is None:
        fraction = run_log.trainer.defaults.get("wsd_decay_fraction")
    if not takes_known_settings(run_log) or settings.get("schedule") == "wsd":
        if fraction is None or not 0 < fraction <= 1:
            return None
        return LearningRateSchedule(1.0, 0.0, 0.0, float(end), "wsd", fraction)
    if settings.get("decay_lr") is False:
        return LearningRateSchedule(1.0, 1.0, 0.0, float(end), "constant")
    inferred = infer_schedule(run_log, end)
    return None if inferred is None else inferred.cosine


# --- the schedule of the settings ---


@dataclass(frozen=True)
class InferredSchedule:
    cosine: LearningRateSchedule
    end_iteration: int  # the run's last iteration, as planned
    assumed_settings: tuple[str, ...]  # not in the log, taken from the trainer's defaults


def infer_schedule(run_log: RunLog, end: int | None) -> InferredSchedule | None:
    """From the settings and the planned end; None where one is not known, or there is no cosine decay."""
    settings, trainer = run_log.setup.settings, run_log.trainer
    if not takes_known_settings(run_log) or settings.get("decay_lr") is False:
        return None
    if not end or settings.get("schedule", "cosine") != "cosine":
        return None
    names = ("learning_rate", "min_lr", "warmup_iters", "lr_decay_iters")
    stated = {name: numeric_setting(run_log, name) for name in names}
    if trainer.schedule_fits_run:  # defaults that depend on the run's length: nothing is assumed
        peak_lr = stated["learning_rate"] or trainer.defaults["learning_rate"]
        schedule = schedule_of(TrainConfig(max_iters=end, learning_rate=peak_lr))
        defaults = {
            "learning_rate": peak_lr,
            "min_lr": schedule.min_lr,
            "warmup_iters": schedule.warmup_iters,
            "lr_decay_iters": schedule.decay_iters,
        }
        assumed: tuple[str, ...] = ()
    else:
        defaults = {name: trainer.defaults[name] for name in names}
        assumed = tuple(name for name in names if stated[name] is None)
    if "learning_rate" in assumed and "lr_decay_iters" in assumed:
        return None  # a log that shows neither does not show the settings
    values = {name: defaults[name] if value is None else value for name, value in stated.items()}
    if values["learning_rate"] <= 0 or values["min_lr"] < 0 or values["lr_decay_iters"] <= 0:
        return None
    cosine = LearningRateSchedule(
        values["learning_rate"], values["min_lr"], values["warmup_iters"], values["lr_decay_iters"]
    )
    return InferredSchedule(cosine, end, assumed)
