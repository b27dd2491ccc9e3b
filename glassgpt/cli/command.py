"""What all commands share: parsing the command line, --help, the console."""

from __future__ import annotations

import argparse
import errno
import inspect
import json
import sys
import textwrap
import typing
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from glassgpt.errors import UserError, collect_problems
from glassgpt.flags import check_settings, field_types, parse_flags
from glassgpt.recipe import Recipe, find_recipe, preset_names
from glassgpt.record import journal

if TYPE_CHECKING:
    from rich.console import Console

Options = TypeVar("Options")


def parse_options(words: Sequence[str], options: type[Options]) -> tuple[list[str], Options, list[str]]:
    """Names, options and problems; if there are problems, the options must not be used."""
    names, flags, problems = parse_flags(words, options)
    settings, setting_problems = check_settings(flags, options)
    problems += setting_problems
    problems += [f"unknown flag {name}" for name in names if name.startswith("-") and name != "-"]
    return names, options(**settings), problems


def recipe_from_names(names: Sequence[str], problems: list[str], default: str = "") -> Recipe | None:
    """The preset or config file that `names` has; None if there is none, or a problem, which is appended."""
    if len(names) > 1:
        problems.append(f"one preset or file at a time, not {' and '.join(names)}")
    name = names[0] if names else default
    with collect_problems(problems):
        return find_recipe(name) if name else None
    return None


# --- a command and its --help ---


@dataclass(frozen=True)
class Command:
    """A subcommand of `glass`. `options`: the flags that its --help lists; `flags`: all that it takes."""

    run: Callable[[list[str]], int]
    usage: str
    options: type
    flags: type

    def __call__(self, words: list[str]) -> int:
        own_words = words[: words.index("--")] if "--" in words else words  # then comes another command
        if "--help" not in own_words and "-h" not in own_words:
            has_schema = any(field.name == "schema" for field in fields(self.options))
            if has_schema and any(word.partition("=")[0] == "--schema" for word in own_words):
                return _print_schema(self.usage.split()[1], words)
            return self.run(words)
        parser = make_parser(self.usage, self.options)
        if self.usage.startswith("glass train"):
            presets = parser.add_argument_group("presets")
            for name in preset_names():
                presets.add_argument(name, help=find_recipe(name).about)
        print(parser.format_help(), end="")
        return 0


def command(
    usage: str, options: type, flags: type | None = None
) -> Callable[[Callable[[list[str]], int]], Command]:
    """Decorator of the function that runs a command."""
    return lambda run: Command(run, usage, options, flags or options)


def _print_schema(name: str, words: Sequence[str]) -> int:
    """The JSON Schema of a command's --json document: schemas/NAME.json, with the definitions that it shares
    with others. Keys that it does not name are allowed, since later versions may add some."""
    if others := [word for word in words if word != "--schema"]:
        raise UserError(f"--schema is printed by itself: leave out {' '.join(others)}")
    folder = resources.files("glassgpt") / "schemas"
    schema, shared = (json.loads((folder / f"{file}.json").read_text("utf-8")) for file in (name, "shared"))
    schema["$defs"] = schema.get("$defs", {}) | {key: shared[key] for key in schema.pop("shared")}
    print(json.dumps(schema, indent=1))
    return 0


def make_parser(usage: str, options: type) -> argparse.ArgumentParser:
    """Prints the help of a dataclass. flags.py parses: argparse would stop at the first problem."""
    parser = argparse.ArgumentParser(
        usage=f"{usage} [options]" if fields(options) else usage,
        description=inspect.getdoc(options),
        formatter_class=_HelpFormatter,
    )
    groups: dict[str, Any] = {"": parser}
    types, comments = field_types(options), field_comments(options)
    for field in fields(options):
        section, comment = comments[field.name]
        if section not in groups:
            groups[section] = parser.add_argument_group(section)
        if field.default is MISSING:
            parser.add_argument(field.name, metavar=field.name.upper(), help=comment)
            continue
        kind, default = types[field.name], field.default
        arguments: dict[str, Any] = {}
        if kind is bool and default is False:
            arguments["action"] = "store_true"
        elif kind is bool or typing.get_origin(kind) is Literal:
            arguments["choices"] = typing.get_args(kind) or ("True", "False")
        else:
            inner = next((each for each in typing.get_args(kind) if each is not type(None)), kind)
            arguments["metavar"] = inner.__name__.upper()
        if default != "" and "action" not in arguments:
            comment += f" (default: {'none' if default is None else default})"
        groups[section].add_argument(f"--{field.name}", help=comment.replace("%", "%%"), **arguments)
    return parser


class _HelpFormatter(argparse.HelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(textwrap.fill(paragraph, width) for paragraph in text.split("\n\n"))


def field_comments(options: type) -> dict[str, tuple[str, str]]:
    """Section and comment of each field, from the source: the comments are the only text about a flag."""
    comments = {}
    for base in reversed(options.__mro__[:-1]):
        section, lines = "", list[str]()
        for line in map(str.strip, inspect.getsource(base).splitlines()):
            name = line.partition(":")[0]
            if line.startswith("# ---"):
                section = line.strip("# -")
            elif line.startswith("# "):
                lines.append(line[2:])
            else:
                if name in base.__annotations__:
                    comments[name] = section, " ".join(lines)
                lines = []
    return comments


def print_json(document: object, ascii_only: bool = True) -> None:
    """Strict JSON: NaN and infinities as words."""
    safe = journal.nonfinite_to_words(document)
    print(json.dumps(safe, ensure_ascii=ascii_only, indent=1, allow_nan=False))


def make_console(stderr: bool = False) -> Console:
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            # rich would exit with an error, but `glass runs | head` is not one
            raise BrokenPipeError(errno.EPIPE, "the reader closed the pipe")

    # A pipe or a file has no width: rich's default of 80 columns would cut tables for no reason.
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else 160
    return PipeConsole(width=width, highlight=False, emoji=False, stderr=stderr)
