"""From a recipe and flags to a RunRequest: a new run or one to resume, its settings, its initial weights."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glassgpt.config import Choice, TrainConfig, dataset_folder
from glassgpt.errors import UserError, raise_if_any
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
from glassgpt.training.checkpoint.checkpoints import LoadedCheckpoint, list_checkpoints, load_latest_intact
from glassgpt.training.checkpoint.nanogpt_ckpt import read_nanogpt_ckpt
from glassgpt.training.device import choose_device
from glassgpt.training.distributed.process_group import ProcessGroup
from glassgpt.training.weight_compatibility import (
    MODEL_SETTINGS,
    conflicting_flags,
    match_model_settings,
    model_setting,
)
from glassgpt.training.weight_source import from_checkpoint, load_init_from


@dataclass(frozen=True)
class RunRequest:
    config: TrainConfig
    name: str = "run"  # of its folder, if --out_dir does not say
    resume_dir: Path | None = None  # of a run to resume; None: a new one
    # What the run starts from; None: random weights. Of its own checkpoint the tensors are not read yet:
    # that waits for the lock of the folder, see save_and_restore.py.
    init_checkpoint: LoadedCheckpoint | None = None
    choices: tuple[Choice, ...] = ()  # decisions made so far
    tuning_s: float = 0.0  # how long --tune took in this process

    @property
    def own_checkpoint(self) -> LoadedCheckpoint | None:
        """The initial checkpoint, if it is one that this very run saved."""
        loaded = self.init_checkpoint
        return loaded if loaded and loaded.kind == "run" and loaded.folder == self.resume_dir else None


def request_from_config(config: TrainConfig, name: str = "run") -> RunRequest:
    """The request of a complete config, as from Python: without a recipe and flags."""
    if config.init_from == "scratch":
        return RunRequest(config, name)
    if config.init_from == "resume":
        run_dir = existing_run_dir(config.out_dir, name)
        loaded, stored, choices = _resume_source(run_dir)
        init_from = str(stored.settings.get("init_from", "scratch"))
        return RunRequest(replace(config, init_from=init_from), name, run_dir, loaded, choices)
    loaded = load_init_from(config.init_from)
    config = _pin_checkpoint(match_model_settings(config, loaded), loaded)
    return RunRequest(config, name, init_checkpoint=loaded)


def resolve_request(recipe: Recipe | None, overrides: Mapping[str, Any]) -> RunRequest:
    """From a recipe with overrides on top. Without a recipe: the default preset, or the settings of the run
    that the weights are from."""
    settings = {**(recipe.settings if recipe else {}), **overrides}
    init_from = settings.get("init_from", "scratch")
    if init_from == "resume":
        if "out_dir" not in overrides and settings.get("out_dir"):
            run_dir = latest_numbered_run(expand_user_path(str(settings["out_dir"])))
        else:
            name = recipe.name if recipe else DEFAULT_PRESET
            run_dir = existing_run_dir(str(overrides.get("out_dir", "")), name)
        return resume_request(run_dir, overrides, recipe)
    if init_from == "scratch":
        recipe = recipe or find_recipe(DEFAULT_PRESET)
        return _new_run_request(_config_for_device(recipe, overrides), recipe, overrides)
    loaded = load_init_from(init_from)
    if recipe is None:
        name = re.sub(r"-\d+$", "", loaded.folder.name)  # "quickstart" for "quickstart-2"
        recipe = Recipe(name, "", _without_device_choices(loaded.settings, overrides))
    config = _config_for_device(recipe, overrides)
    raise_if_any(conflicting_flags(overrides, config, loaded))
    matched = _pin_checkpoint(match_model_settings(config, loaded), loaded)
    request = _new_run_request(matched, recipe, overrides, loaded)
    changed_by_weights = [
        Choice(
            name,
            getattr(request.config, name),
            f"as {loaded.description} has it, not {model_setting(config, name)}",
            notable=True,
        )
        for name in (*MODEL_SETTINGS, "block_size")
        if model_setting(config, name) != model_setting(request.config, name)
    ]
    return replace(request, choices=(*request.choices, *changed_by_weights))


def _pin_checkpoint(config: TrainConfig, loaded: LoadedCheckpoint) -> TrainConfig:
    """Names the checkpoint by its iteration: that run may be resumed, and then its last one is another."""
    return replace(config, init_from=f"{loaded.folder}@{loaded.iter}") if loaded.kind == "run" else config


def _config_for_device(recipe: Recipe, overrides: Mapping[str, Any]) -> TrainConfig:
    """The recipe's settings, with its table for the device that will be used."""
    device_type = None
    if recipe.by_device:
        requested = {**recipe.settings, **overrides}.get("device", "auto")
        with suppress(UserError):  # raised again when the run is set up
            device_type = choose_device(str(requested))[0].type
    return build_config(recipe, overrides, device_type)


def _new_run_request(
    config: TrainConfig, recipe: Recipe, overrides: Mapping[str, Any], loaded: LoadedCheckpoint | None = None
) -> RunRequest:
    """An --out_dir flag must name a new folder. If a recipe names one that holds a run, it gets a number."""
    choices = []
    if recipe.replaces_file:
        choices.append(Choice("preset", recipe.name, f"{recipe.replaces_file} is not on disk", notable=True))
    if config.out_dir and "out_dir" not in overrides:
        free = str(first_free_run_dir(expand_user_path(config.out_dir)))
        if free != str(expand_user_path(config.out_dir)):
            reason = f"{config.out_dir} holds a run already, and runs are never overwritten"
            choices.append(Choice("out_dir", free, reason, notable=True))
        config = replace(config, out_dir=free)
    if config.out_dir:
        check_out_dir_is_free(config.out_dir)
    return RunRequest(config, recipe.name, init_checkpoint=loaded, choices=tuple(choices))


