"""The loop's journal records: of a run, an interval of updates, an evaluation, a sample, an end.

docs/journal.md explains every field.
"""

from __future__ import annotations

import dataclasses
import math

from glassgpt.estimate import flops
from glassgpt.estimate.meter import compute_rates, eta_s
from glassgpt.record.clock import RankTimes
from glassgpt.record.journal import Record
from glassgpt.schedule import learning_rate
from glassgpt.training import probe
from glassgpt.training.checkpoint.checkpoints import readable_checkpoints
from glassgpt.training.evaluate import EvalResult
from glassgpt.training.job import Job


def run_record(job: Job) -> Record:
    """What this process is about to do, on what machine, and why so."""
    shape, manifest, peak = job.model.config, job.dataset.manifest, job.compute_plan.peak
    multiplied = flops.model_parameters(shape, shape.vocab_size, matmul_only=True)
    model = {
        "parameters": flops.model_parameters(shape, shape.vocab_size),
        "parameters_without_positions": flops.model_parameters(shape, shape.vocab_size, positions=False),
        "parameters_multiplied": multiplied,
        "flops_per_token": job.compute_plan.flops_per_token,
        "flops_convention": flops.FLOPS_CONVENTION,
        "plain_flops_per_token": flops.six_n_flops_per_token(multiplied),
    }
    # Of the whole run. Updates before a resume may have had another batch size.
    updates_left = max(0, job.config.max_iters - job.progress.iter)
    sequences = job.progress.sequences + updates_left * job.batch_plan.sequences
    tokens = sequences * job.config.block_size * job.loader.target_share
    data = {
        "name": manifest.name,
        "hash": job.dataset.hash,
        "tokenizer": manifest.tokenizer,
        "tokenizer_digest": job.tokenizer_digest,
        "vocab_size": manifest.vocab_size,
        "tokens": dict(manifest.tokens),
        "bytes_per_token": {split: _bytes_per_token(job, split) for split in job.splits},
        "epochs": tokens / len(job.splits["train"]),
    }
    record = {
        "kind": "run",
        "iter": job.progress.iter,
        "out_dir": str(job.run_dir),
        "config": dataclasses.asdict(job.config),
        "choices": [dataclasses.asdict(choice) for choice in job.choices],
        "model": dataclasses.asdict(shape) | model,
        "batch": dataclasses.asdict(job.batch_plan),
        "peak": dataclasses.asdict(peak) | {"value": peak.value, "source": peak.source},
        "data": data,
        "machine": probe.describe_machine(str(job.execution.device)),
        "forecast": job.forecast_check.forecast.as_dict(),
    }
    group = job.process_group
    if group.launch_id:
        record["team"] = {
            "size": group.world_size,
            "per_machine": group.local_world_size,
            "backend": next(choice.value for choice in job.choices if choice.name == "backend"),
            "shard": job.execution.shard,
            "launch": group.launch_id,
            "attempt": group.restart_count,
        }
    return record


def step_record(job: Job) -> Record:
    """The updates since the last step record. Starts the next interval. Collective: every rank calls it."""
    config, progress, plan, compute = job.config, job.progress, job.batch_plan, job.compute_plan
    updates, first_s = job.interval.updates, job.interval.first_update_s
    seconds, phases = job.interval.close()
    memory = probe.memory_now(str(job.execution.device))
    ranks = _gather_rank_times(job, seconds, updates, memory) if job.process_group.launch_id else None
    job.forecast_check.add(updates * plan.tokens, seconds, phases["data"], memory)
    rates = compute_rates(
        updates, seconds, plan.tokens, compute.flops_per_token, compute.peak, job.process_group.world_size
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
        "phases": {name: phase_s * 1000 for name, phase_s in phases.items()},
        "tokens_per_s": rates.tokens_per_s,
        "flops_per_s": rates.flops_per_s,
        "mfu": rates.mfu,
        "memory": memory,
        "eta_s": _eta_s(job, seconds / updates if updates else None),
    }
    if job.learner.scaler.is_enabled():
        record["loss_scale"] = job.learner.scaler.get_scale()
    if ranks is not None:
        record["ranks"] = ranks
    return record


def _gather_rank_times(job: Job, seconds: float, updates: int, memory: dict[str, int]) -> Record | None:
    """Compute and all-reduce time of every rank. Adds them to the job's totals."""
    all_reduce_s = min(job.process_group.take_all_reduce_s(), seconds)
    rows = job.process_group.all_gather_rows(
        [seconds - all_reduce_s, all_reduce_s, memory.get("allocated_peak", memory["rss"])]
    )
    if not updates:
        return None
    times = RankTimes(tuple(row[0] for row in rows), tuple(row[1] for row in rows))
    job.rank_time = times if job.rank_time is None else job.rank_time + times
    return {
        "work_ms": [1000 * value / updates for value in times.compute_s],
        "exchange_ms": [1000 * value / updates for value in times.communication_s],
        "slowest": times.slowest_rank,
        "memory": [int(row[2]) for row in rows],
    }


