"""How a run ended, by the last things its log says."""

from __future__ import annotations

from glassgpt.runs.run_log import ExitStatus, RunLog


def infer_exit_status(history: RunLog) -> ExitStatus | None:
    """None for a run that goes on. `cut`: the log stops, and nothing says why."""
    if history.live:
        return None
    if history.ended is not None:
        return history.ended
    after = [event.kind for event in history.events_after_last_step()]
    # What a trainer's own end has closed stays closed, whatever comes after it in the same file.
    kinds = set(after[: after.index("finish")] if "finish" in after else after)
    if "oom" in kinds:
        return "oom"
    if "interrupt" in kinds:
        return "interrupted"
    if kinds & {"traceback", "kill", "abort"}:
        return "crashed"
    if "finish" in after or _reached_its_end(history):
        return "finished"
    return "cut"


def _reached_its_end(history: RunLog) -> bool:
    told = [done.iteration for done in history.evals[-1:] if done.iteration is not None]
    last = int(history.steps.iteration[-1]) if len(history.steps) else max(told, default=None)
    if last is None:
        return False
    planned = planned_last_logged_iteration(history)
    if planned is not None:
        return last >= planned
    return _ends_at_evaluation(history, last)


def _ends_at_evaluation(history: RunLog, last: int) -> bool:
    """Nothing says how far it should go, but these trainers evaluate at the end.

    Of some the last iteration is one of the usual evaluations. Of the others the last one is mostly off the
    grid, and one on the grid proves nothing.
    """
    evaluated = list(dict.fromkeys(done.iteration for done in history.evals if done.iteration is not None))
    if last <= history.trainer.first_iteration or not evaluated or history.is_excerpt:
        return False
    if history.last_partial_iteration is not None and history.last_partial_iteration > last:
        return False  # it went on
    if history.trainer.ends_on_regular_eval:
        return last in evaluated
    if len(evaluated) < 3:
        return False
    interval = abs(evaluated[1] - evaluated[0]) or 1
    ends = [last + offset for offset in history.trainer.final_eval_offsets]
    return evaluated[-1] in ends and evaluated[-1] % interval != 0


def planned_last_logged_iteration(history: RunLog) -> int | None:
    """The number of the last line of a run that goes to its end."""
    if history.setup.planned_iterations is not None:
        return history.setup.planned_iterations
    settings = history.setup.settings
    max_iters = settings.get("max_iters")
    if (
        not history.trainer.loop_includes_max_iters
        or not isinstance(max_iters, int | float)
        or not 0 <= max_iters < 1e15
    ):
        return None
    said = settings.get("log_interval")
    every = int(said) if isinstance(said, int | float) and said >= 1 else history.log_interval() or 1
    return int(max_iters) // every * every
