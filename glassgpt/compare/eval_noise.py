"""What the noise of evaluating means for two losses, in words."""

from __future__ import annotations

import math

from glassgpt import format
from glassgpt.compare.claim import Claim
from glassgpt.compare.compared_run import ComparedRun
from glassgpt.i18n import say
from glassgpt.runs.noise import EvalNoise

SIGNIFICANT_SIGMAS = 2.0  # from which on a difference counts


def combined_std(left: EvalNoise | None, right: EvalNoise | None) -> float | None:
    """Of the difference of two losses."""
    if left is None or right is None:
        return None
    return math.hypot(left.std, right.std)


def noise_claim(first: ComparedRun, other: ComparedRun) -> Claim:
    runs = (first.label, other.label)
    details = tuple(_describe_noise(side.label, side.noise) for side in (first, other))
    spread = combined_std(first.noise, other.noise)
    if first.has_shared_eval_tokens:
        return _shared_noise(runs, spread)
    if spread is None:
        claim = say("How large the noise of these losses is cannot be told.")
        return Claim("noise", runs, claim, details)
    claim = say(
        "Differences in loss below {limit} mean nothing here.",
        limit=format.format_loss_difference(SIGNIFICANT_SIGMAS * spread),
    )
    seeds = say("That is the noise of evaluating. Another seed adds its own, which one run cannot show.")
    return Claim("noise", runs, claim, (*details, seeds))


def _shared_noise(runs: tuple[str, str], spread: float | None) -> Claim:
    claim = say("Both evaluate the same tokens, so their difference is surer than each loss by itself.")
    seeds = say("Another seed adds its own noise, which one run cannot show.")
    if spread is None:
        return Claim("noise", runs, claim, (seeds,))
    limit = say(
        "By the scatter of the losses, differences below {limit} mean nothing.",
        limit=format.format_loss_difference(SIGNIFICANT_SIGMAS * spread),
    )
    return Claim("noise", runs, claim, (limit, seeds))


def _describe_noise(label: str, noise: EvalNoise | None) -> str:
    if noise is None:
        return say("{run} says neither how many tokens it evaluates nor how sure that is.", run=label)
    value = format.format_loss_difference(noise.std)
    if noise.source == "stderr":
        return say("{run}: ±{noise}, as its log says.", run=label, noise=value)
    if noise.source == "batches":
        return say(
            "{run}: about ±{noise}; single batches scatter by {batch}, and it evaluates {batches} of them.",
            run=label,
            noise=value,
            batch=format.format_loss_difference(noise.batch_std or 0.0),
            batches=format.format_integer(noise.eval_batches or 0),
        )
    if noise.source == "tokens":
        return say(
            "{run}: about ±{noise}, from the {tokens} tokens that it evaluates.",
            run=label,
            noise=value,
            tokens=format.format_count(noise.eval_tokens or 0),
        )
    return say("{run}: about ±{noise}, by the scatter of its losses.", run=label, noise=value)
