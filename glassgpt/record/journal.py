"""The journal: what happened in a run, one JSON object per line, appended as it happens.

    runs/quickstart/journal.jsonl

Every record has `kind`, `time` (seconds since the epoch), `iter` (updates done so far), `process` (0, 1, …
per start of the run) and `start` (a random name of that start). It is readable while the run lives. A line
torn by a crash is skipped, and the next start begins on a fresh line, so an append never damages what was
there. NaN and infinities are written as the strings "nan", "inf", "-inf", and come back as numbers.
docs/journal.md describes every kind.

Before each append the writer reads its own last line back, by the file's name. So it notices a second writer
where locks do not work, and a file that was moved, deleted or rewritten. Inodes are not compared: on some
network drives they change.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from glassgpt.errors import UserError
from glassgpt.files import abbreviate_home, regular_file_opener_nofollow

Record = dict[str, Any]

FILE_NAME = "journal.jsonl"
MAX_LINE_BYTES = 1 << 24  # bytes; a file of one endless line must not fill the memory
_READ_BLOCK_BYTES = 1 << 20  # bytes read at once from the end
_MAX_OTHER_WRITER_BYTES = 1 << 20  # bytes of another writer that are looked at

# Fields that may be NaN or infinite.
# fmt: off
NONFINITE_FIELDS = frozenset((
    "loss", "loss_mean", "grad_norm", "stderr", "perplexity", "bits_per_byte", "best_val_loss",
    "recent_grad_norms", "loss_scale", "val_loss", "losses", "norms",
))
# fmt: on

# What opening a journal fails with if it was removed, or replaced by a folder, a pipe or a link.
_REPLACED_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENOTSUP, errno.ELOOP)

_NONFINITE_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class RunSuperseded(UserError):
    """A later start of the run writes to its journal. This one must not touch the run's files any more."""


