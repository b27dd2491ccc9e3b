"""The learning-rate schedule: does it fit the run's length, and does it survive a resume?"""

from __future__ import annotations

import numpy as np

from glassgpt.format import format_lr
from glassgpt.i18n import Message, say
from glassgpt.record.finding import Finding, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.lr_course import infer_schedule
from glassgpt.runs.run_log import Floats, Ints
from glassgpt.runs.trajectory import (
    continues_previous,
    planned_end_iteration,
    shows_run_start,
    takes_known_settings,
)
from glassgpt.schedule import LearningRateSchedule, default_min_lr, default_warmup_iters

# lr_decay_iters over max_iters: a cosine's last tenth hardly changes the rate, so an end within it is fine.
MAX_DECAY_TO_END, MIN_DECAY_TO_END = 1.1, 0.8
MAX_FINAL_TO_MIN_LR = 1.5  # learning rate at the end over min_lr
# Last over highest logged learning rate: below, it has decayed; above, it is constant.
DECAYED_SHARE_OF_PEAK, CONSTANT_SHARE_OF_PEAK = 0.3, 0.97
# The fall in the first half of a decay over that in the second: 1 of a line, less of a cosine that high.
MAX_FIRST_TO_SECOND_FALL = 1.2
MIN_LOGGED_LRS = 20
MIN_LOGGED_SHARE = 0.9  # of the run, where its learning rate is logged last
MIN_RISING_LRS = 8  # logged, each above the one before
MIN_RANGE_TEST_RATIO = 100.0  # of the last rate to the first: warm-ups are linear
MAX_MIDDLE_TO_LAST_LR = 0.8  # the logged rate in the middle of the run over the last: it rose all the way
# At a resume, compared with the last rate before it (or its peak).
MIN_LRS_BEFORE, MIN_LRS_AFTER = 5, 3
MIN_RAISED_RATIO = 1.1  # first rate after over last before
MAX_FALLING_SHARE_OF_PEAK = 0.98  # last rate before over the highest: it was past its peak
MAX_RESTARTED_RATIO = 0.5  # first rate after over last before: a warm-up again
MIN_WARMUP_RATIO = 2.0  # highest over first rate after
# A rate that ran out, over its peak: below the first it is low, below the second it is 0, as an exponential
# decay never is. The smallest rate that is printed shows whether "0.0000" is 0, or a rounded rate.
LOW_SHARE_OF_PEAK, ZERO_SHARE_OF_PEAK, MAX_SMALLEST_SHARE = 0.01, 0.001, 0.05
MAX_ZERO_AT, MIN_ITERATIONS_AT_ZERO = 0.9, 0.05  # of the planned iterations
# It climbed again: to this share of its peak; and as slowly as that of its fall, which a restart does not.
MIN_PEAK_SHARE = 0.9  # of the highest: past the first such rate, it is past its warm-up
MIN_CLIMB_SHARE, MIN_CLIMB_TO_FALL, MIN_FALL_LINES = 0.1, 0.25, 4
MAX_RATIO_ERROR = 0.02  # of a whole number


def lr_schedule_mismatch(analysis: Analysis) -> Finding | None:
    """The schedule ends after the run (the rate stays high), long before it, or is all warm-up."""
    schedule = infer_schedule(analysis.log, planned_end_iteration(analysis.log))
    if schedule is None:
        return _rising_lr(analysis) or _exhausted_lr(analysis) or _mismatch_in_logged_lr(analysis)
    cosine, end = schedule.cosine, schedule.end_iteration
    decay_iters, min_lr = int(cosine.decay_iters), cosine.min_lr
    evidence = [
        say(
            "lr-schedule-mismatch.evidence.settings",
            settings=f"max_iters={end}, lr_decay_iters={decay_iters}, "
            f"warmup_iters={int(cosine.warmup_iters)}, learning_rate={format_lr(cosine.peak_lr)}, "
            f"min_lr={format_lr(min_lr)}",
        )
    ]
    if schedule.assumed_settings:
        evidence.append(say("eval-spikes.evidence.assumed_defaults", names=schedule.assumed_settings))
    if cosine.warmup_iters >= end:
        return _unfinished_warmup(cosine, end, evidence)
    if (
        cosine.decay_iters > MAX_DECAY_TO_END * end
        and (final_lr := cosine.at(end)) > MAX_FINAL_TO_MIN_LR * min_lr
    ):
        share = final_lr / cosine.peak_lr
        evidence.append(
            say("lr-schedule-mismatch.evidence.share_of_peak", final_lr=final_lr, share_of_peak=share)
        )
        advice = say(
            "lr-schedule-mismatch.advice.decay_to_end", end_iteration=end, min_lr=min_lr, final_lr=final_lr
        )
        return _high_final_lr(end, evidence, advice)
    if cosine.decay_iters < MIN_DECAY_TO_END * end and min_lr < cosine.peak_lr:
        iterations = end - cosine.decay_iters
        evidence.append(
            say(
                "lr-schedule-mismatch.evidence.iterations_at_minimum",
                iterations_at_minimum=iterations,
                share_at_minimum=iterations / end,
                min_lr=min_lr,
            )
        )
        return make_finding(
            "lr-schedule-mismatch",
            "advice",
            title=say("lr-schedule-mismatch.title.early_minimum"),
            evidence=evidence,
            explanation=say("lr-schedule-mismatch.explanation.early_minimum"),
            advice=say(
                "lr-schedule-mismatch.advice.decay_or_stop",
                end_iteration=end,
                decay_iterations=decay_iters,
                share_at_minimum=iterations / end,
            ),
            at=decay_iters,
        )
    return None


