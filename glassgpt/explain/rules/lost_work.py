"""What the end of a run lost: a crash, an interruption, no checkpoint at all, or the best one overwritten."""

from __future__ import annotations

from dataclasses import dataclass

from glassgpt.explain.rules.nonfinite import find_nonfinite_loss
from glassgpt.format import (
    format_duration,
    format_integer,
    format_loss,
    format_loss_difference,
    format_percent,
)
from glassgpt.i18n import say
from glassgpt.record.finding import Finding, Severity
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.trajectory import numeric_setting, planned_end_iteration, seconds_between, val_metric_name

MAX_QUOTED_CHARS = 120  # of the log line with the error
TRACEBACK_HEADER = "Traceback (most recent call last)"  # only the last line of a traceback names the error
FAULT_KINDS = ("oom", "traceback", "abort", "kill")
EXTERNAL_KILL_WORDS = ("sigterm", "sigkill", "cancelled", "killed", "preempt")

MIN_ITERATIONS_WORTH_SAVING = 100  # iterations done: fewer are soon done again
WARNING_LOST_SHARE = 0.1  # iterations since the last checkpoint over iterations done

MAX_UNSAVED_S = 300.0  # seconds of training without a checkpoint
MIN_LOGGED_SHARE = 0.9  # logged over expected lines: with fewer, a line about a save may be missing
# Times a steady iteration: one so slow must have saved or evaluated without a line in this log.
MIN_HIDDEN_WORK_RATIO = 5.0
ROUND_INTERVALS = (1, 2, 5, 10, 20, 50, 100, 200, 250, 500, 1000, 2000, 5000)

# Saved loss above the best, as a share of the best: less than a half percent nobody would notice, and two
# percent is what the last third of a run brings.
MIN_WORSE_SHARE, PROBLEM_WORSE_SHARE = 0.005, 0.02


@dataclass(frozen=True)
class LostWork:
    """The training that the end of a process lost."""

    last_iteration: int | None
    saved_iteration: int | None  # of the last checkpoint with finite weights
    shows_checkpoints: bool  # the log would have a line about a checkpoint
    nonfinite_since: int | None  # iteration from which on the loss was not finite: nothing to keep after it


def find_lost_work(analysis: Analysis) -> LostWork:
    run_log, trajectory = analysis.log, analysis.trajectory
    broken = find_nonfinite_loss(run_log)
    nonfinite_since = broken.iteration if broken and not broken.has_recovered else None
    saves = [save.iteration for save in trajectory.checkpoints if save.iteration is not None]
    saved = max((at for at in saves if nonfinite_since is None or at <= nonfinite_since), default=None)
    shows_checkpoints = (run_log.trainer.logs_checkpoints and not run_log.is_excerpt) or bool(saves)
    last = trajectory.last_iteration if run_log.has_iteration_numbers else None
    return LostWork(last, saved, shows_checkpoints, nonfinite_since)


def lost_work_severity(lost: LostWork) -> Severity:
    """A problem if all is lost; at most info if the last checkpoint is within a tenth of the run."""
    last = lost.last_iteration or 0
    if lost.nonfinite_since is not None:
        return "info"
    if lost.saved_iteration is None:
        return "problem" if lost.shows_checkpoints and last > MIN_ITERATIONS_WORTH_SAVING else "warning"
    return "warning" if last - lost.saved_iteration > WARNING_LOST_SHARE * max(1, last) else "info"


def progress_sentence(analysis: Analysis) -> str:
    last = analysis.trajectory.last_iteration
    planned = planned_end_iteration(analysis.log)
    if last is None:
        return ""
    if not analysis.log.has_iteration_numbers:
        return say("Logged iterations: {count}.", count=format_integer(analysis.facts.iterations_logged))
    if not planned or planned <= last:
        return say("It had reached iteration {last}.", last=format_integer(last))
    return say(
        "It had reached iteration {last} of {planned} ({share}).",
        last=format_integer(last),
        planned=format_integer(planned),
        share=format_percent(last / planned),
    )


def lost_work_sentence(analysis: Analysis, lost: LostWork) -> str:
    """What was trained since the last checkpoint; empty where nothing was."""
    if lost.last_iteration is None and analysis.log.has_iteration_numbers:
        return ""
    if lost.nonfinite_since is not None:
        return say(
            "Nothing worth keeping is lost: the loss was NaN or infinite from iteration {at} on.",
            at=format_integer(lost.nonfinite_since),
        )
    if lost.saved_iteration is None and lost.shows_checkpoints:
        return say("No checkpoint had been saved, so all of it is lost.")
    if lost.saved_iteration is None:
        return say("This log shows no checkpoints, so what is lost is unknown.")
    at = format_integer(lost.saved_iteration)
    if lost.last_iteration is None:
        return say("The last checkpoint is from iteration {at}.", at=at)
    lost_iterations = format_integer(max(0, lost.last_iteration - lost.saved_iteration))
    seconds = seconds_between(
        analysis.trajectory, lost.saved_iteration, lost.last_iteration, analysis.facts.steady_ms
    )
    if not seconds:
        return say(
            "The last checkpoint is from iteration {at}: {lost} iterations are lost.",
            at=at,
            lost=lost_iterations,
        )
    return say(
        "The last checkpoint is from iteration {at}: {lost} iterations are lost, {time}.",
        time=format_duration(seconds),
        at=at,
        lost=lost_iterations,
    )


