"""What the end of a run lost: a crash, an interruption, no checkpoint at all, or the best one overwritten."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glassgpt.explain.rules.nonfinite import find_nonfinite_loss
from glassgpt.i18n import Message, say
from glassgpt.record.finding import Finding, Severity, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.exit_status import (
    LAUNCHER_ERROR,
    TRACEBACK_HEADER,
    WRITE_ERROR,
    events_of_last_launch,
    training_end_line,
)
from glassgpt.runs.past_best import clear_rise
from glassgpt.runs.run_log import LogEvent, RunLog
from glassgpt.runs.trajectory import (
    has_trained,
    last_iteration_done,
    numeric_setting,
    planned_end_iteration,
    planned_iteration_count,
    seconds_between,
    shows_run_start,
    val_metric_name,
)

MAX_QUOTED_CHARS = 100  # of the log line with the error
FAULT_KINDS = ("oom", "traceback", "abort", "kill")
STOP_BY_HAND = "KeyboardInterrupt"
NOTEBOOK_INTERRUPT = "KeyboardInterrupt:"
EXTERNAL_KILL_WORDS = re.compile(
    r"sigterm|sigkill|cancelled|killed|preempt|hangup|sighup|15 death signal|signal: 15\b"
)

MIN_ITERATIONS_WORTH_SAVING = 100  # iterations done: fewer are soon done again
WARNING_LOST_SHARE = 0.1  # iterations since the last checkpoint over iterations done

# Last iteration over the planned one: above the first it nearly finished, below the second it hardly began.
MAX_EARLY_SHARE, WARNING_EARLY_SHARE = 0.9, 0.1

MAX_UNSAVED_S = 300.0  # seconds of training without a checkpoint
MIN_LOGGED_SHARE = 0.9  # logged over expected lines: with fewer, a line about a save may be missing
# Times a steady iteration: one so slow must have saved or evaluated without a line in this log.
MIN_HIDDEN_WORK_RATIO = 5.0
MAX_EVAL_SHARE = 0.1  # of the time between evaluations: a dearer one is told
ROUND_INTERVALS = (1, 2, 5, 10, 20, 50, 100, 200, 250, 500, 1000, 2000, 5000)

PROBLEM_WORSE_SHARE = 0.02  # saved loss above the best, of the best: what the last third of a run brings


@dataclass(frozen=True)
class LostWork:
    """The training that the end of a process lost."""

    last_iteration: int | None
    saved_iteration: int | None  # of the last checkpoint with finite weights
    shows_checkpoints: bool  # the log would have a line about a checkpoint
    # From this iteration until the end the loss is not finite, exploded, or rose: nothing to keep after it.
    ruined_since: int | None
    is_nonfinite: bool
    broken_save: int | None = None  # the iteration of a checkpoint that the process crashed in writing


def find_lost_work(analysis: Analysis) -> LostWork:
    run_log, trajectory, explosions = analysis.log, analysis.trajectory, analysis.explosions
    broken = find_nonfinite_loss(run_log)
    is_nonfinite = broken is not None and not broken.has_recovered
    ruined_since: int | None = None
    if broken and is_nonfinite:
        ruined_since = broken.iteration
    elif explosions and explosions[-1].recovered_iteration is None:
        ruined_since = explosions[-1].iteration
    elif analysis.loss_rise:
        ruined_since = analysis.loss_rise.lowest_iteration
    saves = [save.iteration for save in trajectory.checkpoints if save.iteration is not None]
    broken_save = saves[-1] if saves and _crashed_in_save(analysis) else None
    if broken_save is not None:
        saves = [at for at in saves if at < broken_save]
        if run_log.trainer.overwrites_checkpoint:
            saves = []  # it was written over the one before
    saved = max((at for at in saves if ruined_since is None or at <= ruined_since), default=None)
    if saved is not None and saved < max(saves) and run_log.trainer.overwrites_checkpoint:
        saved = None  # a later one replaced it
    has_saves = bool(saves) or broken_save is not None
    # Before the first line of a log that begins in the middle, there may have been one; and where the lines
    # about evaluations are missing, those about checkpoints may be, too.
    is_whole = shows_run_start(run_log) and (
        bool(run_log.evals) or not run_log.trainer.evaluates_before_first_step
    )
    shows_checkpoints = (run_log.trainer.logs_checkpoints and is_whole) or has_saves
    last = last_iteration_done(run_log)
    return LostWork(last, saved, shows_checkpoints, ruined_since, is_nonfinite, broken_save)


def _crashed_in_save(analysis: Analysis) -> bool:
    """Whether the error at the end is one of writing a file, after the line about the last checkpoint."""
    saves, errors = analysis.trajectory.checkpoints, analysis.log.events_after_last_step()
    return bool(saves) and any(
        event.kind == "traceback" and event.line >= saves[-1].line and WRITE_ERROR.search(event.text)
        for event in errors
    )


def lost_work_severity(analysis: Analysis, lost: LostWork) -> Severity:
    """A problem if all is lost; info if the last checkpoint is within a tenth of the run, unless that had
    hardly begun."""
    last, planned = lost.last_iteration or 0, planned_end_iteration(analysis.log)
    if planned and last < WARNING_EARLY_SHARE * planned and lost.saved_iteration is not None:
        return "warning"
    if lost.ruined_since is not None:
        return "info"
    if lost.saved_iteration is None:
        return "problem" if lost.shows_checkpoints and last > MIN_ITERATIONS_WORTH_SAVING else "warning"
    return "warning" if last - lost.saved_iteration > WARNING_LOST_SHARE * max(1, last) else "info"


def progress_message(analysis: Analysis) -> Message | None:
    last, planned = last_iteration_done(analysis.log), planned_end_iteration(analysis.log)
    if not has_trained(analysis.log):
        return None
    if last is None:
        return say("crashed.evidence.logged_iterations", logged_iterations=analysis.facts.iterations_logged)
    if not planned or planned <= last:
        return say("crashed.evidence.reached", last_iteration=last)
    return say(
        "crashed.evidence.reached_of_planned",
        last_iteration=last,
        planned_iterations=planned_iteration_count(analysis.log, planned),
        done_share=last / planned,
    )


def lost_work_message(analysis: Analysis, lost: LostWork) -> Message | None:
    """What was trained since the last checkpoint; None where nothing was."""
    last, saved = lost.last_iteration, lost.saved_iteration
    if not has_trained(analysis.log):
        return say("oom.evidence.never_trained")
    if last is None and analysis.log.has_iteration_numbers:
        return None
    if lost.ruined_since is not None and lost.is_nonfinite:
        return say("crashed.evidence.nothing_worth_keeping", nonfinite_since=lost.ruined_since)
    if lost.ruined_since is not None:
        return say("crashed.evidence.ruined_weights", ruined_since=lost.ruined_since)
    if analysis.log.is_excerpt and saved is None:
        return None
    if saved is None and lost.broken_save is not None:
        return say("crashed.evidence.broken_save", broken_iteration=lost.broken_save)
    if saved is None and lost.shows_checkpoints:
        return say("crashed.evidence.all_lost")
    if saved is None:
        return say("crashed.evidence.no_checkpoint_lines")
    if last is None:
        return say("crashed.evidence.last_checkpoint", saved_iteration=saved)
    iterations = max(0, last - saved)
    lost_s = seconds_between(analysis.trajectory, saved, last, analysis.facts.steady_ms)
    if not lost_s:
        return say("crashed.evidence.lost_iterations", saved_iteration=saved, lost_iterations=iterations)
    return say("crashed.evidence.lost_time", saved_iteration=saved, lost_iterations=iterations, lost_s=lost_s)


# --- crashes ---


def error_text(text: str) -> str:
    """The part of the line that names the error; empty if it only opens a traceback."""
    rest = text.partition(TRACEBACK_HEADER)[2].lstrip(":\n ") if TRACEBACK_HEADER in text else text
    return rest if any(letter.isalpha() for letter in rest) else ""


def _quotable(text: str) -> str:
    """An exception's name and the beginning of its message; of another line its end."""
    error = error_text(text)
    return error[:MAX_QUOTED_CHARS] if TRACEBACK_HEADER in text else error[-MAX_QUOTED_CHARS:]


