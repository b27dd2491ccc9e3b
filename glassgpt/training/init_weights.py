"""What a run takes over from weights that were trained before: whether they fit, and what goes with them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassgpt.config import Choice, ConfigValue, TrainConfig, activation, data_dir, padded_vocab_size
from glassgpt.data.bpe import gpt2_tokenizer
from glassgpt.data.bpe_table import download_gpt2_ranks
from glassgpt.data.dataset import Dataset, read_manifest
from glassgpt.data.manifest import MANIFEST_FILE, Manifest
from glassgpt.data.nanogpt_bin import META_FILE, read_meta
from glassgpt.data.tokenizer_json import load_tokenizer_in, require_tokenizer_in
from glassgpt.data.tokenizers import (
    CharTokenizer,
    IdsTokenizer,
    Tokenizer,
    dataset_tokenizer_digest,
    load_tokenizer,
    tokenizer_digest,
)
from glassgpt.errors import UserError
from glassgpt.files import expand_user_path
from glassgpt.record.run_dir import TOKENIZER_DIR
from glassgpt.training.weight_source import LoadedCheckpoint

# --- settings ---

# What weights decide about a model. Dropout has none; of context they allow less, see `fitted`.
MODEL_SETTINGS = ("n_layer", "n_head", "n_embd", "bias", "arch", "activation", "tie_embeddings")


def match_model_settings(config: TrainConfig, origin: LoadedCheckpoint) -> TrainConfig:
    """The config with the model's settings as the weights need them. Less context than theirs is possible."""
    fixed = {name: getattr(origin.model_config, name) for name in MODEL_SETTINGS}
    context = min(config.block_size, origin.model_config.block_size)
    return dataclasses.replace(config, **fixed, block_size=context)


def model_setting(config: TrainConfig, name: str) -> ConfigValue:
    return activation(config) if name == "activation" else getattr(config, name)


def conflicting_flags(asked: Mapping[str, Any], config: TrainConfig, origin: LoadedCheckpoint) -> list[str]:
    """Flags that contradict the weights, which cannot be changed by asking."""
    problems = [
        f"--{name}={asked[name]} does not fit {origin.description}, which has {name}={getattr(origin.model_config, name)}: "
        "leave it out"
        for name in MODEL_SETTINGS
        if name in asked and model_setting(config, name) != getattr(origin.model_config, name)
    ]
    if "block_size" in asked and config.block_size > origin.model_config.block_size:
        problems.append(
            f"--block_size={config.block_size} is more context than {origin.description} has: at most "
            f"{origin.model_config.block_size}"
        )
    return problems


# --- model and tokens ---


def check_compatible(
    config: TrainConfig, dataset: Dataset, origin: LoadedCheckpoint, same_run: bool = False
) -> None:
    """Weights fit only the model and the tokens they were made with (dropout has no parameters)."""
    problems = _token_problems(config, dataset, origin)
    names = (*MODEL_SETTINGS, "block_size") if same_run else MODEL_SETTINGS
    for name in names:
        now, then = model_setting(config, name), getattr(origin.model_config, name)
        if now != then:
            problems.append(f"--{name}={now} does not fit {origin.description}, which has {name}={then}")
    if problems:
        raise UserError(problems)


def _token_problems(config: TrainConfig, dataset: Dataset, origin: LoadedCheckpoint) -> list[str]:
    manifest, what = dataset.manifest, origin.description
    known = trained_tokenizer_digest(origin)
    if known is not None and known == dataset_tokenizer_digest(dataset):
        return []
    if not vocab_size_matches(origin, manifest.vocab_size):
        return [
            f"--dataset={config.dataset} has a vocabulary of {manifest.vocab_size}, {what} of "
            f"{origin.model_config.vocab_size}; it needs {_required_dataset(origin)}"
        ]
    if known is not None or (origin.kind == "run" and not _tokenizer_matches_record(origin, manifest)):
        return [
            f"--dataset={config.dataset} numbers its tokens differently from {what}, which needs "
            f"{_required_dataset(origin)}"
        ]
    if origin.kind == "gpt2" and manifest.tokenizer != "gpt2":
        return [
            f"--dataset={config.dataset} has {manifest.tokenizer}, and {what} has no tokenizer beside its "
            f"weights, so GPT-2's goes with them: it needs {_required_dataset(origin)}"
        ]
    return []