class Journal:
    """Appends records to a file; each is handed to the operating system before `write` returns. Whoever is
    not sure to be alone with the file calls `check` first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost_reason = ""  # why the file is not this journal any more; records are then kept for `move`
        self.was_rewritten = False  # by somebody else; whoever has reported it sets this back
        self._first = self._last = b""  # lines of this process
        self._end = 0  # where the last one ends in the file
        self._pending_lines = b""
        self._open()

    def _open(self) -> None:
        torn = self.path.exists() and not _ends_with_newline(self.path)
        self._file = open(self.path, "a+b", buffering=0, opener=regular_file_opener_nofollow)  # noqa: SIM115 - until `close`
        if torn:
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
        while rest:  # one call, so that readers see whole lines; a disk that fills up takes only a part
            rest = rest[self._file.write(rest) :]
        self._last, self._end = lines[lines.rfind(b"\n", 0, -1) + 1 :], self._file.tell()

    def check(self) -> None:
        """Reads our last line back. Sets `lost` if it is not there; raises TakenOver if a later start of the
        run wrote behind it."""
        if self.lost_reason or not self._last:
            return
        try:
            with open(self.path, "rb", buffering=0, opener=regular_file_opener_nofollow) as file:
                file.seek(self._end - len(self._last))
                is_there = file.read(len(self._last)) == self._last
                if is_there and os.fstat(file.fileno()).st_size > self._end:
                    self._compare_writers(file.read(_MAX_OTHER_WRITER_BYTES))
            if not is_there:
                self._recover_after_rewrite()
        except OSError as error:
            if error.errno not in _REPLACED_ERRNOS:
                raise
            self.lost_reason = f"{self.path} is gone, or no regular file any more"

    def _compare_writers(self, more: bytes) -> None:
        """Of two writers the one that started later stays. Lines that are no records do not matter."""
        for record in parse_records(more.splitlines()):
            if _writer_key(record) > _writer_key(loads(self._last)):
                raise RunSuperseded(
                    f"another process is training in {self.path.parent}: its start is {record.get('start')}, "
                    f"its first record is of {time.ctime(record['time'])}; this process ends without saving"
                )
        if not more.endswith(b"\n"):
            self._file.write(b"\n")

    def _recover_after_rewrite(self) -> None:
        """If the last record is still one of ours, somebody edited the file: then what it lacks is appended
        again, as far as the old file has it. Else it is not ours."""
        last = b""
        with open(self.path, "rb", opener=regular_file_opener_nofollow) as file:
            for line in iter(lambda: file.readline(MAX_LINE_BYTES), b""):
                last = line.strip() if line.startswith(b"{") else last
        if [_writer_key(record) for record in parse_records([last])] != [_writer_key(loads(self._last))]:
            self.lost_reason = f"{self.path} is not what this run wrote"
            return
        _, found, missing = self._content().rpartition(last + b"\n")
        self._file.close()
        self._open()
        self._last, self._end = last + b"\n", self._file.seek(0, os.SEEK_END)
        self.was_rewritten = True
        if found and missing:
            self._append(missing)

    def _content(self) -> bytes:
        """Of the file that was opened, which may have another name by now, or none."""
        try:
            self._file.seek(0)
            return self._file.readall() or b""
        except OSError:  # a network drive keeps no file that was deleted
            return b""

    def move(self, path: Path) -> None:
        """Goes on in a new file, and takes everything along that can still be read."""
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
    """The value with ~ for the user's home folder in every text. Whoever reads a path back expands it."""
    if isinstance(value, dict):
        return {key: abbreviate_home_paths(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [abbreviate_home_paths(item) for item in value]
    return abbreviate_home(value) if isinstance(value, str) else value


def _writer_key(record: Record) -> tuple[int, str]:
    """Which start of the run wrote it; later ones are greater. Old versions wrote no `start`."""
    process = record.get("process")
    return process if isinstance(process, int) else -1, str(record.get("start", ""))


def encode_line(record: Record) -> bytes:
    return dumps(record).encode() + b"\n"


def dumps(value: Any) -> str:
    """Strict JSON, with NaN and infinities as words."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:  # there is one, which is rare: only then pay for looking at every value
        return json.dumps(nonfinite_to_words(value), separators=(",", ":"), allow_nan=False)


def loads(text: str | bytes) -> Any:
    """What `dumps` wrote. An integer that no float can hold is infinite: arithmetic with it would raise."""
    return _DECODER.decode(text if isinstance(text, str) else text.decode("utf-8-sig"))


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) < 300 else float(digits)


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


def _ends_with_newline(path: Path) -> bool:
    with open(path, "rb", opener=regular_file_opener_nofollow) as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


@contextlib.contextmanager
def _open_to_read(path: Path) -> Iterator[BinaryIO]:
    """I/O errors in it name the file, which those of `read` and `seek` do not."""
    try:
        file = open(path, "rb", opener=regular_file_opener_nofollow)  # noqa: SIM115 - closed below
        try:
            yield file
        finally:
            with contextlib.suppress(OSError):  # nothing was written to it
                file.close()
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTSUP):
            raise UserError(f"{path} is not read: {error.strerror}") from None
        error.filename = error.filename or str(path)
        raise


def read(path: Path) -> Iterator[Record]:
    """Every whole record. Torn lines (a crash, or a line being written just now) are passed over."""
    with _open_to_read(path) as file:
        yield from parse_records(iter(lambda: file.readline(MAX_LINE_BYTES), b""))


def read_backwards(path: Path) -> Iterator[Record]:
    """Every whole record, the last one first. Keeps one block and one line of the file in memory."""
    with _open_to_read(path) as file:
        yield from parse_records(_lines_backwards(file))


def _lines_backwards(file: BinaryIO) -> Iterator[bytes]:
    rest = b""  # of the line that begins before `position`
    position = file.seek(0, os.SEEK_END)
    while position:
        size = min(_READ_BLOCK_BYTES, position)
        position = file.seek(position - size)
        rest, *lines = (file.read(size) + rest).split(b"\n")
        yield from reversed(lines)
        if len(rest) > MAX_LINE_BYTES:
            rest = b"\0"  # which no record contains, so that what is left of this line is none either
    yield rest


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


def _revive(record: Record) -> Record:
    """Only where a number belongs: a sample may well consist of the letters "nan"."""
    for name in NONFINITE_FIELDS.intersection(record):
        record[name] = _words_to_nonfinite(record[name])
    return record


# Once: making one takes as long as decoding a line.
_DECODER = json.JSONDecoder(object_hook=_revive, parse_int=_integer)


def effective_records(records: Iterable[Record]) -> list[Record]:
    """The records that still count: a resume takes back what lies past the point it went on from, and what a
    process wrote after another one had taken over does not count either."""
    kept = list(records)
    return list(stream_effective_records(lambda: kept))


def stream_effective_records(read: Callable[[], Iterable[Record]]) -> Iterator[Record]:
    """As `current`, but reads twice and keeps no records in memory."""
    points: list[float] = []
    for record in _without_superseded_writers(read()):
        if record["kind"] == "resume":
            point = record.get("from_iter")
            points.append(point if isinstance(point, int) else record["iter"])
    # The last iteration that counts: after the last resume, before it, before the one before it, ...
    limits = list(itertools.accumulate(reversed(points), min, initial=math.inf))
    for record in _without_superseded_writers(read()):
        if record["kind"] == "resume":
            limits.pop()
        if record["iter"] <= limits[-1] or record["kind"] in ("run", "resume", "end"):
            yield record


def _without_superseded_writers(records: Iterable[Record]) -> Iterator[Record]:
    """Without what a process wrote after another one had started. Old versions wrote no `start`."""
    start = None
    for record in records:
        if record["kind"] in ("run", "resume"):  # what each start begins with
            start = record.get("start")
        if start is None or record.get("start", start) == start:
            yield record
