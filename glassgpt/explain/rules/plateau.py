"""A run that learnt nothing, or nothing more."""

from __future__ import annotations

import math

import numpy as np

from glassgpt.explain.rule import Case, Finding
from glassgpt.explain.rules.capacity import is_too_small
from glassgpt.explain.rules.memorised import is_leaked, zeros_at_end
from glassgpt.explain.rules.overfitting import is_overfitted
from glassgpt.explain.rules.waste import time_after
from glassgpt.format import difference, loss, percent, whole
from glassgpt.i18n import say
from glassgpt.runs.curve import Blocks, blocks
from glassgpt.runs.run_log import Floats, History, Ints
from glassgpt.runs.trajectory import metric_name, setting

FEWEST_ROWS = 50
# Of the loss: a tenth of what a usual third of a run brings, for one batch and for an evaluation.
FLAT_TRAINING, FLAT_EVALUATION = 0.002, 0.003
# Of guessing evenly: how frequent the tokens are brings a model below that in one or two hundred iterations.
HARDLY, HARDLY_FROM = 0.9, 300
UNMOVED, UNMOVED_ANYWHERE = 0.01, 0.02  # of the first loss


def plateau(case: Case) -> Finding | None:
    at, losses = case.course.losses()
    if len(losses) < FEWEST_ROWS or at[-1] < _enough(case.history):
        return None
    if case.rise or case.facts.nan_step is not None or is_leaked(case) or zeros_at_end(case):
        return None
    with np.errstate(over="ignore", invalid="ignore"):  # losses of 1e308 have been seen
        smooth = blocks(at, losses, 30)
        nothing = _nothing_learnt(case.history, at, losses, smooth)
        nothing = nothing or _hardly_learnt(case.history, at, losses, smooth)
        flat = "" if nothing else _flat_end(case, smooth)
    if nothing or not flat or is_too_small(case) or is_overfitted(case):
        return nothing
    return _no_more(case, int(at[-1]), flat)


def _no_more(case: Case, last: int, flat: str) -> Finding:
    saved = time_after(case, last * 2 // 3, last)
    values = {"at": whole(last * 2 // 3), "share": percent(saved[1]) if saved else percent(1 / 3)}
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
        if case.history.numbered
        else say(
            "Stopping there would have saved {share} of the run. For a lower loss change something else: a "
            "larger model, more data, or another learning rate.",
            share=values["share"],
        ),
    )


def _enough(history: History) -> float:
    """Iterations from which on something should have happened."""
    return max(setting(history, "warmup_iters") or 0, 1000 if history.trainer.steps_are_micro_batches else 50)


def _nothing_learnt(history: History, at: Ints, losses: Floats, smooth: Blocks) -> Finding | None:
    """The loss at the end is the loss at the start."""
    moved = abs(float(smooth.value[-1]) - float(losses[0]))
    starts = int(at[0]) <= history.trainer.first_iteration + 1 and history.numbered
    if not starts or moved > UNMOVED * losses[0] or np.ptp(smooth.value) > UNMOVED_ANYWHERE * losses[0]:
        return None
    evidence = [_from_to(at, losses)]
    vocabulary = setting(history, "vocab_size")
    if vocabulary and vocabulary > 1 and abs(losses[-1] - math.log(vocabulary)) < 0.02 * losses[-1]:
        evidence.append(_guessing(vocabulary))
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
            tenth=difference(0.1 * float(losses[0])),
        ),
    )


def _hardly_learnt(history: History, at: Ints, losses: Floats, smooth: Blocks) -> Finding | None:
    """A fresh model that does not even know how frequent the tokens are."""
    vocabulary = setting(history, "vocab_size")
    starts = int(at[0]) <= history.trainer.first_iteration + 1 and history.numbered
    if not vocabulary or vocabulary < 2 or not starts or at[-1] < max(HARDLY_FROM, 2 * _enough(history)):
        return None
    chance, end = math.log(vocabulary), float(smooth.value[-1])
    if abs(losses[0] / chance - 1) > 1 - HARDLY or not HARDLY * chance < end <= losses[0]:
        return None
    return Finding(
        "plateau",
        "problem",
        say("Hardly anything was learnt"),
        f"{_from_to(at, losses)} {_guessing(vocabulary)}",
        say(
            "How frequent the tokens are is learnt first, and brings more than that. The learning rate is "
            "far too low, nearly all of the run is warm-up, or the targets do not belong to the inputs."
        ),
        say(
            "Try ten times the learning rate for a few hundred iterations. A healthy run loses a tenth of "
            "its first loss, here {tenth}, within its first hundred iterations.",
            tenth=difference(0.1 * float(losses[0])),
        ),
    )


def _from_to(at: Ints, losses: Floats) -> str:
    return say(
        "The training loss was {first} at iteration {start} and {last} at iteration {end}.",
        first=loss(losses[0]),
        start=whole(at[0]),
        last=loss(losses[-1]),
        end=whole(at[-1]),
    )


def _guessing(vocabulary: float) -> str:
    return say(
        "ln({vocabulary}) = {chance} is the loss of guessing evenly.",
        vocabulary=int(vocabulary),
        chance=loss(math.log(vocabulary)),
    )


def _flat_end(case: Case, smooth: Blocks) -> str:
    """Evidence that the last third brought nothing; empty if it did, or if that cannot be told."""
    third = len(smooth) // 3
    before, after = smooth.value[-2 * third : -third], smooth.value[-third:]
    gained = float(np.median(before) - np.median(after))
    doubt = 2 * float(np.median(smooth.error[-third:])) / math.sqrt(max(1, third))
    if third < 5 or abs(gained) > max(doubt, FLAT_TRAINING * float(np.median(after))):
        return ""
    said = say(
        "Training loss {before} in the second third of the run, {after} in the last.",
        before=loss(float(np.median(before))),
        after=loss(float(np.median(after))),
    )
    at, values = case.course.val_points()
    early = values[at <= smooth.at[-third]]
    late = values[at > smooth.at[-third]]
    if not len(early) or not len(late):
        return said
    noise = case.noise
    fell = float(early.min() - late.min())
    if fell > max(2 * noise.value if noise else 0.0, FLAT_EVALUATION * float(early.min())):
        return ""
    return f"{said} " + say(
        "Best {metric} {before} before it, {after} in it.",
        metric=metric_name(case.history),
        before=loss(early.min()),
        after=loss(late.min()),
    )
