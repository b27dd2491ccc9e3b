"""What each piece of a trainer's line means, with this log's own values.

Each trainer's file has its own entries, made of the pieces and meanings here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glassgpt.i18n import say
from glassgpt.runs.facts import Facts
from glassgpt.runs.run_log import RunLog


@dataclass(frozen=True)
class GlossaryEntry:
    log_text: str  # as in the log
    meaning: str


def glossary(history: RunLog, facts: Facts) -> list[GlossaryEntry]:
    """In the order of a line. Only what this log has."""
    of_trainer = history.trainer.glossary or _plain
    return [entry for entry in of_trainer(LastLine(history), history, facts) if entry.log_text]


class LastLine:
    """The last line of the log, piece by piece; "" for what it does not say."""

    def __init__(self, history: RunLog) -> None:
        self._steps = history.steps

    def shown(self, name: str, template: str) -> str:
        values = getattr(self._steps, name)
        if name == "loss":
            values = values[self._steps.has_loss]
        elif name != "iteration":
            values = values[np.isfinite(values)]
        return template.format(values[-1]) if len(values) else ""


def last_evaluation(history: RunLog, template: str) -> str:
    told = [done for done in history.evals if done.val_loss is not None]
    if not told:
        return ""
    done = told[-1]
    train = "…" if done.train_loss is None else f"{done.train_loss:.4f}"
    step = "…" if done.iteration is None else done.iteration
    return template.format(step=step, train=train, val=f"{done.val_loss:.4f}")


def one_loss() -> str:
    return say(
        "The cross-entropy of this one batch, in nats per token: the mean of -ln(probability of the right "
        "next token). It jumps from batch to batch; only its trend means something."
    )


def learning_rate() -> str:
    return say("The learning rate of this update: how far the optimizer goes.")


def gradient_norm() -> str:
    return say(
        "The length of the gradient before it was clipped. Sudden jumps go before a loss that explodes."
    )


def tokens_per_second() -> str:
    return say(
        "Tokens of an iteration divided by its time. This, not MFU, says how soon the data is through."
    )


def _plain(last: LastLine, history: RunLog, facts: Facts) -> list[GlossaryEntry]:
    return [
        GlossaryEntry(last.shown("iteration", "{}"), say("The iteration that the line names.")),
        GlossaryEntry(last.shown("loss", "loss {:.4f}"), say("The loss that the line names.")),
    ]