def prepare_if_built_in(
    config: TrainConfig, announce: Callable[[str], None] = lambda line: None, progress: bool = False
) -> None:
    """Prepares pylib if it is missing: its text is on every machine."""
    from glassgpt.data.prepare import prepare
    from glassgpt.data.prepare_options import PrepareOptions

    directory = dataset_folder(config)
    if config.dataset == "pylib" and not config.data_dir and not directory.exists():
        announce("data          preparing pylib, the Python standard library's source, once")
        options = PrepareOptions(dataset="pylib", out_dir=str(directory))
        prepare(options, lambda line: None, progress=progress)


# --- resume ---


def resume_request(run_dir: Path, overrides: Mapping[str, Any], recipe: Recipe | None = None) -> RunRequest:
    """The settings that the run was started with, and the overrides on top."""
    loaded, stored, choices = _resume_source(run_dir)
    changes = {name: value for name, value in overrides.items() if name not in ("init_from", "out_dir")}
    settings = _without_device_choices(stored.settings, changes)
    config = build_config(replace(stored, settings=settings), changes)
    if loaded is not None:
        raise_if_any(conflicting_flags(changes, config, loaded))
        if loaded.weights:  # else its own checkpoint, which has to fit: that is checked when it is read
            config = match_model_settings(config, loaded)
    if recipe is not None:
        choices += tuple(_ignored_settings(recipe, config, changes))
    return RunRequest(config, run_dir.name, run_dir, loaded, choices)


def _resume_source(run_dir: Path) -> tuple[LoadedCheckpoint | None, Recipe, tuple[Choice, ...]]:
    """What the run resumes from, and its settings: its last checkpoint, nanoGPT's ckpt.pt, or, if it has no
    checkpoint yet, what it started from."""
    config_path, ckpt_path = run_dir / CONFIG_FILE, run_dir / NANOGPT_CKPT_FILE
    listing = list_checkpoints(run_dir)
    if listing.committed:
        checkpoint = listing.latest or load_latest_intact(run_dir, listing)[0]  # which says what is wrong
        loaded = from_checkpoint(checkpoint, None)
        return loaded, Recipe(run_dir.name, "", loaded.settings), ()
    if warnings := listing.misnamed_warnings:  # one of them may be all that is left of the run
        raise UserError(warnings)
    if ckpt_path.is_file():
        loaded = read_nanogpt_ckpt(ckpt_path)
        settings = dict(loaded.settings) | {"init_from": loaded.description}
        recipe = read_recipe(config_path) if config_path.exists() else Recipe(run_dir.name, "", settings)
        return loaded, recipe, ()
    if not is_complete_config(config_path):
        raise UserError(f"{config_path} is cut off, and there is no checkpoint: start in another --out_dir")
    recipe = read_recipe(config_path)
    init_from = str(recipe.settings.get("init_from", "scratch"))
    reason = "the run had no checkpoint yet: it starts again, with its settings and seed"
    if init_from == "scratch":
        return None, recipe, (Choice("resume", "update 0", reason, notable=True),)
    return load_init_from(init_from), recipe, (Choice("resume", init_from, reason, notable=True),)


def _without_device_choices(settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Without the choices that were made for another device or dtype: they are made again."""
    remaining = dict(settings)
    if "dtype" in overrides and overrides["dtype"] != remaining.get("dtype"):
        remaining.pop("attention", None)  # the kernel may not support the new dtype
    if "device" in overrides and overrides["device"] != remaining.get("device"):
        for name in ("dtype", "compile", "attention", "kernels", "graph"):
            remaining.pop(name, None)
        if "batch_tokens" in remaining:
            remaining.pop("batch_size", None)
    return remaining


def restarted_request(group: ProcessGroup, out_dir: str, overrides: Mapping[str, Any]) -> RunRequest | None:
    """After torchrun --max-restarts: resumes the run that an earlier attempt of this launch started."""
    if not group.restart_count:
        return None
    folder = expand_user_path(out_dir).parent if out_dir else RUNS_DIR

    def find_run() -> str:
        journals = [
            path for path in folder.glob(f"*/{journal.FILE_NAME}") if path.is_file() and not path.is_symlink()
        ]
        for path in sorted(journals, key=lambda path: path.stat().st_mtime, reverse=True):
            for record in journal.read(path):
                if record["kind"] == "run" and record.get("team", {}).get("launch") == group.launch_id:
                    return str(path.parent)
        return ""

    run_dir = group.broadcast_from_rank_zero(find_run)
    return resume_request(Path(run_dir), overrides) if run_dir else None


def _ignored_settings(recipe: Recipe, config: TrainConfig, changes: Mapping[str, Any]) -> list[Choice]:
    """Settings of the given recipe that a resumed run does not follow: it keeps its own."""
    run_settings = dataclasses.asdict(config)
    choices = []
    for name, value in recipe.settings.items():
        if name in changes or name in ("out_dir", "init_from", "eval_only") or run_settings[name] == value:
            continue
        reason = f"as the run has it, not {value} as {recipe.name} says"
        hint = f"; --{name}={value} would change it"
        if name == "eval_iters" and config.eval_iters is None:
            # The run has them as tokens, since its micro-batches may change.
            tokens = config.eval_tokens
            if value is not None and tokens != value * (config.batch_size or 0) * config.block_size:
                reason = f"as the run has it, not eval_iters={value} as {recipe.name} says"
                choices.append(Choice("eval_tokens", tokens, reason + hint, notable=True))
        elif name in (*MODEL_SETTINGS, "block_size"):
            choices.append(Choice(name, run_settings[name], reason, notable=True))
        else:
            choices.append(Choice(name, run_settings[name], reason + hint, notable=True))
    return choices
