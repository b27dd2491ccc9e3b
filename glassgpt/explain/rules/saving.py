"""What is lost: a run that was interrupted, one that never saved, one that saved over its best."""

from __future__ import annotations

from dataclasses import dataclass

from glassgpt.explain.rule import Case, Finding, Severity
from glassgpt.explain.rules.nonfinite import break_of
from glassgpt.format import difference, duration, loss, percent, whole
from glassgpt.i18n import say
from glassgpt.runs.run_log import Event, History
from glassgpt.runs.trajectory import Course, metric_name, planned_end, seconds_between, setting

HIDES_SOMETHING = 5.0  # times a steady iteration
AT_RISK_S = 300.0  # of training without a checkpoint
WORTH_SAVING = 100  # iterations; what fewer have learnt is soon done again
MUCH = 0.1  # of the iterations done
# Of the loss: less than a half percent nobody would have noticed, two percent is what the last third of a run
# brings.
WORSE, MUCH_WORSE = 0.005, 0.02
FROM_OUTSIDE = ("sigterm", "sigkill", "cancelled", "killed", "preempt")
SHOWN = 120  # characters of the line that tells


# --- what an end costs ---


@dataclass(frozen=True)
class Lost:
    """What went with the process."""

    last: int | None  # iteration that is known of
    saved: int | None  # the last checkpoint, of weights that are numbers
    shows: bool  # the log would show a checkpoint
    broken: int | None  # since when the loss was not a number: nothing after it is worth keeping


def work_lost(case: Case) -> Lost:
    history, course = case.history, case.course
    stop = break_of(history)
    broken = stop.iteration if stop and not stop.recovered else None
    saves = [save.iteration for save in course.saves if save.iteration is not None]
    saved = max((at for at in saves if broken is None or at <= broken), default=None)
    shows = (history.trainer.shows_saves and not history.quoted) or bool(saves)
    return Lost(course.last if history.numbered else None, saved, shows, broken)


def severity_of_loss(case: Case, lost: Lost) -> Severity:
    """All lost is a problem; a tenth of the run or less is worth a word."""
    last = lost.last or 0
    if lost.broken is not None:
        return "info"
    if lost.saved is None:
        return "problem" if lost.shows and last > WORTH_SAVING else "warning"
    return "warning" if last - lost.saved > MUCH * max(1, last) else "info"


def how_far(case: Case) -> str:
    last = case.course.last
    planned = planned_end(case.history)
    if last is None:
        return ""
    if not case.history.numbered:
        return say("Logged iterations: {count}.", count=whole(case.facts.iterations_logged))
    if not planned or planned <= last:
        return say("It had come to iteration {last}.", last=whole(last))
    return say(
        "It had come to iteration {last} of {planned} ({share}).",
        last=whole(last),
        planned=whole(planned),
        share=percent(last / planned),
    )


def loss_of_time(case: Case, lost: Lost) -> str:
    """What happened since the last checkpoint; nothing, where nothing was trained."""
    if lost.last is None and case.history.numbered:
        return ""
    if lost.broken is not None:
        return say(
            "Nothing worth keeping is lost: the loss was not a number from iteration {at} on.",
            at=whole(lost.broken),
        )
    if lost.saved is None and lost.shows:
        return say("No checkpoint had been saved, so all of it is lost.")
    if lost.saved is None:
        return say("This log shows no checkpoints, so what is lost cannot be told.")
    if lost.last is None:
        return say("The last checkpoint is of iteration {at}.", at=whole(lost.saved))
    seconds = seconds_between(case.course, lost.saved, lost.last, case.facts.steady_ms)
    values = {"at": whole(lost.saved), "lost": whole(max(0, lost.last - lost.saved))}
    if not seconds:
        return say("The last checkpoint is of iteration {at}: {lost} iterations are lost.", **values)
    return say(
        "The last checkpoint is of iteration {at}: {lost} iterations are lost, {time}.",
        time=duration(seconds),
        **values,
    )


# --- interrupted ---


def interrupted(case: Case) -> Finding | None:
    history, facts = case.history, case.facts
    event = _what_ended_it(history)
    if history.live or facts.ended == "finished" or (event is None and facts.ended != "interrupted"):
        return None
    lost = work_lost(case)
    line = say('Line {line}: "{text}".', line=event.line, text=event.text[-SHOWN:]) if event else ""
    said = [how_far(case), line, loss_of_time(case, lost)]
    return Finding(
        "interrupted",
        severity_of_loss(case, lost),
        _interrupted_title(event),
        " ".join(sentence for sentence in said if sentence),
        say("What was learnt since the last checkpoint is gone with the process."),
        _interrupted_advice(history, lost),
    )


def _what_ended_it(history: History) -> Event | None:
    """The last interruption, if no iteration came after it."""
    events = [event for event in history.last_events() if event.kind in ("interrupt", "kill")]
    return next(reversed(events), None)


