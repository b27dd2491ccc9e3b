"""Which of two runs has the better loss, and whether the difference is more than noise."""

from __future__ import annotations

import math

from glassgpt import format
from glassgpt.compare.compared_run import Claim, ComparedRun, LossKind
from glassgpt.compare.differences import Comparability, Difference, bits_per_byte
from glassgpt.compare.loss_causes import explain_better, explain_by_training_length
from glassgpt.compare.loss_curve import (
    AXES,
    Alignment,
    Axis,
    InterpolatedLoss,
    align_all,
    find_lowest_common_loss,
    format_axis_value,
)
from glassgpt.i18n import say
from glassgpt.runs.noise import EvalNoise

_SIGNIFICANT_SIGMAS = 2.0  # a difference of fewer standard deviations is noise
_MIN_GAP_WITHOUT_NOISE = 1e-9  # where the noise is unknown
_MIN_RISE_PAST_BEST = 0.005  # relative to the best loss, where the noise is unknown
_WIDE_LOSS_INTERVAL = 0.1  # between two evaluations: an interpolated loss is then shown with both
_MIN_REACHED_LATER_RATIO = 1.1  # of the times when both runs reached the same loss


def compare_losses(
    first: ComparedRun,
    other: ComparedRun,
    differences: tuple[Difference, ...],
    comparability: Comparability,
    loss_kind: LossKind,
) -> list[Claim]:
    labels = (first.label, other.label)
    untrained = tuple(run.label for run in (first, other) if run.last is None or run.last[1] == 0)
    if untrained:
        sentence = say(
            "Which is better is unknown: there is no loss of a trained model in {runs}.",
            runs=", ".join(untrained),
        )
        return [Claim("no-losses", untrained, sentence)]
    if comparability.level == "refused":
        sentence = say("The losses of {a} and {b} are not comparable.", a=first.label, b=other.label)
        return [Claim("not-comparable", labels, sentence, comparability.reasons)]
    if comparability.level == "bytes":
        a_bits, b_bits = (
            (bits_per_byte(run, run.best[0]) if run.best else None) or 0.0 for run in (first, other)
        )
        sentence = say(
            "{better} is better per byte of text: {a} has {a_bits} bits per byte at its best, {b} {b_bits}.",
            better=first.label if a_bits < b_bits else other.label,
            a=first.label,
            b=other.label,
            a_bits=format.format_loss(a_bits),
            b_bits=format.format_loss(b_bits),
        )
        per_token = say("Losses per token are not comparable here; bits per byte are.")
        return [Claim("better-per-byte", labels, sentence, (*comparability.reasons, per_token))]
    claims = _compare_best_losses(first, other, differences, loss_kind)
    if comparability.level == "assumed":
        sentence = say(
            "This assumes that the losses of {a} and {b} are comparable.", a=first.label, b=other.label
        )
        claims.append(Claim("assumed-comparable", labels, sentence, comparability.reasons))
    if loss_kind == "training":
        sentence = say("These are training losses: not every log has evaluations.")
        detail = say(
            "They show how well a model fits its training data, not how well it does on unseen text."
        )
        claims.append(Claim("training-losses", labels, sentence, (detail,)))
    return claims


# --- best against best ---


def _compare_best_losses(
    first: ComparedRun, other: ComparedRun, differences: tuple[Difference, ...], loss_kind: LossKind
) -> list[Claim]:
    if first.best is None or other.best is None:
        return []
    aligned = align_all([first.curve, other.curve])
    gap = abs(first.best[0] - other.best[0])
    gap_std = _gap_std(first, other)
    curve_claims = []
    if loss_kind == "validation":
        curve_claims = [claim for run in (first, other) if (claim := past_best_claim(run))]
    curve_claims += _equal_point_claims(first, other, aligned)
    noise = noise_claim(first, other)
    if gap <= (_SIGNIFICANT_SIGMAS * gap_std if gap_std else _MIN_GAP_WITHOUT_NOISE):
        if not gap_std or not gap:
            sentence = say("{a} and {b} have the same best loss.", a=first.label, b=other.label)
        else:
            sentence = say(
                "{a} and {b} cannot be distinguished: their best losses differ by {gap}, and the noise of "
                "that difference is {noise}.",
                a=first.label,
                b=other.label,
                gap=format.format_loss_difference(gap),
                noise=format.format_loss_difference(gap_std),
            )
        return [Claim("equally-good", (first.label, other.label), sentence), *curve_claims, noise]

    better, worse = (first, other) if first.best[0] < other.best[0] else (other, first)
    curve_claims += _reached_first_claim(first, other)
    undecided = _undecided_claim(better, worse, aligned)
    if undecided:
        length_claims = explain_by_training_length(better, worse, gap, aligned)
        return [undecided, *curve_claims, *length_claims, noise]
    better_best, worse_best = better.best or (0.0, 0), worse.best or (0.0, 0)
    sentence = say(
        "{better} is better than {worse}: {better_loss} (iteration {better_at}) against {worse_loss} "
        "(iteration {worse_at}), best against best.",
        better=better.label,
        worse=worse.label,
        better_loss=format.format_loss(better_best[0]),
        better_at=format.format_integer(better_best[1]),
        worse_loss=format.format_loss(worse_best[0]),
        worse_at=format.format_integer(worse_best[1]),
    )
    details: tuple[str, ...] = ()
    if gap_std:
        in_noise = say(
            "The difference of {gap} is {times} the noise.",
            gap=format.format_loss_difference(gap),
            times=format.format_factor(gap / gap_std),
        )
        details = (in_noise,)
    better_claim = Claim("better", (better.label, worse.label), sentence, details)
    return [better_claim, *curve_claims, *explain_better(better, worse, gap, differences, aligned), noise]


