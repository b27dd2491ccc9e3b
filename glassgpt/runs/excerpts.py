"""Log lines quoted in a text: a note, an issue, a chat. They come out of order, in pieces, and more than
once.

A line that says again what another said about the same iteration is the same line. Where all agree, the
quotes are one run, in the order of their iterations; where two contradict each other, there are several runs,
and the order of the text stands.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from glassgpt.runs.run_log import Bools, Floats, LoggedCheckpoint, LoggedEvaluation, RunLog, Segment, Steps

_FLOAT_COLUMNS = ("ms", "mfu", "lr", "grad_norm", "tokens_per_s")


def merge_excerpts(history: RunLog) -> RunLog:
    steps = history.steps
    if len(history.segments) < 2 or not len(steps) or not history.numbered:
        return history
    order = np.argsort(steps.iteration, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(steps.iteration[order])) + 1)
    if not all(_agree(steps, group) for group in groups):
        return history
    loss, has_loss = _first_said_loss(steps, groups)
    merged = Steps(
        iteration=np.array([steps.iteration[group[0]] for group in groups], dtype=np.int64),
        segment=np.zeros(len(groups), dtype=np.int64),
        loss=loss,
        has_loss=has_loss,
        **{name: _first_said(getattr(steps, name), groups) for name in _FLOAT_COLUMNS},
    )
    first = int(merged.iteration[0])
    evals = _each_once([replace(done, segment=0) for done in history.evals])
    saves = sorted({replace(done, segment=0) for done in history.saves}, key=_iteration_key)
    return replace(
        history,
        steps=merged,
        evals=tuple(evals),
        saves=tuple(saves),
        segments=(Segment(has_startup=first <= history.trainer.first_iteration, first_iteration=first),),
    )


def _agree(steps: Steps, group: np.ndarray) -> bool:
    columns = [getattr(steps, name)[group] for name in _FLOAT_COLUMNS]
    columns.append(steps.loss[group][steps.has_loss[group]])
    said = [column[~np.isnan(column)] for column in columns]
    return all(len(column) == 0 or bool(np.all(column == column[0])) for column in said)


def _first_said(column: Floats, groups: list[np.ndarray]) -> Floats:
    said = [column[group][~np.isnan(column[group])] for group in groups]
    return np.array([values[0] if len(values) else np.nan for values in said])


def _first_said_loss(steps: Steps, groups: list[np.ndarray]) -> tuple[Floats, Bools]:
    said = [steps.loss[group][steps.has_loss[group]] for group in groups]
    return (
        np.array([values[0] if len(values) else np.nan for values in said]),
        np.array([len(values) > 0 for values in said], dtype=bool),
    )


def _each_once(evals: list[LoggedEvaluation]) -> list[LoggedEvaluation]:
    best: dict[int | None, LoggedEvaluation] = {}
    for done in evals:
        known = best.get(done.iteration)
        if known is None or known.val_loss is None:
            best[done.iteration] = done
    return sorted(best.values(), key=_iteration_key)


def _iteration_key(done: LoggedEvaluation | LoggedCheckpoint) -> int:
    return -1 if done.iteration is None else done.iteration
