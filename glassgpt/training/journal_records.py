"""The loop's records: what the journal says about a run, an interval of updates, an evaluation, an end.

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
    """What this process is about to do, on what, and why."""
    shape, manifest, peak = job.model.config, job.dataset.manifest, job.compute_plan.peak
    counted = flops.model_parameters(shape, shape.vocab_size, positions=False)
    multiplied = flops.model_parameters(shape, shape.vocab_size, lookups=False)
    model = {
        "parameters": flops.model_parameters(shape, shape.vocab_size),
        "parameters_without_positions": counted,
        "parameters_multiplied": multiplied,
        "flops_per_token": job.compute_plan.flops_per_token,
        "flops_convention": flops.FLOPS_CONVENTION,
        "plain_flops_per_token": flops.six_n_flops_per_token(multiplied),
    }
    data = {
        "name": manifest.name,
        "hash": job.dataset.hash,
        "tokenizer": manifest.tokenizer,
        "tokenizer_digest": job.tokenizer_digest,
        "vocab_size": manifest.vocab_size,
        "tokens": dict(manifest.tokens),
        "bytes_per_token": {split: _bytes_per_token(job, split) for split in job.splits},
        "epochs": _epochs(job),
    }
    return {
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
        **_process_group_fields(job),
    }


def _epochs(job: Job) -> float:
    """How often the whole run goes through its text. What was done before had maybe another batch size."""
    done, to_come = job.progress, max(0, job.config.max_iters - job.progress.iter)
    sequences = done.sequences + to_come * job.batch_plan.sequences
    return sequences * job.config.block_size * job.loader.target_share / len(job.splits["train"])


def _process_group_fields(job: Job) -> Record:
    """Who trains, if they are several."""
    team = job.process_group
    if not team.launch_id:
        return {}
    backend = next(choice.value for choice in job.choices if choice.name == "backend")
    return {
        "team": {
            "size": team.world_size,
            "per_machine": team.local_world_size,
            "backend": backend,
            "shard": job.execution.shard,
            "launch": team.launch_id,
            "attempt": team.restart_count,
        }
    }


def step_record(job: Job) -> Record:
    """The updates since the last such record; the next interval begins here."""
    config, progress, plan, equipment = job.config, job.progress, job.batch_plan, job.compute_plan
    updates, first_s = job.interval.updates, job.interval.first_update_s
    seconds, phases = job.interval.close()
    memory = probe.memory_now(str(job.execution.device))
    shared = _gather_rank_times(job, seconds, updates, memory)
    job.forecast_check.add(updates * plan.tokens, seconds, phases["data"], memory)
    speed = compute_rates(
        updates, seconds, plan.tokens, equipment.flops_per_token, equipment.peak, job.process_group.world_size
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
        "step_ms": speed.step_ms,
        "first_update_ms": None if first_s is None else first_s * 1000,
        "phases": {name: value * 1000 for name, value in phases.items()},
        "tokens_per_s": speed.tokens_per_s,
        "flops_per_s": speed.flops_per_s,
        "mfu": speed.mfu,
        "memory": memory,
        "eta_s": _eta_s(job, seconds / updates if updates else None),
    }
    if job.learner.scaler.is_enabled():
        record["loss_scale"] = job.learner.scaler.get_scale()
    if shared is not None:
        record["ranks"] = shared
    return record


def _gather_rank_times(job: Job, seconds: float, updates: int, memory: dict[str, int]) -> Record | None:
    """How the processes of a team shared these updates; every one of them has to ask."""
    if not job.process_group.launch_id:
        return None
    exchanged_s = min(job.process_group.take_all_reduce_s(), seconds)
    table = job.process_group.all_gather_rows(
        [seconds - exchanged_s, exchanged_s, memory.get("allocated_peak", memory["rss"])]
    )
    if not updates:
        return None
    sharing = RankTimes(tuple(row[0] for row in table), tuple(row[1] for row in table))
    job.rank_time = sharing if job.rank_time is None else job.rank_time + sharing
    return {
        "work_ms": [1000 * value / updates for value in sharing.compute_s],
        "exchange_ms": [1000 * value / updates for value in sharing.communication_s],
        "slowest": sharing.slowest_rank,
        "memory": [int(row[2]) for row in table],
    }


def _rank_time_fields(job: Job) -> Record:
    """How well it went. With --shard exchanging is part of computing, and nobody can tell them apart."""
    if job.rank_time is None:
        return {}
    apart = not job.execution.shard
    return {
        "ranks": {
            "work_s": list(job.rank_time.compute_s),
            "exchange_s": list(job.rank_time.communication_s),
            "slowest": job.rank_time.slowest_rank,
            "exchanging": job.rank_time.communication_share if apart else None,
            "waiting": job.rank_time.waiting_share if apart else None,
            "efficiency": job.rank_time.scaling_efficiency if apart else None,
        }
    }


def _eta_s(job: Job, step_s: float | None) -> float | None:
    done, end = job.progress.iter, job.config.max_iters
    # A line comes before what is due at its own iteration, unless a run that ends has evaluated already.
    before = done - (job.progress.val_loss is None)
    evaluations: float = _occurrences_left(before, end, job.config.eval_interval)
    every = job.config.checkpoint_interval
    saves = evaluations if every is None else _occurrences_left(before, end, every)
    if job.config.closing_eval and job.eval_tokens < len(job.splits["val"]) - 1:
        evaluations += len(job.splits["val"]) / (2 * job.eval_tokens)  # an evaluation is of two splits
    return eta_s(end - done, step_s, evaluations, job.eval_cost.value, saves, job.save_cost.value)


def _occurrences_left(before: int, end: int, every: int) -> int:
    """How many multiples of `every` come after `before`; the end counts as one in any case."""
    return end // every - before // every + (end % every != 0) if before < end else 0


def eval_record(
    job: Job, split: str, result: EvalResult, spent: dict[str, float], closing: bool = False
) -> Record:
    """`closing`: the pass over the whole split at the end, which does not compete with sampled ones."""
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
        "ms": spent["eval"] * 1000,
        "compile_ms": spent["compile"] * 1000,
    }


def _bytes_per_token(job: Job, split: str) -> float | None:
    """None where nobody knows how long the text was: nanoGPT's folders do not say."""
    value = job.dataset.bytes_per_token(split)
    return None if math.isnan(value) else value


