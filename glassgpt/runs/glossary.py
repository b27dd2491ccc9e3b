"""What each part of a trainer's line means, with this log's values.

The trainers' files declare the parts: see `Trainer.glossary`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glassgpt.runs.facts import Facts
from glassgpt.runs.run_log import RunLog


@dataclass(frozen=True)
class GlossaryEntry:
    log_text: str  # as in the log
    meaning: str


def glossary(run_log: RunLog, facts: Facts) -> list[GlossaryEntry]:
    """The entries for the parts that this log has, in the order of a line."""
    steady = "?" if facts.steady_ms is None else f"{facts.steady_ms:.2f} ms"
    return [
        GlossaryEntry(text, str(meaning.with_values(steady=steady)))
        for column, template, meaning in run_log.trainer.glossary
        if (text := _latest(run_log, column, template))
    ]


def _latest(run_log: RunLog, column: str, template: str) -> str:
    """The latest value of the column, as the log prints it; "" where it has none."""
    if column == "checkpoint":
        return template if run_log.checkpoints else ""
    if column == "eval":
        evals = [evaluation for evaluation in run_log.evals if evaluation.val_loss is not None]
        if not evals:
            return ""
        done = evals[-1]
        train = "…" if done.train_loss is None else f"{done.train_loss:.4f}"
        step = "…" if done.iteration is None else done.iteration
        return template.format(step=step, train=train, val=f"{done.val_loss:.4f}")
    if not column:
        return template
    values = getattr(run_log.steps, column)
    if column == "loss":
        values = values[run_log.steps.has_loss]
    elif column != "iteration":
        values = values[np.isfinite(values)]
    return template.format(values[-1]) if len(values) else ""
