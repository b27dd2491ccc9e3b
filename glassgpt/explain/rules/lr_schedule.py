"""The learning rate's schedule against the run's length, and against itself after a resume."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glassgpt.explain.rule import Finding, RunAnalysis
from glassgpt.format import format_integer, format_lr, format_percent
from glassgpt.i18n import say
from glassgpt.runs.run_log import Floats, RunLog
from glassgpt.runs.trajectory import (
    continues_previous,
    numeric_setting,
    planned_end_iteration,
    takes_known_settings,
)
from glassgpt.schedule import LearningRateSchedule

# A cosine's last tenth moves the rate by next to nothing, so an end within it is as good as the planned one.
MAX_DECAY_TO_END, MIN_DECAY_TO_END = 1.1, 0.8  # of the run's end
MAX_FINAL_TO_MIN_LR = 1.5  # times the floor
# Of the peak: a column that ends lower has come down, one that ends higher never was to.
DECAYED_SHARE_OF_PEAK, CONSTANT_SHARE_OF_PEAK = 0.3, 0.97


@dataclass(frozen=True)
class CosineSchedule:
    """Linear warm-up, then a cosine down to min_lr."""

    peak_lr: float
    min_lr: float
    warmup_iters: float
    lr_decay_iters: float
    end_iteration: float  # the run's last iteration, as planned
    assumed_settings: tuple[str, ...]  # settings that the log does not show

    def lr_at(self, iteration: float) -> float:
        return LearningRateSchedule(self.peak_lr, self.min_lr, self.warmup_iters, self.lr_decay_iters).at(
            iteration
        )


def infer_schedule(history: RunLog) -> CosineSchedule | None:
    """From the settings; None where there is no decay, or the run's length is not known."""
    settings = history.setup.settings
    end = planned_end_iteration(history)
    if not takes_known_settings(history) or settings.get("decay_lr") is False:
        return None
    if not end or settings.get("schedule", "cosine") != "cosine":
        return None
    values, assumed = {}, []
    for name, usual in _defaults(history, float(end)).items():
        said = numeric_setting(history, name)
        values[name] = usual if said is None else said
        if said is None and not history.trainer.schedule_fits_run:
            assumed.append(name)
    if "learning_rate" in assumed and "lr_decay_iters" in assumed:
        return None  # a log that shows neither does not show the settings
    peak, floor = values["learning_rate"], values["min_lr"]
    if peak <= 0 or floor < 0 or values["lr_decay_iters"] <= 0:
        return None
    return CosineSchedule(
        peak, floor, values["warmup_iters"], values["lr_decay_iters"], float(end), tuple(assumed)
    )


