"""TensorBoard's event files as RunLogs: scalars by tag and step, and the wall time of each.

    runs = read_event_files([Path("logs/events.out.tfevents.1700000000.host")], "logs")

The format is TFRecord (length, CRC of the length, data, CRC of the data) around protobuf's `Event`. Reading
the few fields that matter takes a page of code and is faster than the `tensorboard` package, which would
bring TensorFlow's stubs, protobuf and grpc along; tests compare both. A record whose CRC is wrong is
skipped, the reader goes on at the next length whose CRC is right, and the result says how many there were.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from glassgpt.errors import UserError
from glassgpt.i18n import say
from glassgpt.runs.metric_columns import Role, is_of_eval, metric_of, normalise, role_of
from glassgpt.runs.metric_table import MetricTable
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trainers import TRAINERS
from glassgpt.sanitize import sanitize_line

_CHUNK_BYTES = 1 << 20
_MAX_RECORD_BYTES = 1 << 16  # larger ones are images, graphs or histograms
_MAX_FILES = 512  # open at once
_MAX_FOLDERS = 10_000
EVENT_FILES = "*.tfevents.*"
# Keras and others give each split a folder of its own, with the same tags in each.
_SPLIT_FOLDERS = {"train": "train", "training": "train"} | dict.fromkeys(
    ("val", "valid", "validation", "eval", "evaluation", "dev", "test"), "val"
)
_SESSION_START = 1
# Roles whose values are rows of their own; those of one kind are one row.
_ROW_KINDS: dict[Role | None, Role] = {
    "val_loss": "val_loss",
    "val_bpb": "val_loss",
    "eval_s": "val_loss",
    "run_s": "run_s",
}
# TensorProto: the number of the field that holds values of each dtype, and how to read one.
_TENSOR_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}
_TENSOR_VALUE_FIELDS = {5: "<f4", 6: "<f8"}

_TEXT_TRAINERS = {tag: trainer for trainer in TRAINERS for tag in trainer.event_texts}


class ScalarEvent(NamedTuple):
    wall_time: float
    step: int
    values: tuple[tuple[str, float], ...]  # tag and value
    is_restart: bool = False  # a process begins here, which repeats steps from this one on
    text: tuple[str, bytes] | None = None  # tag and text, where that is of a tag that a trainer reads


# --- records ---


_CRC_TABLE = np.arange(256, dtype=np.uint32)  # of CRC-32C (Castagnoli), a byte at a time
for _ in range(8):
    _CRC_TABLE = np.where(_CRC_TABLE & 1, (_CRC_TABLE >> 1) ^ np.uint32(0x82F63B78), _CRC_TABLE >> 1)


def masked_crcs(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """TFRecord's CRC of each row: of many records at once, since Python is slow for each byte."""
    crc = np.full(len(rows), 0xFFFFFFFF, dtype=np.uint32)
    for at in range(rows.shape[1]):
        crc = _CRC_TABLE[(crc ^ rows[:, at]) & 0xFF] ^ (crc >> np.uint32(8))
    crc = ~crc
    return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)


def is_event_file(start: bytes) -> bool:
    """Whether the file begins with the length of a record and its CRC. Its version, `brain.Event:2`, comes
    next as a rule; a few writers leave it out."""
    return len(start) >= 12 and bool(_are_headers(start, [0])[0])