def _quoted_error(run_log: RunLog, event: LogEvent, quoted: str) -> Message | None:
    """With its line, where the file has lines: not a journal, nor a notebook."""
    has_lines = run_log.ended is None and run_log.has_line_numbers
    if not quoted:
        return say("crashed.evidence.traceback_line", line=event.line) if run_log.has_line_numbers else None
    if not has_lines:
        return say("crashed.evidence.quoted_error", quoted=quoted)
    return say("crashed.evidence.quoted_line", line=event.quoted_line, quoted=quoted)


def _decisive_fault(faults: Sequence[LogEvent]) -> LogEvent | None:
    """The last that names an error and is not torchrun's, which only reports that a process failed; and of
    the ranks that say the same, the first."""
    named = [event for event in faults if error_text(event.text)]
    last = next(
        reversed([event for event in named if LAUNCHER_ERROR not in event.text] or named or faults), None
    )
    same = (event for event in named if last and error_text(event.text) == error_text(last.text))
    return next(same, last)


def crashed(analysis: Analysis) -> Finding | None:
    """An exception or a signal such as a segmentation fault ended the run."""
    run_log = analysis.log
    events = run_log.events_after_last_step()
    if not len(run_log.steps):
        events = events_of_last_launch(events)
    event = _decisive_fault([event for event in events if event.kind in ("traceback", "abort")])
    if run_log.live or analysis.facts.ended != "crashed" or event is None:
        return None
    lost = find_lost_work(analysis)
    command = run_log.resume_command
    return make_finding(
        "crashed",
        lost_work_severity(analysis, lost),
        title=say("crashed.title.segmentation_fault")
        if event.kind == "abort" and "egmentation" in event.text
        else say("crashed.title.run"),
        evidence=[
            progress_message(analysis),
            _quoted_error(run_log, event, _quotable(event.text)),
            lost_work_message(analysis, lost),
        ],
        explanation=say("crashed.explanation.below_python")
        if event.kind == "abort"
        else say("crashed.explanation.uncaught_exception"),
        advice=say("crashed.advice", saved_iteration=lost.saved_iteration, command=command)
        if lost.saved_iteration is not None and command
        else None,
        at=lost.last_iteration,
        lines=(event.quoted_line,) if run_log.has_line_numbers else (),
        claims={"how the run ended": "crashed", **_resume_claim(lost)},
    )


