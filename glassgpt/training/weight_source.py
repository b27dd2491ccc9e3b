"""Where weights come from: a run's checkpoint, nanoGPT's ckpt.pt, or GPT-2 as OpenAI trained it.

runs/quickstart          its last checkpoint (to sample: its best)
runs/quickstart@2000     the one it kept after 2000 updates; also @last and @best
out/ckpt.pt, out         nanoGPT's
gpt2, gpt2-xl, folder    GPT-2's weights, as Hugging Face keeps them
owner/name               any repository there with a model of GPT-2's kind
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from glassgpt.config import ConfigValue, TrainConfig
from glassgpt.errors import UserError, describe_os_error
from glassgpt.files import expand_user_path
from glassgpt.flags import check_settings
from glassgpt.model.gpt import GPTConfig
from glassgpt.model.pretrained import GPT2_NAMES, find_pretrained, is_repository, read_pretrained
from glassgpt.model.weights import with_tied_head
from glassgpt.recipe import read_recipe
from glassgpt.record.run_dir import (
    CONFIG_FILE,
    NANOGPT_CKPT_FILE,
    RUNS_DIR,
    is_complete_config,
    is_resumable,
    is_run_dir,
)
from glassgpt.training.checkpoint.checkpoints import (
    Checkpoint,
    TensorsByFile,
    best_checkpoint,
    committed_paths,
    load_latest_intact,
    load_tensors,
    misnamed_warnings,
    read_checkpoint,
)
from glassgpt.training.checkpoint.nanogpt_ckpt import MODEL_SIZES, read_nanogpt_ckpt, size_problems


@dataclass(frozen=True)
class LoadedCheckpoint:
    """Weights, and everything that is known about them."""

    description: str  # in words: which checkpoint of what
    model_config: GPTConfig
    weights: dict[str, Tensor]
    folder: Path  # the run's, the ckpt.pt's, or the pretrained weights'
    optimizer: dict[str, Tensor] = field(default_factory=dict)  # empty: nobody kept it
    evaluation: dict[str, Tensor] = field(default_factory=dict)
    iter: int | None = None  # None: not from a run
    val_loss: float | None = None
    state: Mapping[str, Any] = field(default_factory=dict)  # of a checkpoint of ours
    settings: Mapping[str, ConfigValue] = field(default_factory=dict)  # that it was trained with
    kind: str = "run"  # "run", "nanogpt" or "gpt2"
    complaints: tuple[str, ...] = ()  # about newer checkpoints that are damaged


# What state.json has to have beside `iter` and `val_loss`, for a run to go on from it.
_REQUIRED_STATE_KEYS = ("model", "config", "progress", "scaler", "data_hash", "measured_on", "tokenizer")
_MAX_READ_ATTEMPTS = 5  # to read a run that keeps replacing its checkpoints


def load_init_from(spec: str, which: str = "last") -> LoadedCheckpoint:
    """`which` checkpoint of a run to take if `spec` does not say."""
    if spec in GPT2_NAMES and not expand_user_path(spec).exists():
        return _from_gpt2(find_pretrained(spec), spec)
    name, at, number = spec.rpartition("@")
    for run, checkpoint in ((spec, which), *([(name, number)] if at else [])):
        run_dir = find_run_with_checkpoints(run)
        if run_dir is not None:
            return _load_from_run(run_dir, checkpoint)
    path = expand_user_path(spec)
    if path.is_file() or (path / NANOGPT_CKPT_FILE).is_file():
        return from_nanogpt_ckpt(path if path.is_file() else path / NANOGPT_CKPT_FILE)
    if (path / "config.json").is_file():
        return _from_gpt2(find_pretrained(spec), spec)
    for folder in (spec, name):
        if folder and (is_run_dir(expand_user_path(folder)) or is_run_dir(RUNS_DIR / folder)):
            complaints = [*misnamed_warnings(expand_user_path(folder)), *misnamed_warnings(RUNS_DIR / folder)]
            nothing = f"{folder} has no checkpoint yet; `glass runs` lists the runs there are"
            raise UserError([*complaints, nothing])
    if is_repository(spec) and Path(spec).parts[0] != str(RUNS_DIR):
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


def find_run_with_checkpoints(text: str) -> Path | None:
    """The folder of a run that has checkpoints: by path, or by its name in runs/ if that is nothing."""
    path = expand_user_path(text)
    something_there = path.is_file() or is_resumable(path)
    for folder in (path,) if something_there else (RUNS_DIR / text,):
        if is_run_dir(folder) and committed_paths(folder):
            return folder
    return None


def from_checkpoint(
    point: Checkpoint, tensors: TensorsByFile, complaints: Sequence[str] = ()
) -> LoadedCheckpoint:
    lacking = [f"{name} in state.json" for name in _REQUIRED_STATE_KEYS if name not in point.state]
    lacking += ["model.safetensors"] if "model" not in tensors else []
    if lacking:
        raise UserError(f"{point.path} is damaged: it lacks {', '.join(lacking)}")
    settings, more = checkpoint_settings(point)
    return LoadedCheckpoint(
        description=str(point.path),
        model_config=model_config_of(point),
        weights=with_tied_head(tensors["model"]),
        folder=point.path.parent.parent,
        optimizer=tensors.get("optimizer", {}),
        evaluation=tensors.get("evaluation", {}),
        iter=point.iter,
        val_loss=point.val_loss,
        state=point.state,
        settings=settings,
        complaints=(*complaints, *more),
    )


def model_config_of(point: Checkpoint) -> GPTConfig:
    values, problems = check_settings(point.state.get("model", {}), GPTConfig, " in its state.json")
    missing = [name for name in MODEL_SIZES if name not in values]
    sizes = {name: size for name in MODEL_SIZES if isinstance(size := values.get(name), int)}
    problems += [f"{name} is missing" for name in missing] or size_problems(sizes)
    problems += [] if 0 <= float(values.get("dropout") or 0) < 1 else ["its dropout is not below 1"]
    if problems:
        raise UserError([f"{point.path} is damaged: {problem}" for problem in problems])
    return GPTConfig(**values)  # type: ignore[arg-type]


def checkpoint_settings(point: Checkpoint) -> tuple[Mapping[str, ConfigValue], list[str]]:
    """Its run's settings; if their file is gone, damaged or empty, the checkpoint's, and a complaint."""
    path = point.path.parent.parent / CONFIG_FILE
    try:
        settings, complaint = read_recipe(path).settings, f"{path} is cut off"
    except UserError as error:
        settings, complaint = {}, str(error)
    if settings and is_complete_config(path):
        return settings, []
    kept = {name: value for name, value in point.state["config"].items() if value is not None}
    checked, _ = check_settings(kept, TrainConfig)
    return checked | {"out_dir": "", "eval_only": False}, [f"{complaint}; the settings are the checkpoint's"]


def _load_from_run(run_dir: Path, which: str) -> LoadedCheckpoint:
    """Reads again if the run is training just now, and has replaced what was being read."""
    for _ in range(_MAX_READ_ATTEMPTS):
        before = committed_paths(run_dir)
        try:
            origin = _load_from_run_once(run_dir, which)
        except UserError:
            if committed_paths(run_dir) == before:
                raise
        else:
            if not origin.complaints or committed_paths(run_dir) == before:
                return origin
    return _load_from_run_once(run_dir, which)


def _load_from_run_once(run_dir: Path, which: str) -> LoadedCheckpoint:
    """A checkpoint asked for by number has to be whole; instead of the last or best another one will do."""
    if which == "last":
        point, tensors, _, complaints = load_latest_intact(run_dir)
        return from_checkpoint(point, tensors, complaints)
    if which != "best":
        point = read_checkpoint(_kept(run_dir, which))
        return from_checkpoint(point, load_tensors(point))
    complaints = _unreadable(run_dir)
    found = best_checkpoint(run_dir)
    try:
        if found is not None:
            return from_checkpoint(found, load_tensors(found), complaints)
    except UserError as error:
        complaints += error.problems
    last = _load_from_run_once(run_dir, "last")
    return dataclasses.replace(last, complaints=tuple(dict.fromkeys([*complaints, *last.complaints])))


def _unreadable(run_dir: Path) -> list[str]:
    """What is wrong with checkpoints whose loss cannot be read: one of them may have been the best."""
    complaints = []
    for path in committed_paths(run_dir):
        try:
            read_checkpoint(path)
        except UserError as error:
            complaints += error.problems
        except OSError as error:
            complaints.append(f"{path} cannot be read: {describe_os_error(error)}")
    return complaints


def _kept(run_dir: Path, number: str) -> Path:
    kept = {int(path.name.partition(".")[0]): path for path in committed_paths(run_dir)}
    if not number.isdecimal() or int(number) not in kept:
        have = ", ".join(f"@{iteration}" for iteration in kept)
        raise UserError(
            f"{run_dir} has no checkpoint @{number}: it has @last, @best, {have}; "
            "--keep_checkpoints=N would have kept more"
        )
    return kept[int(number)]


def from_nanogpt_ckpt(path: Path) -> LoadedCheckpoint:
    ckpt = read_nanogpt_ckpt(path)
    return LoadedCheckpoint(
        description=str(path),
        model_config=ckpt.model_config,
        weights=ckpt.weights,
        folder=path.parent,
        optimizer=ckpt.optimizer,
        iter=ckpt.iter,
        val_loss=ckpt.best_val_loss,
        settings=ckpt.settings,
        kind="nanogpt",
    )


def _from_gpt2(folder: Path, name: str) -> LoadedCheckpoint:
    shape, weights = read_pretrained(folder)
    return LoadedCheckpoint(description=name, model_config=shape, weights=weights, folder=folder, kind="gpt2")
