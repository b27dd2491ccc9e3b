"""Losses that jump and come back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glassgpt.explain.rule import Finding, RunAnalysis
from glassgpt.format import format_integer, format_loss, format_percent
from glassgpt.i18n import say
from glassgpt.runs.curve import mad, trailing_median
from glassgpt.runs.run_log import Floats, Ints, RunLog

MEDIAN_WINDOW_STEPS = 25  # logged iterations that tell what is usual
MIN_SPIKE_MADS = 8.0  # median absolute deviations
MIN_RISE_SHARE = 0.1  # of the loss
MAX_SPIKE_SHARE = 0.005  # of the iterations: then the noise has long tails, and none of them is an event
MAX_SPIKES_SHORT_RUN = 5  # however short the run
MAX_SHOWN_SPIKES = 3
WARNING_SHARE, ADVICE_SHARE = 0.05, 0.01  # of the iterations


@dataclass(frozen=True)
class LossSpike:
    iteration: int
    peak_loss: float
    usual_loss: float
    recovered_iteration: int


def find_loss_spikes(case: RunAnalysis) -> list[LossSpike]:
    """Jumps that the loss came back from, in order."""
    at, losses = case.trajectory.finite_losses()
    if len(losses) < 2 * MEDIAN_WINDOW_STEPS:
        return []
    with np.errstate(over="ignore", invalid="ignore"):  # losses of 1e308 have been seen
        usual = trailing_median(losses, MEDIAN_WINDOW_STEPS)
        off = losses - usual
        deviation = _deviation(off)
        out = (off > MIN_SPIKE_MADS * deviation) & (off > MIN_RISE_SHARE * np.abs(usual))
        begins = _begins(case.log, at)
        found = _group_spikes(at, losses, usual, deviation, np.flatnonzero(out), begins)
    return found if len(found) <= max(MAX_SPIKES_SHORT_RUN, MAX_SPIKE_SHARE * len(losses)) else []


def _deviation(off: Floats) -> Floats:
    """The median absolute deviation, per part of the run: noise shrinks as the loss does."""
    out = np.full(len(off), np.nan)
    known = off[MEDIAN_WINDOW_STEPS:]
    for piece in np.array_split(np.arange(MEDIAN_WINDOW_STEPS, len(off)), max(1, min(20, len(known) // 100))):
        out[piece] = max(mad(off[piece]), 1e-9)
    return out


def _begins(history: RunLog, at: Ints) -> Ints:
    """Iterations at which a later process began: a jump there is the resume's."""
    begins = [part.first_iteration for part in history.segments if part.first_iteration is not None]
    return np.array(sorted(begin for begin in set(begins) if begin > at[0]), dtype=np.int64)


def _group_spikes(
    at: Ints, losses: Floats, usual: Floats, deviation: Floats, rows: Ints, begins: Ints
) -> list[LossSpike]:
    found: list[LossSpike] = []
    free = 0  # the first row that belongs to no spike yet
    for row in rows.tolist():
        if row < free:
            continue
        calm = np.flatnonzero(losses[row : row + 20 * MEDIAN_WINDOW_STEPS] <= usual[row] + 2 * deviation[row])
        if not len(calm):  # it did not come back: not a spike
            free = row + 20 * MEDIAN_WINDOW_STEPS
            continue
        back = row + int(calm[0])
        free = back + 1
        if np.searchsorted(begins, at[max(0, row - 3)]) < np.searchsorted(begins, at[row], side="right"):
            continue
        found.append(LossSpike(int(at[row]), float(losses[row:back].max()), float(usual[row]), int(at[back])))
    return found


def loss_spike(case: RunAnalysis) -> Finding | None:
    # Between two updates no weight changes, so the high loss of a micro-batch is a hard batch.
    if case.log.trainer.steps_are_micro_batches or not case.log.numbered:
        return None
    spikes, course = find_loss_spikes(case), case.trajectory
    if not spikes:
        return None
    largest = sorted(spikes, key=lambda spike: spike.usual_loss - spike.peak_loss)[:MAX_SHOWN_SPIKES]
    lost = sum(spike.recovered_iteration - spike.iteration for spike in spikes)
    share = lost / max(1, int(course.iteration[-1]) - int(course.iteration[0]))
    shown = [
        say(
            "Iteration {at}: {peak} instead of {usual}, back at iteration {back}.",
            at=format_integer(spike.iteration),
            peak=format_loss(spike.peak_loss),
            usual=format_loss(spike.usual_loss),
            back=format_integer(spike.recovered_iteration),
        )
        for spike in largest
    ]
    return Finding(
        "loss-spike",
        "warning" if share > WARNING_SHARE else "advice" if share > ADVICE_SHARE else "info",
        say("Spikes in the training loss that it recovered from: {count}", count=len(spikes)),
        " ".join(shown),
        say(
            "One update too large throws the weights off, and the next iterations repair it. Causes: a batch "
            "unlike the others, a learning rate at the edge, or gradients that are not clipped."
        ),
        say(
            "Clip gradients at 1 and look at the data of those iterations; a lower learning rate or beta2 = "
            "0.95 makes them rarer. Until the loss was back it took {lost} iterations, {share} of the run.",
            lost=format_integer(lost),
            share=format_percent(share),
        ),
    )