def _resume_claim(lost: LostWork) -> dict[str, object]:
    return {} if lost.saved_iteration is None else {"checkpoint to resume from": lost.saved_iteration}


def crashed_after_end(analysis: Analysis) -> Finding | None:
    """Training had finished, and the process then crashed: in a last save, an upload, or another script."""
    run_log = analysis.log
    after, end = run_log.events_after_last_step(), training_end_line(run_log)
    faults = [event for event in after if event.kind in FAULT_KINDS and end and event.line > end]
    event = _decisive_fault([one for one in faults if STOP_BY_HAND not in one.text])
    if run_log.live or analysis.facts.ended != "finished" or event is None or not error_text(event.text):
        return None
    return make_finding(
        "crashed-after-end",
        "warning",
        title=say("crashed-after-end.title"),
        evidence=[_quoted_error(run_log, event, _quotable(event.text))],
        explanation=say("crashed-after-end.explanation"),
        lines=(event.quoted_line,) if run_log.has_line_numbers else (),
        claims={"how the run ended": "finished"},
    )


def ended_early(analysis: Analysis) -> Finding | None:
    """The log stops far from the planned end, and nothing says why."""
    run_log = analysis.log
    last, planned = last_iteration_done(run_log), planned_end_iteration(run_log)
    if run_log.live or run_log.is_excerpt or analysis.facts.ended != "cut" or run_log.is_saved_state:
        return None
    if last is None or not planned or last >= MAX_EARLY_SHARE * planned:
        return None
    lost = find_lost_work(analysis)
    return make_finding(
        "ended-early",
        "info",  # it may have gone on, or the plan may be a default that nobody meant to reach
        title=say("ended-early.title", done_share=last / planned),
        evidence=[
            say(
                "ended-early.evidence",
                last_iteration=last,
                planned_iterations=planned_iteration_count(run_log, planned),
            ),
            say("crashed.evidence.last_checkpoint", saved_iteration=lost.saved_iteration)
            if lost.saved_iteration is not None
            else None,
        ],
        explanation=say("ended-early.explanation"),
        at=last,
        lines=analysis.lines_at([last]),
        claims={"how the run ended": "cut", **_resume_claim(lost)},
    )


def failed_start(analysis: Analysis) -> Finding | None:
    """A later command in the same log failed before its first iteration; the run before is not affected."""
    run_log = analysis.log
    faults = [event for event in run_log.events_of_failed_start() if event.kind in FAULT_KINDS]
    faults = [event for event in faults if STOP_BY_HAND not in event.text]
    named = [event for event in faults if error_text(event.text) and LAUNCHER_ERROR not in event.text]
    out_of_memory = [event for event in named if event.kind == "oom"]
    event = next(reversed(out_of_memory or named or faults), None)
    if run_log.live or event is None or run_log.failed_start_line is None:
        return None
    evidence = [
        say("failed-start.evidence.began_at", start_line=run_log.failed_start_line)
        if run_log.has_line_numbers
        else None,
        _quoted_error(run_log, event, error_text(event.text)[:MAX_QUOTED_CHARS]),
    ]
    return make_finding(
        "failed-start",
        "warning" if run_log.has_line_numbers else "info",
        title=say("failed-start.title") if run_log.has_line_numbers else say("failed-start.title.cell"),
        evidence=evidence,
        explanation=say("failed-start.explanation") if run_log.has_line_numbers else None,
    )


