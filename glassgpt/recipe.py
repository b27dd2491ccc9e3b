"""From a preset name, a file and `--key=value` to a TrainConfig.

    defaults  <  preset or file  <  its table for the device found  <  --key=value

Nothing in a file is executed: presets and config files are TOML, and nanoGPT's .py files are read, not run
(see pyconfig.py). Every value is checked against the type of its field, whichever layer it came from, and
all problems are reported at once.
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
from glassgpt.errors import UserError
from glassgpt.flags import check_settings, field_types
from glassgpt.nanogpt_config import LineProblem, read_python_settings
from glassgpt.paths import expand_user_path, read_small_file
from glassgpt.validate import find_config_problems


@dataclass(frozen=True)
class Recipe:
    """A preset or config file as read: settings, and settings that hold only on one type of device."""

    name: str
    about: str
    settings: Mapping[str, ConfigValue]
    by_device: Mapping[str, Mapping[str, ConfigValue]] = field(default_factory=dict)
    instead_of: str = ""  # nanoGPT's file that was asked for and is not there


DEFAULT_PRESET = "quickstart"

# Settings that say one thing in two ways: a layer that sets the first takes back what earlier layers said
# with the others.
_SUPERSEDED_SETTINGS = {
    "batch_tokens": ("gradient_accumulation_steps", "batch_size"),
    "gradient_accumulation_steps": ("batch_tokens",),
    "eval_tokens": ("eval_iters",),
    "eval_iters": ("eval_tokens",),
    "dataset": ("data_dir", "sample_start"),  # of another text
}

# What nanoGPT's train.py assumes where TrainConfig does not: a config file written for it relies on these.
# Device, dtype and compile are the machine's, not the file's, and stay as they are here.
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

# The files that nanoGPT comes with, for commands taken from its README: preset, and folder of the run.
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

_MAX_FILE_BYTES = 1_000_000  # bytes; config.toml of a run has 3,000


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
    found = [device for device in DEVICE_TYPES if isinstance(document.get(device), dict)]
    tables = {device: document.pop(device) for device in found}
    settings, problems = check_settings(document, TrainConfig, where)
    problems += _contradictions(settings, where)
    by_device = {}
    for device, table in tables.items():
        where = f" in [{device}] of {path}"
        by_device[device], more = check_settings(table, TrainConfig, where)
        problems += more + _contradictions(by_device[device], where)
    if problems:
        raise UserError(problems)
    return Recipe(name or path.stem, str(about), settings, by_device)


def read_python_recipe(path: Path) -> Recipe:
    """A config file of nanoGPT's, over nanoGPT's defaults, so that it means here what it means there."""
    before = dataclasses.asdict(TrainConfig()) | NANOGPT_DEFAULTS
    found, problems = read_python_settings(path, before)
    settings: dict[str, ConfigValue] = {}
    for name, setting in found.items():
        where = f" in {path}, line {setting.line}"
        checked, more = check_settings({name: setting.value}, TrainConfig, where)
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
        return _find_python_recipe(name)
    hint = _suggest_command(name) or _nearest_preset(name)
    raise UserError(f"{name} is neither a preset nor a .toml or .py file; {hint}")


def _suggest_command(name: str) -> str:
    """What to write instead, for a word that is no recipe but means something else; empty if it does not."""
    path, word = expand_user_path(name), shlex.quote(name)
    if re.match(r"-*[A-Za-z]\w*=", name):
        return f"a setting is written --{word.lstrip('-')}"
    if is_dataset_folder(path) or is_dataset_folder(Path("data") / path):
        return f"--dataset={word} trains on it"
    if os.path.exists(path / "config.toml"):
        return (
            f"--init_from=resume --out_dir={word} goes on with it, and its settings are in {path}/config.toml"
        )
    if name.endswith(".pt") and os.path.isfile(path):
        return f"--init_from={word} begins from it"
    return f"to learn from its text, run  glass prepare {word}  first" if os.path.exists(path) else ""


def is_unprepared_text(name: str) -> bool:
    """Whether `glass train NAME` means a text to prepare: one that is there, and nothing else we know."""
    path = expand_user_path(name)
    if name in preset_names() or name.endswith((".toml", ".py", ".pt")) or not os.path.exists(path):
        return False
    is_ours = (
        is_dataset_folder(path) or os.path.exists(path / "config.toml") or os.path.exists(path / "ckpt.pt")
    )
    return not is_ours


def _read_preset(name: str) -> Recipe:
    with resources.as_file(resources.files("glassgpt") / "presets" / f"{name}.toml") as path:
        return read_recipe(path, name)


def _find_python_recipe(name: str) -> Recipe:
    """The file if there is one, else the preset that stands for one of nanoGPT's."""
    for path in (name, name.replace("\\", "/")):
        if os.path.exists(path):  # not Path's: it raises for names that are too long
            return read_python_recipe(Path(path))
    stem = name.replace("\\", "/").rpartition("/")[2].removesuffix(".py")
    short = stem.removeprefix("train_")
    if stem in _NANOGPT_FILES:
        preset, out_dir = _NANOGPT_FILES[stem]
        recipe = _read_preset(preset)
        settings = {**recipe.settings, "out_dir": out_dir}
        return dataclasses.replace(recipe, settings=settings, instead_of=name)
    if short != stem and short in preset_names():
        return dataclasses.replace(_read_preset(short), instead_of=name)
    raise UserError(f"there is no config file {name}, and no preset in its place; {_nearest_preset(short)}")


