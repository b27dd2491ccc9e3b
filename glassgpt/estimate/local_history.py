"""Finished runs on this machine: one JSON line each, in one file of the user's cache folder. No torch.

    append_row(row)                                     # when a run has finished; --history=off: never
    speed_from_history(read_rows(), query, …)           # the speed of such work here, or None

A row says what was computed and how fast, never what was trained on or where: no names, no paths. The file is
append-only. Lines that cannot be read are skipped, and it is cut to its newest half when it is too large.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from glassgpt.config import TrainConfig
from glassgpt.estimate.cards import Card
from glassgpt.estimate.measured_speed import (
    KEYED_FIELDS,
    KEYED_SETTINGS,
    MeasuredSpeed,
    band_from_repeats,
    work_key,
)
from glassgpt.estimate.speed import SIMILAR_FLOPS_FACTOR, SIMILAR_TOKENS_FACTOR, estimate_throughput
from glassgpt.estimate.training_workload import TrainingWorkload
from glassgpt.files import atomic_write, read_small_file, regular_file_opener_nofollow, try_lock
from glassgpt.format import pluralize

FILE_NAME = "history.jsonl"
_FORMAT = 1
_MAX_BYTES = 2**20  # some 1,500 rows
_LOCK_WAIT_S = 0.5

# --- the file ---


def history_path() -> Path:
    """GLASSGPT_CACHE_DIR, else the user's cache folder."""
    if own := os.environ.get("GLASSGPT_CACHE_DIR"):
        return Path(own) / FILE_NAME
    if cache := os.environ.get("XDG_CACHE_HOME"):
        folder = Path(cache)
    elif sys.platform == "darwin":
        folder = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        folder = Path.home() / ".cache"
    return folder / "glassgpt" / FILE_NAME


@dataclass(frozen=True, kw_only=True)
class HistoryRow:
    """One finished run. Speed is of one rank; memory as `forecast.memory_bytes` in the journal."""

    machine: str  # a card's name, or a CPU's with its cores
    work: Mapping[str, Any]  # work_key
    flops_per_token: int
    ranks: int
    threads: int | None  # of a CPU
    tokens_per_s: float
    seconds: float  # of the updates that were timed
    updates: int
    peak_flops_per_s: float | None  # of the device in this dtype, from the table or measured
    peak_bytes: int | None
    start_s: float
    busy_cores: float  # used by other programs during the run
    torch: str
    glassgpt: str
    day: str  # 2026-11-18