def past_best_claim(run: ComparedRun) -> Claim | None:
    """The last loss is above the best one, so comparing the last losses would mislead."""
    if run.best is None or run.last is None:
        return None
    rise = run.last[0] - run.best[0]
    min_rise = _MIN_RISE_PAST_BEST * run.best[0]
    if run.noise:
        min_rise = _SIGNIFICANT_SIGMAS * math.sqrt(2) * run.noise.std
    if rise <= max(min_rise, _MIN_GAP_WITHOUT_NOISE):
        return None
    sentence = say(
        "{run}'s last loss, {last}, is worse than its best: {best} at iteration {at}.",
        run=run.label,
        last=format.format_loss(run.last[0]),
        best=format.format_loss(run.best[0]),
        at=format.format_integer(run.best[1]),
    )
    train_losses = {
        evaluation.iteration: evaluation.train_loss
        for evaluation in run.log.evals
        if evaluation.train_loss is not None
    }
    then, now = train_losses.get(run.best[1]), train_losses.get(run.last[1])
    if then is None or now is None or not now < then:
        return Claim("past-best", (run.label,), sentence)
    detail = say(
        "It overfits: since then its training loss fell from {then} to {now}, while its validation loss rose "
        "by {rise}.",
        then=format.format_loss(then),
        now=format.format_loss(now),
        rise=format.format_loss_difference(rise),
    )
    return Claim("past-best", (run.label,), sentence, (detail,))


def _undecided_claim(better: ComparedRun, worse: ComparedRun, aligned: dict[Axis, Alignment]) -> Claim | None:
    """The run with the higher loss may have been stopped early: its last evaluation is its best, and it is
    not behind there."""
    points = aligned["iterations"].points
    if worse.best is None or worse.best != worse.last or better.best is None or not points:
        return None
    if worse.analysis.facts.ended == "finished":
        return None
    worse_tokens, better_tokens = worse.tokens_at_best, better.tokens_at_best
    if worse_tokens is not None and better_tokens is not None and worse_tokens >= better_tokens:
        return None  # fewer iterations, but of larger batches
    losses = dict(zip(sorted((better.label, worse.label)), points[-1].losses, strict=True))
    worse_loss, better_loss = losses[worse.label], losses[better.label]
    if worse_loss is None or better_loss is None or points[-1].at != worse.best[1]:
        return None
    if not 0 < worse.best[1] < better.best[1]:
        return None
    if worse_loss.loss - better_loss.loss > _SIGNIFICANT_SIGMAS * (_gap_std(better, worse) or 0.0):
        return None
    sentence = say(
        "Which of {better} and {worse} is better is undecided: the evaluations of {worse} end at iteration "
        "{at}, and it is not behind there.",
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
            own=_format_loss(worse_loss),
            its=_format_loss(better_loss),
        ),
        say(
            "The {loss} of {better} is from iteration {at}, where {worse} has no evaluation.",
            loss=format.format_loss(better.best[0]),
            better=better.label,
            worse=worse.label,
            at=format.format_integer(better.best[1]),
        ),
    )
    return Claim("better-open", (better.label, worse.label), sentence, details)


# --- at equal points ---


def _format_loss(interpolated: InterpolatedLoss) -> str:
    """`1.8857`, `≈1.8857`, or `≈4.2221 (2.0796 … 4.2823)` where the evaluations around it are far apart."""
    loss = format.format_loss(interpolated.loss)
    if interpolated.is_exact:
        return loss
    if interpolated.high - interpolated.low <= _WIDE_LOSS_INTERVAL:
        return f"≈{loss}"
    return f"≈{loss} ({format.format_loss(interpolated.low)} … {format.format_loss(interpolated.high)})"


