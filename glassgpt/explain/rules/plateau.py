"""A run that learnt nothing, or nothing more."""

from __future__ import annotations

import math

import numpy as np

from glassgpt.explain.rule import Finding, RunAnalysis
from glassgpt.explain.rules.capacity import is_model_too_small
from glassgpt.explain.rules.memorised import has_leaked_data, trailing_zero_losses
from glassgpt.explain.rules.overfitting import has_overfitted
from glassgpt.explain.rules.waste import seconds_and_share_after
from glassgpt.format import format_integer, format_loss, format_loss_difference, format_percent
from glassgpt.i18n import say
from glassgpt.runs.curve import BlockMedians, block_medians
from glassgpt.runs.run_log import Floats, Ints, RunLog
from glassgpt.runs.trajectory import numeric_setting, val_metric_name

MIN_LOGGED_STEPS = 50
# Of the loss: a tenth of what a usual third of a run brings, for one batch and for an evaluation.
MAX_TRAIN_GAIN_SHARE, MAX_EVAL_GAIN_SHARE = 0.002, 0.003
# Of guessing evenly: how frequent the tokens are brings a model below that in one or two hundred iterations.
MIN_SHARE_OF_CHANCE_LOSS, MIN_HARDLY_LEARNT_ITERATIONS = 0.9, 300
MAX_END_CHANGE_SHARE, MAX_RANGE_SHARE = 0.01, 0.02  # of the first loss


def plateau(case: RunAnalysis) -> Finding | None:
    at, losses = case.trajectory.finite_losses()
    if len(losses) < MIN_LOGGED_STEPS or at[-1] < _min_iterations(case.log):
        return None
    if (
        case.loss_rise
        or case.facts.nan_step is not None
        or has_leaked_data(case)
        or trailing_zero_losses(case)
    ):
        return None
    with np.errstate(over="ignore", invalid="ignore"):  # losses of 1e308 have been seen
        smooth = block_medians(at, losses, 30)
        nothing = _nothing_learnt(case.log, at, losses, smooth)
        nothing = nothing or _hardly_learnt(case.log, at, losses, smooth)
        flat = "" if nothing else _flat_evidence(case, smooth)
    if nothing or not flat or is_model_too_small(case) or has_overfitted(case):
        return nothing
    return _plateau_finding(case, int(at[-1]), flat)


