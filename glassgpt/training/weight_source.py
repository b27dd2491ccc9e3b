"""Trained weights by name (`--init_from=SPEC`, `glass sample SPEC`), and the tokenizer that goes with them.

    runs/quickstart          a run's last checkpoint (`glass sample`: its best)
    runs/quickstart@2000     the one after 2000 updates; also @last and @best
    out/ckpt.pt, out         nanoGPT's
    gpt2, gpt2-xl, folder    GPT-2's weights, in Hugging Face's format
    owner/name               any repository on Hugging Face with a model of GPT-2's kind

    loaded = load_init_from("runs/quickstart@best")
    tokenizer = find_tokenizer(loaded)

Whether a new run can start from such weights is decided in weight_compatibility.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from glassgpt.config import ConfigValue, TrainConfig, padded_vocab_size
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
from glassgpt.errors import UserError, describe_os_error
from glassgpt.files import expand_user_path
from glassgpt.flags import check_settings
from glassgpt.model.pretrained import GPT2_NAMES, find_pretrained, is_repository, read_pretrained
from glassgpt.model.weights import read_gpt_config, with_tied_head
from glassgpt.recipe import read_recipe
from glassgpt.record.run_dir import (
    CONFIG_FILE,
    NANOGPT_CKPT_FILE,
    RUNS_DIR,
    TOKENIZER_DIR,
    is_complete_config,
    is_resumable,
    is_run_dir,
)
from glassgpt.training.checkpoint.checkpoints import (
    REQUIRED_TO_RESUME,
    Checkpoint,
    CheckpointListing,
    LoadedCheckpoint,
    TensorsByFile,
    list_checkpoints,
    load_latest_intact,
    load_tensors,
)
from glassgpt.training.checkpoint.nanogpt_ckpt import read_nanogpt_ckpt

_MAX_READ_ATTEMPTS = 5  # to read a run that is training and replaces its checkpoints


# --- finding and loading ---


def load_init_from(spec: str, which: str = "last") -> LoadedCheckpoint:
    """`which`: the checkpoint to load if `spec` is a run without @: "last" or "best"."""
    if spec in GPT2_NAMES and not expand_user_path(spec).exists():
        return _from_huggingface(find_pretrained(spec), spec)
    name, at, number = spec.rpartition("@")
    for run, checkpoint in ((spec, which), *([(name, number)] if at else [])):
        run_dir = find_run_with_checkpoints(run)
        if run_dir is not None:
            return _load_from_run(run_dir, checkpoint)
    path = expand_user_path(spec)
    if path.is_file() or (path / NANOGPT_CKPT_FILE).is_file():
        return read_nanogpt_ckpt(path if path.is_file() else path / NANOGPT_CKPT_FILE)
    if (path / "config.json").is_file():
        return _from_huggingface(find_pretrained(spec), spec)
    for folder in (spec, name):
        if folder and (is_run_dir(expand_user_path(folder)) or is_run_dir(RUNS_DIR / folder)):
            listings = [list_checkpoints(path) for path in (expand_user_path(folder), RUNS_DIR / folder)]
            warnings = [warning for listing in listings for warning in listing.misnamed_warnings]
            problem = f"{folder} has no checkpoint yet; `glass runs` lists all runs"
            raise UserError([*warnings, problem])
    if is_repository(spec) and Path(spec).parts[0] != str(RUNS_DIR):
        try:
            pretrained_dir = find_pretrained(spec)
        except UserError as error:  # it may also be a mistyped run or folder
            problem = f"no run or folder {spec} is here (`glass runs` lists all runs)"
            raise UserError(f"{problem}, and of that name on Hugging Face: {error}") from error
        return _from_huggingface(pretrained_dir, spec)
    raise UserError(
        f"{spec} is neither a run, nor nanoGPT's ckpt.pt, nor one of {', '.join(GPT2_NAMES)}; "
        "`glass runs` lists all runs"
    )


def find_run_with_checkpoints(spec: str) -> Path | None:
    """The folder of a run that has checkpoints: by its path, else by its name in runs/."""
    path = expand_user_path(spec)
    is_path = path.is_file() or is_resumable(path)
    folder = path if is_path else RUNS_DIR / spec
    return folder if is_run_dir(folder) and list_checkpoints(folder).committed else None


def _load_from_run(run_dir: Path, which: str) -> LoadedCheckpoint:
    """Reads again if the run is training right now, and has replaced the checkpoint meanwhile."""
    listing = list_checkpoints(run_dir)
    for _ in range(_MAX_READ_ATTEMPTS):
        try:
            loaded = _load_listed(run_dir, listing, which)
            if not loaded.warnings:
                return loaded
            failure = None
        except UserError as error:
            failure = error
        before, listing = listing, list_checkpoints(run_dir)
        if listing.committed.keys() == before.committed.keys():
            if failure is not None:
                raise failure
            return loaded
    return _load_listed(run_dir, listing, which)


def _load_listed(run_dir: Path, listing: CheckpointListing, which: str) -> LoadedCheckpoint:
    """`which`: "last", "best" or a number. If the last or the best is damaged, another one is loaded; one
    that is requested by its number must be intact."""
    if which not in ("last", "best"):
        entries = {int(path.name.partition(".")[0]): entry for path, entry in listing.committed.items()}
        if not which.isdecimal() or int(which) not in entries:
            available = ", ".join(f"@{iteration}" for iteration in entries)
            raise UserError(
                f"{run_dir} has no checkpoint @{which}: it has @last, @best, {available}; "
                "--keep_checkpoints=N would have kept more"
            )
        entry = entries[int(which)]
        if not isinstance(entry, Checkpoint):
            raise entry
        return from_checkpoint(entry, load_tensors(entry))
    best_warnings = []
    if which == "best":
        for path, entry in listing.committed.items():  # one whose loss cannot be read may have been the best
            if isinstance(entry, UserError):
                best_warnings += entry.problems
            elif isinstance(entry, OSError):
                best_warnings.append(f"{path} cannot be read: {describe_os_error(entry)}")
        try:
            if listing.best is not None:
                return from_checkpoint(listing.best, load_tensors(listing.best), best_warnings)
        except UserError as error:
            best_warnings += error.problems
    checkpoint, tensors, _, warnings = load_latest_intact(run_dir, listing)
    return from_checkpoint(checkpoint, tensors, [*dict.fromkeys([*best_warnings, *warnings])])


def from_checkpoint(
    checkpoint: Checkpoint, tensors: TensorsByFile | None, warnings: Sequence[str] = ()
) -> LoadedCheckpoint:
    """`tensors`: None if they are not read yet."""
    missing = [f"{name} in state.json" for name in REQUIRED_TO_RESUME if name not in checkpoint.state]
    missing += [] if tensors is None or "model" in tensors else ["model.safetensors"]
    if missing:
        raise UserError(f"{checkpoint.path} is damaged: it lacks {', '.join(missing)}")
    try:
        model_config = read_gpt_config(checkpoint.state["model"])
    except UserError as error:
        raise UserError([f"{checkpoint.path} is damaged: {problem}" for problem in error.problems]) from None
    settings, settings_warnings = _checkpoint_settings(checkpoint)
    tensors = tensors or {}
    return LoadedCheckpoint(
        description=str(checkpoint.path),
        model_config=model_config,
        weights=with_tied_head(tensors["model"]) if tensors else {},
        folder=checkpoint.path.parent.parent,
        optimizer=tensors.get("optimizer", {}),
        evaluation=tensors.get("evaluation", {}),
        iter=checkpoint.iter,
        val_loss=checkpoint.val_loss,
        state=checkpoint.state,
        settings=settings,
        warnings=(*warnings, *settings_warnings),
    )


def _checkpoint_settings(checkpoint: Checkpoint) -> tuple[Mapping[str, ConfigValue], list[str]]:
    """The settings in its run's config.toml. If that file is gone, damaged or empty: the settings in the
    checkpoint, and a warning."""
    path = checkpoint.path.parent.parent / CONFIG_FILE
    try:
        settings, warning = read_recipe(path).settings, f"{path} is cut off"
    except UserError as error:
        settings, warning = {}, str(error)
    if settings and is_complete_config(path):
        return settings, []
    state_config = {name: value for name, value in checkpoint.state["config"].items() if value is not None}
    checked, _ = check_settings(state_config, TrainConfig)
    return checked | {"out_dir": "", "eval_only": False}, [f"{warning}; the settings are the checkpoint's"]


def _from_huggingface(folder: Path, name: str) -> LoadedCheckpoint:
    model_config, weights = read_pretrained(folder)
    return LoadedCheckpoint(
        description=name, model_config=model_config, weights=weights, folder=folder, kind="huggingface"
    )


# --- the tokenizer that goes with the weights ---


def find_tokenizer(loaded: LoadedCheckpoint, dataset_dir: str = "") -> Tokenizer:
    """The tokenizer of these weights. `dataset_dir`: a dataset that has it, if their folder does not.

    With another tokenizer a model generates nonsense, and nobody would know why. So it is checked.
    """
    tokenizer = _load_tokenizer_of(loaded, dataset_dir)
    trained_digest = trained_tokenizer_digest(loaded)
    if trained_digest is not None and trained_digest != tokenizer_digest(tokenizer):
        raise UserError(
            f"{loaded.description} was trained with another tokenizer than this {tokenizer.name}: give the "
            "folder of the dataset it was trained on by --data_dir=FOLDER"
        )
    if trained_digest is None and not vocab_size_matches(loaded, tokenizer.vocab_size):
        raise UserError(
            f"{loaded.description} has {loaded.model_config.vocab_size} tokens, but the tokenizer has "
            f"{tokenizer.vocab_size}: give the folder of the dataset it was trained on by --data_dir=FOLDER"
        )
    return tokenizer


def _load_tokenizer_of(loaded: LoadedCheckpoint, dataset_dir: str) -> Tokenizer:
    if dataset_dir:
        return _load_dataset_tokenizer(expand_user_path(dataset_dir))
    if loaded.kind == "huggingface":
        return require_tokenizer_in(loaded.folder, "--init_from", "sample from another model")
    if loaded.kind == "run":
        try:
            return load_tokenizer(loaded.folder / TOKENIZER_DIR)
        except UserError as error:
            fix = "--data_dir=FOLDER names the dataset it was trained on, which has it too"
            raise UserError(f"the tokenizer of {loaded.folder} cannot be read ({error}); {fix}") from None
    name = str(loaded.settings.get("dataset", ""))
    # Beside the checkpoint first: another project's dataset may have the same name.
    for folder in (loaded.folder.parent / "data" / name, Path("data") / name):
        # nanoGPT's repository comes with these folders, and only a script in them.
        if name and any((folder / file).exists() for file in (MANIFEST_FILE, META_FILE, "train.bin")):
            return _load_dataset_tokenizer(folder)
    if loaded.model_config.vocab_size >= 50257:
        return gpt2_tokenizer(download_gpt2_ranks("connect to the network once, and tiktoken keeps it"))
    raise UserError(
        f"{loaded.description} does not say which characters its {loaded.model_config.vocab_size} tokens "
        f"are: give the folder with its meta.pkl by --data_dir=FOLDER (data/{name or 'DATASET'} is not there)"
    )


def _load_dataset_tokenizer(folder: Path) -> Tokenizer:
    """In a dataset of nanoGPT's, meta.pkl is enough: the tokens themselves are not needed."""
    if (folder / MANIFEST_FILE).exists() or not (folder / META_FILE).is_file():
        return load_tokenizer(folder)
    vocabulary = read_meta(folder / META_FILE)
    if vocabulary.characters is None:
        return IdsTokenizer(vocabulary.vocab_size)
    return CharTokenizer(vocabulary.characters)