def _required_dataset(origin: LoadedCheckpoint) -> str:
    """Of a folder's tokenizers only a BPE can be given to `prepare`."""
    theirs = _pretrained_tokenizer(origin) if origin.kind == "gpt2" else None
    if origin.kind != "gpt2":
        return "the dataset it was trained on, or one prepared with its tokenizer"
    if theirs is None:
        return "a dataset prepared with --tokenizer=gpt2"
    if theirs.name == "byte":
        return "a dataset prepared with --tokenizer=byte"
    if theirs.name in ("char", "ids"):
        return f"the dataset that it was trained on: its tokenizer is {theirs.name}"
    return f"a dataset prepared with --tokenizer=gpt2 --tokenizer_files={origin.folder}"


def vocab_size_matches(origin: LoadedCheckpoint, vocab_size: int) -> bool:
    """Whether it was trained with a vocabulary of this size, which may have been rounded up."""
    return origin.model_config.vocab_size in (vocab_size, padded_vocab_size(vocab_size))


def trained_tokenizer_digest(origin: LoadedCheckpoint) -> str | None:
    """The digest of the tokenizer that weights were trained with; None if nobody kept it.

    Older checkpoints name the tokenizer and its files instead; then the digest is of the files in the run.
    """
    if origin.kind == "gpt2":
        theirs = _pretrained_tokenizer(origin)
        return None if theirs is None else tokenizer_digest(theirs)
    recorded, folder = str(origin.state.get("tokenizer", "")), origin.folder / TOKENIZER_DIR
    if not recorded.startswith("["):
        return recorded or None
    try:
        kept = Dataset(folder, read_manifest(folder))
        return dataset_tokenizer_digest(kept) if _tokenizer_matches_record(origin, kept.manifest) else None
    except UserError:  # the files are gone, or damaged
        return None


def _pretrained_tokenizer(origin: LoadedCheckpoint) -> Tokenizer | None:
    """The one beside pretrained weights; None for weights alone."""
    fix = "begin from another model, such as --init_from=gpt2, or from scratch"
    theirs = load_tokenizer_in(origin.folder, "--init_from", fix)
    if theirs is not None and theirs.vocab_size > origin.model_config.vocab_size:
        raise UserError(
            f"--init_from {origin.folder}: its tokenizer has ids up to {theirs.vocab_size - 1}, and its "
            f"weights have rows for {origin.model_config.vocab_size}: they do not belong together; {fix}"
        )
    return theirs


def _tokenizer_matches_record(origin: LoadedCheckpoint, manifest: Manifest) -> bool:
    """Whether a tokenizer is the one that an older checkpoint names, or none is named."""
    files = {} if manifest.tokenizer == "gpt2" else dict(manifest.sha256)
    files = {name: digest for name, digest in files.items() if not name.endswith(".bin")}
    named = json.dumps([manifest.tokenizer, manifest.characters, files], sort_keys=True)
    return origin.state["tokenizer"] in ("", named)


# --- iteration and optimizer ---


def choose_init_state(
    config: TrainConfig, dataset: Dataset, origin: LoadedCheckpoint, goes_on: bool
) -> tuple[bool, Choice]:
    """Whether a run takes over iteration and optimizer as well, or weights alone; and why.

    `goes_on`: the run is the one that the weights are of, whatever its data is now.
    """
    asked = config.init_state
    cropped = config.block_size < origin.model_config.block_size
    if asked == "all" and (origin.iter is None or cropped):
        why = "has no optimizer state" if origin.iter is None else "was trained with more context"
        raise UserError(
            f"--init_state=all is not possible: {origin.description} {why}; --init_state=weights is"
        )
    if origin.iter is None:
        why = "weights alone: begins at update 0"
    elif cropped:
        why = f"context cut from {origin.model_config.block_size} to {config.block_size}: begins at update 0"
    elif asked == "weights":
        why = "weights alone, as --init_state asks: begins at update 0"
    elif asked == "auto" and not goes_on and not _same_data(dataset, config, origin):
        why = "weights alone, because the data is another: begins at update 0"
    else:
        has_optimizer = origin.optimizer or not origin.iter  # before the first update there is none to keep
        how = "with its optimizer" if has_optimizer else "with a new optimizer: none was kept"
        return True, Choice("init_from", origin.description, f"goes on at update {origin.iter:,} {how}")
    return False, Choice("init_from", origin.description, why)


