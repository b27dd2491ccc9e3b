"""A log may hold several runs, one begun anew after the other: what is compared is the last of them.

What a log says about settings is said of the run that follows, so it is the last run's that are known.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from glassgpt.runs.facts import Facts, compute_facts
from glassgpt.runs.run_log import Bools, RunLog, Steps
from glassgpt.runs.trajectory import continues_previous


def count_runs(history: RunLog) -> int:
    """Those of other trainers before it in the same log included."""
    return len(_run_start_segments(history)) + sum(count_runs(one) for one in history.earlier)


def select_last_run(history: RunLog, facts: Facts) -> tuple[RunLog, Facts]:
    """The run that the log ends with, and facts of that alone."""
    begin = _run_start_segments(history)[-1]
    if not begin:
        return history, facts
    alone = replace(
        history,
        steps=_select_rows(history.steps, history.steps.segment >= begin, begin),
        evals=tuple(
            replace(one, segment=one.segment - begin) for one in history.evals if one.segment >= begin
        ),
        saves=tuple(
            replace(one, segment=one.segment - begin) for one in history.saves if one.segment >= begin
        ),
        segments=history.segments[begin:],
        first_update_ms=None,  # of the first process
    )
    return alone, compute_facts(alone)


def _run_start_segments(history: RunLog) -> list[int]:
    """The segments that runs begin with; one that logged nothing is none. A journal is of one run."""
    if history.trainer.one_run_per_log:
        return [0]
    alive = {int(segment) for segment in np.unique(history.steps.segment)}
    alive |= {done.segment for done in history.evals}
    begins = [
        segment
        for segment in range(1, len(history.segments))
        if segment in alive and not continues_previous(history, segment)
    ]
    before = any(segment in alive for segment in range(begins[0])) if begins else True
    return [0, *begins] if before else begins


def _select_rows(steps: Steps, kept: Bools, begin: int) -> Steps:
    memory, tokens = steps.memory_bytes, steps.tokens
    return Steps(
        iteration=steps.iteration[kept],
        segment=steps.segment[kept] - begin,
        loss=steps.loss[kept],
        has_loss=steps.has_loss[kept],
        ms=steps.ms[kept],
        mfu=steps.mfu[kept],
        lr=steps.lr[kept],
        grad_norm=steps.grad_norm[kept],
        tokens_per_s=steps.tokens_per_s[kept],
        memory_bytes=None if memory is None else memory[kept],
        tokens=None if tokens is None else tokens[kept],
    )
