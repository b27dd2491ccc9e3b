"""From a recipe and flags to a task: a new run or one that goes on, its settings, its first weights."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glassgpt.config import Choice, TrainConfig, data_dir
from glassgpt.errors import UserError
from glassgpt.files import expand_user_path
from glassgpt.recipe import DEFAULT_PRESET, Recipe, build_config, find_recipe, read_recipe
from glassgpt.record import journal
from glassgpt.record.run_dir import (
    CONFIG_FILE,
    NANOGPT_CKPT_FILE,
    RUNS_DIR,
    check_out_dir_is_free,
    existing_run_dir,
    first_free_run_dir,
    is_complete_config,
    latest_numbered_run,
)
from glassgpt.training.checkpoint.checkpoints import committed_paths, misnamed_warnings, readable_checkpoints
from glassgpt.training.device import choose_device
from glassgpt.training.distributed.process_group import ProcessGroup
from glassgpt.training.init_weights import (
    MODEL_SETTINGS,
    conflicting_flags,
    match_model_settings,
    model_setting,
)
from glassgpt.training.weight_source import (
    LoadedCheckpoint,
    checkpoint_settings,
    from_nanogpt_ckpt,
    load_init_from,
)


@dataclass(frozen=True)
class RunRequest:
    """A run to do."""

    config: TrainConfig
    name: str = "run"  # of its folder, if --out_dir does not say
    resume_dir: Path | None = None  # of a run to go on with; None: a new one
    init_checkpoint: LoadedCheckpoint | None = (
        None  # of the first weights; None: random, or the run's own last checkpoint
    )
    notes: tuple[Choice, ...] = ()  # what was decided on the way here
    tuning_s: float = 0.0  # how long this process tried settings before


def request_from_config(config: TrainConfig, name: str = "run") -> RunRequest:
    """The task that a config states by itself: from Python there are no layers."""
    if config.init_from == "scratch":
        return RunRequest(config, name)
    if config.init_from == "resume":
        run_dir = existing_run_dir(config.out_dir, name)
        origin, notes = _restart_source(run_dir)
        stored = _stored_recipe(run_dir, origin).settings.get("init_from", "scratch")
        return RunRequest(replace(config, init_from=str(stored)), name, run_dir, origin, notes)
    origin = load_init_from(config.init_from)
    return RunRequest(
        _pin_checkpoint(match_model_settings(config, origin), origin), name, init_checkpoint=origin
    )


def resolve_request(recipe: Recipe | None, overrides: Mapping[str, Any]) -> RunRequest:
    """All layers put together. Without a recipe: the default one, or the settings of the run begun from."""
    said = {**(recipe.settings if recipe else {}), **overrides}
    init_from = said.get("init_from", "scratch")
    if init_from == "resume":
        return resume_request(_run_to_resume(recipe, overrides), overrides, recipe)
    if init_from == "scratch":
        recipe = recipe or find_recipe(DEFAULT_PRESET)
        return _new_run_request(_combine_for_device(recipe, overrides), recipe, overrides)
    origin = load_init_from(init_from)
    recipe = recipe or Recipe(
        _without_number(origin.folder.name), "", _without_device_choices(origin.settings, overrides)
    )
    config = _combine_for_device(recipe, overrides)
    problems = conflicting_flags(overrides, config, origin)
    if problems:
        raise UserError(problems)
    task = _new_run_request(
        _pin_checkpoint(match_model_settings(config, origin), origin), recipe, overrides, origin
    )
    return replace(task, notes=(*task.notes, *_changed_by_weights(config, task.config, origin)))


def _changed_by_weights(before: TrainConfig, after: TrainConfig, origin: LoadedCheckpoint) -> list[Choice]:
    """The recipe is for another model than these weights are of."""
    return [
        Choice(
            name, getattr(after, name), f"as {origin.description} has it, not {model_setting(before, name)}"
        )
        for name in (*MODEL_SETTINGS, "block_size")
        if model_setting(before, name) != model_setting(after, name)
    ]


def _pin_checkpoint(config: TrainConfig, origin: LoadedCheckpoint) -> TrainConfig:
    """With the checkpoint by its number: the run it is of may go on, and have another last one then."""
    return replace(config, init_from=f"{origin.folder}@{origin.iter}") if origin.kind == "run" else config


def _combine_for_device(recipe: Recipe, overrides: Mapping[str, Any]) -> TrainConfig:
    asked = {**recipe.settings, **overrides}.get("device", "auto")
    return build_config(recipe, overrides, _device_type(recipe, str(asked)))


def _device_type(recipe: Recipe, asked: str) -> str | None:
    """Which table of the recipe holds; a device that cannot be had is complained about later."""
    try:
        return choose_device(asked)[0].type if recipe.by_device else None
    except UserError:
        return None


def _new_run_request(
    config: TrainConfig, recipe: Recipe, overrides: Mapping[str, Any], origin: LoadedCheckpoint | None = None
) -> RunRequest:
    """A folder asked for by flag must be new; one that a file names is where a row of runs begins."""
    notes = []
    if recipe.instead_of:
        notes.append(Choice("preset", recipe.name, f"{recipe.instead_of} is not on disk"))
    if config.out_dir and "out_dir" not in overrides:
        free = str(first_free_run_dir(expand_user_path(config.out_dir)))
        if free != str(expand_user_path(config.out_dir)):
            reason = f"{config.out_dir} holds a run already, and runs are never overwritten"
            notes.append(Choice("out_dir", free, reason))
        config = replace(config, out_dir=free)
    if config.out_dir:
        check_out_dir_is_free(config.out_dir)
    return RunRequest(config, recipe.name, init_checkpoint=origin, notes=tuple(notes))


def prepare_if_built_in(
    config: TrainConfig, announce: Callable[[str], None] = lambda line: None, progress: bool = False
) -> None:
    """pylib is on every machine: no need to make people ask for it."""
    from glassgpt.data.prepare import prepare
    from glassgpt.data.prepare_options import PrepareOptions

    directory = data_dir(config)
    if config.dataset == "pylib" and not config.data_dir and not directory.exists():
        announce("data          preparing pylib, the Python standard library's source, once")
        options = PrepareOptions(dataset="pylib", out_dir=str(directory))
        prepare(options, lambda line: None, progress=progress)


# --- going on ---


def _run_to_resume(recipe: Recipe | None, overrides: Mapping[str, Any]) -> Path:
    if "out_dir" not in overrides and recipe is not None and recipe.settings.get("out_dir"):
        return latest_numbered_run(expand_user_path(str(recipe.settings["out_dir"])))
    return existing_run_dir(str(overrides.get("out_dir", "")), recipe.name if recipe else DEFAULT_PRESET)


def resume_request(run_dir: Path, overrides: Mapping[str, Any], recipe: Recipe | None = None) -> RunRequest:
    """The settings the run was started with, and on top of them what is said now."""
    origin, notes = _restart_source(run_dir)
    stored = _stored_recipe(run_dir, origin)
    changes = {name: value for name, value in overrides.items() if name not in ("init_from", "out_dir")}
    settings = _without_device_choices(stored.settings, changes)
    config = build_config(replace(stored, settings=settings), changes)
    if origin is not None:
        problems = conflicting_flags(changes, config, origin)
        if problems:
            raise UserError(problems)
        config = match_model_settings(config, origin)
    if recipe is not None:
        notes += tuple(_ignored_settings(recipe, config, changes))
    return RunRequest(config, run_dir.name, run_dir, origin, notes)


def _restart_source(run_dir: Path) -> tuple[LoadedCheckpoint | None, tuple[Choice, ...]]:
    """What a run without a checkpoint of its own begins from: nanoGPT's, or what it began from before."""
    if committed_paths(run_dir):
        return None, ()
    if complaints := misnamed_warnings(run_dir):  # one of them may be all that is left of the run
        raise UserError(complaints)
    if (run_dir / NANOGPT_CKPT_FILE).is_file():
        return from_nanogpt_ckpt(run_dir / NANOGPT_CKPT_FILE), ()
    if not is_complete_config(run_dir / CONFIG_FILE):
        raise UserError(
            f"{run_dir / CONFIG_FILE} is cut off, and there is no checkpoint: start in another --out_dir"
        )
    init_from = str(read_recipe(run_dir / CONFIG_FILE).settings.get("init_from", "scratch"))
    origin = None if init_from == "scratch" else load_init_from(init_from)
    reason = "the run had no checkpoint yet: it begins again, with its settings and seed"
    return origin, (Choice("resume", "update 0" if origin is None else init_from, reason),)


