"""A model that saw far more tokens than its size is good for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.explain.rule import Finding, RunAnalysis
from glassgpt.format import format_count, format_integer, format_loss, format_percent
from glassgpt.i18n import say
from glassgpt.runs.trajectory import val_metric_name

CHINCHILLA_TOKENS_PER_PARAMETER = (
    20.0  # that a given amount of compute is best spent at (Hoffmann et al. 2022)
)
MIN_OVERTRAINING_FACTOR = 5.0  # times that: well beyond what people choose to make a model cheap to use
MIN_EVALUATIONS = 6
MAX_TRAIN_VAL_GAP = 0.03  # training and validation, of the loss: it does not learn by heart
MAX_LATE_IMPROVEMENT = 0.01  # of the loss, over the last third


@dataclass(frozen=True)
class CapacityFit:
    """How a model's size fits what it was trained on."""

    train_loss: float
    val_loss: float
    earlier_val_loss: float  # validation loss, two thirds through the run
    parameters: int
    tokens: float

    @property
    def tokens_per_parameter(self) -> float:
        return self.tokens / self.parameters


def is_model_too_small(case: RunAnalysis) -> bool:
    return _find_capacity_fit(case) is not None


def _find_capacity_fit(case: RunAnalysis) -> CapacityFit | None:
    """Only of a model that is too small: both losses close together and flat."""
    facts, last = case.facts, case.trajectory.last_iteration
    both = [done for done in case.trajectory.evals if done.train_loss and math.isfinite(done.train_loss)]
    if len(both) < MIN_EVALUATIONS or not facts.parameters or not facts.tokens_per_iteration or not last:
        return None
    earlier = [done.val_loss or 0.0 for done in both if (done.iteration or 0) <= last * 2 / 3]
    if not earlier:
        return None
    seen = case.log.tokens_seen_at(np.array([last]), facts.tokens_per_iteration)
    assert seen is not None
    tokens = float(seen[0])
    fit = CapacityFit(
        both[-1].train_loss or 0.0, both[-1].val_loss or 0.0, earlier[-1], facts.parameters, tokens
    )
    is_close = abs(fit.val_loss - fit.train_loss) < MAX_TRAIN_VAL_GAP * fit.train_loss
    is_flat = abs(fit.earlier_val_loss - fit.val_loss) < MAX_LATE_IMPROVEMENT * fit.val_loss
    return (
        fit
        if is_close
        and is_flat
        and fit.tokens_per_parameter >= MIN_OVERTRAINING_FACTOR * CHINCHILLA_TOKENS_PER_PARAMETER
        else None
    )


def underfit_capacity(case: RunAnalysis) -> Finding | None:
    fit = _find_capacity_fit(case)
    if fit is None or not case.log.numbered:
        return None
    # Compute is 6 x parameters x tokens; the best split of it has 20 tokens to a parameter.
    fitting = math.sqrt(fit.parameters * fit.tokens / CHINCHILLA_TOKENS_PER_PARAMETER)
    return Finding(
        "underfit-capacity",
        "advice",
        say("The model is small for what it was trained on"),
        say(
            "At the end train loss {train} and {metric} {val} are {gap} apart, and the {metric} moved from "
            "{then} over the last third. {parameters} parameters saw {tokens} tokens: {ratio} for each.",
            train=format_loss(fit.train_loss),
            metric=val_metric_name(case.log),
            val=format_loss(fit.val_loss),
            gap=format_percent(abs(fit.val_loss - fit.train_loss) / fit.train_loss),
            then=format_loss(fit.earlier_val_loss),
            parameters=format_count(fit.parameters),
            tokens=format_count(fit.tokens),
            ratio=format_integer(fit.tokens_per_parameter),
        ),
        say(
            "It does not overfit and it does not improve: its size is the limit. About {ratio} tokens per "
            "parameter is where compute is best spent on text.",
            ratio=format_integer(CHINCHILLA_TOKENS_PER_PARAMETER),
        ),
        say(
            "The same compute trains {parameters} parameters on {tokens} tokens.",
            parameters=format_count(fitting),
            tokens=format_count(CHINCHILLA_TOKENS_PER_PARAMETER * fitting),
        ),
    )
