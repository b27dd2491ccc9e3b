"""Where weights come from: a run's checkpoint, nanoGPT's ckpt.pt, or GPT-2 as OpenAI trained it.

runs/quickstart          its last checkpoint (to sample: its best)
runs/quickstart@2000     the one it kept after 2000 updates; also @last and @best
out/ckpt.pt, out         nanoGPT's
gpt2, gpt2-xl, folder    GPT-2's weights, as Hugging Face keeps them
owner/name               any repository there with a model of GPT-2's kind
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from glassgpt.config import Choice, TrainConfig, Value, activation, padded_vocabulary
from glassgpt.data.dataset import Dataset, Manifest, user_path
from glassgpt.data.ranks import RANKS_FILE
from glassgpt.data.tokenizer_json import same_tokens, tokenizer_beside
from glassgpt.data.tokenizers import tokenizer_of
from glassgpt.errors import UserError
from glassgpt.model.gpt import GPTConfig
from glassgpt.model.pretrained import GPT2_NAMES, find_pretrained, is_repository, read_pretrained
from glassgpt.model.weights import with_head
from glassgpt.recipe import check_settings, read_recipe
from glassgpt.train.checkpoint import Checkpoint, Tensors, best, committed, describe, load_last, load_tensors
from glassgpt.train.ckpt import read_ckpt
from glassgpt.train.rundir import CKPT, CONFIG, RUNS, can_go_on, is_run, is_whole_config


@dataclass(frozen=True)
class Origin:
    """Weights, and everything that is known about them."""

    what: str  # in words: which checkpoint of what
    shape: GPTConfig
    weights: dict[str, Tensor]
    folder: Path  # the run's, the ckpt.pt's, or the pretrained weights'
    optimizer: dict[str, Tensor] = field(default_factory=dict)  # empty: nobody kept it
    evaluation: dict[str, Tensor] = field(default_factory=dict)
    iter: int | None = None  # None: not from a run
    val_loss: float | None = None
    state: Mapping[str, Any] = field(default_factory=dict)  # of a checkpoint of ours
    settings: Mapping[str, Value] = field(default_factory=dict)  # that it was trained with
    kind: str = "run"  # "run", "nanogpt" or "gpt2"
    complaints: tuple[str, ...] = ()  # about newer checkpoints that are damaged


# What weights decide about a model. Dropout has none; of context they allow less, see `fitted`.
MODEL_SETTINGS = ("n_layer", "n_head", "n_embd", "bias", "arch", "activation", "tie_embeddings")


def fitted(config: TrainConfig, origin: Origin) -> TrainConfig:
    """The config with the model's settings as the weights need them. Less context than theirs is possible."""
    fixed = {name: getattr(origin.shape, name) for name in MODEL_SETTINGS}
    context = min(config.block_size, origin.shape.block_size)
    return dataclasses.replace(config, **fixed, block_size=context)


def model_setting(config: TrainConfig, name: str) -> Value:
    return activation(config) if name == "activation" else getattr(config, name)


def misfits(asked: Mapping[str, Any], config: TrainConfig, origin: Origin) -> list[str]:
    """Flags that contradict the weights, which cannot be changed by asking."""
    problems = [
        f"--{name}={asked[name]} does not fit {origin.what}, which has {name}={getattr(origin.shape, name)}"
        for name in MODEL_SETTINGS
        if name in asked and model_setting(config, name) != getattr(origin.shape, name)
    ]
    if "block_size" in asked and config.block_size > origin.shape.block_size:
        problems.append(
            f"--block_size={config.block_size} is more context than {origin.what} has: at most "
            f"{origin.shape.block_size}"
        )
    return problems


_TRIES = 5  # to read a run that keeps replacing its checkpoints


def open_origin(spec: str, which: str = "last") -> Origin:
    """`which` checkpoint of a run to take if `spec` does not say."""
    if spec in GPT2_NAMES and not user_path(spec).exists():
        return _from_gpt2(find_pretrained(spec), spec)
    name, at, number = spec.rpartition("@")
    for run, checkpoint in ((spec, which), *([(name, number)] if at else [])):
        run_dir = find_run(run)
        if run_dir is not None:
            return _from_run(run_dir, checkpoint)
    path = user_path(spec)
    if path.is_file() or (path / CKPT).is_file():
        return of_ckpt(path if path.is_file() else path / CKPT)
    if (path / "config.json").is_file():
        return _from_gpt2(find_pretrained(spec), spec)
    for folder in (spec, name):
        if folder and (is_run(user_path(folder)) or is_run(RUNS / folder)):
            raise UserError(f"{folder} has no checkpoint yet; `glass runs` lists the runs there are")
    if is_repository(spec) and Path(spec).parts[0] != str(RUNS):
        return _from_gpt2(_find_repository(spec), spec)
    raise UserError(
        f"{spec} is neither a run, nor nanoGPT's ckpt.pt, nor one of {', '.join(GPT2_NAMES)}; "
        "`glass runs` lists the runs there are"
    )


