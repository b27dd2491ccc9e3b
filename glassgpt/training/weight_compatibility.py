"""Starting a run from trained weights: whether they fit its config and dataset, and which state it restores.

weight_source.py finds and loads them. Here are the three questions of `--init_from` that need the run's own
config and dataset: its model settings, its tokens, and whether it also restores iteration and optimizer
(`--init_state`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from glassgpt.config import Choice, ConfigValue, TrainConfig, dataset_folder, effective_activation
from glassgpt.data.dataset import Dataset
from glassgpt.data.tokenizers import dataset_tokenizer_digest
from glassgpt.errors import UserError, raise_if_any
from glassgpt.training.checkpoint.checkpoints import LoadedCheckpoint
from glassgpt.training.weight_source import (
    pretrained_tokenizer,
    tokenizer_matches_record,
    trained_tokenizer_digest,
    vocab_size_matches,
)

# --- model settings ---

# The settings that weights fix. Dropout has no parameters. block_size may be smaller: `match_model_settings`.
MODEL_SETTINGS = ("n_layer", "n_head", "n_embd", "bias", "arch", "activation", "tie_embeddings")


def match_model_settings(config: TrainConfig, loaded: LoadedCheckpoint) -> TrainConfig:
    """The config with the model settings of the weights. A smaller block_size is possible."""
    fixed = {name: getattr(loaded.model_config, name) for name in MODEL_SETTINGS}
    block_size = min(config.block_size, loaded.model_config.block_size)
    return dataclasses.replace(config, **fixed, block_size=block_size)


def model_setting(config: TrainConfig, name: str) -> ConfigValue:
    return effective_activation(config) if name == "activation" else getattr(config, name)


def conflicting_flags(flags: Mapping[str, Any], config: TrainConfig, loaded: LoadedCheckpoint) -> list[str]:
    """A problem for each of the user's flags that contradicts the weights."""
    weights, model = loaded.description, loaded.model_config
    problems = [
        f"--{name}={flags[name]} does not fit {weights}, which has {name}={getattr(model, name)}: "
        "leave it out"
        for name in MODEL_SETTINGS
        if name in flags and model_setting(config, name) != getattr(model, name)
    ]
    if "block_size" in flags and config.block_size > model.block_size:
        problems.append(
            f"--block_size={config.block_size} is more context than {weights} has: at most {model.block_size}"
        )
    return problems


# --- the fit of model and tokens ---


def check_compatible(
    config: TrainConfig, dataset: Dataset, loaded: LoadedCheckpoint, same_run: bool = False
) -> None:
    """Raises a UserError if the weights were trained with other tokens or another model."""
    problems = _token_problems(config, dataset, loaded)
    names = (*MODEL_SETTINGS, "block_size") if same_run else MODEL_SETTINGS
    for name in names:
        value, trained_value = model_setting(config, name), getattr(loaded.model_config, name)
        if value != trained_value:
            problems.append(
                f"--{name}={value} does not fit {loaded.description}, which has {name}={trained_value}"
            )
    raise_if_any(problems)


def _token_problems(config: TrainConfig, dataset: Dataset, loaded: LoadedCheckpoint) -> list[str]:
    manifest, weights = dataset.manifest, loaded.description
    trained_digest = trained_tokenizer_digest(loaded)
    if trained_digest is not None and trained_digest == dataset_tokenizer_digest(dataset):
        return []
    if not vocab_size_matches(loaded, manifest.vocab_size):
        return [
            f"--dataset={config.dataset} has a vocabulary of {manifest.vocab_size}, {weights} of "
            f"{loaded.model_config.vocab_size}; it needs {_required_dataset(loaded)}"
        ]
    if trained_digest is not None or (
        loaded.kind == "run" and not tokenizer_matches_record(loaded, manifest)
    ):
        return [
            f"--dataset={config.dataset} numbers its tokens differently from {weights}, which needs "
            f"{_required_dataset(loaded)}"
        ]
    if loaded.kind == "huggingface" and manifest.tokenizer != "gpt2":
        return [
            f"--dataset={config.dataset} has {manifest.tokenizer}, and {weights} has no tokenizer beside its "
            f"weights, so GPT-2's goes with them: it needs {_required_dataset(loaded)}"
        ]
    return []


def _required_dataset(loaded: LoadedCheckpoint) -> str:
    """In words. Of the tokenizers beside pretrained weights, `glass prepare` takes only byte and BPE."""
    if loaded.kind != "huggingface":
        return "the dataset it was trained on, or one prepared with its tokenizer"
    tokenizer = pretrained_tokenizer(loaded)
    if tokenizer is None:
        return "a dataset prepared with --tokenizer=gpt2"
    if tokenizer.name == "byte":
        return "a dataset prepared with --tokenizer=byte"
    if tokenizer.name in ("char", "ids"):
        return f"the dataset that it was trained on: its tokenizer is {tokenizer.name}"
    return f"a dataset prepared with --tokenizer=gpt2 --tokenizer_files={loaded.folder}"


# --- iteration and optimizer ---


def choose_init_state(
    config: TrainConfig, dataset: Dataset, loaded: LoadedCheckpoint, resumes: bool
) -> tuple[bool, Choice]:
    """Whether the run restores iteration and optimizer as well as the weights; and why.

    `resumes`: the weights are of this very run, even if its dataset has changed.
    """
    requested = config.init_state
    cropped = config.block_size < loaded.model_config.block_size
    if requested == "all" and (loaded.iter is None or cropped):
        why = "has no optimizer state" if loaded.iter is None else "was trained with more context"
        raise UserError(
            f"--init_state=all is not possible: {loaded.description} {why}; --init_state=weights is"
        )
    if loaded.kind == "run":
        same_data = loaded.state["data_hash"] == dataset.hash
    else:
        same_data = loaded.settings.get("dataset") in (config.dataset, dataset_folder(config).name)
    if loaded.iter is None:
        why = "weights only: starts at update 0"
    elif cropped:
        why = f"context cut from {loaded.model_config.block_size} to {config.block_size}: starts at update 0"
    elif requested == "weights":
        why = "weights only, as --init_state asks: starts at update 0"
    elif requested == "auto" and not resumes and not same_data:
        why = "weights only, because the dataset is different: starts at update 0"
    else:
        has_optimizer = loaded.optimizer or not loaded.iter  # before the first update there is no state
        optimizer = "with its optimizer" if has_optimizer else "with a new optimizer: the checkpoint has none"
        reason = f"resumes at update {loaded.iter:,} {optimizer}"
        return True, Choice("init_from", loaded.description, reason, notable=True)
    return False, Choice("init_from", loaded.description, why, notable=True)


def check_updates_left(config: TrainConfig, done: int) -> None:
    if done >= config.max_iters and not config.eval_only:
        raise UserError(f"the run has done its {done} updates; --max_iters={2 * done} would continue it")
