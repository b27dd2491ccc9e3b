"""What was seen in the checkpoints of a run: `looks.jsonl` in its folder, a line for each.

    append_look(run_dir, look)       # by `glass look`, and by the page's process
    read_looks(run_dir)              # by everything that explains the run

A look takes seconds and a checkpoint may be gone later, so it is kept. The file is derived: deleted, the
checkpoints that are still there can be looked at again.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from glassgpt.files import read_small_file
from glassgpt.sanitize import sanitize_record

LOOKS_FILE = "looks.jsonl"
_MAX_LOOKS = 1000  # the latest lines; a run has fewer checkpoints

Rows = tuple[tuple[float, ...], ...]  # by layer, then by head


@dataclass(frozen=True)
class CheckpointLook:
    """Shares and scores are between 0 and 1; `val_…` are of as much validation text. None: not measured."""

    iteration: int
    start: str  # of the process that saved it: a resume may save another checkpoint at the same iteration
    passage_start: int | None  # in the validation split
    passage_losses: tuple[float, ...]
    guesses: tuple[tuple[tuple[str, float], ...], ...]  # of each token: the likeliest, with p
    previous_token: Rows
    previous_token_uniform: float
    induction: Rows | None
    induction_uniform: float | None
    first_copy_loss: float | None
    second_copy_loss: float | None
    sample_tokens: int | None = None
    copied_tokens: int | None = None
    copied_share: float | None = None  # of the sample that the longest copied string stands in
    copied_text: str | None = None
    val_copied_tokens: int | None = None
    known_words: float | None = None
    val_known_words: float | None = None
    brackets_opened: int | None = None
    brackets_closed: float | None = None  # share of those opened
    val_brackets_closed: float | None = None

    @property
    def best_induction(self) -> tuple[int, int, float] | None:
        """Layer and head, from 0, and the score."""
        if self.induction is None:
            return None
        scores = [
            (layer, head, score) for layer, row in enumerate(self.induction) for head, score in enumerate(row)
        ]
        return max(scores, key=lambda one: one[2], default=None)


def append_look(run_dir: Path, look: CheckpointLook) -> None:
    """One line, in one write: several processes may do so."""
    line = json.dumps(asdict(look), ensure_ascii=False, allow_nan=False).encode() + b"\n"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    handle = os.open(run_dir / LOOKS_FILE, flags, 0o644)
    try:
        os.write(handle, line)
    finally:
        os.close(handle)


def read_looks(run_dir: Path) -> tuple[CheckpointLook, ...]:
    """By iteration; the latest of each checkpoint. Lines that are damaged are left out."""
    try:
        lines = read_small_file(run_dir / LOOKS_FILE).splitlines()[-_MAX_LOOKS:]
    except OSError:
        return ()
    looks: dict[tuple[int, str], CheckpointLook] = {}
    for line in lines:
        try:
            look = _parse(sanitize_record(json.loads(line)))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            continue
        looks[look.iteration, look.start] = look
    return tuple(sorted(looks.values(), key=lambda one: one.iteration))


def _parse(row: Mapping[str, Any]) -> CheckpointLook:
    """Raises where a value is of another type than the field."""
    values: dict[str, Any] = {}
    for field in fields(CheckpointLook):
        kind, value = str(field.type), row[field.name]
        is_missing = value is None and kind.endswith(" | None")
        values[field.name] = None if is_missing else _PARSERS[kind.removesuffix(" | None")](value)
    return CheckpointLook(**values)


def _rows(value: Any) -> Rows:
    return tuple(tuple(map(_number, row)) for row in value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("not a number")
    return float(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise ValueError("not a count")
    return value


_PARSERS: Mapping[str, Callable[[Any], Any]] = {  # by the type of the field, as it is written
    "int": _count,
    "float": _number,
    "str": str,
    "Rows": _rows,
    "tuple[float, ...]": lambda losses: tuple(map(_number, losses)),
    "tuple[tuple[tuple[str, float], ...], ...]": lambda tokens: tuple(
        tuple((str(guess), _number(p)) for guess, p in guesses) for guesses in tokens
    ),
}
