"""From a preset name, a file and `--key=value` to a TrainConfig.

    defaults  <  preset or file  <  its table for the device  <  --key=value

    build_config(find_recipe("quickstart"), {"max_iters": "100"}, device_type="cpu")

Nothing in a file is executed: presets and config files are TOML, and nanoGPT's .py files are parsed
(nanogpt_config.py). Every value of every layer is checked against the type of its field, and all problems
are reported at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import re
import shlex
import tomllib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from glassgpt.config import DEVICE_TYPES, ConfigValue, TrainConfig, is_dataset_folder
from glassgpt.errors import UserError, collect_problems, raise_if_any
from glassgpt.files import expand_user_path, read_small_file
from glassgpt.flags import SYNONYMS, both_names_problem, check_settings, field_types
from glassgpt.nanogpt_config import LineProblem, read_python_settings
from glassgpt.validate import find_config_problems


@dataclass(frozen=True)
class Recipe:
    """A preset or config file: settings, and settings for one type of device."""

    name: str
    about: str
    settings: Mapping[str, ConfigValue]
    by_device: Mapping[str, Mapping[str, ConfigValue]] = field(default_factory=dict)
    replaces_file: str = ""  # the missing file of nanoGPT that this preset replaces


DEFAULT_PRESET = "quickstart"

# Alternative settings for one thing: a layer that sets the key removes the values from earlier layers.
_SUPERSEDED_SETTINGS = {
    "batch_tokens": ("gradient_accumulation_steps", "batch_size"),
    "gradient_accumulation_steps": ("batch_tokens",),
    "eval_tokens": ("eval_iters",),
    "eval_iters": ("eval_tokens",),
    "dataset": ("data_dir", "sample_start"),  # they belong to the other dataset
}

# Defaults of nanoGPT's train.py that differ from TrainConfig's: a config file written for it relies on them.
# Device, dtype and compile depend on the machine and keep our defaults.
NANOGPT_DEFAULTS: dict[str, ConfigValue] = {
    "out_dir": "out",
    "dataset": "openwebtext",
    "gradient_accumulation_steps": 40,
    "batch_size": 12,
    "eval_iters": 200,
    "warmup_iters": 2000,
    "lr_decay_iters": 600_000,
    "min_lr": 6e-5,
}

# nanoGPT's own config files, for commands from its README: the preset for each, and the folder of the run.
_NANOGPT_FILES = {
    "train_shakespeare_char": ("shakespeare_char", "out-shakespeare-char"),
    "train_gpt2": ("gpt2_124m", "out"),
    "finetune_shakespeare": ("finetune_shakespeare", "out-shakespeare"),
    "eval_gpt2": ("eval_gpt2", "out"),
    "eval_gpt2_medium": ("eval_gpt2_medium", "out"),
    "eval_gpt2_large": ("eval_gpt2_large", "out"),
    "eval_gpt2_xl": ("eval_gpt2_xl", "out"),
}

# --- reading a file ---

_MAX_FILE_BYTES = 1_000_000  # far above any config.toml


def read_recipe(path: Path, name: str | None = None) -> Recipe:
    """A preset or config file: flat TOML settings, `about`, and optional [cpu], [cuda], [mps] tables."""
    where = f" in {path}"
    try:
        document = tomllib.loads(read_small_file(path, _MAX_FILE_BYTES).decode())
    except FileNotFoundError:
        raise UserError(f"there is no config file {path}") from None
    except (ValueError, RecursionError, OSError) as error:  # also bad UTF-8 and absurd numbers
        raise UserError(f"{path} cannot be read as TOML: {error}") from None
    about = document.pop("about", "")
    devices = [device for device in DEVICE_TYPES if isinstance(document.get(device), dict)]
    tables = {device: document.pop(device) for device in devices}
    settings, problems = check_settings(document, TrainConfig, where)
    problems += _contradictions(settings, where)
    by_device = {}
    for device, table in tables.items():
        where = f" in [{device}] of {path}"
        by_device[device], more = check_settings(table, TrainConfig, where)
        problems += more + _contradictions(by_device[device], where)
    raise_if_any(problems)
    return Recipe(name or path.stem, str(about), settings, by_device)


def read_python_recipe(path: Path) -> Recipe:
    """A config file of nanoGPT over nanoGPT's defaults, so that it has the same meaning as there."""
    defaults = dataclasses.asdict(TrainConfig()) | NANOGPT_DEFAULTS
    defaults |= {synonym: defaults[name] for name, synonym in SYNONYMS.items() if name in defaults}
    file_settings, problems = read_python_settings(path, defaults)
    settings: dict[str, ConfigValue] = {}
    for name, setting in file_settings.items():
        where = f" in {path}, line {setting.line}"
        checked, more = check_settings({name: setting.value}, TrainConfig, where)
        more += [both_names_problem(repeated, where) for repeated in checked.keys() & settings.keys()]
        settings |= checked
        problems += [LineProblem(setting.line, text) for text in more]
    problems.sort(key=lambda problem: problem.line)
    texts = [problem.text for problem in problems] + _contradictions(settings, f" in {path}")
    if texts:
        raise UserError(texts)
    name = path.stem.removeprefix("train_") or path.stem
    return Recipe(name, f"{path}, over nanoGPT's defaults", _merge([NANOGPT_DEFAULTS, settings]))


# --- finding one by name ---


def preset_names() -> list[str]:
    folder = resources.files("glassgpt") / "presets"
    return sorted(
        entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")
    )