def append_row(row: HistoryRow) -> bool:
    """Whether it was written. A history that cannot be written never hurts a run."""
    # The empty line: a row that was torn by a crash must not spoil this one.
    line = b"\n" + json.dumps({"format": _FORMAT, **dataclasses.asdict(row)}).encode() + b"\n"
    path = history_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            if path.exists() and path.stat().st_size + len(line) > _MAX_BYTES:
                content = path.read_bytes()[-_MAX_BYTES // 2 :]
                atomic_write(path, content[content.find(b"\n") + 1 :])
            with open(path, "ab", opener=regular_file_opener_nofollow) as file:
                file.write(line)
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        return False
    return True


@contextlib.contextmanager
def _locked(path: Path) -> Any:
    """Runs that end together wait for each other. After half a second a row is not worth waiting for."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + _LOCK_WAIT_S
        while not try_lock(descriptor):
            if time.monotonic() > deadline:
                raise TimeoutError(str(path))
            time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


def read_rows() -> tuple[HistoryRow, ...]:
    """In the order they were written; none if there is no history, or it cannot be read."""
    try:
        content = read_small_file(history_path(), 4 * _MAX_BYTES)
    except (OSError, RuntimeError):
        return ()
    rows = []
    for line in content.splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            rows.append(_row_from_line(line))
    return tuple(rows)


_FIELDS = tuple(field.name for field in dataclasses.fields(HistoryRow))
_RANGES = {  # what a machine of this world may report; a row outside is damaged
    "flops_per_token": (1, 1e15), "ranks": (1, 1e6), "tokens_per_s": (1e-3, 1e12), "seconds": (0, 1e9),
    "updates": (1, 1e12), "start_s": (0, 1e6), "busy_cores": (0, 1e5),
}  # fmt: skip


def _row_from_line(line: bytes) -> HistoryRow:
    document = json.loads(line)
    if document["format"] != _FORMAT:
        raise ValueError("another format")
    row = HistoryRow(**{name: document[name] for name in _FIELDS})
    for name, (low, high) in _RANGES.items():
        if not low <= float(getattr(row, name)) <= high:
            raise ValueError(name)
    for name in ("peak_flops_per_s", "peak_bytes"):
        value = getattr(row, name)
        if value is not None and not 0 < float(value) < 1e19:
            raise ValueError(name)
    if not (isinstance(row.machine, str) and isinstance(row.work, dict)):
        raise TypeError
    _workload_of(row)  # raises for a shape that is none
    return row


def _workload_of(row: HistoryRow) -> TrainingWorkload:
    """Raises an error if the row does not describe a model."""
    work = dict(row.work)
    for name in ("n_layer", "n_head", "n_embd", "block_size", "vocab_size", "batch_size", "micro_steps"):
        if not (isinstance(work[name], int) and 0 < work[name] < 2**31):
            raise ValueError(name)
    settings: dict[str, Any] = {name: work[name] for name in KEYED_SETTINGS}
    made = TrainingWorkload(
        config=TrainConfig(**settings, dropout=0.1 if work["dropout"] else 0.0, shard=work["sharded"]),
        kernels=work["kernels"] == "triton",
        compiled=work["kernels"] == "compiled",
        ranks=row.ranks,
        **{name: work[name] for name in KEYED_FIELDS},
    )
    if work_key(made) != work:
        raise ValueError("other fields than today")
    return made


# --- what it says about another run ---

MIN_HISTORY_SECONDS = 5.0  # of updates: less is mostly warm-up
_MAX_BUSY_SHARE = 0.25  # of the threads; a run on a busier machine says little about an idle one
_NEWEST = 10  # rows of equal work that count
_ERROR_PER_DISTANCE = 0.25  # of the speed of a model at the edge of what is similar, where one is known
_MUST_BE_EQUAL = (
    "device_type",
    "dtype",
    "kernels",
    "graph",
    "fp8",
    "sharded",
    "activation_checkpointing",
    "arch",
)


def speed_from_history(
    rows: Sequence[HistoryRow],
    machine: str,
    work: TrainingWorkload,
    flops_per_token: int,
    card: Card | None,
    threads: int | None = None,
) -> MeasuredSpeed | None:
    """From runs of the very same work, if there are any; else from similar ones, by how much faster or slower
    they were than estimated. None: this machine has not finished such a run."""
    key = work_key(work)
    here = [
        row
        for row in rows
        if row.machine == machine
        and row.seconds >= MIN_HISTORY_SECONDS
        and row.busy_cores <= _MAX_BUSY_SHARE * (row.threads or 1)
        and (threads is None or row.threads == threads)
        and all(row.work[name] == key[name] for name in _MUST_BE_EQUAL)
    ]
    if equal := [row for row in here if row.work == key and row.ranks == work.ranks][-_NEWEST:]:
        return MeasuredSpeed(
            band_from_repeats([row.tokens_per_s for row in equal], work.device_type),
            f"{pluralize(len(equal), 'finished run')} of this very work on this machine",
            "history",
            start_s=median(row.start_s for row in equal),
            peak_bytes=max((row.peak_bytes or 0 for row in equal), default=0) or None,
        )
    similar = [
        (distance, row)
        for row in here
        if row.ranks == 1
        and row.peak_flops_per_s
        and (distance := _distance(row, work, flops_per_token)) <= 1
    ]
    if not similar:
        return None
    # One peak for all: a measured one drifts with the load, and cancels out here.
    peak = median(row.peak_flops_per_s or 0.0 for _, row in similar)

    def estimated(some: TrainingWorkload, some_flops: int) -> float:
        return estimate_throughput(some, some_flops, peak, card).mid

    logs = [
        math.log(row.tokens_per_s / estimated(_workload_of(row), row.flops_per_token)) for _, row in similar
    ]
    weights = [1 / (0.05 + distance**2) for distance, _ in similar]
    ratio = math.exp(fmean(logs, weights))
    mid = estimated(work, flops_per_token) * ratio
    nearest = min(distance for distance, _ in similar)
    spread = math.hypot((max(logs) - min(logs)) / 2, _ERROR_PER_DISTANCE * nearest)
    rates = [mid * math.exp(-spread), mid, mid * math.exp(spread)]
    return MeasuredSpeed(
        band_from_repeats(rates, work.device_type),
        f"{pluralize(len(similar), 'finished run')} on this machine with similar models",
        "history",
        start_s=fmean(row.start_s for _, row in similar),
    )


def _distance(row: HistoryRow, work: TrainingWorkload, flops_per_token: int) -> float:
    """At most 1: similar. The optimizer matters most where updates have few tokens."""
    made = _workload_of(row)
    return math.hypot(
        math.log(flops_per_token / row.flops_per_token) / math.log(SIMILAR_FLOPS_FACTOR),
        math.log(work.micro_batch_tokens / made.micro_batch_tokens) / math.log(SIMILAR_TOKENS_FACTOR),
        0.5 * (work.config.optimizer != made.config.optimizer),
    )
