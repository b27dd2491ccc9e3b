"""The loop's journal records: of a run, an interval of updates, an evaluation, a sample, an end.

docs/journal.md explains every field.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from glassgpt.data.dataset import Dataset
from glassgpt.data.ladder import Ladder
from glassgpt.estimate import flops, overheads
from glassgpt.estimate.local_history import HistoryRow
from glassgpt.estimate.measured_speed import work_key
from glassgpt.estimate.step_timing import compute_rates, eta_s, remaining_work
from glassgpt.model.gpt import GPTConfig
from glassgpt.record import machine
from glassgpt.record.journal import JOURNAL_VERSION, Record
from glassgpt.record.ledger import RankTimes
from glassgpt.record.run_requests import RunRequested
from glassgpt.schedule import learning_rate
from glassgpt.training import probe
from glassgpt.training.checkpoint.checkpoints import list_checkpoints
from glassgpt.training.evaluate import EvalResult
from glassgpt.training.train_state import TrainingProgress, TrainSetup, TrainState
from glassgpt.version import VERSION


def run_record(run: TrainSetup, state: TrainState, ladder: Ladder | None) -> Record:
    """What this process is about to do, on what machine, and why so. `ladder`: of its text, where known."""
    peak = run.compute_plan.peak
    # Of the whole run. Updates before a resume may have had another batch size.
    updates_left = max(0, run.config.max_iters - state.progress.iter)
    sequences = state.progress.sequences + updates_left * run.batch_plan.sequences
    tokens = sequences * run.config.block_size * run.loader.target_share
    data = data_fields(run.dataset) | {
        "tokenizer_digest": run.tokenizer_digest,
        "epochs": tokens / len(run.splits["train"]),
        "ladder": None if ladder is None else [dataclasses.asdict(rung) for rung in ladder.rungs],
        "passage": dict(run.passage),
    }
    record = {
        "kind": "run",
        "journal_version": JOURNAL_VERSION,
        "iter": state.progress.iter,
        "phases": {name: seconds * 1000 for name, seconds in state.interval.opened.items()},
        "out_dir": str(run.run_dir),
        "config": dataclasses.asdict(run.config),
        "choices": [dataclasses.asdict(choice) for choice in run.choices],
        "facts": run.compute_plan.facts_record,
        "model": model_fields(run.learner.model.config),
        "batch": dataclasses.asdict(run.batch_plan),
        "peak": dataclasses.asdict(peak) | {"value": peak.value, "source": peak.source},
        "data": data,
        "machine": probe.describe_machine(str(run.execution.device)),
        "forecast": state.forecast_check.forecast.as_dict() | _loss_forecast(state),
    }
    group = run.process_group
    if group.launch_id:
        record["team"] = {
            "size": group.world_size,
            "per_machine": group.local_world_size,
            "backend": next(choice.value for choice in run.choices if choice.name == "backend"),
            "shard": run.execution.shard,
            "launch": group.launch_id,
            "attempt": group.restart_count,
        }
    return record


def model_fields(shape: GPTConfig) -> Record:
    """The shape, and the parameters and FLOPs that follow from it."""
    multiplied = flops.model_parameters(shape, shape.vocab_size, matmul_only=True)
    return dataclasses.asdict(shape) | {
        "parameters": flops.model_parameters(shape, shape.vocab_size),
        "parameters_without_positions": flops.model_parameters(shape, shape.vocab_size, positions=False),
        "parameters_multiplied": multiplied,
        "flops_per_token": flops.model_flops_per_token(shape, shape.vocab_size),
        "flops_convention": flops.FLOPS_CONVENTION,
        "plain_flops_per_token": flops.six_n_flops_per_token(multiplied),
    }


def data_fields(dataset: Dataset) -> Record:
    manifest = dataset.manifest
    return {
        "name": manifest.name,
        "hash": dataset.hash,
        "tokenizer": manifest.tokenizer,
        "vocab_size": manifest.vocab_size,
        "tokens": dict(manifest.tokens),
        "bytes_per_token": {split: dataset.bytes_per_token(split) for split in manifest.tokens},
    }


def _loss_forecast(state: TrainState) -> Record:
    """The validation loss to expect, as a band over the updates."""
    curve = state.forecast_check.expectation
    if curve is None:
        return {"loss_curve": None, "overfits_at": None}
    points = [[point.iteration, point.low, point.mid, point.high] for point in curve.points]
    return {"loss_curve": points, "overfits_at": curve.overfits_at}


@dataclass(frozen=True)
class IntervalMeasures:
    """What was measured of the updates since the last step record."""

    updates: int  # that count for the step time
    seconds: float  # of these updates
    first_update_s: float | None  # of the first update of a process, which is in no step time
    phases: Mapping[str, float]  # seconds
    memory: Mapping[str, int]
    rank_times: RankTimes | None = None  # None with one process
    rank_memory: Sequence[float] = ()


def step_record(run: TrainSetup, state: TrainState, measured: IntervalMeasures) -> Record:
    """The updates since the last step record."""
    config, progress, plan, compute = run.config, state.progress, run.batch_plan, run.compute_plan
    updates, seconds, first_s = measured.updates, measured.seconds, measured.first_update_s
    rates = compute_rates(
        updates, seconds, plan.tokens, compute.flops_per_token, compute.peak, run.process_group.world_size
    )
    record: Record = {
        "kind": "step",
        "iter": progress.iter,
        "loss": progress.losses[-1],
        "loss_mean": sum(progress.losses) / len(progress.losses),
        "lr": learning_rate(config, progress.iter - 1),
        "grad_norm": progress.norms[-1],
        "clipped": sum(norm > config.grad_clip > 0 for norm in progress.norms) / len(progress.norms),
        "tokens": progress.sequences * config.block_size,
        "updates": len(progress.losses),
        "step_ms": rates.step_ms,
        "first_update_ms": None if first_s is None else first_s * 1000,
        "phases": {name: phase_s * 1000 for name, phase_s in measured.phases.items()},
        "tokens_per_s": rates.tokens_per_s,
        "flops_per_s": rates.flops_per_s,
        "mfu": rates.mfu,
        "memory": dict(measured.memory),
        "eta_s": _eta_s(run, state, seconds / updates if updates else None),
    }
    if run.learner.scaler.is_enabled():
        record["loss_scale"] = run.learner.scaler.get_scale()
    if (times := measured.rank_times) and updates:
        record["ranks"] = {
            "work_ms": [1000 * value / updates for value in times.compute_s],
            "exchange_ms": [1000 * value / updates for value in times.communication_s],
            "slowest": times.slowest_rank,
            "memory": [int(used_bytes) for used_bytes in measured.rank_memory],
        }
    return record


def _eta_s(run: TrainSetup, state: TrainState, step_s: float | None) -> float | None:
    config, progress = run.config, state.progress
    closing_eval = 0.0
    if run.has_closing_eval:
        closing_eval = len(run.splits["val"]) / (2 * run.eval_tokens)  # other evaluations are of two splits
    # A step is logged before the evaluation at its iteration, except by a run that ends.
    work = remaining_work(
        progress.iter,
        config.max_iters,
        config.eval_interval,
        config.checkpoint_interval,
        is_evaluated=progress.val_loss is not None,
        closing_eval=closing_eval,
    )
    return eta_s(work, step_s, state.eval_cost.value, state.save_cost.value)


def take_revised_forecast(run: TrainSetup, state: TrainState) -> Record | None:
    """Once, after some seconds of updates: the forecast by their measured speed, which replaces the first."""
    check, config, done = state.forecast_check, run.config, state.progress.iter
    device_type = run.execution.device.type
    band = check.measured_band(device_type)
    if band is None or done >= config.max_iters:
        return None
    tokens, seconds = (sum(values) for values in zip(*check.first_intervals, strict=True))
    elapsed_s = sum(run.ledger.seconds().values()) - check.tuning_s
    sampling_s = 0.0
    if run.sampling is not None:
        sampling_s = overheads.sample_s(device_type, config.n_layer, config.sample_tokens)
    remaining: list[float] = []
    for rate in reversed(band):  # the fastest first: the shortest time
        eta = _eta_s(run, state, run.batch_plan.tokens / rate)
        assert eta is not None
        remaining.append(eta + sampling_s)
    total = (elapsed_s + remaining[0], elapsed_s + remaining[1], elapsed_s + remaining[2])
    check.revised_total_s = total
    check.first_intervals.clear()
    return {
        "kind": "forecast",
        "iter": done,
        "updates": round(tokens / run.batch_plan.tokens),
        "seconds": seconds,
        "tokens_per_s": list(band),
        "remaining_s": remaining,
        "total_s": list(total),
    }


def eval_record(
    run: TrainSetup,
    progress: TrainingProgress,
    split: str,
    result: EvalResult,
    seconds: dict[str, float],
    closing: bool = False,
) -> Record:
    """`seconds`: by phase. `closing`: the whole split at the end, which is not compared with sampled ones."""
    per_token = run.dataset.bytes_per_token(split)
    return {
        "kind": "eval",
        "iter": progress.iter,
        "split": split,
        "loss": result.loss,
        "stderr": result.stderr,
        "tokens": result.tokens,
        "whole_split": result.tokens == len(run.splits[split]) - 1,
        "closing": closing,
        "best": split == "val" and not closing and result.loss < progress.best_val_loss,
        "perplexity": result.perplexity,
        "bits_per_byte": result.bits_per_byte(per_token) if per_token else None,
        "ms": seconds["eval"] * 1000,
        "compile_ms": seconds["compile"] * 1000,
        **result.parts,
    }


def sample_record(iteration: int, text: str, seconds: float) -> Record:
    return {"kind": "sample", "iter": iteration, "text": text, "ms": seconds * 1000}


def request_record(iteration: int, request: RunRequested) -> Record:
    return {
        "kind": "request",
        "iter": iteration,
        "id": request.id,
        "action": request.action,
        "by": request.by,
        "requested_at": request.time,
    }


def resume_record(from_iter: int, warnings: Sequence[str] = ()) -> Record:
    """Supersedes what the journal says after `from_iter`: all of it (-1) if a run starts again."""
    return {"kind": "resume", "iter": max(0, from_iter), "from_iter": from_iter, "complaints": [*warnings]}


def ran_in_one_process(run: TrainSetup, reason: str) -> bool:
    """Whether this process did the whole run, from scratch to its end, as the forecast assumes."""
    return (
        reason == "finished" and run.run_dir_handle.process_number == 0 and run.config.init_from == "scratch"
    )


def history_row(run: TrainSetup, state: TrainState) -> HistoryRow | None:
    """What this process measured, for the local history; None: too little to learn from."""
    check, compute = state.forecast_check, run.compute_plan
    if check.tokens_per_s is None:
        return None
    ranks, is_cpu = run.process_group.world_size, run.execution.device.type == "cpu"
    ledger = run.ledger.seconds()
    now = machine.read_cpu_times()
    return HistoryRow(
        machine=compute.machine_name,
        work=work_key(compute.spec.workload),
        flops_per_token=compute.flops_per_token,
        ranks=ranks,
        threads=torch.get_num_threads() if is_cpu else None,
        tokens_per_s=check.tokens_per_s / ranks,
        seconds=check.seconds,
        updates=max(1, round(check.tokens / run.batch_plan.tokens)),
        peak_flops_per_s=compute.peak.value,
        peak_bytes=check.measured_memory_bytes or None,
        start_s=ledger["startup"] + ledger["compile"] - check.tuning_s,
        busy_cores=machine.cores_used_by_others(check.cpu_times_before, now),
        torch=str(torch.__version__),
        glassgpt=VERSION,
        day=time.strftime("%Y-%m-%d", time.gmtime()),
    )


def end_record(
    run: TrainSetup, state: TrainState, reason: str, exit_code: int, details: Record | None
) -> Record:
    """The end of a process, with its time by phase. `details`: further fields."""
    ledger = run.ledger.seconds()
    last_checkpoint = list_checkpoints(run.run_dir).latest
    wall_s = sum(ledger.values())
    record = {
        "kind": "end",
        "iter": state.progress.iter,
        "reason": reason,
        "exit_code": exit_code,
        "best_val_loss": state.progress.best_val_loss,
        "best_iter": state.progress.best_iter,
        "last_checkpoint": str(last_checkpoint.path) if last_checkpoint else None,
        "ledger": ledger,
        "wall_s": wall_s,
        "forecast": state.forecast_check.as_dict(wall_s, ran_in_one_process(run, reason)),
    }
    if run.sink.has_moved:
        record["out_dir"] = str(run.run_dir)
    if state.rank_time is not None:
        # With --shard all-reduce is part of computing, and the two cannot be distinguished.
        times, is_known = state.rank_time, not run.execution.shard
        record["ranks"] = {
            "work_s": list(times.compute_s),
            "exchange_s": list(times.communication_s),
            "slowest": times.slowest_rank,
            "exchanging": times.communication_share if is_known else None,
            "waiting": times.waiting_share if is_known else None,
            "efficiency": times.scaling_efficiency if is_known else None,
        }
    return record | (details or {})
