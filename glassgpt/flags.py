"""`--key=value` as people write it, and each value as the type that its field wants.

    parse_flags(["--max_iters=1e4"], TrainConfig)           # [], {"max_iters": "1e4"}, []
    check_settings({"max_iters": "1e4"}, TrainConfig)       # {"max_iters": 10000}, []

Any dataclass will do for the fields. Problems are collected, so that all of them can be reported at once.
"""

from __future__ import annotations

import difflib
import functools
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from glassgpt.config import ConfigValue, TrainConfig
from glassgpt.errors import UserError
from glassgpt.flag_aliases import TRAIN_HINTS

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+(?:_[0-9]+)*")

_TRUE, _FALSE = ("true", "on", "yes", "1"), ("false", "off", "no", "0")


# --- the command line ---


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
            taken = _value_after(known.get(name), rest)
            if taken is None and name in known:
                problems.append(f"--{name} needs a value: --{name}=...")
                continue
            value = taken or ""  # of an unknown name: check_settings says what it is called here
        if name in settings:
            problems.append(f"--{name} is given twice")
        settings[name] = value
    return words, settings, problems


def _value_after(wanted: Any, rest: list[str]) -> str | None:
    """Of a bare `--key`: True for a switch, else the next word, taken out of the rest; None: nothing left."""
    follows = rest[0] if rest and not rest[0].startswith("--") else None
    values = _values_of_switch(wanted)
    if values and (follows is None or follows.lower() not in values):
        return "True"
    return None if follows is None else rest.pop(0)


def _values_of_switch(wanted: Any) -> tuple[str, ...]:
    """What may follow a setting that can be switched on by its name alone; nothing for any other."""
    named = typing.get_args(wanted) if typing.get_origin(wanted) is Literal else ()
    return (*_TRUE, *_FALSE, *named) if wanted is bool or "on" in named else ()


# --- settings by name ---


def check_settings(
    settings: Mapping[str, Any], options: type, where: str = ""
) -> tuple[dict[str, ConfigValue], list[str]]:
    """The settings with the types `options` wants, and every problem found on the way."""
    known = field_types(options)
    checked: dict[str, ConfigValue] = {}
    problems = []
    for name, value in settings.items():
        if name not in known:
            problems.append(f"unknown setting --{name}{where}{_hint(name, options)}")
            continue
        try:
            checked[name] = coerce_value(f"--{name}", value, known[name])
        except UserError as error:
            problems += [problem + where for problem in error.problems]
    return checked, problems


_HINTS_BY_OPTIONS: Mapping[type, Mapping[str, str]] = {TrainConfig: TRAIN_HINTS}


def _hint(name: str, options: type) -> str:
    """What to write instead of a name that `options` does not have."""
    known_elsewhere = _HINTS_BY_OPTIONS.get(options, {}).get(name)
    return f"; {known_elsewhere}" if known_elsewhere else did_you_mean(name, field_types(options))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean …?` for a name that is close to a known one, else a hint where the names are."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean --{close[0]}?" if close else "; --help lists them all"


# --- one value ---


@functools.cache
def field_types(options: type) -> Mapping[str, Any]:
    return typing.get_type_hints(options)


def coerce_value(name: str, value: Any, wanted: Any) -> ConfigValue:
    """`value`, from a file or as text from the command line, as the type the field wants."""
    if typing.get_origin(wanted) is Literal:
        return _coerce_literal(name, value, typing.get_args(wanted))
    if isinstance(wanted, types.UnionType):
        (inner,) = (kind for kind in typing.get_args(wanted) if kind is not type(None))
        return (
            None if value is None or str(value).lower() in ("none", "") else coerce_value(name, value, inner)
        )
    if wanted is bool:
        return _coerce_bool(name, value)
    if wanted is int:
        return _coerce_int(name, value)
    if wanted is float:
        return _coerce_float(name, value)
    if not isinstance(value, str | Path):
        raise UserError(f"{name} is text, not {value!r}")
    return str(value)


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
