"""What is lost: a run that was interrupted, one that never saved, one that saved over its best."""

from __future__ import annotations

from dataclasses import dataclass

from glassgpt.explain.rule import Finding, RunAnalysis, Severity
from glassgpt.explain.rules.nonfinite import find_nonfinite_loss
from glassgpt.format import (
    format_duration,
    format_integer,
    format_loss,
    format_loss_difference,
    format_percent,
)
from glassgpt.i18n import say
from glassgpt.runs.run_log import LogEvent, RunLog
from glassgpt.runs.trajectory import (
    Trajectory,
    numeric_setting,
    planned_end_iteration,
    seconds_between,
    val_metric_name,
)

MIN_HIDDEN_WORK_RATIO = 5.0  # times a steady iteration
MAX_UNSAVED_S = 300.0  # of training without a checkpoint
MIN_ITERATIONS_WORTH_SAVING = 100  # iterations; what fewer have learnt is soon done again
WARNING_LOST_SHARE = 0.1  # of the iterations done
# Of the loss: less than a half percent nobody would have noticed, two percent is what the last third of a run
# brings.
MIN_WORSE_SHARE, PROBLEM_WORSE_SHARE = 0.005, 0.02
EXTERNAL_KILL_WORDS = ("sigterm", "sigkill", "cancelled", "killed", "preempt")
MAX_QUOTED_CHARS = 120  # characters of the line that tells


# --- what an end costs ---


@dataclass(frozen=True)
class LostWork:
    """What went with the process."""

    last_iteration: int | None  # iteration that is known of
    saved_iteration: int | None  # the last checkpoint, of weights that are numbers
    shows_checkpoints: bool  # the log would show a checkpoint
    nonfinite_since: int | None  # since when the loss was not a number: nothing after it is worth keeping


def find_lost_work(case: RunAnalysis) -> LostWork:
    history, course = case.log, case.trajectory
    stop = find_nonfinite_loss(history)
    broken = stop.iteration if stop and not stop.has_recovered else None
    saves = [save.iteration for save in course.saves if save.iteration is not None]
    saved = max((at for at in saves if broken is None or at <= broken), default=None)
    shows = (history.trainer.shows_saves and not history.is_excerpt) or bool(saves)
    return LostWork(course.last_iteration if history.numbered else None, saved, shows, broken)


def lost_work_severity(case: RunAnalysis, lost: LostWork) -> Severity:
    """All lost is a problem; a tenth of the run or less is worth a word."""
    last = lost.last_iteration or 0
    if lost.nonfinite_since is not None:
        return "info"
    if lost.saved_iteration is None:
        return "problem" if lost.shows_checkpoints and last > MIN_ITERATIONS_WORTH_SAVING else "warning"
    return "warning" if last - lost.saved_iteration > WARNING_LOST_SHARE * max(1, last) else "info"


def progress_sentence(case: RunAnalysis) -> str:
    last = case.trajectory.last_iteration
    planned = planned_end_iteration(case.log)
    if last is None:
        return ""
    if not case.log.numbered:
        return say("Logged iterations: {count}.", count=format_integer(case.facts.iterations_logged))
    if not planned or planned <= last:
        return say("It had come to iteration {last}.", last=format_integer(last))
    return say(
        "It had come to iteration {last} of {planned} ({share}).",
        last=format_integer(last),
        planned=format_integer(planned),
        share=format_percent(last / planned),
    )


