"""What each part of a trainer's line means, with this log's values.

The entries are in the trainers' files, made of the parts and meanings here.
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


def glossary(run_log: RunLog, facts: Facts) -> list[GlossaryEntry]:
    """The entries for the parts that this log has, in the order of a line."""
    last = LastLine(run_log)
    if run_log.trainer.glossary is not None:
        entries = run_log.trainer.glossary(last, run_log, facts)
    else:
        entries = [
            GlossaryEntry(last.shown("iteration", "{}"), say("The iteration that the line names.")),
            GlossaryEntry(last.shown("loss", "loss {:.4f}"), say("The loss that the line names.")),
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


def batch_loss_meaning() -> str:
    return say(
        "The cross-entropy of this one batch, in nats per token: the mean of -ln(probability of the right "
        "next token). It varies from batch to batch; only its trend is meaningful."
    )


def learning_rate_meaning() -> str:
    return say("The learning rate of this update: the step size of the optimizer.")


def gradient_norm_meaning() -> str:
    return say("The norm of the gradient before clipping. Sudden jumps precede a loss that diverges.")


def tokens_per_second_meaning() -> str:
    return say(
        "Tokens of an iteration divided by its time. This, not MFU, says how fast the data is processed."
    )