def sample_record(job: Job, text: str, seconds: float) -> Record:
    return {"kind": "sample", "iter": job.progress.iter, "text": text, "ms": seconds * 1000}


def nonfinite_details(job: Job, bad_update: int) -> Record:
    """What a person needs to find out why: which update, what led up to it, where to go back to."""
    return {"bad_iter": bad_update + 1, "recent_grad_norms": list(job.recent_grad_norms)}


def resume_record(job: Job, complaints: list[str]) -> Record:
    """`from_iter` takes back whatever the journal says past it."""
    done = job.progress.iter
    return {"kind": "resume", "iter": done, "from_iter": done, "complaints": complaints}


def restart_record() -> Record:
    """A run without a checkpoint begins again: all that it had recorded is taken back."""
    return {"kind": "resume", "iter": 0, "from_iter": -1, "complaints": []}


def ran_in_one_process(job: Job, reason: str) -> bool:
    """Whether one process did all of the run, as it was forecast."""
    return (
        reason == "finished" and job.run_dir_handle.process_number == 0 and job.config.init_from == "scratch"
    )


def end_record(job: Job, reason: str, exit_code: int, details: Record | None) -> Record:
    """The end of a process, with where its time went."""
    ledger = job.ledger.seconds()
    whole = list(readable_checkpoints(job.run_dir))
    wall_s = sum(ledger.values())
    return {
        "kind": "end",
        "iter": job.progress.iter,
        "reason": reason,
        "exit_code": exit_code,
        "best_val_loss": job.progress.best_val_loss,
        "best_iter": job.progress.best_iter,
        "last_checkpoint": str(whole[-1].path) if whole else None,
        "ledger": ledger,
        "wall_s": wall_s,
        "forecast": job.forecast_check.as_dict(wall_s, ran_in_one_process(job, reason)),
        **({"out_dir": str(job.run_dir)} if job.sink.has_moved else {}),
        **_rank_time_fields(job),
        **(details or {}),
    }
