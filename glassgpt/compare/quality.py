"""Which of two runs learned better, whether the difference is more than noise, and where it holds."""

from __future__ import annotations

import math

from glassgpt import format
from glassgpt.compare.alignment import (
    Alignment,
    InterpolatedLoss,
    LowestCommonLoss,
    align_all,
    find_lowest_common_loss,
    format_axis_value,
)
from glassgpt.compare.causes import explain_better, explain_by_training_length
from glassgpt.compare.claim import Claim
from glassgpt.compare.comparable import Comparability, bits_per_byte
from glassgpt.compare.compared_run import ComparedRun, LossKind
from glassgpt.compare.differences import Difference
from glassgpt.compare.eval_noise import SIGNIFICANT_SIGMAS, combined_std, noise_claim
from glassgpt.compare.loss_curve import AXES, Axis
from glassgpt.i18n import say

_WIDE_LOSS_INTERVAL = 0.1
_MIN_RISE_PAST_BEST = 0.005  # of the best: where the noise is not known


def compare_losses(
    first: ComparedRun,
    other: ComparedRun,
    differences: tuple[Difference, ...],
    comparability: Comparability,
    measure: LossKind,
) -> list[Claim]:
    runs = (first.label, other.label)
    missing = [side.label for side in (first, other) if side.last is None or side.last[1] == 0]
    if missing:
        claim = say(
            "Which is better cannot be told: no losses of a model that has learned in {runs}.",
            runs=", ".join(missing),
        )
        return [Claim("no-losses", tuple(missing), claim)]
    if comparability.level == "refused":
        claim = say("The losses of {a} and {b} do not compare.", a=first.label, b=other.label)
        return [Claim("not-comparable", runs, claim, comparability.reasons)]
    if comparability.level == "bytes":
        return [_per_byte_claim(first, other, comparability)]
    conclusions = [*_compare_best_losses(first, other, differences, measure)]
    if comparability.level == "assumed":
        claim = say("That the losses of {a} and {b} compare is assumed.", a=first.label, b=other.label)
        conclusions.append(Claim("assumed-comparable", runs, claim, comparability.reasons))
    if measure == "training":
        claim = say("These are training losses: not every log has evaluations.")
        detail = say(
            "They say how well a run fits what it is shown, not how well it does on text that it never saw."
        )
        conclusions.append(Claim("training-losses", runs, claim, (detail,)))
    return conclusions


def _per_byte_claim(first: ComparedRun, other: ComparedRun, comparability: Comparability) -> Claim:
    values = [bits_per_byte(side, side.best[0]) if side.best else None for side in (first, other)]
    a, b = values[0] or 0.0, values[1] or 0.0
    better = first.label if a < b else other.label
    claim = say(
        "{better} is better per byte of text: {a} has {a_bits} bits per byte at its best, {b} {b_bits}.",
        better=better,
        a=first.label,
        b=other.label,
        a_bits=format.format_loss(a),
        b_bits=format.format_loss(b),
    )
    reasons = (*comparability.reasons, say("So their losses per token do not compare; bits per byte do."))
    return Claim("better-per-byte", (first.label, other.label), claim, reasons)


# --- losses that compare ---


def _compare_best_losses(
    first: ComparedRun, other: ComparedRun, differences: tuple[Difference, ...], measure: LossKind
) -> list[Claim]:
    if first.best is None or other.best is None:
        return []
    aligned = align_all([first.curve, other.curve])
    gap = abs(first.best[0] - other.best[0])
    better, worse = (first, other) if first.best[0] < other.best[0] else (other, first)
    spread = combined_std(first.noise, other.noise)
    past = [late for side in (first, other) if measure == "validation" and (late := past_best_claim(side))]
    noise = noise_claim(first, other)
    if gap <= (SIGNIFICANT_SIGMAS * spread if spread else 1e-9):
        return [
            _equally_good_claim(first, other, gap, spread),
            *past,
            *_equal_point_claims(first, other, aligned),
            noise,
        ]
    equal = [*past, *_equal_point_claims(first, other, aligned)]
    equal += _reached_first_claim(first, other, find_lowest_common_loss([first.curve, other.curve]))
    undecided = _undecided_claim(better, worse, aligned)
    if undecided:
        return [undecided, *equal, *explain_by_training_length(better, worse, gap, aligned), noise]
    claim = _better_claim(better, worse, gap, spread)
    return [claim, *equal, *explain_better(better, worse, gap, differences, aligned), noise]


