"""Whether a measured loss is on the course that was expected, and if not, what it may come from. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from glassgpt.estimate.loss_law import ExpectedLossCurve


@dataclass(frozen=True)
class LossVerdict:
    """Whether a measured loss is on the course; if not, what it may come from, the likeliest first."""

    position: str  # "on", "above" or "below"
    sentence: str
    causes: tuple[str, ...] = ()


_DIVERGED = "the run has diverged: a lower learning rate, a longer warm-up or clipped gradients help"
_OVERFITTING = (
    "it has seen the text too often and learns it by heart: use the best checkpoint, or stop earlier"
)
_CAUSES_ABOVE = (
    "the learning rate is far too low or too high, or its warm-up is longer than planned",
    "the text is harder than the one the expectation is from, or its tokens are not what the model is told",
    "an update has fewer tokens than planned",
)
_CAUSES_BELOW = (
    "the text is easier than the one the expectation is from, or repeats itself",
    "parts of the validation text are in the training text",
    "the model sees what it is to predict: a wrong mask, or targets that are not shifted",
)


def compare_with_expected(expectation: ExpectedLossCurve, iteration: int, measured: float) -> LossVerdict:
    """`measured`: a validation loss in nats per token."""
    expected = expectation.at(iteration)
    where = f"at iteration {iteration:,}, where {expected.low:.2f} to {expected.high:.2f} is expected"
    if math.isnan(measured):
        return LossVerdict("above", f"above: not a number {where}", (_DIVERGED,))
    if measured > expected.high:
        return LossVerdict(
            "above", f"above: {measured:.2f} {where}", _causes(expectation, iteration, measured)
        )
    if measured < expected.low:
        return LossVerdict("below", f"below: {measured:.2f} {where}", _CAUSES_BELOW)
    return LossVerdict("on", f"on the expected course: {measured:.2f} {where}")


def _causes(expectation: ExpectedLossCurve, iteration: int, measured: float) -> tuple[str, ...]:
    setup = expectation.inputs
    if measured > 1.06 * math.log(setup.vocab_size):
        return (_DIVERGED, *_CAUSES_ABOVE)
    seen_again = iteration * setup.batch_tokens > 2 * setup.train_tokens
    return (_OVERFITTING, *_CAUSES_ABOVE) if seen_again else _CAUSES_ABOVE
