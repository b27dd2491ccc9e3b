"""The journal: what happened in a run, one JSON object per line, appended as it happens.

    runs/quickstart/journal.jsonl

Every record has `kind`, `time` (seconds since the epoch), `iter` (updates done so far) and `process` (0, 1, …
per start of the run). It is readable while the run lives. A line torn by a crash is skipped, and the next
start begins on a fresh line, so an append never damages what was there. NaN and infinities are written as the
strings "nan", "inf", "-inf", and come back as numbers. docs/journal.md describes every kind.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]

NAME = "journal.jsonl"
LONGEST_LINE = 1 << 24  # bytes; a file of one endless line must not fill the memory

# Fields that may be NaN or infinite.
# fmt: off
NUMBERS = frozenset((
    "loss", "loss_mean", "grad_norm", "stderr", "perplexity", "bits_per_byte", "best_val_loss",
    "recent_grad_norms", "loss_scale", "val_loss", "losses", "norms",
))
# fmt: on

_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Journal:
    """Appends records to a file; each is handed to the operating system before `write` returns."""

    def __init__(self, path: Path) -> None:
        torn = path.exists() and not _ends_with_newline(path)
        self._file = path.open("ab", buffering=0)
        if torn:
            self._file.write(b"\n")

    def write(self, record: Record) -> None:
        line = encode(record)
        while line:  # one call, so that readers see whole lines; a disk that fills up takes only a part
            line = line[self._file.write(line) :]

    def close(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()


def encode(record: Record) -> bytes:
    return dumps(record).encode() + b"\n"


def dumps(value: Any) -> str:
    """Strict JSON, with NaN and infinities as words."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:  # there is one, which is rare: only then pay for looking at every value
        return json.dumps(plain(value), separators=(",", ":"), allow_nan=False)


def loads(text: str | bytes) -> Any:
    """What `dumps` wrote. An integer that no float can hold is infinite: arithmetic with it would raise."""
    return json.loads(text, object_hook=_revive, parse_int=_integer)


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) < 300 else float(digits)


def plain(value: Any) -> Any:
    """The value with NaN and infinities as words."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _special(value: Any) -> Any:
    if isinstance(value, list):
        return [_special(item) for item in value]
    return _SPECIAL.get(value, value) if isinstance(value, str) else value


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def read(path: Path) -> Iterator[Record]:
    """Every whole record. Torn lines (a crash, or a line being written just now) are passed over."""
    with path.open("rb") as file:
        yield from read_stream(iter(lambda: file.readline(LONGEST_LINE), b""))


def read_stream(lines: Iterable[bytes]) -> Iterator[Record]:
    """Every whole record in these lines."""
    for line in lines:
        try:
            record = loads(line)
        except (ValueError, RecursionError):  # also bad UTF-8
            continue
        if (
            isinstance(record, dict)
            and isinstance(record.get("kind"), str)
            and isinstance(record.get("iter"), int)
            and isinstance(record.get("time"), int | float)
        ):
            yield record


def _revive(record: Record) -> Record:
    """Only where a number belongs: a sample may well consist of the letters "nan"."""
    return {name: _special(value) if name in NUMBERS else value for name, value in record.items()}


def current(records: Iterable[Record]) -> list[Record]:
    """The records that still count: a resume takes back what lies past the point it went on from."""
    kept: list[Record] = []
    for record in records:
        if record["kind"] == "resume":
            said = record.get("from_iter")
            start = said if isinstance(said, int) else record["iter"]
            kept = [old for old in kept if old["iter"] <= start or old["kind"] in ("run", "resume", "end")]
        kept.append(record)
    return kept