def _better_claim(better: ComparedRun, worse: ComparedRun, gap: float, spread: float | None) -> Claim:
    best, other = better.best or (0.0, 0), worse.best or (0.0, 0)
    claim = say(
        "{better} is better than {worse}: {better_loss} (iteration {better_at}) against {worse_loss} "
        "(iteration {worse_at}), best against best.",
        better=better.label,
        worse=worse.label,
        better_loss=format.format_loss(best[0]),
        better_at=format.format_integer(best[1]),
        worse_loss=format.format_loss(other[0]),
        worse_at=format.format_integer(other[1]),
    )
    details: tuple[str, ...] = ()
    if spread:
        details = (
            say(
                "The difference of {gap} is {times} the noise.",
                gap=format.format_loss_difference(gap),
                times=format.format_factor(gap / spread),
            ),
        )
    return Claim("better", (better.label, worse.label), claim, details)


def _equally_good_claim(first: ComparedRun, other: ComparedRun, gap: float, spread: float | None) -> Claim:
    runs = (first.label, other.label)
    if not spread or not gap:
        claim = say("{a} and {b} have the same best loss.", a=first.label, b=other.label)
        return Claim("equally-good", runs, claim)
    claim = say(
        "{a} and {b} cannot be told apart: their best losses differ by {gap}, and the noise of that "
        "difference is {noise}.",
        a=first.label,
        b=other.label,
        gap=format.format_loss_difference(gap),
        noise=format.format_loss_difference(spread),
    )
    return Claim("equally-good", runs, claim)


def past_best_claim(side: ComparedRun) -> Claim | None:
    """The last loss is not the best one: comparing ends would compare the wrong thing."""
    if side.best is None or side.last is None:
        return None
    limit = (
        SIGNIFICANT_SIGMAS * math.sqrt(2) * side.noise.std
        if side.noise
        else _MIN_RISE_PAST_BEST * side.best[0]
    )
    rise = side.last[0] - side.best[0]
    if rise <= max(limit, 1e-9):
        return None
    claim = say(
        "{run}'s last loss, {last}, is past its best: {best} at iteration {at}.",
        run=side.label,
        last=format.format_loss(side.last[0]),
        best=format.format_loss(side.best[0]),
        at=format.format_integer(side.best[1]),
    )
    training = {done.iteration: done.train_loss for done in side.log.evals if done.train_loss is not None}
    then, now = training.get(side.best[1]), training.get(side.last[1])
    if then is None or now is None or not now < then:
        return Claim("past-best", (side.label,), claim)
    detail = say(
        "It overfits: since then its training loss fell from {then} to {now}, while its validation loss rose "
        "by {rise}.",
        then=format.format_loss(then),
        now=format.format_loss(now),
        rise=format.format_loss_difference(rise),
    )
    return Claim("past-best", (side.label,), claim, (detail,))


