"""What is lost: a run that was interrupted, one that never saved, one that saved over its best."""

from __future__ import annotations

from glassgpt.figures import difference, duration, loss, percent, whole
from glassgpt.insight.course import Course, course_of, eval_noise, metric_name, planned_end, seconds_between
from glassgpt.insight.findings.finding import Case, Finding, Severity
from glassgpt.insight.history import Event, History
from glassgpt.words import say

# Trainers whose console shows every save. Others save silently, so that no line means nothing.
SHOWS_SAVES = ("nanogpt", "glassgpt")
HIDES_SOMETHING = 5.0  # times a steady iteration
AT_RISK_S = 300.0  # of training without a checkpoint
FROM_OUTSIDE = ("sigterm", "sigkill", "cancelled", "killed", "preempt")
SHOWN = 120  # characters of the line that tells
RESUME = {  # how each goes on from its last checkpoint
    "nanogpt": "python train.py … --init_from=resume",
    "glassgpt": "glass train --init_from=resume --out_dir=RUN",
    "llm.c": "-y 1",
    "nanochat": "--resume-from-step=STEP",
    "litgpt": "--resume=auto",
    "hf-trainer": "--resume_from_checkpoint",
}


# --- interrupted ---


def interrupted(case: Case) -> Finding | None:
    history, facts = case.history, case.facts
    event = _what_ended_it(history)
    if history.live or facts.ended == "finished" or (event is None and facts.ended != "interrupted"):
        return None
    course = course_of(history)
    last, saved = course.last, _last_save(course)
    shows = history.format.name in SHOWS_SAVES or saved is not None
    return Finding(
        "interrupted",
        _severity_of_loss(course, saved, shows),
        _interrupted_title(event),
        _interrupted_evidence(case, course, event, last, saved, shows),
        say("What was learnt since the last checkpoint is gone with the process."),
        _interrupted_advice(history, saved, shows),
    )


def _what_ended_it(history: History) -> Event | None:
    """The last interruption, if no iteration came after it."""
    events = [event for event in history.events if event.kind in ("interrupt", "kill")]
    if not events:
        return None
    last = int(history.steps.iteration[-1]) if len(history.steps) else None
    event = events[-1]
    return event if event.iteration is None or last is None or event.iteration >= last else None


def _last_save(course: Course) -> int | None:
    return max((save.iteration for save in course.saves if save.iteration is not None), default=None)


def _severity_of_loss(course: Course, saved: int | None, shows: bool) -> Severity:
    """All lost is a problem; a tenth of the run or less is worth a word."""
    last = course.last or 0
    if saved is None:
        return "problem" if shows and last > 100 else "warning"
    return "warning" if last - saved > 0.1 * max(1, last) else "info"


def _interrupted_title(event: Event | None) -> str:
    text = event.text.lower() if event else ""
    if "time limit" in text:
        return say("The run was stopped by its time limit")
    if event and (event.kind == "kill" or any(word in text for word in FROM_OUTSIDE)):
        return say("The run was killed from outside")
    return say("The run was interrupted by hand")


def _interrupted_evidence(
    case: Case, course: Course, event: Event | None, last: int | None, saved: int | None, shows: bool
) -> str:
    said = []
    planned = planned_end(case.history)
    if last is not None and planned and planned > last:
        said.append(
            say(
                "It had come to iteration {last} of {planned} ({share}).",
                last=whole(last),
                planned=whole(planned),
                share=percent(last / planned),
            )
        )
    elif last is not None:
        said.append(say("It had come to iteration {last}.", last=whole(last)))
    if event:
        said.append(say('Line {line}: "{text}".', line=event.line, text=event.text[-SHOWN:]))
    if last is not None and saved is not None:
        lost = seconds_between(course, saved, last, case.facts.steady_ms)
        values = {"at": whole(saved), "lost": whole(max(0, last - saved))}
        said.append(
            say(
                "The last checkpoint is of iteration {at}: {lost} iterations are lost, {time}.",
                time=duration(lost),
                **values,
            )
            if lost
            else say("The last checkpoint is of iteration {at}: {lost} iterations are lost.", **values)
        )
    elif shows:
        said.append(say("No checkpoint had been saved, so all of it is lost."))
    else:
        said.append(say("This trainer's log does not show checkpoints, so what is lost cannot be told."))
    return " ".join(said)


def _interrupted_advice(history: History, saved: int | None, shows: bool) -> str:
    if history.format.name == "build-nanogpt":
        return say("build-nanogpt saves every 5000 iterations and cannot resume: add both before a long run.")
    how = RESUME.get(history.format.name)
    if saved is not None and how:
        return say("Go on from iteration {at} with {how}", at=whole(saved), how=how)
    if shows:
        return say(
            "There is nothing to resume from. Save earlier and more often: a checkpoint costs seconds."
        )
    return say("If there is a checkpoint, go on with {how}", how=how) if how else ""


# --- never checkpointed ---


def never_checkpointed(case: Case) -> Finding | None:
    history, facts = case.history, case.facts
    course = course_of(history)
    last = course.last
    if history.format.name != "nanogpt" or course.saves or not last or not history.segments[0].starts:
        return None
    begin = int(course.iteration[0]) if len(course.iteration) else 0
    at_risk = seconds_between(course, begin, last, facts.steady_ms)  # the start-up is not what one loses
    if at_risk is None or at_risk < AT_RISK_S or _worse_than_at_first(history, course):
        return None
    if not _is_complete(case, course):
        return None
    interval = history.setup.settings.get("eval_interval")
    evidence = [
        say(
            "{count} iterations, {time} of training, and no checkpoint.",
            count=whole(last),
            time=duration(at_risk),
        )
    ]
    if isinstance(interval, int) and interval > last:
        evidence.append(
            say("nanoGPT saves only when it evaluates, and eval_interval={interval}.", interval=interval)
        )
    better = _interval_for(at_risk, last)
    so_far = facts.ended in (None, "cut")
    return Finding(
        "never-checkpointed",
        "warning" if so_far else "problem",
        say("Nothing has been saved so far") if so_far else say("Nothing was ever saved"),
        " ".join(evidence),
        say(
            "nanoGPT saves after an evaluation and never at iteration 0; whatever ends the run before that "
            "takes all of it."
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
    history = case.history
    course = course_of(history)
    saved = _last_save(course)
    if history.format.name != "nanogpt" or saved is None or len(course.evals) < 2:
        return None
    best = min(course.evals, key=lambda done: (done.val_loss or 0.0, done.iteration or 0))
    kept = next((done for done in course.evals if done.iteration == saved), None)
    if kept is None or best.iteration is None or saved <= best.iteration or not best.iteration:
        return None
    worse = (kept.val_loss or 0.0) - (best.val_loss or 0.0)
    noise = eval_noise(history, course)
    best_loss = best.val_loss or 0.0
    if worse <= max(0.005 * best_loss, 2 * noise.value if noise else 0.0):
        return None
    return Finding(
        "best-overwritten",
        "problem" if worse > 0.02 * best_loss else "warning",
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
        say("nanoGPT keeps one ckpt.pt, and always_save_checkpoint=True writes it after every evaluation."),
        say(
            "always_save_checkpoint=False would have kept the weights of iteration {at}, {worse} better.",
            at=whole(best.iteration),
            worse=difference(worse),
        ),
    )