def lost_work_sentence(case: RunAnalysis, lost: LostWork) -> str:
    """What happened since the last checkpoint; nothing, where nothing was trained."""
    if lost.last_iteration is None and case.log.numbered:
        return ""
    if lost.nonfinite_since is not None:
        return say(
            "Nothing worth keeping is lost: the loss was not a number from iteration {at} on.",
            at=format_integer(lost.nonfinite_since),
        )
    if lost.saved_iteration is None and lost.shows_checkpoints:
        return say("No checkpoint had been saved, so all of it is lost.")
    if lost.saved_iteration is None:
        return say("This log shows no checkpoints, so what is lost cannot be told.")
    if lost.last_iteration is None:
        return say("The last checkpoint is of iteration {at}.", at=format_integer(lost.saved_iteration))
    seconds = seconds_between(
        case.trajectory, lost.saved_iteration, lost.last_iteration, case.facts.steady_ms
    )
    values = {
        "at": format_integer(lost.saved_iteration),
        "lost": format_integer(max(0, lost.last_iteration - lost.saved_iteration)),
    }
    if not seconds:
        return say("The last checkpoint is of iteration {at}: {lost} iterations are lost.", **values)
    return say(
        "The last checkpoint is of iteration {at}: {lost} iterations are lost, {time}.",
        time=format_duration(seconds),
        **values,
    )


# --- interrupted ---


def interrupted(case: RunAnalysis) -> Finding | None:
    history, facts = case.log, case.facts
    event = _what_ended_it(history)
    if history.live or facts.ended == "finished" or (event is None and facts.ended != "interrupted"):
        return None
    lost = find_lost_work(case)
    line = (
        say('Line {line}: "{text}".', line=event.line, text=event.text[-MAX_QUOTED_CHARS:]) if event else ""
    )
    said = [progress_sentence(case), line, lost_work_sentence(case, lost)]
    return Finding(
        "interrupted",
        lost_work_severity(case, lost),
        _interrupted_title(event),
        " ".join(sentence for sentence in said if sentence),
        say("What was learnt since the last checkpoint is gone with the process."),
        _interrupted_advice(history, lost),
    )


def _what_ended_it(history: RunLog) -> LogEvent | None:
    """The last interruption, if no iteration came after it."""
    events = [event for event in history.events_after_last_step() if event.kind in ("interrupt", "kill")]
    return next(reversed(events), None)


def _interrupted_title(event: LogEvent | None) -> str:
    text = event.text.lower() if event else ""
    if "time limit" in text:
        return say("The run was stopped by its time limit")
    if event and (event.kind == "kill" or any(word in text for word in EXTERNAL_KILL_WORDS)):
        return say("The run was killed from outside")
    return say("The run was interrupted by hand")


def _interrupted_advice(history: RunLog, lost: LostWork) -> str:
    how = history.trainer.resume_command
    if lost.saved_iteration is not None and how:
        return say("Go on from iteration {at} with {how}", at=format_integer(lost.saved_iteration), how=how)
    if lost.nonfinite_since is not None:
        return say("Do not go on from a checkpoint of this run: its weights are not numbers either.")
    if history.trainer.cannot_resume_advice:
        return history.trainer.cannot_resume_advice()
    if lost.shows_checkpoints and lost.saved_iteration is None:
        return say(
            "There is nothing to resume from. Save earlier and more often: a checkpoint costs seconds."
        )
    return say("If there is a checkpoint, go on with {how}", how=how) if how else ""


# --- never checkpointed ---


def never_checkpointed(case: RunAnalysis) -> Finding | None:
    history, facts, course = case.log, case.facts, case.trajectory
    last = course.last_iteration
    if (
        not history.trainer.saves_only_after_eval
        or course.saves
        or not last
        or not history.segments[0].has_startup
    ):
        return None
    begin = int(course.iteration[0]) if len(course.iteration) else 0
    at_risk = seconds_between(course, begin, last, facts.steady_ms)  # the start-up is not what one loses
    if at_risk is None or at_risk < MAX_UNSAVED_S or _worse_than_at_first(history, course):
        return None
    if not _is_complete(case, course):
        return None
    interval = numeric_setting(history, "eval_interval")
    evidence = [
        say(
            "{count} iterations, {time} of training, and no checkpoint.",
            count=format_integer(last),
            time=format_duration(at_risk),
        )
    ]
    if interval and interval > last:
        evidence.append(
            say(
                "{trainer} saves only when it evaluates, and eval_interval={interval}.",
                trainer=history.trainer.name,
                interval=int(interval),
            )
        )
    better = _interval_for(at_risk, last)
    so_far = facts.ended in (None, "cut")
    return Finding(
        "never-checkpointed",
        "warning" if so_far else "problem",
        say("Nothing has been saved so far") if so_far else say("Nothing was ever saved"),
        " ".join(evidence),
        say(
            "{trainer} saves after an evaluation and never at iteration 0; whatever ends the run before that "
            "takes all of it.",
            trainer=history.trainer.name,
        ),
        say(
            "eval_interval={interval} puts at most {time} at risk.",
            interval=better,
            time=format_duration(at_risk * better / last),
        ),
    )


