"""What every subcommand does: help, words and flags, a console."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from glassgpt.recipe import check_settings, parse_flags

if TYPE_CHECKING:
    from rich.console import Console

Options = TypeVar("Options")


def parsed(words: Sequence[str], options: type[Options]) -> tuple[list[str], Options, list[str]]:
    """Names, options and problems; where there are problems, the options are not to be used."""
    names, flags, problems = parse_flags(words, options)
    settings, more = check_settings(flags, options)
    more += [f"unknown flag {name}" for name in names if name.startswith("-") and name != "-"]
    return names, options(**settings), problems + more


def wants_help(words: list[str]) -> bool:
    return "--help" in words or "-h" in words


def print_help(options: type, usage: str, text: str = "") -> int:
    """Help from the comments of the options' fields."""
    import tyro

    with contextlib.suppress(SystemExit):  # tyro leaves the process after printing; we return
        tyro.cli(
            options,
            prog=usage,
            description=text or None,
            args=["--help"],
            use_underscores=True,
            config=(tyro.conf.FlagConversionOff,),
        )
    return 0


def console(stderr: bool = False) -> Console:
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            # rich would exit with an error; `glass runs | head` is none
            raise BrokenPipeError(errno.EPIPE, "nobody reads")

    # A pipe or a file has no width; 80 columns would cut tables for nobody's good.
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else 160
    return PipeConsole(width=width, highlight=False, emoji=False, stderr=stderr)
