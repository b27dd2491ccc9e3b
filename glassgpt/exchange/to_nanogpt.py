"""A model as nanoGPT's ckpt.pt, and the meta.pkl that its sample.py looks for.

ckpt.pt     model, model_args, iter_num, best_val_loss, config; AdamW's state where the run kept one
meta.pkl    what its ids stand for; not for GPT-2's tokens, which nanoGPT assumes
"""

from __future__ import annotations

import dataclasses
import math
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassgpt import config as settings
from glassgpt.config import TrainConfig
from glassgpt.data.nanogpt_bin import META_FILE
from glassgpt.data.tokenizers import ByteTokenizer, Tokenizer
from glassgpt.exchange.exportable import ExportableModel, strip_vocab_padding
from glassgpt.exchange.free_space import disk_errors_as_os_error
from glassgpt.flags import field_types
from glassgpt.record.run_dir import NANOGPT_CKPT_FILE

_MODEL_ARGS = ("n_layer", "n_head", "n_embd", "block_size", "bias", "vocab_size", "dropout")
# What it was trained with, as nanoGPT's train.py calls it. Where it trained is left out: it is open again.
_TRAIN_SETTINGS = (
    "dataset", "gradient_accumulation_steps", "batch_size", "learning_rate", "max_iters", "weight_decay",
    "beta1", "beta2", "grad_clip", "decay_lr", "eval_interval", "log_interval", "always_save_checkpoint",
)  # fmt: skip
_UNMEASURED_VAL_LOSS = 1e9  # nanoGPT's best_val_loss before there is one
_DEFAULT_BATCH_SIZE = 12  # where nothing else was said
_ADAMW_STATE_KEYS = ("step", "exp_avg", "exp_avg_sq")


def problems(parcel: ExportableModel) -> list[str]:
    """Why nanoGPT cannot have this model."""
    shape, what = parcel.shape, parcel.origin.description
    if shape.arch != "gpt2":
        return [
            f"--to=nanogpt is for arch=gpt2, and {what} has arch={shape.arch}, which nanoGPT's model.py does "
            "not compute; --to=hf writes it for transformers, --to=glass as safetensors under our names"
        ]
    found = []
    if not shape.tie_embeddings:
        found.append(f"{what} has tie_embeddings=False, and nanoGPT's model.py has one matrix for both")
    if shape.activation == "relu2":
        found.append(f"{what} has activation=relu2, and nanoGPT's model.py computes GELU")
    return [f"{problem}; --to=hf can have it" for problem in found]


def write(folder: Path, parcel: ExportableModel) -> None:
    origin = parcel.origin
    trained = _train_config(parcel)
    content: dict[str, Any] = {
        "model": {name: tensor.clone() for name, tensor in parcel.weights.items()},
        "model_args": {name: getattr(parcel.shape, name) for name in _MODEL_ARGS},
        "iter_num": origin.iter or 0,
        "best_val_loss": origin.val_loss if _is_known(origin.val_loss) else _UNMEASURED_VAL_LOSS,
        "config": _config(parcel, trained),
    }
    memory = adamw_state(parcel)
    if memory is not None:
        content["optimizer"] = _optimizer_state(parcel, memory, trained)
    with disk_errors_as_os_error():
        torch.save(content, folder / NANOGPT_CKPT_FILE)
    if needs_meta(parcel.tokenizer):
        with (folder / META_FILE).open("wb") as file:
            pickle.dump(_meta(parcel.tokenizer), file)


def needs_meta(tokenizer: Tokenizer) -> bool:
    return tokenizer.name != "gpt2"


def _is_known(loss: float | None) -> bool:
    return loss is not None and math.isfinite(loss)


def _train_config(parcel: ExportableModel) -> TrainConfig:
    known = {
        name: value for name, value in parcel.origin.settings.items() if name in field_types(TrainConfig)
    }
    return TrainConfig(**known)  # type: ignore[arg-type]


def dataset_name(parcel: ExportableModel) -> str:
    """What sample.py's meta.pkl is looked for under: data/NAME."""
    trained = _train_config(parcel)
    return settings.data_dir(trained).name if parcel.origin.settings else parcel.name


def _config(parcel: ExportableModel, trained: TrainConfig) -> dict[str, Any]:
    derived = {
        "dataset": dataset_name(parcel),
        "gradient_accumulation_steps": _micro_steps(trained),
        "batch_size": trained.batch_size or _DEFAULT_BATCH_SIZE,
        "warmup_iters": settings.warmup_iters(trained),
        "lr_decay_iters": settings.decay_iters(trained),
        "min_lr": settings.min_lr(trained),
    }
    shape = {name: getattr(parcel.shape, name) for name in _MODEL_ARGS if name != "vocab_size"}
    return {name: getattr(trained, name) for name in _TRAIN_SETTINGS} | derived | shape


def _micro_steps(trained: TrainConfig) -> int:
    if trained.batch_tokens is None:
        return trained.gradient_accumulation_steps or 1
    return max(1, trained.batch_tokens // (trained.block_size * (trained.batch_size or _DEFAULT_BATCH_SIZE)))


# --- the optimizer ---


def adamw_state(parcel: ExportableModel) -> dict[str, Tensor] | None:
    """AdamW's state of every parameter, if that is what the run kept; Muon's is of no use to nanoGPT."""
    kept = parcel.origin.optimizer
    names = [name for name in parcel.weights if name != "lm_head.weight"]
    return kept if all(f"{name}:{key}" in kept for name in names for key in _ADAMW_STATE_KEYS) else None


def _optimizer_state(
    parcel: ExportableModel, memory: dict[str, Tensor], trained: TrainConfig
) -> dict[str, Any]:
    """By position: matrices, then vectors, each in the model's order, as nanoGPT makes its two groups."""
    parameters = dict(parcel.model().named_parameters())
    matrices = [name for name, parameter in parameters.items() if parameter.dim() >= 2]
    vectors = [name for name in parameters if name not in matrices]
    groups = [
        {"params": [parameters[name] for name in matrices], "weight_decay": trained.weight_decay},
        {"params": [parameters[name] for name in vectors], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=trained.learning_rate,
        betas=(trained.beta1, trained.beta2),
    )
    for name, parameter in parameters.items():
        state = {key: memory[f"{name}:{key}"] for key in _ADAMW_STATE_KEYS}
        for key in ("exp_avg", "exp_avg_sq"):
            state[key] = strip_vocab_padding({name: state[key]}, parcel.shape.vocab_size)[name]
        optimizer.state[parameter] = state
    return optimizer.state_dict()


# --- what the ids stand for ---


def _meta(tokenizer: Tokenizer) -> dict[str, Any]:
    """A text for each id. sample.py reads a prompt character by character, and writes token by token."""
    if isinstance(tokenizer, ByteTokenizer):
        tokens = [chr(byte) for byte in range(256)]
    else:
        pieces = (tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size))
        tokens = [piece.decode("utf-8", errors="replace") for piece in pieces]
    ids: dict[str, int] = {}
    for id, token in enumerate(tokens):
        ids.setdefault(token, id)
    return {"vocab_size": len(tokens), "itos": dict(enumerate(tokens)), "stoi": ids}


def with_exact_gelu(parcel: ExportableModel) -> ExportableModel:
    """The model that nanoGPT computes, whose GELU is the exact one, also for GPT-2's own weights."""
    return dataclasses.replace(parcel, shape=dataclasses.replace(parcel.shape, activation="gelu"))