def _same_data(dataset: Dataset, config: TrainConfig, origin: LoadedCheckpoint) -> bool:
    if origin.kind == "run":
        return bool(origin.state["data_hash"] == dataset.hash)
    return origin.settings.get("dataset") in (config.dataset, data_dir(config).name)


def check_updates_left(config: TrainConfig, done: int) -> None:
    if done >= config.max_iters and not config.eval_only:
        raise UserError(f"the run has done its {done} updates; --max_iters={2 * done} would train it on")


# --- the tokenizer that goes with the weights ---


def find_tokenizer(origin: LoadedCheckpoint, dataset_dir: str = "") -> Tokenizer:
    """The tokenizer of these weights; `dataset_dir`: a dataset that has it, if they do not say."""
    tokenizer = _tokenizer_of_origin(origin, dataset_dir)
    _check_tokenizer(origin, tokenizer)
    return tokenizer


def _tokenizer_of_origin(origin: LoadedCheckpoint, dataset_dir: str) -> Tokenizer:
    if dataset_dir:
        return _of_dataset(expand_user_path(dataset_dir))
    if origin.kind == "gpt2":
        return require_tokenizer_in(origin.folder, "--init_from", "sample from another model")
    if origin.kind == "run":
        try:
            return load_tokenizer(origin.folder / TOKENIZER_DIR)
        except UserError as error:
            fix = "--data_dir=FOLDER names the dataset it was trained on, which has it too"
            raise UserError(f"the tokenizer of {origin.folder} cannot be read ({error}); {fix}") from None
    name = str(origin.settings.get("dataset", ""))
    # Beside the checkpoint first: another project's data may have the same name.
    for folder in (origin.folder.parent / "data" / name, Path("data") / name):
        # nanoGPT's repository has these folders from the beginning, with nothing but a script in them.
        if name and any((folder / file).exists() for file in (MANIFEST_FILE, META_FILE, "train.bin")):
            return _of_dataset(folder)
    if origin.model_config.vocab_size >= 50257:
        return gpt2_tokenizer(download_gpt2_ranks("connect to the network once, and tiktoken keeps it"))
    raise UserError(
        f"{origin.description} does not say which characters its {origin.model_config.vocab_size} tokens are: give the "
        f"folder with its meta.pkl by --data_dir=FOLDER (data/{name or 'DATASET'} is not there)"
    )


def _of_dataset(folder: Path) -> Tokenizer:
    """Of nanoGPT's, meta.pkl alone will do: its tokens are for training."""
    if (folder / MANIFEST_FILE).exists() or not (folder / META_FILE).is_file():
        return load_tokenizer(folder)
    vocabulary = read_meta(folder / META_FILE)
    if vocabulary.characters is None:
        return IdsTokenizer(vocabulary.vocab_size)
    return CharTokenizer(vocabulary.characters)


def _check_tokenizer(origin: LoadedCheckpoint, tokenizer: Tokenizer) -> None:
    """With another tokenizer a model writes nonsense, and nobody would know why."""
    known = trained_tokenizer_digest(origin)
    if known is not None and known != tokenizer_digest(tokenizer):
        raise UserError(
            f"{origin.description} was trained with another tokenizer than this {tokenizer.name}: give the folder "
            "of the dataset it was trained on by --data_dir=FOLDER"
        )
    if known is None and not vocab_size_matches(origin, tokenizer.vocab_size):
        raise UserError(
            f"{origin.description} has {origin.model_config.vocab_size} tokens, but the tokenizer has "
            f"{tokenizer.vocab_size}: give the folder of the dataset it was trained on by --data_dir=FOLDER"
        )