def interrupted(analysis: Analysis) -> Finding | None:
    """Ctrl+C, a time limit or a kill from outside ended the run; no iteration came after it."""
    run_log, ended = analysis.log, analysis.facts.ended
    interruptions = [
        event for event in run_log.events_after_last_step() if event.kind in ("interrupt", "kill")
    ]
    event = interruptions[-1] if interruptions else None
    if event and STOP_BY_HAND in event.text and run_log.has_line_numbers:  # the other ranks say it, too
        event = next(one for one in interruptions if STOP_BY_HAND in one.text)
    if run_log.live or ended == "finished" or (event is None and ended != "interrupted"):
        return None
    if ended == "oom" or crashed(analysis):  # that is the cause: the system, or torchrun, then kills the rest
        return None
    text, is_by_hand = event.text.lower() if event else "", False
    if "time limit" in text or "timeout" in text or "timed out" in text:
        title = say("interrupted.title.time_limit")
    elif event and (event.kind == "kill" or EXTERNAL_KILL_WORDS.search(text)):
        title = say("interrupted.title.killed")
    else:
        title, is_by_hand = say("interrupted.title.by_hand"), True
    lost, command = find_lost_work(analysis), run_log.resume_command
    is_trial = is_by_hand and _has_hardly_begun(analysis, lost)
    # As IPython prints it. A program that a cell started prints no colon.
    stays_in_memory = event is not None and event.text.endswith(NOTEBOOK_INTERRUPT)
    stays_in_memory = stays_in_memory and not run_log.has_line_numbers
    advice: Message | None = None
    if stays_in_memory:
        advice = say("interrupted.advice.notebook")
    elif lost.saved_iteration is not None and command:
        advice = say("interrupted.advice.resume", saved_iteration=lost.saved_iteration, command=command)
    elif lost.ruined_since is not None:
        advice = (
            say("interrupted.advice.nonfinite_weights")
            if lost.is_nonfinite
            else say("interrupted.advice.ruined_weights")
        )
    elif not has_trained(run_log) or run_log.is_excerpt:
        advice = None
    elif run_log.trainer.cannot_resume_advice:
        advice = run_log.trainer.cannot_resume_advice
    elif lost.shows_checkpoints and lost.saved_iteration is None:
        advice = None if is_trial else say("interrupted.advice.save_more_often")
    elif command:
        advice = say("interrupted.advice.resume_if_saved", command=command)
    return make_finding(
        "interrupted",
        "info" if stays_in_memory or is_trial else lost_work_severity(analysis, lost),
        title=title,
        evidence=[
            progress_message(analysis),
            _quoted_error(run_log, event, event.text[-MAX_QUOTED_CHARS:])
            if event and not stays_in_memory
            else None,
            None if stays_in_memory else lost_work_message(analysis, lost),
        ],
        explanation=[
            say("interrupted.explanation.notebook") if stays_in_memory else None,
            say("interrupted.explanation.sigkill") if event and event.kind == "kill" else None,
            say("interrupted.explanation")
            if lost.saved_iteration is not None and not stays_in_memory and lost.ruined_since is None
            else None,
        ],
        advice=advice,
        at=lost.last_iteration,
        lines=(event.line,) if event and run_log.has_line_numbers else (),
        claims={"how the run ended": ended, **_resume_claim(lost)},
    )


def _has_hardly_begun(analysis: Analysis, lost: LostWork) -> bool:
    """A trial of a few minutes, of which nothing was saved: nobody misses it."""
    last, trajectory = lost.last_iteration, analysis.trajectory
    if lost.saved_iteration is not None or lost.ruined_since is not None or last is None:
        return False
    first = int(trajectory.iteration[0]) if len(trajectory.iteration) else 0
    trained_s = seconds_between(trajectory, first, last, analysis.facts.steady_ms)
    return trained_s <= MAX_UNSAVED_S if trained_s else last <= MIN_ITERATIONS_WORTH_SAVING


# --- checkpoints ---


