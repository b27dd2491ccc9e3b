"""A job's state as a checkpoint keeps it, and how it is put back."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import torch

from glassgpt.data.dataset import Manifest
from glassgpt.errors import UserError
from glassgpt.model.weights import load_weights
from glassgpt.train.checkpoint import Tensors, load_last, set_aside
from glassgpt.train.evaluate import Evaluation
from glassgpt.train.job import Job
from glassgpt.train.optimizers import load_optimizer, optimizer_tensors


def tensors_of(job: Job) -> Tensors:
    evaluation = {}
    if job.reference is not None and job.config.patience:
        evaluation = {
            "window_losses": torch.from_numpy(job.reference.window_losses),
            "window_tokens": torch.from_numpy(job.reference.window_tokens),
        }
    return {
        "model": dict(job.model.named_parameters()),  # which names the tied matrix once
        "optimizer": optimizer_tensors(job.model, job.learner.optimizer),
        "evaluation": evaluation,
    }


def state_of(job: Job) -> dict[str, Any]:
    """What is saved beside the tensors."""
    return {
        "iter": job.progress.iter,
        "val_loss": job.progress.val_loss,
        "progress": dataclasses.asdict(job.progress),
        "scaler": job.learner.scaler.state_dict(),
        "model": dataclasses.asdict(job.model.config),
        "config": dataclasses.asdict(job.config),
        "data_hash": job.dataset.hash,
        "measured_on": measured_on(job),
        "tokenizer": _tokenizer_identity(job.dataset.manifest),
    }


def measured_on(job: Job) -> str:
    """What a validation loss of this run is a loss of; only equals compare."""
    return f"{min(job.eval_tokens, len(job.splits['val']) - 1)} tokens of {job.dataset.hash}"


def restore(job: Job) -> list[str]:
    """Puts the last whole checkpoint back; returns complaints about newer ones that were damaged."""
    point, tensors, damaged, complaints = load_last(job.run_dir)
    _check_fit(job, point.state)
    unfinished = point.iter == job.config.max_iters and not job.place.was_finished
    if point.iter >= job.config.max_iters and not (unfinished or job.config.eval_only):
        raise UserError(
            f"the run has done its {point.iter} updates; --max_iters={2 * point.iter} would train it on"
        )
    set_aside(damaged)
    weights = tensors["model"]
    load_weights(job.model, weights | {"lm_head.weight": weights["transformer.wte.weight"]}, str(point.path))
    load_optimizer(job.model, job.learner.optimizer, tensors.get("optimizer", {}))
    if point.state["scaler"] and job.learner.scaler.is_enabled():
        job.learner.scaler.load_state_dict(point.state["scaler"])
    if "evaluation" in tensors:
        job.reference = _evaluation(**tensors["evaluation"])
    for name, value in point.state["progress"].items():
        setattr(job.progress, name, value)
    if point.state["measured_on"] != measured_on(job):
        job.progress.val_loss, job.progress.best_val_loss, job.progress.best_iter = None, math.inf, None
        job.reference = None
        complaints.append("evaluations are on other tokens than before: the best so far does not compare")
    if job.reference is None:  # nothing to count from; early stopping starts anew
        job.progress.evaluations_without_gain = 0
    job.saved = (job.progress.iter, job.progress.val_loss)
    return complaints


def _evaluation(window_losses: torch.Tensor, window_tokens: torch.Tensor) -> Evaluation:
    losses, counts = window_losses.numpy(), window_tokens.numpy()
    total = int(counts.sum())
    return Evaluation(float((losses * counts).sum()) / total, total, losses, counts)


def _check_fit(job: Job, state: Mapping[str, Any]) -> None:
    """A checkpoint fits only the model it was made with (dropout has no parameters and may change)."""
    now, then = dataclasses.asdict(job.model.config), state["model"]
    problems = []
    if now["vocab_size"] != then["vocab_size"]:
        problems.append(
            f"--dataset={job.config.dataset} has a vocabulary of {now['vocab_size']}, the checkpoint of "
            f"{then['vocab_size']}; resume with the dataset it was trained on"
        )
    elif state["tokenizer"] != _tokenizer_identity(job.dataset.manifest):
        problems.append(
            f"--dataset={job.config.dataset} numbers its tokens differently from the dataset that the "
            "checkpoint was trained on; resume with that one"
        )
    for name in now:
        if name not in ("vocab_size", "dropout") and now[name] != then[name]:
            problems.append(
                f"--{name}={now[name]} does not fit the checkpoint, which has {name}={then[name]}"
            )
    if problems:
        raise UserError(problems)


def _tokenizer_identity(manifest: Manifest) -> str:
    """What decides which token is which; the text itself does not."""
    files = {name: digest for name, digest in manifest.sha256.items() if not name.endswith(".bin")}
    return json.dumps([manifest.tokenizer, manifest.characters, files], sort_keys=True)
