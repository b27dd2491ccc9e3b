"""Which of two runs learned better, whether the difference is more than noise, and where it holds."""

from __future__ import annotations

import math

from glassgpt import format
from glassgpt.compare.alignment import Alignment, Reached, Reading, align_all, axis_text, reached
from glassgpt.compare.causes import explain_better, explain_by_amount
from glassgpt.compare.claim import Conclusion
from glassgpt.compare.comparable import Comparability, bits_per_byte
from glassgpt.compare.compared_run import Measure, Side
from glassgpt.compare.differences import Difference
from glassgpt.compare.eval_noise import SIGMAS, noise_conclusion, together
from glassgpt.compare.loss_curve import AXES, Axis
from glassgpt.i18n import say

_WIDE = 0.1
_PAST_BEST = 0.005  # of the best: where the noise is not known


def conclude_quality(
    first: Side,
    other: Side,
    differences: tuple[Difference, ...],
    comparability: Comparability,
    measure: Measure,
) -> list[Conclusion]:
    runs = (first.label, other.label)
    missing = [side.label for side in (first, other) if side.last is None or side.last[1] == 0]
    if missing:
        claim = say(
            "Which is better cannot be told: no losses of a model that has learned in {runs}.",
            runs=", ".join(missing),
        )
        return [Conclusion("no-losses", tuple(missing), claim)]
    if comparability.how == "refused":
        claim = say("The losses of {a} and {b} do not compare.", a=first.label, b=other.label)
        return [Conclusion("not-comparable", runs, claim, comparability.reasons)]
    if comparability.how == "bytes":
        return [_per_byte(first, other, comparability)]
    conclusions = [*_better(first, other, differences, measure)]
    if comparability.how == "assumed":
        claim = say("That the losses of {a} and {b} compare is assumed.", a=first.label, b=other.label)
        conclusions.append(Conclusion("assumed-comparable", runs, claim, comparability.reasons))
    if measure == "training":
        claim = say("These are training losses: not every log has evaluations.")
        detail = say(
            "They say how well a run fits what it is shown, not how well it does on text that it never saw."
        )
        conclusions.append(Conclusion("training-losses", runs, claim, (detail,)))
    return conclusions


def _per_byte(first: Side, other: Side, comparability: Comparability) -> Conclusion:
    values = [bits_per_byte(side, side.best[0]) if side.best else None for side in (first, other)]
    a, b = values[0] or 0.0, values[1] or 0.0
    better = first.label if a < b else other.label
    claim = say(
        "{better} is better per byte of text: {a} has {a_bits} bits per byte at its best, {b} {b_bits}.",
        better=better,
        a=first.label,
        b=other.label,
        a_bits=format.loss(a),
        b_bits=format.loss(b),
    )
    reasons = (*comparability.reasons, say("So their losses per token do not compare; bits per byte do."))
    return Conclusion("better-per-byte", (first.label, other.label), claim, reasons)


# --- losses that compare ---


def _better(
    first: Side, other: Side, differences: tuple[Difference, ...], measure: Measure
) -> list[Conclusion]:
    if first.best is None or other.best is None:
        return []
    aligned = align_all([first.progress, other.progress])
    gap = abs(first.best[0] - other.best[0])
    better, worse = (first, other) if first.best[0] < other.best[0] else (other, first)
    spread = together(first.noise, other.noise)
    past = [late for side in (first, other) if measure == "validation" and (late := past_best(side))]
    noise = noise_conclusion(first, other)
    if gap <= (SIGMAS * spread if spread else 1e-9):
        return [_level(first, other, gap, spread), *past, *_equal_points(first, other, aligned), noise]
    equal = [*past, *_equal_points(first, other, aligned)]
    equal += _reached(first, other, reached([first.progress, other.progress]))
    undecided = _open(better, worse, aligned)
    if undecided:
        return [undecided, *equal, *explain_by_amount(better, worse, gap, aligned), noise]
    claim = _best_claim(better, worse, gap, spread)
    return [claim, *equal, *explain_better(better, worse, gap, differences, aligned), noise]


def _best_claim(better: Side, worse: Side, gap: float, spread: float | None) -> Conclusion:
    best, other = better.best or (0.0, 0), worse.best or (0.0, 0)
    claim = say(
        "{better} is better than {worse}: {better_loss} (iteration {better_at}) against {worse_loss} "
        "(iteration {worse_at}), best against best.",
        better=better.label,
        worse=worse.label,
        better_loss=format.loss(best[0]),
        better_at=format.whole(best[1]),
        worse_loss=format.loss(other[0]),
        worse_at=format.whole(other[1]),
    )
    details: tuple[str, ...] = ()
    if spread:
        details = (
            say(
                "The difference of {gap} is {times} the noise.",
                gap=format.difference(gap),
                times=format.factor(gap / spread),
            ),
        )
    return Conclusion("better", (better.label, worse.label), claim, details)


def _level(first: Side, other: Side, gap: float, spread: float | None) -> Conclusion:
    runs = (first.label, other.label)
    if not spread or not gap:
        claim = say("{a} and {b} have the same best loss.", a=first.label, b=other.label)
        return Conclusion("equally-good", runs, claim)
    claim = say(
        "{a} and {b} cannot be told apart: their best losses differ by {gap}, and the noise of that "
        "difference is {noise}.",
        a=first.label,
        b=other.label,
        gap=format.difference(gap),
        noise=format.difference(spread),
    )
    return Conclusion("equally-good", runs, claim)