def _interrupted_title(event: Event | None) -> str:
    text = event.text.lower() if event else ""
    if "time limit" in text:
        return say("The run was stopped by its time limit")
    if event and (event.kind == "kill" or any(word in text for word in FROM_OUTSIDE)):
        return say("The run was killed from outside")
    return say("The run was interrupted by hand")


def _interrupted_advice(history: History, lost: Lost) -> str:
    how = history.trainer.resume_command
    if lost.saved is not None and how:
        return say("Go on from iteration {at} with {how}", at=whole(lost.saved), how=how)
    if lost.broken is not None:
        return say("Do not go on from a checkpoint of this run: its weights are not numbers either.")
    if history.trainer.cannot_resume_advice:
        return history.trainer.cannot_resume_advice()
    if lost.shows and lost.saved is None:
        return say(
            "There is nothing to resume from. Save earlier and more often: a checkpoint costs seconds."
        )
    return say("If there is a checkpoint, go on with {how}", how=how) if how else ""


# --- never checkpointed ---


def never_checkpointed(case: Case) -> Finding | None:
    history, facts, course = case.history, case.facts, case.course
    last = course.last
    if (
        not history.trainer.saves_only_after_eval
        or course.saves
        or not last
        or not history.segments[0].starts
    ):
        return None
    begin = int(course.iteration[0]) if len(course.iteration) else 0
    at_risk = seconds_between(course, begin, last, facts.steady_ms)  # the start-up is not what one loses
    if at_risk is None or at_risk < AT_RISK_S or _worse_than_at_first(history, course):
        return None
    if not _is_complete(case, course):
        return None
    interval = setting(history, "eval_interval")
    evidence = [
        say(
            "{count} iterations, {time} of training, and no checkpoint.",
            count=whole(last),
            time=duration(at_risk),
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
            time=duration(at_risk * better / last),
        ),
    )


def _is_complete(case: Case, course: Course) -> bool:
    """Whether a line about a save would be here: no lines left out, and no iteration so slow that it must
    have done something of which the log says nothing."""
    interval, steady = case.facts.log_interval, case.facts.steady_ms
    if not interval or not steady or len(course.iteration) < 2:
        return False
    expected = (int(course.iteration[-1]) - int(course.iteration[0])) / interval + 1
    plain = ~case.history.first_of_process() & ~case.history.holds_eval()
    slow = plain & (case.history.steps.ms > HIDES_SOMETHING * steady)
    return len(course.iteration) >= 0.9 * expected and not slow.any()


def _worse_than_at_first(history: History, course: Course) -> bool:
    """always_save_checkpoint=False saves only what is better; a run that got worse has nothing to save."""
    careful = history.setup.settings.get("always_save_checkpoint") is False
    values = [done.val_loss for done in course.evals if done.val_loss is not None]
    return careful and len(values) > 1 and min(values[1:]) >= values[0]


def _interval_for(seconds: float, iterations: int) -> int:
    """A round number of iterations that take about five minutes."""
    wanted = iterations * AT_RISK_S / seconds
    rounds = [
        value for value in (1, 2, 5, 10, 20, 50, 100, 200, 250, 500, 1000, 2000, 5000) if value <= wanted
    ]
    return rounds[-1] if rounds else 1


# --- best overwritten ---


def best_overwritten(case: Case) -> Finding | None:
    history, course = case.history, case.course
    saved = max((save.iteration for save in course.saves if save.iteration is not None), default=None)
    if not history.trainer.overwrites_checkpoint or saved is None or len(course.evals) < 2:
        return None
    best = min(course.evals, key=lambda done: (done.val_loss or 0.0, done.iteration or 0))
    kept = next((done for done in course.evals if done.iteration == saved), None)
    if kept is None or best.iteration is None or saved <= best.iteration or not best.iteration:
        return None
    worse = (kept.val_loss or 0.0) - (best.val_loss or 0.0)
    noise = case.noise
    best_loss = best.val_loss or 0.0
    if worse <= max(WORSE * best_loss, 2 * noise.value if noise else 0.0):
        return None
    return Finding(
        "best-overwritten",
        "problem" if worse > MUCH_WORSE * best_loss else "warning",
        say("The best checkpoint was overwritten by a worse one"),
        say(
            "Best {metric} {best} at iteration {at}; the last save, at iteration {saved}, has {kept}: "
            "{worse} worse.",
            metric=metric_name(history),
            best=loss(best_loss),
            at=whole(best.iteration),
            saved=whole(saved),
            kept=loss(kept.val_loss or 0.0),
            worse=difference(worse),
        ),
        say(
            "{trainer} keeps one ckpt.pt, and always_save_checkpoint=True writes it after every evaluation.",
            trainer=history.trainer.name,
        ),
        say(
            "always_save_checkpoint=False would have kept the weights of iteration {at}, {worse} better.",
            at=whole(best.iteration),
            worse=difference(worse),
        ),
    )
