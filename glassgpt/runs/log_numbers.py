"""Numbers in logs: how trainers print them (0.8176, 1e-05, 4,883, nan, -inf, 10.65M), and which are believed.

A log is a file like any other: it can say 1e308 milliseconds. `clamped` applies the limits below to every
RunLog that is read; the docstring of builder.py lists what holds afterwards.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from glassgpt.record.journal import MAX_INTEGER, MAX_VALUE
from glassgpt.runs.run_log import Floats, LoggedEvaluation, LoggedSetup, RunLog, Steps

# Which characters may follow a number is left to the patterns around it.
NUMBER = (
    r"([-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?"
    r"|(?:nan|NaN|NAN)\b|(?:inf(?:inity)?|INF)\b))"  # in capitals where the format has an E: `lm loss: NAN`
)
COUNT = r"([\d,.]+(?:\s?(?:[kKMBG](?![a-z])|百万|万|亿))?)"  # not the M of "6 Models"
MAX_CELL_CHARS = 64  # of a number or a time in a table
_UNITS = {"k": 1e3, "K": 1e3, "M": 1e6, "m": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, "万": 1e4, "亿": 1e8}

# Digits and signs of Hindi and Arabic texts, as Python's patterns for numbers expect them.
ASCII_DIGITS = {ord(char): str(at % 10) for at, char in enumerate("०१२३४५६७८९٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹")} | {
    ord("٫"): ".", ord("٬"): ",", ord("٪"): "%"
}  # fmt: skip

MAX_COUNT = MAX_INTEGER  # of iterations, parameters, tokens, bytes, milliseconds, tokens per second
MAX_FLOPS = 1e30  # per token, or per second
MIN_AMOUNT = 1e-9  # no clock or meter resolves less; smaller is 0
_MIN_LR = 1e-30  # the last steps of a decay are far below any other amount
MAX_LOSS, MIN_LOSS = MAX_VALUE, 1 / MAX_VALUE  # beyond these a loss or a gradient norm is infinite, or 0

_Number = TypeVar("_Number", int, float)


# --- as printed ---


def parse_number(text: str) -> float:
    return float(text.replace(",", "") if "," in text else text)


def search_number(pattern: re.Pattern[str], text: str) -> float:
    """The number in the group that matched; NaN where the pattern is not found."""
    match = pattern.search(text)
    return parse_number(match[match.lastindex or 0]) if match else math.nan


def loss_of_perplexity(perplexity: float) -> float:
    """Its logarithm; 0 of a number below 1, which no perplexity is."""
    return math.log(max(perplexity, 1.0))


def parse_norm(text: str | None) -> float:
    """A gradient norm. NaN means that the line has none, so one that is printed as NaN counts as infinite."""
    norm = math.nan if text is None else parse_number(text)
    return math.inf if text is not None and math.isnan(norm) else norm


def search_norm(pattern: re.Pattern[str], text: str) -> float:
    match = pattern.search(text)
    return parse_norm(match[match.lastindex or 0] if match else None)


def parse_ms(number: str, unit: str) -> float:
    """Milliseconds, from a number of `ms` or `s`."""
    return parse_number(number) * (1000 if unit.lower() == "s" else 1)


def parse_count(text: str) -> int:
    """10.65M, 124,475,904, 1.1B. Raises ValueError for anything else."""
    text = text.strip().replace("百万", "M")
    unit = _UNITS.get(text[-1:], 1.0)
    value = parse_number(text[:-1].strip() if unit != 1.0 else text) * unit
    if not 0 <= value <= MAX_COUNT:
        raise ValueError(text)
    return round(value)


def parse_cell(value: object) -> float | None:
    """A number; None where there is none. JSON may have a number as a text."""
    if type(value) is float:  # most of them: first
        return value
    if isinstance(value, str):
        if not value or len(value) > MAX_CELL_CHARS:
            return None
        try:
            return float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


# --- limits ---


def clamp_loss(loss: float) -> float:
    """A loss or gradient norm. NaN and infinity stay: they are facts about a run."""
    size = abs(loss)
    if size > MAX_LOSS:
        return math.copysign(math.inf, loss)
    return 0.0 if 0 < size < MIN_LOSS else loss


def clamp_amount(
    value: _Number | None, largest: float = MAX_COUNT, smallest: float = MIN_AMOUNT
) -> _Number | None:
    """A time, rate or count, which cannot be negative. None where it is outside of its limits."""
    if value is None or not 0 <= value <= largest:
        return None
    return type(value)(0) if 0 < value < smallest else value


def _clamp_lr(lr: float) -> float | None:
    return clamp_amount(lr, smallest=_MIN_LR)


_CLAMPS: dict[str, Callable[[float], float | None]] = {
    **dict.fromkeys(("loss", "grad_norm"), clamp_loss),
    **dict.fromkeys(("ms", "mfu", "tokens_per_s", "tokens", "memory_bytes"), clamp_amount),
    "lr": _clamp_lr,
}
_SETUP_AMOUNTS = (
    "parameters", "trained_parameters", "tokens_per_iteration", "planned_iterations", "budget_s",
    "remaining_s", "memory_bytes", "resumed_val_loss", "wall_s", "prediction_s",
)  # fmt: skip
_SETUP_DIVISORS = (
    "world_size", "tensor_parallel", "pipeline_parallel", "data_parallel", "bytes_per_token"
)  # fmt: skip


def clamped(run_log: RunLog) -> RunLog:
    """The run with every number inside the limits that builder.py's docstring lists."""
    ledger = run_log.ledger
    nonfinite = run_log.nonfinite_update
    return replace(
        run_log,
        steps=clamped_steps(run_log.steps),
        evals=tuple(map(_clamped_eval, run_log.evals)),
        closing_eval=run_log.closing_eval and _clamped_eval(run_log.closing_eval),
        checkpoints=tuple(
            replace(save, blocking_ms=clamp_amount(save.blocking_ms)) for save in run_log.checkpoints
        ),
        segments=tuple(
            replace(
                segment,
                tokens_per_iteration=clamp_amount(segment.tokens_per_iteration),
                startup_s=clamp_amount(segment.startup_s),
            )
            for segment in run_log.segments
        ),
        setup=clamped_setup(run_log.setup),
        ledger=None if ledger is None else {name: clamp_amount(ledger[name]) or 0.0 for name in ledger},
        first_update_ms=clamp_amount(run_log.first_update_ms),
        nonfinite_update=nonfinite and (nonfinite[0], tuple(clamp_loss(norm) for norm in nonfinite[1])),
    )


