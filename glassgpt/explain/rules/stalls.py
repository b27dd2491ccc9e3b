"""Time that no line explains: stalls, and pauses at equal distances."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glassgpt.format import format_ms
from glassgpt.i18n import Message, say
from glassgpt.record.finding import Finding, Severity, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.regimes import local_steady_ms
from glassgpt.runs.run_log import Bools, Floats, Ints
from glassgpt.runs.trajectory import shows_run_start

MIN_LOST_S, MIN_LOST_SHARE = 1.0, 0.01  # time lost in stalls, and over run time: less is no finding
MIN_ADVICE_SHARE = 0.05  # time lost in stalls over run time
MAX_LISTED = 5  # spikes shown
# Spike over an iteration that evaluates: within this range it may be an evaluation without a line.
EVAL_TIME_RATIO_RANGE = (0.7, 1.3)

# Pauses at equal distances: so many of them, and the share of them, and of the multiples of the distance,
# that have to fit each other. A line shows a pause anywhere since the line before it.
MIN_PAUSES, MIN_PAUSES_FITTING, MAX_PAUSE_SHARE = 4, 0.9, 0.25
MAX_PERIOD_ERROR, MAX_PERIODS_TRIED = 0.1, 1000


def silent_spike(analysis: Analysis) -> Finding | None:
    """Time that no line explains: iterations of five times the steady time or more, and evaluations that took
    far longer than others of the same run."""
    facts, split, total_s = analysis.facts, analysis.time_split, analysis.total_s
    if (
        split is None
        or not facts.steady_ms
        or not total_s
        or not np.any(split.is_spike | split.is_stalled_eval)
    ):
        return None
    steps, lost_s = analysis.log.steps, split.stall_s + split.periodic_s
    rows = np.flatnonzero(split.is_spike | split.is_stalled_eval)
    pauses = None if split.is_stalled_eval.any() else find_pause_interval(steps.iteration, split.is_spike)
    period = pauses.period if pauses else split.spike_period
    others_ms = np.empty(0)
    if pauses:  # a few others may be among them
        others_ms = steps.ms[np.setdiff1d(rows, pauses.rows)]
        rows = np.intersect1d(rows, pauses.rows)
        lost_s = float((split.stall_ms + split.pause_ms)[rows].sum()) / 1000
    at, ms = steps.iteration[rows], steps.ms[rows]
    share = min(1.0, lost_s / total_s)
    if lost_s < MIN_LOST_S or share < MIN_LOST_SHARE:
        return None
    missing_eval = [] if split.is_stalled_eval.any() else _missing_eval_explanation(analysis, ms, period)
    largest = np.sort(np.argsort(-ms, kind="stable")[:MAX_LISTED])
    slowest = [f"{at[index]}: {format_ms(float(ms[index]))}" for index in largest]
    extra = {"slowest": slowest, "steady_ms": facts.steady_ms, "lost_s": lost_s, "lost_share": share}
    evidence: list[Message | None] = [
        say("silent-spike.evidence.extra_time_share", **extra)
        if shows_run_start(analysis.log)
        else say("silent-spike.evidence.extra_time_share_of_lines", **extra),
        _other_stalls(others_ms, facts.steady_ms),
    ]
    local_ms = local_steady_ms(analysis.regimes, len(steps))[rows]  # of the regime each one is in
    spikes = {"spikes": len(at), "max_ratio": float(np.max(ms / local_ms))}
    title = say("silent-spike.title", **spikes)
    if period:
        title = say("silent-spike.title.periodic", period=period, **spikes)
    explanation = missing_eval or [say("silent-spike.explanation.stalled")]
    if split.is_stalled_eval.any():
        title = say("silent-spike.title.stood_still", lost_s=lost_s, lost_share=share)
        is_eval = analysis.log.includes_eval() & ~analysis.log.is_first_of_process()
        spike_ms = steps.ms[split.is_spike]
        evidence = [
            say(
                "silent-spike.evidence.stalled_evals",
                stalled_evals=np.count_nonzero(split.is_stalled_eval),
                evaluations=np.count_nonzero(is_eval),
                longest_eval_s=float(np.max(steps.ms[split.is_stalled_eval])) / 1000,
                typical_eval_s=(split.typical_eval_ms or 0.0) / 1000,
            ),
            _other_stalls(spike_ms, facts.steady_ms),
        ]
        explanation = [say("silent-spike.explanation.slept")]
    severity: Severity = "info"
    if share >= MIN_ADVICE_SHARE:
        severity = "warning" if split.is_stalled_eval.any() else "advice"
    return make_finding(
        "silent-spike",
        severity,
        title=title,
        evidence=evidence,
        explanation=explanation,
        advice=say("silent-spike.advice.evaluate_less", lost_s=lost_s, lost_share=share)
        if missing_eval
        else say("silent-spike.advice.check_machine", lost_s=lost_s, lost_share=share),
        at=int(at[np.argmax(ms)]),
        claims={"steady ms": facts.steady_ms},
        lines=analysis.lines_at(at[largest].tolist()),
    )


def _other_stalls(ms: Floats, steady_ms: float) -> Message | None:
    if not len(ms):
        return None
    longest_s = float(np.max(ms)) / 1000
    return say(
        "silent-spike.evidence.stalled_steps", spikes=len(ms), longest_s=longest_s, steady_ms=steady_ms
    )


@dataclass(frozen=True)
class PauseInterval:
    period: int
    rows: Ints  # where a pause is expected


def find_pause_interval(at: Ints, is_slow: Bools) -> PauseInterval | None:
    """The distance of these rows, in iterations: the trainer's own work comes so, or the borders of epochs.

    Rows may be many iterations apart, so that the distances of the slow ones differ: each has a multiple
    of the interval since the row before it, and no other row has one. A few may be slow by accident.
    """
    slow_at = at[is_slow]
    if len(slow_at) < MIN_PAUSES or len(slow_at) > MAX_PAUSE_SHARE * len(at) or np.any(np.diff(at) <= 0):
        return None
    usual = float(np.median(np.diff(slow_at)))
    low, high = max(2.0, usual * (1 - MAX_PERIOD_ERROR)), usual * (1 + MAX_PERIOD_ERROR)
    best: PauseInterval | None = None
    best_fit = 0.0
    for period in np.unique(np.linspace(low, high, MAX_PERIODS_TRIED).round().astype(int)).tolist():
        for offset in {0, 1, int(slow_at[0]) % period}:
            first = int(at[0]) + 1 + (offset - int(at[0]) - 1) % period
            expected = np.unique(np.searchsorted(at, np.arange(first, int(at[-1]) + 1, period)))
            hits = np.count_nonzero(is_slow[expected])
            fit = hits / max(len(expected), len(slow_at))
            # Several may fit: a round one is what somebody has set.
            is_rounder = best is not None and period % 10 == 0 and best.period % 10 and fit >= best_fit
            if fit >= MIN_PAUSES_FITTING and (fit > best_fit or is_rounder):
                best, best_fit = PauseInterval(period, expected), fit
    return best


def _missing_eval_explanation(analysis: Analysis, ms: Floats, period: int | None) -> list[Message]:
    """Why the spikes look like evaluations whose lines are missing; empty where they do not."""
    run_log = analysis.log
    if period:
        return [say("silent-spike.explanation.periodic", period=period)]
    if not run_log.trainer.step_time_includes_eval or analysis.facts.eval_overhead_typical_ms is None:
        return []
    eval_step_ms = analysis.facts.eval_overhead_typical_ms + (analysis.facts.steady_ms or 0.0)
    low, high = EVAL_TIME_RATIO_RANGE
    if not np.all((ms >= low * eval_step_ms) & (ms <= high * eval_step_ms)):
        return []
    return [say("silent-spike.explanation.eval_length", eval_step_ms=eval_step_ms)]