def _unfinished_warmup(cosine: LearningRateSchedule, end: int, evidence: list[Message]) -> Finding:
    last = min(end, cosine.warmup_iters - 1)  # the last iteration of the warm-up that the run does
    mean_of_warmup = max(cosine.at(end / 2), 1e-12)
    mean_of_cosine = (cosine.peak_lr + cosine.min_lr) / 2
    return make_finding(
        "lr-schedule-mismatch",
        "warning",
        title=say("lr-schedule-mismatch.title.unfinished_warmup"),
        evidence=[
            *evidence,
            say("lr-schedule-mismatch.evidence.warmup_reached", final_lr=cosine.at(last)),
        ],
        explanation=say("lr-schedule-mismatch.explanation.unfinished_warmup"),
        advice=say(
            "lr-schedule-mismatch.advice.shorter_warmup",
            new_warmup_iters=default_warmup_iters(end),
            end_iteration=end,
            mean_lr_ratio=mean_of_cosine / mean_of_warmup,
        ),
        at=end,
    )


def _high_final_lr(end: int, evidence: list[Message], advice: Message) -> Finding:
    return make_finding(
        "lr-schedule-mismatch",
        "advice",
        title=say("lr-schedule-mismatch.title.high_at_end"),
        evidence=evidence,
        explanation=say("lr-schedule-mismatch.explanation.high_at_end"),
        advice=advice,
        at=end,
    )


