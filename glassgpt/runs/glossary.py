"""What each part of a trainer's line means, with this log's values.

The entries are in the trainers' files, made of the parts and meanings here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glassgpt.i18n import Message, translate
from glassgpt.runs.facts import Facts
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trainer import Glossary


@dataclass(frozen=True)
class GlossaryEntry:
    log_text: str  # as in the log
    meaning: str


def glossary(run_log: RunLog, facts: Facts) -> list[GlossaryEntry]:
    """The entries for the parts that this log has, in the order of a line."""
    last = LastLine(run_log)
    if run_log.trainer.glossary is not None:
        entries = run_log.trainer.glossary(last, run_log, facts)
    else:
        entries = [
            GlossaryEntry(last.shown("iteration", "{}"), translate("glossary.named_iteration")),
            GlossaryEntry(last.shown("loss", "loss {:.4f}"), translate("glossary.named_loss")),
        ]
    return [entry for entry in entries if entry.log_text]


class LastLine:
    """The latest value of each column, as the log prints it; "" for a column that it does not have."""

    def __init__(self, run_log: RunLog) -> None:
        self._steps = run_log.steps

    def shown(self, name: str, template: str) -> str:
        values = getattr(self._steps, name)
        if name == "loss":
            values = values[self._steps.has_loss]
        elif name != "iteration":
            values = values[np.isfinite(values)]
        return template.format(values[-1]) if len(values) else ""


def last_evaluation(run_log: RunLog, template: str) -> str:
    evals = [evaluation for evaluation in run_log.evals if evaluation.val_loss is not None]
    if not evals:
        return ""
    done = evals[-1]
    train = "…" if done.train_loss is None else f"{done.train_loss:.4f}"
    step = "…" if done.iteration is None else done.iteration
    return template.format(step=step, train=train, val=f"{done.val_loss:.4f}")


def declared_glossary(*parts: tuple[str, str, Message]) -> Glossary:
    """Of (column, as the log prints it, its meaning). Instead of a column: "eval" for the last evaluation,
    "" for a text that is shown as it is."""

    def entries(last: LastLine, run_log: RunLog, facts: Facts) -> list[GlossaryEntry]:
        shown = []
        for column, template, meaning in parts:
            if column == "eval":
                text = last_evaluation(run_log, template)
            else:
                text = last.shown(column, template) if column else template
            shown.append(GlossaryEntry(text, str(meaning)))
        return shown

    return entries
