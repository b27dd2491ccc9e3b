"""A job's state as a checkpoint keeps it, and how it is put back."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from glassgpt.config import TrainConfig
from glassgpt.flags import check_settings, field_types
from glassgpt.model.gpt import GPT
from glassgpt.model.weights import build_model, crop_block_size, load_weights
from glassgpt.record.journal import Record
from glassgpt.training import journal_records, live_findings
from glassgpt.training.checkpoint.checkpoints import (
    RowRanges,
    TensorsByFile,
    committed_paths,
    load_latest_intact,
    quarantine_damaged,
)
from glassgpt.training.distributed.fsdp import (
    gather_full_tensor,
    is_dtensor,
    local_shard,
    rows_of_rank,
    shard_like,
)
from glassgpt.training.evaluate import EvalResult
from glassgpt.training.init_weights import check_compatible, check_updates_left
from glassgpt.training.job import Job
from glassgpt.training.optimizers import load_optimizer_state, optimizer_tensors
from glassgpt.training.run_request import RunRequest
from glassgpt.training.weight_source import LoadedCheckpoint, from_checkpoint


def checkpoint_tensors(job: Job) -> TensorsByFile:
    evaluation = {}
    if job.early_stop_reference is not None and job.config.patience:
        evaluation = {
            "window_losses": torch.from_numpy(job.early_stop_reference.window_losses),
            "window_tokens": torch.from_numpy(job.early_stop_reference.window_tokens),
        }
    return {
        "model": dict(job.model.named_parameters()),  # which names the tied matrix once
        "optimizer": optimizer_tensors(job.model, job.learner.optimizers),
        "evaluation": evaluation,
    }


def local_checkpoint_tensors(job: Job) -> tuple[TensorsByFile, RowRanges | None]:
    """What this process saves; and which rows that is, if it has a part only."""
    tensors, team = checkpoint_tensors(job), job.process_group
    if not job.execution.shard:
        return tensors, None
    spread = {name: tensor for name, tensor in job.model.named_parameters() if is_dtensor(tensor)}
    parts: TensorsByFile = {}
    rows: RowRanges = {}
    for file, content in tensors.items():
        mine = f"{file}-{team.rank + 1:05d}-of-{team.world_size:05d}"
        for name, tensor in content.items():
            home = spread.get(name if file == "model" else name.rpartition(":")[0])
            own = local_shard(tensor)
            if home is not None and own.dim():
                start, end = rows_of_rank(team.rank, team.world_size, home.shape[0])
                assert len(own) == end - start, f"{name} is cut in another way"
                if end > start:
                    parts.setdefault(mine, {})[name] = own
                    rows.setdefault(mine, {})[name] = (start, end, home.shape[0])
            elif team.is_rank_zero:  # the same everywhere
                parts.setdefault(file, {})[name] = own
    return parts, rows


def gather_full_model(job: Job) -> GPT:
    """The model, put together on the CPU if it is spread; all processes have to ask."""
    if not job.execution.shard:
        return job.model
    weights = {
        name: gather_full_tensor(local_shard(tensor), tensor).cpu()
        for name, tensor in job.model.state_dict().items()
    }
    return build_model(job.model.config, weights, "the run")


def checkpoint_state(job: Job) -> dict[str, Any]:
    """What is saved beside the tensors."""
    return {
        "iter": job.progress.iter,
        "start": job.run_dir_handle.start_id,
        "val_loss": job.progress.val_loss,
        "progress": dataclasses.asdict(job.progress),
        "scaler": job.learner.scaler.state_dict(),
        "model": dataclasses.asdict(job.model.config),
        "config": dataclasses.asdict(job.config),
        "data_hash": job.dataset.hash,
        "measured_on": eval_data_id(job),
        "tokenizer": job.tokenizer_digest,
        "threads": torch.get_num_threads(),
    }


def eval_data_id(job: Job) -> str:
    """What a validation loss of this run is a loss of; only equals compare."""
    return f"{min(job.eval_tokens, len(job.splits['val']) - 1)} tokens of {job.dataset.hash}"


# --- putting it back ---


def load_initial_state(job: Job, task: RunRequest) -> list[Record]:
    """Gives the job the weights it begins with, and what goes with them. Returns what there is to say."""
    origin, goes_on = task.init_checkpoint, task.resume_dir is not None
    if origin is None and goes_on and committed_paths(job.run_dir):
        return _resume_from_latest(job)
    if origin is not None and job.restores_training_state:
        return _resume_from(job, origin)
    if origin is not None:
        _load_weights(job, origin)
    return [journal_records.restart_record()] if goes_on else []


def _resume_from_latest(job: Job) -> list[Record]:
    """From the last whole checkpoint; newer ones that are damaged are set aside."""
    point, tensors, damaged, complaints = load_latest_intact(job.run_dir)
    origin = from_checkpoint(point, tensors, complaints)
    check_compatible(job.config, job.dataset, origin, same_run=True)
    # One that died between its last checkpoint and its end has the closing evaluation left to do.
    if point.iter != job.config.max_iters or job.run_dir_handle.was_finished:
        check_updates_left(job.config, point.iter)
    found = _resume_from(job, origin)
    if job.process_group.is_rank_zero:
        quarantine_damaged(damaged)
    return found


def _load_weights(job: Job, origin: LoadedCheckpoint) -> None:
    _, weights = crop_block_size(origin.model_config, origin.weights, job.config.block_size)
    own = job.model.state_dict()
    load_weights(
        job.model,
        {name: shard_like(w, own[name]) if _fits(w, own.get(name)) else w for name, w in weights.items()},
        origin.description,
    )


def _fits(tensor: torch.Tensor, home: torch.Tensor | None) -> bool:
    """What does not is left for `load_weights` to refuse."""
    return home is not None and home.shape == tensor.shape


def _resume_from(job: Job, origin: LoadedCheckpoint) -> list[Record]:
    """Everything, so that the run goes on where the other one was."""
    _load_weights(job, origin)
    forgotten = load_optimizer_state(job.model, job.learner.optimizers, origin.optimizer)
    complaints = [*origin.complaints, *forgotten]
    if origin.kind == "run":
        complaints += _restore_progress(job, origin)
    else:  # nanoGPT keeps no place in the data, and its losses are of random batches
        done = origin.iter or 0
        job.progress.iter, job.progress.sequences = done, done * job.batch_plan.sequences
    if job.early_stop_reference is None:  # nothing to count from; early stopping starts anew
        job.progress.evaluations_without_gain = 0
    if origin.folder == job.run_dir and origin.kind == "run":
        job.last_saved = (job.progress.iter, job.progress.val_loss)
    jump = live_findings.rate_jump_finding(job, _config_then(origin))
    return [journal_records.resume_record(job, complaints), *([jump] if jump else [])]


def _restore_progress(job: Job, origin: LoadedCheckpoint) -> list[str]:
    state = origin.state
    if state["scaler"] and job.learner.scaler.is_enabled():
        job.learner.scaler.load_state_dict(state["scaler"])
    if origin.evaluation:
        job.early_stop_reference = _evaluation(**origin.evaluation)
    for name, value in state["progress"].items():
        setattr(job.progress, name, value)
    complaints = []
    if state["data_hash"] not in ("", job.dataset.hash):  # "": imported without its data
        complaints.append("the data is not what it was trained on so far")
    if state["measured_on"] != eval_data_id(job):
        job.progress.val_loss, job.progress.best_val_loss, job.progress.best_iter = None, math.inf, None
        job.early_stop_reference = None
        complaints.append("evaluations are on other tokens than before: the best so far does not compare")
    return complaints


def _config_then(origin: LoadedCheckpoint) -> TrainConfig:
    """The settings it was trained with up to now."""
    then = origin.state.get("config", origin.settings)
    known = {name: value for name, value in then.items() if name in field_types(TrainConfig)}
    return TrainConfig(**check_settings(known, TrainConfig)[0])  # type: ignore[arg-type]


def _evaluation(window_losses: torch.Tensor, window_tokens: torch.Tensor) -> EvalResult:
    losses, counts = window_losses.numpy(), window_tokens.numpy()
    total = int(counts.sum())
    return EvalResult(float((losses * counts).sum()) / total, total, losses, counts)
