"""What the noise of evaluating means for two losses, in words."""

from __future__ import annotations

import math

from glassgpt import format
from glassgpt.compare.claim import Conclusion
from glassgpt.compare.compared_run import Side
from glassgpt.i18n import say
from glassgpt.runs.noise import Noise

SIGMAS = 2.0  # from which on a difference counts


def together(left: Noise | None, right: Noise | None) -> float | None:
    """Of the difference of two losses."""
    if left is None or right is None:
        return None
    return math.hypot(left.value, right.value)


def noise_conclusion(first: Side, other: Side) -> Conclusion:
    runs = (first.label, other.label)
    details = tuple(_noise_line(side.label, side.noise) for side in (first, other))
    spread = together(first.noise, other.noise)
    if first.shared_tokens:
        return _shared_noise(runs, spread)
    if spread is None:
        claim = say("How large the noise of these losses is cannot be told.")
        return Conclusion("noise", runs, claim, details)
    claim = say(
        "Differences in loss below {limit} mean nothing here.", limit=format.difference(SIGMAS * spread)
    )
    seeds = say("That is the noise of evaluating. Another seed adds its own, which one run cannot show.")
    return Conclusion("noise", runs, claim, (*details, seeds))


def _shared_noise(runs: tuple[str, str], spread: float | None) -> Conclusion:
    claim = say("Both evaluate the same tokens, so their difference is surer than each loss by itself.")
    seeds = say("Another seed adds its own noise, which one run cannot show.")
    if spread is None:
        return Conclusion("noise", runs, claim, (seeds,))
    limit = say(
        "By the scatter of the losses, differences below {limit} mean nothing.",
        limit=format.difference(SIGMAS * spread),
    )
    return Conclusion("noise", runs, claim, (limit, seeds))


def _noise_line(label: str, noise: Noise | None) -> str:
    if noise is None:
        return say("{run} says neither how many tokens it evaluates nor how sure that is.", run=label)
    value = format.difference(noise.value)
    if noise.source == "stderr":
        return say("{run}: ±{noise}, as its log says.", run=label, noise=value)
    if noise.source == "batches":
        return say(
            "{run}: about ±{noise}; single batches scatter by {batch}, and it evaluates {batches} of them.",
            run=label,
            noise=value,
            batch=format.difference(noise.of_batch or 0.0),
            batches=format.whole(noise.batches or 0),
        )
    if noise.source == "tokens":
        return say(
            "{run}: about ±{noise}, from the {tokens} tokens that it evaluates.",
            run=label,
            noise=value,
            tokens=format.count(noise.tokens or 0),
        )
    return say("{run}: about ±{noise}, by the scatter of its losses.", run=label, noise=value)
