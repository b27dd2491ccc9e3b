"""What a resume changed: state that was lost, a loss that jumps, iterations or batches done again.

What it did to the learning rate is in lr_schedule.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.format import format_integer
from glassgpt.i18n import say
from glassgpt.record.finding import Finding, Severity, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.curve_statistics import MEDIAN_TO_MEAN_STDERR, detrended_std
from glassgpt.runs.run_log import Floats, RunLog
from glassgpt.runs.trajectory import continues_previous

# A jump: the median of the losses after a resume, compared with that of the losses before.
NEIGHBOUR_STEPS = 10  # logged iterations on each side of a resume
MIN_NEIGHBOUR_STEPS = 5
NOISE_STEPS = 3 * NEIGHBOUR_STEPS  # on each side, for the noise
MIN_JUMP_STANDARD_ERRORS = 4.0  # of the difference
MIN_JUMP_SHARE = 0.02  # of the loss before
TREND_SAFETY_FACTOR = 1.25  # times the fall that the neighbours' slope predicts
MAX_RESUMES = 1000  # resumes looked at; a log with more is not one of resumes

# Losses of one iteration in both processes: equal but for kernels that add in another order, as after an
# exact resume. Other batches, or another state, differ by a hundred times as much.
EXACT_SHARE, EXACT_DIGITS = 3e-4, 1e-4

MIN_REPLAYED_SHARE = 0.01  # iterations that saw only batches of earlier ones, of all
MAX_SHOWN_PROCESSES = 6
MAX_BATCH_SHARE = 0.1  # of a loss: one batch is so far from the mean
ADVICE_REDONE_SHARE, WARNING_REDONE_SHARE = 0.01, 0.1  # iterations that were done again, of all


def resume_lost_state(analysis: Analysis) -> Finding | None:
    """The first validation after a load is worse than what the checkpoint says of itself: the weights were
    there, and the first updates spoilt them."""
    run_log, before = analysis.log, analysis.log.setup.resumed_val_loss
    evals = [
        (one.iteration, one.val_loss)
        for one in analysis.trajectory.evals
        if one.iteration is not None and one.val_loss is not None
    ]
    if not before or not evals or run_log.val_metric != "loss" or len(run_log.segments) > 1:
        return None
    start, (first_at, first) = int(run_log.steps.iteration[0]), evals[0]
    if first <= (1 + MIN_JUMP_SHARE) * before:
        return None
    back = next((at for at, loss in evals if loss <= before), None)
    losses, norms = (
        column[: NEIGHBOUR_STEPS + 1][np.isfinite(column[: NEIGHBOUR_STEPS + 1])]
        for column in (run_log.steps.loss, run_log.steps.grad_norm)
    )
    has_weights = len(losses) > 0 and losses[0] <= (1 + MAX_BATCH_SHARE) * before
    cost = None if back is None else analysis.seconds_and_share_after(start, back)
    evidence = [
        say("resume-lost-state.evidence.validation", before=before, after=first, at=first_at),
        say("resume-lost-state.evidence.loss", first_loss=float(losses[0]), max_loss=float(losses[1:].max()))
        if len(losses) > 1
        else None,
        say("resume-lost-state.evidence.norm", first_norm=float(norms[0]), max_norm=float(norms[1:].max()))
        if len(norms) > 1
        else None,
    ]
    if back is None:
        evidence.append(say("resume-lost-state.evidence.never_back"))
    elif cost is None:
        evidence.append(say("resume-lost-state.evidence.back", back=back, iterations=back - start))
    else:
        seconds, share = cost
        evidence.append(
            say(
                "resume-lost-state.evidence.back_after",
                back=back,
                iterations=back - start,
                seconds=seconds,
                share=share,
            )
        )
    return make_finding(
        "resume-lost-state",
        "warning",
        title=say("resume-lost-state.title"),
        evidence=evidence,
        explanation=[
            say("resume-lost-state.explanation.weights") if has_weights else None,
            say("resume-lost-state.explanation"),
        ],
        advice=say("resume-lost-state.advice"),
        at=first_at,
        lines=analysis.lines_at([start]) + analysis.eval_lines_at([first_at]),
    )


@dataclass(frozen=True)
class ResumeJump:
    iteration: int
    loss_before: float
    loss_after: float
    min_visible: float  # smaller differences are noise, or the trend


def find_resume_jumps(analysis: Analysis) -> list[ResumeJump]:
    run_log, trajectory = analysis.log, analysis.trajectory
    finite = np.isfinite(trajectory.loss)
    losses, segments = trajectory.loss[finite], run_log.steps.segment[trajectory.rows][finite]  # ascending
    jumps = []
    for segment in trajectory.segments[1:][:MAX_RESUMES]:
        iteration = run_log.segments[segment].first_iteration
        start, end = np.searchsorted(segments, (segment, segment + 1))
        if iteration is None or not continues_previous(run_log, segment):
            continue
        if _is_exact_resume(run_log, segment):
            continue
        earlier = losses[max(0, start - NOISE_STEPS) : start]
        later = losses[start : min(end, start + NOISE_STEPS)]
        before, after = earlier[-NEIGHBOUR_STEPS:], later[:NEIGHBOUR_STEPS]
        stds = [std for std in (detrended_std(earlier), detrended_std(later)) if std is not None]
        if len(before) < MIN_NEIGHBOUR_STEPS or len(after) < MIN_NEIGHBOUR_STEPS or not stds:
            continue
        loss_before, loss_after = float(np.median(before)), float(np.median(after))
        error = MEDIAN_TO_MEAN_STDERR * max(stds) * math.sqrt(1 / len(before) + 1 / len(after))
        visible = max(MIN_JUMP_STANDARD_ERRORS * error, MIN_JUMP_SHARE * loss_before)
        if loss_before > loss_after:
            # A falling loss keeps falling: of a drop, only what goes beyond that is the resume's.
            slope = max(0.0, (_median_fall(before) + _median_fall(after)) / 2)
            visible += TREND_SAFETY_FACTOR * slope * (len(before) + len(after)) / 2
        if abs(loss_after - loss_before) > visible:
            jumps.append(ResumeJump(iteration, loss_before, loss_after, visible))
    return jumps


def _is_exact_resume(run_log: RunLog, segment: int) -> bool:
    """Whether the process repeats iterations of the one before with the same losses: it had the same weights,
    the same optimizer's state and the same batches."""
    steps = run_log.steps
    start, end = np.searchsorted(steps.segment, (segment, segment + 1))
    if not 0 < start < end:
        return False
    begin = int(np.searchsorted(steps.segment, steps.segment[start - 1]))
    later = slice(start, min(end, start + NEIGHBOUR_STEPS))
    _, before, after = np.intersect1d(
        steps.iteration[begin:start], steps.iteration[later], return_indices=True
    )
    is_same = np.isclose(
        steps.loss[begin:start][before], steps.loss[later][after], rtol=EXACT_SHARE, atol=EXACT_DIGITS
    )
    return int(2 * np.count_nonzero(is_same)) > len(is_same)


