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

from glassgpt.runs.run_log import Floats, RunLog
from glassgpt.runs.trajectory import Trajectory, numeric_setting, takes_known_settings
from glassgpt.schedule import LearningRateSchedule

LrShape = Literal["cosine", "linear", "wsd", "constant", "unknown"]

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
        return np.interp(iteration, self.at, self.share)

    def summed_to(self, iteration: float | Floats) -> Floats:
        """The sum of the shares up to an iteration: updates, each weighted by its learning rate."""
        areas = np.diff(self.at) * (self.share[1:] + self.share[:-1]) / 2
        return np.interp(iteration, self.at, np.concatenate(([0.0], np.cumsum(areas))))


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
        peak = max(stated.peak_lr, stated.min_lr)
        share = np.array([stated.at(iteration) / peak for iteration in grid])
        shape: LrShape = stated.schedule if stated.schedule in ("wsd", "constant") else "cosine"  # type: ignore[assignment]
        return LrCourse(grid, share, shape, is_known_ahead=True)
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
            future = np.array([stated.at(iteration) for iteration in grid]) / stated.peak_lr
            return course("cosine" if stated.schedule == "cosine" else "constant", future)
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


def _fall(shape: LrShape, progress: Floats) -> Floats:
    """From 1 at the peak to 0 at the planned end."""
    progress = np.clip(progress, 0.0, 1.0)
    return 1 - progress if shape == "linear" else 0.5 * (1 + np.cos(math.pi * progress))


def _stated_schedule(run_log: RunLog, end: int) -> LearningRateSchedule | None:
    """From the settings of the log, with the trainer's defaults for what it need not show."""
    settings, trainer = run_log.setup.settings, run_log.trainer
    decay_iters = numeric_setting(run_log, "wsd_decay_iters")
    fraction = numeric_setting(run_log, "wsd_decay_fraction")
    if decay_iters is not None and 0 < decay_iters <= end:
        fraction = decay_iters / end
    if fraction is None:
        fraction = trainer.defaults.get("wsd_decay_fraction")
    if fraction is not None and 0 < fraction <= 1 and not takes_known_settings(run_log):
        return LearningRateSchedule(1.0, 0.0, 0.0, float(end), "wsd", fraction)
    if not takes_known_settings(run_log):
        return None
    names = ("learning_rate", "min_lr", "warmup_iters", "lr_decay_iters")
    stated = {name: numeric_setting(run_log, name) for name in names}
    if settings.get("decay_lr") is False:
        return LearningRateSchedule(1.0, 1.0, 0.0, float(end), "constant")
    peak = stated["learning_rate"]
    if peak is None or peak <= 0:
        return None
    if trainer.schedule_fits_run:
        defaults = {"min_lr": peak / 10, "warmup_iters": min(2000, end // 20), "lr_decay_iters": float(end)}
    else:
        defaults = {name: trainer.defaults.get(name, math.nan) for name in names}
    values = {name: defaults[name] if value is None else value for name, value in stated.items() if name != "learning_rate"}
    if not all(math.isfinite(value) and value >= 0 for value in values.values()) or values["lr_decay_iters"] <= 0:
        return None
    schedule = settings.get("schedule", "cosine")
    return LearningRateSchedule(
        peak, values["min_lr"], values["warmup_iters"], values["lr_decay_iters"],
        schedule if isinstance(schedule, str) else "cosine", fraction or 0.2,
    )  # fmt: skip
