"""What a resume changed: the data it draws again, the loss it starts at. (schedule.py: the learning rate.)"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.explain.rule import Finding, Rule, RunAnalysis
from glassgpt.explain.rules.lr_schedule import horizon_changed, lr_schedule_mismatch
from glassgpt.format import format_count, format_integer, format_loss, format_loss_difference, format_percent
from glassgpt.i18n import say
from glassgpt.runs.curve import MEDIAN_TO_MEAN_STDERR, detrended_std
from glassgpt.runs.run_log import Floats, RunLog
from glassgpt.runs.trajectory import Trajectory, continues_previous

NEIGHBOUR_STEPS = 10  # logged iterations on each side of a resume
MIN_NEIGHBOURS = 5
MAX_SHOWN_PROCESSES = 6  # processes
MIN_REPLAYED_SHARE, WARNING_REPLAYED_SHARE = 0.01, 0.05  # of the iterations
MIN_STANDARD_ERRORS = 4.0  # standard errors
TREND_SAFETY_FACTOR = 1.25  # times what ten rows show of a fall
MIN_JUMP_SHARE = 0.02  # of the loss
MAX_RESUMES = 1000  # resumes looked at; a log of more is not one of resumes


# --- data drawn again ---


def resume_replays_data(case: RunAnalysis) -> Finding | None:
    history, trainer = case.log, case.log.trainer
    lengths = _process_lengths(history, case.trajectory)
    if not trainer.restarts_data_on_resume or len(lengths) < 2:
        return None
    if history.has_varying_batch_tokens:
        return None  # iterations of unlike batches: how many of them see nothing new cannot be told
    total = sum(lengths)
    repeated = total - max(lengths)
    if repeated <= 0 or repeated < MIN_REPLAYED_SHARE * total:
        return None
    return Finding(
        "resume-replays-data",
        "warning" if repeated > WARNING_REPLAYED_SHARE * total else "info",
        say("The resumed run draws the same batches again"),
        _replay_evidence(case, lengths, repeated),
        trainer.data_restart_cause() if trainer.data_restart_cause else "",
        trainer.data_restart_advice(format_percent(repeated / total)) if trainer.data_restart_advice else "",
    )


def _replay_evidence(case: RunAnalysis, lengths: list[int], repeated: int) -> str:
    evidence = say(
        "{processes} processes did {lengths} iterations, each with the batches of the first ones: {repeated} "
        "iterations ({share}) saw nothing new.",
        processes=len(lengths),
        lengths=_sum_of(lengths),
        repeated=format_integer(repeated),
        share=format_percent(repeated / sum(lengths)),
    )
    tokens = case.facts.tokens_per_iteration
    if not tokens:
        return evidence
    return f"{evidence} " + say("That is {tokens} tokens.", tokens=format_count(repeated * tokens))


def _process_lengths(history: RunLog, course: Trajectory) -> list[int]:
    """Iterations that each process put into the final weights."""
    begins = [history.segments[segment].first_iteration for segment in course.segments]
    last = course.last_iteration
    if last is None or any(begin is None for begin in begins):
        return []
    known = [begin for begin in begins if begin is not None]
    lengths: list[int] = []
    end = last + 1
    for begin in reversed(known):  # what a later process did over does not count
        lengths.append(max(0, end - begin))
        end = min(end, begin)
    lengths.reverse()
    if known and history.segments[course.segments[0]].resumed:  # what came before it is in another log
        lengths.insert(0, max(0, known[0] - history.trainer.first_iteration))
    return [length for length in lengths if length > 0]


def _sum_of(lengths: list[int]) -> str:
    shown = [format_integer(length) for length in lengths[:MAX_SHOWN_PROCESSES]]
    return " + ".join([*shown, "…"] if len(lengths) > MAX_SHOWN_PROCESSES else shown)


# --- the loss after it ---


@dataclass(frozen=True)
class ResumeJump:
    iteration: int
    loss_before: float
    loss_after: float
    min_visible: float  # what would stand out from the noise


def find_resume_jumps(case: RunAnalysis) -> list[ResumeJump]:
    history, course = case.log, case.trajectory
    finite = np.isfinite(course.loss)
    losses, of_row = course.loss[finite], history.steps.segment[course.rows][finite]  # segments ascend
    found = []
    for segment in course.segments[1:][:MAX_RESUMES]:
        begin = history.segments[segment].first_iteration
        start, end = np.searchsorted(of_row, (segment, segment + 1))
        if begin is None or not continues_previous(history, segment) or start == end:
            continue
        earlier = losses[max(0, start - 3 * NEIGHBOUR_STEPS) : start]
        later = losses[start : min(end, start + 3 * NEIGHBOUR_STEPS)]
        jump = _find_jump(begin, earlier, later)
        if jump:
            found.append(jump)
    return found


def _find_jump(begin: int, earlier: Floats, later: Floats) -> ResumeJump | None:
    before, after = earlier[-NEIGHBOUR_STEPS:], later[:NEIGHBOUR_STEPS]
    noises = [noise for noise in (detrended_std(earlier), detrended_std(later)) if noise is not None]
    if len(before) < MIN_NEIGHBOURS or len(after) < MIN_NEIGHBOURS or not noises:
        return None
    then, now = float(np.median(before)), float(np.median(after))
    error = MEDIAN_TO_MEAN_STDERR * max(noises) * math.sqrt(1 / len(before) + 1 / len(after))
    visible = max(MIN_STANDARD_ERRORS * error, MIN_JUMP_SHARE * then)
    # A loss that was falling goes on falling: of a drop, only what goes beyond that is the resume's.
    fall = (
        TREND_SAFETY_FACTOR
        * max(0.0, (_median_fall(before) + _median_fall(after)) / 2)
        * (len(before) + len(after))
        / 2
    )
    if now - then > visible:
        return ResumeJump(begin, then, now, visible)
    return ResumeJump(begin, then, now, visible + fall) if then - now > visible + fall else None


def _median_fall(losses: Floats) -> float:
    """From one row to the next: the median over all pairs, which single spikes do not turn."""
    a, b = np.triu_indices(len(losses), 1)
    return float(np.median((losses[a] - losses[b]) / (b - a)))


def resume_jump(case: RunAnalysis) -> Finding | None:
    jumps = find_resume_jumps(case)
    if not jumps:
        return None
    worst = max(jumps, key=lambda jump: abs(jump.loss_after - jump.loss_before))
    up = worst.loss_after > worst.loss_before
    evidence = say(
        "Training loss {before} just before iteration {at}, {after} just after the resume there; {visible} "
        "would have been noise.",
        before=format_loss(worst.loss_before),
        at=format_integer(worst.iteration),
        after=format_loss(worst.loss_after),
        visible=format_loss_difference(worst.min_visible),
    )
    if up:
        return Finding(
            "resume-jump",
            "warning",
            say(
                "The loss jumped up by {jump} at a resume",
                jump=format_loss_difference(worst.loss_after - worst.loss_before),
            ),
            evidence,
            say(
                "The process did not go on where the other stopped: the optimizer's state was not loaded, "
                "the learning rate or the batch size changed, or the data did."
            ),
            say(
                "Load the optimizer with the weights and keep the schedule: the run would be {jump} ahead at "
                "that point.",
                jump=format_loss_difference(worst.loss_after - worst.loss_before),
            ),
        )
    return Finding(
        "resume-jump",
        "warning",
        say(
            "The loss dropped by {jump} at a resume",
            jump=format_loss_difference(worst.loss_before - worst.loss_after),
        ),
        evidence,
        say(
            "A resume teaches nothing. A lower loss at once means other data: most often batches that the "
            "model has already seen, or another split or loss scale."
        ),
        say("Trust only the validation loss across this resume, and compare the data of both processes."),
    )


RULES: tuple[Rule, ...] = (resume_jump, resume_replays_data, horizon_changed, lr_schedule_mismatch)