def _plateau_finding(case: RunAnalysis, last: int, flat: str) -> Finding:
    saved = seconds_and_share_after(case, last * 2 // 3, last)
    values = {
        "at": format_integer(last * 2 // 3),
        "share": format_percent(saved[1]) if saved else format_percent(1 / 3),
    }
    return Finding(
        "plateau",
        "advice",
        say("The last third of the run improved nothing"),
        flat,
        say(
            "Neither the training loss nor the validation loss moved by more than their noise. The model has "
            "learnt what it can at this size, data and learning rate."
        ),
        say(
            "Stopping at iteration {at} would have saved {share} of the run. For a lower loss change "
            "something else: a larger model, more data, or another learning rate.",
            **values,
        )
        if case.log.numbered
        else say(
            "Stopping there would have saved {share} of the run. For a lower loss change something else: a "
            "larger model, more data, or another learning rate.",
            share=values["share"],
        ),
    )


def _min_iterations(history: RunLog) -> float:
    """Iterations from which on something should have happened."""
    return max(
        numeric_setting(history, "warmup_iters") or 0, 1000 if history.trainer.steps_are_micro_batches else 50
    )


def _nothing_learnt(history: RunLog, at: Ints, losses: Floats, smooth: BlockMedians) -> Finding | None:
    """The loss at the end is the loss at the start."""
    moved = abs(float(smooth.medians[-1]) - float(losses[0]))
    starts = int(at[0]) <= history.trainer.first_iteration + 1 and history.numbered
    if (
        not starts
        or moved > MAX_END_CHANGE_SHARE * losses[0]
        or np.ptp(smooth.medians) > MAX_RANGE_SHARE * losses[0]
    ):
        return None
    evidence = [_loss_change_sentence(at, losses)]
    vocabulary = numeric_setting(history, "vocab_size")
    if vocabulary and vocabulary > 1 and abs(losses[-1] - math.log(vocabulary)) < 0.02 * losses[-1]:
        evidence.append(_chance_loss_sentence(vocabulary))
    return Finding(
        "plateau",
        "problem",
        say("Nothing was learnt"),
        " ".join(evidence),
        say(
            "The weights hardly move: the learning rate (times its schedule) is next to nothing, the "
            "gradients do not reach the weights, or the run is too short for its warm-up."
        ),
        say(
            "Print the learning rate and the gradient norm of a few iterations. A healthy run loses a tenth "
            "of its first loss, here {tenth}, within its first hundred iterations.",
            tenth=format_loss_difference(0.1 * float(losses[0])),
        ),
    )


def _hardly_learnt(history: RunLog, at: Ints, losses: Floats, smooth: BlockMedians) -> Finding | None:
    """A fresh model that does not even know how frequent the tokens are."""
    vocabulary = numeric_setting(history, "vocab_size")
    starts = int(at[0]) <= history.trainer.first_iteration + 1 and history.numbered
    if (
        not vocabulary
        or vocabulary < 2
        or not starts
        or at[-1] < max(MIN_HARDLY_LEARNT_ITERATIONS, 2 * _min_iterations(history))
    ):
        return None
    chance, end = math.log(vocabulary), float(smooth.medians[-1])
    if (
        abs(losses[0] / chance - 1) > 1 - MIN_SHARE_OF_CHANCE_LOSS
        or not MIN_SHARE_OF_CHANCE_LOSS * chance < end <= losses[0]
    ):
        return None
    return Finding(
        "plateau",
        "problem",
        say("Hardly anything was learnt"),
        f"{_loss_change_sentence(at, losses)} {_chance_loss_sentence(vocabulary)}",
        say(
            "How frequent the tokens are is learnt first, and brings more than that. The learning rate is "
            "far too low, nearly all of the run is warm-up, or the targets do not belong to the inputs."
        ),
        say(
            "Try ten times the learning rate for a few hundred iterations. A healthy run loses a tenth of "
            "its first loss, here {tenth}, within its first hundred iterations.",
            tenth=format_loss_difference(0.1 * float(losses[0])),
        ),
    )


def _loss_change_sentence(at: Ints, losses: Floats) -> str:
    return say(
        "The training loss was {first} at iteration {start} and {last} at iteration {end}.",
        first=format_loss(losses[0]),
        start=format_integer(at[0]),
        last=format_loss(losses[-1]),
        end=format_integer(at[-1]),
    )


def _chance_loss_sentence(vocabulary: float) -> str:
    return say(
        "ln({vocabulary}) = {chance} is the loss of guessing evenly.",
        vocabulary=int(vocabulary),
        chance=format_loss(math.log(vocabulary)),
    )


def _flat_evidence(case: RunAnalysis, smooth: BlockMedians) -> str:
    """Evidence that the last third brought nothing; empty if it did, or if that cannot be told."""
    third = len(smooth) // 3
    before, after = smooth.medians[-2 * third : -third], smooth.medians[-third:]
    gained = float(np.median(before) - np.median(after))
    doubt = 2 * float(np.median(smooth.stderrs[-third:])) / math.sqrt(max(1, third))
    if third < 5 or abs(gained) > max(doubt, MAX_TRAIN_GAIN_SHARE * float(np.median(after))):
        return ""
    said = say(
        "Training loss {before} in the second third of the run, {after} in the last.",
        before=format_loss(float(np.median(before))),
        after=format_loss(float(np.median(after))),
    )
    at, values = case.trajectory.val_curve()
    early = values[at <= smooth.centers[-third]]
    late = values[at > smooth.centers[-third]]
    if not len(early) or not len(late):
        return said
    noise = case.eval_noise
    fell = float(early.min() - late.min())
    if fell > max(2 * noise.std if noise else 0.0, MAX_EVAL_GAIN_SHARE * float(early.min())):
        return ""
    return f"{said} " + say(
        "Best {metric} {before} before it, {after} in it.",
        metric=val_metric_name(case.log),
        before=format_loss(early.min()),
        after=format_loss(late.min()),
    )
