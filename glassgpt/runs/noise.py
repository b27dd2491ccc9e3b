"""How far one evaluation can be trusted: by how much its loss would differ if other tokens had been drawn.

What follows from most comes first: what the trainer itself says; how single batches scatter, where it draws
fresh ones; how many tokens are evaluated; how the evaluations scatter around their course.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from glassgpt.runs.curve import detrended_std
from glassgpt.runs.run_log import Floats, LoggedEvaluation, RunLog

NoiseSource = Literal["stderr", "batches", "tokens", "scatter"]

_MIN_BATCH_LOSSES = 20  # losses of single batches, for their scatter to be known within a fifth
_MIN_EVALS = 8  # for theirs
_MIN_SHARE_OF_TOKEN_NOISE = (
    1 / 3
)  # of what the tokens let expect: the losses logged are no single batches', but means


@dataclass(frozen=True)
class EvalNoise:
    """About one standard deviation of one evaluation. Other seeds add theirs, which one run cannot show."""

    std: float
    source: NoiseSource
    eval_tokens: int | None = None  # per evaluation, where it follows from those
    batch_std: float | None = None  # the standard deviation of one batch's loss, where it follows from that
    eval_batches: float | None = None  # evaluated


def estimate_eval_noise(
    history: RunLog, evals: Sequence[LoggedEvaluation], losses: Floats, of_one_course: bool = False
) -> EvalNoise | None:
    """`evals` and the training `losses` are those that count, in order. `of_one_course`: for the differences
    between evaluations of this run, of which those on always the same tokens have only their scatter."""
    values = np.array([done.val_loss for done in evals if _is_finite(done.val_loss)], dtype=np.float64)
    if not len(values):
        return None
    if of_one_course and uses_fixed_eval_tokens(history):
        return noise_from_scatter(values)
    said = _noise_said(evals)
    if said:
        return said
    by_tokens = _noise_by_tokens(history, values)
    by_batches = _noise_by_batches(history, losses)
    if by_batches and (by_tokens is None or by_batches.std >= _MIN_SHARE_OF_TOKEN_NOISE * by_tokens.std):
        return by_batches
    return by_tokens or noise_from_scatter(values)


def uses_fixed_eval_tokens(history: RunLog) -> bool:
    """Every time, so that what is special about these tokens is in all of the losses."""
    return history.trainer.evaluates_same_tokens


def noise_from_scatter(values: Floats) -> EvalNoise | None:
    """By how losses scatter around their course, the steep beginning left out."""
    spread = _detrended_std_or_none(values[len(values) // 3 :]) if len(values) >= _MIN_EVALS else None
    return EvalNoise(spread, "scatter") if spread else None


def _noise_said(evals: Sequence[LoggedEvaluation]) -> EvalNoise | None:
    errors = [done.stderr for done in evals if done.stderr and _is_finite(done.stderr) and done.stderr > 0]
    return EvalNoise(float(np.median(errors)), "stderr") if errors else None


def _noise_by_batches(history: RunLog, losses: Floats) -> EvalNoise | None:
    """Where every evaluation draws fresh batches, of the size of those whose loss is logged."""
    batches = _count_setting(history, "eval_iters")
    late = losses[len(losses) // 2 :]
    is_fit = history.trainer.evaluates_random_batches and history.val_metric == "loss"
    if not is_fit or not batches or len(late) < _MIN_BATCH_LOSSES:
        return None
    of_batch = _detrended_std_or_none(late)
    return EvalNoise(of_batch / math.sqrt(batches), "batches", None, of_batch, batches) if of_batch else None


def _noise_by_tokens(history: RunLog, values: Floats) -> EvalNoise | None:
    """The losses of single tokens vary about as much as they are large."""
    tokens = tokens_per_eval(history)
    best = float(values.min())
    return EvalNoise(best / math.sqrt(tokens), "tokens", tokens) if tokens and best > 0 else None


def tokens_per_eval(history: RunLog) -> int | None:
    """Per evaluation and split, as the log says or as eval_iters x batch_size x block_size."""
    said = [done.tokens for done in history.evals if done.tokens and done.tokens > 0]
    if said:
        return int(np.median(said))
    total = _count_setting(history, "eval_tokens")
    if total:
        return total
    sides = [_count_setting(history, name) for name in ("eval_iters", "batch_size", "block_size")]
    known = [side for side in sides if side]
    return math.prod(known) if len(known) == 3 else None


def _detrended_std_or_none(values: Floats) -> float | None:
    """None also where losses are so large that their differences are no numbers."""
    with np.errstate(all="ignore"):
        spread = detrended_std(values)
    return spread if spread and math.isfinite(spread) else None


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _count_setting(history: RunLog, name: str) -> int | None:
    value = history.setup.settings.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**15 else None
