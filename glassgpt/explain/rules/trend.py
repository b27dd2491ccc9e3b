"""A loss that was still falling, and what it would come to."""

from __future__ import annotations

import numpy as np

from glassgpt.explain.rule import Finding, RunAnalysis
from glassgpt.explain.rules.overfitting import find_past_best
from glassgpt.format import format_integer, format_loss, format_loss_difference
from glassgpt.i18n import say
from glassgpt.runs.curve import LossForecast, PowerLaw, block_medians, forecast_loss
from glassgpt.runs.run_log import Floats, RunLog
from glassgpt.runs.trajectory import (
    numeric_setting,
    planned_end_iteration,
    takes_known_settings,
    val_metric_name,
)

MAX_FORECAST_FACTOR = 3.0  # times the iterations done; a fit says nothing about what lies beyond
MAX_RESIDUAL_SHARE = 0.2  # of the curve's range: what a fit may leave over at all
# Of the last third's fall: a law that leaves over more has another slope than the curve at its end, as where
# a schedule bends it, and what it says of later is worth nothing.
MAX_RESIDUAL_OF_LATE_FALL = 0.15
MIN_RESIDUAL_TO_NOISE = 3.0  # times the noise of one evaluation: below that it is the noise that is left over
MIN_GAIN_SHARE = 0.01  # of the loss


def still_improving(case: RunAnalysis) -> Finding | None:
    history, last = case.log, case.trajectory.last_iteration
    points = _points_to_fit(case)
    if history.live or not history.numbered or last is None or points is None or case.loss_rise:
        return None
    at, values, noise, name = points
    planned = planned_end_iteration(history)
    unfinished = case.facts.ended != "finished" or (planned is not None and planned > 1.1 * last)
    targets: tuple[float, ...] = (1.5 * last, 2.0 * last)
    if planned is not None and 1.1 * last < planned <= MAX_FORECAST_FACTOR * last:
        targets = (float(planned),)
    found = forecast_loss(at, values, targets)
    if found is None or not _is_falling(at, values, noise, *found):
        return None
    law, ahead = found
    is_bent = law.residual > max(
        MAX_RESIDUAL_OF_LATE_FALL * _fall_of_last_third(at, values), MIN_RESIDUAL_TO_NOISE * noise
    )
    return Finding(
        "still-improving",
        "info" if unfinished or is_bent else "advice",
        say("The {name} was still falling at the end", name=name),
        _trend_evidence(at, values, name),
        _no_law(law) if is_bent else _trend_explanation(law, unfinished),
        "" if is_bent else _trend_advice(history, ahead, name, unfinished),
    )


def _is_falling(at: Floats, values: Floats, noise: float, law: PowerLaw, ahead: list[LossForecast]) -> bool:
    """By more than noise and doubt, on a curve that ends at its lowest."""
    now = law.at(float(at[-1]))
    gain, doubt = now - ahead[-1].value, ahead[-1].error
    decent = (
        law.residual < MAX_RESIDUAL_SHARE * float(np.ptp(values)) and values[-1] < np.min(values) + 2 * noise
    )
    return bool(decent and gain >= max(2 * noise, MIN_GAIN_SHARE * now, 1.5 * doubt))


def _fall_of_last_third(at: Floats, values: Floats) -> float:
    return float(values[_index_at_two_thirds(at)] - values[-1])


def _index_at_two_thirds(at: Floats) -> int:
    return min(int(np.searchsorted(at, at[-1] * 2 / 3)), len(at) - 2)


def _no_law(law: PowerLaw) -> str:
    return say(
        "No power law of the iterations fits this curve: the best one misses by {residual}. So what more "
        "training brings is not computed.",
        residual=format_loss_difference(law.residual),
    )


def _points_to_fit(case: RunAnalysis) -> tuple[Floats, Floats, float, str] | None:
    """Iterations, losses, noise of one, and what they are: evaluations, or training losses where these are
    few. Only from after the warm-up and the first tenth, where the law does not hold yet."""
    history, course = case.log, case.trajectory
    last = course.last_iteration or 0
    begin = max(0.1 * last, numeric_setting(history, "warmup_iters") or 0.0)
    at, values = course.val_curve()
    late = at >= max(begin, 1)
    at, values = at[late], values[late]
    if len(values) >= 4:
        noise = case.eval_noise
        return at, values, noise.std if noise else 0.003 * float(values[-1]), val_metric_name(history)
    iterations, losses = course.finite_losses()
    late = iterations >= max(begin, 1)
    if late.sum() < 120 or find_past_best(case):
        return None
    smooth = block_medians(iterations[late], losses[late], 24)
    return smooth.centers, smooth.medians, float(np.median(smooth.stderrs)), "train loss"


def _trend_evidence(at: Floats, values: Floats, name: str) -> str:
    third = _index_at_two_thirds(at)
    return say(
        "{name}: {then} at iteration {early}, {now} at iteration {late}.",
        name=name,
        then=format_loss(values[third]),
        early=format_integer(at[third]),
        now=format_loss(values[-1]),
        late=format_integer(at[-1]),
    )


def _trend_explanation(law: PowerLaw, unfinished: bool) -> str:
    said = [
        say(
            "A power law of the iterations fits the curve to within {residual}; the figures ahead follow "
            "from it.",
            residual=format_loss_difference(law.residual),
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


def _trend_advice(history: RunLog, ahead: list[LossForecast], name: str, unfinished: bool) -> str:
    if len(ahead) == 1:
        return say(
            "Going on to the planned {last} iterations should bring the {name} to about {value} ± {error}.",
            last=format_integer(ahead[0].t),
            name=name,
            value=f"{ahead[0].value:.2f}",
            error=f"{ahead[0].error:.2f}",
        )
    values = {
        "name": name,
        "half": format_integer(ahead[0].t),
        "first": f"{ahead[0].value:.2f}",
        "doubt": f"{ahead[0].error:.2f}",
        "double": format_integer(ahead[1].t),
        "second": f"{ahead[1].value:.2f}",
        "more": f"{ahead[1].error:.2f}",
    }
    if unfinished:
        return say(
            "Going on: about {first} ± {doubt} at {half} iterations, {second} ± {more} at {double} (the "
            "{name}).",
            **values,
        )
    if takes_known_settings(history):
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
