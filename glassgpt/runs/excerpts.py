"""Merges log lines that are quoted in a note, an issue or a chat: out of order, in pieces, and repeated.

Two quotations of the same iteration with the same values are one line. Where all quotations agree, they are
one run, in the order of their iterations. Where two contradict each other they are several runs, in the order
of the text.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from glassgpt.runs.run_log import LoggedCheckpoint, LoggedEvaluation, LoggedProcess, RunLog, Steps

_FLOAT_COLUMNS = ("ms", "mfu", "lr", "grad_norm", "tokens_per_s")


def merge_excerpts(run_log: RunLog) -> RunLog:
    steps = run_log.steps
    if len(run_log.segments) < 2 or not len(steps) or not run_log.has_iteration_numbers:
        return run_log
    order = np.argsort(steps.iteration, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(steps.iteration[order])) + 1)  # rows of one iteration
    is_known = {name: ~np.isnan(getattr(steps, name)) for name in _FLOAT_COLUMNS} | {"loss": steps.has_loss}
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
