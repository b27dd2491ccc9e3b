"""Why the losses of two runs differ: what is not the same and decides a loss, and in which direction.

How much of the difference is left at equal iterations or tokens tells whether having done more is the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from glassgpt import format
from glassgpt.compare.alignment import Alignment, format_axis_value
from glassgpt.compare.claim import Claim
from glassgpt.compare.compared_run import ComparedRun, safe_ratio
from glassgpt.compare.derived import bounded_int_setting
from glassgpt.compare.differences import HARDWARE_SETTINGS, Difference
from glassgpt.compare.loss_curve import Axis
from glassgpt.compare.speed_difference import format_setting
from glassgpt.i18n import say

_MIN_NOTABLE_RATIO = 1.1  # a factor worth naming
_MIN_REMAINING_SHARE = 0.8  # of the difference
_SETTINGS_WITH_OWN_CAUSE = (
    "n_layer",
    "n_embd",
    "block_size",
    "max_iters",
    "vocab_size",
    "arch",
    "batch_tokens",
    "lr_decay_iters",
)
_MAX_ROUNDING_LOSS_GAP = (
    0.02  # differences in loss below this may well come from precision and order of summation
)


@dataclass(frozen=True)
class LossCause:
    id: str
    sentence: str
    favours_better: bool | None  # it speaks for the better run, against it, or nobody can say


def find_causes(
    better: ComparedRun, worse: ComparedRun, differences: tuple[Difference, ...]
) -> list[LossCause]:
    """What differs and decides a loss. Empty: nothing that the logs show."""
    found = [
        _model_size_cause(better, worse),
        _context_cause(better, worse),
        _batch_cause(better, worse),
        _tokens_cause(better, worse),
    ]
    return [cause for cause in found if cause] + _other_setting_causes(differences)


def explain_better(
    better: ComparedRun,
    worse: ComparedRun,
    gap: float,
    differences: tuple[Difference, ...],
    aligned: dict[Axis, Alignment],
) -> list[Claim]:
    causes = find_causes(better, worse, differences)
    runs = (better.label, worse.label)
    if not causes:
        claim = say(
            "Why {better} is better the logs do not show: nothing that decides a loss differs in them.",
            better=better.label,
        )
        return [Claim("better-unexplained", runs, claim)]
    claim = say("{better} is better for these reasons, which differ and decide a loss.", better=better.label)
    details = [cause.sentence for cause in causes if cause.favours_better is not False]
    against = [cause.sentence for cause in causes if cause.favours_better is False]
    conclusions = []
    if details:
        if len(details) > 1:
            details.append(
                say("Two runs cannot tell how much each of them contributes; change one at a time.")
            )
        conclusions.append(Claim("better-because", runs, claim, tuple(details)))
    if against:
        claim = say("{better} is better in spite of this.", better=better.label)
        conclusions.append(Claim("better-in-spite", runs, claim, tuple(against)))
    conclusions += explain_by_training_length(better, worse, gap, aligned)
    return [*conclusions, *rule_out_hardware(better, worse, gap, differences)]


def explain_by_training_length(
    better: ComparedRun, worse: ComparedRun, gap: float, aligned: dict[Axis, Alignment]
) -> list[Claim]:
    """Whether having done more is the reason."""
    axes: tuple[Axis, ...] = ("iterations", "tokens")
    shares = [_explain_at_equal_axis(axis, better, worse, gap, aligned[axis]) for axis in axes]
    return [share for share in shares if share]


# --- single causes ---


def _model_size_cause(better: ComparedRun, worse: ComparedRun) -> LossCause | None:
    sizes = better.metrics.size, worse.metrics.size
    factor = safe_ratio(sizes[0].parameters, sizes[1].parameters)
    if factor is None or 1 / _MIN_NOTABLE_RATIO < factor < _MIN_NOTABLE_RATIO:
        return None
    sentence = say(
        "Model size: {better} has {better_size} parameters, {worse} {worse_size} ({factor}).",
        better=better.label,
        worse=worse.label,
        factor=format.format_factor(max(factor, 1 / factor)),
        better_size=format.format_parameters(
            sizes[0].parameters or 0, sizes[0].parameters_source != "inferred"
        ),
        worse_size=format.format_parameters(
            sizes[1].parameters or 0, sizes[1].parameters_source != "inferred"
        ),
    )
    return LossCause("model-size", sentence, factor > 1)


def _context_cause(better: ComparedRun, worse: ComparedRun) -> LossCause | None:
    lengths = bounded_int_setting(better.log, "block_size"), bounded_int_setting(worse.log, "block_size")
    if None in lengths or lengths[0] == lengths[1]:
        return None
    sentence = say(
        "Context: {better} predicts from up to {better_size} tokens, {worse} from up to {worse_size}.",
        better=better.label,
        worse=worse.label,
        better_size=lengths[0],
        worse_size=lengths[1],
    )
    return LossCause("context", sentence, (lengths[0] or 0) > (lengths[1] or 0))


def _batch_cause(better: ComparedRun, worse: ComparedRun) -> LossCause | None:
    factor = safe_ratio(better.metrics.tokens_per_iteration, worse.metrics.tokens_per_iteration)
    if factor is None or 1 / _MIN_NOTABLE_RATIO < factor < _MIN_NOTABLE_RATIO:
        return None
    sentence = say(
        "Batch: {better} has {better_tokens} tokens per iteration, {worse} {worse_tokens} ({factor}).",
        better=better.label,
        worse=worse.label,
        factor=format.format_factor(max(factor, 1 / factor)),
        better_tokens=format.format_integer(better.metrics.tokens_per_iteration or 0),
        worse_tokens=format.format_integer(worse.metrics.tokens_per_iteration or 0),
    )
    # A smaller batch means fewer tokens after as many iterations, but more updates after as many tokens.
    return LossCause("batch", sentence, True if factor > 1 else None)


def _tokens_cause(better: ComparedRun, worse: ComparedRun) -> LossCause | None:
    """Up to the best evaluation: what came later did not help."""
    seen = [side.tokens_at_best for side in (better, worse)]
    factor = safe_ratio(seen[0], seen[1])
    if factor is None:
        return _iterations_cause(better, worse)
    if 1 / _MIN_NOTABLE_RATIO < factor < _MIN_NOTABLE_RATIO:
        return None
    sentence = say(
        "Tokens seen up to the best: {better} {better_tokens}, {worse} {worse_tokens} ({factor}).",
        better=better.label,
        worse=worse.label,
        factor=format.format_factor(max(factor, 1 / factor)),
        better_tokens=format.format_count(seen[0] or 0),
        worse_tokens=format.format_count(seen[1] or 0),
    )
    return LossCause("tokens", sentence, factor > 1)


def _iterations_cause(better: ComparedRun, worse: ComparedRun) -> LossCause | None:
    if better.best is None or worse.best is None:
        return None
    factor = safe_ratio(better.best[1], worse.best[1])
    if factor is None or 1 / _MIN_NOTABLE_RATIO < factor < _MIN_NOTABLE_RATIO:
        return None
    sentence = say(
        "Iterations up to the best: {better} {better_count}, {worse} {worse_count} ({factor}).",
        better=better.label,
        worse=worse.label,
        factor=format.format_factor(max(factor, 1 / factor)),
        better_count=format.format_integer(better.best[1]),
        worse_count=format.format_integer(worse.best[1]),
    )
    return LossCause("iterations", sentence, factor > 1)


def _other_setting_causes(differences: tuple[Difference, ...]) -> list[LossCause]:
    """Those that no size above stands for; whether they helped, nobody can say from two runs."""
    others = [
        one
        for one in differences
        if one.is_known
        and one.group == "configuration"
        and one.affects_loss
        and one.name not in _SETTINGS_WITH_OWN_CAUSE
        and one.name != "seed"
    ]
    return [
        LossCause(
            one.name,
            say(
                "{setting}: {values}.",
                setting=one.name,
                values=" / ".join(format_setting(value) for value in one.values),
            ),
            None,
        )
        for one in others
    ]


# --- how much of it ---


def _explain_at_equal_axis(
    axis: Axis, better: ComparedRun, worse: ComparedRun, gap: float, alignment: Alignment
) -> Claim | None:
    """Whether having done more is the reason: what is left of the difference where both had done the same."""
    if not alignment.points:
        return None
    point = alignment.points[-1]
    labels = sorted((better.label, worse.label))
    readings = dict(zip(labels, point.losses, strict=True))
    left, right = readings[better.label], readings[worse.label]
    if left is None or right is None:
        return None
    ahead = right.loss - left.loss
    values = {
        "better": better.label,
        "worse": worse.label,
        "ahead": format.format_loss_difference(ahead),
        "gap": format.format_loss_difference(gap),
        "at": format_axis_value(axis, point.at),
    }
    runs = (better.label, worse.label)
    if ahead >= _MIN_REMAINING_SHARE * gap:
        return _claim_not_cause(axis, runs, values)
    if right.high <= left.low:
        return _claim_cause(axis, runs, values)
    return None


def _claim_not_cause(axis: Axis, runs: tuple[str, str], values: dict[str, str]) -> Claim:
    if axis == "iterations":
        claim = say(
            "More iterations are not the reason: after {at} each, {better} is ahead by {ahead}, against "
            "{gap} at the best of both.",
            **values,
        )
        return Claim("iterations-not-cause", runs, claim)
    claim = say(
        "Having seen more tokens is not the reason: after {at} each, {better} is ahead by {ahead}, "
        "against {gap} at the best of both.",
        **values,
    )
    return Claim("tokens-not-cause", runs, claim)


def _claim_cause(axis: Axis, runs: tuple[str, str], values: dict[str, str]) -> Claim:
    if axis == "iterations":
        claim = say("The number of iterations is a reason: after {at} each, {worse} is not behind.", **values)
        return Claim("iterations-cause", runs, claim)
    claim = say("Having seen more tokens is a reason: after {at} each, {worse} is not behind.", **values)
    return Claim("tokens-cause", runs, claim)


# --- what is not the cause ---


def rule_out_hardware(
    better: ComparedRun, worse: ComparedRun, gap: float, differences: tuple[Difference, ...]
) -> list[Claim]:
    """Said where somebody may think so: the machines differ, or a log does not say that they are the same."""
    deciding = [one for one in differences if one.is_known and one.affects_loss and one.name != "seed"]
    if not deciding or gap < _MAX_ROUNDING_LOSS_GAP or not _hardware_may_differ(better, worse, differences):
        return []
    claim = say(
        "Hardware is not the cause of the difference in loss between {better} and {worse}.",
        better=better.label,
        worse=worse.label,
    )
    listed = ", ".join(
        f"{one.name} ({' / '.join(format_setting(value) for value in one.values)})" for one in deciding[:8]
    )
    details = [
        say("They do not train the same: {settings}.", settings=listed),
        say(
            "Equal settings and data lead to the same loss on any hardware, up to rounding. "
            "Hardware and precision decide how long that takes."
        ),
    ]
    times = better.metrics.time_s, worse.metrics.time_s
    if times[0] and times[1]:
        details.append(
            say(
                "Here {better} took {better_time}, {worse} {worse_time}.",
                better=better.label,
                worse=worse.label,
                better_time=format.format_duration(times[0]),
                worse_time=format.format_duration(times[1]),
            )
        )
    return [Claim("hardware-not-cause", (better.label, worse.label), claim, tuple(details))]


def _hardware_may_differ(
    better: ComparedRun, worse: ComparedRun, differences: tuple[Difference, ...]
) -> bool:
    if any(one.name in HARDWARE_SETTINGS for one in differences):
        return True
    names = {side.log.setup.device_name for side in (better, worse)}
    if names != {None}:
        return len(names) > 1
    devices = [side.log.setup.settings.get("device") for side in (better, worse)]
    return devices[0] != devices[1]
