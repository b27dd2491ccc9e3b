"""glass completion: TAB completion for bash, zsh and fish, by argcomplete. Does not import torch.

    source <(glass completion bash)

argcomplete's script calls `glass` with the typed line in the environment (cli.main sees it). So the
candidates are the flags of the installed version, and the presets and runs of the moment.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TextIO

from argcomplete.completers import FilesCompleter
from argcomplete.finders import ExclusiveCompletionFinder
from argcomplete.shell_integration import shellcode

from glassgpt.cli import COMMAND_MODULES, HELP, load_command
from glassgpt.cli.command import Command, command, field_comments, parse_options
from glassgpt.config import DEVICE_TYPES, TRACKERS
from glassgpt.data.digests import EXPORT_RECORD_FILE
from glassgpt.errors import raise_if_any
from glassgpt.flags import SYNONYMS, field_types
from glassgpt.i18n import LANGUAGES
from glassgpt.recipe import find_recipe, preset_names
from glassgpt.record import journal

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class CompletionOptions:
    """Print a script for your shell, after which TAB completes commands, presets, runs and settings.

    bash: source <(glass completion bash), in ~/.bashrc

    zsh: source <(glass completion zsh), in ~/.zshrc after compinit

    fish: glass completion fish > ~/.config/fish/completions/glass.fish
    """

    # A command line up to the cursor: print what TAB would offer there, one per line.
    line: str | None = None


@command("glass completion bash|zsh|fish", CompletionOptions)
def completion(words: list[str]) -> int:
    names, options, problems = parse_options(words, CompletionOptions)
    if options.line is None and (len(names) != 1 or names[0] not in SHELLS):
        problems.append(f"say which shell it is for: {', '.join(SHELLS)}")
    raise_if_any(problems)
    if options.line is not None:
        print("\n".join(complete_line(options.line)))
    else:
        print(shellcode(["glass"], shell=names[0]), end="")
    return 0


def complete_line(line: str) -> list[str]:
    """Candidates for the last word of the line. If there are none, the shell offers files."""
    os.environ |= {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
    os.environ |= {"COMP_LINE": line, "COMP_POINT": str(len(line))}
    output = io.StringIO()
    try:
        complete(output)
    finally:
        for name in [name for name in os.environ if name.startswith(("_ARGCOMPLETE", "COMP_"))]:
            del os.environ[name]
    return output.getvalue().splitlines()


def complete(output: TextIO | None = None) -> None:
    """Write candidates for COMP_LINE to `output`, or to the shell, after which the process ends."""
    line = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])]
    # zsh passes all that was typed: cd project && CUDA_VISIBLE_DEVICES=1 glass train
    line = re.sub(r"^(.*[;&|(])?\s*(\w+=\S*\s+)*(?=\S*glass\s)", "", line)
    name = re.match(r"\S+\s+(\S+)\s", line)
    if name is None:
        parser = argparse.ArgumentParser()
        parser.add_argument("--version", action="store_true", help="print the version")
        about = dict(re.findall(r"(?m)^  (\w+)(?: \S+)*  +(.+)", HELP))
        _set_completer(parser.add_argument("command"), lambda **_: about)
    elif name[1] in COMMAND_MODULES:
        parser = _command_parser(load_command(name[1]), re.split(r"\s", line)[-1])
    else:
        return
    # A 2 tells argcomplete to skip the first word: what follows the command is completed.
    os.environ |= {"_ARGCOMPLETE": "2" if name else "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    exit_method = os._exit if output is None else lambda code: None
    _Finder()(parser, always_complete_options=False, exit_method=exit_method, output_stream=output)


class _Finder(ExclusiveCompletionFinder):
    def _init_debug_stream(self) -> None:
        """Do not take file descriptor 9 for a debug stream: in a test it is another file."""


def _command_parser(command: Command, last_word: str) -> argparse.ArgumentParser:
    """Everything that the command takes, with completers. Any value is valid: flags.py refuses wrong ones."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    comments = field_comments(command.flags)
    for name, kind in field_types(command.flags).items():
        options = [f"--{flag}" for flag in (name, SYNONYMS.get(name)) if flag]
        is_literal = typing.get_origin(kind) is Literal
        values = typing.get_args(kind) if is_literal else ("True", "False") if kind is bool else ()
        takes_none = kind is bool or "on" in values
        is_value = last_word.startswith(tuple(f"{option}=" for option in options))
        action = parser.add_argument(
            *options,
            nargs="?" if takes_none and not is_value else None,
            help=comments[name][1].replace("%", "%%"),
        )
        if values:
            _set_completer(action, partial(lambda values, **_: values, values))
        elif name in _VALUES:
            _set_completer(action, _VALUES[name])
    for flag in sorted(set(re.findall(r"--[ab]\.\w+", command.options.__doc__ or ""))):
        parser.add_argument(flag)
    _set_completer(parser.add_argument("names", nargs="*"), partial(_complete_name, command.usage))
    return parser


def _set_completer(action: argparse.Action, completer: Callable[..., Iterable[str]]) -> None:
    action.completer = completer  # type: ignore[attr-defined]


def _complete_name(usage: str, prefix: str, **_: Any) -> Mapping[str, str]:
    """Candidates for PRESET, RUN, DATASET and lower-case words of a usage line; else files."""
    candidates: dict[str, str] = {}
    for word in re.findall(r"(?<![\w-])[A-Za-z]+(?![\w=])", usage.split(" ", 2)[2]):
        if word == "PRESET":
            candidates |= {name: find_recipe(name).about for name in preset_names()}
        elif word in ("RUN", "A"):
            candidates |= dict.fromkeys(_folders_containing("runs", journal.FILE_NAME), "a run")
        elif word == "EXPORT":
            candidates |= dict.fromkeys(_folders_containing("exports", EXPORT_RECORD_FILE), "an export")
        elif word == "DATASET" and "RUN" in usage:
            candidates |= dict.fromkeys(_folders_containing("data", "manifest.json"), "a dataset")
        elif word == "DATASET":
            from glassgpt.data.dataset import BUILT_IN

            candidates |= dict.fromkeys(BUILT_IN, "a dataset")
        elif word.islower():
            candidates[word] = ""
    if any(name.startswith(prefix) for name in candidates):
        return candidates
    return dict.fromkeys(FilesCompleter()(prefix), "")


def _complete_trackers(prefix: str, **_: Any) -> list[str]:
    done = prefix.rpartition(",")[0]
    others = [tracker for tracker in TRACKERS if tracker not in done.split(",")]
    return [f"{done},{tracker}" if done else tracker for tracker in others]


def _folders_containing(parent: str, file_name: str) -> list[str]:
    """Folders whose names a terminal can show; argcomplete quotes what a shell would execute."""
    paths = sorted(path.parent for path in Path(parent).glob(f"*/{file_name}"))
    return [str(path) for path in paths if path.name.isprintable()]


_VALUES: dict[str, Callable[..., Iterable[str]]] = {
    "track": _complete_trackers,
    "to": _complete_trackers,
    "lang": lambda **_: LANGUAGES,
    "device": lambda **_: ("auto", *DEVICE_TYPES),
    "dataset": lambda **_: [Path(path).name for path in _folders_containing("data", "manifest.json")],
    "against": lambda **_: _folders_containing("runs", journal.FILE_NAME),
    "init_from": lambda **_: ["scratch", "resume", *_folders_containing("runs", journal.FILE_NAME)],
}