def _defaults(history: RunLog, end: float) -> dict[str, float]:
    """What is not said: fixed numbers, or a schedule that fits the run."""
    usual = history.trainer.defaults
    if not history.trainer.schedule_fits_run:
        return {name: usual[name] for name in ("learning_rate", "min_lr", "warmup_iters", "lr_decay_iters")}
    peak = numeric_setting(history, "learning_rate") or usual["learning_rate"]
    return {
        "learning_rate": peak,
        "min_lr": peak / 10,
        "warmup_iters": min(2000, end // 20),
        "lr_decay_iters": end,
    }


# --- against the run's length ---


def lr_schedule_mismatch(case: RunAnalysis) -> Finding | None:
    schedule = infer_schedule(case.log)
    if schedule is None:
        return _mismatch_in_logged_lr(case)
    if schedule.warmup_iters >= schedule.end_iteration:
        return _warmup_only_finding(schedule)
    if (
        schedule.lr_decay_iters > MAX_DECAY_TO_END * schedule.end_iteration
        and schedule.lr_at(schedule.end_iteration) > MAX_FINAL_TO_MIN_LR * schedule.min_lr
    ):
        return _ends_too_high_finding(schedule)
    if (
        schedule.lr_decay_iters < MIN_DECAY_TO_END * schedule.end_iteration
        and schedule.min_lr < schedule.peak_lr
    ):
        return _ends_too_early_finding(schedule)
    return None


def _settings_sentence(schedule: CosineSchedule) -> str:
    text = say(
        "The settings: {settings}.",
        settings=f"max_iters={int(schedule.end_iteration)}, lr_decay_iters={int(schedule.lr_decay_iters)}, "
        f"warmup_iters={int(schedule.warmup_iters)}, learning_rate={format_lr(schedule.peak_lr)}, "
        f"min_lr={format_lr(schedule.min_lr)}",
    )
    if not schedule.assumed_settings:
        return text
    return f"{text} " + say(
        "Not in the log, so taken as the default: {names}.", names=", ".join(schedule.assumed_settings)
    )


def _warmup_only_finding(schedule: CosineSchedule) -> Finding:
    last = min(
        schedule.end_iteration, schedule.warmup_iters - 1
    )  # the update after a warm-up is no longer of it
    return Finding(
        "lr-schedule-mismatch",
        "warning",
        say("The run ends before its warm-up does"),
        _settings_sentence(schedule)
        + " "
        + say("The learning rate reaches {last} at the end.", last=format_lr(schedule.lr_at(last))),
        say("The learning rate was still rising at the end, and never came to its full value or down again."),
        say(
            "warmup_iters={new} with lr_decay_iters={end}: the mean learning rate would be {gain} times as "
            "high.",
            new=int(schedule.end_iteration // 20),
            end=int(schedule.end_iteration),
            gain=f"{_mean_of_cosine(schedule) / _mean_of_warmup(schedule):.1f}",
        ),
    )


def _mean_of_warmup(schedule: CosineSchedule) -> float:
    return max(schedule.lr_at(schedule.end_iteration / 2), 1e-12)


def _mean_of_cosine(schedule: CosineSchedule) -> float:
    return (schedule.peak_lr + schedule.min_lr) / 2


def _ends_too_high_finding(schedule: CosineSchedule) -> Finding:
    last = schedule.lr_at(schedule.end_iteration)
    return Finding(
        "lr-schedule-mismatch",
        "advice",
        say("The learning rate does not come down before the run ends"),
        _settings_sentence(schedule)
        + " "
        + say(
            "At the end it is {last}, {share} of its peak.",
            last=format_lr(last),
            share=format_percent(last / schedule.peak_lr),
        ),
        say(
            "The last part of a cosine, where the rate is low, is where the loss settles. This run stops "
            "before that."
        ),
        say(
            "lr_decay_iters={end} ends at {floor} instead of {last}, at no cost.",
            end=int(schedule.end_iteration),
            floor=format_lr(schedule.min_lr),
            last=format_lr(last),
        ),
    )


def _ends_too_early_finding(schedule: CosineSchedule) -> Finding:
    idle = (schedule.end_iteration - schedule.lr_decay_iters) / schedule.end_iteration
    return Finding(
        "lr-schedule-mismatch",
        "advice",
        say("The learning rate is at its minimum long before the run ends"),
        _settings_sentence(schedule)
        + " "
        + say(
            "The last {count} iterations ({share}) run at {floor}.",
            count=format_integer(schedule.end_iteration - schedule.lr_decay_iters),
            share=format_percent(idle),
            floor=format_lr(schedule.min_lr),
        ),
        say("At the minimum rate the model moves little; those iterations could have learnt more."),
        say(
            "lr_decay_iters={end} uses them, or max_iters={decay} saves {share} of the iterations.",
            end=int(schedule.end_iteration),
            decay=int(schedule.lr_decay_iters),
            share=format_percent(idle),
        ),
    )


def _mismatch_in_logged_lr(case: RunAnalysis) -> Finding | None:
    """A rate that was falling, and had not come far when the planned end was reached."""
    history, course = case.log, case.trajectory
    planned = planned_end_iteration(history)
    rates = history.steps.lr[course.rows]
    rates = rates[np.isfinite(rates)]
    if not planned or not history.numbered or len(rates) < 20:
        return None
    if course.last_iteration is None or course.last_iteration < planned - 1:
        return None
    peak, last, late = float(rates.max()), float(rates[-1]), rates[-max(5, len(rates) // 10) :]
    if (
        peak <= 0
        or not DECAYED_SHARE_OF_PEAK * peak < last < CONSTANT_SHARE_OF_PEAK * peak
        or np.any(np.diff(late) > 0)
        or late[0] == late[-1]
    ):
        return None
    return Finding(
        "lr-schedule-mismatch",
        "advice",
        say("The learning rate does not come down before the run ends"),
        say(
            "It is {last} at the planned end, iteration {end}: {share} of its peak {peak}, and still "
            "falling.",
            last=format_lr(last),
            end=format_integer(planned),
            share=format_percent(last / peak),
            peak=format_lr(peak),
        ),
        say(
            "The last part of a cosine, where the rate is low, is where the loss settles. This run stops "
            "before that."
        ),
        say(
            "Let the decay end with the run: a tenth of the peak, {floor}, instead of {last}.",
            floor=format_lr(peak / 10),
            last=format_lr(last),
        ),
    )


# --- against itself ---


def horizon_changed(case: RunAnalysis) -> Finding | None:
    """A learning rate that is higher after a resume than before it, or starts its warm-up again."""
    history, course = case.log, case.trajectory
    finite = np.isfinite(history.steps.lr[course.rows])
    rows = course.rows[finite]
    lr, of_row = history.steps.lr[rows], history.steps.segment[rows]  # segments ascend
    highest = np.maximum.accumulate(lr)
    for segment in course.segments[1:]:
        begin = history.segments[segment].first_iteration
        start, end = np.searchsorted(of_row, (segment, segment + 1))
        if begin is None or not continues_previous(history, segment) or start < 5 or end - start < 3:
            continue
        earlier, later = lr[start - 5 : start], lr[start:end]
        found = _schedule_restarted(begin, earlier, later) or _lr_raised(
            history, begin, earlier, later, float(highest[start - 1])
        )
        if found:
            return found
    return None


def _lr_raised(history: RunLog, begin: int, earlier: Floats, later: Floats, peak: float) -> Finding | None:
    before, after = float(earlier[-1]), float(later[0])
    falling = before < 0.98 * peak and earlier[-1] <= earlier[-3]
    if not falling or before <= 0 or after < 1.1 * before:
        return None
    return Finding(
        "horizon-changed",
        "warning",
        say("The learning rate went back up at a resume"),
        say(
            "Learning rate {before} before iteration {at}, {after} after the resume there: {times} times as "
            "high.",
            before=format_lr(before),
            at=format_integer(begin),
            after=format_lr(after),
            times=f"{after / before:.1f}",
        ),
        say(
            "The schedule is computed from the planned end. A later end makes every iteration's rate higher, "
            "so part of what the falling rate had settled is undone, and the loss rises before it falls."
        ),
        say(
            "Fix lr_decay_iters before the run, or go on with a constant rate of {before} and let it fall at "
            "the new end.",
            before=format_lr(before),
        )
        if takes_known_settings(history)
        else say(
            "Fix the end of the schedule before the run, or go on with a constant rate of {before} and let "
            "it fall at the new end.",
            before=format_lr(before),
        ),
    )


def _schedule_restarted(begin: int, earlier: Floats, later: Floats) -> Finding | None:
    before, first, top = float(earlier[-1]), float(later[0]), float(later.max())
    if before <= 0 or first > 0.5 * before or top < 2 * max(first, 1e-12):
        return None
    climbs = bool(np.all(later[1:3] > later[:2]))
    if not climbs:
        return None
    return Finding(
        "horizon-changed",
        "warning",
        say("The schedule began again at a resume"),
        say(
            "Learning rate {before} before iteration {at}, then from {first} up to {top}.",
            before=format_lr(before),
            at=format_integer(begin),
            first=format_lr(first),
            top=format_lr(top),
        ),
        say("The iteration number of the schedule was not restored, so the warm-up ran a second time."),
        say(
            "Restore the iteration number with the weights: the rate would have gone on from {before}.",
            before=format_lr(before),
        ),
    )