# --- crashes ---


def _error_text(text: str) -> str:
    """The part of the line that names the error; empty if it only opens a traceback."""
    rest = text.partition(TRACEBACK_HEADER)[2].lstrip(":\n ") if TRACEBACK_HEADER in text else text
    return rest if any(letter.isalpha() for letter in rest) else ""


def crashed(analysis: Analysis) -> Finding | None:
    """An exception or a signal such as a segmentation fault ended the run."""
    run_log = analysis.log
    faults = [event for event in run_log.events_after_last_step() if event.kind in ("traceback", "abort")]
    # torchrun reports that a process failed; the process's own message says why.
    own_faults = [event for event in faults if "ChildFailedError" not in event.text]
    event = next(reversed(own_faults or faults), None)
    if run_log.live or analysis.facts.ended != "crashed" or event is None:
        return None
    lost = find_lost_work(analysis)
    quoted = _error_text(event.text)[-MAX_QUOTED_CHARS:]
    if quoted and run_log.ended is not None:  # from a journal record: there is no line number
        error = f'"{quoted}".'
    elif quoted:
        error = say('Line {line}: "{text}".', line=event.line, text=quoted)
    else:
        error = say("A traceback starts at line {line}.", line=event.line)
    evidence = [progress_sentence(analysis), error, lost_work_sentence(analysis, lost)]
    command, advice = run_log.trainer.resume_command, ""
    if lost.saved_iteration is not None and command:
        advice = say(
            "Fix that, then resume from iteration {at} with {how}",
            at=format_integer(lost.saved_iteration),
            how=command,
        )
    return Finding(
        "crashed",
        lost_work_severity(lost),
        say("The process crashed (segmentation fault)")
        if event.kind == "abort" and "egmentation" in event.text
        else say("The run crashed"),
        " ".join(sentence for sentence in evidence if sentence),
        say("The fault is below Python: a driver, a kernel or the machine's memory.")
        if event.kind == "abort"
        else say("An uncaught exception ended the process; its last line names it."),
        advice,
    )


def failed_start(analysis: Analysis) -> Finding | None:
    """A later command in the same log failed before its first iteration; the run before is not affected."""
    run_log = analysis.log
    faults = [event for event in run_log.events_of_failed_start() if event.kind in FAULT_KINDS]
    named = [event for event in faults if _error_text(event.text) and "ChildFailedError" not in event.text]
    out_of_memory = [event for event in named if event.kind == "oom"]
    event = next(reversed(out_of_memory or named or faults), None)
    if run_log.live or event is None or run_log.failed_start_line is None:
        return None
    evidence = say("It began at line {line}.", line=run_log.failed_start_line)
    if quoted := _error_text(event.text):
        evidence += " " + say('Line {line}: "{text}".', line=event.line, text=quoted[:MAX_QUOTED_CHARS])
    return Finding(
        "failed-start",
        "warning",
        say("A later command in this log failed before its first iteration"),
        evidence,
        say("It is another process than the one explained here, and did not affect it."),
        "",
    )


def interrupted(analysis: Analysis) -> Finding | None:
    """Ctrl+C, a time limit or a kill from outside ended the run; no iteration came after it."""
    run_log, ended = analysis.log, analysis.facts.ended
    interruptions = [
        event for event in run_log.events_after_last_step() if event.kind in ("interrupt", "kill")
    ]
    event = interruptions[-1] if interruptions else None
    if run_log.live or ended == "finished" or (event is None and ended != "interrupted"):
        return None
    text = event.text.lower() if event else ""
    if "time limit" in text:
        title = say("The run was stopped by its time limit")
    elif event and (event.kind == "kill" or any(word in text for word in EXTERNAL_KILL_WORDS)):
        title = say("The run was killed from outside")
    else:
        title = say("The run was interrupted by hand")
    lost = find_lost_work(analysis)
    evidence = [
        progress_sentence(analysis),
        say('Line {line}: "{text}".', line=event.line, text=event.text[-MAX_QUOTED_CHARS:]) if event else "",
        lost_work_sentence(analysis, lost),
    ]
    command = run_log.trainer.resume_command
    if lost.saved_iteration is not None and command:
        at = format_integer(lost.saved_iteration)
        advice = say("Resume from iteration {at} with {how}", at=at, how=command)
    elif lost.nonfinite_since is not None:
        advice = say("Do not resume from a checkpoint of this run: its weights are NaN or infinite, too.")
    elif run_log.trainer.cannot_resume_advice:
        advice = run_log.trainer.cannot_resume_advice()
    elif lost.shows_checkpoints and lost.saved_iteration is None:
        advice = say(
            "There is nothing to resume from. Save earlier and more often: a checkpoint costs seconds."
        )
    else:
        advice = say("If there is a checkpoint, resume with {how}", how=command) if command else ""
    return Finding(
        "interrupted",
        lost_work_severity(lost),
        title,
        " ".join(sentence for sentence in evidence if sentence),
        say("Training since the last checkpoint is lost."),
        advice,
    )


