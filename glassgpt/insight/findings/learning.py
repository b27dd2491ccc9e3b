"""What the losses say about the learning: too long, too short, stuck, or not to be told for noise."""

from __future__ import annotations

import math

import numpy as np

from glassgpt.figures import count, difference, loss, percent, whole
from glassgpt.insight.course import Course, course_of, eval_noise, metric_name, setting
from glassgpt.insight.curve import Blocks, blocks
from glassgpt.insight.findings.accidents import rise_of
from glassgpt.insight.findings.finding import Case, Finder, Finding
from glassgpt.insight.findings.losses import eval_noise_finding, init_loss, ppl_vs_loss
from glassgpt.insight.findings.overfitting import overfitting, time_after
from glassgpt.insight.findings.trend import still_improving
from glassgpt.insight.history import Floats, History, Ints
from glassgpt.words import say

TOKENS_PER_PARAMETER = 20.0  # that a given amount of compute is best spent at (Hoffmann et al. 2022)


def plateau(case: Case) -> Finding | None:
    course = course_of(case.history)
    at, losses = course.losses()
    if (
        len(losses) < 50
        or at[-1] < _enough(case.history)
        or rise_of(case.history)
        or case.facts.nan_step is not None
    ):
        return None
    smooth = blocks(at, losses, 30)
    nothing = _nothing_learnt(case.history, at, losses, smooth)
    if nothing:
        return nothing
    flat = _flat_end(case.history, course, smooth)
    if not flat or underfit_capacity(case) or overfitting(case):
        return None
    saved = time_after(case, course, int(at[-1] * 2 / 3), int(at[-1]))
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
            at=whole(at[-1] * 2 / 3),
            share=percent(saved[1]) if saved else percent(1 / 3),
        ),
    )


def _enough(history: History) -> float:
    """Iterations from which on something should have happened. litgpt counts micro-batches."""
    return max(setting(history, "warmup_iters") or 0, 1000 if history.format.name == "litgpt" else 50)


def _nothing_learnt(history: History, at: Ints, losses: Floats, smooth: Blocks) -> Finding | None:
    """The loss at the end is the loss at the start."""
    moved = abs(float(smooth.value[-1]) - float(losses[0]))
    starts = int(at[0]) <= history.format.first_iteration + 1
    if not starts or moved > 0.01 * losses[0] or np.ptp(smooth.value) > 0.02 * losses[0]:
        return None
    evidence = [
        say(
            "The training loss was {first} at iteration {start} and {last} at iteration {end}.",
            first=loss(losses[0]),
            start=whole(at[0]),
            last=loss(losses[-1]),
            end=whole(at[-1]),
        )
    ]
    vocabulary = setting(history, "vocab_size")
    if vocabulary and vocabulary > 1 and abs(losses[-1] - math.log(vocabulary)) < 0.02 * losses[-1]:
        evidence.append(
            say(
                "ln({vocabulary}) = {chance} is the loss of guessing evenly.",
                vocabulary=int(vocabulary),
                chance=loss(math.log(vocabulary)),
            )
        )
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


def _flat_end(history: History, course: Course, smooth: Blocks) -> str:
    """Evidence that the last third brought nothing; empty if it did, or if that cannot be told."""
    third = len(smooth) // 3
    before, after = smooth.value[-2 * third : -third], smooth.value[-third:]
    gained = float(np.median(before) - np.median(after))
    doubt = 2 * float(np.median(smooth.error[-third:])) / math.sqrt(max(1, third))
    if third < 5 or abs(gained) > max(doubt, 0.002 * float(np.median(after))):
        return ""
    said = say(
        "Training loss {before} in the second third of the run, {after} in the last.",
        before=loss(float(np.median(before))),
        after=loss(float(np.median(after))),
    )
    at, values = course.val_points()
    early = values[at <= smooth.at[-third]]
    late = values[at > smooth.at[-third]]
    if not len(early) or not len(late):
        return said
    noise = eval_noise(history, course)
    fell = float(early.min() - late.min())
    if fell > max(2 * noise.value if noise else 0.0, 0.003 * float(early.min())):
        return ""
    return f"{said} " + say(
        "Best {metric} {before} before it, {after} in it.",
        metric=metric_name(history),
        before=loss(early.min()),
        after=loss(late.min()),
    )


def underfit_capacity(case: Case) -> Finding | None:
    """Train and validation losses close together and flat, of a model that saw far more tokens than its size
    is good for."""
    history, facts = case.history, case.facts
    course = course_of(history)
    both = [done for done in course.evals if done.train_loss and math.isfinite(done.train_loss)]
    last = course.last
    if len(both) < 6 or not facts.parameters or not facts.tokens_per_iteration or not last:
        return None
    train, val = both[-1].train_loss or 0.0, both[-1].val_loss or 0.0
    earlier = [done.val_loss or 0.0 for done in both if (done.iteration or 0) <= last * 2 / 3]
    seen = float(last) * facts.tokens_per_iteration
    ratio = seen / facts.parameters
    close = abs(val - train) < 0.03 * train
    if (
        not earlier
        or not close
        or ratio < 5 * TOKENS_PER_PARAMETER
        or not abs(earlier[-1] - val) < 0.01 * val
    ):
        return None
    # Compute is 6 x parameters x tokens; the best split of it has 20 tokens to a parameter.
    fitting = math.sqrt(facts.parameters * seen / TOKENS_PER_PARAMETER)
    return Finding(
        "underfit-capacity",
        "advice",
        say("The model is small for what it was trained on"),
        say(
            "At the end train loss {train} and {metric} {val} are {gap} apart, and the {metric} moved from "
            "{then} over the last third. {parameters} parameters saw {tokens} tokens: {ratio} for each.",
            train=loss(train),
            metric=metric_name(history),
            val=loss(val),
            gap=percent(abs(val - train) / train),
            then=loss(earlier[-1]),
            parameters=count(facts.parameters),
            tokens=count(seen),
            ratio=whole(ratio),
        ),
        say(
            "It does not overfit and it does not improve: its size is the limit. About {ratio} tokens per "
            "parameter is where compute is best spent on text.",
            ratio=whole(TOKENS_PER_PARAMETER),
        ),
        say(
            "The same compute trains {parameters} parameters on {tokens} tokens.",
            parameters=count(fitting),
            tokens=count(TOKENS_PER_PARAMETER * fitting),
        ),
    )


FINDERS: tuple[Finder, ...] = (
    overfitting,
    still_improving,
    plateau,
    underfit_capacity,
    init_loss,
    eval_noise_finding,
    ppl_vs_loss,
)
