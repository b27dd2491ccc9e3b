"""What a log says, in numbers. A fact that the log cannot support is None, never guessed.

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
from glassgpt.runs.run_log import Bools, ExitStatus, Floats, LoggedCheckpoint, LoggedEvaluation, RunLog


@dataclass(frozen=True)
class Facts:
    iterations_logged: int
    first_iteration: int | None
    last_iteration: int | None
    log_interval: int | None
    tokens_per_iteration: int | None
    parameters: int | None
    steady_ms: float | None  # median over iterations that hold no evaluation, checkpoint or start-up
    steady_p95_ms: float | None
    first_iteration_ms: float | None
    startup_ms: float | None  # what the first iteration holds beyond a steady one and its evaluation
    eval_steps: list[int] | None
    # Median over evaluating iterations, a process's first not, minus steady_ms.
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


@np.errstate(over="ignore", invalid="ignore")  # a log may say anything: times of 1e308 have been seen
def compute_facts(history: RunLog) -> Facts:
    steps, evals = history.steps, history.evals
    steady = history.is_steady()
    steady_ms = _median(steps.ms[steady])
    first_ms = history.first_update_ms or (_known(float(steps.ms[0])) if len(steps) else None)
    eval_overhead_ms = _eval_overhead(history, steady_ms)
    tokens = infer_tokens_per_iteration(history)
    tokens_per_s = tokens / steady_ms * 1000 if tokens and steady_ms else _printed_tokens_per_s(history)
    mfu = _median(steps.mfu[np.isfinite(steps.mfu)])
    flops_per_token = _flops_per_token(history, mfu, steady_ms, tokens)
    achieved = (
        flops_per_token * tokens_per_s
        if flops_per_token and tokens_per_s
        else _reported_flops_per_s(history, mfu)
    )
    total_s = _estimate_total_s(history, steady_ms)
    losses = steps.loss[steps.has_loss]
    told = [done for done in evals if done.val_loss is not None]
    best = min((done for done in told if not math.isnan(_val(done))), key=_val, default=None)
    return Facts(
        iterations_logged=len(steps),
        first_iteration=_iteration(history, 0),
        last_iteration=_iteration(history, -1),
        log_interval=history.log_interval(),
        tokens_per_iteration=tokens,
        parameters=history.setup.parameters or history.setup.trained_parameters,
        steady_ms=steady_ms,
        steady_p95_ms=_percentile(steps.ms[steady], 95),
        first_iteration_ms=first_ms,
        startup_ms=_startup_ms(history, first_ms, steady_ms, eval_overhead_ms),
        eval_steps=_numbers(history, evals),
        eval_overhead_ms=eval_overhead_ms,
        checkpoint_steps=_numbers(history, history.saves),
        estimated_total_s=total_s,
        overhead_share=_overhead_share(history, steady_ms, total_s),
        tokens_per_s=tokens_per_s,
        mfu_reported_steady=mfu,
        flops_per_token=flops_per_token,
        achieved_tflops=achieved / 1e12 if achieved else None,
        val_metric=history.val_metric if told else None,
        best_val_loss=best.val_loss if best else None,
        best_val_step=best.iteration if best and history.numbered else None,
        final_val_loss=told[-1].val_loss if told else None,
        final_train_loss=evals[-1].train_loss if evals else None,
        loss_first=float(losses[0]) if len(losses) else None,
        loss_last=float(losses[-1]) if len(losses) else None,
        nan_step=_nan_step(history),
        segments=len(history.segments),
        ended=infer_exit_status(history),
    )


# --- what was logged ---


def _iteration(history: RunLog, index: int) -> int | None:
    return int(history.steps.iteration[index]) if len(history.steps) and history.numbered else None


def _numbers(history: RunLog, events: Sequence[LoggedEvaluation | LoggedCheckpoint]) -> list[int] | None:
    """Each once, in order. None where the log says that there were some, but not when."""
    said = {event.iteration for event in events if event.iteration is not None}
    return sorted(said) if history.numbered and (said or not events) else None


def _nan_step(history: RunLog) -> int | None:
    bad = np.flatnonzero(np.isnan(history.steps.loss) & history.steps.has_loss)
    return _iteration(history, int(bad[0])) if len(bad) else None


def infer_tokens_per_iteration(history: RunLog) -> int | None:
    """As the log says, or from its settings, or from its tokens per second."""
    setup, steps = history.setup, history.steps
    if setup.tokens_per_iteration:
        return setup.tokens_per_iteration
    parts = [setup.settings.get(name) for name in ("batch_size", "block_size", "gradient_accumulation_steps")]
    if history.trainer.settings_give_batch_tokens and all(
        isinstance(part, int) and part > 0 for part in parts
    ):
        return math.prod(part for part in parts if isinstance(part, int))
    if history.trainer.tokens_per_s_is_of_step:
        tokens = _median(
            (steps.tokens_per_s * steps.ms / 1000)[history.is_steady() & ~np.isnan(steps.tokens_per_s)]
        )
        return round(tokens) if tokens and math.isfinite(tokens) else None
    return None


def _printed_tokens_per_s(history: RunLog) -> float | None:
    steady = history.is_steady()  # none where lines say no times
    printed = history.steps.tokens_per_s[steady if steady.any() else ~history.is_first_of_process()]
    return _median(printed[np.isfinite(printed)])


# --- time ---


def _eval_overhead(history: RunLog, steady_ms: float | None) -> float | None:
    holds = history.includes_eval() & ~history.is_first_of_process() & np.isfinite(history.steps.ms)
    spent = _median(history.steps.ms[holds])
    return spent - steady_ms if spent is not None and steady_ms is not None else None


def _startup_ms(
    history: RunLog, first_ms: float | None, steady_ms: float | None, eval_overhead_ms: float | None
) -> float | None:
    if first_ms is None or steady_ms is None:
        return None
    if history.first_update_ms is not None:
        return max(0.0, first_ms - steady_ms)
    if not history.is_first_of_process()[0]:
        return None
    evaluates = bool(history.includes_eval()[0]) or history.trainer.evaluates_before_first_step
    if evaluates and eval_overhead_ms is None:
        return None if history.includes_eval()[0] else max(0.0, first_ms - steady_ms)
    return max(0.0, first_ms - steady_ms - (eval_overhead_ms if evaluates and eval_overhead_ms else 0.0))


def _estimate_total_s(history: RunLog, steady_ms: float | None) -> float | None:
    """The logged times; iterations between two lines, and lines without a time, at the steady time."""
    if history.ledger is not None:
        return sum(history.ledger.values())
    ms = history.steps.ms
    timed = ms[np.isfinite(ms)]
    if steady_ms is None:
        return None
    if history.has_varying_batch_tokens:
        unlogged_ms = _unlogged_ms(history, steady_ms)
    else:
        unlogged_ms = (history.iteration_count() - len(timed)) * steady_ms
    return (float(timed.sum()) + unlogged_ms) / 1000


def _unlogged_ms(history: RunLog, steady_ms: float) -> float:
    """Of the iterations without a time, each at the usual time of its own process."""
    steps, total = history.steps, 0.0
    usual = np.isfinite(steps.ms) & ~history.is_first_of_process() & ~history.includes_eval()
    for segment in np.unique(steps.segment):
        here = steps.segment == segment
        own = _median(steps.ms[here & usual])
        count = int(steps.iteration[here][-1] - steps.iteration[here][0]) + 1
        unlogged = count - int(np.isfinite(steps.ms[here]).sum())
        total += unlogged * (steady_ms if own is None else own)
    return total


def _overhead_share(history: RunLog, steady_ms: float | None, total_s: float | None) -> float | None:
    """None where the trainer's times are without evaluations: nothing says what those took."""
    if not total_s:
        return None
    if history.ledger is not None:
        overhead = ("startup", "compile", "eval", "checkpoint")
        return sum(history.ledger.get(name, 0.0) for name in overhead) / total_s
    if steady_ms is None or not history.trainer.step_time_includes_eval:
        return None
    held: Bools = (history.is_first_of_process() | history.includes_eval()) & np.isfinite(history.steps.ms)
    return float(np.maximum(history.steps.ms[held] - steady_ms, 0.0).sum()) / 1000 / total_s


