"""glass watch: any trainer, watched while it runs. glass page: runs and logs in the browser. Without torch.

glass watch -- python train.py config/train_shakespeare_char.py
glass watch train.log
glass page runs/quickstart
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from glassgpt.cli.command import command, make_console, parse_options
from glassgpt.errors import UserError, collect_problems, raise_if_any
from glassgpt.explain.explain_options import ExplainOptions, WatchOptions, parse_card
from glassgpt.files import abbreviate_home
from glassgpt.flags import parse_duration
from glassgpt.i18n import check_language, preferred_language, translate, use_language
from glassgpt.record.run_dir import RUNS_DIR
from glassgpt.sanitize import sanitize_line

if TYPE_CHECKING:
    from glassgpt.estimate.cards import Card
    from glassgpt.runs.overrides import RunOverrides


@command("glass watch RUN|LOG|-", WatchOptions)
def watch(words: list[str]) -> int:
    if "--" in words:
        at = words.index("--")
        return _watch_command(words[:at], words[at + 1 :])
    from glassgpt.cli.explain_commands import parse_log_command_line, print_updates

    missing = "say what to watch: a run, a log, or -- and a command: glass watch -- python train.py"
    names, overrides, options, card = parse_log_command_line(words, WatchOptions, 1, missing)
    with use_language(options.lang or preferred_language()):
        if not sys.stdout.isatty() or os.name != "posix":
            return print_updates(names[0], overrides[0], ExplainOptions(), card)
        return _fill_screen(names[0], overrides[0], options, card)


def _fill_screen(name: str, overrides: RunOverrides, options: WatchOptions, card: Card | None) -> int:
    """The view for those who have no browser at hand; its last line is the page's URL for the others."""
    from glassgpt.cli.explain_commands import saved_stream
    from glassgpt.explain.watch import FollowedRun
    from glassgpt.runs.reading import source_path
    from glassgpt.show.terminal.watch_view import watch_run
    from glassgpt.training.interrupt import sigterm_as_interrupt

    with contextlib.ExitStack() as closing:
        closing.enter_context(sigterm_as_interrupt())  # the terminal is restored then, too
        source, is_writing, url = name, None, ""
        if name == "-":
            source, is_writing = closing.enter_context(saved_stream(0))
            name = "standard input"
        else:
            url = _start_page(options, source_path(name))
        followed = FollowedRun(source, card, overrides, is_writing)
        followed.poll(max_s=0.0)  # raises before the screen is filled if it cannot be read
        watch_run(followed, make_console(), name, url)
    return 0


def _watch_command(words: list[str], command_words: list[str]) -> int:
    names, options, problems = parse_options(words, WatchOptions)
    if names:
        problems.append(f"either {names[0]} or the command after --, not both")
    if not command_words:
        problems.append("after -- comes the command to run: glass watch -- python train.py")
    if os.name != "posix":
        problems.append("-- COMMAND needs Linux or macOS; here: COMMAND 2>&1 | glass explain - --watch")
    parse_card(options.gpu, problems)
    check_language(options.lang, problems)
    raise_if_any(problems)
    from glassgpt.record.output_log import OutputLog
    from glassgpt.record.watched_command import CannotStart, check_command, run_command

    try:
        check_command(command_words[0])
        log = OutputLog(_report)
        if log.path is not None:
            _report(f"the output is saved in {abbreviate_home(str(log.path))}")
            if page := _start_page(options, log.path.parent):
                _report(page)
        try:
            exit_code = run_command(command_words, log, _report)
        except CannotStart:
            log.discard()
            raise
    except CannotStart as error:
        _report(str(error))
        return error.exit_code
    if log.path is not None and sys.stderr.isatty():  # elsewhere stderr is the command's alone
        _report(f"exit code {exit_code}; what happened in it: glass explain {log.path.parent}")
    return exit_code


def _start_page(options: WatchOptions, source: Path) -> str:
    """The page's URL, or in one line why there is none; empty if none is wanted."""
    if options.page == "off" or (options.page == "auto" and not sys.stdout.isatty()):
        return ""
    from glassgpt.show.page.launch import page_beside_run, page_problems

    if options.page == "on" and (problems := page_problems()):
        raise UserError(problems)
    language = options.lang or preferred_language()
    with use_language(language):
        return page_beside_run(options.page, language, source)


def _report(message: str) -> None:
    """\\r: the command may have the terminal in raw mode."""
    end = "\r\n" if sys.stderr.isatty() else "\n"
    print(f"glass watch: {sanitize_line(message)}", end=end, file=sys.stderr, flush=True)


# --- glass page ---

OpenBrowser = Literal["auto", "yes", "no"]


@dataclass(frozen=True)
class PageOptions:
    """Show runs and logs in the browser, live or finished, until Ctrl-C. Without RUN, FOLDER or LOG: runs/,
    also before there is a run in it.

    Only this machine can open the page, with the address that is printed. To try it: glass page demo:gpu
    """

    # Open the browser; auto: if there is a display.
    open: OpenBrowser = "auto"
    # The port on 127.0.0.1; 0: 8421, or the next one that is free.
    port: int = 0
    # End when no tab has been open for this long, such as 30s or 2h; empty: never.
    idle: str = ""
    # Language: en, hi or ar; empty: that of the locale.
    lang: str = ""


@command("glass page [RUN|FOLDER|LOG ...]", PageOptions)
def page(words: list[str]) -> int:
    from glassgpt.runs.reading import source_path
    from glassgpt.show.page import launch

    names, options, problems = parse_options(words, PageOptions)
    check_language(options.lang, problems)
    if not 0 <= options.port <= 65535:
        problems.append(f"--port={options.port} must be from 0 to 65535")
    idle_s = parse_duration(options.idle) if options.idle else math.inf
    if idle_s is None:
        problems.append(f"--idle={options.idle} is not a time of at most a day: try --idle=30s or --idle=2h")
    for name in names:
        with collect_problems(problems):
            if not os.path.lexists(source_path(name)) and Path(name) != RUNS_DIR:  # which may come
                problems.append(f"there is no file or folder {name}")
    problems += launch.page_problems()
    if problems or idle_s is None:
        raise UserError(problems)
    address = launch.bind(options.port)
    print(address.url)
    with use_language(options.lang or preferred_language()):
        print(translate("page_command.from_another_machine", command=launch.ssh_line(address.port)))
        print(translate("page_command.how_to_end"), flush=True)
    if options.open == "yes" or (options.open == "auto" and _has_display()):
        webbrowser.open(address.url)
    lifetime = launch.Lifetime(lambda: options.idle != "", idle_s, math.inf)
    try:
        launch.serve(address, names, lifetime, options.lang)
    except KeyboardInterrupt:  # the way to end it
        print()
    return 0


def _has_display() -> bool:
    """A browser on the machine of the person who typed the command."""
    if not sys.stdout.isatty() or "SSH_CONNECTION" in os.environ:
        return False
    if sys.platform in ("darwin", "win32"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
