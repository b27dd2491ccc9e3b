"""Merges log lines that are quoted in a note, an issue or a chat: out of order, in pieces, and repeated.

Two quotations of the same iteration with the same values are one line. Where all quotations agree, they are
one run, in the order of their iterations. Where two contradict each other they are several runs, in the order
of the text. So are two whose MFU and MFU x time both differ by a factor: an iteration of one run is always
the same work.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from glassgpt.runs.run_log import LoggedCheckpoint, LoggedEvaluation, LoggedProcess, RunLog, Steps
from glassgpt.runs.step_rows import LOG_COLUMNS

_MIN_WORK_RATIO = 3.0  # of the MFU, and of MFU x time, of two quotations of different runs

_Item = TypeVar("_Item", LoggedEvaluation, LoggedCheckpoint)


def merge_excerpts(run_log: RunLog) -> RunLog:
    """As one process; or as one of each run, whose first iteration is not known."""
    begins = _other_work_begins(run_log.steps)
    if not begins or not run_log.has_iteration_numbers:
        return _merge_one(run_log)
    ends = [*begins[1:], len(run_log.steps)]
    merged = []
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        part = replace(
            run_log,
            steps=run_log.steps.rows(begin, end),
            evals=_items_of_part(run_log.evals, run_log.steps, begin, end),
            checkpoints=_items_of_part(run_log.checkpoints, run_log.steps, begin, end),
        )
        steps = (one := _merge_one(part)).steps
        lines = steps.line[steps.line > 0]
        process = LoggedProcess(
            has_startup=int(steps.iteration[0]) <= run_log.trainer.first_iteration,
            first_iteration=None if number else int(steps.iteration[0]),
            first_line=int(lines.min()) if len(lines) else 0,
            last_step_line=int(lines.max(initial=0)),
        )
        merged.append((one, process, number))
    parts = [one.steps.columns() for one, _, _ in merged]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    joined["segment"] = np.concatenate([np.full(len(one.steps), number) for one, _, number in merged])
    return replace(
        run_log,
        steps=Steps(**joined),
        evals=tuple(replace(item, segment=number) for one, _, number in merged for item in one.evals),
        checkpoints=tuple(
            replace(item, segment=number) for one, _, number in merged for item in one.checkpoints
        ),
        segments=tuple(process for _, process, _ in merged),
    )


def _other_work_begins(steps: Steps) -> list[int]:
    """The rows, in the order of the text, where the quotations of another run begin; empty: there is one."""
    known = np.flatnonzero((steps.mfu > 0) & (steps.ms > 0))
    mfu, work = np.log(steps.mfu[known]), np.log(steps.mfu[known] * steps.ms[known])
    jumps = (np.abs(np.diff(mfu)) > np.log(_MIN_WORK_RATIO)) & (
        np.abs(np.diff(work)) > np.log(_MIN_WORK_RATIO)
    )
    return [0, *(int(row) for row in known[1:][jumps])] if jumps.any() else []


def _items_of_part(items: tuple[_Item, ...], steps: Steps, begin: int, end: int) -> tuple[_Item, ...]:
    """Evaluations and checkpoints of these rows: of the next row of their iteration, else the one before."""

    def row_of(item: _Item) -> int:
        after = np.flatnonzero((steps.line >= item.line) & (steps.iteration == item.iteration))
        before = np.flatnonzero(steps.line < item.line)
        return int(after[0]) if len(after) else int(before[-1]) if len(before) else 0

    return tuple(replace(item, segment=0) for item in items if begin <= row_of(item) < end)


def _merge_one(run_log: RunLog) -> RunLog:
    steps = run_log.steps
    if len(run_log.segments) < 2 or not len(steps) or not run_log.has_iteration_numbers:
        return run_log
    order = np.argsort(steps.iteration, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(steps.iteration[order])) + 1)  # rows of one iteration
    is_known = {name: ~np.isnan(getattr(steps, name)) for name in LOG_COLUMNS} | {"loss": steps.has_loss}
    columns = {}
    for name, known in is_known.items():
        column, merged = getattr(steps, name), np.full(len(groups), np.nan)
        for index, group in enumerate(groups):
            values = column[group][known[group]]
            numbers = values[~np.isnan(values)]
            if len(numbers) and not np.all(numbers == numbers[0]):
                return run_log  # a contradiction
            merged[index] = values[0] if len(values) else np.nan
        columns[name] = merged
    first = int(steps.iteration[order[0]])
    evals: dict[int | None, LoggedEvaluation] = {}
    for evaluation in run_log.evals:
        known_evaluation = evals.get(evaluation.iteration)
        if known_evaluation is None or known_evaluation.val_loss is None:
            evals[evaluation.iteration] = replace(evaluation, segment=0)
    return replace(
        run_log,
        steps=Steps(
            iteration=np.array([steps.iteration[group[0]] for group in groups], dtype=np.int64),
            segment=np.zeros(len(groups), dtype=np.int64),
            line=np.array([steps.line[group[0]] for group in groups], dtype=np.int64),
            has_loss=np.array([steps.has_loss[group].any() for group in groups], dtype=bool),
            **columns,
        ),
        evals=tuple(sorted(evals.values(), key=_iteration_key)),
        checkpoints=tuple(
            sorted({replace(save, segment=0) for save in run_log.checkpoints}, key=_iteration_key)
        ),
        segments=(
            LoggedProcess(has_startup=first <= run_log.trainer.first_iteration, first_iteration=first),
        ),
    )


def _iteration_key(item: LoggedEvaluation | LoggedCheckpoint) -> int:
    return -1 if item.iteration is None else item.iteration
