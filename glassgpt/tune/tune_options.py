"""The options of `glass tune`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class TuneOptions:
    """Measure on this machine which settings train fastest, and write them to a file.

    Tokens per update, model and precision stay as they are, so the result of the run does too. What is given
    as --key=value, any setting of `glass train`, stays as it is given.
    """

    # How long it may take: 90s, 2m or 90.
    budget: str = "90s"
    # The file to write. Empty: tuned.toml, or the first of tuned-2.toml, … that is free.
    out: str = ""
    # Write over the file if it is there.
    force: bool = False
    # Print everything as one JSON document.
    json: bool = False
    # How many kinds of tokens to draw at random, where the dataset is not prepared. none: as it usually has.
    vocab_size: int | None = None


_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|sec|m|min|h)?")
_SECONDS = {None: 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}
_MAX_BUDGET_S = 24 * 3600


def budget_seconds(text: str) -> float | None:
    """90s, 2m, 1.5h, 90; None if it is no such thing."""
    found = _DURATION.fullmatch(text.strip().lower())
    seconds = float(found[1]) * _SECONDS[found[2]] if found else math.nan
    return seconds if 0 < seconds <= _MAX_BUDGET_S else None


def check_tune_options(options: TuneOptions) -> list[str]:
    problems = []
    if budget_seconds(options.budget) is None:
        problems.append(f"--budget={options.budget} is no time up to a day: try --budget=90s or --budget=2m")
    if options.vocab_size is not None and not 2 <= options.vocab_size <= 2**24:
        problems.append(f"--vocab_size={options.vocab_size} must be at least 2 and at most {2**24:,}")
    return problems
