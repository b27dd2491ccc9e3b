"""A run that went on past its best: when that was, and what the rest cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.figures import difference, duration, loss, percent, whole
from glassgpt.insight.course import (
    Course,
    course_of,
    eval_noise,
    metric_name,
    seconds_between,
    takes_nanogpt_settings,
)
from glassgpt.insight.findings.finding import Case, Finding
from glassgpt.insight.history import History
from glassgpt.words import say

UNKNOWN_NOISE = 0.01  # of the loss, where nothing tells how noisy an evaluation is


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
    course = course_of(case.history)
    past = past_its_best(case.history, course)
    if past is None:
        return None
    falling = _train_loss_fell(course, past)
    if falling is None:
        return None
    worse = past.end - past.best
    metric = metric_name(case.history)
    evidence = [
        say(
            "Best {metric} {best} at iteration {at}, at the end {end} at iteration {last}: {worse} worse.",
            metric=metric,
            best=loss(past.best),
            at=whole(past.best_at),
            end=loss(past.end),
            last=whole(past.end_at),
            worse=difference(worse),
        ),
        say(
            "The training loss fell from {then} to {now} meanwhile.",
            then=loss(falling[0]),
            now=loss(falling[1]),
        ),
        say("{share} of the iterations came after the best.", share=percent(past.share)),
    ]
    saved = time_after(case, course, past.best_at, past.end_at)
    if saved:
        evidence.append(
            say("They took {time}, {share} of the time.", time=duration(saved[0]), share=percent(saved[1]))
        )
    return Finding(
        "overfitting",
        "warning" if worse > 0.02 * past.best else "advice",
        say("The model overfits since iteration {at}", at=whole(past.best_at)),
        " ".join(evidence),
        say(
            "Past its best the model learns the training text by heart: it gets better there and worse on "
            "text it has not seen. The last loss is not what this run achieved."
        ),
        _overfitting_advice(case.history, course, past, saved),
    )


def past_its_best(history: History, course: Course) -> Past | None:
    at, values = course.val_points()
    if len(values) < 3:
        return None
    best, last = int(np.argmin(values)), len(values) - 1
    after = last - best
    noise = eval_noise(history, course)
    floor = 3 * math.sqrt(2) * noise.value if noise else UNKNOWN_NOISE * float(values[best])
    if after >= 2:  # the lowest of many is low by luck too, so its neighbours have a say
        low, end = (
            float(np.median(values[max(0, best - 1) : best + 2])),
            float(np.mean(values[-min(after, 3) :])),
        )
    else:  # one evaluation past the best may be an accident; it has to be a clear one
        low, end, floor = float(values[best]), float(values[-1]), max(floor, 0.03 * float(values[best]))
    if after < 1 or at[best] <= 0 or not end - low > max(floor, 0.01 * low):
        return None
    return Past(float(values[best]), int(at[best]), float(values[-1]), int(at[-1]), int(at[0]))


def _train_loss_fell(course: Course, past: Past) -> tuple[float, float] | None:
    """The training loss at the best evaluation and at the end, if it is lower there."""
    said = {done.iteration: done.train_loss for done in course.evals}
    then, now = said.get(past.best_at), said.get(past.end_at)
    if then is None or now is None:
        at, losses = course.losses()
        around = losses[(at > past.best_at * 0.9) & (at <= past.best_at * 1.1)]
        late = losses[at > past.end_at - 0.1 * (past.end_at - past.begin)]
        if len(around) < 5 or len(late) < 5:
            return None
        then, now = float(np.median(around)), float(np.median(late))
    return (then, now) if now < then else None


def time_after(case: Case, course: Course, after: int, until: int) -> tuple[float, float] | None:
    """Seconds, and their share of the run."""
    total = case.facts.estimated_total_s
    seconds = seconds_between(course, after, until, case.facts.steady_ms)
    if not total or not seconds or not math.isfinite(total) or seconds > total:
        return None
    return seconds, seconds / total


def _saved_after(course: Course, best_at: int) -> bool:
    return any(save.iteration is not None and save.iteration > best_at for save in course.saves)


def _overfitting_advice(
    history: History, course: Course, past: Past, saved: tuple[float, float] | None
) -> str:
    share = percent(saved[1]) if saved else percent(past.share)
    worse = difference(past.end - past.best)
    said = []
    if takes_nanogpt_settings(history):
        said.append(
            say(
                "max_iters={at} with lr_decay_iters={at} saves {share} of the run and ends about {worse} "
                "lower.",
                at=past.best_at,
                share=share,
                worse=worse,
            )
        )
        if _saved_after(course, past.best_at):
            said.append(say("always_save_checkpoint=False keeps the best weights instead of the last."))
    else:
        said.append(
            say(
                "Stopping at iteration {at} saves {share} of the run and ends about {worse} lower.",
                at=whole(past.best_at),
                share=share,
                worse=worse,
            )
        )
    said.append(
        say("To get below {best}: more text, more dropout, or a smaller model.", best=loss(past.best))
    )
    return " ".join(said)
