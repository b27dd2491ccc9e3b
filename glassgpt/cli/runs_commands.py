"""glass runs, glass show RUN"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from glassgpt.cli.command import command, make_console, parse_options
from glassgpt.errors import raise_if_any
from glassgpt.files import expand_user_path
from glassgpt.i18n import preferred_language, use_language


@dataclass(frozen=True)
class RunsOptions:
    """List the runs in FOLDER: state, best loss, speed, when they started. Without FOLDER: runs/."""


@dataclass(frozen=True)
class ShowOptions:
    """Print a run's output again, from its journal."""

    # Also print every choice with its reason, the model's shape, and what 100% MFU is.
    verbose: bool = False
    # Write it as an SVG picture to this file instead.
    svg: str = ""
    # Characters per line of the picture.
    width: int = 132


@command("glass runs [FOLDER]", RunsOptions)
def runs(words: list[str]) -> int:
    from glassgpt.runs.run_list import find_runs
    from glassgpt.show.terminal.runs_view import print_runs

    names, _, problems = parse_options(words, RunsOptions)
    if len(names) > 1:
        problems.append(f"one folder at a time, not {' and '.join(names)}")
    folder = Path(names[0] if names else "runs")
    if names and not folder.is_dir():
        problems.append(f"there is no folder {folder}")
    raise_if_any(problems)
    with use_language(preferred_language()):
        print_runs(find_runs(folder), folder, make_console())
    return 0


@command("glass show RUN", ShowOptions)
def show(words: list[str]) -> int:
    from glassgpt.show.terminal.runs_view import replay, replay_svg

    names, options, problems = parse_options(words, ShowOptions)
    if len(names) != 1:
        problems.append("say which run to show; `glass runs` lists them")
    if options.width < 40:
        problems.append("--width must be at least 40")
    raise_if_any(problems)
    with use_language(preferred_language()):
        if options.svg:
            svg_path = expand_user_path(options.svg)
            replay_svg(Path(names[0]), svg_path, options.width, options.verbose)
        else:
            replay(Path(names[0]), make_console(), options.verbose)
    return 0