def find_recipe(name: str) -> Recipe:
    """A preset by name, or a file by path."""
    if name in preset_names():
        return _read_preset(name)
    if name.endswith(".toml"):
        return read_recipe(Path(name))
    if name.endswith(".py"):
        for path_text in (name, name.replace("\\", "/")):
            if os.path.exists(path_text):  # Path.exists raises for names that are too long
                return read_python_recipe(Path(path_text))
        # The preset for the file of nanoGPT with that name.
        stem = name.replace("\\", "/").rpartition("/")[2].removesuffix(".py")
        short = stem.removeprefix("train_")
        if stem in _NANOGPT_FILES:
            preset, out_dir = _NANOGPT_FILES[stem]
            recipe = _read_preset(preset)
            settings = {**recipe.settings, "out_dir": out_dir}
            return dataclasses.replace(recipe, settings=settings, replaces_file=name)
        if short != stem and short in preset_names():
            return dataclasses.replace(_read_preset(short), replaces_file=name)
        raise UserError(
            f"there is no config file {name}, and no preset in its place; {_nearest_preset(short)}"
        )
    path, word = expand_user_path(name), shlex.quote(name)
    if re.match(r"-*[A-Za-z]\w*=", name):
        hint = f"a setting is written --{word.lstrip('-')}"
    elif is_dataset_folder(path) or is_dataset_folder(Path("data") / path):
        hint = f"--dataset={word} trains on it"
    elif os.path.exists(path / "config.toml"):
        hint = f"--init_from=resume --out_dir={word} resumes it, and its settings are in {path}/config.toml"
    elif name.endswith(".pt") and os.path.isfile(path):
        hint = f"--init_from={word} starts from its weights"
    elif os.path.exists(path):
        hint = f"to train on its text, run  glass prepare {word}  first"
    else:
        raise UserError(f"{name} is neither a preset nor an existing file or folder; {_nearest_preset(name)}")
    raise UserError(f"{name} is neither a preset nor a .toml or .py file; {hint}")


def is_unprepared_text(name: str) -> bool:
    """Whether `glass train NAME` means a text to prepare: an existing path that is nothing else we know."""
    path = expand_user_path(name)
    if name in preset_names() or name.endswith((".toml", ".py", ".pt")) or not os.path.exists(path):
        return False
    is_run = os.path.exists(path / "config.toml") or os.path.exists(path / "ckpt.pt")
    return not is_run and not is_dataset_folder(path)


def _read_preset(name: str) -> Recipe:
    with resources.as_file(resources.files("glassgpt") / "presets" / f"{name}.toml") as path:
        return read_recipe(path, name)


def _nearest_preset(name: str) -> str:
    close = difflib.get_close_matches(name, preset_names(), n=1)
    return f"did you mean {close[0]}?" if close else f"presets: {', '.join(preset_names())}"


# --- merging the layers ---


def build_config(recipe: Recipe, overrides: Mapping[str, Any], device_type: str | None = None) -> TrainConfig:
    """Merges and checks all layers; raises one UserError with all problems."""
    checked, problems = check_settings(overrides, TrainConfig)
    problems += _contradictions(checked)
    layers = [recipe.settings, recipe.by_device.get(device_type or "", {}), checked]
    config = TrainConfig(**_merge(layers))
    problems += find_config_problems(config)
    raise_if_any(problems)
    return config


def override_config(config: TrainConfig, overrides: Mapping[str, Any]) -> TrainConfig:
    """Like `build_config`, but over a TrainConfig made in Python, whose types nothing has checked yet.

    There a text is not accepted as a number, unlike on the command line.
    """
    values: dict[str, ConfigValue] = {}
    problems = []
    for name, field_type in field_types(TrainConfig).items():
        value = getattr(config, name)
        if isinstance(value, str) and field_type is not str and typing.get_origin(field_type) is not Literal:
            problems.append(f"--{name}={value!r} is text: leave the quotes out")
            continue
        checked, more = check_settings({name: value}, TrainConfig)
        values |= checked
        problems += more
    with collect_problems(problems):
        merged = build_config(Recipe("config", "", values), overrides)
    raise_if_any(problems)
    return merged


def _merge(layers: Iterable[Mapping[str, ConfigValue]]) -> dict[str, Any]:
    """Later layers win, also over alternative settings of earlier ones."""
    settings: dict[str, Any] = {}
    for layer in layers:
        for name, others in _SUPERSEDED_SETTINGS.items():
            if layer.get(name) is not None:
                for other in others:
                    settings.pop(other, None)
        settings |= layer
    return settings


def _contradictions(layer: Mapping[str, ConfigValue], where: str = "") -> list[str]:
    """eval_tokens and eval_iters in one layer. (Batch settings may agree: validate.py checks them.)"""
    if layer.get("eval_tokens") is not None and layer.get("eval_iters") is not None:
        return [f"--eval_tokens and --eval_iters{where} say the same thing twice: give one of them"]
    return []


# --- writing a file ---


def to_toml(config: TrainConfig, comment: str = "") -> str:
    """The config as a file for `glass train FILE`. Settings that are none are left out."""
    lines = [f"# {line}" for line in comment.splitlines()]
    for name, value in dataclasses.asdict(config).items():
        if isinstance(value, bool):
            lines.append(f"{name} = {str(value).lower()}")
        elif isinstance(value, str):
            # TOML escapes strings as JSON does, except that DEL must be escaped too.
            text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
            lines.append(f"{name} = {text}")
        elif value is not None:
            lines.append(f"{name} = {value!r}")
    return "\n".join(lines) + "\n"
