"""glass train, glass prepare"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from glassgpt.cli.command import make_console, print_help, recipe_from_names, wants_help
from glassgpt.config import MACHINE_SPECIFIC_PATHS, TrainConfig, requested_trackers
from glassgpt.errors import UserError
from glassgpt.flags import check_settings, parse_flags
from glassgpt.recipe import DEFAULT_PRESET, Recipe, find_recipe, is_unprepared_text, preset_names
from glassgpt.sanitize import sanitize_text

if TYPE_CHECKING:
    from rich.console import Console

    from glassgpt.record.journal import Record
    from glassgpt.record.sink import Listener
    from glassgpt.show.report.report_listener import ReportAtEnd
    from glassgpt.training.distributed.process_group import ProcessGroup
    from glassgpt.training.interrupt import StopSignals
    from glassgpt.training.task import RunRequest


def train(words: list[str]) -> int:
    if wants_help(words):
        about = "\n".join(f"  {name:<22} {find_recipe(name).about}" for name in preset_names())
        text = (
            "FILE is a config of ours (.toml) or nanoGPT's (.py, read, never executed), or a text, file or "
            "folder, to prepare and train on with quickstart's settings. --tune measures "
            f"first, {TUNE_BUDGET_S:.0f} s at most, which settings are fastest here. --nproc=N trains in N "
            f"processes on this machine, as torchrun does. Presets:\n\n{about}"
        )
        return print_help(TrainConfig, "glass train [PRESET|FILE]", text)
    names, flags, problems = parse_flags(words, _TrainFlags)
    own, more = check_settings(
        {name: flags.pop(name) for name in ("tune", "nproc") if name in flags}, _TrainFlags
    )
    problems += more
    nproc = own.get("nproc")
    if isinstance(nproc, int) and nproc < 1:
        problems.append(f"--nproc={nproc} must be 1 or more")
    text = names[0] if len(names) == 1 and _is_text(names[0]) else ""
    if text:
        from glassgpt.data.prepare_options import PrepareOptions, dataset_name

        problems += [
            f"{text} and --{name} each name a dataset: leave one of them out"
            for name in ("dataset", "data_dir")
            if name in flags
        ]
        flags["dataset"] = dataset_name(PrepareOptions(text))
        recipe: Recipe | None = replace(find_recipe(DEFAULT_PRESET), name=flags["dataset"])
    else:
        recipe = recipe_from_names(names, problems)
    if problems:
        raise UserError(problems + check_settings(flags, TrainConfig)[1])
    if isinstance(nproc, int) and "RANK" not in os.environ:  # torchrun and we would start each other
        from glassgpt.training.launch import launch

        return launch(nproc, ["train", *_without_nproc(words)])
    from glassgpt.training.distributed.process_group import RankLost
    from glassgpt.training.interrupt import StopSignals  # needs no torch: Ctrl-C works while torch is loading

    try:
        with StopSignals() as stop:
            return _train(recipe, flags, stop, bool(own.get("tune")), text)
    except RankLost as lost:
        if lost.should_report:
            print(f"error: {lost}", file=sys.stderr)
        return 1


def _is_text(name: str) -> bool:
    """Documents in bulk may take hours and settings of their own: they are prepared by themselves."""
    if not is_unprepared_text(name):
        return False
    from glassgpt.data.corpus import is_corpus

    return not is_corpus(name)


def _without_nproc(words: list[str]) -> list[str]:
    """What each of the processes is asked to do."""
    kept, skip = [], False
    for word in words:
        if not skip and not word.startswith("--nproc"):
            kept.append(word)
        skip = word == "--nproc"
    return kept


@dataclass(frozen=True)
class _TrainFlags(TrainConfig):
    """What may be said besides the run's settings."""

    tune: bool = False
    nproc: int | None = None


TUNE_BUDGET_S = 90.0


def _train(
    recipe: Recipe | None, flags: dict[str, str], stop: StopSignals, tune: bool, text: str = ""
) -> int:
    from glassgpt.record.machine import process_age_s
    from glassgpt.show.report.report_listener import ReportAtEnd
    from glassgpt.track import trackers
    from glassgpt.training import session
    from glassgpt.training.distributed import join

    team = join()
    with team.share_errors():
        task = _resolve_task(team, recipe, flags, tune, text)
    report = ReportAtEnd(_make_run_console(task.config), stop)
    listeners: list[Listener] = (
        [_make_console_listener(task.config, report), report] if team.is_rank_zero else []
    )
    run = session.start_run(task, listeners, stop, process_age_s(), team, trackers)
    if run.was_over and team.is_rank_zero:
        longer = f"--max_iters={2 * run.iter}" if run.reason == "finished" else "--patience=0"
        _make_run_console(task.config).print(
            f"{'end':<13} {run.reason} before, after {run.iter:,} updates, with a best validation loss of "
            f"{run.best_val_loss:.4f}; to train it longer: glass train --init_from=resume "
            f"--out_dir={shlex.quote(sanitize_text(str(run.out_dir)))} {longer}",
            soft_wrap=True,
            markup=False,
        )
    return run.exit_code


