"""A run that went on past its best: when that was, and what the rest cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.explain.rule import Case, Finding
from glassgpt.explain.rules.waste import time_after
from glassgpt.format import difference, duration, loss, percent, whole
from glassgpt.i18n import say
from glassgpt.runs.trajectory import Course, metric_name, takes_known_settings

UNKNOWN_NOISE = 0.01  # of the loss, where nothing tells how noisy an evaluation is
CERTAIN = 3.0  # standard errors of a difference
VISIBLE = 0.01  # of the loss: less is no reason to stop
ONE_ALONE = 0.03  # of the loss, where only one evaluation came after the best
FEWEST_LOSSES = 5  # that say what the training loss was at a time
MUCH_WORSE = 0.02  # of the loss: then the last weights are not worth keeping


@dataclass(frozen=True)
class Past:
    """How far a run went past its best evaluation."""

    best: float
    best_at: int
    end: float
    end_at: int
    begin: int

    @property
    def share(self) -> float:
        return (self.end_at - self.best_at) / max(1, self.end_at - self.begin)


def overfitting(case: Case) -> Finding | None:
    past = past_its_best(case)
    fell = _train_loss_fell(case.course, past) if past else None
    if past is None or fell is None:
        return None
    saved = time_after(case, past.best_at, past.end_at)
    return Finding(
        "overfitting",
        "warning" if past.end - past.best > MUCH_WORSE * past.best else "advice",
        say("The model has overfitted since iteration {at}", at=whole(past.best_at))
        if case.history.numbered
        else say("The model has overfitted for the last {share} of the run", share=percent(past.share)),
        _evidence(case, past, fell, saved),
        say(
            "Past its best the model learns the training text by heart: it gets better there and worse on "
            "text it has not seen. The last loss is not what this run achieved."
        ),
        _advice(case, past, saved),
    )


def is_overfitted(case: Case) -> bool:
    past = past_its_best(case)
    return past is not None and _train_loss_fell(case.course, past) is not None


def _evidence(case: Case, past: Past, fell: tuple[float, float], saved: tuple[float, float] | None) -> str:
    values = {
        "metric": metric_name(case.history),
        "best": loss(past.best),
        "end": loss(past.end),
        "worse": difference(past.end - past.best),
    }
    said = [
        say(
            "Best {metric} {best} at iteration {at}, at the end {end} at iteration {last}: {worse} worse.",
            at=whole(past.best_at),
            last=whole(past.end_at),
            **values,
        )
        if case.history.numbered
        else say("Best {metric} {best}, at the end {end}: {worse} worse.", **values),
        say("The training loss fell from {then} to {now} meanwhile.", then=loss(fell[0]), now=loss(fell[1])),
        say("{share} of the iterations came after the best.", share=percent(past.share)),
    ]
    if saved:
        said.append(
            say("They took {time}, {share} of the time.", time=duration(saved[0]), share=percent(saved[1]))
        )
    return " ".join(said)


def past_its_best(case: Case) -> Past | None:
    at, values = case.course.val_points()
    if len(values) < 3:
        return None
    best, last = int(np.argmin(values)), len(values) - 1
    after = last - best
    lowest, noise = float(values[best]), case.noise
    floor = CERTAIN * math.sqrt(2) * noise.value if noise else UNKNOWN_NOISE * lowest
    low, end = lowest, float(values[-1])
    if after >= 2:  # the lowest of many is low by luck too, so its neighbours have a say
        with np.errstate(over="ignore", invalid="ignore"):  # losses of 1e308 have been seen
            low = float(np.median(values[max(0, best - 1) : best + 2]))
            end = float(np.mean(values[-min(after, 3) :]))
    else:  # one evaluation past the best may be an accident; it has to be a clear one
        floor = max(floor, ONE_ALONE * lowest)
    if after < 1 or at[best] <= 0 or not end - low > max(floor, VISIBLE * low):
        return None
    return Past(lowest, int(at[best]), float(values[-1]), int(at[-1]), _begin(case, int(at[0])))


def _begin(case: Case, first_evaluation: int) -> int:
    """Of the run; its first evaluation may come much later."""
    course = case.course
    if course.segments and case.history.segments[course.segments[0]].starts:
        return 0
    return min(first_evaluation, int(course.iteration[0])) if len(course.iteration) else first_evaluation


def _train_loss_fell(course: Course, past: Past) -> tuple[float, float] | None:
    """The training loss at the best evaluation and at the end, if it is lower there."""
    said = {done.iteration: done.train_loss for done in course.evals}
    then, now = said.get(past.best_at), said.get(past.end_at)
    if then is None or now is None:
        at, losses = course.losses()
        around = np.flatnonzero((at > past.best_at * 0.9) & (at <= past.best_at * 1.1))
        late = np.flatnonzero(at > past.end_at - 0.1 * (past.end_at - past.begin))
        if len(around) < FEWEST_LOSSES:  # a line for many iterations: then the nearest ones
            around = np.sort(np.argsort(np.abs(at - past.best_at), kind="stable")[:FEWEST_LOSSES])
        if len(late) < FEWEST_LOSSES:
            late = np.arange(len(at))[-FEWEST_LOSSES:]
        if len(around) < FEWEST_LOSSES or around[-1] >= late[0]:
            return None
        then, now = float(np.median(losses[around])), float(np.median(losses[late]))
    return (then, now) if now < then else None


def _saved_after(course: Course, best_at: int) -> bool:
    return any(save.iteration is not None and save.iteration > best_at for save in course.saves)


def _advice(case: Case, past: Past, saved: tuple[float, float] | None) -> str:
    values = {
        "share": percent(saved[1]) if saved else percent(past.share),
        "worse": difference(past.end - past.best),
    }
    said = []
    if not case.history.numbered:
        said.append(say("Stopping there saves {share} of the run and ends about {worse} lower.", **values))
    elif takes_known_settings(case.history):
        said.append(
            say(
                "max_iters={at} with lr_decay_iters={at} saves {share} of the run and ends about {worse} "
                "lower.",
                at=past.best_at,
                **values,
            )
        )
        if _saved_after(case.course, past.best_at):
            said.append(say("always_save_checkpoint=False keeps the best weights instead of the last."))
    else:
        said.append(
            say(
                "Stopping at iteration {at} saves {share} of the run and ends about {worse} lower.",
                at=whole(past.best_at),
                **values,
            )
        )
    said.append(
        say("To get below {best}: more text, more dropout, or a smaller model.", best=loss(past.best))
    )
    return " ".join(said)