# --- checkpoints ---


def never_checkpointed(analysis: Analysis) -> Finding | None:
    """More than five minutes of training without a checkpoint, by a trainer that saves after evaluations."""
    run_log, facts, trajectory = analysis.log, analysis.facts, analysis.trajectory
    last, iterations = trajectory.last_iteration, trajectory.iteration
    if not run_log.trainer.saves_only_after_eval or trajectory.checkpoints or not last:
        return None
    if not run_log.segments[0].has_startup or len(iterations) < 2:
        return None
    # From the first logged iteration on: the start-up is not lost work.
    at_risk_s = seconds_between(trajectory, int(iterations[0]), last, facts.steady_ms)
    if at_risk_s is None or at_risk_s < MAX_UNSAVED_S:
        return None
    # always_save_checkpoint=False saves only what is better; a run that got worse has nothing to save.
    val_losses = [done.val_loss for done in trajectory.evals if done.val_loss is not None]
    if (
        run_log.setup.settings.get("always_save_checkpoint") is False
        and len(val_losses) > 1
        and min(val_losses[1:]) >= val_losses[0]
    ):
        return None
    if not facts.log_interval or not facts.steady_ms:
        return None
    expected_lines = (int(iterations[-1]) - int(iterations[0])) / facts.log_interval + 1
    plain = ~run_log.is_first_of_process() & ~run_log.includes_eval()
    is_slow = plain & (run_log.steps.ms > MIN_HIDDEN_WORK_RATIO * facts.steady_ms)
    if len(iterations) < MIN_LOGGED_SHARE * expected_lines or is_slow.any():
        return None
    evidence = say(
        "{count} iterations, {time} of training, and no checkpoint.",
        count=format_integer(last),
        time=format_duration(at_risk_s),
    )
    interval = numeric_setting(run_log, "eval_interval")
    if interval and interval > last:
        evidence += " " + say(
            "{trainer} saves only when it evaluates, and eval_interval={interval}.",
            trainer=run_log.trainer.name,
            interval=int(interval),
        )
    max_interval = last * MAX_UNSAVED_S / at_risk_s
    better = max((one for one in ROUND_INTERVALS if one <= max_interval), default=1)
    so_far = facts.ended in (None, "cut")
    return Finding(
        "never-checkpointed",
        "warning" if so_far else "problem",
        say("No checkpoint has been saved so far") if so_far else say("No checkpoint was ever saved"),
        evidence,
        say(
            "{trainer} saves only after an evaluation, and not after the first; if the run ends before "
            "that, all of it is lost.",
            trainer=run_log.trainer.name,
        ),
        say(
            "eval_interval={interval} puts at most {time} at risk.",
            interval=better,
            time=format_duration(at_risk_s * better / last),
        ),
    )


def best_overwritten(analysis: Analysis) -> Finding | None:
    """The last save replaced better weights: its validation loss is above the best by more than noise."""
    run_log, trajectory, noise = analysis.log, analysis.trajectory, analysis.eval_noise
    saved = max(
        (save.iteration for save in trajectory.checkpoints if save.iteration is not None), default=None
    )
    if not run_log.trainer.overwrites_checkpoint or saved is None or len(trajectory.evals) < 2:
        return None
    best = min(trajectory.evals, key=lambda done: (done.val_loss or 0.0, done.iteration or 0))
    at_save = next((done for done in trajectory.evals if done.iteration == saved), None)
    if at_save is None or not best.iteration or saved <= best.iteration:
        return None
    best_loss, saved_loss = best.val_loss or 0.0, at_save.val_loss or 0.0
    worse = saved_loss - best_loss
    if worse <= max(MIN_WORSE_SHARE * best_loss, 2 * noise.std if noise else 0.0):
        return None
    return Finding(
        "best-overwritten",
        "problem" if worse > PROBLEM_WORSE_SHARE * best_loss else "warning",
        say("The best checkpoint was overwritten by a worse one"),
        say(
            "Best {metric} {best} at iteration {at}; the last save, at iteration {saved}, has {kept}: "
            "{worse} worse.",
            metric=val_metric_name(run_log),
            best=format_loss(best_loss),
            at=format_integer(best.iteration),
            saved=format_integer(saved),
            kept=format_loss(saved_loss),
            worse=format_loss_difference(worse),
        ),
        say(
            "{trainer} keeps one checkpoint, and always_save_checkpoint=True overwrites it after every "
            "evaluation.",
            trainer=run_log.trainer.name,
        ),
        say(
            "always_save_checkpoint=False would have kept the weights of iteration {at}, {worse} better.",
            at=format_integer(best.iteration),
            worse=format_loss_difference(worse),
        ),
    )
