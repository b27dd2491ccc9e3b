"""Why the losses of two runs differ: what is not the same and decides a loss, and in which direction.

How much of the difference is left at equal iterations or tokens tells whether having done more is the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from glassgpt import format
from glassgpt.compare.alignment import Alignment, axis_text
from glassgpt.compare.claim import Conclusion
from glassgpt.compare.compared_run import Side, ratio
from glassgpt.compare.derived import positive
from glassgpt.compare.differences import HARDWARE, Difference
from glassgpt.compare.loss_curve import Axis
from glassgpt.compare.speed_difference import shown
from glassgpt.i18n import say

_NOTABLE = 1.1  # a factor worth naming
_MOST = 0.8  # of the difference
_NAMED = (
    "n_layer",
    "n_embd",
    "block_size",
    "max_iters",
    "vocab_size",
    "arch",
    "batch_tokens",
    "lr_decay_iters",
)
_ROUNDING = 0.02  # differences in loss below this may well come from precision and order of summation


@dataclass(frozen=True)
class Cause:
    id: str
    sentence: str
    for_better: bool | None  # it speaks for the better run, against it, or nobody can say


def find_causes(better: Side, worse: Side, differences: tuple[Difference, ...]) -> list[Cause]:
    """What differs and decides a loss. Empty: nothing that the logs show."""
    found = [
        _model_size(better, worse),
        _context(better, worse),
        _batch(better, worse),
        _tokens(better, worse),
    ]
    return [cause for cause in found if cause] + _other_settings(differences)


def explain_better(
    better: Side,
    worse: Side,
    gap: float,
    differences: tuple[Difference, ...],
    aligned: dict[Axis, Alignment],
) -> list[Conclusion]:
    causes = find_causes(better, worse, differences)
    runs = (better.label, worse.label)
    if not causes:
        claim = say(
            "Why {better} is better the logs do not show: nothing that decides a loss differs in them.",
            better=better.label,
        )
        return [Conclusion("better-unexplained", runs, claim)]
    claim = say("{better} is better for these reasons, which differ and decide a loss.", better=better.label)
    details = [cause.sentence for cause in causes if cause.for_better is not False]
    against = [cause.sentence for cause in causes if cause.for_better is False]
    conclusions = []
    if details:
        if len(details) > 1:
            details.append(
                say("Two runs cannot tell how much each of them contributes; change one at a time.")
            )
        conclusions.append(Conclusion("better-because", runs, claim, tuple(details)))
    if against:
        claim = say("{better} is better in spite of this.", better=better.label)
        conclusions.append(Conclusion("better-in-spite", runs, claim, tuple(against)))
    conclusions += explain_by_amount(better, worse, gap, aligned)
    return [*conclusions, *not_hardware(better, worse, gap, differences)]


def explain_by_amount(
    better: Side, worse: Side, gap: float, aligned: dict[Axis, Alignment]
) -> list[Conclusion]:
    """Whether having done more is the reason."""
    axes: tuple[Axis, ...] = ("iterations", "tokens")
    shares = [_at_equal(axis, better, worse, gap, aligned[axis]) for axis in axes]
    return [share for share in shares if share]


# --- single causes ---


def _model_size(better: Side, worse: Side) -> Cause | None:
    sizes = better.derived.size, worse.derived.size
    factor = ratio(sizes[0].parameters, sizes[1].parameters)
    if factor is None or 1 / _NOTABLE < factor < _NOTABLE:
        return None
    sentence = say(
        "Model size: {better} has {better_size} parameters, {worse} {worse_size} ({factor}).",
        better=better.label,
        worse=worse.label,
        factor=format.factor(max(factor, 1 / factor)),
        better_size=format.parameters(sizes[0].parameters or 0, sizes[0].parameters_source != "inferred"),
        worse_size=format.parameters(sizes[1].parameters or 0, sizes[1].parameters_source != "inferred"),
    )
    return Cause("model-size", sentence, factor > 1)


def _context(better: Side, worse: Side) -> Cause | None:
    lengths = positive(better.history, "block_size"), positive(worse.history, "block_size")
    if None in lengths or lengths[0] == lengths[1]:
        return None
    sentence = say(
        "Context: {better} predicts from up to {better_size} tokens, {worse} from up to {worse_size}.",
        better=better.label,
        worse=worse.label,
        better_size=lengths[0],
        worse_size=lengths[1],
    )
    return Cause("context", sentence, (lengths[0] or 0) > (lengths[1] or 0))


def _batch(better: Side, worse: Side) -> Cause | None:
    factor = ratio(better.derived.tokens_per_iteration, worse.derived.tokens_per_iteration)
    if factor is None or 1 / _NOTABLE < factor < _NOTABLE:
        return None
    sentence = say(
        "Batch: {better} has {better_tokens} tokens per iteration, {worse} {worse_tokens} ({factor}).",
        better=better.label,
        worse=worse.label,
        factor=format.factor(max(factor, 1 / factor)),
        better_tokens=format.whole(better.derived.tokens_per_iteration or 0),
        worse_tokens=format.whole(worse.derived.tokens_per_iteration or 0),
    )
    # A smaller batch means fewer tokens after as many iterations, but more updates after as many tokens.
    return Cause("batch", sentence, True if factor > 1 else None)


def _tokens(better: Side, worse: Side) -> Cause | None:
    """Up to the best evaluation: what came later did not help."""
    seen = [side.tokens_at_best for side in (better, worse)]
    factor = ratio(seen[0], seen[1])
    if factor is None:
        return _iterations(better, worse)
    if 1 / _NOTABLE < factor < _NOTABLE:
        return None
    sentence = say(
        "Tokens seen up to the best: {better} {better_tokens}, {worse} {worse_tokens} ({factor}).",
        better=better.label,
        worse=worse.label,
        factor=format.factor(max(factor, 1 / factor)),
        better_tokens=format.count(seen[0] or 0),
        worse_tokens=format.count(seen[1] or 0),
    )
    return Cause("tokens", sentence, factor > 1)


def _iterations(better: Side, worse: Side) -> Cause | None:
    if better.best is None or worse.best is None:
        return None
    factor = ratio(better.best[1], worse.best[1])
    if factor is None or 1 / _NOTABLE < factor < _NOTABLE:
        return None
    sentence = say(
        "Iterations up to the best: {better} {better_count}, {worse} {worse_count} ({factor}).",
        better=better.label,
        worse=worse.label,
        factor=format.factor(max(factor, 1 / factor)),
        better_count=format.whole(better.best[1]),
        worse_count=format.whole(worse.best[1]),
    )
    return Cause("iterations", sentence, factor > 1)


def _other_settings(differences: tuple[Difference, ...]) -> list[Cause]:
    """Those that no size above stands for; whether they helped, nobody can say from two runs."""
    others = [
        one
        for one in differences
        if one.known
        and one.group == "configuration"
        and one.decides_loss
        and one.name not in _NAMED
        and one.name != "seed"
    ]
    return [
        Cause(
            one.name,
            say(
                "{setting}: {values}.",
                setting=one.name,
                values=" / ".join(shown(value) for value in one.values),
            ),
            None,
        )
        for one in others
    ]


# --- how much of it ---


def _at_equal(axis: Axis, better: Side, worse: Side, gap: float, alignment: Alignment) -> Conclusion | None:
    """Whether having done more is the reason: what is left of the difference where both had done the same."""
    if not alignment.points:
        return None
    point = alignment.points[-1]
    labels = sorted((better.label, worse.label))
    readings = dict(zip(labels, point.readings, strict=True))
    left, right = readings[better.label], readings[worse.label]
    if left is None or right is None:
        return None
    ahead = right.loss - left.loss
    values = {
        "better": better.label,
        "worse": worse.label,
        "ahead": format.difference(ahead),
        "gap": format.difference(gap),
        "at": axis_text(axis, point.at),
    }
    runs = (better.label, worse.label)
    if ahead >= _MOST * gap:
        return _no_reason(axis, runs, values)
    if right.high <= left.low:
        return _a_reason(axis, runs, values)
    return None


def _no_reason(axis: Axis, runs: tuple[str, str], values: dict[str, str]) -> Conclusion:
    if axis == "iterations":
        claim = say(
            "More iterations are not the reason: after {at} each, {better} is ahead by {ahead}, against "
            "{gap} at the best of both.",
            **values,
        )
        return Conclusion("iterations-not-cause", runs, claim)
    claim = say(
        "Having seen more tokens is not the reason: after {at} each, {better} is ahead by {ahead}, "
        "against {gap} at the best of both.",
        **values,
    )
    return Conclusion("tokens-not-cause", runs, claim)


def _a_reason(axis: Axis, runs: tuple[str, str], values: dict[str, str]) -> Conclusion:
    if axis == "iterations":
        claim = say("The number of iterations is a reason: after {at} each, {worse} is not behind.", **values)
        return Conclusion("iterations-cause", runs, claim)
    claim = say("Having seen more tokens is a reason: after {at} each, {worse} is not behind.", **values)
    return Conclusion("tokens-cause", runs, claim)


# --- what is not the cause ---


def not_hardware(
    better: Side, worse: Side, gap: float, differences: tuple[Difference, ...]
) -> list[Conclusion]:
    """Said where somebody may think so: the machines differ, or a log does not say that they are the same."""
    deciding = [one for one in differences if one.known and one.decides_loss and one.name != "seed"]
    if not deciding or gap < _ROUNDING or not _hardware_may_differ(better, worse, differences):
        return []
    claim = say(
        "Hardware is not the cause of the difference in loss between {better} and {worse}.",
        better=better.label,
        worse=worse.label,
    )
    listed = ", ".join(
        f"{one.name} ({' / '.join(shown(value) for value in one.values)})" for one in deciding[:8]
    )
    details = [
        say("They do not train the same: {settings}.", settings=listed),
        say(
            "Equal settings and data lead to the same loss on any hardware, up to rounding. "
            "Hardware and precision decide how long that takes."
        ),
    ]
    times = better.derived.time_s, worse.derived.time_s
    if times[0] and times[1]:
        details.append(
            say(
                "Here {better} took {better_time}, {worse} {worse_time}.",
                better=better.label,
                worse=worse.label,
                better_time=format.duration(times[0]),
                worse_time=format.duration(times[1]),
            )
        )
    return [Conclusion("hardware-not-cause", (better.label, worse.label), claim, tuple(details))]


def _hardware_may_differ(better: Side, worse: Side, differences: tuple[Difference, ...]) -> bool:
    if any(one.name in HARDWARE for one in differences):
        return True
    names = {side.history.setup.device_name for side in (better, worse)}
    if names != {None}:
        return len(names) > 1
    devices = [side.history.setup.settings.get("device") for side in (better, worse)]
    return devices[0] != devices[1]
