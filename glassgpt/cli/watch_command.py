"""glass watch: any trainer, watched while it runs. Does not import torch.

glass watch -- python train.py config/train_shakespeare_char.py
glass watch train.log
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from glassgpt.cli.command import command, make_console, parse_options
from glassgpt.errors import UserError, raise_if_any
from glassgpt.explain.explain_options import ExplainOptions, WatchOptions, parse_card
from glassgpt.files import abbreviate_home
from glassgpt.i18n import check_language, preferred_language, use_language
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
        followed.poll(max_s=0.0)  # what cannot be read is said before the screen is filled
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