def never_checkpointed(analysis: Analysis) -> Finding | None:
    """More than five minutes of training without an evaluation, by a trainer that saves only after one. Where
    one was logged and no save was, the lines about saves are missing, or it had nothing better to save."""
    run_log, facts, trajectory = analysis.log, analysis.facts, analysis.trajectory
    last, iterations = trajectory.last_iteration, trajectory.iteration
    if not run_log.trainer.saves_only_after_eval or trajectory.checkpoints or not last or run_log.is_excerpt:
        return None
    if not run_log.segments[0].has_startup or len(iterations) < 2:
        return None
    if any(evaluation.iteration for evaluation in run_log.evals) or not facts.log_interval:
        return None
    if not run_log.evals:
        return None  # not even the one before training: its lines are left out, and perhaps those of saves
    # From the first logged iteration on: the start-up is not lost work.
    unsaved_s = seconds_between(trajectory, int(iterations[0]), last, facts.steady_ms)
    if not facts.steady_ms or unsaved_s is None or unsaved_s < MAX_UNSAVED_S:
        return None
    expected_lines = (int(iterations[-1]) - int(iterations[0])) / facts.log_interval + 1
    plain = ~run_log.is_first_of_process() & ~run_log.includes_eval()
    is_slow = plain & (run_log.steps.ms > MIN_HIDDEN_WORK_RATIO * facts.steady_ms)
    if len(iterations) < MIN_LOGGED_SHARE * expected_lines or is_slow.any():
        return None
    trainer, interval = run_log.trainer.name, numeric_setting(run_log, "eval_interval")
    max_interval = last * MAX_UNSAVED_S / unsaved_s
    better = max((one for one in ROUND_INTERVALS if one <= max_interval), default=1)
    at_risk_s = unsaved_s * better / last
    # The time of the first iteration, where it includes one: with the start-up, it is the most that it takes.
    eval_s = float(run_log.steps.ms[0] - facts.steady_ms) / 1000 if run_log.includes_eval()[0] else 0.0
    so_far = facts.ended in (None, "cut")
    return make_finding(
        "never-checkpointed",
        "warning" if so_far else "problem",
        title=say("never-checkpointed.title.so_far") if so_far else say("never-checkpointed.title.never"),
        evidence=[
            say("never-checkpointed.evidence.unsaved_training", iterations=last, unsaved_s=unsaved_s),
            say(
                "never-checkpointed.evidence.interval_too_long",
                trainer=trainer,
                eval_interval=int(interval),
            )
            if interval and interval > last
            else None,
        ],
        explanation=say("never-checkpointed.explanation", trainer=trainer),
        advice=[
            say("never-checkpointed.advice", new_eval_interval=better, at_risk_s=at_risk_s),
            say("never-checkpointed.advice.eval_cost", eval_s=eval_s)
            if eval_s > MAX_EVAL_SHARE * at_risk_s
            else None,
        ],
    )


def best_overwritten(analysis: Analysis) -> Finding | None:
    """The last save replaced better weights: its validation loss is above the best by more than noise."""
    run_log, trajectory = analysis.log, analysis.trajectory
    saved = max(
        (save.iteration for save in trajectory.checkpoints if save.iteration is not None), default=None
    )
    if not run_log.trainer.overwrites_checkpoint or saved is None or len(trajectory.evals) < 2:
        return None
    at, values = trajectory.val_curve()
    best_row, rows = int(np.argmin(values)), np.flatnonzero(at == saved)
    best_iteration = int(at[best_row])
    if (
        not len(rows)
        or best_iteration <= 0
        or (best_row == 0 and not shows_run_start(run_log))  # a tail: there may be a better one before
        or not clear_rise(values, best_row, int(rows[0]), analysis.eval_noise)
    ):
        return None
    best_loss, saved_loss = float(values[best_row]), float(values[rows[0]])
    rise = saved_loss - best_loss
    return make_finding(
        "best-overwritten",
        "problem" if rise > PROBLEM_WORSE_SHARE * best_loss else "warning",
        title=say("best-overwritten.title"),
        evidence=say(
            "best-overwritten.evidence",
            metric=val_metric_name(run_log),
            best_loss=best_loss,
            best_iteration=best_iteration,
            saved_iteration=saved,
            saved_loss=saved_loss,
            loss_rise=rise,
        ),
        explanation=say("best-overwritten.explanation", trainer=run_log.trainer.name),
        advice=say("best-overwritten.advice", best_iteration=best_iteration, loss_rise=rise),
        at=best_iteration,
        lines=analysis.eval_lines_at([best_iteration, saved]),
        claims={"best iteration": best_iteration},
    )
