"""RunLogs made by hand, of nanoGPT unless a test says otherwise. Their numbers are clamped as in any log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from glassgpt.config import ConfigValue
from glassgpt.runs.log_numbers import clamped, clamped_steps
from glassgpt.runs.run_log import (
    LogEvent,
    LoggedCheckpoint,
    LoggedEvaluation,
    LoggedProcess,
    LoggedSetup,
    RunLog,
    Steps,
)
from glassgpt.runs.trainers import BY_ID

NANOGPT = BY_ID["nanogpt"]


def make_steps(
    iterations: Sequence[int],
    ms: Sequence[float] | float = 100.0,
    loss: Sequence[float] | None = None,
    segment: Sequence[int] | None = None,
    **columns: Sequence[float],
) -> Steps:
    """Columns that are not given are NaN."""
    count = len(iterations)
    names = ("mfu", "lr", "grad_norm", "tokens_per_s")
    rest = {name: np.asarray(columns.get(name, [np.nan] * count), dtype=float) for name in names}
    steps = Steps(
        iteration=np.asarray(iterations, dtype=np.int64),
        segment=np.asarray(segment if segment is not None else [0] * count, dtype=np.int64),
        line=np.arange(1, count + 1),
        loss=np.asarray(loss if loss is not None else [np.nan] * count, dtype=float),
        has_loss=np.full(count, loss is not None),
        ms=np.broadcast_to(np.asarray(ms, dtype=float), (count,)).copy(),
        **rest,
    )
    return clamped_steps(steps)


def make_run_log(
    steps: Steps,
    evals: Sequence[tuple[int, float | None, float]] = (),  # iteration, train loss, validation loss
    checkpoints: Sequence[int] = (),
    settings: Mapping[str, ConfigValue] | None = None,
    events: Sequence[LogEvent] = (),
    **changes: object,
) -> RunLog:
    whole = RunLog(
        trainer=NANOGPT,
        name="run.log",
        steps=steps,
        evals=tuple(LoggedEvaluation(at, 0, val, train) for at, train, val in evals),
        checkpoints=tuple(LoggedCheckpoint(at, 0) for at in checkpoints),
        segments=(LoggedProcess(has_startup=True, first_iteration=0),),
        events=tuple(events),
        setup=LoggedSetup(settings=dict(settings or {})),
    )
    return clamped(replace(whole, **changes))  # type: ignore[arg-type]
