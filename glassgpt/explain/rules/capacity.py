"""A model that saw far more tokens than its size is good for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.explain.rule import Case, Finding
from glassgpt.format import count, loss, percent, whole
from glassgpt.i18n import say
from glassgpt.runs.trajectory import metric_name

TOKENS_PER_PARAMETER = 20.0  # that a given amount of compute is best spent at (Hoffmann et al. 2022)
FAR_MORE = 5.0  # times that: well beyond what people choose to make a model cheap to use
FEWEST_EVALUATIONS = 6
CLOSE = 0.03  # training and validation, of the loss: it does not learn by heart
FLAT = 0.01  # of the loss, over the last third


@dataclass(frozen=True)
class Fit:
    """How a model's size fits what it was trained on."""

    train: float
    val: float
    earlier: float  # validation loss, two thirds through the run
    parameters: int
    tokens: float

    @property
    def ratio(self) -> float:
        return self.tokens / self.parameters


def is_too_small(case: Case) -> bool:
    return _fit(case) is not None


def _fit(case: Case) -> Fit | None:
    """Only of a model that is too small: both losses close together and flat."""
    facts, last = case.facts, case.course.last
    both = [done for done in case.course.evals if done.train_loss and math.isfinite(done.train_loss)]
    if len(both) < FEWEST_EVALUATIONS or not facts.parameters or not facts.tokens_per_iteration or not last:
        return None
    earlier = [done.val_loss or 0.0 for done in both if (done.iteration or 0) <= last * 2 / 3]
    if not earlier:
        return None
    seen = case.history.tokens_seen(np.array([last]), facts.tokens_per_iteration)
    assert seen is not None
    tokens = float(seen[0])
    fit = Fit(both[-1].train_loss or 0.0, both[-1].val_loss or 0.0, earlier[-1], facts.parameters, tokens)
    is_close = abs(fit.val - fit.train) < CLOSE * fit.train
    is_flat = abs(fit.earlier - fit.val) < FLAT * fit.val
    return fit if is_close and is_flat and fit.ratio >= FAR_MORE * TOKENS_PER_PARAMETER else None


def underfit_capacity(case: Case) -> Finding | None:
    fit = _fit(case)
    if fit is None or not case.history.numbered:
        return None
    # Compute is 6 x parameters x tokens; the best split of it has 20 tokens to a parameter.
    fitting = math.sqrt(fit.parameters * fit.tokens / TOKENS_PER_PARAMETER)
    return Finding(
        "underfit-capacity",
        "advice",
        say("The model is small for what it was trained on"),
        say(
            "At the end train loss {train} and {metric} {val} are {gap} apart, and the {metric} moved from "
            "{then} over the last third. {parameters} parameters saw {tokens} tokens: {ratio} for each.",
            train=loss(fit.train),
            metric=metric_name(case.history),
            val=loss(fit.val),
            gap=percent(abs(fit.val - fit.train) / fit.train),
            then=loss(fit.earlier),
            parameters=count(fit.parameters),
            tokens=count(fit.tokens),
            ratio=whole(fit.ratio),
        ),
        say(
            "It does not overfit and it does not improve: its size is the limit. About {ratio} tokens per "
            "parameter is where compute is best spent on text.",
            ratio=whole(TOKENS_PER_PARAMETER),
        ),
        say(
            "The same compute trains {parameters} parameters on {tokens} tokens.",
            parameters=count(fitting),
            tokens=count(TOKENS_PER_PARAMETER * fitting),
        ),
    )
