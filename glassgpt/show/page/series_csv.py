"""Every logged line of a run as a table, for a spreadsheet or a script: evaluations stand beside the
iteration that they belong to. Lines that a resume repeated are there too, under the number of their process.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from glassgpt.runs.run_log import LoggedEvaluation, RunLog

_STEP_COLUMNS = ("loss", "lr", "grad_norm", "ms", "tokens_per_s", "mfu", "memory_bytes", "tokens")
_HEADER = (
    "iteration,process,loss,lr,grad_norm,step_ms,tokens_per_s,mfu_percent,memory_bytes,tokens,"
    "train_eval_loss,{val},val_stderr\n"
)
_CHUNK_ROWS = 2000


def csv_lines(run_log: RunLog) -> Iterator[str]:
    """In pieces, so that a long run is never one text. A run's rows are thinned above a million."""
    steps = run_log.steps
    evals: dict[tuple[int, int], LoggedEvaluation] = {}
    for one in run_log.evals:
        if one.iteration is not None:
            evals[one.segment, one.iteration] = one
    at_steps = set(zip(steps.segment.tolist(), steps.iteration.tolist(), strict=True)) & evals.keys()
    val = "val_bits_per_byte" if run_log.val_metric == "bits_per_byte" else "val_loss"
    yield _HEADER.format(val=val)
    # Evaluations at iterations that were not logged, in the order of the run.
    left = sorted(evals.keys() - at_steps, reverse=True)
    empty = np.full(len(steps), np.nan)
    for begin in range(0, len(steps), _CHUNK_ROWS):
        part = slice(begin, begin + _CHUNK_ROWS)
        columns = []
        for name in _STEP_COLUMNS:
            values = getattr(steps, name)
            columns.append((empty if values is None else values)[part].tolist())
        rows = []
        keys = zip(steps.segment[part].tolist(), steps.iteration[part].tolist(), strict=True)
        for key, has_loss, values in zip(
            keys, steps.has_loss[part].tolist(), zip(*columns, strict=True), strict=True
        ):
            while left and left[-1] < key:
                rows.append(_line(left[-1], "," * (len(_STEP_COLUMNS) - 1), evals[left.pop()]))
            loss = repr(values[0]) if has_loss else ""
            cells = ",".join([loss, *("" if math.isnan(value) else f"{value!r}" for value in values[1:])])
            rows.append(_line(key, cells, evals.get(key)))
        yield "".join(rows)
    yield "".join(_line(key, "," * (len(_STEP_COLUMNS) - 1), evals[key]) for key in reversed(left))


def _line(key: tuple[int, int], cells: str, evaluation: LoggedEvaluation | None) -> str:
    values = (None,) * 3 if evaluation is None else (
        evaluation.train_loss, evaluation.val_loss, evaluation.stderr
    )  # fmt: skip
    measured = ",".join("" if value is None else repr(float(value)) for value in values)
    return f"{key[1]},{key[0]},{cells},{measured}\n"
