"""The training state: what a checkpoint saves of a run, how a run restores it, and how it is rescued from a
folder that is moved, removed or replaced while it trains."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from pathlib import Path
from typing import Any

import torch

from glassgpt.config import TrainConfig
from glassgpt.data.tokenizers import write_tokenizer
from glassgpt.errors import UserError
from glassgpt.flags import check_settings, known_settings
from glassgpt.i18n import say, verbatim
from glassgpt.model.weights import crop_block_size, load_weights
from glassgpt.record import journal
from glassgpt.record.finding import finding_record
from glassgpt.record.journal import Record
from glassgpt.record.run_dir import TOKENIZER_DIR, LockedRunDir, resume_command
from glassgpt.training import journal_records, live_findings
from glassgpt.training.checkpoint.checkpoints import (
    LoadedCheckpoint,
    RowRanges,
    TensorsByFile,
    list_checkpoints,
    load_latest_intact,
    quarantine_damaged,
)
from glassgpt.training.distributed.fsdp import is_dtensor, local_shard, rows_of_rank, shard_like
from glassgpt.training.evaluate import EvalResult
from glassgpt.training.optimizers import load_optimizer_state, optimizer_tensors
from glassgpt.training.run_request import RunRequest
from glassgpt.training.train_state import TrainingProgress, TrainSetup, TrainState
from glassgpt.training.weight_compatibility import check_compatible, check_updates_left
from glassgpt.training.weight_source import from_checkpoint

# --- saving ---


def checkpoint_tensors(
    run: TrainSetup, early_stop_reference: EvalResult | None
) -> tuple[TensorsByFile, RowRanges | None]:
    """The tensors that this rank saves; and which rows they are, if the model is sharded."""
    group, evaluation = run.process_group, {}
    if early_stop_reference is not None and run.config.patience:
        evaluation = {
            "window_losses": torch.from_numpy(early_stop_reference.window_losses),
            "window_tokens": torch.from_numpy(early_stop_reference.window_tokens),
        }
    tensors: TensorsByFile = {
        "model": dict(run.learner.model.named_parameters()),  # which lists a tied matrix once
        "optimizer": optimizer_tensors(run.learner.model, run.learner.optimizers),
        "evaluation": evaluation,
    }
    if not run.execution.shard:
        return tensors, None
    sharded = {name: tensor for name, tensor in run.learner.model.named_parameters() if is_dtensor(tensor)}
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


def checkpoint_state(run: TrainSetup, progress: TrainingProgress) -> dict[str, Any]:
    """What is saved besides the tensors: state.json."""
    return {
        "iter": progress.iter,
        "start": run.run_dir_handle.start_id,
        "val_loss": progress.val_loss,
        "progress": dataclasses.asdict(progress),
        "scaler": run.learner.scaler.state_dict(),
        "model": dataclasses.asdict(run.learner.model.config),
        "config": dataclasses.asdict(run.config),
        "data_hash": run.dataset.hash,
        "measured_on": eval_data_id(run),
        "tokenizer": run.tokenizer_digest,
        "threads": torch.get_num_threads(),
    }


def eval_data_id(run: TrainSetup) -> str:
    """Identifies the data of the validation loss. Losses with different ids do not compare."""
    return f"{min(run.eval_tokens, len(run.splits['val']) - 1)} tokens of {run.dataset.hash}"


# --- restoring ---


def load_initial_state(run: TrainSetup, state: TrainState, request: RunRequest) -> list[Record]:
    """Loads the weights that the run starts from, and the state that comes with them. Returns records for the
    journal."""
    loaded, resumes = request.init_checkpoint, request.resume_dir is not None
    # The folder is locked only now: another process may have saved since the request was made.
    listing = list_checkpoints(run.run_dir) if resumes else None
    damaged: list[Path] = []
    resumes_own = listing is not None and bool(listing.committed or request.own_checkpoint)
    if resumes_own:
        checkpoint, tensors, damaged, warnings = load_latest_intact(run.run_dir, listing)
        loaded = from_checkpoint(checkpoint, tensors, warnings)
        check_compatible(run.config, run.dataset, loaded, same_run=True)
        # A run that died between its last checkpoint and its end has the final evaluation left to do.
        if checkpoint.iter != run.config.max_iters or run.run_dir_handle.was_finished:
            check_updates_left(run.config, checkpoint.iter)
    if loaded is not None and (resumes_own or run.restores_training_state):
        records = _restore(run, state, loaded)
    else:
        if loaded is not None:
            _load_weights(run, loaded)
        records = [journal_records.resume_record(-1)] if resumes else []
    if run.process_group.is_rank_zero:
        quarantine_damaged(damaged)
    return records


def _load_weights(run: TrainSetup, loaded: LoadedCheckpoint) -> None:
    _, weights = crop_block_size(loaded.model_config, loaded.weights, run.config.block_size)
    state_dict = run.learner.model.state_dict()
    for name, weight in weights.items():
        parameter = state_dict.get(name)
        if parameter is not None and parameter.shape == weight.shape:  # load_weights refuses the others
            weights[name] = shard_like(weight, parameter)
    load_weights(run.learner.model, weights, loaded.description)


def _restore(run: TrainSetup, state: TrainState, loaded: LoadedCheckpoint) -> list[Record]:
    """Restores weights, optimizer and progress, so that the run continues exactly where the other one was."""
    _load_weights(run, loaded)
    dropped = load_optimizer_state(run.learner.model, run.learner.optimizers, loaded.optimizer)
    warnings = [*loaded.warnings, *dropped]
    if loaded.kind == "run":
        warnings += _restore_progress(run, state, loaded)
    else:  # nanoGPT saves no position in the data, and its losses are of random batches
        done = loaded.iter or 0
        state.progress.iter, state.progress.sequences = done, done * run.batch_plan.sequences
    if state.early_stop_reference is None:  # nothing to compare with: early stopping counts from zero
        state.progress.evaluations_without_gain = 0
    if loaded.folder == run.run_dir and loaded.kind == "run":
        state.last_saved = (state.progress.iter, state.progress.val_loss)
    settings = known_settings(loaded.state.get("config", loaded.settings))
    previous_config = TrainConfig(**check_settings(settings, TrainConfig)[0])  # type: ignore[arg-type]
    jump = live_findings.rate_jump_finding(run.config, previous_config, state.progress.iter)
    return [journal_records.resume_record(state.progress.iter, warnings), *([jump] if jump else [])]


def _restore_progress(run: TrainSetup, state: TrainState, loaded: LoadedCheckpoint) -> list[str]:
    """Restores progress. Returns warnings about values that cannot be compared with those before."""
    saved = loaded.state
    if saved["scaler"] and run.learner.scaler.is_enabled():
        run.learner.scaler.load_state_dict(saved["scaler"])
    if loaded.evaluation:
        losses = loaded.evaluation["window_losses"].numpy()
        counts = loaded.evaluation["window_tokens"].numpy()
        tokens = int(counts.sum())
        mean_loss = float((losses * counts).sum()) / tokens
        state.early_stop_reference = EvalResult(mean_loss, tokens, losses, counts)
    state.progress = TrainingProgress(**saved["progress"])
    warnings = []
    if saved["data_hash"] not in ("", run.dataset.hash):  # "": imported without its dataset
        warnings.append("the dataset is not the one that the run was trained on before")
    if saved["measured_on"] != eval_data_id(run):
        state.progress.val_loss, state.progress.best_val_loss, state.progress.best_iter = None, math.inf, None
        state.early_stop_reference = None
        warnings.append("evaluations use other tokens than before: the best loss so far is not comparable")
    return warnings


# --- rescuing: a run never writes into a folder that may be another run's; it saves in a new one and ends ---


def rescue_if_run_dir_lost(run: TrainSetup, state: TrainState) -> bool:
    """Whether the run has lost its folder. Rank 0 checks; the others learn of it with the stop signals."""
    run.sink.check_journal(state.progress.iter)
    if run.sink.journal_lost_reason:
        rescue_to_new_dir(run, state)
    return run.sink.has_moved


def rescue_to_new_dir(run: TrainSetup, state: TrainState) -> None:
    """Moves the run's output to a new folder, and asks all ranks to save there and end."""
    if not isinstance(run.run_dir_handle, LockedRunDir) or run.config.eval_only:
        raise UserError(f"{run.run_dir} was moved, removed or replaced: {run.sink.journal_lost_reason}")
    lost_dir, reason = run.run_dir, run.sink.journal_lost_reason
    with run.ledger.phase("checkpoint"):
        with contextlib.suppress(UserError):  # a save that failed because the folder is lost
            run.log(run.saver.poll(wait=True))
        run.run_dir_handle.move_to_rescue_dir()
        run.run_dir_handle.write_config(run.resolved_config())
        write_tokenizer(run.run_dir / TOKENIZER_DIR, run.dataset)
        run.sink.move(run.run_dir / journal.FILE_NAME)
        run.saver.set_run_dir(run.run_dir)
    if not run.process_group.launch_id:  # several ranks do this once they agree: `loop.sync_stop_request`
        state.last_saved = None
    state.signals.report_run_dir_lost()
    run.log(
        finding_record(
            state.progress.iter,
            "folder-lost",
            "warning",
            title=say("folder-lost.title", lost_dir=str(lost_dir), run_dir=str(run.run_dir)),
            evidence=verbatim(reason),
            explanation=say("folder-lost.explanation"),
            advice=say("folder-lost.advice", command=resume_command(run.run_dir)),
        )
    )