def _median_fall(losses: Floats) -> float:
    """The fall per row: the median over all pairs, which single spikes do not change (Theil-Sen)."""
    a, b = np.triu_indices(len(losses), 1)
    return float(np.median((losses[a] - losses[b]) / (b - a)))


def resume_jump(analysis: Analysis) -> Finding | None:
    """The training loss after a resume is not where it was before: higher, or lower than its trend."""
    jumps = find_resume_jumps(analysis)
    if not jumps:
        return None
    worst = max(jumps, key=lambda jump: abs(jump.loss_after - jump.loss_before))
    jump = abs(worst.loss_after - worst.loss_before)
    if worst.loss_after > worst.loss_before:
        title = say("resume-jump.title.up", jump=jump)
        explanation = say("resume-jump.explanation.up")
        advice = say("resume-jump.advice.load_optimizer", jump=jump)
    else:
        title = say("resume-jump.title.down", jump=jump)
        explanation = say("resume-jump.explanation.down")
        advice = say("resume-jump.advice.compare_data")
    return make_finding(
        "resume-jump",
        "warning",
        title=title,
        evidence=say(
            "resume-jump.evidence",
            loss_before=worst.loss_before,
            resume_iteration=worst.iteration,
            loss_after=worst.loss_after,
            min_visible=worst.min_visible,
        ),
        explanation=explanation,
        advice=advice,
        at=worst.iteration,
        lines=analysis.lines_at([worst.iteration]),
    )


