"""A run that a fault of its own ended: an exception, a segmentation fault."""

from __future__ import annotations

from glassgpt.figures import whole
from glassgpt.insight.findings.finding import Case, Finding
from glassgpt.insight.findings.saving import RESUME, SHOWN, how_far, loss_of_time, severity_of_loss, work_lost
from glassgpt.insight.history import Event, History
from glassgpt.words import say

OPENING = "Traceback (most recent call last)"  # says nothing; the last line of a traceback does


def crashed(case: Case) -> Finding | None:
    history = case.history
    event = _fault(history)
    if history.live or case.facts.ended != "crashed" or event is None:
        return None
    lost = work_lost(case)
    said = [how_far(case)]
    if quoted := _telling(event.text):
        said.append(say('Line {line}: "{text}".', line=event.line, text=quoted[-SHOWN:]))
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


def _telling(text: str) -> str:
    """The part of the line that says what happened; empty if it only opens a traceback."""
    rest = text.partition(OPENING)[2].lstrip(":\n ") if OPENING in text else text
    return rest if any(letter.isalpha() for letter in rest) else ""


def _fault(history: History) -> Event | None:
    """The last one after the last iteration; torchrun's own, that a process failed, only if it is alone."""
    faults = [event for event in history.events if event.kind in ("traceback", "abort")]
    faults = [event for event in faults if event.line > history.last_step_line]
    telling = [event for event in faults if "ChildFailedError" not in event.text]
    return next(reversed(telling or faults), None)


def _advice(history: History, saved: int | None) -> str:
    how = RESUME.get(history.format.name)
    if saved is None or not how:
        return ""
    return say("Mend that, then go on from iteration {at} with {how}", at=whole(saved), how=how)
