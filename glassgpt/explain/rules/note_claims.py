"""What a text says about its runs: what cannot be so, and what a program warned of. The runs themselves are
other rules' matter."""

from __future__ import annotations

import math

from glassgpt.i18n import Message, say
from glassgpt.record.finding import Finding, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.note_words import GPT2_VOCAB_SIZE

MAX_QUOTED, MAX_QUOTED_CHARS = 3, 160  # warnings, and of each line


def ppl_in_text(analysis: Analysis) -> Finding | None:
    """The text calls a number a validation loss that is above that of guessing: it is a perplexity."""
    events = [event for event in analysis.log.events if event.kind == "perplexity-as-loss"]
    if not events:
        return None
    stated = float(events[0].text)
    return make_finding(
        "ppl-in-text",
        "info",
        title=say("ppl-in-text.title", stated=stated),
        evidence=say("ppl-in-text.evidence", line=events[0].line, guess=math.log(GPT2_VOCAB_SIZE)),
        explanation=say("ppl-in-text.explanation", stated=stated, loss=math.log(stated)),
        lines=[event.line for event in events],
    )


def program_warning(analysis: Analysis) -> Finding | None:
    """The program itself says that it trains otherwise than it was asked to: a fallback, something that this
    machine does not support."""
    events = {event.text: event for event in reversed(analysis.log.events) if event.kind == "program-warning"}
    if not events:
        return None
    first = sorted(events.values(), key=lambda event: event.line)[:MAX_QUOTED]
    evidence: list[Message | None] = [
        say("crashed.evidence.quoted_line", line=event.line, quoted=event.text[:MAX_QUOTED_CHARS])
        for event in first
    ]
    return make_finding(
        "program-warning",
        "info",
        title=say("program-warning.title", warnings=len(events)),
        evidence=evidence,
        explanation=say("program-warning.explanation"),
        lines=[event.line for event in first],
    )
