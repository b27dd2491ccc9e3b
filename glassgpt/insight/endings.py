"""How a run ended, by the last things its log says."""

from __future__ import annotations

from typing import Literal

from glassgpt.insight.history import History

Ended = Literal["finished", "interrupted", "crashed", "oom", "cut"]


def how_it_ended(history: History) -> Ended | None:
    """None for a run that goes on. `cut`: the log stops, and nothing says why."""
    if history.live:
        return None
    if history.ended in ("finished", "interrupted", "crashed", "oom", "cut"):
        return history.ended  # type: ignore[return-value]
    kinds = {event.kind for event in history.events if event.line > history.last_step_line}
    if "oom" in kinds:
        return "oom"
    if "interrupt" in kinds:
        return "interrupted"
    if kinds & {"traceback", "kill"}:
        return "crashed"
    if "finish" in kinds or _reached_its_end(history):
        return "finished"
    return "cut"


def _reached_its_end(history: History) -> bool:
    told = [done.iteration for done in history.evals[-1:] if done.iteration is not None]
    last = int(history.steps.iteration[-1]) if len(history.steps) else max(told, default=None)
    if last is None:
        return False
    planned = planned_last_iteration(history)
    if planned is not None:
        return last >= planned
    return _stops_at_evaluation(history, last)


def _stops_at_evaluation(history: History, last: int) -> bool:
    """Nothing says how far it should go, but these trainers evaluate at the end.

    nanoGPT's last iteration is one of its usual evaluations. Of the others the last one is mostly off the
    grid, and one on the grid proves nothing.
    """
    evaluated = list(dict.fromkeys(done.iteration for done in history.evals if done.iteration is not None))
    if last <= history.format.first_iteration or not evaluated or history.quoted:
        return False
    if history.format.name == "nanogpt":
        return last in evaluated
    if history.format.name not in ("build-nanogpt", "llm.c") or len(evaluated) < 3:
        return False
    interval = abs(evaluated[1] - evaluated[0]) or 1
    return evaluated[-1] in (last, last + 1) and evaluated[-1] % interval != 0


def planned_last_iteration(history: History) -> int | None:
    """The number of the last line of a run that goes to its end."""
    if history.setup.planned_iterations is not None:
        return history.setup.planned_iterations
    settings = history.setup.settings
    max_iters = settings.get("max_iters")
    if history.format.name != "nanogpt" or not isinstance(max_iters, int | float):
        return None
    log_interval = settings.get("log_interval", 10)
    every = int(log_interval) if isinstance(log_interval, int | float) and log_interval >= 1 else 10
    return int(max_iters) // every * every  # nanoGPT's loop includes max_iters itself
