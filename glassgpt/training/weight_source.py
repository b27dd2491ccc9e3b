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

from glassgpt.config import TrainConfig, Value
from glassgpt.errors import UserError, disk_complaint
from glassgpt.flags import check_settings
from glassgpt.model.gpt import GPTConfig
from glassgpt.model.pretrained import GPT2_NAMES, find_pretrained, is_repository, read_pretrained
from glassgpt.model.weights import with_head
from glassgpt.paths import user_path
from glassgpt.recipe import read_recipe
from glassgpt.record.run_dir import CKPT, CONFIG, RUNS, can_go_on, is_run, is_whole_config
from glassgpt.training.checkpoint.checkpoints import (
    Checkpoint,
    Tensors,
    best,
    committed,
    describe,
    load_last,
    load_tensors,
    misnamed_complaints,
)
from glassgpt.training.checkpoint.nanogpt_ckpt import SIZES, read_ckpt, size_problems


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


# What state.json has to have beside `iter` and `val_loss`, for a run to go on from it.
_NEEDED = ("model", "config", "progress", "scaler", "data_hash", "measured_on", "tokenizer")
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
            complaints = [*misnamed_complaints(user_path(folder)), *misnamed_complaints(RUNS / folder)]
            nothing = f"{folder} has no checkpoint yet; `glass runs` lists the runs there are"
            raise UserError([*complaints, nothing])
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
    lacking = [f"{name} in state.json" for name in _NEEDED if name not in point.state]
    lacking += ["model.safetensors"] if "model" not in tensors else []
    if lacking:
        raise UserError(f"{point.path} is damaged: it lacks {', '.join(lacking)}")
    settings, more = settings_of(point)
    return Origin(
        what=str(point.path),
        shape=shape_in(point),
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


def shape_in(point: Checkpoint) -> GPTConfig:
    values, problems = check_settings(point.state.get("model", {}), GPTConfig, " in its state.json")
    missing = [name for name in SIZES if name not in values]
    sizes = {name: size for name in SIZES if isinstance(size := values.get(name), int)}
    problems += [f"{name} is missing" for name in missing] or size_problems(sizes)
    problems += [] if 0 <= float(values.get("dropout") or 0) < 1 else ["its dropout is not below 1"]
    if problems:
        raise UserError([f"{point.path} is damaged: {problem}" for problem in problems])
    return GPTConfig(**values)  # type: ignore[arg-type]


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
        except OSError as error:
            complaints.append(f"{path} cannot be read: {disk_complaint(error)}")
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