def _clamped_eval(evaluation: LoggedEvaluation) -> LoggedEvaluation:
    clamped = replace(
        evaluation,
        val_loss=None if evaluation.val_loss is None else clamp_loss(evaluation.val_loss),
        train_loss=None if evaluation.train_loss is None else clamp_loss(evaluation.train_loss),
        ms=clamp_amount(evaluation.ms),
        stderr=clamp_amount(evaluation.stderr, largest=MAX_LOSS),
        tokens=clamp_amount(evaluation.tokens),
    )
    return evaluation if clamped == evaluation else clamped  # there may be very many


def clamped_steps(steps: Steps) -> Steps:
    columns: dict[str, Any] = {
        name: _clamped_column(column, _CLAMPS[name])
        for name, column in steps.columns().items()
        if name in _CLAMPS
    }
    return replace(steps, **columns)


def _clamped_column(column: Floats, clamp: Callable[[float], float | None]) -> Floats:
    size = np.abs(column)
    unusual = np.flatnonzero((size < MIN_AMOUNT) & (size > 0) | (size > MAX_COUNT) | (column < 0))
    if not len(unusual):
        return column
    column = column.copy()
    column[unusual] = np.array([clamp(float(value)) for value in column[unusual]], dtype=float)  # None: NaN
    return column


def clamped_setup(setup: LoggedSetup) -> LoggedSetup:
    amounts: dict[str, Any] = {name: clamp_amount(getattr(setup, name)) for name in _SETUP_AMOUNTS}
    # Of nothing at all: not known.
    amounts |= {name: clamp_amount(getattr(setup, name)) or None for name in _SETUP_DIVISORS}
    return replace(
        setup,
        settings={
            name: value
            for name, value in setup.settings.items()
            # A seed may be any 64-bit number: nothing is calculated from it.
            if not isinstance(value, int | float) or name == "seed" or abs(value) <= MAX_COUNT
        },
        **amounts,
        flops_per_token=clamp_amount(setup.flops_per_token, largest=MAX_FLOPS) or None,
        peak_flops=clamp_amount(setup.peak_flops, largest=MAX_FLOPS) or None,
    )
