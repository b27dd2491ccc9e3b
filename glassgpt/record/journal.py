"""The journal: what happened in a run, one JSON object per line, appended as it happens.

    runs/quickstart/journal.jsonl

    for record in journal.read(Path("runs/quickstart/journal.jsonl")):
        print(record["kind"], record["iter"])

Every record has `kind`, `time` (seconds since the epoch), `iter` (updates done so far), `process` (0, 1, …
per start of the run) and `start` (a random id of that start). The file can be read while the run trains. A
line torn by a crash is skipped, and the next start begins on a new line, so an append never damages earlier
records. NaN and infinities are written as the strings "nan", "inf", "-inf", and read back as numbers.
docs/journal.md describes every kind.

Before each append the writer reads its own last line back, by the file's name. So it notices a second writer
where locks do not work, and a file that was moved, deleted or rewritten. Inodes are not compared: on some
network drives they change.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import itertools
import json
import math
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from glassgpt.errors import UserError
from glassgpt.files import abbreviate_home, regular_file_opener_nofollow

Record = dict[str, Any]

FILE_NAME = "journal.jsonl"
JOURNAL_VERSION = 1  # of the meaning of fields; new fields do not raise it
MAX_VALUE, MAX_INTEGER = 1e100, 10**15  # of numbers that are believed; see runs/log_numbers.py
MAX_LINE_BYTES = 1 << 24  # a file that is one endless line must not fill the memory
_READ_BLOCK_BYTES = 1 << 20  # read at once from the end
_SHORT_BYTES = 1 << 18  # of a journal that is read as a whole
_NEAR_BYTES, _MAX_LINES_BETWEEN_STEPS = 1 << 14, 16  # read in search of a step
_MAX_OTHER_WRITER_BYTES = 1 << 20  # read of what another writer appended

# Fields that may be NaN or infinite.
# fmt: off
NONFINITE_FIELDS = frozenset((
    "loss", "loss_mean", "grad_norm", "stderr", "perplexity", "bits_per_byte", "best_val_loss",
    "recent_grad_norms", "loss_scale", "val_loss", "losses", "norms",
))
# fmt: on

# Opening a journal fails with these if it was removed, or replaced by a folder, a pipe or a link.
_REPLACED_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENOTSUP, errno.ELOOP)

_STEP_LINE = b'{"kind":"step",'  # as `encode_line` begins it

_NONFINITE_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class RunSuperseded(UserError):
    """A later start of the run writes to the journal. This process must not touch its files any more."""


class Journal:
    """Appends records to a file. Each is handed to the operating system before `write` returns. A caller that
    may not be the only writer calls `check` first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost_reason = ""  # why the file is no longer this run's; records then wait for `move`
        self.was_rewritten = False  # by another program; the caller resets it when it has reported it
        self._first = self._last = b""  # lines that this process wrote
        self._end = 0  # offset in the file where the last one ends
        self._pending_lines = b""
        self._open()

    def _open(self) -> None:
        """A line torn by a crash is ended, so that the next record begins on a new line."""
        is_torn = False
        if self.path.exists():
            with open(self.path, "rb", opener=regular_file_opener_nofollow) as file:
                if file.seek(0, os.SEEK_END):
                    file.seek(-1, os.SEEK_END)
                    is_torn = file.read(1) != b"\n"
        self._file = open(self.path, "a+b", buffering=0, opener=regular_file_opener_nofollow)  # noqa: SIM115 - until `close`
        if is_torn:
            self._file.write(b"\n")

    def write(self, record: Record) -> None:
        line = encode_line(record)
        self._first = self._first or line
        if self.lost_reason:
            self._pending_lines += line
        else:
            self._append(line)

    def _append(self, lines: bytes) -> None:
        rest = lines
        while rest:  # usually one call, so that readers see whole lines; a full disk takes only a part
            rest = rest[self._file.write(rest) :]
        self._last, self._end = lines[lines.rfind(b"\n", 0, -1) + 1 :], self._file.tell()

    def check(self) -> None:
        """Reads the last line back. Sets `lost_reason` if it is not there; raises RunSuperseded if a later
        start of the run appended to the file."""
        if self.lost_reason or not self._last:
            return
        appended = b""  # by another writer
        try:
            with open(self.path, "rb", buffering=0, opener=regular_file_opener_nofollow) as file:
                file.seek(self._end - len(self._last))
                is_there = file.read(len(self._last)) == self._last
                if is_there and os.fstat(file.fileno()).st_size > self._end:
                    appended = file.read(_MAX_OTHER_WRITER_BYTES)
            # Of two writers the one that started later stays. Lines that are not records do not matter.
            for record in parse_records(appended.splitlines()):
                if _writer_key(record) > _writer_key(loads(self._last)):
                    raise RunSuperseded(
                        f"another process is training in {self.path.parent}: its start is "
                        f"{record.get('start')}, its first record is of {time.ctime(record['time'])}; this "
                        "process ends without saving"
                    )
            if appended and not appended.endswith(b"\n"):
                self._file.write(b"\n")
            if not is_there:
                self._recover_after_rewrite()
        except OSError as error:
            if error.errno not in _REPLACED_ERRNOS:
                raise
            self.lost_reason = f"{self.path} is gone, or is no longer a regular file"

    def _recover_after_rewrite(self) -> None:
        """If the last record is one of this process, somebody edited the file: the records it lacks are
        appended again, as far as the old file has them. Else it is not this run's file."""
        last = b""
        with open(self.path, "rb", opener=regular_file_opener_nofollow) as file:
            for line in iter(lambda: file.readline(MAX_LINE_BYTES), b""):
                last = line.strip() if line.startswith(b"{") else last
        if [_writer_key(record) for record in parse_records([last])] != [_writer_key(loads(self._last))]:
            self.lost_reason = f"{self.path} is not what this run wrote"
            return
        _, last_line, missing = self._content().rpartition(last + b"\n")
        self._file.close()
        self._open()
        self._last, self._end = last + b"\n", self._file.seek(0, os.SEEK_END)
        self.was_rewritten = True
        if last_line and missing:
            self._append(missing)

    def _content(self) -> bytes:
        """The content of the open file, which may have another name by now, or none."""
        try:
            self._file.seek(0)
            return self._file.readall() or b""
        except OSError:  # on a network drive a deleted file cannot be read
            return b""

    def move(self, path: Path) -> None:
        """Continues in a new file, with everything that can still be read of the old one."""
        content = self._content()
        if not content.endswith(self._last):
            content = self._first + self._last
        self._file.close()
        self.path, self.lost_reason = path, ""
        self._open()
        self._append(content + self._pending_lines)
        self._pending_lines = b""

    def close(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()


def abbreviate_home_paths(value: Any) -> Any:
    """The value with ~ for the user's home folder in every string. Readers expand it."""
    if isinstance(value, dict):
        return {key: abbreviate_home_paths(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [abbreviate_home_paths(item) for item in value]
    return abbreviate_home(value) if isinstance(value, str) else value


def _writer_key(record: Record) -> tuple[int, str]:
    """Which start of the run wrote it. Later ones are greater. Old versions wrote no `start`."""
    process = record.get("process")
    return process if isinstance(process, int) else -1, str(record.get("start", ""))


def encode_line(record: Record) -> bytes:
    return dumps(record).encode() + b"\n"


def dumps(value: Any) -> str:
    """Strict JSON, with NaN and infinities as words."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:  # a NaN or an infinity, which is rare: only then walk over all values
        return json.dumps(nonfinite_to_words(value), separators=(",", ":"), allow_nan=False)


def loads(text: str | bytes) -> Any:
    """Reads what `dumps` wrote."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    # Nearly no line needs the slow decoder, which calls Python for each object and integer.
    is_plain = b'nan"' not in data and b'inf"' not in data and _HUGE_INTEGER not in data.translate(_AS_ZEROS)
    decoder = _PLAIN_DECODER if is_plain else _DECODER
    # Without a byte order mark; Python's own codec for that takes as long as the rest.
    return decoder.decode(text if isinstance(text, str) else text.removeprefix(codecs.BOM_UTF8).decode())


def nonfinite_to_words(value: Any) -> Any:
    """The value with NaN and infinities as words."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {str(key): nonfinite_to_words(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [nonfinite_to_words(item) for item in value]
    return value


def _words_to_nonfinite(value: Any) -> Any:
    if isinstance(value, list):
        return [_words_to_nonfinite(item) for item in value]
    return _NONFINITE_WORDS.get(value, value) if isinstance(value, str) else value


@contextlib.contextmanager
def _open_to_read(path: Path) -> Iterator[BinaryIO]:
    """Adds the file's name to I/O errors: those of `read` and `seek` lack it."""
    try:
        file = open(path, "rb", opener=regular_file_opener_nofollow)  # noqa: SIM115 - closed below
        try:
            yield file
        finally:
            with contextlib.suppress(OSError):  # nothing was written
                file.close()
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTSUP):
            raise UserError(f"{path} is not read: {error.strerror}") from None
        error.filename = error.filename or str(path)
        raise


def read(path: Path, but_steps: bool = False) -> Iterator[Record]:
    """Every whole record. Torn lines (after a crash, or while a line is being written) are skipped.

    `but_steps`: skip `step` records, which are nearly all, without decoding them.
    """
    return read_part(path, 0, but_steps=but_steps)


def whole_lines_end(path: Path) -> int:
    """Offset after the last line end: what comes later may still be being written."""
    with _open_to_read(path) as file:
        for position, block in _read_blocks_backwards(file):
            line_end = block.rfind(b"\n")
            if line_end >= 0:
                return position + line_end + 1
    return 0


def _read_blocks_backwards(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Offset and content of each block, the last one first."""
    position = file.seek(0, os.SEEK_END)
    while position:
        size = min(_READ_BLOCK_BYTES, position)
        position = file.seek(position - size)
        yield position, file.read(size)


def read_part(path: Path, begin: int, end: int | None = None, but_steps: bool = False) -> Iterator[Record]:
    """Every whole record between two offsets, each at the start of a line; `end` None: to the end."""
    with _open_to_read(path) as file:
        position = file.seek(begin)

        def lines() -> Iterator[bytes]:
            nonlocal position
            while (end is None or position < end) and (line := file.readline(MAX_LINE_BYTES)):
                position += len(line)
                if not (but_steps and line.startswith(_STEP_LINE)):
                    yield line

        yield from parse_records(lines())


def sample_steps(path: Path, count: int) -> list[Record]:
    """About `count` `step` records, evenly spaced: as fast for a long journal as for a short one."""
    with _open_to_read(path) as file:
        size = file.seek(0, os.SEEK_END)
        if size <= _SHORT_BYTES:
            file.seek(0)
            lines = [line for line in file.readlines() if line.startswith(_STEP_LINE)]
            from_the_last = lines[:: -max(1, math.ceil(len(lines) / count))]
            return list(parse_records(reversed(from_the_last)))
        sample = []
        for number in range(1, count + 1):
            file.seek(size * number // count - (_NEAR_BYTES if number == count else 0))
            file.readline(MAX_LINE_BYTES)  # the rest of a line
            near = (file.readline(MAX_LINE_BYTES) for _ in range(_MAX_LINES_BETWEEN_STEPS))
            sample.append(next((line for line in near if line.startswith(_STEP_LINE)), b""))
    return list(parse_records(sample))


def read_backwards(path: Path) -> Iterator[Record]:
    """Every whole record, the last one first. Holds one block and one line of the file in memory."""
    with _open_to_read(path) as file:
        rest = b""  # of the line that begins before the block
        for _, block in _read_blocks_backwards(file):
            rest, *lines = (block + rest).split(b"\n")
            yield from parse_records(reversed(lines))
            if len(rest) > MAX_LINE_BYTES:
                rest = b"\0"  # which no record contains: the rest of this line will not parse either
        yield from parse_records([rest])


def parse_records(lines: Iterable[bytes]) -> Iterator[Record]:
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


# --- values of the right type: a journal is a file like any other, and may have been edited ---


def float_or_none(record: object, name: str) -> float | None:
    """None where it is missing, not a number, or not a number that can be squared."""
    value = record.get(name) if isinstance(record, dict) else None
    if value is None or type(value) is float:  # nearly always
        return value if value is not None and abs(value) <= MAX_VALUE else None
    if type(value) is int and abs(value) <= MAX_INTEGER:  # a count
        return float(value)
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= MAX_VALUE:
        return None
    return float(value)


def loss_or_none(record: Record, name: str = "loss") -> float | None:
    """Unlike `float_or_none`, may be NaN or infinite."""
    value = record.get(name)
    return value if isinstance(value, float) else float_or_none(record, name)


def int_or_none(record: object, name: str) -> int | None:
    value = float_or_none(record, name)
    return None if value is None or abs(value) > MAX_INTEGER else int(value)


def dict_or_empty(record: Record, name: str) -> Record:
    value = record.get(name)
    return value if isinstance(value, dict) else {}


def is_valid_profile(record: Record) -> bool:
    """Whether a `profile` record has every field that is shown of it, with the right type."""

    def has(values: Record, numbers: tuple[str, ...], texts: tuple[str, ...]) -> bool:
        return all(float_or_none(values, name) is not None for name in numbers) and all(
            isinstance(values.get(name), str) for name in texts
        )

    top = record.get("top")
    return (
        has(record, ("from_iter", "updates", "wall_ms", "busy"), ("trace", "of"))
        and isinstance(top, list)
        and all(isinstance(row, dict) and has(row, ("ms", "share", "calls"), ("name",)) for row in top)
    )


_HUGE_DIGITS = 300


def _parse_integer(digits: str) -> int | float:
    """An integer that no float can hold becomes infinite: arithmetic with it would raise."""
    return int(digits) if len(digits) < _HUGE_DIGITS else float(digits)


def _restore_nonfinite(record: Record) -> Record:
    """Only in fields that are numbers: a sample may consist of the letters "nan"."""
    for name in NONFINITE_FIELDS.intersection(record):
        record[name] = _words_to_nonfinite(record[name])
    return record


# Built once: building one takes as long as decoding a line.
_DECODER = json.JSONDecoder(object_hook=_restore_nonfinite, parse_int=_parse_integer)
_PLAIN_DECODER = json.JSONDecoder()
_AS_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_HUGE_INTEGER = b"0" * (_HUGE_DIGITS - 1)  # the sign is one of the 300 characters


# --- resumed runs ---


def effective_records(records: Iterable[Record]) -> list[Record]:
    """The records that are still valid. A resume invalidates the records past the iteration that it resumes
    from; and what a process wrote after a later start of the run is not valid either."""
    all_records = list(records)
    return list(stream_effective_records(all_records, all_records))


def resume_iteration(resume: Record) -> int:
    """The iteration it resumes from. Records of later iterations, written before it, are superseded."""
    from_iter = resume.get("from_iter")
    return from_iter if isinstance(from_iter, int) else int(resume["iter"])


def read_effective(path: Path) -> Iterator[Record]:
    """The effective records of a file. Reads it twice and holds one record in memory."""
    yield from stream_effective_records(read_starts(path), read(path))


def read_starts(path: Path) -> list[Record]:
    """The `run` and `resume` records. Any other line takes no longer than finding its end."""
    return [record for record in read(path, but_steps=True) if record["kind"] in ("run", "resume")]


def stream_effective_records(resumes: Iterable[Record], records: Iterable[Record]) -> Iterator[Record]:
    """`resumes`: the `resume` records among these; others do not matter."""
    resumed_from = [resume_iteration(record) for record in resumes if record["kind"] == "resume"]
    # The last valid iteration: after the last resume, before it, before the one before it, ...
    limits = list(itertools.accumulate(reversed(resumed_from), min, initial=math.inf))
    for record in _without_superseded_writers(records):
        if record["kind"] == "resume" and len(limits) > 1:  # else it was written after `resumes` were read
            limits.pop()
        if record["iter"] <= limits[-1] or record["kind"] in ("run", "resume", "end"):
            yield record


def stream_effective_records_backwards(
    starts: Iterable[Record], records: Iterable[Record]
) -> Iterator[Record]:
    """As `stream_effective_records`, of `records` from the last one to the first. `starts`: `read_starts`."""
    starts = list(starts)
    limit = math.inf  # the last valid iteration
    for record in records:
        kind, start = record["kind"], starts[-1].get("start") if starts else None
        if is_of_start(record, start) and (record["iter"] <= limit or kind in ("run", "resume", "end")):
            yield record
        if kind == "resume":
            limit = min(limit, resume_iteration(record))
        if starts and all(record.get(name) == starts[-1].get(name) for name in ("kind", "time", "start")):
            starts.pop()


def is_of_start(record: Record, start: object) -> bool:
    """Whether the process that began with this `start` wrote it. Old versions wrote none."""
    return start is None or record.get("start", start) == start


def _without_superseded_writers(records: Iterable[Record]) -> Iterator[Record]:
    """Skips what a process wrote after a later start of the run."""
    start = None
    for record in records:
        if record["kind"] in ("run", "resume"):  # the first record of each start
            start = record.get("start")
        if is_of_start(record, start):
            yield record
