"""A run that a fault of its own ended: an exception, a segmentation fault. Or the one that was to follow."""

from __future__ import annotations

from glassgpt.explain.rule import Finding, RunAnalysis
from glassgpt.explain.rules.saving import (
    MAX_QUOTED_CHARS,
    find_lost_work,
    lost_work_sentence,
    lost_work_severity,
    progress_sentence,
)
from glassgpt.format import format_integer
from glassgpt.i18n import say
from glassgpt.runs.run_log import LogEvent, RunLog

_FAULT_KINDS = ("oom", "traceback", "abort", "kill")
TRACEBACK_HEADER = "Traceback (most recent call last)"  # says nothing; the last line of a traceback does


def crashed(case: RunAnalysis) -> Finding | None:
    history = case.log
    event = _fault(history)
    if history.live or case.facts.ended != "crashed" or event is None:
        return None
    lost = find_lost_work(case)
    said = [progress_sentence(case)]
    quoted = _error_text(event.text)[-MAX_QUOTED_CHARS:]
    if quoted and history.ended is not None:  # a record has it, and no line of a log
        said.append(f'"{quoted}".')
    elif quoted:
        said.append(say('Line {line}: "{text}".', line=event.line, text=quoted))
    else:
        said.append(say("Line {line} is the first of a traceback.", line=event.line))
    said.append(lost_work_sentence(case, lost))
    return Finding(
        "crashed",
        lost_work_severity(case, lost),
        say("The process crashed (segmentation fault)")
        if event.kind == "abort" and "egmentation" in event.text
        else say("The run crashed"),
        " ".join(sentence for sentence in said if sentence),
        say("A fault below Python: a driver, a kernel or the memory of the machine.")
        if event.kind == "abort"
        else say("An exception that nothing caught ended the process; its last line says which."),
        _advice(history, lost.saved_iteration),
    )


def failed_start(case: RunAnalysis) -> Finding | None:
    """A later command in the same log, which came to nothing: its fault is not that of the run before."""
    history = case.log
    ends = [event for event in history.events_of_failed_start() if event.kind in _FAULT_KINDS]
    told = [event for event in ends if _error_text(event.text) and "ChildFailedError" not in event.text]
    event = next(reversed([one for one in told if one.kind == "oom"] or told or ends), None)
    if history.live or event is None or history.failed_start_line is None:
        return None
    said = [say("It began at line {line}.", line=history.failed_start_line)]
    if quoted := _error_text(event.text):
        said.append(say('Line {line}: "{text}".', line=event.line, text=quoted[:MAX_QUOTED_CHARS]))
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


def _error_text(text: str) -> str:
    """The part of the line that says what happened; empty if it only opens a traceback."""
    rest = text.partition(TRACEBACK_HEADER)[2].lstrip(":\n ") if TRACEBACK_HEADER in text else text
    return rest if any(letter.isalpha() for letter in rest) else ""


def _fault(history: RunLog) -> LogEvent | None:
    """The last one after the last iteration; torchrun's own, that a process failed, only if it is alone."""
    faults = [event for event in history.events_after_last_step() if event.kind in ("traceback", "abort")]
    telling = [event for event in faults if "ChildFailedError" not in event.text]
    return next(reversed(telling or faults), None)


def _advice(history: RunLog, saved: int | None) -> str:
    how = history.trainer.resume_command
    if saved is None or not how:
        return ""
    return say("Mend that, then go on from iteration {at} with {how}", at=format_integer(saved), how=how)
