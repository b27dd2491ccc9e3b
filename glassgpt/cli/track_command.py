"""glass track: a run's journal, told to trackers afterwards."""

from __future__ import annotations

from pathlib import Path

from glassgpt import format
from glassgpt.cli.command import make_console, parse_options, print_help, wants_help
from glassgpt.config import TRACKERS, tracker_names
from glassgpt.errors import UserError, error_type_and_message
from glassgpt.record import journal
from glassgpt.track.trackers import TrackOptions


def track(words: list[str]) -> int:
    if wants_help(words):
        return print_help(TrackOptions, "glass track RUN")
    from glassgpt.track.trackers import check_installed, make_feed

    names, options, problems = parse_options(words, TrackOptions)
    asked = tracker_names({"track": options.to})
    if len(names) != 1:
        problems.append("say which run to tell about; `glass runs` lists them")
    if not asked:
        problems.append(f"say whom to tell: --to={','.join(TRACKERS)}")
    problems += [f"--to={name} is not one of {', '.join(TRACKERS)}" for name in asked if name not in TRACKERS]
    if not problems:
        problems += _unfit(Path(names[0]), asked)
    if problems:
        raise UserError(problems)
    check_installed(asked)
    out = make_console()
    for name in asked:
        try:
            told = make_feed(name, Path(names[0])).replay()
        except UserError as error:
            problems += error.problems
        except Exception as error:  # noqa: BLE001 - whatever a tracker raises, the others are told
            problems.append(f"{name} failed: {error_type_and_message(error)}")
        else:
            out.print(f"{name:<13} {format.pluralize(told, 'record')} told", soft_wrap=True, markup=False)
    if problems:
        raise UserError(problems)
    return 0


def _unfit(run_dir: Path, asked: tuple[str, ...]) -> list[str]:
    """Two must not write the same files at once."""
    from glassgpt.runs.run_list import is_running

    if not (run_dir / journal.FILE_NAME).is_file():
        return [f"{run_dir} holds no run: there is no {journal.FILE_NAME} in it; `glass runs` lists the runs"]
    runs = [record for record in journal.read(run_dir / journal.FILE_NAME) if record["kind"] == "run"]
    if not runs:
        return [f"{run_dir / journal.FILE_NAME} does not say what run it is of"]
    told = tracker_names(runs[-1].get("config", {})) if is_running(run_dir) else ()
    return [f"{name} is being told by the run itself, which is still going" for name in asked if name in told]