def _find_repository(spec: str) -> Path:
    """Whoever mistyped a run or a folder is told of that too, not of Hugging Face alone."""
    try:
        return find_pretrained(spec)
    except UserError as error:
        nothing = f"no run or folder {spec} is here (`glass runs` lists the runs there are)"
        raise UserError(f"{nothing}, and of that name on Hugging Face: {error}") from error


def find_run(text: str) -> Path | None:
    """The folder of a run that has checkpoints: by path, or by its name in runs/ if that is nothing."""
    path = user_path(text)
    something_there = path.is_file() or can_go_on(path)
    for folder in (path,) if something_there else (RUNS / text,):
        if is_run(folder) and committed(folder):
            return folder
    return None


def of_checkpoint(point: Checkpoint, tensors: Tensors, complaints: Sequence[str] = ()) -> Origin:
    settings, more = settings_of(point)
    return Origin(
        what=str(point.path),
        shape=GPTConfig(**point.state["model"]),
        weights=with_head(tensors["model"]),
        folder=point.path.parent.parent,
        optimizer=tensors.get("optimizer", {}),
        evaluation=tensors.get("evaluation", {}),
        iter=point.iter,
        val_loss=point.val_loss,
        state=point.state,
        settings=settings,
        complaints=(*complaints, *more),
    )


def settings_of(point: Checkpoint) -> tuple[Mapping[str, Value], list[str]]:
    """Its run's settings; if their file is gone, damaged or empty, the checkpoint's, and a complaint."""
    path = point.path.parent.parent / CONFIG
    try:
        settings, complaint = read_recipe(path).settings, f"{path} is cut off"
    except UserError as error:
        settings, complaint = {}, str(error)
    if settings and is_whole_config(path):
        return settings, []
    kept = {name: value for name, value in point.state["config"].items() if value is not None}
    checked, _ = check_settings(kept, TrainConfig)
    return checked | {"out_dir": "", "eval_only": False}, [f"{complaint}; the settings are the checkpoint's"]


def _from_run(run_dir: Path, which: str) -> Origin:
    """Reads again if the run is training just now, and has replaced what was being read."""
    for _ in range(_TRIES):
        before = committed(run_dir)
        try:
            origin = _read_run(run_dir, which)
        except UserError:
            if committed(run_dir) == before:
                raise
        else:
            if not origin.complaints or committed(run_dir) == before:
                return origin
    return _read_run(run_dir, which)


def _read_run(run_dir: Path, which: str) -> Origin:
    """A checkpoint asked for by number has to be whole; instead of the last or best another one will do."""
    if which == "last":
        point, tensors, _, complaints = load_last(run_dir)
        return of_checkpoint(point, tensors, complaints)
    if which != "best":
        point = describe(_kept(run_dir, which))
        return of_checkpoint(point, load_tensors(point))
    complaints = _unreadable(run_dir)
    found = best(run_dir)
    try:
        if found is not None:
            return of_checkpoint(found, load_tensors(found), complaints)
    except UserError as error:
        complaints += error.problems
    last = _read_run(run_dir, "last")
    return dataclasses.replace(last, complaints=tuple(dict.fromkeys([*complaints, *last.complaints])))


def _unreadable(run_dir: Path) -> list[str]:
    """What is wrong with checkpoints whose loss cannot be read: one of them may have been the best."""
    complaints = []
    for path in committed(run_dir):
        try:
            describe(path)
        except UserError as error:
            complaints += error.problems
    return complaints


def _kept(run_dir: Path, number: str) -> Path:
    kept = {int(path.name.partition(".")[0]): path for path in committed(run_dir)}
    if not number.isdecimal() or int(number) not in kept:
        have = ", ".join(f"@{iteration}" for iteration in kept)
        raise UserError(
            f"{run_dir} has no checkpoint @{number}: it has @last, @best, {have}; "
            "--keep_checkpoints=N would have kept more"
        )
    return kept[int(number)]


def of_ckpt(path: Path) -> Origin:
    ckpt = read_ckpt(path)
    return Origin(
        what=str(path),
        shape=ckpt.shape,
        weights=ckpt.weights,
        folder=path.parent,
        optimizer=ckpt.optimizer,
        iter=ckpt.iter,
        val_loss=ckpt.best_val_loss,
        settings=ckpt.settings,
        kind="nanogpt",
    )


def _from_gpt2(folder: Path, name: str) -> Origin:
    shape, weights = read_pretrained(folder)
    return Origin(what=name, shape=shape, weights=weights, folder=folder, kind="gpt2")


# --- what fits, and what is taken over ---