def past_best(side: Side) -> Conclusion | None:
    """The last loss is not the best one: comparing ends would compare the wrong thing."""
    if side.best is None or side.last is None:
        return None
    limit = SIGMAS * math.sqrt(2) * side.noise.value if side.noise else _PAST_BEST * side.best[0]
    rise = side.last[0] - side.best[0]
    if rise <= max(limit, 1e-9):
        return None
    claim = say(
        "{run}'s last loss, {last}, is past its best: {best} at iteration {at}.",
        run=side.label,
        last=format.loss(side.last[0]),
        best=format.loss(side.best[0]),
        at=format.whole(side.best[1]),
    )
    training = {done.iteration: done.train_loss for done in side.history.evals if done.train_loss is not None}
    then, now = training.get(side.best[1]), training.get(side.last[1])
    if then is None or now is None or not now < then:
        return Conclusion("past-best", (side.label,), claim)
    detail = say(
        "It overfits: since then its training loss fell from {then} to {now}, while its validation loss rose "
        "by {rise}.",
        then=format.loss(then),
        now=format.loss(now),
        rise=format.difference(rise),
    )
    return Conclusion("past-best", (side.label,), claim, (detail,))


def _open(better: Side, worse: Side, aligned: dict[Axis, Alignment]) -> Conclusion | None:
    """The run with the higher loss may only have been stopped early: at its best when its evaluations end,
    and not behind there."""
    points = aligned["iterations"].points
    if worse.best is None or worse.best != worse.last or better.best is None or not points:
        return None
    if worse.facts.ended == "finished" or _had_as_much(worse, better):
        return None
    readings = dict(zip(sorted((better.label, worse.label)), points[-1].readings, strict=True))
    own, its = readings[worse.label], readings[better.label]
    if own is None or its is None or points[-1].at != worse.best[1] or not 0 < worse.best[1] < better.best[1]:
        return None
    if own.loss - its.loss > SIGMAS * (together(better.noise, worse.noise) or 0.0):
        return None
    claim = say(
        "Which of {better} and {worse} is better is open: the evaluations of {worse} end at iteration {at}, "
        "and it is not behind there.",
        better=better.label,
        worse=worse.label,
        at=format.whole(worse.best[1]),
    )
    details = (
        say(
            "At iteration {at}: {worse} {own}, {better} {its}.",
            at=format.whole(worse.best[1]),
            worse=worse.label,
            better=better.label,
            own=_reading(own),
            its=_reading(its),
        ),
        say(
            "The {loss} of {better} is from iteration {at}, which {worse} has no evaluation of.",
            loss=format.loss(better.best[0]),
            better=better.label,
            worse=worse.label,
            at=format.whole(better.best[1]),
        ),
    )
    return Conclusion("better-open", (better.label, worse.label), claim, details)


def _had_as_much(worse: Side, better: Side) -> bool:
    """Fewer iterations, but of larger batches."""
    seen, other = worse.tokens_at_best, better.tokens_at_best
    return seen is not None and other is not None and seen >= other


# --- at equal points ---


def _reading(reading: Reading) -> str:
    """Where the evaluations around it are far apart, with both: a line between them is a poor guess there."""
    if reading.exact:
        return format.loss(reading.loss)
    about = f"≈{format.loss(reading.loss)}"
    wide = reading.high - reading.low > _WIDE
    return f"{about} ({format.loss(reading.low)} … {format.loss(reading.high)})" if wide else about


def _equal_points(first: Side, other: Side, aligned: dict[Axis, Alignment]) -> list[Conclusion]:
    details = [line for axis in AXES if (line := _equal_point(first, other, aligned[axis]))]
    if not details:
        return []
    claim = say("At the largest point that both reached:")
    return [Conclusion("equal-points", (first.label, other.label), claim, tuple(details))]


def _equal_point(first: Side, other: Side, alignment: Alignment) -> str | None:
    if not alignment.points:
        return None
    point = alignment.points[-1]
    left, right = point.readings
    if left is None or right is None:
        return None
    values = {
        "a": first.label,
        "b": other.label,
        "a_loss": _reading(left),
        "b_loss": _reading(right),
        "at": axis_text(alignment.axis, point.at),
    }
    if alignment.axis == "iterations":
        return say("Equal iterations ({at}): {a} {a_loss}, {b} {b_loss}.", **values)
    if alignment.axis == "tokens":
        return say("Equal tokens ({at}): {a} {a_loss}, {b} {b_loss}.", **values)
    if alignment.axis == "time":
        return say("Equal time ({at}): {a} {a_loss}, {b} {b_loss}.", **values)
    return say("Equal arithmetic ({at}): {a} {a_loss}, {b} {b_loss}.", **values)


def _reached(first: Side, other: Side, common: Reached | None) -> list[Conclusion]:
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
        loss=format.loss(common.loss),
        early_time=format.duration(min(left, right)),
        late_time=format.duration(max(left, right)),
    )
    return [Conclusion("reached-first", (early.label, late.label), claim)]
