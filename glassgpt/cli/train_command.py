"""glass train

glass train shakespeare_char --max_iters=2000
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from glassgpt.cli.command import command, make_console, recipe_from_names
from glassgpt.config import MACHINE_SPECIFIC_PATHS, TrainConfig, requested_trackers
from glassgpt.errors import UserError, collect_problems, raise_if_any
from glassgpt.flags import check_settings, parse_flags
from glassgpt.i18n import check_language, current_language, preferred_language, use_language
from glassgpt.recipe import DEFAULT_PRESET, Recipe, build_config, find_recipe, is_unprepared_text
from glassgpt.record.run_dir import resume_command
from glassgpt.show.page.launch import PageMode, page_beside_run, page_problems

if TYPE_CHECKING:
    from rich.console import Console

    from glassgpt.record.sink import Listener
    from glassgpt.training.distributed.process_group import ProcessGroup
    from glassgpt.training.interrupt import StopSignals
    from glassgpt.training.run_request import RunRequest

_COMMAND_FLAGS = ("tune", "nproc", "verbose", "lang", "page")  # not settings of the run
TUNE_BUDGET_S = 90.0  # --help says so


@dataclass(frozen=True)
class _TrainFlags(TrainConfig):
    """Train a model. Without PRESET or FILE: quickstart.

    FILE is a config (.toml), a nanoGPT config (.py, parsed, never executed), or a text file or folder to
    prepare and train on with quickstart's settings.

    Flags override PRESET or FILE. A switch such as --bias takes a value too: --bias=False. `none` means:
    derived from other settings, and the run says how.
    """

    # First measure which settings train fastest on this machine. Takes 90 seconds at most.
    tune: bool = False
    # Start this many processes on this machine, as torchrun does.
    nproc: int | None = None
    # First print every choice with its reason, the model's shape, and what 100% MFU is. The journal has them
    # in any case: glass show RUN --verbose
    verbose: bool = False
    # Language of what is printed: en, hi or ar; empty: that of the locale.
    lang: str = ""
    # Show the run in the browser, at an address that is printed; auto: if the output is a terminal.
    page: PageMode = "auto"


@command("glass train [PRESET|FILE]", _TrainFlags)
def train(words: list[str]) -> int:
    names, flags, problems = parse_flags(words, _TrainFlags)
    command_flags: dict[str, str] = {name: flags.pop(name) for name in _COMMAND_FLAGS if name in flags}
    values, command_problems = check_settings(command_flags, _TrainFlags)
    problems += command_problems
    nproc, lang = values.get("nproc"), str(values.get("lang") or "")
    check_language(lang, problems)
    if isinstance(nproc, int) and nproc < 1:
        problems.append(f"--nproc={nproc} must be 1 or more")
    page = cast(PageMode, values.get("page", "auto"))
    if page == "on":
        problems += page_problems()
    text_path = ""
    if len(names) == 1 and is_unprepared_text(names[0]):
        from glassgpt.data.corpus import is_corpus

        # A corpus may take hours and needs options: `glass prepare` it first.
        text_path = "" if is_corpus(names[0]) else names[0]
    if text_path:
        from glassgpt.data.prepare_options import PrepareOptions, dataset_name

        problems += [
            f"{text_path} and --{name} each name a dataset: leave one of them out"
            for name in ("dataset", "data_dir")
            if name in flags
        ]
        flags["dataset"] = dataset_name(PrepareOptions(text_path))
        recipe: Recipe | None = replace(find_recipe(DEFAULT_PRESET), name=flags["dataset"])
    else:
        recipe = recipe_from_names(names, problems)
    if problems or "RANK" not in os.environ:  # at once: torch, which takes seconds, is imported below
        if check_settings(flags, TrainConfig)[1]:
            with collect_problems(problems):  # these, and what else is wrong with the values
                build_config(recipe or Recipe("", "", {}), flags, "cpu")
        raise_if_any(problems)
    if isinstance(nproc, int) and "RANK" not in os.environ:  # RANK is set: this is one of the processes
        from glassgpt.training.launch import launch

        return launch(nproc, ["train", *_without_nproc(words)])
    from glassgpt.training.distributed.process_group import RankLost
    from glassgpt.training.interrupt import StopSignals  # needs no torch: Ctrl-C works while torch is loading

    try:
        with StopSignals() as signals, use_language(lang or preferred_language()):
            tune, verbose = bool(values.get("tune")), bool(values.get("verbose"))
            return _train(recipe, flags, signals, tune, text_path, verbose, page)
    except RankLost as error:
        if error.should_report:
            print(f"error: {error}", file=sys.stderr)
        return 1


def _without_nproc(words: list[str]) -> list[str]:
    """The command line of each of the processes."""
    remaining, skip = [], False
    for word in words:
        if not skip and not word.startswith("--nproc"):
            remaining.append(word)
        skip = word == "--nproc"
    return remaining


def _train(
    recipe: Recipe | None,
    flags: dict[str, str],
    signals: StopSignals,
    tune: bool,
    text_path: str,
    verbose: bool,
    page: PageMode,
) -> int:
    """Join the process group, resolve the request, train; rank 0 prints and writes the report."""
    from glassgpt.record.machine import process_age_s
    from glassgpt.show.page.report_listener import ReportAtEnd
    from glassgpt.show.terminal.nanogpt_console import NanogptConsole
    from glassgpt.show.terminal.run_console import RunConsole
    from glassgpt.show.terminal.text_lines import print_line
    from glassgpt.track import trackers
    from glassgpt.training import session
    from glassgpt.training.distributed import join

    group = join()
    with group.share_errors():
        request = _resolve_request(group, recipe, flags, tune, text_path)
    out = _make_run_console(request.config)
    report = ReportAtEnd(out, signals)
    page_url = partial(page_beside_run, page, current_language())
    console: Listener = RunConsole(out, sys.stdout.isatty(), verbose, page_url)
    if request.config.console == "nanogpt":
        console = NanogptConsole(page_url=page_url)
    listeners: list[Listener] = [console, report]  # other ranks have no sink
    run = session.start_run(request, listeners, signals, process_age_s(), group, trackers)
    if run.was_over and group.is_rank_zero:
        longer = f"--max_iters={2 * run.iter}" if run.reason == "finished" else "--patience=0"
        text = (
            f"already {run.reason}: {run.iter:,} updates, best validation loss {run.best_val_loss:.4f}; "
            "to train it longer:"
        )
        print_line(out, "end", text, command=resume_command(run.out_dir, longer))
    return run.exit_code


def _resolve_request(
    group: ProcessGroup, recipe: Recipe | None, flags: dict[str, str], tune: bool, text_path: str
) -> RunRequest:
    """The run that torchrun restarts, or that of this command line: data prepared, settings tuned."""
    from glassgpt.track.trackers import check_installed
    from glassgpt.training.run_request import prepare_if_built_in, resolve_request, restarted_request

    out_dir = str({**(recipe.settings if recipe else {}), **flags}.get("out_dir", ""))
    restarted = restarted_request(group, out_dir, flags)
    request = restarted or resolve_request(recipe, flags)
    if tune and restarted is None and request.resume_dir is not None:
        raise UserError("a resumed run keeps its settings: leave out --tune")
    if group.is_rank_zero:
        check_installed(requested_trackers(request.config))
    out = _make_run_console(request.config)
    group.run_rank_zero_first(
        lambda: prepare_if_built_in(request.config, partial(out.print, soft_wrap=True), out.is_terminal)
    )
    if text_path:
        from glassgpt.data.prepare import prepare_if_missing
        from glassgpt.show.terminal.text_lines import print_line

        def print_data_line(line: str) -> None:
            if group.is_rank_zero:
                print_line(out, "data", line)

        show_progress = group.is_rank_zero and out.is_terminal
        group.run_rank_zero_first(lambda: prepare_if_missing(text_path, print_data_line, show_progress))
        print_data_line(f"training on it with the settings of {DEFAULT_PRESET} and your flags")
    if not tune or restarted is not None:
        return request
    tuned = group.broadcast_from_rank_zero(
        lambda: _measure_fastest_config(request, flags, out, group.world_size)
    )
    local_paths = {name: getattr(request.config, name) for name in MACHINE_SPECIFIC_PATHS}
    config = TrainConfig(**tuned["config"] | local_paths)
    return replace(request, config=config, tuning_s=tuned["seconds"])


def _make_run_console(config: TrainConfig) -> Console:
    """Scripts that read nanoGPT's lines from stdout expect no other lines there."""
    return make_console(stderr=config.console == "nanogpt")


def _measure_fastest_config(
    request: RunRequest, flags: Collection[str], out: Console, ranks: int
) -> dict[str, Any]:
    """--tune: the config that trains fastest, and how long the trials took; flags stay as given."""
    from glassgpt.show.terminal.text_lines import print_line
    from glassgpt.tune.tuning import tuned_config

    started = time.perf_counter()
    config, fixed = request.config, set(flags)
    if ranks > 1:  # rank 0 measures alone: keep the size of an update, and the threads, which ranks share
        fixed.add("threads")
        if config.batch_tokens is None and config.gradient_accumulation_steps is None:
            config = replace(config, gradient_accumulation_steps=ranks)
    config = tuned_config(config, TUNE_BUDGET_S, partial(print_line, out, "tune"), fixed=fixed)
    out.print()
    return {"config": asdict(config), "seconds": time.perf_counter() - started}
