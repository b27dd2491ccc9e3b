"""From a preset name, a file and `--key=value` to a TrainConfig.

    defaults  <  preset or file  <  its table for the device found  <  --key=value

Nothing in a file is executed: presets and config files are TOML, and nanoGPT's .py files are read, not run
(see pyconfig.py). Every value is checked against the type of its field, whichever layer it came from, and
all problems are reported at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import os
import re
import shlex
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from glassgpt.config import DEVICE_TYPES, TrainConfig, Value, find_problems, holds_dataset
from glassgpt.errors import UserError
from glassgpt.paths import user_path
from glassgpt.pyconfig import Problem, read_python_settings


@dataclass(frozen=True)
class Recipe:
    """A preset or config file as read: settings, and settings that hold only on one type of device."""

    name: str
    about: str
    settings: Mapping[str, Value]
    by_device: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    instead_of: str = ""  # nanoGPT's file that was asked for and is not there


DEFAULT_PRESET = "quickstart"

# Settings that say one thing in two ways: a layer that sets the first takes back what earlier layers said
# with the others.
_TAKES_BACK = {
    "batch_tokens": ("gradient_accumulation_steps", "batch_size"),
    "gradient_accumulation_steps": ("batch_tokens",),
    "eval_tokens": ("eval_iters",),
    "eval_iters": ("eval_tokens",),
    "dataset": ("data_dir", "sample_start"),  # of another text
}

# What nanoGPT's train.py assumes where TrainConfig does not: a config file written for it relies on these.
# Device, dtype and compile are the machine's, not the file's, and stay as they are here.
_NANOGPT_DEFAULTS: dict[str, Value] = {
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

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+(?:_[0-9]+)*")

_TRUE, _FALSE = ("true", "on", "yes", "1"), ("false", "off", "no", "0")


# --- names from elsewhere ---


# Names of other trainers, and names that sound right. They are refused, with ours.
_OTHER_NAMES = {
    "n_layer": ("num_layers", "n_layers", "layers", "depth"),
    "n_head": ("num_heads", "n_heads", "heads"),
    "n_embd": ("d_model", "hidden_size", "hidden_dim", "embed_dim", "embd", "width"),
    "block_size": ("context_length", "context", "seq_len", "seq_length", "max_seq_len", "sequence_length"),
    "batch_size": ("micro_batch_size", "device_batch_size", "bs"),
    "batch_tokens": ("total_batch_size", "global_batch_size"),
    "gradient_accumulation_steps": ("accumulate", "grad_accum", "grad_accumulation_steps"),
    "learning_rate": ("lr", "max_lr"),
    "max_iters": ("steps", "num_steps", "max_steps", "train_steps", "num_iters", "num_iterations", "iters"),
    "weight_decay": ("wd",),
    "grad_clip": ("clip", "max_grad_norm", "clip_grad_norm"),
    "schedule": ("lr_schedule", "lr_scheduler", "scheduler"),
    "warmup_iters": ("warmup", "warmup_steps"),
    "eval_interval": ("eval_every", "eval_steps", "val_every"),
    "patience": ("early_stopping",),
    "checkpoint_interval": ("save_interval", "save_every", "save_steps"),
    "keep_checkpoints": ("save_total_limit",),
    "log_interval": ("log_every", "log_steps", "logging_steps"),
    "out_dir": ("output_dir", "outdir", "run_dir"),
    "dataset": ("data",),
    "init_from": ("init", "pretrained"),
    "activation_checkpointing": ("gradient_checkpointing", "grad_checkpointing"),
    "dtype": ("amp", "precision", "mixed_precision"),
    "dtype=float16": ("fp16", "half"),
    "dtype=bfloat16": ("bf16",),
    "device=cuda": ("gpu", "cuda"),
    "device=cpu": ("cpu", "no_cuda"),
}

_RESUME = (
    "--init_from=resume --out_dir=RUN goes on with a run; "
    "--init_from=RUN@2000 begins a new one from its checkpoint at update 2000"
)
_EPOCHS = "--max_iters counts updates: epochs x tokens in the training split / tokens per update"
_SAMPLING = "it belongs to `glass sample`"

_RESUME_NAMES = (
    "resume", "resume_from", "resume_from_checkpoint", "ckpt", "checkpoint", "load", "load_from",
    "load_checkpoint", "continue", "restore",
)  # fmt: skip

_TRAIN_HINTS = (
    {other: f"did you mean --{name}?" for name, others in _OTHER_NAMES.items() for other in others}
    | dict.fromkeys(_RESUME_NAMES, _RESUME)
    | dict.fromkeys(("epochs", "num_epochs", "max_epochs", "num_train_epochs"), _EPOCHS)
    | dict.fromkeys(("start", "num_samples", "max_new_tokens", "temperature", "top_k"), _SAMPLING)
)

_HINTS: Mapping[type, Mapping[str, str]] = {TrainConfig: _TRAIN_HINTS}


def _hint(name: str, options: type) -> str:
    """What to write instead of a name that `options` does not have."""
    known_elsewhere = _HINTS.get(options, {}).get(name)
    return f"; {known_elsewhere}" if known_elsewhere else nearest(name, field_types(options))


# --- reading one value ---


@functools.cache
def field_types(options: type) -> Mapping[str, Any]:
    return typing.get_type_hints(options)


def coerce(name: str, value: Any, wanted: Any) -> Value:
    """`value`, from a file or as text from the command line, as the type the field wants."""
    if typing.get_origin(wanted) is Literal:
        return _coerce_literal(name, value, typing.get_args(wanted))
    if isinstance(wanted, types.UnionType):
        (inner,) = (kind for kind in typing.get_args(wanted) if kind is not type(None))
        return None if value is None or str(value).lower() in ("none", "") else coerce(name, value, inner)
    if wanted is bool:
        return _coerce_bool(name, value)
    if wanted is int:
        return _coerce_int(name, value)
    if wanted is float:
        return _coerce_float(name, value)
    if not isinstance(value, str):
        raise UserError(f"{name} is text, not {value!r}")
    return value


def _coerce_literal(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    text = str(value).lower()
    if "on" in allowed and text in (*_TRUE, *_FALSE):
        text = "on" if text in _TRUE else "off"
    if text not in allowed:
        raise UserError(f"{name}={value} is not one of {', '.join(allowed)}")
    return text


def _coerce_bool(name: str, value: Any) -> bool:
    text = str(value).lower()
    if text not in (*_TRUE, *_FALSE):
        raise UserError(f"{name}={value} is neither True nor False")
    return text in _TRUE


def _coerce_float(name: str, value: Any) -> float:
    try:
        if isinstance(value, bool):
            raise ValueError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{name}={_short(value)} is not a number") from None
    if number != number or number in (float("inf"), float("-inf")):
        raise UserError(f"{name}={value} is not a finite number")
    return number


def _coerce_int(name: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and len(value) < 50 and _WHOLE_NUMBER.fullmatch(value):
        return int(value)
    number = _coerce_float(name, value)  # 1e4 is a whole number too
    if number != int(number):
        raise UserError(f"{name}={value} is not a whole number")
    return int(number)


def _short(value: Any) -> str:
    try:
        text = str(value)
    except ValueError:  # an integer of thousands of digits
        return "that"
    return text if len(text) < 50 else text[:47] + "..."


# --- reading one layer ---


def check_settings(
    settings: Mapping[str, Any], options: type, where: str = ""
) -> tuple[dict[str, Value], list[str]]:
    """The settings with the types `options` wants, and every problem found on the way."""
    known = field_types(options)
    checked: dict[str, Value] = {}
    problems = []
    for name, value in settings.items():
        if name not in known:
            problems.append(f"unknown setting --{name}{where}{_hint(name, options)}")
            continue
        try:
            checked[name] = coerce(f"--{name}", value, known[name])
        except UserError as error:
            problems += [problem + where for problem in error.problems]
    return checked, problems


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean …?)` for a name that is close to a known one, else a hint where the names are."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean --{close[0]}?" if close else "; --help lists them all"


def parse_flags(arguments: Sequence[str], options: type) -> tuple[list[str], dict[str, str], list[str]]:
    """Positional words, `--key=value` settings still as text, and problems of form.

    `--key value` works too, and a bare `--key` means True for a setting that can be True or on.
    """
    known = field_types(options)
    words: list[str] = []
    settings: dict[str, str] = {}
    problems = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--"):
            words.append(argument)
            continue
        name, equals, value = argument[2:].partition("=")
        name = name.replace("-", "_")
        if not equals:
            follows = rest[0] if rest and not rest[0].startswith("--") else None
            values = _values_of_switch(known.get(name))
            if values and (follows is None or follows.lower() not in values):
                value = "True"
            elif follows is None and name not in known:
                value = ""  # check_settings says what it is called here
            elif follows is None:
                problems.append(f"--{name} needs a value: --{name}=...")
                continue
            else:
                value = rest.pop(0)
        if name in settings:
            problems.append(f"--{name} is given twice")
        settings[name] = value
    return words, settings, problems


def _values_of_switch(wanted: Any) -> tuple[str, ...]:
    """What may follow a setting that can be switched on by its name alone; nothing for any other."""
    named = typing.get_args(wanted) if typing.get_origin(wanted) is Literal else ()
    return (*_TRUE, *_FALSE, *named) if wanted is bool or "on" in named else ()


def read_recipe(path: Path, name: str | None = None) -> Recipe:
    """A preset or config file: flat TOML settings, `about`, and optional [cpu], [cuda], [mps] tables."""
    where = f" in {path}"
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
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
    before = dataclasses.asdict(TrainConfig()) | _NANOGPT_DEFAULTS
    found, problems = read_python_settings(path, before)
    settings: dict[str, Value] = {}
    for name, setting in found.items():
        where = f" in {path}, line {setting.line}"
        checked, more = check_settings({name: setting.value}, TrainConfig, where)
        settings |= checked
        problems += [Problem(setting.line, text) for text in more]
    problems.sort(key=lambda problem: problem.line)
    texts = [problem.text for problem in problems] + _contradictions(settings, f" in {path}")
    if texts:
        raise UserError(texts)
    name = path.stem.removeprefix("train_") or path.stem
    return Recipe(name, f"{path}, over nanoGPT's defaults", _merge([_NANOGPT_DEFAULTS, settings]))


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
    hint = _other_meaning(name) or _nearest_preset(name)
    raise UserError(f"{name} is neither a preset nor a .toml or .py file; {hint}")


def _other_meaning(name: str) -> str:
    """What to write instead, for a word that is no recipe but means something else; empty if it does not."""
    path, word = user_path(name), shlex.quote(name)
    if re.match(r"-*[A-Za-z]\w*=", name):
        return f"a setting is written --{word.lstrip('-')}"
    if holds_dataset(path) or holds_dataset(Path("data") / path):
        return f"--dataset={word} trains on it"
    if os.path.exists(path / "config.toml"):
        return (
            f"--init_from=resume --out_dir={word} goes on with it, and its settings are in {path}/config.toml"
        )
    if name.endswith(".pt") and os.path.isfile(path):
        return f"--init_from={word} begins from it"
    return f"to learn from its text, run  glass prepare {word}  first" if os.path.exists(path) else ""


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


def combine(recipe: Recipe, overrides: Mapping[str, Any], device_type: str | None = None) -> TrainConfig:
    """The config of all layers, every one checked; raises with all problems at once."""
    checked, problems = check_settings(overrides, TrainConfig)
    problems += _contradictions(checked)
    layers = [recipe.settings, recipe.by_device.get(device_type or "", {}), checked]
    config = TrainConfig(**_merge(layers))
    problems += find_problems(config)
    if problems:
        raise UserError(problems)
    return config


def _merge(layers: Iterable[Mapping[str, Value]]) -> dict[str, Any]:
    """Later layers win, also over what earlier ones say in another way."""
    settings: dict[str, Any] = {}
    for layer in layers:
        for name, others in _TAKES_BACK.items():
            if layer.get(name) is not None:
                for other in others:
                    settings.pop(other, None)
        settings |= layer
    return settings


def _contradictions(layer: Mapping[str, Value], where: str = "") -> list[str]:
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


def _toml_value(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # TOML's strings escape as JSON's do, except that DEL must be escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