def _is_complete(case: RunAnalysis, course: Trajectory) -> bool:
    """Whether a line about a save would be here: no lines left out, and no iteration so slow that it must
    have done something of which the log says nothing."""
    interval, steady = case.facts.log_interval, case.facts.steady_ms
    if not interval or not steady or len(course.iteration) < 2:
        return False
    expected = (int(course.iteration[-1]) - int(course.iteration[0])) / interval + 1
    plain = ~case.log.is_first_of_process() & ~case.log.includes_eval()
    slow = plain & (case.log.steps.ms > MIN_HIDDEN_WORK_RATIO * steady)
    return len(course.iteration) >= 0.9 * expected and not slow.any()


def _worse_than_at_first(history: RunLog, course: Trajectory) -> bool:
    """always_save_checkpoint=False saves only what is better; a run that got worse has nothing to save."""
    careful = history.setup.settings.get("always_save_checkpoint") is False
    values = [done.val_loss for done in course.evals if done.val_loss is not None]
    return careful and len(values) > 1 and min(values[1:]) >= values[0]


def _interval_for(seconds: float, iterations: int) -> int:
    """A round number of iterations that take about five minutes."""
    wanted = iterations * MAX_UNSAVED_S / seconds
    rounds = [
        value for value in (1, 2, 5, 10, 20, 50, 100, 200, 250, 500, 1000, 2000, 5000) if value <= wanted
    ]
    return rounds[-1] if rounds else 1


# --- best overwritten ---


def best_overwritten(case: RunAnalysis) -> Finding | None:
    history, course = case.log, case.trajectory
    saved = max((save.iteration for save in course.saves if save.iteration is not None), default=None)
    if not history.trainer.overwrites_checkpoint or saved is None or len(course.evals) < 2:
        return None
    best = min(course.evals, key=lambda done: (done.val_loss or 0.0, done.iteration or 0))
    kept = next((done for done in course.evals if done.iteration == saved), None)
    if kept is None or best.iteration is None or saved <= best.iteration or not best.iteration:
        return None
    worse = (kept.val_loss or 0.0) - (best.val_loss or 0.0)
    noise = case.eval_noise
    best_loss = best.val_loss or 0.0
    if worse <= max(MIN_WORSE_SHARE * best_loss, 2 * noise.std if noise else 0.0):
        return None
    return Finding(
        "best-overwritten",
        "problem" if worse > PROBLEM_WORSE_SHARE * best_loss else "warning",
        say("The best checkpoint was overwritten by a worse one"),
        say(
            "Best {metric} {best} at iteration {at}; the last save, at iteration {saved}, has {kept}: "
            "{worse} worse.",
            metric=val_metric_name(history),
            best=format_loss(best_loss),
            at=format_integer(best.iteration),
            saved=format_integer(saved),
            kept=format_loss(kept.val_loss or 0.0),
            worse=format_loss_difference(worse),
        ),
        say(
            "{trainer} keeps one ckpt.pt, and always_save_checkpoint=True writes it after every evaluation.",
            trainer=history.trainer.name,
        ),
        say(
            "always_save_checkpoint=False would have kept the weights of iteration {at}, {worse} better.",
            at=format_integer(best.iteration),
            worse=format_loss_difference(worse),
        ),
    )
