"""glass completion: what TAB offers, from the same tables as the commands themselves. Does not import torch.

    source <(glass completion bash)

The script of a shell only hands over what was typed; the answers come from the program that is installed, so
they fit it. What a command takes is read from its own help (command.help_of).
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from glassgpt.cli.command import CommandHelp, capture_help, parse_options, print_help, wants_help
from glassgpt.config import DEVICE_TYPES, TRACKERS, TrainConfig
from glassgpt.data.digests import EXPORT_RECORD_FILE
from glassgpt.errors import UserError
from glassgpt.flags import field_types
from glassgpt.i18n import LANGUAGES
from glassgpt.recipe import preset_names
from glassgpt.record import journal
from glassgpt.sanitize import sanitize_text

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class CompletionOptions:
    """Print a script for your shell, after which TAB completes commands, presets, runs and settings.

    bash: source <(glass completion bash), in ~/.bashrc. zsh: the same with zsh, after compinit, in ~/.zshrc.
    fish: glass completion fish > ~/.config/fish/completions/glass.fish
    """

    # What was typed up to the cursor: print what could stand there, a line each. The scripts ask this.
    line: str | None = None


def completion(words: list[str]) -> int:
    if wants_help([word for word in words if not word.startswith("--line")]):
        return print_help(CompletionOptions, f"glass completion {'|'.join(SHELLS)}")
    names, options, problems = parse_options(words, CompletionOptions)
    if options.line is None and (len(names) != 1 or names[0] not in SHELLS):
        problems.append(f"say which shell it is for: {', '.join(SHELLS)}")
    if problems:
        raise UserError(problems)
    if options.line is not None:
        print("\n".join(complete_line(options.line)))
    else:
        print(
            (resources.files("glassgpt.cli") / f"completion.{names[0]}").read_text(encoding="utf-8"), end=""
        )
    return 0


def complete_line(line: str) -> list[str]:
    """What the word at the end of the line could be. Nothing: the shell offers files."""
    words = line.split(" ")
    typed, before = words[-1], [word for word in words[1:-1] if word]
    from glassgpt.cli import commands

    if not before:
        return _starting_with(typed, [*commands(), "--help", "--version"])
    if before[0] not in commands():
        return []
    about = capture_help(commands()[before[0]])
    flags = _flag_types(about)
    name, equals, value = typed.partition("=")
    if equals and name.startswith("--"):
        return [
            f"{name}={offer}"
            for offer in _value_completions(_flag_name(name), flags.get(_flag_name(name)), value)
        ]
    if typed.startswith("-"):
        given = {_flag_name(word.partition("=")[0]) for word in before}
        left = [_flag_as_typed(name, kind, about) for name, kind in flags.items() if name not in given]
        return _starting_with(typed, [*left, "--help"])
    last = _flag_name(before[-1])
    if before[-1].startswith("--") and "=" not in before[-1] and flags.get(last, bool) is not bool:
        return _value_completions(last, flags[last], typed)
    return _starting_with(typed, _positional_completions(about.usage))


def _flag_name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _starting_with(typed: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(typed)]


def _flag_types(about: CommandHelp) -> dict[str, object]:
    """By name, with the type of their values."""
    flags: dict[str, object] = dict(field_types(about.options))
    if "--key=value" in about.usage:  # any setting of a run
        flags |= {name: kind for name, kind in field_types(TrainConfig).items() if name not in flags}
    # And what the help has in its text only: --tune, --nproc=N, --a.config=FILE.
    text = (about.text or about.options.__doc__ or "").replace("--key=value", "")
    for name, equals in re.findall(r"(?<!\S)--(\w[\w.]*\w)(=?)", text):
        flags.setdefault(name, str if equals else bool)
    return flags


def _flag_as_typed(name: str, kind: object, about: CommandHelp) -> str:
    """Bare, where that switches something on."""
    only_in_text = False if kind is bool else None
    default = getattr(about.options, name, getattr(TrainConfig, name, only_in_text))
    return f"--{name}" if default is False else f"--{name}="


def _value_completions(name: str, kind: object, typed: str) -> list[str]:
    if typing.get_origin(kind) is Literal:
        return _starting_with(typed, typing.get_args(kind))
    if name in ("track", "to"):  # trackers, several of them; an export's `to` is a Literal
        done, _, rest = typed.rpartition(",")
        left = [tracker for tracker in TRACKERS if tracker not in done.split(",")]
        return [f"{done},{offer}" if done else offer for offer in _starting_with(rest, left)]
    known: dict[str, Sequence[str]] = {
        "lang": tuple(LANGUAGES),
        "device": ("auto", *DEVICE_TYPES),
        "dataset": _folders_containing("data", "manifest.json", whole=False),
        "init_from": ("scratch", "resume", *_folders_containing("runs", journal.FILE_NAME)),
    }
    if name in known:
        return _starting_with(typed, known[name])
    return _starting_with(typed, ("True", "False") if kind is bool else ())


def _positional_completions(usage: str) -> list[str]:
    """What may stand where the usage has PRESET, RUN, DATASET, or words of its own. Files are the shell's."""
    found: list[str] = []
    for word in re.findall(r"(?<![\w-])[A-Za-z]+(?![\w=])", usage.partition(" ")[2].partition(" ")[2]):
        if word == "PRESET":
            found += preset_names()
        elif word in ("RUN", "A"):
            found += _folders_containing("runs", journal.FILE_NAME)
        elif word == "EXPORT":
            found += _folders_containing("exports", EXPORT_RECORD_FILE)
        elif word == "DATASET" and "EXPORT" in usage:  # one that is prepared
            found += _folders_containing("data", "manifest.json")
        elif word == "DATASET":
            from glassgpt.data.dataset import BUILT_IN

            found += BUILT_IN
        elif word.islower():
            found.append(word)
    return found


def _folders_containing(where: str, holding: str, whole: bool = True) -> list[str]:
    """The folders in `where` that hold such a file, in the order that people read.

    Shells put an offer on the line as it is, and would run a folder called $(rm -r .): names that would have
    to be quoted are theirs to offer, with other files.
    """
    found = sorted(path.parent for path in Path(where).glob(f"*/{holding}"))
    return [str(path) if whole else path.name for path in found if _is_plain_word(path.name)]


def _is_plain_word(name: str) -> bool:
    return sanitize_text(name) == name and re.search(r"[\x00-\x7f]", re.sub(r"[\w.,:@%+-]", "", name)) is None
