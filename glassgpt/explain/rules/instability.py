"""A training loss that rises: for good (divergence), or in spikes that it recovers from."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from glassgpt.i18n import say
from glassgpt.record.finding import Finding, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.curve_statistics import mad, trailing_median
from glassgpt.runs.trajectory import numeric_setting, seconds_between, takes_known_settings

# A spike: a loss compared with the median of the MEDIAN_WINDOW_STEPS losses before it.
MEDIAN_WINDOW_STEPS = 25
MIN_SPIKE_MADS = 8.0  # median absolute deviations above it
MIN_SPIKE_RISE_SHARE = 0.1  # of it
MAX_RECOVERY_MADS = 2.0  # above it: from there on the loss has recovered
MAX_SPIKE_STEPS = 20 * MEDIAN_WINDOW_STEPS  # without recovery within these, it is no spike
# More spikes than this share of the losses: the noise has long tails, and none of them is an event.
MAX_SPIKE_SHARE = 0.005
MAX_SPIKES_SHORT_RUN = 5  # however short the run
SHOWN_SPIKES = ("largest", "second", "third")  # each has its message
# Share of the iterations spent in spikes, from which on the finding is a warning or advice.
WARNING_SPIKE_SHARE, ADVICE_SPIKE_SHARE = 0.05, 0.01


def divergence(analysis: Analysis) -> Finding | None:
    """The training loss rose and stayed up. Thresholds: those of Analysis.loss_rise."""
    rise, run_log = analysis.loss_rise, analysis.log
    if rise is None:
        return None
    values = {
        "first_loss": rise.first_loss,
        "lowest_loss": rise.lowest_loss,
        "end_loss": rise.end_loss,
    }
    if run_log.has_iteration_numbers:
        evidence = [
            say("divergence.evidence.lowest_at_iteration", lowest_iteration=rise.lowest_iteration, **values)
        ]
        lost_s = seconds_between(
            analysis.trajectory, rise.lowest_iteration, rise.end_iteration, analysis.facts.steady_ms
        )
        if lost_s:
            lost_iterations = rise.end_iteration - rise.lowest_iteration
            evidence.append(
                say("divergence.evidence.time_since_lowest", lost_iterations=lost_iterations, lost_s=lost_s)
            )
    else:
        evidence = [say("divergence.evidence.lowest_without_iteration", **values)]
    peak_lr, warmup = numeric_setting(run_log, "learning_rate"), numeric_setting(run_log, "warmup_iters")
    loss_rise = rise.end_loss - rise.lowest_loss
    if peak_lr and takes_known_settings(run_log):
        advice = [
            say(
                "divergence.advice.lower_known_lr",
                peak_lr=peak_lr,
                new_peak_lr=peak_lr / 5,
                loss_rise=loss_rise,
            )
        ]
        if warmup is not None and rise.lowest_iteration < 5 * max(warmup, 20):
            longer = int(max(5 * warmup, 100))
            advice.append(
                say("divergence.advice.longer_warmup", warmup_iters=int(warmup), new_warmup_iters=longer)
            )
    else:
        advice = [say("divergence.advice.fifth_of_lr", loss_rise=loss_rise)]
    return make_finding(
        "divergence",
        "problem",
        title=say("divergence.title"),
        evidence=evidence,
        explanation=say("divergence.explanation"),
        advice=advice,
        at=rise.lowest_iteration if run_log.has_iteration_numbers else None,
        claims={"learning at the end": "diverged"},
    )


@dataclass(frozen=True)
class LossSpike:
    iteration: int
    peak_loss: float
    usual_loss: float
    recovered_iteration: int


def find_loss_spikes(analysis: Analysis) -> list[LossSpike]:
    """Spikes that the loss recovered from, in order."""
    at, losses = analysis.trajectory.finite_losses()
    if len(losses) < 2 * MEDIAN_WINDOW_STEPS:
        return []
    usual = trailing_median(losses, MEDIAN_WINDOW_STEPS)
    excess = losses - usual
    # The deviation per part of the run: noise shrinks as the loss does.
    deviation = np.full(len(losses), np.nan)
    parts = max(1, min(20, (len(losses) - MEDIAN_WINDOW_STEPS) // 100))
    for part in np.array_split(np.arange(MEDIAN_WINDOW_STEPS, len(losses)), parts):
        deviation[part] = max(mad(excess[part]), 1e-9)
    is_high = (excess > MIN_SPIKE_MADS * deviation) & (excess > MIN_SPIKE_RISE_SHARE * np.abs(usual))
    # A jump where a later process began belongs to the resume.
    starts = {one.first_iteration for one in analysis.log.segments if one.first_iteration is not None}
    process_starts = np.array(sorted(start for start in starts if start > at[0]), dtype=np.int64)
    spikes: list[LossSpike] = []
    next_row = 0  # the first row that belongs to no spike yet
    for row in np.flatnonzero(is_high).tolist():
        if row < next_row:
            continue
        recovered = np.flatnonzero(
            losses[row : row + MAX_SPIKE_STEPS] <= usual[row] + MAX_RECOVERY_MADS * deviation[row]
        )
        if not len(recovered):
            next_row = row + MAX_SPIKE_STEPS
            continue
        back = row + int(recovered[0])
        next_row = back + 1
        starts_before = np.searchsorted(process_starts, at[max(0, row - 3)])
        if starts_before < np.searchsorted(process_starts, at[row], side="right"):
            continue
        peak = float(losses[row:back].max())
        spikes.append(LossSpike(int(at[row]), peak, float(usual[row]), int(at[back])))
    return spikes if len(spikes) <= max(MAX_SPIKES_SHORT_RUN, MAX_SPIKE_SHARE * len(losses)) else []


def loss_spike(analysis: Analysis) -> Finding | None:
    """The training loss jumped up and came back. Severity: the share of iterations until it was back."""
    # Between two updates no weight changes, so the high loss of a micro-batch is a hard batch.
    if analysis.log.trainer.steps_are_micro_batches or not analysis.log.has_iteration_numbers:
        return None
    spikes, iterations = find_loss_spikes(analysis), analysis.trajectory.iteration
    if not spikes:
        return None
    lost = sum(spike.recovered_iteration - spike.iteration for spike in spikes)
    share = lost / max(1, int(iterations[-1]) - int(iterations[0]))
    spikes.sort(key=lambda spike: spike.usual_loss - spike.peak_loss)
    values = {
        f"{rank}_{name}": value
        for rank, spike in zip(SHOWN_SPIKES, spikes, strict=False)
        for name, value in asdict(spike).items()
    }
    evidence = [
        say("loss-spike.evidence.largest", **values),
        say("loss-spike.evidence.second", **values),
        say("loss-spike.evidence.third", **values),
    ]
    return make_finding(
        "loss-spike",
        "warning" if share > WARNING_SPIKE_SHARE else "advice" if share > ADVICE_SPIKE_SHARE else "info",
        title=say("loss-spike.title", count=len(spikes)),
        evidence=evidence[: len(spikes)],
        explanation=say("loss-spike.explanation"),
        advice=say("loss-spike.advice", lost_iterations=lost, lost_share=share),
        at=spikes[0].iteration,
    )
