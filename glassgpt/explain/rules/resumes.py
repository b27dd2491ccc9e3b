"""What a resume changed: the data it draws again, the loss it starts at. (schedule.py: the learning rate.)"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glassgpt.explain.rule import Case, Finder, Finding
from glassgpt.explain.rules.lr_schedule import horizon_changed, lr_schedule_mismatch
from glassgpt.format import count, difference, loss, percent, whole
from glassgpt.i18n import say
from glassgpt.runs.curve import MEDIAN_ERROR, scatter
from glassgpt.runs.run_log import Floats, History
from glassgpt.runs.trajectory import Course, continues

NEIGHBOURS = 10  # logged iterations on each side of a resume
FEWEST = 5
SHOWN = 6  # processes
WORTH_TELLING, MUCH = 0.01, 0.05  # of the iterations
CERTAIN = 4.0  # standard errors
FALL_ERROR = 1.25  # times what ten rows show of a fall
VISIBLE = 0.02  # of the loss
MOST = 1000  # resumes looked at; a log of more is not one of resumes


# --- data drawn again ---


def resume_replays_data(case: Case) -> Finding | None:
    history, trainer = case.history, case.history.trainer
    lengths = _process_lengths(history, case.course)
    if not trainer.restarts_data_on_resume or len(lengths) < 2:
        return None
    if history.has_unlike_work:
        return None  # iterations of unlike batches: how many of them see nothing new cannot be told
    total = sum(lengths)
    repeated = total - max(lengths)
    if repeated <= 0 or repeated < WORTH_TELLING * total:
        return None
    return Finding(
        "resume-replays-data",
        "warning" if repeated > MUCH * total else "info",
        say("The resumed run draws the same batches again"),
        _replay_evidence(case, lengths, repeated),
        trainer.data_restart_cause() if trainer.data_restart_cause else "",
        trainer.data_restart_advice(percent(repeated / total)) if trainer.data_restart_advice else "",
    )


def _replay_evidence(case: Case, lengths: list[int], repeated: int) -> str:
    evidence = say(
        "{processes} processes did {lengths} iterations, each with the batches of the first ones: {repeated} "
        "iterations ({share}) saw nothing new.",
        processes=len(lengths),
        lengths=_sum_of(lengths),
        repeated=whole(repeated),
        share=percent(repeated / sum(lengths)),
    )
    tokens = case.facts.tokens_per_iteration
    if not tokens:
        return evidence
    return f"{evidence} " + say("That is {tokens} tokens.", tokens=count(repeated * tokens))


def _process_lengths(history: History, course: Course) -> list[int]:
    """Iterations that each process put into the final weights."""
    begins = [history.segments[segment].first_iteration for segment in course.segments]
    last = course.last
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
    shown = [whole(length) for length in lengths[:SHOWN]]
    return " + ".join([*shown, "…"] if len(lengths) > SHOWN else shown)


# --- the loss after it ---


@dataclass(frozen=True)
class Jump:
    iteration: int
    before: float
    after: float
    visible: float  # what would stand out from the noise


def jumps_of(case: Case) -> list[Jump]:
    history, course = case.history, case.course
    finite = np.isfinite(course.loss)
    losses, of_row = course.loss[finite], history.steps.segment[course.rows][finite]  # segments ascend
    found = []
    for segment in course.segments[1:][:MOST]:
        begin = history.segments[segment].first_iteration
        start, end = np.searchsorted(of_row, (segment, segment + 1))
        if begin is None or not continues(history, segment) or start == end:
            continue
        earlier = losses[max(0, start - 3 * NEIGHBOURS) : start]
        later = losses[start : min(end, start + 3 * NEIGHBOURS)]
        jump = _jump(begin, earlier, later)
        if jump:
            found.append(jump)
    return found


def _jump(begin: int, earlier: Floats, later: Floats) -> Jump | None:
    before, after = earlier[-NEIGHBOURS:], later[:NEIGHBOURS]
    noises = [noise for noise in (scatter(earlier), scatter(later)) if noise is not None]
    if len(before) < FEWEST or len(after) < FEWEST or not noises:
        return None
    then, now = float(np.median(before)), float(np.median(after))
    error = MEDIAN_ERROR * max(noises) * math.sqrt(1 / len(before) + 1 / len(after))
    visible = max(CERTAIN * error, VISIBLE * then)
    # A loss that was falling goes on falling: of a drop, only what goes beyond that is the resume's.
    fall = FALL_ERROR * max(0.0, (_fall(before) + _fall(after)) / 2) * (len(before) + len(after)) / 2
    if now - then > visible:
        return Jump(begin, then, now, visible)
    return Jump(begin, then, now, visible + fall) if then - now > visible + fall else None


def _fall(losses: Floats) -> float:
    """From one row to the next: the median over all pairs, which single spikes do not turn."""
    a, b = np.triu_indices(len(losses), 1)
    return float(np.median((losses[a] - losses[b]) / (b - a)))


def resume_jump(case: Case) -> Finding | None:
    jumps = jumps_of(case)
    if not jumps:
        return None
    worst = max(jumps, key=lambda jump: abs(jump.after - jump.before))
    up = worst.after > worst.before
    evidence = say(
        "Training loss {before} just before iteration {at}, {after} just after the resume there; {visible} "
        "would have been noise.",
        before=loss(worst.before),
        at=whole(worst.iteration),
        after=loss(worst.after),
        visible=difference(worst.visible),
    )
    if up:
        return Finding(
            "resume-jump",
            "warning",
            say("The loss jumped up by {jump} at a resume", jump=difference(worst.after - worst.before)),
            evidence,
            say(
                "The process did not go on where the other stopped: the optimizer's state was not loaded, "
                "the learning rate or the batch size changed, or the data did."
            ),
            say(
                "Load the optimizer with the weights and keep the schedule: the run would be {jump} ahead at "
                "that point.",
                jump=difference(worst.after - worst.before),
            ),
        )
    return Finding(
        "resume-jump",
        "warning",
        say("The loss dropped by {jump} at a resume", jump=difference(worst.before - worst.after)),
        evidence,
        say(
            "A resume teaches nothing. A lower loss at once means other data: most often batches that the "
            "model has already seen, or another split or loss scale."
        ),
        say("Trust only the validation loss across this resume, and compare the data of both processes."),
    )


FINDERS: tuple[Finder, ...] = (resume_jump, resume_replays_data, horizon_changed, lr_schedule_mismatch)
