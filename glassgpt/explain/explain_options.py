"""The options of `glass explain`, `glass watch`, `glass compare` and `glass report`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from glassgpt.errors import UserError
from glassgpt.estimate.cards import Card, resolve_card_name


@dataclass(frozen=True)
class ExplainOptions:
    """Read a training log like an expert would: what happened, what it cost, what to change.

    RUN is a folder of GlassGPT's, LOG the console output of any trainer it knows, - the standard input. What
    a log does not say can be set with --a.n_layer=12, --a.parameters=33M, --a.config=FILE.

    To try it: --demo explains a log of nanoGPT that comes with GlassGPT. To watch a trainer:
    python -u train.py 2>&1 | glass explain - --watch
    """

    # Explain a log of nanoGPT on a GPU that comes with GlassGPT, as demo:gpu; demo:cpu is another one.
    demo: bool = False
    # Print facts and findings as one JSON document.
    json: bool = False
    # Print the JSON Schema of that document.
    schema: bool = False
    # Also print the details of findings.
    more: bool = False
    # Also explain each part of a log line; prints the details of findings, too.
    full: bool = False
    # Follow a growing log, or a pipe, and report findings as they appear.
    watch: bool = False
    # The card it ran on, e.g. "RTX 4070 Ti": its peak counts as 100% MFU.
    gpu: str = ""
    # Language: en, hi or ar; empty: that of the locale.
    lang: str = ""


@dataclass(frozen=True)
class CompareOptions:
    """Put runs or logs side by side: what differs, which is faster, which is better, and why.

    A is the first of them, B the second: --a.n_layer=12 --b.config=FILE set what a log does not say. To try
    it: glass compare demo:cpu demo:gpu
    """

    # Print the comparison as one JSON document.
    json: bool = False
    # Print the JSON Schema of that document.
    schema: bool = False
    # The card whose peak counts as 100% MFU.
    gpu: str = ""
    # Language: en, hi or ar; empty: that of the locale.
    lang: str = ""


@dataclass(frozen=True)
class ReportOptions:
    """Write one HTML page about a run or a log, which opens without a network.

    To try it: glass report demo:gpu
    """

    # The file to write; empty: report.html in the run's folder, or the log's name with .html here.
    out: str = ""
    # The card it ran on.
    gpu: str = ""
    # Language: en, hi or ar; empty: that of the locale.
    lang: str = ""


@dataclass(frozen=True)
class WatchOptions:
    """Watch a training run: its loss, its speed, how long it still takes, and what is wrong with it.

    RUN is a folder of GlassGPT's, LOG the output of any trainer, growing or finished, - the standard input.
    In a terminal this fills the screen; q ends it. Elsewhere it prints what is new, and at the end what
    `glass explain` prints.

    glass watch [options] -- COMMAND runs any trainer. Output, exit code and Ctrl-C are the command's own; the
    output is also saved in runs/watch-1/output.log (then watch-2, ...) and shown on the page.
    """

    # The page in the browser: on, off, or auto: in a terminal, if the extra `page` is installed.
    page: Literal["auto", "on", "off"] = "auto"
    # The card it runs on, e.g. "RTX 4070 Ti": its peak counts as 100% MFU.
    gpu: str = ""
    # Language: en, hi or ar; empty: that of the locale.
    lang: str = ""


def parse_card(name: str, problems: list[str]) -> Card | None:
    if not name:
        return None
    try:
        return resolve_card_name(name).card
    except UserError as error:
        problems += error.problems
        return None