def _nearest_preset(name: str) -> str:
    close = difflib.get_close_matches(name, preset_names(), n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(preset_names())}"


# --- putting the layers together ---


def build_config(recipe: Recipe, overrides: Mapping[str, Any], device_type: str | None = None) -> TrainConfig:
    """The config of all layers, every one checked; raises with all problems at once."""
    checked, problems = check_settings(overrides, TrainConfig)
    problems += _contradictions(checked)
    layers = [recipe.settings, recipe.by_device.get(device_type or "", {}), checked]
    config = TrainConfig(**_merge(layers))
    problems += find_config_problems(config)
    if problems:
        raise UserError(problems)
    return config


def override_config(config: TrainConfig, overrides: Mapping[str, Any]) -> TrainConfig:
    """As `combine`, over a config that was made in Python: nothing has looked at its types yet.

    Text is no number there, unlike on the command line."""
    values: dict[str, ConfigValue] = {}
    problems = []
    for name, wanted in field_types(TrainConfig).items():
        value = getattr(config, name)
        if isinstance(value, str) and wanted is not str and typing.get_origin(wanted) is not Literal:
            problems.append(f"--{name}={value!r} is text: leave the quotes out")
            continue
        checked, more = check_settings({name: value}, TrainConfig)
        values |= checked
        problems += more
    try:
        combined = build_config(Recipe("config", "", values), overrides)
    except UserError as error:
        problems += error.problems
    if problems:
        raise UserError(problems)
    return combined


def _merge(layers: Iterable[Mapping[str, ConfigValue]]) -> dict[str, Any]:
    """Later layers win, also over what earlier ones say in another way."""
    settings: dict[str, Any] = {}
    for layer in layers:
        for name, others in _SUPERSEDED_SETTINGS.items():
            if layer.get(name) is not None:
                for other in others:
                    settings.pop(other, None)
        settings |= layer
    return settings


def _contradictions(layer: Mapping[str, ConfigValue], where: str = "") -> list[str]:
    """eval_tokens and eval_iters in one layer; the batch settings may agree, find_problems sees to them."""
    if layer.get("eval_tokens") is not None and layer.get("eval_iters") is not None:
        return [f"--eval_tokens and --eval_iters{where} say the same thing twice: give one of them"]
    return []


# --- writing it down ---


def to_toml(config: TrainConfig, comment: str = "") -> str:
    """The config as a file that `glass train FILE` takes. Settings that are none are left out."""
    lines = [f"# {line}" for line in comment.splitlines()]
    for name, value in dataclasses.asdict(config).items():
        if value is not None:
            lines.append(f"{name} = {_toml_value(value)}")
    return "\n".join(lines) + "\n"


def _toml_value(value: ConfigValue) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # TOML's strings escape as JSON's do, except that DEL must be escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