def _are_headers(buffer: bytes, starts: Sequence[int] | NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether a length and its CRC stand there."""
    data, at = np.frombuffer(buffer, dtype=np.uint8), np.asarray(starts, dtype=np.int64)
    is_right = np.zeros(len(at), dtype=bool)
    if len(at):
        whole = data[at[:, None] + np.arange(12)]
        stored = np.ascontiguousarray(whole[:, 8:]).view("<u4")[:, 0]
        is_right[:] = masked_crcs(whole[:, :8]) == stored
    return is_right


class _RecordReader:
    """The records of one file, without the large ones. `damaged` counts those with a wrong CRC."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.damaged = 0
        self.is_truncated = False

    def __iter__(self) -> Iterator[bytes]:
        buffer, skip, is_lost = b"", 0, False
        while chunk := self._file.read(_CHUNK_BYTES):
            if skip >= len(chunk):
                skip -= len(chunk)
                continue
            buffer, skip = buffer + chunk[skip:], 0
            at = 0
            while True:
                headers, end = self._frame(buffer, at)
                is_right = _are_headers(buffer, headers)
                wrong = np.flatnonzero(~is_right)
                right = headers[: int(wrong[0])] if len(wrong) else headers
                is_lost = is_lost and not right
                yield from self._checked(buffer, right)
                if not len(wrong):
                    break
                self.damaged += not is_lost
                lost_at = headers[len(right)]
                candidates = np.arange(lost_at + 1, len(buffer) - 11)
                following = np.flatnonzero(_are_headers(buffer, candidates))
                is_lost = not len(following)
                at = end = max(lost_at + 1, len(buffer) - 11) if is_lost else lost_at + 1 + int(following[0])
                if is_lost:
                    break
            skip = max(0, end - len(buffer))
            buffer = buffer[end:]
        self.is_truncated = bool(buffer) or skip > 0

    @staticmethod
    def _frame(buffer: bytes, at: int) -> tuple[list[int], int]:
        """Where records begin, if every length is right, and where the next one does."""
        headers = []
        while len(buffer) - at >= 12:
            (length,) = struct.unpack_from("<Q", buffer, at)
            is_large = length > _MAX_RECORD_BYTES
            if at + 16 + length > len(buffer) and not is_large:
                break
            headers.append(at)
            at += 16 + length
        return headers, at

    def _checked(self, buffer: bytes, headers: Sequence[int]) -> Iterator[bytes]:
        """The records, in their order, without the large ones and those whose CRC is wrong."""
        data = np.frombuffer(buffer, dtype=np.uint8)
        starts = np.asarray(headers, dtype=np.int64)
        all_lengths = [struct.unpack_from("<Q", buffer, at)[0] for at in headers]
        is_small = np.array([length <= _MAX_RECORD_BYTES for length in all_lengths], dtype=bool)
        starts = starts[is_small] + 12
        lengths = np.array([length for length in all_lengths if length <= _MAX_RECORD_BYTES], dtype=np.int64)
        is_right = np.ones(len(starts), dtype=bool)
        for length in np.unique(lengths).tolist():
            rows = np.flatnonzero(lengths == length)
            for part in np.array_split(rows, 1 + len(rows) * length // (4 << 20)):
                whole = data[starts[part][:, None] + np.arange(length + 4)]
                stored = np.ascontiguousarray(whole[:, length:]).view("<u4")[:, 0]
                is_right[part] = masked_crcs(whole[:, :length]) == stored
        self.damaged += int(np.count_nonzero(~is_right))
        for start, length in zip(starts[is_right].tolist(), lengths[is_right].tolist(), strict=True):
            yield buffer[start : start + length]


# --- protobuf ---


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]  # IndexError: truncated
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a varint of more than 64 bits")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field. Raises ValueError or IndexError where `data` is no message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        value: int | bytes
        if kind == 0:
            value, at = _varint(data, at)
        else:
            if kind == 2:
                length, at = _varint(data, at)
            elif kind in (1, 5):
                length = 8 if kind == 1 else 4
            else:
                raise ValueError(f"wire type {kind}")
            value = data[at : at + length]
            at += length
            if len(value) != length:
                raise ValueError("a field is longer than its message")
        yield key >> 3, value


def parse_event(data: bytes) -> ScalarEvent | None:
    """None where it has no scalar. Raises ValueError or IndexError where it is no event."""
    wall_time, step, values, is_restart = math.nan, 0, [], False
    text: tuple[str, bytes] | None = None
    for field, value in _fields(data):
        if field == 1 and isinstance(value, bytes) and len(value) == 8:
            (wall_time,) = struct.unpack("<d", value)
        elif field == 2 and isinstance(value, int):
            step = value
        elif field == 5 and isinstance(value, bytes):  # Summary
            for number, one in _fields(value):
                if number == 1 and isinstance(one, bytes) and (scalar := _scalar(one)) is not None:
                    values.append(scalar)
                elif number == 1 and isinstance(one, bytes):
                    text = _text(one) or text
        elif field == 7 and isinstance(value, bytes):  # SessionLog
            is_restart = (1, _SESSION_START) in _fields(value)
    if step >= 1 << 63 or not (values or is_restart or text):  # negative
        return None
    return ScalarEvent(wall_time, step, tuple(values), is_restart, text)


def _scalar(data: bytes) -> tuple[str, float] | None:
    """Tag and value of a Summary.Value; None for images, histograms and texts."""
    tag, number = "", None
    for field, value in _fields(data):
        if field == 1 and isinstance(value, bytes):
            tag = value.decode("utf-8", "replace")
        elif field == 2 and isinstance(value, bytes) and len(value) == 4:
            (number,) = struct.unpack("<f", value)
        elif field == 8 and isinstance(value, bytes):
            number = _tensor_scalar(value)
    return None if number is None else (tag, number)


def _text(data: bytes) -> tuple[str, bytes] | None:
    """Tag and text of a Summary.Value whose tag a trainer reads."""
    tag, text = "", None
    for field, value in _fields(data):
        if field == 1 and isinstance(value, bytes):
            tag = value.decode("utf-8", "replace")
        elif field == 8 and isinstance(value, bytes) and tag in _TEXT_TRAINERS:
            text = next(
                (one for number, one in _fields(value) if number == 8 and isinstance(one, bytes)), None
            )
    return None if text is None else (tag, text)


def _tensor_scalar(data: bytes) -> float | None:
    """The value of a TensorProto of one element."""
    dtype, content, kind = 0, b"", ""
    for field, value in _fields(data):
        if field == 1 and isinstance(value, int):
            dtype = value
        elif field == 4 and isinstance(value, bytes):
            content, kind = value, _TENSOR_DTYPES.get(dtype, "")
        elif field in _TENSOR_VALUE_FIELDS and isinstance(value, bytes):
            content, kind = value, _TENSOR_VALUE_FIELDS[field]
    if not kind or len(content) != np.dtype(kind).itemsize:
        return None
    return float(np.frombuffer(content, dtype=kind)[0])


# --- runs ---


class _EventFile:
    """The scalars of one file, in its order; `prefix` goes before every tag."""

    def __init__(self, file: BinaryIO, prefix: str = "") -> None:
        self._records, self._prefix = _RecordReader(file), prefix
        self._unreadable = 0

    @property
    def damaged(self) -> int:
        return self._records.damaged + self._unreadable + self._records.is_truncated

    def __iter__(self) -> Iterator[ScalarEvent]:
        for record in self._records:
            try:
                event = parse_event(record)
            except (ValueError, IndexError):
                self._unreadable += 1
                continue
            if event is not None and self._prefix:
                values = tuple((self._prefix + tag, value) for tag, value in event.values)
                event = event._replace(values=values)
            if event is not None:
                yield event


def read_events(file: BinaryIO, name: str) -> tuple[RunLog, ...]:
    """One event file."""
    return _build_run([_EventFile(file)], name)


def read_logdir(folder: Path, name: str) -> tuple[RunLog, ...]:
    """Every folder with event files in it is a run; folders `train` and `validation` are one together."""
    by_run: dict[Path, list[tuple[Path, str]]] = {}
    for path in sorted(itertools.islice(folder.rglob(EVENT_FILES), _MAX_FOLDERS)):
        if path.is_file():
            split = _SPLIT_FOLDERS.get(path.parent.name.lower()) if path.parent != folder else None
            run, prefix = (path.parent.parent, f"{split}/") if split else (path.parent, "")
            by_run.setdefault(run, []).append((path, prefix))
    run_logs: list[RunLog] = []
    problems: list[str] = []
    for run, paths in by_run.items():
        run_name = None if run == folder else sanitize_line(run.relative_to(folder).as_posix())
        files = [path.open("rb") for path, _ in paths[:_MAX_FILES]]
        try:
            sources = [_EventFile(file, prefix) for file, (_, prefix) in zip(files, paths, strict=False)]
            run_logs += _build_run(sources, f"{name}/{run_name}" if run_name else name, run_name)
        except UserError as error:
            problems += error.problems
        finally:
            for file in files:
                file.close()
    if problems and not run_logs:
        raise UserError(problems[:10])
    return tuple(replace(run_log, runs_in_file=len(run_logs)) for run_log in run_logs)


def _is_of_epoch(tag: str) -> bool:
    is_measure = role_of(tag) in ("loss", "val_loss") or metric_of(tag) is not None
    return is_measure and "epoch" in normalise(tag).split("_")


def _row_kind(tag: str) -> Role | None:
    """Of an evaluation, of the end, or None."""
    metric, role = metric_of(tag), role_of(tag)
    is_eval = is_of_eval(tag) if metric is None else metric.is_eval
    return _ROW_KINDS.get(role, "val_loss" if role is None and is_eval else None)


def _build_run(files: Sequence[_EventFile], name: str, run_name: str | None = None) -> tuple[RunLog, ...]:
    """Events of one step that follow each other are one row."""
    table, tags, read = MetricTable(), set[str](), set[str]()
    row: dict[str, object] = {}
    kind_of_row: Role | None = None
    number = last_step = 0
    events: Iterable[ScalarEvent] = heapq.merge(*files, key=lambda event: event.wall_time)
    for number, event in enumerate(events, 1):
        tags.update(tag for tag, _ in event.values)
        if event.text is not None:
            tag, text = event.text
            with contextlib.suppress(ValueError, RecursionError):
                if isinstance(document := json.loads(text), dict):
                    _TEXT_TRAINERS[tag].event_texts[tag](document, table.builder)
                    table.expect_trainer(_TEXT_TRAINERS[tag])
        if event.is_restart and event.step:
            if row:
                table.feed(row, number - 1)
            row = {}
            table.expect_restart()
        values = {
            tag: value for tag, value in event.values if role_of(tag) or _row_kind(tag) or metric_of(tag)
        }
        if event.step < last_step and all(map(_is_of_epoch, values)):
            event = event._replace(step=last_step)  # its own step counts epochs
        if not values or (event.step < last_step and not any(map(role_of, values))):
            continue  # a metric that counts something else
        read.update(values)
        last_step = event.step
        # An evaluation is a row of its own: it ends later than the step that it follows. So is the end.
        kind: Role | None = next(filter(None, map(_row_kind, values)), None)
        is_same_step = bool(row) and row["step"] == event.step
        if is_same_step and kind_of_row == "run_s" and kind is None:
            kind = "run_s"  # the Trainer's means of the whole run
        if row and (not is_same_step or row.keys() & values.keys() or kind != kind_of_row):
            table.feed(row, number - 1)
            row = {}
        row, kind_of_row = row or {"step": event.step, "wall_time": event.wall_time}, kind
        row |= values
    if row:
        table.feed(row, number)
    table.leave_out(sorted(tags - read))
    if damaged := sum(file.damaged for file in files):
        table.notes.append(say("table.damaged_records", count=damaged))
    run_logs = table.build(name, run_name, has_lines=False)
    if not run_logs:
        shown = ", ".join(sorted(tags)[:12]) or "none"
        raise UserError(
            f"{name} has no loss among its scalars: glass looks for tags like train/loss, loss, val_loss or "
            f"eval/loss; its tags are {shown}"
        )
    return run_logs
