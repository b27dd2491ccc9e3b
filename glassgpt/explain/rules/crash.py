"""A run that a fault of its own ended: an exception, a segmentation fault. Or the one that was to follow."""

from __future__ import annotations

from glassgpt.explain.rule import Case, Finding
from glassgpt.explain.rules.saving import SHOWN, how_far, loss_of_time, severity_of_loss, work_lost
from glassgpt.format import whole
from glassgpt.i18n import say
from glassgpt.runs.run_log import Event, History

_FAULTS = ("oom", "traceback", "abort", "kill")
OPENING = "Traceback (most recent call last)"  # says nothing; the last line of a traceback does


def crashed(case: Case) -> Finding | None:
    history = case.history
    event = _fault(history)
    if history.live or case.facts.ended != "crashed" or event is None:
        return None
    lost = work_lost(case)
    said = [how_far(case)]
    quoted = _telling(event.text)[-SHOWN:]
    if quoted and history.ended is not None:  # a record has it, and no line of a log
        said.append(f'"{quoted}".')
    elif quoted:
        said.append(say('Line {line}: "{text}".', line=event.line, text=quoted))
    else:
        said.append(say("Line {line} is the first of a traceback.", line=event.line))
    said.append(loss_of_time(case, lost))
    return Finding(
        "crashed",
        severity_of_loss(case, lost),
        say("The process crashed (segmentation fault)")
        if event.kind == "abort" and "egmentation" in event.text
        else say("The run crashed"),
        " ".join(sentence for sentence in said if sentence),
        say("A fault below Python: a driver, a kernel or the memory of the machine.")
        if event.kind == "abort"
        else say("An exception that nothing caught ended the process; its last line says which."),
        _advice(history, lost.saved),
    )


def failed_start(case: Case) -> Finding | None:
    """A later command in the same log, which came to nothing: its fault is not that of the run before."""
    history = case.history
    ends = [event for event in history.events_of_next_start() if event.kind in _FAULTS]
    told = [event for event in ends if _telling(event.text) and "ChildFailedError" not in event.text]
    event = next(reversed([one for one in told if one.kind == "oom"] or told or ends), None)
    if history.live or event is None or history.next_start_line is None:
        return None
    said = [say("It began at line {line}.", line=history.next_start_line)]
    if quoted := _telling(event.text):
        said.append(say('Line {line}: "{text}".', line=event.line, text=quoted[:SHOWN]))
    return Finding(
        "failed-start",
        "warning",
        say("A later command in this log failed before its first iteration"),
        " ".join(said),
        say(
            "It is another process than the one whose iterations are told here, and changed nothing about it."
        ),
        "",
    )


def _telling(text: str) -> str:
    """The part of the line that says what happened; empty if it only opens a traceback."""
    rest = text.partition(OPENING)[2].lstrip(":\n ") if OPENING in text else text
    return rest if any(letter.isalpha() for letter in rest) else ""


def _fault(history: History) -> Event | None:
    """The last one after the last iteration; torchrun's own, that a process failed, only if it is alone."""
    faults = [event for event in history.last_events() if event.kind in ("traceback", "abort")]
    telling = [event for event in faults if "ChildFailedError" not in event.text]
    return next(reversed(telling or faults), None)


def _advice(history: History, saved: int | None) -> str:
    how = history.trainer.resume_command
    if saved is None or not how:
        return ""
    return say("Mend that, then go on from iteration {at} with {how}", at=whole(saved), how=how)
