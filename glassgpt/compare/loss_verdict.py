"""Which of two runs has the better loss, and whether the difference is more than noise."""

from __future__ import annotations

import math

from glassgpt.compare.compared_run import Claim, ComparedRun
from glassgpt.compare.differences import Comparability, Difference, bits_per_byte
from glassgpt.compare.loss_causes import explain_better
from glassgpt.compare.loss_curve import (
    AXES,
    Alignment,
    Axis,
    LossKind,
    MeasuredLoss,
    align_all,
    find_lowest_common_loss,
)
from glassgpt.format import format_loss
from glassgpt.i18n import Message, say, translate
from glassgpt.runs.noise import CLEAR_STANDARD_ERRORS, DEFAULT_CLEAR_SHARE, EvalNoise

_MIN_SHOWN_STD = 5e-5  # a loss is shown with four decimals
_MIN_REACHED_LATER_RATIO = 1.1  # of the times when both runs reached the same loss


def compare_losses(
    first: ComparedRun,
    other: ComparedRun,
    differences: tuple[Difference, ...],
    comparability: Comparability,
    loss_kind: LossKind,
) -> list[Claim]:
    pair = {"a": first.label, "b": other.label}
    labels = (first.label, other.label)
    untrained = tuple(run.label for run in (first, other) if run.last is None or run.last[1] == 0)
    if untrained:
        sentence = say("compare.no-losses", runs=", ".join(untrained))
        return [Claim("no-losses", untrained, sentence)]
    if comparability.level == "refused":
        sentence = say("compare.not-comparable", **pair)
        return [Claim("not-comparable", labels, sentence, comparability.reasons)]
    if comparability.level == "bytes":
        a_bits, b_bits = (
            (bits_per_byte(run, run.best[0]) if run.best else None) or 0.0 for run in (first, other)
        )
        sentence = say(
            "compare.better-per-byte",
            **pair,
            better=first.label if a_bits < b_bits else other.label,
            a_bits=a_bits,
            b_bits=b_bits,
        )
        per_token = say("compare.better-per-byte.reason.not_per_token")
        return [Claim("better-per-byte", labels, sentence, (*comparability.reasons, per_token))]
    claims = _compare_best_losses(first, other, differences, loss_kind)
    if comparability.level == "assumed":
        sentence = say("compare.assumed-comparable", **pair)
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
    aligned = align_all([first.curve, other.curve], [first.batches, other.batches], loss_kind)
    gap = abs(first.best[0] - other.best[0])
    curve_claims = []
    if loss_kind == "validation":
        curve_claims = [claim for run in (first, other) if (claim := past_best_claim(run))]
    curve_claims += _equal_point_claims(first, other, aligned)
    noise = noise_claim(first, other)
    limit = _smallest_clear_gap(first, other)
    if gap <= limit:
        return [_equally_good_claim(first, other, gap), *curve_claims, noise]

    better, worse = (first, other) if first.best[0] < other.best[0] else (other, first)
    undecided = _undecided_claim(better, worse, aligned)
    if undecided:
        return [undecided, *curve_claims, noise]
    curve_claims += _reached_first_claim(first, other)
    better_best, worse_best = better.best or (0.0, 0), worse.best or (0.0, 0)
    values: dict[str, object] = {
        "better": better.label,
        "worse": worse.label,
        "better_loss": better_best[0],
        "better_at": better_best[1],
        "worse_loss": worse_best[0],
        "worse_at": worse_best[1],
    }
    details = []
    if gap_std := _gap_std(first, other):
        details.append(say("compare.better.reason.times_noise", gap=gap, times=gap / gap_std))
    partial = [run.label for run in (first, other) if not run.is_whole]
    if partial:
        sentence = say("compare.better.of_those_shown", **values)
        details.append(say("compare.better.reason.earlier_unknown", runs=", ".join(partial)))
    else:
        sentence = say("compare.better", **values)
    better_claim = Claim("better", (better.label, worse.label), sentence, tuple(details))
    return [better_claim, *curve_claims, *explain_better(better, worse, gap, differences), noise]


def _equally_good_claim(first: ComparedRun, other: ComparedRun, gap: float) -> Claim:
    pair = {"a": first.label, "b": other.label}
    gap_std = _gap_std(first, other)
    if not gap:
        sentence = say("compare.equally-good.same_loss", **pair)
    elif gap_std:
        sentence = say("compare.equally-good.within_noise", **pair, gap=gap, noise=gap_std)
    else:
        sentence = say("compare.equally-good.noise_unknown", **pair, gap=gap)
    return Claim("equally-good", (first.label, other.label), sentence)


def _smallest_clear_gap(first: ComparedRun, other: ComparedRun) -> float:
    """The difference of two losses from which on one is called better than the other."""
    gap_std = _gap_std(first, other)
    if gap_std is not None:
        return CLEAR_STANDARD_ERRORS * gap_std
    bests = [abs(run.best[0]) for run in (first, other) if run.best]
    return DEFAULT_CLEAR_SHARE * min(bests, default=0.0)


def past_best_claim(run: ComparedRun) -> Claim | None:
    """The last loss is above the best one, so comparing the last losses would mislead."""
    past = run.analysis.past_best
    if past is None:
        return _overfitted_end_claim(run)
    sentence = say(
        "compare.past-best", run=run.label, last=past.end_loss, best=past.best_loss, at=past.best_iteration
    )
    if past.train_losses is None:
        return Claim("past-best", (run.label,), sentence)
    then, now = past.train_losses
    rise = past.end_loss - past.best_loss
    detail = say("compare.past-best.reason.overfits", then=then, now=now, rise=rise)
    return Claim("past-best", (run.label,), sentence, (detail,))


