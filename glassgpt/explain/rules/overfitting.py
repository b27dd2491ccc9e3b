"""A run that went on past its best: when that was, and what the rest cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.explain.rule import Finding, RunAnalysis
from glassgpt.explain.rules.waste import seconds_and_share_after
from glassgpt.format import (
    format_duration,
    format_integer,
    format_loss,
    format_loss_difference,
    format_percent,
)
from glassgpt.i18n import say
from glassgpt.runs.trajectory import Trajectory, takes_known_settings, val_metric_name

DEFAULT_NOISE_SHARE = 0.01  # of the loss, where nothing tells how noisy an evaluation is
MIN_STANDARD_ERRORS = 3.0  # standard errors of a difference
MIN_RISE_SHARE = 0.01  # of the loss: less is no reason to stop
MIN_RISE_SHARE_SINGLE_EVAL = 0.03  # of the loss, where only one evaluation came after the best
MIN_TRAIN_LOSSES = 5  # that say what the training loss was at a time
WARNING_RISE_SHARE = 0.02  # of the loss: then the last weights are not worth keeping


@dataclass(frozen=True)
class PastBest:
    """How far a run went past its best evaluation."""

    best_loss: float
    best_iteration: int
    end_loss: float
    end_iteration: int
    start_iteration: int

    @property
    def share_after_best(self) -> float:
        return (self.end_iteration - self.best_iteration) / max(1, self.end_iteration - self.start_iteration)


def overfitting(case: RunAnalysis) -> Finding | None:
    past = find_past_best(case)
    fell = _train_loss_fell(case.trajectory, past) if past else None
    if past is None or fell is None:
        return None
    saved = seconds_and_share_after(case, past.best_iteration, past.end_iteration)
    return Finding(
        "overfitting",
        "warning" if past.end_loss - past.best_loss > WARNING_RISE_SHARE * past.best_loss else "advice",
        say("The model has overfitted since iteration {at}", at=format_integer(past.best_iteration))
        if case.log.numbered
        else say(
            "The model has overfitted for the last {share} of the run",
            share=format_percent(past.share_after_best),
        ),
        _evidence(case, past, fell, saved),
        say(
            "Past its best the model learns the training text by heart: it gets better there and worse on "
            "text it has not seen. The last loss is not what this run achieved."
        ),
        _advice(case, past, saved),
    )


def has_overfitted(case: RunAnalysis) -> bool:
    past = find_past_best(case)
    return past is not None and _train_loss_fell(case.trajectory, past) is not None


def _evidence(
    case: RunAnalysis, past: PastBest, fell: tuple[float, float], saved: tuple[float, float] | None
) -> str:
    values = {
        "metric": val_metric_name(case.log),
        "best": format_loss(past.best_loss),
        "end": format_loss(past.end_loss),
        "worse": format_loss_difference(past.end_loss - past.best_loss),
    }
    said = [
        say(
            "Best {metric} {best} at iteration {at}, at the end {end} at iteration {last}: {worse} worse.",
            at=format_integer(past.best_iteration),
            last=format_integer(past.end_iteration),
            **values,
        )
        if case.log.numbered
        else say("Best {metric} {best}, at the end {end}: {worse} worse.", **values),
        say(
            "The training loss fell from {then} to {now} meanwhile.",
            then=format_loss(fell[0]),
            now=format_loss(fell[1]),
        ),
        say("{share} of the iterations came after the best.", share=format_percent(past.share_after_best)),
    ]
    if saved:
        said.append(
            say(
                "They took {time}, {share} of the time.",
                time=format_duration(saved[0]),
                share=format_percent(saved[1]),
            )
        )
    return " ".join(said)


def find_past_best(case: RunAnalysis) -> PastBest | None:
    at, values = case.trajectory.val_curve()
    if len(values) < 3:
        return None
    best, last = int(np.argmin(values)), len(values) - 1
    after = last - best
    lowest, noise = float(values[best]), case.eval_noise
    floor = MIN_STANDARD_ERRORS * math.sqrt(2) * noise.std if noise else DEFAULT_NOISE_SHARE * lowest
    low, end = lowest, float(values[-1])
    if after >= 2:  # the lowest of many is low by luck too, so its neighbours have a say
        with np.errstate(over="ignore", invalid="ignore"):  # losses of 1e308 have been seen
            low = float(np.median(values[max(0, best - 1) : best + 2]))
            end = float(np.mean(values[-min(after, 3) :]))
    else:  # one evaluation past the best may be an accident; it has to be a clear one
        floor = max(floor, MIN_RISE_SHARE_SINGLE_EVAL * lowest)
    if after < 1 or at[best] <= 0 or not end - low > max(floor, MIN_RISE_SHARE * low):
        return None
    return PastBest(lowest, int(at[best]), float(values[-1]), int(at[-1]), _begin(case, int(at[0])))


def _begin(case: RunAnalysis, first_evaluation: int) -> int:
    """Of the run; its first evaluation may come much later."""
    course = case.trajectory
    if course.segments and case.log.segments[course.segments[0]].has_startup:
        return 0
    return min(first_evaluation, int(course.iteration[0])) if len(course.iteration) else first_evaluation


def _train_loss_fell(course: Trajectory, past: PastBest) -> tuple[float, float] | None:
    """The training loss at the best evaluation and at the end, if it is lower there."""
    said = {done.iteration: done.train_loss for done in course.evals}
    then, now = said.get(past.best_iteration), said.get(past.end_iteration)
    if then is None or now is None:
        at, losses = course.finite_losses()
        around = np.flatnonzero((at > past.best_iteration * 0.9) & (at <= past.best_iteration * 1.1))
        late = np.flatnonzero(at > past.end_iteration - 0.1 * (past.end_iteration - past.start_iteration))
        if len(around) < MIN_TRAIN_LOSSES:  # a line for many iterations: then the nearest ones
            around = np.sort(np.argsort(np.abs(at - past.best_iteration), kind="stable")[:MIN_TRAIN_LOSSES])
        if len(late) < MIN_TRAIN_LOSSES:
            late = np.arange(len(at))[-MIN_TRAIN_LOSSES:]
        if len(around) < MIN_TRAIN_LOSSES or around[-1] >= late[0]:
            return None
        then, now = float(np.median(losses[around])), float(np.median(losses[late]))
    return (then, now) if now < then else None


def _saved_after(course: Trajectory, best_at: int) -> bool:
    return any(save.iteration is not None and save.iteration > best_at for save in course.saves)


def _advice(case: RunAnalysis, past: PastBest, saved: tuple[float, float] | None) -> str:
    values = {
        "share": format_percent(saved[1]) if saved else format_percent(past.share_after_best),
        "worse": format_loss_difference(past.end_loss - past.best_loss),
    }
    said = []
    if not case.log.numbered:
        said.append(say("Stopping there saves {share} of the run and ends about {worse} lower.", **values))
    elif takes_known_settings(case.log):
        said.append(
            say(
                "max_iters={at} with lr_decay_iters={at} saves {share} of the run and ends about {worse} "
                "lower.",
                at=past.best_iteration,
                **values,
            )
        )
        if _saved_after(case.trajectory, past.best_iteration):
            said.append(say("always_save_checkpoint=False keeps the best weights instead of the last."))
    else:
        said.append(
            say(
                "Stopping at iteration {at} saves {share} of the run and ends about {worse} lower.",
                at=format_integer(past.best_iteration),
                **values,
            )
        )
    said.append(
        say(
            "To get below {best}: more text, more dropout, or a smaller model.",
            best=format_loss(past.best_loss),
        )
    )
    return " ".join(said)
