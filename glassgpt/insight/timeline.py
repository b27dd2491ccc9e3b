"""Where a run's time went, as far as its log tells."""

from __future__ import annotations

import numpy as np

from glassgpt.insight.facts import Facts
from glassgpt.insight.history import History
from glassgpt.words import say


def where_time_went(history: History, facts: Facts) -> list[tuple[str, float]]:
    """Seconds per purpose, the longest first. Empty where the log has no times."""
    if history.ledger is not None:
        parts = {_phase(name): seconds for name, seconds in history.ledger.items()}
    elif facts.estimated_total_s is None or facts.steady_ms is None:
        return []
    else:
        parts = _from_iterations(history, facts.steady_ms, facts.estimated_total_s)
    return sorted(((name, s) for name, s in parts.items() if s > 0), key=lambda part: -part[1])


def _from_iterations(history: History, steady_ms: float, total_s: float) -> dict[str, float]:
    """What first and evaluating iterations hold beyond a steady one; the first also holds its evaluation."""
    beyond = np.maximum(np.nan_to_num(history.steps.ms - steady_ms), 0.0) / 1000
    first, evaluating = history.first_of_process(), history.holds_eval()
    eval_s = float(np.median(beyond[evaluating & ~first])) if np.any(evaluating & ~first) else 0.0
    in_first = np.minimum(beyond[first & evaluating], eval_s)
    evaluation = float(beyond[evaluating & ~first].sum() + in_first.sum())
    startup = float(beyond[first].sum() - in_first.sum())
    return {
        say("training"): total_s - evaluation - startup,
        say("evaluation and checkpoints"): evaluation,
        say("start-up, compiling"): startup,
    }


def _phase(name: str) -> str:
    return {
        "startup": say("start-up"),
        "compile": say("compiling and warming up"),
        "data": say("waiting for data"),
        "train": say("training"),
        "eval": say("evaluation"),
        "checkpoint": say("checkpoints"),
        "log": say("logging"),
        "other": say("the rest"),
    }.get(name, name)
