"""Rows of a table that are no steps: how the run ended, what it planned, a save.

    read_event_row({"event": "checkpoint_saved", "step": 90}, 90, builder)      # a checkpoint at 90
    read_event_row({"type": "config", "max_steps": 900}, None, builder).planned_count       # 900

A trainer that writes rows of metrics writes its other news between them. The same words and sentences may be
in a column of the steps' rows.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.exit_status import UNIT_SECONDS, event_patterns, read_event
from glassgpt.runs.log_numbers import MAX_CELL_CHARS, MAX_COUNT, parse_cell
from glassgpt.runs.metric_columns import normalise
from glassgpt.runs.run_log import EventKind
from glassgpt.runs.table_time import Row

# Of rows without a step.
_EVENT_KEYS = frozenset(
    ("event", "status", "state", "type", "message", "msg", "error", "exception", "reason")
)
_EVENT_WORDS: dict[str, EventKind] = {
    **dict.fromkeys(("done", "end", "ended", "finish", "finished", "complete", "completed"), "finish"),
    **dict.fromkeys(("success", "succeeded"), "finish"),
    **dict.fromkeys(("interrupted", "stopped", "cancelled", "canceled", "preempted"), "interrupt"),
    **dict.fromkeys(("timeout", "timed_out"), "interrupt"),
    **dict.fromkeys(("failed", "failure", "crash", "crashed", "exception", "error"), "traceback"),
}
_SAVE_WORDS = {"checkpoint", "save", "saved", "checkpoint_saved", "saved_checkpoint", "save_checkpoint"}
# Of a row of totals, which is written when a run is over; and what it took, with the seconds of a unit.
_CLOSING = re.compile(r"(?:^|_)summary(?:_|$)|^(?:final|total_train\w*_time)(?:_|$)")
_TOTAL_TIME = re.compile(r"(?:^|_)(?:total_)?(?:train\w*_|wall_|run_|elapsed_)(?:run)?time_([hms])\w*$")
PLAN_KEYS = frozenset(
    ("num_steps", "n_steps", "max_steps", "total_steps", "train_steps", "num_train_steps", "max_train_steps",
     "max_iters", "max_iterations", "num_iterations", "total_iterations")
)  # fmt: skip
# Of a record of settings: its type, or the object that they are in; and what is planned there.
SETTINGS = frozenset(
    ("config", "cfg", "args", "arguments", "hparams", "hyperparameters", "hyper_parameters", "settings",
     "params", "hyperparams", "training_args", "train_config", "training_config")
)  # fmt: skip
_PLAN_SETTINGS = PLAN_KEYS | {"steps", "iters", "iterations"}
_MAX_TEXT_CHARS = 10_000


class EventRow(NamedTuple):
    """What a row says besides what it adds to the builder; None: nothing."""

    planned_count: int | None
    run_s: float | None  # what the whole run took


def read_event_row(row: Row, iteration: int | None, builder: RunBuilder) -> EventRow:
    """A row without a training loss. `iteration`: its own, or the latest."""
    planned_count, run_s, is_closing, is_settings = None, None, False, _is_settings(row)
    for name, value in row.items():
        holder, _, key = map(normalise, name.rpartition("/"))
        number = parse_cell(value)
        if key in _EVENT_KEYS and isinstance(value, str):
            read_event_text(name, value, iteration, builder)
        elif number is None or not math.isfinite(number):
            continue
        elif is_settings or holder in SETTINGS:
            if key in _PLAN_SETTINGS and 0 < number <= MAX_COUNT:
                planned_count = int(number)
        elif _CLOSING.search(normalise(name)):
            is_closing = True
            if match := _TOTAL_TIME.search(key):
                run_s = number * UNIT_SECONDS[match[1]]
        elif key in PLAN_KEYS and 0 < number <= MAX_COUNT:
            planned_count = int(number)
    if is_closing:
        builder.add_event("finish", "a row of totals")
    return EventRow(planned_count, run_s)


def read_event_text(name: str, value: str, iteration: int | None, builder: RunBuilder) -> None:
    """What happened: a word, as of a status, or the sentences that programs print."""
    words = normalise(value).removeprefix("training_").removeprefix("train_").removeprefix("run_")
    if words in _SAVE_WORDS:
        builder.add_checkpoint(iteration)
    elif kind := _EVENT_WORDS.get(words):
        builder.add_event(kind, f"{name}: {value[:MAX_CELL_CHARS]}")
    else:
        for text in value[:_MAX_TEXT_CHARS].splitlines():
            read_event(text, builder, event_patterns())


def is_event_key(name: str) -> bool:
    return normalise(name.rpartition("/")[2]) in _EVENT_KEYS


def _is_settings(row: Row) -> bool:
    """Whether the row says that it is a record of settings."""
    texts = (name for name, value in row.items() if isinstance(value, str) and len(value) <= MAX_CELL_CHARS)
    return any(is_event_key(name) and normalise(str(row[name])) in SETTINGS for name in texts)
