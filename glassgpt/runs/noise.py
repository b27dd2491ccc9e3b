"""How noisy one evaluation is, and which difference of two evaluations is more than noise.

    clear_difference(noise, loss)  # nothing is called better, worse, falling or overfitted below this

Estimated, in this order, from the standard error that the trainer prints; from the scatter of single batches,
where evaluations draw random ones; from the number of tokens evaluated; from the scatter of the evaluations.
Within a run it is at least that scatter: batches of training text say little about those of validation text
once the model has memorised the former.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from glassgpt.runs.curve_statistics import detrended_std
from glassgpt.runs.run_log import Floats, LoggedEvaluation, RunLog
from glassgpt.runs.trajectory import positive_int_setting, settings_product

NoiseSource = Literal["stderr", "batches", "tokens", "scatter"]

_MIN_BATCH_LOSSES = 20  # for the standard deviation of a batch's loss
_MIN_EVALS = 8  # for the standard deviation of evaluations
# Standard errors of a difference of two evaluations: from the first on it may be chance no longer, from the
# second on one is called better than the other.
VISIBLE_STANDARD_ERRORS, CLEAR_STANDARD_ERRORS = 2.0, 3.0
MIN_FALLING_LOSSES = 4  # for a slope
DEFAULT_CLEAR_SHARE = 0.01  # of the loss: a clear difference, where the noise is not known
# Over the noise expected from the tokens: below this the logged losses are means, not losses of single
# batches.
_MIN_SHARE_OF_TOKEN_NOISE = 1 / 3


@dataclass(frozen=True)
class EvalNoise:
    """About one standard deviation of one evaluation. It does not include the noise of other seeds."""

    std: float
    source: NoiseSource
    eval_tokens: int | None = None  # per evaluation, if the source is "tokens"
    batch_std: float | None = None  # of one batch's loss, if the source is "batches"
    eval_batches: float | None = None  # per evaluation, likewise

    def difference(self, standard_errors: float) -> float:
        """A difference of two evaluations that is so many of its standard errors."""
        return standard_errors * math.sqrt(2) * self.std


def clear_difference(noise: EvalNoise | None, loss: float) -> float:
    """The smallest difference of two evaluations that is more than noise. `loss`: of one of them."""
    return noise.difference(CLEAR_STANDARD_ERRORS) if noise else DEFAULT_CLEAR_SHARE * abs(loss)


def falls_clearly(at: Floats, losses: Floats, noise: EvalNoise, share: float = 0.5) -> bool:
    """Whether the last share of these losses falls by more than noise, and the end has not turned up."""
    late = max(MIN_FALLING_LOSSES, int(len(losses) * share))
    x, y = at[-late:] - np.mean(at[-late:]), losses[-late:]
    spread = float(np.sum(x * x))
    if len(y) < MIN_FALLING_LOSSES or spread <= 0:
        return False
    slope = float(np.sum(x * y)) / spread
    return -slope > CLEAR_STANDARD_ERRORS * noise.std / math.sqrt(spread) and bool(y[-1] < np.median(y))


def estimate_eval_noise(
    run_log: RunLog, evals: Sequence[LoggedEvaluation], losses: Floats, within_run: bool = False
) -> EvalNoise | None:
    """`evals` and the training `losses` are those of the trajectory. `within_run`: for differences between
    evaluations of this run. If they are all of the same tokens, they share their sampling error, and only
    their scatter counts; else that is the least it can be."""
    values = np.array([evaluation.val_loss for evaluation in evals], dtype=np.float64)
    if not len(values):
        return None
    scatter = noise_from_scatter(values)
    if within_run and run_log.trainer.evaluates_same_tokens:
        return scatter
    sampling = _sampling_noise(run_log, evals, values, losses)
    if sampling is None:
        return scatter
    is_monotonic = bool(np.all(np.diff(values[len(values) // 3 :]) < 0))  # then the scatter is its bend
    return scatter if within_run and scatter and not is_monotonic and scatter.std > sampling.std else sampling


def _sampling_noise(
    run_log: RunLog, evals: Sequence[LoggedEvaluation], values: Floats, losses: Floats
) -> EvalNoise | None:
    """Of an evaluation as a sample of the text: by its standard error, its batches or its tokens."""
    stderrs = [evaluation.stderr for evaluation in evals if evaluation.stderr]
    if stderrs:
        return EvalNoise(float(np.median(stderrs)), "stderr")

    by_tokens = by_batches = None
    tokens, best = tokens_per_eval(run_log), float(values.min())
    if tokens and best > 0:  # the standard deviation of a token's loss is about its mean
        by_tokens = EvalNoise(best / math.sqrt(tokens), "tokens", tokens)
    batches, late = positive_int_setting(run_log, "eval_iters"), losses[len(losses) // 2 :]
    draws_batches = run_log.trainer.evaluates_random_batches and run_log.val_metric == "loss"
    if draws_batches and batches and len(late) >= _MIN_BATCH_LOSSES:
        batch_std = detrended_std(late)
        if batch_std:
            by_batches = EvalNoise(batch_std / math.sqrt(batches), "batches", None, batch_std, batches)
    if by_batches and (by_tokens is None or by_batches.std >= _MIN_SHARE_OF_TOKEN_NOISE * by_tokens.std):
        return by_batches
    return by_tokens


def noise_from_scatter(values: Floats) -> EvalNoise | None:
    """From the scatter of evaluations around their trend, without the steep beginning."""
    std = detrended_std(values[len(values) // 3 :]) if len(values) >= _MIN_EVALS else None
    return EvalNoise(std, "scatter") if std else None


def tokens_per_eval(run_log: RunLog) -> int | None:
    """Per evaluation and split: as logged, or eval_tokens, or eval_iters x batch_size x block_size."""
    logged = [evaluation.tokens for evaluation in run_log.evals if evaluation.tokens]
    if logged:
        return int(np.median(logged))
    eval_tokens = positive_int_setting(run_log, "eval_tokens")
    return eval_tokens or settings_product(run_log, "eval_iters", "batch_size", "block_size")
