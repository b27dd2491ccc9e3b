"""Why the losses of two runs differ: the differences that affect a loss, and which run each of them favours.

The difference in loss that is left at equal iterations or tokens shows whether longer training is a cause.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.compare.compared_run import Claim, ComparedRun, least_work_ratio, safe_ratio
from glassgpt.compare.differences import HARDWARE_SETTINGS, Difference, format_setting, list_settings
from glassgpt.compare.loss_curve import Axis, loss_near, mean_of_batches
from glassgpt.format import format_parameters
from glassgpt.i18n import Message, Text, say
from glassgpt.runs.trajectory import planned_end_iteration, positive_int_setting

_MIN_NOTABLE_RATIO = 1.1  # sizes, batches and token counts closer than this are not named as a cause
_MIN_REMAINING_SHARE = 0.8  # of the gap at equal iterations or tokens: then longer training is not the cause
_MID_SCHEDULE, _END_OF_SCHEDULE = 0.7, 0.9  # shares of the planned iterations
_MAX_ROUNDING_LOSS_GAP = 0.02  # precision and order of summation may cause a smaller one
_MAX_LISTED_SETTINGS = 8
# Model size, context, batch and tokens seen stand for these.
_SETTINGS_WITH_OWN_CAUSE = (
    "n_layer", "n_embd", "block_size", "max_iters", "vocab_size", "arch", "batch_tokens", "lr_decay_iters",
)  # fmt: skip


@dataclass(frozen=True)
class LossCause:
    id: str
    message: Message
    favours_better: bool | None  # None: two runs cannot show it


def explain_better(
    better: ComparedRun, worse: ComparedRun, gap: float, differences: tuple[Difference, ...]
) -> list[Claim]:
    causes = find_causes(better, worse, differences)
    labels = (better.label, worse.label)
    if not causes:
        has_other_seed = any(difference.name == "seed" and difference.is_known for difference in differences)
        if has_other_seed:
            sentence = say("compare.better-unexplained.seed", better=better.label)
        else:
            sentence = say("compare.better-unexplained", better=better.label)
        return [Claim("better-unexplained", labels, sentence)]
    reasons = [cause.message for cause in causes if cause.favours_better is not False]
    reasons_against = [cause.message for cause in causes if cause.favours_better is False]
    claims = []
    if reasons:
        sentence = say("compare.better-because", better=better.label)
        if len(reasons) > 1:
            reasons.append(say("compare.better-because.reason.shares_unknown"))
        claims.append(Claim("better-because", labels, sentence, tuple(reasons)))
    if reasons_against:
        sentence = say("compare.better-in-spite", better=better.label)
        claims.append(Claim("better-in-spite", labels, sentence, tuple(reasons_against)))
    claims += explain_by_training_length(better, worse, gap)
    return [*claims, *rule_out_hardware(better, worse, gap, differences)]


# --- single causes ---


def find_causes(
    better: ComparedRun, worse: ComparedRun, differences: tuple[Difference, ...]
) -> list[LossCause]:
    """The differences that affect a loss. Empty: the logs show none."""
    causes = [
        *_model_causes(better, worse),
        *_training_causes(better, worse),
        *_logged_lr_causes(better, worse),
    ]
    states_lr = any(difference.name == "learning_rate" and difference.is_known for difference in differences)
    causes = [cause for cause in causes if cause.id != "logged-lr" or not states_lr]
    for difference in differences:
        is_loss_setting = (
            difference.is_known and difference.group == "configuration" and difference.affects_loss
        )
        if is_loss_setting and difference.name not in (*_SETTINGS_WITH_OWN_CAUSE, "seed"):
            values = " / ".join(format_setting(value) for value in difference.values)
            sentence = say("compare.better-because.reason.setting", setting=difference.name, values=values)
            causes.append(LossCause(difference.name, sentence, None))
    return causes


def _notable_ratio(better: float | None, worse: float | None) -> float | None:
    """better / worse; None where it is unknown or close to 1."""
    ratio = safe_ratio(better, worse)
    return None if ratio is None or 1 / _MIN_NOTABLE_RATIO < ratio < _MIN_NOTABLE_RATIO else ratio


def _model_causes(better: ComparedRun, worse: ComparedRun) -> list[LossCause]:
    pair = {"better": better.label, "worse": worse.label}
    causes = []
    sizes = better.analysis.size, worse.analysis.size
    if ratio := _notable_ratio(sizes[0].parameters, sizes[1].parameters):
        better_size, worse_size = (
            format_parameters(size.parameters or 0, size.parameters_source != "inferred") for size in sizes
        )
        sentence = say(
            "compare.better-because.reason.model_size",
            **pair,
            factor=max(ratio, 1 / ratio),
            better_size=better_size,
            worse_size=worse_size,
        )
        causes.append(LossCause("model-size", sentence, ratio > 1))
    elif (least := least_work_ratio(better, worse)) and None in (sizes[0].parameters, sizes[1].parameters):
        sentence = say("compare.better-because.reason.work", least=least)
        causes.append(LossCause("work", sentence, None))
    contexts = [positive_int_setting(run.log, "block_size") for run in (better, worse)]
    if contexts[0] is not None and contexts[1] is not None and contexts[0] != contexts[1]:
        sentence = say(
            "compare.better-because.reason.context", **pair, better_size=contexts[0], worse_size=contexts[1]
        )
        causes.append(LossCause("context", sentence, contexts[0] > contexts[1]))
    return causes


def _training_causes(better: ComparedRun, worse: ComparedRun) -> list[LossCause]:
    """Tokens per iteration, and tokens up to the best evaluation; iterations where tokens are unknown."""
    pair = {"better": better.label, "worse": worse.label}
    causes = []
    if ratio := _notable_ratio(better.analysis.tokens_per_iteration, worse.analysis.tokens_per_iteration):
        sentence = say(
            "compare.better-because.reason.batch",
            **pair,
            factor=max(ratio, 1 / ratio),
            better_tokens=better.analysis.tokens_per_iteration or 0,
            worse_tokens=worse.analysis.tokens_per_iteration or 0,
        )
        # A smaller batch means fewer tokens after as many iterations, but more updates after as many tokens.
        causes.append(LossCause("batch", sentence, True if ratio > 1 else None))
    tokens = better.tokens_at_best, worse.tokens_at_best
    if safe_ratio(*tokens) is not None:
        if ratio := _notable_ratio(*tokens):
            sentence = say(
                "compare.better-because.reason.tokens",
                **pair,
                factor=max(ratio, 1 / ratio),
                better_tokens=tokens[0] or 0,
                worse_tokens=tokens[1] or 0,
            )
            causes.append(LossCause("tokens", sentence, ratio > 1))
    elif better.best and worse.best and (ratio := _notable_ratio(better.best[1], worse.best[1])):
        sentence = say(
            "compare.better-because.reason.iterations",
            **pair,
            factor=max(ratio, 1 / ratio),
            better_count=better.best[1],
            worse_count=worse.best[1],
        )
        causes.append(LossCause("iterations", sentence, ratio > 1))
    return causes


def _logged_lr_causes(better: ComparedRun, worse: ComparedRun) -> list[LossCause]:
    """Learning rates that differ where both logs print them, at the same iterations."""
    rates = []
    for run in (better, worse):
        trajectory, lr = run.analysis.trajectory, run.log.steps.lr
        pairs = zip(trajectory.iteration.tolist(), lr[trajectory.rows].tolist(), strict=True)
        rates.append({at: value for at, value in pairs if value > 0})
    common = sorted(rates[0].keys() & rates[1].keys())
    ratios = [rates[0][at] / rates[1][at] for at in common]
    if not ratios or all(1 / _MIN_NOTABLE_RATIO < ratio < _MIN_NOTABLE_RATIO for ratio in ratios):
        return []
    at = max(common, key=lambda one: abs(math.log(rates[0][one] / rates[1][one])))
    sentence = say(
        "compare.better-because.reason.logged_lr",
        better=better.label,
        worse=worse.label,
        at=at,
        better_lr=f"{rates[0][at]:.3g}",
        worse_lr=f"{rates[1][at]:.3g}",
    )
    return [LossCause("logged-lr", sentence, None)]


# --- training length ---


def explain_by_training_length(better: ComparedRun, worse: ComparedRun, gap: float) -> list[Claim]:
    """Whether more iterations or tokens are a cause: what is left of the gap where the better run had as many
    as the worse run at its best. Where it was not evaluated there, training losses can show it gone."""
    claims = []
    labels = (better.label, worse.label)
    axes: tuple[Axis, ...] = ("iterations", "tokens")
    for axis in axes:
        if axis not in better.curve.positions or axis not in worse.curve.positions:
            continue
        at = float(worse.curve.positions[axis][worse.curve.losses.argmin()])
        longer = safe_ratio(float(better.curve.positions[axis][-1]), at)
        if longer is None or longer < _MIN_NOTABLE_RATIO:
            continue
        there = loss_near(better.curve, axis, at)
        batches = [mean_of_batches(run.batches, axis, at) for run in (better, worse)]
        values: dict[str, object] = {"better": better.label, "worse": worse.label, "gap": gap, "at": at}
        if there is not None:
            ahead = float(worse.curve.losses.min()) - there.loss
            is_left, is_gone = ahead >= _MIN_REMAINING_SHARE * gap, ahead <= 0
        elif batches[0] is not None and batches[1] is not None:
            ahead = batches[1].loss - batches[0].loss
            noise = 2 * math.hypot(batches[0].std or 0.0, batches[1].std or 0.0)
            is_left, is_gone = False, ahead <= -noise
        else:
            continue
        values["ahead"] = ahead
        details = _schedule_details(better, worse, axis, at)
        if is_left and axis == "iterations":
            sentence = say("compare.iterations-not-cause", **values)
            claims.append(Claim("iterations-not-cause", labels, sentence))
        elif is_left:
            claims.append(Claim("tokens-not-cause", labels, say("compare.tokens-not-cause", **values)))
        elif is_gone and axis == "iterations":
            sentence = say("compare.iterations-cause", **values)
            claims.append(Claim("iterations-cause", labels, sentence, details))
        elif is_gone:
            claims.append(Claim("tokens-cause", labels, say("compare.tokens-cause", **values), details))
    return claims


def _schedule_details(better: ComparedRun, worse: ComparedRun, axis: Axis, at: float) -> Text:
    """The end of a schedule lowers a loss by itself: at one point, one run may be there and the other not."""
    shares = []
    for run in (better, worse):
        planned = planned_end_iteration(run.log)
        positions = run.curve.positions[axis]
        iteration = float(np.interp(at, positions, run.curve.iterations)) if len(positions) else None
        shares.append(iteration / planned if planned and iteration is not None else None)
    if shares[0] is None or shares[1] is None or shares[0] > _MID_SCHEDULE or shares[1] < _END_OF_SCHEDULE:
        return ()
    sentence = say(
        "compare.tokens-cause.reason.schedule",
        better=better.label,
        worse=worse.label,
        better_share=100 * shares[0],
        worse_share=100 * shares[1],
    )
    return (sentence,)


# --- hardware ---


def rule_out_hardware(
    better: ComparedRun, worse: ComparedRun, gap: float, differences: tuple[Difference, ...]
) -> list[Claim]:
    """For readers who may blame the hardware: it differs, or a log does not say that it is the same."""
    pair = {"better": better.label, "worse": worse.label}
    loss_settings = [
        difference
        for difference in differences
        if difference.is_known and difference.affects_loss and difference.name != "seed"
    ]
    if not loss_settings or gap < _MAX_ROUNDING_LOSS_GAP:
        return []
    if not any(difference.name in HARDWARE_SETTINGS for difference in differences):
        setups = [run.log.setup for run in (better, worse)]
        devices: set[object] = {setup.device_name for setup in setups}
        if devices == {None}:
            devices = {setup.settings.get("device") for setup in setups}
        if len(devices) == 1:
            return []
    sentence = say("compare.hardware-not-cause", **pair)
    details = [
        say(
            "compare.hardware-not-cause.reason.settings",
            settings=list_settings(loss_settings[:_MAX_LISTED_SETTINGS]),
        ),
        say("compare.hardware-not-cause.reason.same_loss_anywhere"),
    ]
    times_s = better.analysis.total_s, worse.analysis.total_s
    if times_s[0] and times_s[1]:
        details.append(
            say(
                "compare.hardware-not-cause.reason.total_times",
                **pair,
                better_time=times_s[0],
                worse_time=times_s[1],
            )
        )
    return [Claim("hardware-not-cause", (better.label, worse.label), sentence, tuple(details))]
