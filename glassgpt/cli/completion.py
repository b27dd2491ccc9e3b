"""glass completion: TAB completion for bash, zsh and fish. Does not import torch.

    source <(glass completion bash)

The script of a shell only passes on what was typed; the candidates come from the installed program. The flags
of a command are read from its help (command.capture_help), so they are never out of date.
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
from glassgpt.flags import SYNONYMS, field_types
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

    # The line up to the cursor: print candidates for its last word, one per line. The scripts call this.
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
        script = resources.files("glassgpt.cli") / f"completion.{names[0]}"
        print(script.read_text(encoding="utf-8"), end="")
    return 0


def complete_line(line: str) -> list[str]:
    """Candidates for the last word of the line. If there are none, the shell offers files."""
    from glassgpt.cli import COMMAND_MODULES, load_command

    words = line.split(" ")
    typed, before = words[-1], [word for word in words[1:-1] if word]
    if not before:
        return _starting_with(typed, [*COMMAND_MODULES, "--help", "--version"])
    if before[0] not in COMMAND_MODULES:
        return []
    command_help = capture_help(load_command(before[0]))
    flags = _flag_types(command_help)
    name, equals, value = typed.partition("=")
    if equals and name.startswith("--"):
        values = _value_completions(_flag_name(name), flags.get(_flag_name(name)), value)
        return [f"{name}={candidate}" for candidate in values]
    if typed.startswith("-"):
        given = {_flag_name(word.partition("=")[0]) for word in before}
        candidates = []
        for name, value_type in flags.items():
            only_in_text = False if value_type is bool else None
            default = getattr(command_help.options, name, getattr(TrainConfig, name, only_in_text))
            if name not in given:  # a flag that is False switches on without a value
                candidates.append(f"--{name}" if default is False else f"--{name}=")
        return _starting_with(typed, [*candidates, "--help"])
    last = _flag_name(before[-1])
    if before[-1].startswith("--") and "=" not in before[-1] and flags.get(last, bool) is not bool:
        return _value_completions(last, flags[last], typed)
    return _starting_with(typed, _positional_completions(command_help.usage))


def _flag_name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _starting_with(typed: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(typed)]


def _flag_types(command_help: CommandHelp) -> dict[str, object]:
    """The type of each flag's value, by the flag's name."""
    flags: dict[str, object] = dict(field_types(command_help.options))
    if "--key=value" in command_help.usage:  # any setting of a run
        flags |= {name: kind for name, kind in field_types(TrainConfig).items() if name not in flags}
    flags |= {synonym: flags[name] for name, synonym in SYNONYMS.items() if name in flags}
    # Flags that are only in the text of the help: --a.config=FILE.
    text = (command_help.text or command_help.options.__doc__ or "").replace("--key=value", "")
    for name, equals in re.findall(r"(?<!\S)--(\w[\w.]*\w)(=?)", text):
        flags.setdefault(name, str if equals else bool)
    return flags


def _value_completions(name: str, value_type: object, typed: str) -> list[str]:
    if typing.get_origin(value_type) is Literal:
        return _starting_with(typed, typing.get_args(value_type))
    if name in ("track", "to"):  # trackers, several of them; an export's `to` is a Literal
        done, _, last = typed.rpartition(",")
        trackers = [tracker for tracker in TRACKERS if tracker not in done.split(",")]
        return [f"{done},{tracker}" if done else tracker for tracker in _starting_with(last, trackers)]
    values: dict[str, Sequence[str]] = {
        "lang": tuple(LANGUAGES),
        "device": ("auto", *DEVICE_TYPES),
        "dataset": _folders_containing("data", "manifest.json", whole=False),
        "init_from": ("scratch", "resume", *_folders_containing("runs", journal.FILE_NAME)),
    }
    if name in values:
        return _starting_with(typed, values[name])
    return _starting_with(typed, ("True", "False") if value_type is bool else ())


def _positional_completions(usage: str) -> list[str]:
    """Candidates for PRESET, RUN, DATASET and lower-case words of a usage line. The shell offers files."""
    candidates: list[str] = []
    for word in re.findall(r"(?<![\w-])[A-Za-z]+(?![\w=])", usage.partition(" ")[2].partition(" ")[2]):
        if word == "PRESET":
            candidates += preset_names()
        elif word in ("RUN", "A"):
            candidates += _folders_containing("runs", journal.FILE_NAME)
        elif word == "EXPORT":
            candidates += _folders_containing("exports", EXPORT_RECORD_FILE)
        elif word == "DATASET" and "EXPORT" in usage:  # prepared datasets
            candidates += _folders_containing("data", "manifest.json")
        elif word == "DATASET":
            from glassgpt.data.dataset import BUILT_IN

            candidates += BUILT_IN
        elif word.islower():
            candidates.append(word)
    return candidates


def _folders_containing(parent: str, file_name: str, whole: bool = True) -> list[str]:
    """Sorted folders in `parent` that contain the file; `whole`: as paths, else by their names.

    A shell puts a candidate on the line unquoted, and would run a folder called $(rm -r .). So names that
    need quotes are left out: the shell offers them itself, with other files.
    """
    folders = []
    for path in sorted(path.parent for path in Path(parent).glob(f"*/{file_name}")):
        unsafe = re.search(r"[\x00-\x7f]", re.sub(r"[\w.,:@%+-]", "", path.name))
        if unsafe is None and sanitize_text(path.name) == path.name:
            folders.append(str(path) if whole else path.name)
    return folders