def _rising_lr(analysis: Analysis) -> Finding | None:
    """The logged learning rate rises from the first line to the last: a warm-up without a decay, or a
    schedule upside down."""
    run_log, trajectory = analysis.log, analysis.trajectory
    rates = run_log.steps.lr[trajectory.rows]
    rows = trajectory.rows[np.isfinite(rates)]
    rates = rates[np.isfinite(rates)]
    if run_log.live or not shows_run_start(run_log) or len(rates) < MIN_RISING_LRS or rates[-1] <= 0:
        return None
    if np.any(np.diff(rates) < 0) or rates[len(rates) // 2] > MAX_MIDDLE_TO_LAST_LR * rates[-1]:
        return None
    if (
        rates[-1] >= MIN_RANGE_TEST_RATIO * rates[0]
        and rates[len(rates) // 2] ** 2 < 4 * rates[0] * rates[-1]
    ):
        return None  # exponentially: a test of which rate is too high
    planned, last = planned_end_iteration(run_log), trajectory.last_iteration
    if last is not None and run_log.steps.iteration[rows[-1]] < MIN_LOGGED_SHARE * last:
        return None  # there are later iterations, without it
    if len(rates) > 1 and rates[-1] == rates[-max(2, len(rates) // 10)]:
        return None  # it has reached its peak, and stays there
    # Else it may be in its warm-up.
    is_whole = planned is not None and last is not None and last >= planned / 2
    is_schedule = is_whole or (planned is None and analysis.facts.ended == "finished")
    lines = run_log.steps.line[rows[[0, -1]]].tolist() if run_log.has_line_numbers else ()
    return make_finding(
        "lr-schedule-mismatch",
        "warning" if is_schedule else "info",
        title=say("lr-schedule-mismatch.title.rising")
        if is_schedule
        else say("lr-schedule-mismatch.title.still_warming_up"),
        evidence=say("lr-schedule-mismatch.evidence.share_rising", first_share=rates[0], last_share=rates[-1])
        if run_log.trainer.lr_is_share_of_peak
        else say("lr-schedule-mismatch.evidence.rising", first_lr=rates[0], last_lr=rates[-1]),
        explanation=say("lr-schedule-mismatch.explanation.rising")
        if is_schedule
        else say("lr-schedule-mismatch.explanation.still_warming_up"),
        advice=say("lr-schedule-mismatch.advice.rising") if is_schedule else None,
        at=last,
        lines=(int(line) for line in lines if line > 0),
    )


def _exhausted_lr(analysis: Analysis) -> Finding | None:
    """The logged learning rate is 0 long before the planned end, or slowly rises again after that: its
    schedule is stepped too often, or was made for a shorter run."""
    run_log, trajectory = analysis.log, analysis.trajectory
    rates, at = run_log.steps.lr[trajectory.rows], trajectory.iteration
    is_logged = np.isfinite(rates)
    rates, at, rows = rates[is_logged], at[is_logged], trajectory.rows[is_logged]
    if not run_log.has_iteration_numbers or len(rates) < MIN_LOGGED_LRS or rates.max() <= 0:
        return None
    shares = rates / rates.max()
    low = np.flatnonzero(shares <= LOW_SHARE_OF_PEAK)
    low = low[low > int(np.argmax(shares >= MIN_PEAK_SHARE))]
    if not len(low) or shares[shares > 0].min() > MAX_SMALLEST_SHARE:
        return None
    later = np.flatnonzero(shares[low[0] :] > LOW_SHARE_OF_PEAK)
    after = int(low[0] + later[0]) if len(later) else len(shares)
    lowest = int(low[0] + np.argmin(shares[low[0] : after]))
    segments = run_log.steps.segment[rows]
    same_process = segments[lowest:] == segments[lowest]
    climbs = _climbs_slowly(at, shares, lowest, lowest + int(np.count_nonzero(same_process)))
    end = planned_end_iteration(run_log) or (int(at[-1]) if analysis.facts.ended == "finished" else None)
    zero_at = int(at[lowest])
    ran_out = (
        end is not None
        and shares[lowest] <= ZERO_SHARE_OF_PEAK
        and zero_at < MAX_ZERO_AT * end
        and after == len(shares)
        and int(at[-1]) - zero_at >= MIN_ITERATIONS_AT_ZERO * end
    )
    if not climbs and not ran_out:
        return None
    evidence = [
        say(
            "lr-schedule-mismatch.evidence.ran_out",
            peak_lr=rates.max(),
            zero_lr=rates[lowest],
            zero_iteration=zero_at,
        )
    ]
    highest = lowest + int(np.argmax(shares[lowest:]))
    if climbs:
        values = {"later_lr": rates[highest], "later_iteration": int(at[highest])}
        evidence.append(say("lr-schedule-mismatch.evidence.climbed", **values))
    ratio = end / zero_at if end else 0.0
    error = max(MAX_RATIO_ERROR, (run_log.log_interval() or 1) / 2 / zero_at)
    is_whole = round(ratio) >= 2 and abs(ratio / round(ratio) - 1) <= error
    if end:
        evidence.append(say("lr-schedule-mismatch.evidence.planned", end_iteration=end, ratio=ratio))
    return make_finding(
        "lr-schedule-mismatch",
        "warning",
        title=say("lr-schedule-mismatch.title.climbed_again", zero_iteration=zero_at)
        if climbs
        else say("lr-schedule-mismatch.title.ran_out", zero_iteration=zero_at),
        evidence=evidence,
        explanation=say("lr-schedule-mismatch.explanation.whole_ratio", ratio=round(ratio))
        if is_whole
        else say("lr-schedule-mismatch.explanation.ran_out"),
        advice=say("lr-schedule-mismatch.advice.step_once"),
        at=zero_at,
        lines=analysis.lines_at([zero_at, int(at[highest])] if climbs else [zero_at]),
    )


def _climbs_slowly(at: Ints, shares: Floats, lowest: int, end: int) -> bool:
    """Whether the rate rises again after its lowest, in about the time in which it fell: a cosine that is
    stepped beyond its end. A restart, or a warm-up, is faster."""
    highest = float(shares[lowest:end].max())
    if highest < MIN_CLIMB_SHARE:
        return False
    fell = int(np.flatnonzero(shares[:lowest] >= highest / 2)[-1])
    rose = lowest + int(np.argmax(shares[lowest:end] >= highest / 2))
    climb, fall = int(at[rose] - at[lowest]), int(at[lowest] - at[fell])
    return lowest - fell >= MIN_FALL_LINES and climb >= MIN_CLIMB_TO_FALL * fall


def _mismatch_in_logged_lr(analysis: Analysis) -> Finding | None:
    """The logged learning rate was still falling, and not low yet, when the planned end was reached."""
    run_log, trajectory = analysis.log, analysis.trajectory
    planned = planned_end_iteration(run_log)
    rates, at = run_log.steps.lr[trajectory.rows], trajectory.iteration
    is_logged = np.isfinite(rates)
    rates, at = rates[is_logged], at[is_logged]
    if not planned or not run_log.has_iteration_numbers or len(rates) < MIN_LOGGED_LRS:
        return None
    if run_log.trainer.lr_is_share_of_peak:
        return None
    if trajectory.last_iteration is None or trajectory.last_iteration < planned - 1:
        return None
    peak, last, late = float(rates.max()), float(rates[-1]), rates[-max(5, len(rates) // 10) :]
    is_falling = not np.any(np.diff(late) > 0) and late[0] != late[-1]
    if peak <= 0 or not is_falling or not DECAYED_SHARE_OF_PEAK * peak < last < CONSTANT_SHARE_OF_PEAK * peak:
        return None
    begin = int(at[np.flatnonzero(rates >= CONSTANT_SHARE_OF_PEAK * peak)[-1]])
    middle = float(np.interp((begin + at[-1]) / 2, at, rates))
    if peak - middle > MAX_FIRST_TO_SECOND_FALL * (middle - last):
        return None  # it flattens, as an inverse square root or an exponential decay: it has no end
    evidence = say(
        "lr-schedule-mismatch.evidence.logged_still_falling",
        final_lr=last,
        end_iteration=planned,
        share_of_peak=last / peak,
        peak_lr=peak,
    )
    advice = say(
        "lr-schedule-mismatch.advice.decay_to_tenth", new_final_lr=default_min_lr(peak), final_lr=last
    )
    return _high_final_lr(planned, [evidence], advice)


def horizon_changed(analysis: Analysis) -> Finding | None:
    """The learning rate is higher after a resume than before it, or starts its warm-up again."""
    run_log, trajectory = analysis.log, analysis.trajectory
    if run_log.trainer.lr_is_share_of_peak:
        return None
    rows = trajectory.rows[np.isfinite(run_log.steps.lr[trajectory.rows])]
    lr, segments = run_log.steps.lr[rows], run_log.steps.segment[rows]  # segments ascend
    peak_so_far = np.maximum.accumulate(lr)
    for segment in trajectory.segments[1:]:
        iteration = run_log.segments[segment].first_iteration
        start, end = np.searchsorted(segments, (segment, segment + 1))
        if iteration is None or not continues_previous(run_log, segment):
            continue
        if start < MIN_LRS_BEFORE or end - start < MIN_LRS_AFTER:
            continue
        last, first, highest = float(lr[start - 1]), float(lr[start]), float(lr[start:end].max())
        if last <= 0:
            continue
        climbs = lr[start] < lr[start + 1] < lr[start + 2]
        if climbs and first <= MAX_RESTARTED_RATIO * last and highest >= MIN_WARMUP_RATIO * max(first, 1e-12):
            return make_finding(
                "horizon-changed",
                "warning",
                title=say("horizon-changed.title.schedule_restarted"),
                evidence=say(
                    "horizon-changed.evidence.schedule_restarted",
                    lr_before=last,
                    resumed_at=iteration,
                    lr_after=first,
                    highest_lr_after=highest,
                ),
                explanation=say("horizon-changed.explanation.schedule_restarted"),
                advice=say("horizon-changed.advice.restore_iteration", lr_before=last),
                at=iteration,
                lines=analysis.lines_at([iteration]),
            )
        was_falling = last < MAX_FALLING_SHARE_OF_PEAK * peak_so_far[start - 1] and last <= lr[start - 3]
        if was_falling and first >= MIN_RAISED_RATIO * last:
            return _raised_lr(analysis, iteration, last, first)
    return None


def _raised_lr(analysis: Analysis, iteration: int, before: float, after: float) -> Finding:
    return make_finding(
        "horizon-changed",
        "warning",
        title=say("horizon-changed.title.lr_raised"),
        evidence=say(
            "horizon-changed.evidence.lr_raised",
            lr_before=before,
            resumed_at=iteration,
            lr_after=after,
            lr_ratio=after / before,
        ),
        explanation=say("horizon-changed.explanation.later_end"),
        advice=say("horizon-changed.advice.set_decay_iters", lr_before=before)
        if takes_known_settings(analysis.log)
        else say("horizon-changed.advice.set_schedule_end", lr_before=before),
        at=iteration,
        lines=analysis.lines_at([iteration]),
    )
