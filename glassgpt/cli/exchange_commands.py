"""glass export RUN --to=hf, glass import nanogpt OUT_DIR, glass track RUN --to=csv,tensorboard"""

from __future__ import annotations

from pathlib import Path

from glassgpt.cli.command import command, make_console, parse_options
from glassgpt.config import TRACKERS, tracker_names
from glassgpt.errors import UserError, error_type_and_message, raise_if_any
from glassgpt.exchange.exchange_options import ExportOptions, ImportOptions
from glassgpt.format import pluralize
from glassgpt.record import journal
from glassgpt.record.run_dir import no_run_problem
from glassgpt.track.trackers import TrackOptions


@command("glass export RUN", ExportOptions)
def export(words: list[str]) -> int:
    names, options, problems = parse_options(words, ExportOptions)
    if len(names) != 1:
        problems.append("say which run to export, one at a time: glass export RUN; `glass runs` lists them")
    raise_if_any(problems)
    from glassgpt.exchange.export import export as export_model
    from glassgpt.show.terminal.exchange_view import print_export

    print_export(export_model(names[0], options), options.to, make_console())
    return 0


@command("glass import nanogpt OUT_DIR", ImportOptions)
def import_(words: list[str]) -> int:
    names, options, problems = parse_options(words, ImportOptions)
    if len(names) != 2 or names[0] != "nanogpt":
        problems.append("say what to import, and from where: glass import nanogpt OUT_DIR")
    raise_if_any(problems)
    from glassgpt.exchange.import_nanogpt import import_run
    from glassgpt.show.terminal.exchange_view import print_import

    print_import(import_run(names[1], options), make_console())
    return 0


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
    raise_if_any(problems)
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
    raise_if_any(problems)
    return 0


def _journal_problems(run_dir: Path, trackers: tuple[str, ...]) -> list[str]:
    """There is no run in the folder; or it is still running and logs to the same trackers itself."""
    from glassgpt.runs.run_list import is_running

    if not (run_dir / journal.FILE_NAME).is_file():
        return [no_run_problem(run_dir)]
    runs = [record for record in journal.read(run_dir / journal.FILE_NAME) if record["kind"] == "run"]
    if not runs:
        return [f"{run_dir / journal.FILE_NAME} has no run record"]
    in_use = tracker_names(runs[-1].get("config", {})) if is_running(run_dir) else ()
    return [f"the run is still training, and logs to {name} itself" for name in trackers if name in in_use]
