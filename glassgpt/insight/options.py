"""The options of `glass explain`, `glass compare` and `glass report`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from glassgpt.account.hardware import Card, cards, find_card, nearest_cards
from glassgpt.words import LANGUAGES


@dataclass(frozen=True)
class ExplainOptions:
    """Read a training log like an expert would: what happened, what it cost, what to change.

    RUN is a folder of GlassGPT's, LOG the console output of any trainer it knows, - the standard input. What
    a log does not say can be said with --a.n_layer=12, --a.parameters=33M, --a.config=FILE. To watch a
    trainer: python -u train.py 2>&1 | glass explain - --watch
    """

    # Print facts and findings as one JSON document.
    json: bool = False
    # Also say what each piece of a line means.
    full: bool = False
    # Follow a log that grows, or a pipe, and say what is seen as it happens.
    watch: bool = False
    # The card it ran on, e.g. "RTX 4070 Ti": what its MFU is worth there.
    gpu: str = ""
    # Language: en, hi or ar; empty: that of the locale.
    lang: str = ""


@dataclass(frozen=True)
class CompareOptions:
    """Put runs or logs side by side: what differs, which is faster, which is better, and why.

    A is the first of them, B the second: --a.n_layer=12 --b.config=FILE say what a log does not.
    """

    # Print the comparison as one JSON document.
    json: bool = False
    # The card whose peak counts as 100% MFU.
    gpu: str = ""
    # Language: en, hi or ar; empty: that of the locale.
    lang: str = ""


@dataclass(frozen=True)
class ReportOptions:
    """Write one HTML page about a run or a log, which opens without a network."""

    # The file to write; empty: report.html in the run's folder, or the log's name with .html here.
    out: str = ""
    # The card it ran on.
    gpu: str = ""
    # Language: en, hi or ar; empty: that of the locale.
    lang: str = ""


def card_named(name: str, problems: list[str]) -> Card | None:
    if not name:
        return None
    card = find_card(name) or _card_meant(name)
    if card is None:
        problems.append(
            f"--gpu={name} is not in the table of cards; did you mean {', '.join(nearest_cards(name))}?"
        )
    return card


def check_language(name: str, problems: list[str]) -> None:
    if name and name not in LANGUAGES:
        problems.append(f"--lang={name} is not one of {', '.join(LANGUAGES)}")


def _card_meant(name: str) -> Card | None:
    """`4090` or `rtx4070ti`: the card whose name says just that, without maker and series."""
    wanted = _bare(name)
    meant = [card for card in cards() if wanted and wanted in {_bare(known) for known in card.known_as}]
    return meant[0] if len(meant) == 1 else None


def _bare(name: str) -> str:
    return re.sub(r"nvidia|geforce|rtx|gtx|[\s_-]", "", name.lower())
