"""A loss that was still falling, and what it would come to."""

from __future__ import annotations

import numpy as np

from glassgpt.figures import difference, loss, whole
from glassgpt.insight.course import (
    Course,
    course_of,
    eval_noise,
    metric_name,
    planned_end,
    setting,
    takes_nanogpt_settings,
)
from glassgpt.insight.curve import Forecast, blocks, forecast
from glassgpt.insight.findings.accidents import rise_of
from glassgpt.insight.findings.finding import Case, Finding
from glassgpt.insight.findings.overfitting import past_its_best
from glassgpt.insight.history import Floats, History
from glassgpt.words import say

FARTHEST = 3.0  # times the iterations done; a fit says nothing about what lies beyond


def still_improving(case: Case) -> Finding | None:
    history = case.history
    course = course_of(history)
    last = course.last
    points = _points_to_extend(history, course)
    if history.live or last is None or points is None or rise_of(case.history):
        return None
    at, values, noise, name = points
    planned = planned_end(history)
    unfinished = case.facts.ended != "finished" or (planned is not None and planned > 1.1 * last)
    targets: tuple[float, ...] = (1.5 * last, 2.0 * last)
    if planned is not None and 1.1 * last < planned <= FARTHEST * last:
        targets = (float(planned),)
    found = forecast(at, values, targets)
    if found is None:
        return None
    law, ahead = found
    now = law.at(float(at[-1]))
    gain, doubt = now - ahead[-1].value, ahead[-1].error
    spread = float(np.ptp(values))
    decent = law.residual < 0.2 * spread and values[-1] < np.min(values) + 2 * noise
    if not decent or gain < max(2 * noise, 0.01 * now, 1.5 * doubt):
        return None
    return Finding(
        "still-improving",
        "info" if unfinished else "advice",
        say("The {name} was still falling at the end", name=name),
        _trend_evidence(at, values, name),
        _trend_explanation(history, law.residual, unfinished),
        _trend_advice(history, ahead, name, unfinished),
    )


def _points_to_extend(history: History, course: Course) -> tuple[Floats, Floats, float, str] | None:
    """Iterations, losses, noise of one, and what they are: evaluations, or training losses where these are
    few. Only from after the warm-up and the first tenth, where the law does not hold yet."""
    last = course.last or 0
    begin = max(0.1 * last, setting(history, "warmup_iters") or 0.0)
    at, values = course.val_points()
    late = at >= max(begin, 1)
    at, values = at[late], values[late]
    if len(values) >= 4:
        noise = eval_noise(history, course)
        return at, values, noise.value if noise else 0.003 * float(values[-1]), metric_name(history)
    iterations, losses = course.losses()
    late = iterations >= max(begin, 1)
    if late.sum() < 120 or past_its_best(history, course):
        return None
    smooth = blocks(iterations[late], losses[late], 24)
    return smooth.at, smooth.value, float(np.median(smooth.error)), "train loss"


def _trend_evidence(at: Floats, values: Floats, name: str) -> str:
    third = int(np.searchsorted(at, at[-1] * 2 / 3))
    third = min(third, len(values) - 2)
    return say(
        "{name}: {then} at iteration {early}, {now} at iteration {late}.",
        name=name,
        then=loss(values[third]),
        early=whole(at[third]),
        now=loss(values[-1]),
        late=whole(at[-1]),
    )


def _trend_explanation(history: History, residual: float, unfinished: bool) -> str:
    said = [
        say(
            "A power law of the iterations fits the curve to within {residual}; the figures ahead follow "
            "from it.",
            residual=difference(residual),
        )
    ]
    if not unfinished:
        said.append(
            say(
                "Be careful: towards the end of a schedule the falling learning rate itself lowers the loss, "
                "so the figures hold only if the schedule is stretched as well, and not if the model begins "
                "to overfit."
            )
        )
    return " ".join(said)


def _trend_advice(history: History, ahead: list[Forecast], name: str, unfinished: bool) -> str:
    if len(ahead) == 1:
        return say(
            "Going on to the planned {last} iterations should bring the {name} to about {value} ± {error}.",
            last=whole(ahead[0].t),
            name=name,
            value=f"{ahead[0].value:.2f}",
            error=f"{ahead[0].error:.2f}",
        )
    values = {
        "name": name,
        "half": whole(ahead[0].t),
        "first": f"{ahead[0].value:.2f}",
        "doubt": f"{ahead[0].error:.2f}",
        "double": whole(ahead[1].t),
        "second": f"{ahead[1].value:.2f}",
        "more": f"{ahead[1].error:.2f}",
    }
    if unfinished:
        return say(
            "Going on: about {first} ± {doubt} at {half} iterations, {second} ± {more} at {double} (the "
            "{name}).",
            **values,
        )
    if takes_nanogpt_settings(history):
        return say(
            "Raise max_iters and lr_decay_iters together: about {first} ± {doubt} at {half} iterations, "
            "{second} ± {more} at {double} (the {name}).",
            **values,
        )
    return say(
        "Train longer, with the schedule stretched: about {first} ± {doubt} at {half} iterations, {second} ± "
        "{more} at {double} (the {name}).",
        **values,
    )
