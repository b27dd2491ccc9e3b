"""The training state: what a checkpoint saves of a run, and how a run restores it."""

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
from glassgpt.training.job import Job
from glassgpt.training.optimizers import load_optimizer_state, optimizer_tensors
from glassgpt.training.run_request import RunRequest
from glassgpt.training.weight_compatibility import check_compatible, check_updates_left
from glassgpt.training.weight_source import LoadedCheckpoint, from_checkpoint

# --- saving ---


def checkpoint_tensors(job: Job) -> TensorsByFile:
    evaluation = {}
    if job.early_stop_reference is not None and job.config.patience:
        evaluation = {
            "window_losses": torch.from_numpy(job.early_stop_reference.window_losses),
            "window_tokens": torch.from_numpy(job.early_stop_reference.window_tokens),
        }
    return {
        "model": dict(job.model.named_parameters()),  # which lists a tied matrix once
        "optimizer": optimizer_tensors(job.model, job.learner.optimizers),
        "evaluation": evaluation,
    }


def local_checkpoint_tensors(job: Job) -> tuple[TensorsByFile, RowRanges | None]:
    """The tensors that this rank saves; and which rows they are, if the model is sharded."""
    tensors, group = checkpoint_tensors(job), job.process_group
    if not job.execution.shard:
        return tensors, None
    sharded = {name: tensor for name, tensor in job.model.named_parameters() if is_dtensor(tensor)}
    shards: TensorsByFile = {}
    rows: RowRanges = {}
    for file, tensors_by_name in tensors.items():
        shard_file = f"{file}-{group.rank + 1:05d}-of-{group.world_size:05d}"
        for name, tensor in tensors_by_name.items():
            parameter = sharded.get(name if file == "model" else name.rpartition(":")[0])
            local = local_shard(tensor)
            if parameter is not None and local.dim():
                start, end = rows_of_rank(group.rank, group.world_size, parameter.shape[0])
                assert len(local) == end - start, f"{name} is not sharded by rows"
                if end > start:
                    shards.setdefault(shard_file, {})[name] = local
                    rows.setdefault(shard_file, {})[name] = (start, end, parameter.shape[0])
            elif group.is_rank_zero:  # replicated
                shards.setdefault(file, {})[name] = local
    return shards, rows


def gather_full_model(job: Job) -> GPT:
    """The model; a sharded one is gathered on the CPU, which is a collective."""
    if not job.execution.shard:
        return job.model
    weights = {
        name: gather_full_tensor(local_shard(tensor), tensor).cpu()
        for name, tensor in job.model.state_dict().items()
    }
    return build_model(job.model.config, weights, "the run")


def checkpoint_state(job: Job) -> dict[str, Any]:
    """What is saved besides the tensors: state.json."""
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
    """Identifies the data of the validation loss. Losses with different ids do not compare."""
    return f"{min(job.eval_tokens, len(job.splits['val']) - 1)} tokens of {job.dataset.hash}"


# --- restoring ---


def load_initial_state(job: Job, request: RunRequest) -> list[Record]:
    """Loads the weights that the run starts from, and the state that comes with them. Returns records for the
    journal."""
    loaded, resumes = request.init_checkpoint, request.resume_dir is not None
    if loaded is None and resumes and committed_paths(job.run_dir):
        checkpoint, tensors, damaged, warnings = load_latest_intact(job.run_dir)
        loaded = from_checkpoint(checkpoint, tensors, warnings)
        check_compatible(job.config, job.dataset, loaded, same_run=True)
        # A run that died between its last checkpoint and its end has the final evaluation left to do.
        if checkpoint.iter != job.config.max_iters or job.run_dir_handle.was_finished:
            check_updates_left(job.config, checkpoint.iter)
        records = _restore(job, loaded)
        if job.process_group.is_rank_zero:
            quarantine_damaged(damaged)
        return records
    if loaded is not None and job.restores_training_state:
        return _restore(job, loaded)
    if loaded is not None:
        _load_weights(job, loaded)
    return [journal_records.restart_record()] if resumes else []


def _load_weights(job: Job, loaded: LoadedCheckpoint) -> None:
    _, weights = crop_block_size(loaded.model_config, loaded.weights, job.config.block_size)
    state_dict = job.model.state_dict()
    for name, weight in weights.items():
        parameter = state_dict.get(name)
        if parameter is not None and parameter.shape == weight.shape:  # load_weights refuses the others
            weights[name] = shard_like(weight, parameter)
    load_weights(job.model, weights, loaded.description)


def _restore(job: Job, loaded: LoadedCheckpoint) -> list[Record]:
    """Restores weights, optimizer and progress, so that the run continues exactly where the other one was."""
    _load_weights(job, loaded)
    dropped = load_optimizer_state(job.model, job.learner.optimizers, loaded.optimizer)
    warnings = [*loaded.warnings, *dropped]
    if loaded.kind == "run":
        warnings += _restore_progress(job, loaded)
    else:  # nanoGPT saves no position in the data, and its losses are of random batches
        done = loaded.iter or 0
        job.progress.iter, job.progress.sequences = done, done * job.batch_plan.sequences
    if job.early_stop_reference is None:  # nothing to compare with: early stopping counts from zero
        job.progress.evaluations_without_gain = 0
    if loaded.folder == job.run_dir and loaded.kind == "run":
        job.last_saved = (job.progress.iter, job.progress.val_loss)
    settings = {
        name: value
        for name, value in loaded.state.get("config", loaded.settings).items()
        if name in field_types(TrainConfig)
    }
    previous_config = TrainConfig(**check_settings(settings, TrainConfig)[0])  # type: ignore[arg-type]
    jump = live_findings.rate_jump_finding(job, previous_config)
    return [journal_records.resume_record(job, warnings), *([jump] if jump else [])]


def _restore_progress(job: Job, loaded: LoadedCheckpoint) -> list[str]:
    """Returns what does not compare with before."""
    state = loaded.state
    if state["scaler"] and job.learner.scaler.is_enabled():
        job.learner.scaler.load_state_dict(state["scaler"])
    if loaded.evaluation:
        losses = loaded.evaluation["window_losses"].numpy()
        counts = loaded.evaluation["window_tokens"].numpy()
        tokens = int(counts.sum())
        mean_loss = float((losses * counts).sum()) / tokens
        job.early_stop_reference = EvalResult(mean_loss, tokens, losses, counts)
    for name, value in state["progress"].items():
        setattr(job.progress, name, value)
    warnings = []
    if state["data_hash"] not in ("", job.dataset.hash):  # "": imported without its dataset
        warnings.append("the dataset is not the one that the run was trained on before")
    if state["measured_on"] != eval_data_id(job):
        job.progress.val_loss, job.progress.best_val_loss, job.progress.best_iter = None, math.inf, None
        job.early_stop_reference = None
        warnings.append("evaluations use other tokens than before: the best loss so far is not comparable")
    return warnings
