"""The command `glass`: one thin function per subcommand.

    glass train [PRESET|FILE.toml] [--key=value ...]
    glass prepare DATASET|FILE|FOLDER [--key=value ...]
    glass runs [FOLDER]
    glass show RUN [--svg=FILE]
    glass sample [RUN] [--start=TEXT] [--key=value ...]

Exit codes: 0 done, 1 a crash, 2 a mistake to fix (said in one line each), 3 the loss was not finite,
130 and 143 stopped by Ctrl-C or SIGTERM. Only `train` and `sample` import torch.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.recipe import Recipe, check_settings, find_recipe, parse_flags, preset_names
from glassgpt.show.format import harmless
from glassgpt.version import VERSION

if TYPE_CHECKING:
    from rich.console import Console

    from glassgpt.account.sink import Listener
    from glassgpt.train.interrupt import Stop

# What is wrong with a path or a disk, not with the program.
_USERS_ERRNO = (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EROFS, errno.ENOSPC)

HELP = """\
glass: train a small GPT, and see through the run.

  glass train [PRESET|FILE] [--key=value ...]        train; without a preset: quickstart
  glass sample [RUN] [--start=TEXT]                  write text with a trained model
  glass prepare DATASET|FILE|FOLDER                  turn text into tokens to train on
  glass runs [FOLDER]                                list runs: state, loss, speed, size
  glass show RUN [--svg=FILE]                        print a run's output again, or as a picture

  glass COMMAND --help   explains a command and its settings
  glass --version
