"""A training loss that rises: it explodes, rises for good (divergence), or has spikes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.explain.rules.loss_plausibility import MAX_VOCAB_SIZE, MIN_FIRST_LOSS, is_language_loss
from glassgpt.explain.rules.nonfinite import find_nonfinite_loss
from glassgpt.i18n import Message, say
from glassgpt.record.finding import Finding, Severity, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.curve_statistics import leading_median, mad, trailing_median
from glassgpt.runs.noise import clear_difference
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trajectory import (
    clips_gradients,
    numeric_setting,
    seconds_between,
    shows_run_start,
    takes_known_settings,
    val_metric_name,
)

MIN_CONSTANT_END = 3  # losses at the end, the same to all printed digits
MAX_RETURNING_RATIO = 2.0  # last loss over the one before an explosion: it was coming back
MAX_ANEW_DEVIATION = 0.03  # of the first loss: at once back at it, weights look new
# A spike: a loss compared with the median of the MEDIAN_WINDOW_STEPS losses before it.
MEDIAN_WINDOW_STEPS = 25
MIN_SPIKE_MADS = 8.0  # median absolute deviations above it
MIN_SPIKE_RISE_SHARE, MIN_SPIKE_RISE = 0.1, 0.05  # of it, and in nats
MIN_LOSSES_BEFORE, HOLD_LOSSES = 10, 5  # for a usual loss; and the median of so many is back, too
MIN_STANDS_OUT = 1.5  # times the highest loss that is no spike, in deviations: else it is of a tail
NEIGHBOURS = 3  # losses and evaluations on either side that a spike is compared with
MAX_CLOSE_INTERVAL = 10  # iterations between two lines; over more, weights that were hit may have recovered
MAX_RECOVERY_MADS = 2.0  # above it: from there on the loss has recovered
MAX_SPIKE_STEPS = 20 * MEDIAN_WINDOW_STEPS  # without recovery within these, it is no spike
# More spikes than this share of the losses: the noise has long tails, and none of them is an event.
MAX_SPIKE_SHARE = 0.005
MAX_SPIKES_SHORT_RUN, MAX_SPIKE_SHARE_SHORT_RUN = 5, 0.02
# The same of the losses outside spikes that are this many deviations up: 0.4% of normal noise.
TAIL_MADS, MAX_TAIL_SHARE = 4.0, 0.02
MAX_ODD_BATCH_LOSSES = 5  # logged losses of a spike: after more, the weights had to recover
MIN_RECURRING_LOSSES = 150  # fewer do not show that ups and downs come again
MAX_SINGLE_LOSSES = 2  # more in one spike are a cluster, not single odd batches
# Share of the iterations spent in spikes, from which on the finding is a warning or advice.
WARNING_SPIKE_SHARE, ADVICE_SPIKE_SHARE = 0.05, 0.01


def loss_explosion(analysis: Analysis) -> Finding | None:
    """The training loss rose to a multiple of itself. Thresholds: those of Analysis.explosions."""
    explosions, run_log = analysis.explosions, analysis.log
    broken = find_nonfinite_loss(run_log)
    if not explosions or (broken and not broken.has_recovered):  # that is what it came to
        return None
    worst = max(explosions, key=lambda one: (one.recovered_iteration is None, one.until - one.iteration))
    recovered, facts = worst.recovered_iteration, analysis.facts
    values = {"explosion_iteration": worst.iteration, "recovered_iteration": recovered or 0}
    numbered = run_log.has_iteration_numbers
    if numbered and recovered is not None:
        title = say("loss-explosion.title.recovered", **values)
    elif numbered:
        title = say("loss-explosion.title.lasting", explosion_iteration=worst.iteration)
    elif recovered is not None:
        title = say("loss-explosion.title.recovered_unnumbered")
    else:
        title = say("loss-explosion.title.lasting_unnumbered")
    rise = {"loss_before": worst.loss_before, "peak_loss": worst.peak_loss}
    evidence: list[Message | None] = []
    if numbered:
        evidence.append(
            say(
                "loss-explosion.evidence.rise",
                iteration_before=worst.iteration_before,
                peak_iteration=worst.peak_iteration,
                **rise,
            )
        )
        lost_s = seconds_between(analysis.trajectory, worst.iteration, worst.until, facts.steady_ms)
        lost = {"lost_iterations": worst.until - worst.iteration, "lost_s": lost_s or 0.0}
        if recovered is None:
            evidence.append(say("loss-explosion.evidence.last_loss", end_loss=worst.end_loss, **lost))
        elif lost_s:
            evidence.append(say("loss-explosion.evidence.recovery_time", **lost))
        else:
            evidence.append(say("loss-explosion.evidence.recovery", **lost))
        last_eval = analysis.trajectory.evals[-1:]
        if last_eval and worst.iteration < (last_eval[0].iteration or 0) < worst.until:
            evidence.append(
                say("loss-explosion.evidence.evaluated_inside", eval_iteration=last_eval[0].iteration)
            )
    else:
        evidence.append(say("loss-explosion.evidence.rise_unnumbered", **rise))
    if recovered is None:
        evidence += _constant_end(analysis)
    if len(explosions) > 1:
        evidence.append(say("loss-explosion.evidence.count", count=len(explosions)))
    iterations = analysis.trajectory.iteration
    share = (worst.until - worst.iteration) / max(1, int(iterations[-1]) - int(iterations[0]))
    recurs = _loss_recurs(analysis) if recovered is not None else None
    first_loss = float(analysis.trajectory.finite_losses()[1][0])
    begins_anew = (
        recovered is not None
        and worst.peak_iteration == worst.iteration
        and abs(worst.peak_loss - first_loss) <= MAX_ANEW_DEVIATION * first_loss
        and shows_run_start(run_log)
    )
    if recurs:
        explanation = say("loss-spike.explanation.recurring", period=recurs)
    elif begins_anew:
        explanation = say("loss-explosion.explanation.begins_anew", first_loss=first_loss)
    elif recovered is not None:
        explanation = say("loss-explosion.explanation.recovered")
    elif worst.end_loss < MAX_RETURNING_RATIO * worst.loss_before:
        explanation = say("loss-explosion.explanation.returning")
    else:
        explanation = say("loss-explosion.explanation.lasting")
    saves = [save.iteration for save in analysis.trajectory.checkpoints if save.iteration is not None]
    usable = [at for at in saves if at < worst.iteration]
    advice = [_lower_lr_advice(run_log, worst.iteration), _clip_advice(run_log)]
    if recurs:
        advice = [say("loss-spike.advice.recurring")]
    elif begins_anew:
        advice = [say("loss-explosion.advice.begins_anew", explosion_iteration=worst.iteration)]
    elif recovered is None and usable and not run_log.trainer.overwrites_checkpoint:
        advice.append(say("loss-explosion.advice.earlier_checkpoint", saved_iteration=max(usable)))
    return make_finding(
        "loss-explosion",
        "info" if recurs else "problem" if recovered is None or share > WARNING_SPIKE_SHARE else "warning",
        title=title,
        evidence=evidence,
        explanation=explanation,
        advice=advice,
        at=worst.iteration if numbered else None,
        lines=analysis.lines_at([worst.iteration_before, worst.peak_iteration, worst.until]),
        claims={"training loss at the end": "exploded" if recovered is None else "recovered"},
    )


def _loss_recurs(analysis: Analysis) -> int | None:
    is_long = len(analysis.trajectory.finite_losses()[1]) >= MIN_RECURRING_LOSSES
    return analysis.loss_recurs if is_long else None


def _lower_lr_advice(run_log: RunLog, iteration: int) -> Message:
    """A fifth of the learning rate; and a longer warm-up, where the loss rose soon after it."""
    peak_lr, warmup = numeric_setting(run_log, "learning_rate"), numeric_setting(run_log, "warmup_iters")
    if not peak_lr or not takes_known_settings(run_log):
        return say("divergence.advice.lower_lr")
    if warmup is not None and iteration < 5 * max(warmup, 20):
        return say(
            "divergence.advice.lower_lr_longer_warmup",
            peak_lr=peak_lr,
            new_peak_lr=peak_lr / 5,
            warmup_iters=int(warmup),
            new_warmup_iters=int(max(5 * warmup, 100)),
        )
    return say("divergence.advice.lower_known_lr", peak_lr=peak_lr, new_peak_lr=peak_lr / 5)


def _clip_advice(run_log: RunLog) -> Message | None:
    return None if clips_gradients(run_log) else say("divergence.advice.clip")


def divergence(analysis: Analysis) -> Finding | None:
    """The training loss rose and stayed up. Thresholds: those of Analysis.loss_rise."""
    rise, run_log, broken = analysis.loss_rise, analysis.log, find_nonfinite_loss(analysis.log)
    if rise is None or analysis.loss_jump or (broken and not broken.has_recovered):
        return None
    # Another loss may have a term that grows on purpose.
    is_of_text = is_language_loss(run_log, rise.first_loss)
    values = {
        "first_loss": rise.first_loss,
        "lowest_loss": rise.lowest_loss,
        "end_loss": rise.end_loss,
    }
    if run_log.has_iteration_numbers:
        lowest = {"lowest_iteration": rise.lowest_iteration, **values}
        evidence = [
            say("divergence.evidence.lowest_at_start", **lowest)
            if rise.first_loss == rise.lowest_loss
            else say("divergence.evidence.lowest_at_iteration", **lowest)
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
    if rise.block_lines > 1:
        evidence.append(say("divergence.evidence.medians", lines=rise.block_lines))
    evidence += _constant_end(analysis)
    return make_finding(
        "divergence",
        "problem" if is_of_text else "warning",
        title=say("divergence.title"),
        evidence=evidence,
        explanation=say("divergence.explanation"),
        advice=[
            _lower_lr_advice(run_log, rise.lowest_iteration),
            _clip_advice(run_log),
            say("divergence.advice.stop_at_lowest", loss_rise=rise.end_loss - rise.lowest_loss),
        ]
        if is_of_text
        else say("divergence.advice.not_meant"),
        at=rise.lowest_iteration if run_log.has_iteration_numbers else None,
        lines=analysis.lines_at([rise.lowest_iteration, rise.end_iteration]),
        claims={"training loss at the end": "diverged", "learning at the end": "diverged"},
    )


def _constant_end(analysis: Analysis) -> list[Message]:
    """That the last losses are all the same, and of how many tokens a guess costs so much."""
    losses, base = analysis.trajectory.finite_losses()[1], analysis.log.trainer.loss_base
    loss, different = float(losses[-1]), np.flatnonzero(losses != losses[-1])
    lines = len(losses) - 1 - int(different[-1]) if len(different) else len(losses)
    if lines < MIN_CONSTANT_END or round(loss, 2) == loss:  # so few digits hide a change
        return []
    evidence = [say("divergence.evidence.constant_end", lines=lines, loss=loss)]
    if base and MIN_FIRST_LOSS < loss < math.log(MAX_VOCAB_SIZE, base):
        evidence.append(say("plateau.evidence.constant_choices", choices=round(base**loss)))
    return evidence


def loss_jump(analysis: Analysis) -> Finding | None:
    """The training loss rose from one line to the next and stayed there, by less than an explosion."""
    jump = analysis.loss_jump
    if jump is None or not analysis.log.has_iteration_numbers:
        return None
    return make_finding(
        "divergence",
        "warning",
        title=say("divergence.title.jumped", jump_iteration=jump.iteration),
        evidence=say("divergence.evidence.jumped", loss_before=jump.loss_before, loss_after=jump.loss_after),
        explanation=say("divergence.explanation.jumped"),
        advice=say("divergence.advice.jumped", jump_iteration=jump.iteration),
        at=jump.iteration,
        lines=analysis.lines_at([jump.iteration]),
        claims={"learning at the end": "diverged"},
    )


@dataclass(frozen=True)
class LossSpike:
    iteration: int  # of its peak
    start_iteration: int
    peak_loss: float
    usual_loss: float
    recovered_iteration: int
    losses: int  # logged ones, until it had recovered
    # The highest validation loss meanwhile, where that rose, too; that of its neighbours, and its iteration.
    evaluated: tuple[float, float, int] | None = None

    @property
    def hit_weights(self) -> bool:
        return self.losses > MAX_ODD_BATCH_LOSSES or self.evaluated is not None


def find_loss_spikes(analysis: Analysis) -> list[LossSpike]:
    """Spikes that the loss recovered from, in order."""
    at, losses = analysis.trajectory.finite_losses()
    if len(losses) < 2 * MEDIAN_WINDOW_STEPS:
        return []
    usual = trailing_median(losses, MEDIAN_WINDOW_STEPS)
    for row in range(MIN_LOSSES_BEFORE, MEDIAN_WINDOW_STEPS + 1):
        usual[row] = np.median(losses[:row])
    excess = losses - usual
    # The deviation per part of the run: noise shrinks as the loss does.
    deviation = np.full(len(losses), np.nan)
    parts = max(1, min(20, (len(losses) - MEDIAN_WINDOW_STEPS) // 100))
    for part in np.array_split(np.arange(MIN_LOSSES_BEFORE, len(losses)), parts):
        deviation[part] = max(mad(excess[part]), 1e-9)
    is_above = excess > np.maximum(MIN_SPIKE_RISE_SHARE * np.abs(usual), MIN_SPIKE_RISE)
    is_high = (excess > MIN_SPIKE_MADS * deviation) & is_above
    held = leading_median(losses, HOLD_LOSSES)
    held = np.append(held, np.full(len(losses) - len(held), held[-1]))
    # A jump where a later process began belongs to the resume.
    starts = {one.first_iteration for one in analysis.log.segments if one.first_iteration is not None}
    process_starts = np.array(sorted(start for start in starts if start > at[0]), dtype=np.int64)
    spikes: list[LossSpike] = []
    is_outside = np.ones(len(losses), dtype=bool)
    next_row = 0  # the first row that belongs to no spike yet
    for row in np.flatnonzero(is_high).tolist():
        if row < next_row:
            continue
        limit = usual[row] + MAX_RECOVERY_MADS * deviation[row]
        recovered = np.flatnonzero(np.maximum(losses, held)[row : row + MAX_SPIKE_STEPS] <= limit)
        if not len(recovered):
            next_row = row + MAX_SPIKE_STEPS
            is_outside[row:next_row] = False
            continue
        back = row + int(recovered[0])
        next_row = back + 1
        is_outside[row:next_row] = False
        starts_before = np.searchsorted(process_starts, at[max(0, row - 3)])
        if starts_before < np.searchsorted(process_starts, at[row], side="right"):
            continue
        if any(one.iteration <= at[back] and at[row] <= one.until for one in analysis.explosions):
            continue
        peak = row + int(np.argmax(losses[row:back]))
        beside = np.append(losses[row - NEIGHBOURS : row], losses[back : back + NEIGHBOURS])
        spikes.append(
            LossSpike(
                iteration=int(at[peak]),
                start_iteration=int(at[row]),
                peak_loss=float(losses[peak]),
                usual_loss=float(np.median(beside)),
                recovered_iteration=int(at[back]),
                losses=back - row,
                evaluated=_evaluated_high(analysis, int(at[row - 1]), int(at[back])),
            )
        )
    is_outside[:MIN_LOSSES_BEFORE] = False
    is_tail = (excess > TAIL_MADS * deviation) & is_above
    with np.errstate(over="ignore"):
        height = excess / deviation
    tail = np.max(height[is_outside], initial=0.0)
    largest = np.max(height[is_high & ~is_outside], initial=0.0)
    if largest < MIN_STANDS_OUT * tail and not any(spike.hit_weights for spike in spikes):
        return []
    if np.count_nonzero(is_tail & is_outside) > MAX_TAIL_SHARE * np.count_nonzero(is_outside):
        return []
    most = min(MAX_SPIKES_SHORT_RUN, MAX_SPIKE_SHARE_SHORT_RUN * len(losses))
    return spikes if len(spikes) <= max(most, MAX_SPIKE_SHARE * len(losses)) else []


def _evaluated_high(analysis: Analysis, after: int, until: int) -> tuple[float, float, int] | None:
    """The highest validation loss of this stretch, where it is clearly above those before and after."""
    at, values = analysis.trajectory.val_curve()
    begin, end = np.searchsorted(at, (after, until), side="right")
    beside = np.append(values[max(0, begin - NEIGHBOURS) : begin], values[end : end + NEIGHBOURS])
    if begin == end or not len(beside):
        return None
    row, usual = int(begin + np.argmax(values[begin:end])), float(np.median(beside))
    least = max(clear_difference(analysis.eval_noise, usual), MIN_SPIKE_RISE_SHARE * abs(usual))
    is_high = values[row] - usual > least and values[row] > beside.max()
    return (float(values[row]), usual, int(at[row])) if is_high else None


def loss_spike(analysis: Analysis) -> Finding | None:
    """The training loss jumped up and came back: at the next lines after an odd batch, slowly where the
    weights were hit. Severity: the share of iterations until it was back."""
    # Between two updates no weight changes, so the high loss of a micro-batch is a hard batch.
    if analysis.log.trainer.steps_are_micro_batches or not analysis.log.has_iteration_numbers:
        return None
    spikes, iterations = find_loss_spikes(analysis), analysis.trajectory.iteration
    slow = [spike for spike in spikes if spike.hit_weights]
    if not spikes:
        return None
    largest = max(slow or spikes, key=lambda spike: spike.peak_loss - spike.usual_loss)
    values = {
        "iteration": largest.iteration,
        "peak_loss": largest.peak_loss,
        "usual_loss": largest.usual_loss,
        "recovered_iteration": largest.recovered_iteration,
    }
    evidence = [say("loss-spike.evidence.largest", **values)]
    if not slow:
        is_single = all(spike.losses <= MAX_SINGLE_LOSSES for spike in spikes)
        interval = analysis.log.log_interval() or 1
        explanation = say("loss-spike.explanation.odd_batches")
        if not is_single:
            explanation = say("loss-spike.explanation.clusters")
        elif interval > MAX_CLOSE_INTERVAL:
            explanation = say("loss-spike.explanation.between_lines", interval=interval)
        return make_finding(
            "loss-spike",
            "info",
            title=say("loss-spike.title.short", count=len(spikes)),
            evidence=evidence,
            explanation=explanation,
            at=largest.iteration,
            lines=analysis.lines_at([largest.iteration]),
        )
    lost = sum(spike.recovered_iteration - spike.start_iteration for spike in slow)
    share = lost / max(1, int(iterations[-1]) - int(iterations[0]))
    if largest.evaluated is not None:
        names = ("val_loss", "usual_val_loss", "eval_iteration")
        evaluated = dict(zip(names, largest.evaluated, strict=True))
        evidence.append(
            say("loss-spike.evidence.evaluated", metric=val_metric_name(analysis.log), **evaluated)
        )
    if len(slow) < len(spikes):
        evidence.append(say("loss-spike.evidence.odd_batches", odd_batches=len(spikes) - len(slow)))
    severity: Severity = (
        "warning" if share > WARNING_SPIKE_SHARE else "advice" if share > ADVICE_SPIKE_SHARE else "info"
    )
    advice = [say("loss-spike.advice"), _clip_advice(analysis.log)] if share > ADVICE_SPIKE_SHARE else None
    explanation = say("loss-spike.explanation.slow_recovery")
    if largest.evaluated is not None:
        explanation = say("loss-spike.explanation.evaluated")
    elif recurs := _loss_recurs(analysis):
        severity, advice = "info", [say("loss-spike.advice.recurring")]
        explanation = say("loss-spike.explanation.recurring", period=recurs)
    return make_finding(
        "loss-spike",
        severity,
        title=say("loss-spike.title.evaluated", count=len(slow))
        if largest.evaluated is not None
        else say("loss-spike.title.slow_recovery", count=len(slow)),
        evidence=[*evidence, say("loss-spike.evidence.lost", lost_iterations=lost, lost_share=share)],
        explanation=explanation,
        advice=advice,
        at=largest.iteration,
        lines=analysis.lines_at([largest.iteration]),
    )