def resume_replays_data(analysis: Analysis) -> Finding | None:
    """Each resumed process of this trainer, if it was not changed, starts the data anew, so that it trains on
    the batches of the first iterations."""
    run_log, trainer = analysis.log, analysis.log.trainer
    lengths = _process_lengths(analysis)
    if not trainer.restarts_data_on_resume or len(lengths) < 2:
        return None
    if run_log.has_varying_batch_tokens:
        return None  # batches of unequal size: iterations cannot be matched with each other
    if any(_is_exact_resume(run_log, segment) for segment in analysis.trajectory.segments[1:][:MAX_RESUMES]):
        return None  # it restores the position
    total, tokens = sum(lengths), analysis.facts.tokens_per_iteration
    repeated = total - max(lengths)
    if repeated <= 0 or repeated < MIN_REPLAYED_SHARE * total:
        return None
    shown = [format_integer(length) for length in lengths[:MAX_SHOWN_PROCESSES]]
    if len(lengths) > MAX_SHOWN_PROCESSES:
        shown.append("…")
    share = repeated / total
    return make_finding(
        "resume-replays-data",
        "info",
        title=say("resume-replays-data.title", trainer=trainer.name),
        evidence=[
            say(
                "resume-replays-data.evidence.repeated_iterations",
                processes=len(lengths),
                iterations_by_process=" + ".join(shown),
                repeated_iterations=repeated,
                repeated_share=share,
            ),
            say("resume-replays-data.evidence.repeated_tokens", repeated_tokens=repeated * tokens)
            if tokens
            else None,
        ],
        explanation=trainer.data_restart_cause,
        advice=trainer.data_restart_advice,
    )


def redone_iterations(analysis: Analysis) -> Finding | None:
    """A process resumed from before the end of the previous one, and did its last iterations again."""
    run_log, steps, trainer = analysis.log, analysis.log.steps, analysis.log.trainer
    # Lines that count from 1 say what is done: the first one comes an interval after the resume.
    unlogged = (run_log.log_interval() or 1) if trainer.first_iteration else 1
    if not run_log.has_iteration_numbers or run_log.is_excerpt:
        return None
    resumes: list[tuple[int, int, int]] = []  # first row; the iteration before it; where the previous ended
    for segment in analysis.trajectory.segments[1:][:MAX_RESUMES]:
        row = int(np.searchsorted(steps.segment, segment))  # ascending
        if 0 < row < len(steps) and continues_previous(run_log, segment):
            start, end = int(steps.iteration[row]) - unlogged, int(steps.iteration[row - 1])
            if trainer.lines_count_updates:
                start = run_log.segments[segment].first_iteration or 0
            if 0 <= start < end - 1:  # one may be a line printed again before its update
                resumes.append((row, start, end))
    steady_ms = analysis.steady_ms
    redone = counted = 0  # an iteration that was done three times counts once
    for first_row, start, end in sorted(resumes, key=lambda resume: resume[1]):
        end = min(end, int(steps.iteration[first_row:].max()))
        redone += max(0, end - max(start, counted))
        counted = max(counted, end)
    if redone <= 1:  # a line may be printed again before its update
        return None
    row, start, end = max(resumes, key=lambda resume: resume[2] - resume[1])
    share = redone / max(run_log.iteration_count(), redone)
    severity: Severity = "advice" if share >= ADVICE_REDONE_SHARE else "info"
    return make_finding(
        "redone-iterations",
        "warning" if share > WARNING_REDONE_SHARE else severity,
        title=say("redone-iterations.title", redone_iterations=redone),
        evidence=[
            say(
                "redone-iterations.evidence",
                resumes=len(resumes),
                last_iteration=end,
                resume_iteration=start,
                redone_share=share,
            ),
            say("redone-iterations.evidence.time", redone_s=redone * steady_ms / 1000) if steady_ms else None,
        ],
        explanation=say("redone-iterations.explanation"),
        advice=say("redone-iterations.advice"),
        at=start,
        lines=(int(steps.line[row]),) if run_log.has_line_numbers else (),
    )


def _process_lengths(analysis: Analysis) -> list[int]:
    """Iterations that each process contributed to the final weights."""
    run_log, trajectory = analysis.log, analysis.trajectory
    starts = [run_log.segments[segment].first_iteration for segment in trajectory.segments]
    known_starts = [start for start in starts if start is not None]
    if trajectory.last_iteration is None or len(known_starts) < len(starts):
        return []
    lengths: list[int] = []
    end = trajectory.last_iteration + 1
    for start in reversed(known_starts):  # iterations that a later process did again do not count
        lengths.append(max(0, end - start))
        end = min(end, start)
    lengths.reverse()
    return [length for length in lengths if length > 0]