def _stored_recipe(run_dir: Path, origin: LoadedCheckpoint | None) -> Recipe:
    """The run's settings; from its last checkpoint if the file is damaged."""
    path = run_dir / CONFIG_FILE
    if origin is not None and not path.exists():
        return Recipe(run_dir.name, "", dict(origin.settings) | {"init_from": origin.description})
    points = list(readable_checkpoints(run_dir))
    return Recipe(run_dir.name, "", checkpoint_settings(points[-1])[0]) if points else read_recipe(path)


def _without_device_choices(settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Without what was decided for another device; here it is decided anew."""
    kept = dict(settings)
    if "dtype" in overrides and overrides["dtype"] != kept.get("dtype"):
        kept.pop("attention", None)  # which may not do this one
    if "device" in overrides and overrides["device"] != kept.get("device"):
        for name in ("dtype", "compile", "attention", "kernels", "graph"):
            kept.pop(name, None)
        if "batch_tokens" in kept:
            kept.pop("batch_size", None)
    return kept


def restarted_request(team: ProcessGroup, out_dir: str, overrides: Mapping[str, Any]) -> RunRequest | None:
    """What an earlier attempt of this launch began (torchrun --max-restarts); the others go on with it."""
    if not team.restart_count:
        return None
    folder = expand_user_path(out_dir).parent if out_dir else RUNS_DIR
    run = team.broadcast_from_rank_zero(lambda: _find_run_of_launch(folder, team.launch_id))
    return resume_request(Path(run), overrides) if run else None


def _find_run_of_launch(folder: Path, launch: str) -> str:
    """The run in `folder` that this launch began; empty if it came to none."""
    journals = [
        path for path in folder.glob(f"*/{journal.FILE_NAME}") if path.is_file() and not path.is_symlink()
    ]
    for path in sorted(journals, key=lambda path: path.stat().st_mtime, reverse=True):
        for record in journal.read(path):
            if record["kind"] == "run" and record.get("team", {}).get("launch") == launch:
                return str(path.parent)
    return ""


def _ignored_settings(recipe: Recipe, config: TrainConfig, changes: Mapping[str, Any]) -> list[Choice]:
    """A run goes on under its own settings; where the file that was named differs, that must be said."""
    ours = dataclasses.asdict(config)
    choices = []
    for name, value in recipe.settings.items():
        if name in changes or name in ("out_dir", "init_from", "eval_only") or ours[name] == value:
            continue
        if name == "eval_iters" and config.eval_iters is None:
            choices += _other_evaluation(recipe, config)
            continue
        how = "" if name in (*MODEL_SETTINGS, "block_size") else f"; --{name}={value} would change it"
        choices.append(Choice(name, ours[name], f"as the run has it, not {value} as {recipe.name} says{how}"))
    return choices


def _other_evaluation(recipe: Recipe, config: TrainConfig) -> list[Choice]:
    """A run of ours has its file's eval_iters as tokens, since micro-batches may change."""
    asked, tokens = recipe.settings["eval_iters"], config.eval_tokens
    if asked is None or tokens == asked * (config.batch_size or 0) * config.block_size:
        return []
    reason = f"as the run has it, not eval_iters={asked} as {recipe.name} says"
    return [Choice("eval_tokens", tokens, f"{reason}; --eval_iters={asked} would change it")]


def _without_number(name: str) -> str:
    """`quickstart` for `quickstart-2`."""
    return re.sub(r"-\d+$", "", name)