# --- arithmetic ---


def _flops_per_token(
    history: RunLog, mfu: float | None, steady_ms: float | None, tokens: int | None
) -> float | None:
    """As the log says; else from the shape of the model; else back from the MFU that was reported."""
    setup = history.setup
    if setup.flops_per_token:
        return setup.flops_per_token
    counted = parameters_without_positions(history)
    shape = [setup.settings.get(name) for name in ("n_layer", "n_embd", "block_size")]
    if counted and all(isinstance(part, int) for part in shape):
        n_layer, n_embd, block_size = (part for part in shape if isinstance(part, int))
        return float(flops.flops_per_token(counted, n_layer, n_embd, block_size))
    achieved = _reported_flops_per_s(history, mfu)
    return achieved * steady_ms / 1000 / tokens if achieved and steady_ms and tokens else None


def _reported_flops_per_s(history: RunLog, mfu: float | None) -> float | None:
    """Back from an MFU whose peak is known, which is one device's.

    Printed with two decimals, a small one is too coarse to use.
    """
    peak = history.setup.peak_flops or history.trainer.mfu_peak
    return mfu / 100 * peak * (history.setup.world_size or 1) if peak and mfu and mfu >= 1 else None


def parameters_without_positions(history: RunLog) -> int | None:
    """What 6N counts: exact where the optimizer's groups and the shape are known, else as the log says."""
    setup = history.setup
    said, trained = setup.parameters, setup.trained_parameters
    if said and history.trainer.states_exact_parameters:
        return said
    sizes = [setup.settings.get(name) for name in ("block_size", "n_embd")]
    if trained and all(isinstance(size, int) for size in sizes):
        exact = trained - math.prod(size for size in sizes if isinstance(size, int))
        if said is None or math.isclose(exact, said, rel_tol=0.01, abs_tol=5000):
            return exact
    return said


# --- statistics ---


def _val(done: LoggedEvaluation) -> float:
    return math.nan if done.val_loss is None else done.val_loss


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _median(values: Floats) -> float | None:
    return float(np.median(values)) if len(values) else None


def _percentile(values: Floats, percent: float) -> float | None:
    return float(np.percentile(values, percent)) if len(values) else None
