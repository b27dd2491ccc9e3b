"""Losses that jump and come back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glassgpt.explain.rule import Case, Finding
from glassgpt.format import loss, percent, whole
from glassgpt.i18n import say
from glassgpt.runs.curve import mad, trailing_median
from glassgpt.runs.run_log import Floats, History, Ints

WINDOW = 25  # logged iterations that tell what is usual
OUT_OF = 8.0  # median absolute deviations
RISE = 0.1  # of the loss
TOO_MANY = 0.005  # of the iterations: then the noise has long tails, and none of them is an event
ALWAYS_EVENTS = 5  # however short the run
SHOWN = 3
MUCH, SOME = 0.05, 0.01  # of the iterations


@dataclass(frozen=True)
class Spike:
    iteration: int
    peak: float
    usual: float
    back_at: int


def spikes_of(case: Case) -> list[Spike]:
    """Jumps that the loss came back from, in order."""
    at, losses = case.course.losses()
    if len(losses) < 2 * WINDOW:
        return []
    with np.errstate(over="ignore", invalid="ignore"):  # losses of 1e308 have been seen
        usual = trailing_median(losses, WINDOW)
        off = losses - usual
        deviation = _deviation(off)
        out = (off > OUT_OF * deviation) & (off > RISE * np.abs(usual))
        begins = _begins(case.history, at)
        found = _grouped(at, losses, usual, deviation, np.flatnonzero(out), begins)
    return found if len(found) <= max(ALWAYS_EVENTS, TOO_MANY * len(losses)) else []


def _deviation(off: Floats) -> Floats:
    """The median absolute deviation, per part of the run: noise shrinks as the loss does."""
    out = np.full(len(off), np.nan)
    known = off[WINDOW:]
    for piece in np.array_split(np.arange(WINDOW, len(off)), max(1, min(20, len(known) // 100))):
        out[piece] = max(mad(off[piece]), 1e-9)
    return out


def _begins(history: History, at: Ints) -> Ints:
    """Iterations at which a later process began: a jump there is the resume's."""
    begins = [part.first_iteration for part in history.segments if part.first_iteration is not None]
    return np.array(sorted(begin for begin in set(begins) if begin > at[0]), dtype=np.int64)


def _grouped(
    at: Ints, losses: Floats, usual: Floats, deviation: Floats, rows: Ints, begins: Ints
) -> list[Spike]:
    found: list[Spike] = []
    free = 0  # the first row that belongs to no spike yet
    for row in rows.tolist():
        if row < free:
            continue
        calm = np.flatnonzero(losses[row : row + 20 * WINDOW] <= usual[row] + 2 * deviation[row])
        if not len(calm):  # it did not come back: not a spike
            free = row + 20 * WINDOW
            continue
        back = row + int(calm[0])
        free = back + 1
        if np.searchsorted(begins, at[max(0, row - 3)]) < np.searchsorted(begins, at[row], side="right"):
            continue
        found.append(Spike(int(at[row]), float(losses[row:back].max()), float(usual[row]), int(at[back])))
    return found


def loss_spike(case: Case) -> Finding | None:
    # Between two updates no weight changes, so the high loss of a micro-batch is a hard batch.
    if case.history.trainer.steps_are_micro_batches or not case.history.numbered:
        return None
    spikes, course = spikes_of(case), case.course
    if not spikes:
        return None
    largest = sorted(spikes, key=lambda spike: spike.usual - spike.peak)[:SHOWN]
    lost = sum(spike.back_at - spike.iteration for spike in spikes)
    share = lost / max(1, int(course.iteration[-1]) - int(course.iteration[0]))
    shown = [
        say(
            "Iteration {at}: {peak} instead of {usual}, back at iteration {back}.",
            at=whole(spike.iteration),
            peak=loss(spike.peak),
            usual=loss(spike.usual),
            back=whole(spike.back_at),
        )
        for spike in largest
    ]
    return Finding(
        "loss-spike",
        "warning" if share > MUCH else "advice" if share > SOME else "info",
        say("Spikes in the training loss that it recovered from: {count}", count=len(spikes)),
        " ".join(shown),
        say(
            "One update too large throws the weights off, and the next iterations repair it. Causes: a batch "
            "unlike the others, a learning rate at the edge, or gradients that are not clipped."
        ),
        say(
            "Clip gradients at 1 and look at the data of those iterations; a lower learning rate or beta2 = "
            "0.95 makes them rarer. Until the loss was back it took {lost} iterations, {share} of the run.",
            lost=whole(lost),
            share=percent(share),
        ),
    )
