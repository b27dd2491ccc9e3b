"""What a text about runs states that cannot be so. The runs themselves are other rules' matter."""

from __future__ import annotations

import math

from glassgpt.i18n import say
from glassgpt.record.finding import Finding, make_finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.note_words import GPT2_VOCAB_SIZE


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
