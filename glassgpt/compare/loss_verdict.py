"""Which of two runs has the better loss, and whether the difference is more than noise."""

from __future__ import annotations

import math

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
)
from glassgpt.format import format_loss
from glassgpt.i18n import Message, Text, say
from glassgpt.runs.noise import EvalNoise

_SIGNIFICANT_SIGMAS = 2.0  # a difference of fewer standard deviations is noise
_MIN_GAP_WITHOUT_NOISE = 1e-9  # where the noise is unknown
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
        sentence = say("compare.no-losses", runs=", ".join(untrained))
        return [Claim("no-losses", untrained, sentence)]
    if comparability.level == "refused":
        sentence = say("compare.not-comparable", a=first.label, b=other.label)
        return [Claim("not-comparable", labels, sentence, comparability.reasons)]
    if comparability.level == "bytes":
        a_bits, b_bits = (
            (bits_per_byte(run, run.best[0]) if run.best else None) or 0.0 for run in (first, other)
        )
        sentence = say(
            "compare.better-per-byte",
            better=first.label if a_bits < b_bits else other.label,
            a=first.label,
            b=other.label,
            a_bits=a_bits,
            b_bits=b_bits,
        )
        per_token = say("compare.better-per-byte.reason.not_per_token")
        return [Claim("better-per-byte", labels, sentence, (*comparability.reasons, per_token))]
    claims = _compare_best_losses(first, other, differences, loss_kind)
    if comparability.level == "assumed":
        sentence = say("compare.assumed-comparable", a=first.label, b=other.label)
        claims.append(Claim("assumed-comparable", labels, sentence, comparability.reasons))
    if loss_kind == "training":
        sentence = say("compare.training-losses")
        detail = say("compare.training-losses.reason.not_unseen_text")
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
            sentence = say("compare.equally-good.same_loss", a=first.label, b=other.label)
        else:
            sentence = say(
                "compare.equally-good.within_noise", a=first.label, b=other.label, gap=gap, noise=gap_std
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
        "compare.better",
        better=better.label,
        worse=worse.label,
        better_loss=better_best[0],
        better_at=better_best[1],
        worse_loss=worse_best[0],
        worse_at=worse_best[1],
    )
    details: Text = ()
    if gap_std:
        in_noise = say("compare.better.reason.times_noise", gap=gap, times=gap / gap_std)
        details = (in_noise,)
    better_claim = Claim("better", (better.label, worse.label), sentence, details)
    return [better_claim, *curve_claims, *explain_better(better, worse, gap, differences, aligned), noise]


def past_best_claim(run: ComparedRun) -> Claim | None:
    """The last loss is above the best one, so comparing the last losses would mislead."""
    past = run.analysis.past_best
    if past is None:
        return None
    sentence = say(
        "compare.past-best", run=run.label, last=past.end_loss, best=past.best_loss, at=past.best_iteration
    )
    if past.train_losses is None:
        return Claim("past-best", (run.label,), sentence)
    then, now = past.train_losses
    rise = past.end_loss - past.best_loss
    detail = say("compare.past-best.reason.overfits", then=then, now=now, rise=rise)
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
    sentence = say("compare.better-open", better=better.label, worse=worse.label, at=worse.best[1])
    details = (
        say(
            "compare.better-open.reason.last_common",
            at=worse.best[1],
            worse=worse.label,
            better=better.label,
            own=_format_loss(worse_loss),
            its=_format_loss(better_loss),
        ),
        say(
            "compare.better-open.reason.best_is_later",
            loss=better.best[0],
            better=better.label,
            worse=worse.label,
            at=better.best[1],
        ),
    )
    return Claim("better-open", (better.label, worse.label), sentence, details)


# --- at equal points ---


def _format_loss(interpolated: InterpolatedLoss) -> str:
    """`1.8857`, `≈1.8857`, or `≈4.2221 (2.0796 … 4.2823)` where the evaluations around it are far apart."""
    loss = format_loss(interpolated.loss)
    if interpolated.is_exact:
        return loss
    if interpolated.high - interpolated.low <= _WIDE_LOSS_INTERVAL:
        return f"≈{loss}"
    return f"≈{loss} ({format_loss(interpolated.low)} … {format_loss(interpolated.high)})"


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
        values: dict[str, object] = {
            "a": first.label,
            "b": other.label,
            "a_loss": _format_loss(a_loss),
            "b_loss": _format_loss(b_loss),
            "at": point.at,
        }
        sentences = {
            "iterations": say("compare.equal-points.reason.iterations", **values),
            "tokens": say("compare.equal-points.reason.tokens", **values),
            "time": say("compare.equal-points.reason.time", **values),
            "flops": say("compare.equal-points.reason.flops", **values),
        }
        details.append(sentences[axis])
    if not details:
        return []
    sentence = say("compare.equal-points")
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
        "compare.reached-first",
        early=early.label,
        late=late.label,
        loss=common.loss,
        early_time=min(first_s, other_s),
        late_time=max(first_s, other_s),
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
    limit = None if gap_std is None else _SIGNIFICANT_SIGMAS * gap_std
    if first.has_shared_eval_tokens:
        sentence = say("compare.noise.same_tokens")
        details = [say("compare.noise.reason.seed")]
        if limit is not None:
            scatter = say("compare.noise.reason.scatter_limit", limit=limit)
            details.insert(0, scatter)
        return Claim("noise", labels, sentence, tuple(details))
    details = [_describe_noise(run.label, run.noise) for run in (first, other)]
    if limit is None:
        return Claim("noise", labels, say("compare.noise.unknown"), tuple(details))
    sentence = say("compare.noise.limit", limit=limit)
    details.append(say("compare.noise.reason.eval_noise_only"))
    return Claim("noise", labels, sentence, tuple(details))


def _describe_noise(label: str, noise: EvalNoise | None) -> Message:
    if noise is None:
        return say("compare.noise.reason.run_unknown", run=label)
    if noise.source == "stderr":
        return say("compare.noise.reason.run_stderr", run=label, noise=noise.std)
    if noise.source == "batches":
        return say(
            "compare.noise.reason.run_batches",
            run=label,
            noise=noise.std,
            batch=noise.batch_std or 0.0,
            batches=noise.eval_batches or 0,
        )
    if noise.source == "tokens":
        return say(
            "compare.noise.reason.run_tokens", run=label, noise=noise.std, tokens=noise.eval_tokens or 0
        )
    return say("compare.noise.reason.run_scatter", run=label, noise=noise.std)