def _eta_s(job: Job, step_s: float | None) -> float | None:
    done, end = job.progress.iter, job.config.max_iters
    # A step is logged before the evaluation at its iteration, except by a run that ends.
    evaluated = done - (job.progress.val_loss is None)
    evaluations: float = _multiples_between(evaluated, end, job.config.eval_interval)
    interval = job.config.checkpoint_interval
    saves = evaluations if interval is None else _multiples_between(evaluated, end, interval)
    if job.config.closing_eval and job.eval_tokens < len(job.splits["val"]) - 1:
        evaluations += len(job.splits["val"]) / (2 * job.eval_tokens)  # other evaluations are of two splits
    return eta_s(end - done, step_s, evaluations, job.eval_cost.value, saves, job.save_cost.value)


def _multiples_between(start: int, end: int, interval: int) -> int:
    """How many multiples of `interval` come after `start`, up to `end`. The end always counts as one."""
    return end // interval - start // interval + (end % interval != 0) if start < end else 0


def eval_record(
    job: Job, split: str, result: EvalResult, seconds: dict[str, float], closing: bool = False
) -> Record:
    """`seconds`: by phase. `closing`: the whole split at the end, which is not compared with sampled ones."""
    bytes_per_token = _bytes_per_token(job, split)
    return {
        "kind": "eval",
        "iter": job.progress.iter,
        "split": split,
        "loss": result.loss,
        "stderr": result.stderr,
        "tokens": result.tokens,
        "whole_split": result.tokens == len(job.splits[split]) - 1,
        "closing": closing,
        "best": split == "val" and not closing and result.loss < job.progress.best_val_loss,
        "perplexity": result.perplexity,
        "bits_per_byte": result.bits_per_byte(bytes_per_token) if bytes_per_token else None,
        "ms": seconds["eval"] * 1000,
        "compile_ms": seconds["compile"] * 1000,
    }


def _bytes_per_token(job: Job, split: str) -> float | None:
    """None where the length of the text is unknown, as in nanoGPT's folders."""
    value = job.dataset.bytes_per_token(split)
    return None if math.isnan(value) else value


def sample_record(job: Job, text: str, seconds: float) -> Record:
    return {"kind": "sample", "iter": job.progress.iter, "text": text, "ms": seconds * 1000}


def resume_record(job: Job, warnings: list[str]) -> Record:
    """`from_iter` supersedes what the journal says after it."""
    done = job.progress.iter
    return {"kind": "resume", "iter": done, "from_iter": done, "complaints": warnings}


def restart_record() -> Record:
    """A run without a checkpoint starts again: it supersedes all earlier records."""
    return {"kind": "resume", "iter": 0, "from_iter": -1, "complaints": []}


def ran_in_one_process(job: Job, reason: str) -> bool:
    """Whether this process did the whole run, from scratch to its end, as the forecast assumes."""
    return (
        reason == "finished" and job.run_dir_handle.process_number == 0 and job.config.init_from == "scratch"
    )


def end_record(job: Job, reason: str, exit_code: int, details: Record | None) -> Record:
    """The end of a process, with its time by phase. `details`: further fields."""
    ledger = job.ledger.seconds()
    checkpoints = list(readable_checkpoints(job.run_dir))
    wall_s = sum(ledger.values())
    record = {
        "kind": "end",
        "iter": job.progress.iter,
        "reason": reason,
        "exit_code": exit_code,
        "best_val_loss": job.progress.best_val_loss,
        "best_iter": job.progress.best_iter,
        "last_checkpoint": str(checkpoints[-1].path) if checkpoints else None,
        "ledger": ledger,
        "wall_s": wall_s,
        "forecast": job.forecast_check.as_dict(wall_s, ran_in_one_process(job, reason)),
    }
    if job.sink.has_moved:
        record["out_dir"] = str(job.run_dir)
    if job.rank_time is not None:
        # With --shard all-reduce is part of computing, and the two cannot be distinguished.
        times, is_known = job.rank_time, not job.execution.shard
        record["ranks"] = {
            "work_s": list(times.compute_s),
            "exchange_s": list(times.communication_s),
            "slowest": times.slowest_rank,
            "exchanging": times.communication_share if is_known else None,
            "waiting": times.waiting_share if is_known else None,
            "efficiency": times.scaling_efficiency if is_known else None,
        }
    return record | (details or {})