def _equal_point_claims(
    first: ComparedRun, other: ComparedRun, aligned: dict[Axis, Alignment]
) -> list[Claim]:
    details = []
    for axis in AXES:
        if not aligned[axis].points:
            continue
        point = aligned[axis].points[-1]
        a_loss, b_loss = point.losses
        if a_loss is None or b_loss is None:
            continue
        values = {
            "a": first.label,
            "b": other.label,
            "a_loss": _format_loss(a_loss),
            "b_loss": _format_loss(b_loss),
            "at": format_axis_value(axis, point.at),
        }
        sentences = {
            "iterations": say("Equal iterations ({at}): {a} {a_loss}, {b} {b_loss}.", **values),
            "tokens": say("Equal tokens ({at}): {a} {a_loss}, {b} {b_loss}.", **values),
            "time": say("Equal time ({at}): {a} {a_loss}, {b} {b_loss}.", **values),
            "flops": say("Equal FLOPs ({at}): {a} {a_loss}, {b} {b_loss}.", **values),
        }
        details.append(sentences[axis])
    if not details:
        return []
    sentence = say("At the last point that both reached:")
    return [Claim("equal-points", (first.label, other.label), sentence, tuple(details))]


def _reached_first_claim(first: ComparedRun, other: ComparedRun) -> list[Claim]:
    """Which run reached the lowest common loss in less time."""
    common = find_lowest_common_loss([first.curve, other.curve])
    if common is None:
        return []
    first_s, other_s = common.at["time"]
    if first_s is None or other_s is None or not min(first_s, other_s) > 0:
        return []
    if max(first_s, other_s) < _MIN_REACHED_LATER_RATIO * min(first_s, other_s):
        return []
    early, late = (first, other) if first_s < other_s else (other, first)
    sentence = say(
        "{early} reached {loss} first, after {early_time}; {late} after {late_time}.",
        early=early.label,
        late=late.label,
        loss=format.format_loss(common.loss),
        early_time=format.format_duration(min(first_s, other_s)),
        late_time=format.format_duration(max(first_s, other_s)),
    )
    return [Claim("reached-first", (early.label, late.label), sentence)]


# --- noise ---


def _gap_std(first: ComparedRun, other: ComparedRun) -> float | None:
    """Standard deviation of the difference of two losses."""
    if first.noise is None or other.noise is None:
        return None
    return math.hypot(first.noise.std, other.noise.std)


def noise_claim(first: ComparedRun, other: ComparedRun) -> Claim:
    """How large a difference of two losses must be to mean something."""
    labels = (first.label, other.label)
    gap_std = _gap_std(first, other)
    limit = None if gap_std is None else format.format_loss_difference(_SIGNIFICANT_SIGMAS * gap_std)
    if first.has_shared_eval_tokens:
        sentence = say("Both evaluate the same tokens, so their difference is more certain than each loss.")
        details = [say("Another seed adds its own noise, which one run cannot show.")]
        if limit is not None:
            scatter = say(
                "Judging by the scatter of the losses, differences below {limit} are noise.", limit=limit
            )
            details.insert(0, scatter)
        return Claim("noise", labels, sentence, tuple(details))
    details = [_describe_noise(run.label, run.noise) for run in (first, other)]
    if limit is None:
        return Claim("noise", labels, say("The noise of these losses is unknown."), tuple(details))
    sentence = say("Differences in loss below {limit} are noise here.", limit=limit)
    details.append(say("That is the evaluation noise. Another seed adds its own, which one run cannot show."))
    return Claim("noise", labels, sentence, tuple(details))


def _describe_noise(label: str, noise: EvalNoise | None) -> str:
    if noise is None:
        return say(
            "{run}: unknown; its log has neither a standard error nor the number of evaluated tokens.",
            run=label,
        )
    std = format.format_loss_difference(noise.std)
    if noise.source == "stderr":
        return say("{run}: ±{noise}, the standard error in its log.", run=label, noise=std)
    if noise.source == "batches":
        return say(
            "{run}: about ±{noise}; single batches scatter by {batch}, and it evaluates {batches} of them.",
            run=label,
            noise=std,
            batch=format.format_loss_difference(noise.batch_std or 0.0),
            batches=format.format_integer(noise.eval_batches or 0),
        )
    if noise.source == "tokens":
        return say(
            "{run}: about ±{noise}, estimated from the {tokens} tokens that it evaluates.",
            run=label,
            noise=std,
            tokens=format.format_count(noise.eval_tokens or 0),
        )
    return say("{run}: about ±{noise}, estimated from the scatter of its losses.", run=label, noise=std)