def check_fit(config: TrainConfig, dataset: Dataset, origin: Origin, same_run: bool = False) -> None:
    """Weights fit only the model and the tokens they were made with (dropout has no parameters)."""
    manifest = dataset.manifest
    problems = []
    if not knows_tokens(origin, manifest.vocab_size):
        problems.append(
            f"--dataset={config.dataset} has a vocabulary of {manifest.vocab_size}, {origin.what} of "
            f"{origin.shape.vocab_size}; it needs the dataset it was trained on, or one prepared with its "
            "tokenizer"
        )
    elif origin.kind == "run" and origin.state["tokenizer"] not in ("", tokenizer_identity(manifest)):
        problems.append(
            f"--dataset={config.dataset} numbers its tokens differently from the dataset that "
            f"{origin.what} was trained on; use that one"
        )
    elif origin.kind == "gpt2" and not _has_its_tokens(origin, dataset):
        problems.append(
            f"--dataset={config.dataset} numbers its tokens differently from {origin.what}, which needs "
            f"{_its_dataset(origin)}"
        )
    names = (*MODEL_SETTINGS, "block_size") if same_run else MODEL_SETTINGS
    for name in names:
        now, then = model_setting(config, name), getattr(origin.shape, name)
        if now != then:
            problems.append(f"--{name}={now} does not fit {origin.what}, which has {name}={then}")
    if problems:
        raise UserError(problems)


def _has_its_tokens(origin: Origin, dataset: Dataset) -> bool:
    """Whether a dataset has the tokens that pretrained weights know; where no table is at hand, by name."""
    manifest = dataset.manifest
    if manifest.tokenizer == "gpt2" and RANKS_FILE not in manifest.sha256:
        return True
    try:
        theirs = tokenizer_beside(origin.folder, "--init_from")
    except UserError:  # weights alone: GPT-2's tokens go with them
        return manifest.tokenizer == "gpt2"
    return same_tokens(theirs, tokenizer_of(dataset))


def _its_dataset(origin: Origin) -> str:
    """Of a folder's tokenizers only a table of byte pairs can be given to `prepare`."""
    with contextlib.suppress(UserError):  # weights alone: GPT-2's tokens go with them
        theirs = tokenizer_beside(origin.folder, "--init_from")
        if theirs.name == "byte":
            return "a dataset prepared with --tokenizer=byte"
        if theirs.eot is None:
            return f"the dataset that it was trained on: its tokenizer is {theirs.name}"
    return f"a dataset prepared with --tokenizer=gpt2 --tokenizer_files={origin.folder}"


def knows_tokens(origin: Origin, vocab_size: int) -> bool:
    """Whether it was trained with a vocabulary of this size, which may have been rounded up."""
    return origin.shape.vocab_size in (vocab_size, padded_vocabulary(vocab_size))


def tokenizer_identity(manifest: Manifest) -> str:
    """What decides which token is which; the text itself does not, nor whether GPT-2's table is at hand.

    A checkpoint that was imported without its data has "".
    """
    files = {} if manifest.tokenizer == "gpt2" else dict(manifest.sha256)
    files = {name: digest for name, digest in files.items() if not name.endswith(".bin")}
    return json.dumps([manifest.tokenizer, manifest.characters, files], sort_keys=True)


def choose_takeover(
    config: TrainConfig, dataset: Dataset, origin: Origin, goes_on: bool
) -> tuple[bool, Choice]:
    """Whether a run takes over iteration and optimizer as well, or weights alone; and why.

    `goes_on`: the run is the one that the weights are of, whatever its data is now.
    """
    asked = config.init_state
    cropped = config.block_size < origin.shape.block_size
    if asked == "all" and (origin.iter is None or cropped):
        why = "has no optimizer state" if origin.iter is None else "was trained with more context"
        raise UserError(f"--init_state=all is not possible: {origin.what} {why}; --init_state=weights is")
    if origin.iter is None:
        why = "weights alone: begins at update 0"
    elif cropped:
        why = f"context cut from {origin.shape.block_size} to {config.block_size}: begins at update 0"
    elif asked == "weights":
        why = "weights alone, as --init_state asks: begins at update 0"
    elif asked == "auto" and not goes_on and not _same_data(dataset, config, origin):
        why = "weights alone, because the data is another: begins at update 0"
    else:
        how = (
            "with its optimizer"
            if origin.optimizer or not origin.iter
            else "with a new optimizer: none was kept"
        )
        return True, Choice("init_from", origin.what, f"goes on at update {origin.iter:,} {how}")
    return False, Choice("init_from", origin.what, why)


def _same_data(dataset: Dataset, config: TrainConfig, origin: Origin) -> bool:
    if origin.kind == "run":
        return bool(origin.state["data_hash"] == dataset.hash)
    return origin.settings.get("dataset") == config.dataset


def check_not_done(config: TrainConfig, done: int) -> None:
    if done >= config.max_iters and not config.eval_only:
        raise UserError(f"the run has done its {done} updates; --max_iters={2 * done} would train it on")
