"""glass page: runs and logs in the browser, live.

glass page runs/quickstart
"""

from __future__ import annotations

import math
import os
import sys
import webbrowser
from dataclasses import dataclass
from typing import Literal

from glassgpt.cli.command import command, parse_options
from glassgpt.errors import UserError, collect_problems
from glassgpt.flags import parse_duration
from glassgpt.i18n import check_language, preferred_language, translate, use_language
from glassgpt.record.run_dir import RUNS_DIR

OpenBrowser = Literal["auto", "yes", "no"]


@dataclass(frozen=True)
class PageOptions:
    """Show runs and logs in the browser, live or finished, until Ctrl-C. Without RUN, FOLDER or LOG: runs/.

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
            if not os.path.lexists(source_path(name)):
                problems.append(f"there is no file or folder {name}")
    if not names and not RUNS_DIR.is_dir():
        problems.append(f"there is no folder {RUNS_DIR}/ here; say what to show: glass page RUN, or a log")
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