"""


def run() -> None:
    """The command's process. One that was told to stop leaves without waiting for threads that still write:
    what they write is committed by its last step, or not at all."""
    code = main()
    if code < 128:
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if sys.stdout is None or sys.stderr is None:  # started with closed streams, as some schedulers do
        nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a bar that a terminal cannot draw must not end a run
    try:
        return _dispatch(words)
    except UserError as error:
        for problem in error.problems:
            print(f"error: {harmless(problem.replace(chr(10), ' '))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        with contextlib.suppress(OSError):  # the terminal may be gone
            what = "; what was saved before is whole" if words[:1] == ["train"] else ""
            print(f"\nstopped at once{what}", file=sys.stderr)
        return int(getattr(error, "exit_code", 130))
    except BrokenPipeError:  # `glass runs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in _USERS_ERRNO:
            raise
        where = "" if error.filename is None else f": {harmless(str(error.filename))[:200]}"
        print(f"error: {error.strerror}{where}", file=sys.stderr)
        return 2


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("--help", "-h", "help"):
        print(HELP, end="")
        return 0
    if words[0] == "--version":
        print(f"glassgpt {VERSION}")
        return 0
    commands: dict[str, Callable[[list[str]], int]] = {
        "train": train,
        "prepare": prepare,
        "runs": runs,
        "show": show,
        "sample": sample,
    }
    if words[0] not in commands:
        raise UserError(f"there is no command {words[0]!r}; there are {', '.join(commands)}")
    return commands[words[0]](words[1:])


# --- glass train ---


def train(words: list[str]) -> int:
    if _wants_help(words):
        about = "\n".join(f"  {name:<22} {find_recipe(name).about}" for name in preset_names())
        text = (
            f"FILE is a config of ours (.toml) or nanoGPT's (.py, read, never executed). Presets:\n\n{about}"
        )
        return _print_help(TrainConfig, "glass train [PRESET|FILE]", text)
    names, flags, problems = parse_flags(words, TrainConfig)
    if len(names) > 1:
        problems.append(f"one preset or file at a time, not {' and '.join(names)}")
    recipe = None
    try:
        recipe = find_recipe(names[0]) if names else None
    except UserError as error:
        problems += error.problems
    if problems:
        raise UserError(problems + check_settings(flags, TrainConfig)[1])
    from glassgpt.train.interrupt import Stop  # which needs no torch: Ctrl-C is heard while that is loading

    with Stop() as stop:
        return _train(recipe, flags, stop)


def _train(recipe: Recipe | None, flags: dict[str, str], stop: Stop) -> int:
    from glassgpt.account.machine import process_age_s
    from glassgpt.show.console import RunConsole
    from glassgpt.show.nanogpt import NanogptConsole
    from glassgpt.train import session
    from glassgpt.train.task import resolve

    session.check_alone()  # before eight processes prepare the same data
    task = resolve(recipe, flags)
    # Who reads nanoGPT's lines from stdout expects no others there.
    out = _console(stderr=task.config.console == "nanogpt")
    _prepare_if_built_in(task.config, out)
    console: Listener = RunConsole(out, live=sys.stdout.isatty())
    if task.config.console == "nanogpt":
        console = NanogptConsole()
    return session.start(task, [console], stop, process_age_s()).exit_code


def _prepare_if_built_in(config: TrainConfig, out: Console) -> None:
    """pylib is on every machine: no need to make people ask for it."""
    from glassgpt import config as settings
    from glassgpt.data.options import PrepareOptions
    from glassgpt.data.prepare import prepare as prepare_data

    directory = settings.data_dir(config)
    if config.dataset == "pylib" and not config.data_dir and not directory.exists():
        out.print("data          preparing pylib, the Python standard library's source, once", soft_wrap=True)
        prepare_data(
            PrepareOptions(dataset="pylib", out_dir=str(directory)),
            lambda line: None,
            progress=out.is_terminal,
        )


# --- glass prepare ---


def prepare(words: list[str]) -> int:
    from glassgpt.data.options import PrepareOptions
    from glassgpt.data.prepare import prepare as prepare_data

    if _wants_help(words):
        return _print_help(PrepareOptions, "glass prepare DATASET|FILE|FOLDER")
    names, flags, problems = parse_flags(words, PrepareOptions)
    names += [flags.pop("dataset")] if "dataset" in flags else []
    if len(names) != 1:
        problems.append(
            "say what to prepare, one thing at a time: pylib, shakespeare_char, shakespeare, a file, a folder"
        )
    settings, more = check_settings(flags, PrepareOptions)
    if problems or more:
        raise UserError(problems + more)
    out = _console()
    options = PrepareOptions(**({"dataset": names[0]} | settings))  # type: ignore[arg-type]
    prepare_data(
        options, lambda line: out.print(line, soft_wrap=True, markup=False), progress=out.is_terminal
    )
    return 0


# --- glass runs, glass show ---


@dataclass(frozen=True)
class RunsOptions:
    """List the runs in a folder."""


@dataclass(frozen=True)
class ShowOptions:
    """Print what a run printed, from its journal."""

    # Write it as an SVG picture to this file instead.
    svg: str = ""
    # Characters per line of the picture.
    width: int = 132


def runs(words: list[str]) -> int:
    if _wants_help(words):
        return _print_help(RunsOptions, "glass runs [FOLDER]")
    from glassgpt.insight.runs import find_runs
    from glassgpt.show.runs import print_runs

    names, flags, problems = parse_flags(words, RunsOptions)
    problems += check_settings(flags, RunsOptions)[1]
    if len(names) > 1:
        problems.append(f"one folder at a time, not {' and '.join(names)}")
    folder = Path(names[0] if names else "runs")
    if names and not folder.is_dir():
        problems.append(f"there is no folder {folder}")
    if problems:
        raise UserError(problems)
    print_runs(find_runs(folder), folder, _console())
    return 0


def show(words: list[str]) -> int:
    if _wants_help(words):
        return _print_help(ShowOptions, "glass show RUN")
    from glassgpt.show.replay import replay, replay_svg

    names, flags, problems = parse_flags(words, ShowOptions)
    settings, more = check_settings(flags, ShowOptions)
    problems += more
    if len(names) != 1:
        problems.append("say which run to show; `glass runs` lists them")
    if not isinstance(width := settings.get("width", 132), int) or width < 40:
        problems.append("--width must be at least 40")
    if problems:
        raise UserError(problems)
    options = ShowOptions(**settings)  # type: ignore[arg-type]
    if options.svg:
        replay_svg(Path(names[0]), Path(options.svg), options.width)
    else:
        replay(Path(names[0]), _console())
    return 0


# --- glass sample ---


def sample(words: list[str]) -> int:
    from glassgpt.sample.options import SampleOptions, find_problems, prompt_text

    if _wants_help(words):
        return _print_help(SampleOptions, "glass sample [RUN]")
    names, flags, problems = parse_flags(words, SampleOptions)
    settings, more = check_settings(flags, SampleOptions)
    problems += more
    if len(names) > 1:
        problems.append(
            f"one run at a time, not {' and '.join(names)}; --compare=RUN2 shows another beside it"
        )
    options = SampleOptions(**settings)  # type: ignore[arg-type]
    problems += find_problems(options)
    if problems:
        raise UserError(problems)
    text = prompt_text(options.start)
    from glassgpt.sample.writer import find_source, open_writer
    from glassgpt.show import sample as show

    sources = [find_source(names[0] if names else None, options)]
    sources += [options.compare] if options.compare else []
    writers = [open_writer(source, options) for source in sources]
    prompts = [writer.encode(text) for writer in writers]
    err = _console(stderr=True)
    for writer, prompt in zip(writers, prompts, strict=True):
        show.announce(writer, err)
        show.announce_prompt(writer, prompt, err)
    if len(writers) == 1:
        show.stream(writers[0], text, prompts[0], options, err)
    else:
        show.side_by_side(writers, text, prompts, options, _console())
    return 0


# --- common to all ---


def _wants_help(words: list[str]) -> bool:
    return "--help" in words or "-h" in words


def _print_help(options: type, usage: str, text: str = "") -> int:
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


def _console(stderr: bool = False) -> Console:
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError(
                errno.EPIPE, "nobody reads"
            )  # rich would exit with an error; `glass runs | head` is none

    # A pipe or a file has no width; 80 columns would cut tables for nobody's good.
    width = None if sys.stdout.isatty() else 160
    return PipeConsole(width=width, highlight=False, emoji=False, stderr=stderr)


if __name__ == "__main__":
    run()
