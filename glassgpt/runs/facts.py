"""Facts: a run in numbers. A fact that the log does not support is None, never a guess.

    compute_facts(read_run_log("train.log")).steady_ms

docs/explain.md defines every one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from glassgpt.estimate import flops
from glassgpt.runs.exit_status import infer_exit_status
from glassgpt.runs.inference import device_count, stated_peak_flops
from glassgpt.runs.run_log import ExitStatus, Floats, LoggedCheckpoint, LoggedEvaluation, RunLog
from glassgpt.runs.trajectory import settings_product


@dataclass(frozen=True)
class Facts:
    iterations_logged: int
    first_iteration: int | None
    last_iteration: int | None
    log_interval: int | None
    tokens_per_iteration: int | None
    parameters: int | None
    steady_ms: float | None  # median over iterations without evaluation, checkpoint or start-up
    steady_p95_ms: float | None
    first_iteration_ms: float | None
    startup_ms: float | None  # the first iteration minus a steady one and its evaluation
    eval_steps: list[int] | None
    # Median over iterations with an evaluation, except a process's first, minus steady_ms.
    eval_overhead_ms: float | None
    checkpoint_steps: list[int] | None
    estimated_total_s: float | None  # logged times; iterations between two lines count as steady_ms
    overhead_share: float | None  # evaluation, checkpoints and start-up over that, 0 to 1
    tokens_per_s: float | None
    mfu_reported_steady: float | None  # percent, median
    flops_per_token: float | None
    achieved_tflops: float | None
    val_metric: Literal["loss", "bits_per_byte"] | None
    best_val_loss: float | None
    best_val_step: int | None
    final_val_loss: float | None
    final_train_loss: float | None  # of the last evaluation
    loss_first: float | None
    loss_last: float | None
    nan_step: int | None
    segments: int
    ended: ExitStatus | None

    def as_dict(self) -> dict[str, object]:
        return dataclasses.asdict(self)


def compute_facts(run_log: RunLog) -> Facts:
    steps, evals = run_log.steps, run_log.evals
    steady = run_log.is_steady()
    steady_ms = _median(steps.ms[steady])
    tokens = infer_tokens_per_iteration(run_log)
    if tokens and steady_ms:
        tokens_per_s: float | None = tokens / steady_ms * 1000
    else:
        rows = steady if steady.any() else ~run_log.is_first_of_process()  # no row is steady without times
        printed = steps.tokens_per_s[rows]
        tokens_per_s = _median(printed[np.isfinite(printed)])
    mfu = _median(steps.mfu[np.isfinite(steps.mfu)])
    flops_per_token = _flops_per_token(run_log, mfu, steady_ms, tokens)
    achieved = _reported_flops_per_s(run_log, mfu)
    if flops_per_token and tokens_per_s:
        achieved = flops_per_token * tokens_per_s

    first_ms = run_log.first_update_ms or None
    if not first_ms and len(steps) and math.isfinite(steps.ms[0]):
        first_ms = float(steps.ms[0])
    with_eval = run_log.includes_eval() & ~run_log.is_first_of_process() & np.isfinite(steps.ms)
    eval_ms = _median(steps.ms[with_eval])
    eval_overhead_ms = eval_ms - steady_ms if eval_ms is not None and steady_ms is not None else None
    total_s = _estimate_total_s(run_log, steady_ms)

    losses = steps.loss[steps.has_loss]
    nan_rows = np.flatnonzero(np.isnan(steps.loss) & steps.has_loss)
    val_evals = [done for done in evals if done.val_loss is not None]
    comparable = [done for done in val_evals if not math.isnan(_val_loss(done))]
    best = min(comparable, key=_val_loss, default=None)
    return Facts(
        iterations_logged=len(steps),
        first_iteration=_iteration(run_log, 0),
        last_iteration=_iteration(run_log, -1),
        log_interval=run_log.log_interval(),
        tokens_per_iteration=tokens,
        parameters=run_log.setup.parameters or run_log.setup.trained_parameters,
        steady_ms=steady_ms,
        steady_p95_ms=float(np.percentile(steps.ms[steady], 95)) if steady.any() else None,
        first_iteration_ms=first_ms,
        startup_ms=_startup_ms(run_log, first_ms, steady_ms, eval_overhead_ms),
        eval_steps=_iterations(run_log, evals),
        eval_overhead_ms=eval_overhead_ms,
        checkpoint_steps=_iterations(run_log, run_log.checkpoints),
        estimated_total_s=total_s,
        overhead_share=_overhead_share(run_log, steady_ms, total_s),
        tokens_per_s=tokens_per_s,
        mfu_reported_steady=mfu,
        flops_per_token=flops_per_token,
        achieved_tflops=achieved / 1e12 if achieved else None,
        val_metric=run_log.val_metric if val_evals else None,
        best_val_loss=best.val_loss if best else None,
        best_val_step=best.iteration if best and run_log.has_iteration_numbers else None,
        final_val_loss=val_evals[-1].val_loss if val_evals else None,
        final_train_loss=evals[-1].train_loss if evals else None,
        loss_first=float(losses[0]) if len(losses) else None,
        loss_last=float(losses[-1]) if len(losses) else None,
        nan_step=_iteration(run_log, int(nan_rows[0])) if len(nan_rows) else None,
        segments=len(run_log.segments),
        ended=infer_exit_status(run_log),
    )


def _iteration(run_log: RunLog, row: int) -> int | None:
    return int(run_log.steps.iteration[row]) if len(run_log.steps) and run_log.has_iteration_numbers else None


def _iterations(run_log: RunLog, items: Sequence[LoggedEvaluation | LoggedCheckpoint]) -> list[int] | None:
    """Each once, in order. None where there are items, and the log does not say at which iterations."""
    iterations = {item.iteration for item in items if item.iteration is not None}
    return sorted(iterations) if run_log.has_iteration_numbers and (iterations or not items) else None


def _val_loss(evaluation: LoggedEvaluation) -> float:
    return math.nan if evaluation.val_loss is None else evaluation.val_loss


def _median(values: Floats) -> float | None:
    return float(np.median(values)) if len(values) else None


# --- time ---


def _startup_ms(
    run_log: RunLog, first_ms: float | None, steady_ms: float | None, eval_overhead_ms: float | None
) -> float | None:
    """What the first iteration's time has beyond a steady step and its evaluation."""
    if first_ms is None or steady_ms is None:
        return None
    if run_log.first_update_ms is not None:
        return max(0.0, first_ms - steady_ms)
    if not run_log.is_first_of_process()[0]:
        return None
    evaluates = bool(run_log.includes_eval()[0]) or run_log.trainer.evaluates_before_first_step
    if evaluates and eval_overhead_ms is None:
        return None if run_log.includes_eval()[0] else max(0.0, first_ms - steady_ms)
    return max(0.0, first_ms - steady_ms - (eval_overhead_ms if evaluates and eval_overhead_ms else 0.0))


