"""glass track RUN --to=csv,tensorboard: send the journal of a run to trackers afterwards."""

from __future__ import annotations

from pathlib import Path

from glassgpt.cli.command import command, make_console, parse_options
from glassgpt.config import TRACKERS, tracker_names
from glassgpt.errors import UserError, error_type_and_message
from glassgpt.format import pluralize
from glassgpt.record import journal
from glassgpt.track.trackers import TrackOptions


@command("glass track RUN", TrackOptions)
def track(words: list[str]) -> int:
    from glassgpt.show.terminal.text_lines import print_line
    from glassgpt.track.trackers import check_installed, make_feed

    names, options, problems = parse_options(words, TrackOptions)
    trackers = tracker_names({"track": options.to})
    if len(names) != 1:
        problems.append("say which run to send; `glass runs` lists them")
    if not trackers:
        problems.append(f"say which trackers to send it to: --to={','.join(TRACKERS)}")
    unknown = [name for name in trackers if name not in TRACKERS]
    problems += [f"--to={name} is not one of {', '.join(TRACKERS)}" for name in unknown]
    if not problems:
        problems += _journal_problems(Path(names[0]), trackers)
    if problems:
        raise UserError(problems)
    check_installed(trackers)
    out = make_console()
    for name in trackers:
        try:
            count = make_feed(name, Path(names[0])).replay()
        except UserError as error:
            problems += error.problems
        except Exception as error:  # noqa: BLE001 - whatever a tracker raises, the others get the run
            problems.append(f"{name} failed: {error_type_and_message(error)}")
        else:
            print_line(out, name, f"{pluralize(count, 'record')} sent")
    if problems:
        raise UserError(problems)
    return 0


def _journal_problems(run_dir: Path, trackers: tuple[str, ...]) -> list[str]:
    """There is no run in the folder; or it is still running and logs to the same trackers itself."""
    from glassgpt.runs.run_list import is_running

    if not (run_dir / journal.FILE_NAME).is_file():
        return [f"{run_dir} holds no run: there is no {journal.FILE_NAME} in it; `glass runs` lists the runs"]
    runs = [record for record in journal.read(run_dir / journal.FILE_NAME) if record["kind"] == "run"]
    if not runs:
        return [f"{run_dir / journal.FILE_NAME} has no run record"]
    in_use = tracker_names(runs[-1].get("config", {})) if is_running(run_dir) else ()
    return [f"the run is still training, and logs to {name} itself" for name in trackers if name in in_use]