def trained_tokenizer_digest(loaded: LoadedCheckpoint) -> str | None:
    """The digest of the tokenizer that the weights were trained with; None if it is not known.

    Older checkpoints name the tokenizer and its files instead. Then it is the digest of the files in the run.
    """
    if loaded.kind == "huggingface":
        tokenizer = pretrained_tokenizer(loaded)
        return None if tokenizer is None else tokenizer_digest(tokenizer)
    recorded, folder = str(loaded.state.get("tokenizer", "")), loaded.folder / TOKENIZER_DIR
    if not recorded.startswith("["):
        return recorded or None
    try:
        dataset = Dataset(folder, read_manifest(folder))
        is_recorded = tokenizer_matches_record(loaded, dataset.manifest)
        return dataset_tokenizer_digest(dataset) if is_recorded else None
    except UserError:  # the files are gone, or damaged
        return None


def tokenizer_matches_record(loaded: LoadedCheckpoint, manifest: Manifest) -> bool:
    """Whether a tokenizer is the one that an older checkpoint names, or it names none."""
    files = {} if manifest.tokenizer == "gpt2" else dict(manifest.sha256)
    files = {name: digest for name, digest in files.items() if not name.endswith(".bin")}
    record = json.dumps([manifest.tokenizer, manifest.characters, files], sort_keys=True)
    return loaded.state["tokenizer"] in ("", record)


def pretrained_tokenizer(loaded: LoadedCheckpoint) -> Tokenizer | None:
    """The tokenizer in the folder of pretrained weights; None if there is none."""
    fix = "begin from another model, such as --init_from=gpt2, or from scratch"
    tokenizer = load_tokenizer_in(loaded.folder, "--init_from", fix)
    if tokenizer is not None and tokenizer.vocab_size > loaded.model_config.vocab_size:
        raise UserError(
            f"--init_from {loaded.folder}: its tokenizer has ids up to {tokenizer.vocab_size - 1}, and its "
            f"weights have rows for {loaded.model_config.vocab_size}: they do not belong together; {fix}"
        )
    return tokenizer


def vocab_size_matches(loaded: LoadedCheckpoint, vocab_size: int) -> bool:
    """Whether the weights have this vocabulary size, or this size padded."""
    return loaded.model_config.vocab_size in (vocab_size, padded_vocab_size(vocab_size))