def _resolve_task(
    team: ProcessGroup, recipe: Recipe | None, flags: dict[str, str], tune: bool, text: str
) -> RunRequest:
    """What was begun in that folder, or what is asked for; its text prepared, its settings tuned."""
    from glassgpt.track.trackers import check_installed
    from glassgpt.training.task import prepare_if_built_in, resolve_request, restarted_request

    said = {**(recipe.settings if recipe else {}), **flags}
    begun = restarted_request(team, str(said.get("out_dir", "")), flags)
    task = begun or resolve_request(recipe, flags)
    if tune and begun is None and task.resume_dir is not None:
        raise UserError("a run that goes on has its settings: leave --tune out")
    if team.is_rank_zero:
        check_installed(requested_trackers(task.config))
    out = _make_run_console(task.config)
    team.run_rank_zero_first(
        lambda: prepare_if_built_in(task.config, partial(out.print, soft_wrap=True), out.is_terminal)
    )
    if text:
        team.run_rank_zero_first(lambda: _prepare_text(text, out if team.is_rank_zero else None))
    if not tune or begun is not None:
        return task
    found = team.broadcast_from_rank_zero(lambda: _tuned(task, flags, out, team.world_size))
    own = {name: getattr(task.config, name) for name in MACHINE_SPECIFIC_PATHS}
    return replace(task, config=TrainConfig(**found["config"] | own), tuning_s=found["seconds"])


def _make_run_console(config: TrainConfig) -> Console:
    """Who reads nanoGPT's lines from stdout expects no others there."""
    return make_console(stderr=config.console == "nanogpt")


def _make_console_listener(config: TrainConfig, report: ReportAtEnd) -> Listener:
    """Prints the run."""
    from glassgpt.record.sink import warn_listener_failed
    from glassgpt.show.terminal.nanogpt_console import NanogptConsole
    from glassgpt.show.terminal.run_console import RunConsole

    nanogpts = config.console == "nanogpt"
    lines: Listener = (
        NanogptConsole() if nanogpts else RunConsole(_make_run_console(config), live=sys.stdout.isatty())
    )

    def show(record: Record) -> None:
        if report.is_console_open:
            try:
                lines(record)
            except OSError as error:  # a closed terminal takes the lines, and leaves the report
                report.is_console_open = False
                warn_listener_failed("console", error)

    return show


def _tuned(task: RunRequest, flags: Collection[str], out: Console, ranks: int) -> dict[str, Any]:
    """The settings that are fastest here, found by trying, and how long that took; what was said by flag
    stays."""
    from glassgpt.tune.tuning import tuned_config

    def say(line: str) -> None:
        out.print(f"{'tune':<13} {sanitize_text(line)}", soft_wrap=True, markup=False)

    started = time.perf_counter()
    asked, fixed = task.config, set(flags)
    if ranks > 1:  # one process tries for all: an update must stay as large, and cores are shared
        fixed.add("threads")
        if asked.batch_tokens is None and asked.gradient_accumulation_steps is None:
            asked = replace(asked, gradient_accumulation_steps=ranks)
    config = tuned_config(asked, TUNE_BUDGET_S, say, fixed=fixed)
    out.print()
    return {"config": asdict(config), "seconds": time.perf_counter() - started}


def _prepare_text(text: str, out: Console | None) -> None:
    """`out`: None where another process of the team prints."""
    from glassgpt.data.prepare import prepare_if_missing

    def say(line: str) -> None:
        if out is not None:
            out.print(f"{'data':<13} {sanitize_text(line)}", soft_wrap=True, markup=False)

    prepare_if_missing(text, say, progress=out is not None and out.is_terminal)
    say(f"now trains on it with the settings of {DEFAULT_PRESET}, and yours")


def prepare(words: list[str]) -> int:
    from glassgpt.data.prepare import prepare as prepare_data
    from glassgpt.data.prepare_options import PrepareOptions
    from glassgpt.training.interrupt import sigterm_as_interrupt

    if wants_help(words):
        return print_help(PrepareOptions, "glass prepare DATASET|FILE|FOLDER|'PATTERN'")
    names, flags, problems = parse_flags(words, PrepareOptions)
    names += [flags.pop("dataset")] if "dataset" in flags else []
    if len(names) != 1:
        problems.append(
            "say what to prepare, one thing at a time: pylib, shakespeare_char, fineweb_edu, owner/name on "
            "Hugging Face, a file, a folder, a 'pattern*' in quotes"
        )
    settings, more = check_settings(flags, PrepareOptions)
    if problems or more:
        raise UserError(problems + more)
    out = make_console()
    options = PrepareOptions(**({"dataset": names[0]} | settings))  # type: ignore[arg-type]
    with sigterm_as_interrupt():
        prepare_data(options, lambda line: out.print(line, soft_wrap=True, markup=False))
    return 0