def _overfitted_end_claim(run: ComparedRun) -> Claim | None:
    """Of a tail: both losses of the last evaluation are so far apart that the best one came earlier."""
    gap = run.analysis.train_val_gap
    if gap is None or gap.train_lines is not None or run.is_whole:
        return None
    sentence = say(
        "compare.past-best.by_gap",
        run=run.label,
        at=gap.iteration,
        train=gap.train_loss,
        val=gap.val_loss,
        gap=gap.gap,
    )
    return Claim("past-best", (run.label,), sentence)


def _undecided_claim(better: ComparedRun, worse: ComparedRun, aligned: dict[Axis, Alignment]) -> Claim | None:
    """The run with the higher loss may have been stopped early: its last evaluation is its best, and it is
    not behind there."""
    pair = {"better": better.label, "worse": worse.label}
    points = aligned["iterations"].points
    if worse.best is None or worse.best != worse.last or better.best is None or not points:
        return None
    if worse.analysis.facts.ended == "finished" or aligned["iterations"].kind == "training":
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
    limit = _smallest_clear_gap(better, worse)
    if worse_loss.loss - better_loss.loss > limit:
        return None
    sentence = say("compare.better-open", **pair, at=worse.best[1])
    details = [
        say(
            "compare.better-open.reason.last_common",
            **pair,
            at=worse.best[1],
            own=format_loss(worse_loss.loss),
            its=format_loss(better_loss.loss),
        ),
        say("compare.better-open.reason.best_is_later", **pair, loss=better.best[0], at=better.best[1]),
    ]
    gap = abs(worse_loss.loss - better_loss.loss)
    if 0 < gap <= limit:
        details.insert(1, say("compare.better-open.reason.too_close", gap=gap))
    return Claim("better-open", (better.label, worse.label), sentence, tuple(details))


# --- at equal points ---


def _equal_point_claims(
    first: ComparedRun, other: ComparedRun, aligned: dict[Axis, Alignment]
) -> list[Claim]:
    """The last point on each axis where both were measured; where there is none, that is said."""
    details, missing = [], []
    for axis in AXES:
        alignment = aligned[axis]
        if not alignment.points:
            if axis in first.curve.positions and axis in other.curve.positions:
                missing.append(axis)
            continue
        point = alignment.points[-1]
        a_loss, b_loss = point.losses
        if a_loss is None or b_loss is None:
            continue
        values: dict[str, object] = {
            "a": first.label,
            "b": other.label,
            "a_loss": _format_measured(a_loss),
            "b_loss": _format_measured(b_loss),
            "at": point.at,
            "kind": translate("compare.loss_kind.validation")
            if alignment.kind == "validation"
            else translate("compare.loss_kind.training"),
        }
        sentences = {
            "iterations": say("compare.equal-points.reason.iterations", **values),
            "tokens": say("compare.equal-points.reason.tokens", **values),
            "time": say("compare.equal-points.reason.time", **values),
            "flops": say("compare.equal-points.reason.flops", **values),
        }
        details.append(sentences[axis])
    if not details and not missing:
        return []
    if not details:
        sentence = say("compare.equal-points.none", a=first.label, b=other.label)
        return [Claim("equal-points", (first.label, other.label), sentence)]
    if any(aligned[axis].kind == "training" and aligned[axis].points for axis in AXES):
        details.append(say("compare.equal-points.reason.batches"))
    sentence = say("compare.equal-points")
    return [Claim("equal-points", (first.label, other.label), sentence, tuple(details))]


def _format_measured(measured: MeasuredLoss) -> str:
    """`1.8857`, or `2.33 ± 0.06` for a mean of batches."""
    if not measured.std or measured.std < _MIN_SHOWN_STD:
        return format_loss(measured.loss)
    return f"{format_loss(measured.loss)} ± {measured.std:.2g}"


def _reached_first_claim(first: ComparedRun, other: ComparedRun) -> list[Claim]:
    """Which run reached the lowest common loss in less time, as far as their evaluations show it: the other
    had not reached it at an evaluation that came later."""
    common = find_lowest_common_loss([first.curve, other.curve])
    if common is None:
        return []
    first_s, other_s = common.at["time"]
    if first_s is None or other_s is None or not min(first_s, other_s) > 0:
        return []
    early_index = 0 if first_s < other_s else 1
    early, late = (first, other) if early_index == 0 else (other, first)
    early_s, late_s = min(first_s, other_s), max(first_s, other_s)
    not_yet_s = common.after["time"][1 - early_index]
    if not_yet_s is None or early_s > not_yet_s or late_s < _MIN_REACHED_LATER_RATIO * early_s:
        return []
    sentence = say(
        "compare.reached-first",
        early=early.label,
        late=late.label,
        loss=common.loss,
        early_time=early_s,
        late_time=late_s,
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
    limit = None if gap_std is None else CLEAR_STANDARD_ERRORS * gap_std
    if first.has_shared_eval_tokens:
        sentence = say("compare.noise.same_tokens")
        details = [say("compare.noise.reason.seed")]
        if limit is not None:
            scatter = say("compare.noise.reason.scatter_limit", limit=limit)
            details.insert(0, scatter)
        return Claim("noise", labels, sentence, tuple(details))
    if first.noise is None and other.noise is None:
        return Claim("noise", labels, say("compare.noise.unknown"))
    details = [_describe_noise(run.label, run.noise) for run in (first, other) if run.noise]
    if limit is None:
        unknown = first.label if first.noise is None else other.label
        return Claim("noise", labels, say("compare.noise.partly_unknown", run=unknown), tuple(details))
    sentence = say("compare.noise.limit", limit=limit)
    details.append(say("compare.noise.reason.eval_noise_only"))
    return Claim("noise", labels, sentence, tuple(details))


def _describe_noise(label: str, noise: EvalNoise) -> Message:
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
