"""From a preset name, a file and `--key=value` to a TrainConfig.

    defaults  <  preset or TOML file  <  its table for the device found  <  --key=value

Nothing in a file is executed: presets and config files are TOML. Every value is checked against the type of
its field, whichever layer it came from, and all problems are reported at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from glassgpt.config import DEVICE_TYPES, TrainConfig, Value, find_problems
from glassgpt.errors import UserError


@dataclass(frozen=True)
class Recipe:
    """A preset or config file as read: settings, and settings that hold only on one type of device."""

    name: str
    about: str
    settings: Mapping[str, Value]
    by_device: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)


DEFAULT_PRESET = "quickstart"

# Settings that say one thing in two ways: a layer that sets the first takes back what earlier layers said
# with the others.
_TAKES_BACK = {
    "batch_tokens": ("gradient_accumulation_steps", "batch_size"),
    "gradient_accumulation_steps": ("batch_tokens",),
    "eval_tokens": ("eval_iters",),
    "eval_iters": ("eval_tokens",),
}

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+(?:_[0-9]+)*")

_TRUE, _FALSE = ("true", "on", "yes", "1"), ("false", "off", "no", "0")


# --- reading one value ---


def field_types(options: type) -> dict[str, Any]:
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
            problems.append(f"unknown setting --{name}{where}{nearest(name, known)}")
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

    `--key value` works too, and a bare `--key` means True for a setting that is True or False.
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
            if known.get(name) is bool and (follows is None or follows.lower() not in (*_TRUE, *_FALSE)):
                value = "True"
            elif follows is None:
                problems.append(f"--{name} needs a value: --{name}=...")
                continue
            else:
                value = rest.pop(0)
        if name in settings:
            problems.append(f"--{name} is given twice")
        settings[name] = value
    return words, settings, problems


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


def preset_names() -> list[str]:
    folder = resources.files("glassgpt") / "presets"
    return sorted(
        entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")
    )


def find_recipe(name: str) -> Recipe:
    """A preset by name, or a TOML file by path."""
    if name in preset_names():
        with resources.as_file(resources.files("glassgpt") / "presets" / f"{name}.toml") as path:
            return read_recipe(path, name)
    if name.endswith(".toml"):
        return read_recipe(Path(name))
    close = difflib.get_close_matches(name, preset_names(), n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(preset_names())}"
    raise UserError(f"{name} is neither a preset nor a .toml file; {hint}")


# --- putting the layers together ---


def combine(recipe: Recipe, overrides: Mapping[str, Any], device_type: str | None = None) -> TrainConfig:
    """The config of all layers, every one checked; raises with all problems at once."""
    checked, problems = check_settings(overrides, TrainConfig)
    problems += _contradictions(checked)
    layers = [recipe.settings, recipe.by_device.get(device_type or "", {}), checked]
    settings: dict[str, Any] = {}
    for layer in layers:
        for name, others in _TAKES_BACK.items():
            if layer.get(name) is not None:
                for other in others:
                    settings.pop(other, None)
        settings |= layer
    config = TrainConfig(**settings)
    problems += find_problems(config)
    if problems:
        raise UserError(problems)
    return config


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
