"""What all commands share: parsing the command line, --help, the console."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from glassgpt.errors import UserError
from glassgpt.flags import check_settings, parse_flags
from glassgpt.recipe import Recipe, find_recipe

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
    try:
        return find_recipe(name) if name else None
    except UserError as error:
        problems += error.problems
        return None


def wants_help(words: list[str]) -> bool:
    return "--help" in words or "-h" in words


@dataclass(frozen=True)
class CommandHelp:
    """What `glass COMMAND --help` prints."""

    options: type
    usage: str
    text: str


_captured_help: ContextVar[list[CommandHelp] | None] = ContextVar("captured_help", default=None)


def capture_help(command: Callable[[list[str]], int]) -> CommandHelp:
    """The help of a command, without printing it. Shell completion uses it, so it cannot go stale."""
    captured: list[CommandHelp] = []
    token = _captured_help.set(captured)
    try:
        command(["--help"])
    finally:
        _captured_help.reset(token)
    return captured[0]


def print_help(options: type, usage: str, text: str = "") -> int:
    """Help from the comments of the options' fields."""
    captured = _captured_help.get()
    if captured is not None:
        captured.append(CommandHelp(options, usage, text))
        return 0
    import tyro

    with contextlib.suppress(SystemExit):  # tyro exits the process after printing; we return
        tyro.cli(
            options,
            prog=usage,
            description=text or None,
            args=["--help"],
            use_underscores=True,
            config=(tyro.conf.FlagConversionOff,),
        )
    return 0


def make_console(stderr: bool = False) -> Console:
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            # rich would exit with an error, but `glass runs | head` is not one
            raise BrokenPipeError(errno.EPIPE, "the reader closed the pipe")

    # A pipe or a file has no width: rich's default of 80 columns would cut tables for no reason.
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else 160
    return PipeConsole(width=width, highlight=False, emoji=False, stderr=stderr)