def _estimate_total_s(run_log: RunLog, steady_ms: float | None) -> float | None:
    """The logged times, plus steady_ms for every iteration between two lines or without a time.

    Where a resume changed the batch size, each process has its own steady time.
    """
    if run_log.ledger is not None:
        return sum(run_log.ledger.values())
    if steady_ms is None:
        return None
    steps = run_log.steps
    is_timed = np.isfinite(steps.ms)
    timed_ms = float(steps.ms[is_timed].sum())
    if not run_log.has_varying_batch_tokens:
        return (timed_ms + (run_log.iteration_count() - int(is_timed.sum())) * steady_ms) / 1000
    usual = is_timed & ~run_log.is_first_of_process() & ~run_log.includes_eval()
    untimed_ms = 0.0
    for segment in np.unique(steps.segment):
        rows = steps.segment == segment
        segment_ms = _median(steps.ms[rows & usual])
        iterations = int(steps.iteration[rows][-1] - steps.iteration[rows][0]) + 1
        untimed = iterations - int(is_timed[rows].sum())
        untimed_ms += untimed * (steady_ms if segment_ms is None else segment_ms)
    return (timed_ms + untimed_ms) / 1000


def _overhead_share(run_log: RunLog, steady_ms: float | None, total_s: float | None) -> float | None:
    """Of start-up, evaluations and checkpoints. None where the trainer's step times exclude evaluations."""
    if not total_s:
        return None
    if run_log.ledger is not None:
        overhead = ("startup", "compile", "eval", "checkpoint")
        return sum(run_log.ledger.get(name, 0.0) for name in overhead) / total_s
    if steady_ms is None or not run_log.trainer.step_time_includes_eval:
        return None
    ms = run_log.steps.ms
    slow = (run_log.is_first_of_process() | run_log.includes_eval()) & np.isfinite(ms)
    return float(np.maximum(ms[slow] - steady_ms, 0.0).sum()) / 1000 / total_s


# --- tokens, parameters and FLOPs ---


def infer_tokens_per_iteration(run_log: RunLog) -> int | None:
    """As logged, or from the settings, or from tokens per second."""
    setup, steps = run_log.setup, run_log.steps
    if setup.tokens_per_iteration:
        return setup.tokens_per_iteration
    product = settings_product(run_log, "batch_size", "block_size", "gradient_accumulation_steps")
    if run_log.trainer.settings_give_batch_tokens and product:
        return product
    if run_log.trainer.tokens_per_s_is_of_step:
        rows = run_log.is_steady() & ~np.isnan(steps.tokens_per_s)
        tokens = _median((steps.tokens_per_s * steps.ms / 1000)[rows])
        return round(tokens) if tokens else None
    return None


def _flops_per_token(
    run_log: RunLog, mfu: float | None, steady_ms: float | None, tokens: int | None
) -> float | None:
    """As logged; else from the shape of the model; else from the reported MFU."""
    setup = run_log.setup
    if setup.flops_per_token:
        return setup.flops_per_token
    parameters = parameters_without_positions(run_log)
    shape = [setup.settings.get(name) for name in ("n_layer", "n_embd", "block_size")]
    if parameters and all(isinstance(size, int) for size in shape):
        n_layer, n_embd, block_size = (size for size in shape if isinstance(size, int))
        return float(flops.flops_per_token(parameters, n_layer, n_embd, block_size))
    achieved = _reported_flops_per_s(run_log, mfu)
    return achieved * steady_ms / 1000 / tokens if achieved and steady_ms and tokens else None


def _reported_flops_per_s(run_log: RunLog, mfu: float | None) -> float | None:
    """From an MFU whose peak is known, on all devices. An MFU below 1 % is rounded too much."""
    peak = stated_peak_flops(run_log)
    return mfu / 100 * peak * device_count(run_log) if peak and mfu and mfu >= 1 else None


def parameters_without_positions(run_log: RunLog) -> int | None:
    """N of 6N: exact where the optimizer's groups and the shape are known, else as logged."""
    setup = run_log.setup
    logged, trained = setup.parameters, setup.trained_parameters
    if logged and run_log.trainer.states_exact_parameters:
        return logged
    sizes = [setup.settings.get(name) for name in ("block_size", "n_embd")]
    if trained and all(isinstance(size, int) for size in sizes):
        exact = trained - math.prod(size for size in sizes if isinstance(size, int))
        if logged is None or math.isclose(exact, logged, rel_tol=0.01, abs_tol=5000):
            return exact
    return logged