def _undecided_claim(better: ComparedRun, worse: ComparedRun, aligned: dict[Axis, Alignment]) -> Claim | None:
    """The run with the higher loss may only have been stopped early: at its best when its evaluations end,
    and not behind there."""
    points = aligned["iterations"].points
    if worse.best is None or worse.best != worse.last or better.best is None or not points:
        return None
    if worse.facts.ended == "finished" or _had_as_much(worse, better):
        return None
    readings = dict(zip(sorted((better.label, worse.label)), points[-1].losses, strict=True))
    own, its = readings[worse.label], readings[better.label]
    if own is None or its is None or points[-1].at != worse.best[1] or not 0 < worse.best[1] < better.best[1]:
        return None
    if own.loss - its.loss > SIGNIFICANT_SIGMAS * (combined_std(better.noise, worse.noise) or 0.0):
        return None
    claim = say(
        "Which of {better} and {worse} is better is open: the evaluations of {worse} end at iteration {at}, "
        "and it is not behind there.",
        better=better.label,
        worse=worse.label,
        at=format.format_integer(worse.best[1]),
    )
    details = (
        say(
            "At iteration {at}: {worse} {own}, {better} {its}.",
            at=format.format_integer(worse.best[1]),
            worse=worse.label,
            better=better.label,
            own=_format_loss(own),
            its=_format_loss(its),
        ),
        say(
            "The {loss} of {better} is from iteration {at}, which {worse} has no evaluation of.",
            loss=format.format_loss(better.best[0]),
            better=better.label,
            worse=worse.label,
            at=format.format_integer(better.best[1]),
        ),
    )
    return Claim("better-open", (better.label, worse.label), claim, details)


def _had_as_much(worse: ComparedRun, better: ComparedRun) -> bool:
    """Fewer iterations, but of larger batches."""
    seen, other = worse.tokens_at_best, better.tokens_at_best
    return seen is not None and other is not None and seen >= other


# --- at equal points ---


def _format_loss(reading: InterpolatedLoss) -> str:
    """Where the evaluations around it are far apart, with both: a line between them is a poor guess there."""
    if reading.is_exact:
        return format.format_loss(reading.loss)
    about = f"≈{format.format_loss(reading.loss)}"
    wide = reading.high - reading.low > _WIDE_LOSS_INTERVAL
    return (
        f"{about} ({format.format_loss(reading.low)} … {format.format_loss(reading.high)})" if wide else about
    )


def _equal_point_claims(
    first: ComparedRun, other: ComparedRun, aligned: dict[Axis, Alignment]
) -> list[Claim]:
    details = [line for axis in AXES if (line := _equal_point_sentence(first, other, aligned[axis]))]
    if not details:
        return []
    claim = say("At the largest point that both reached:")
    return [Claim("equal-points", (first.label, other.label), claim, tuple(details))]


def _equal_point_sentence(first: ComparedRun, other: ComparedRun, alignment: Alignment) -> str | None:
    if not alignment.points:
        return None
    point = alignment.points[-1]
    left, right = point.losses
    if left is None or right is None:
        return None
    values = {
        "a": first.label,
        "b": other.label,
        "a_loss": _format_loss(left),
        "b_loss": _format_loss(right),
        "at": format_axis_value(alignment.axis, point.at),
    }
    if alignment.axis == "iterations":
        return say("Equal iterations ({at}): {a} {a_loss}, {b} {b_loss}.", **values)
    if alignment.axis == "tokens":
        return say("Equal tokens ({at}): {a} {a_loss}, {b} {b_loss}.", **values)
    if alignment.axis == "time":
        return say("Equal time ({at}): {a} {a_loss}, {b} {b_loss}.", **values)
    return say("Equal arithmetic ({at}): {a} {a_loss}, {b} {b_loss}.", **values)


def _reached_first_claim(
    first: ComparedRun, other: ComparedRun, common: LowestCommonLoss | None
) -> list[Claim]:
    """Time is what people wait for: who had the loss that both reached, first."""
    if common is None:
        return []
    left, right = common.at["time"]
    if left is None or right is None or not min(left, right) > 0 or max(left, right) < 1.1 * min(left, right):
        return []
    early, late = (first, other) if left < right else (other, first)
    claim = say(
        "{early} reached {loss} first, after {early_time}; {late} after {late_time}.",
        early=early.label,
        late=late.label,
        loss=format.format_loss(common.loss),
        early_time=format.format_duration(min(left, right)),
        late_time=format.format_duration(max(left, right)),
    )
    return [Claim("reached-first", (early.label, late.label), claim)]
