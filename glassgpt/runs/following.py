"""Files that are read while they grow: each poll reads what was appended since the last one.

    source = open_source("runs/quickstart")
    while source.poll(max_s=0.5): ...        # True: it read something
    run_logs = source.build(live=True, final=False)

A journal is read from its index, if it has one; a log or a table of metrics line by line. What cannot be
read in parts (a notebook, TensorBoard's event files, a compressed log) is read again when it has changed.
Whether a file was replaced is seen by its first bytes and those before the place that was reached: inodes
change on some network drives.
"""

from __future__ import annotations

import codecs
import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from glassgpt.record import journal
from glassgpt.runs import journal_index
from glassgpt.runs.checkpoint_looks import LOOKS_FILE
from glassgpt.runs.file_kinds import binary_kind
from glassgpt.runs.from_journal import JournalReader, with_looks
from glassgpt.runs.lines import LineSplitter, LogLine, is_notebook
from glassgpt.runs.reading import growing_file, looks_like_journal, read_run_logs, source_path
from glassgpt.runs.recognise import LogRecognizer
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.table_files import LineTable, growing_table
from glassgpt.runs.tensorboard_events import is_event_file

_BLOCK_BYTES = 1 << 20
_SNIFF_BYTES = 1 << 16
_HEAD_BYTES = 1024
_COMPARED_BYTES = 64  # before the place that was reached
_MAX_TIME_SHARE = 0.1  # of the time, to read a file again that has changed


class GrowingLog:
    """Lines of a log, a table or a journal to its runs, at any time."""

    def __init__(self) -> None:
        self._log = LogRecognizer()
        self._journal: JournalReader | None = None  # None: it is a log, or
        self._table: LineTable | None = None
        self._has_started = False
        self._has_records = False

    def feed(self, block: str | LogLine) -> None:
        """`block`: from `read_blocks`."""
        text = block.text if isinstance(block, LogLine) else block
        if not self._has_started and text.strip():
            self._has_started = True
            self._journal = JournalReader() if looks_like_journal(text.strip().encode()) else None
            self._table = growing_table(text) if self._journal is None else None
        if self._table is not None:
            for line in text.split("\n"):
                self._table.feed(line)
        elif self._journal is None:
            self._log.feed(block)
        else:
            for record in journal.parse_records(text.encode().split(b"\n")):
                self._journal.feed(record)
                self._has_records = True

    def build(self, name: str, live: bool, final: bool) -> tuple[RunLog, ...]:
        """() where there is nothing to explain yet. `final`: no line will follow."""
        if self._journal is not None:
            return (self._journal.build(name, live),) if self._has_records else ()
        run_logs = (self._table or self._log).build(name, final)
        return (*run_logs[:-1], replace(run_logs[-1], live=live)) if run_logs else ()


class FollowedSource(Protocol):
    """`poll` reads for at most `max_s`, True if there was something; `read_share` of the file is read."""

    generation: int  # rises when what was read before is not valid any more

    @property
    def read_share(self) -> float: ...

    @property
    def changed_at(self) -> float:
        """When the file last changed, in seconds since the epoch."""
        ...

    def poll(self, max_s: float = math.inf) -> bool: ...

    def build(self, live: bool, final: bool) -> tuple[RunLog, ...]:
        """`live`: the run is in progress. `final`: the file will not grow any more; if it does, it is read
        from its beginning."""
        ...


def open_source(source: str, clock: Callable[[], float] = time.monotonic) -> FollowedSource:
    """`source`: as `read_run_logs` takes it. A file that is empty yet counts as a log."""
    path = source_path(source)
    file = growing_file(path)
    if path.is_dir() and not file.is_file():
        return WholeFile(source, path, clock)
    start = b""
    if file.is_file():
        with file.open("rb") as opened:
            start = opened.read(_SNIFF_BYTES)
    if (path.is_dir() and file.name == journal.FILE_NAME) or looks_like_journal(start):
        return GrowingJournal(source, file, clock)
    is_plain = not (is_notebook(start) or is_event_file(start) or binary_kind(start) or b"\0" in start)
    # Lines of JSON can be read one by one, a document cannot.
    head = start.decode("utf-8", "replace")
    if head.lstrip()[:1] in ("{", "[") and growing_table(head) is None:
        is_plain = False
    return GrowingText(source, file, clock) if is_plain else WholeFile(source, file, clock)


class _GrowingFile:
    """A file of which each poll reads the bytes that were appended since the last one."""

    whole_lines: bool  # only up to the last line end; the rest waits for its end
    _is_closed = False  # the last line, which has no end, was read as well: of more, all is read again

    def __init__(self, name: str, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self.generation = 0
        self.offset = self.size = 0
        self.changed_at = 0.0
        self._name, self._clock = name, clock
        self._head = b""  # the first bytes of the file
        self._before = b""  # those before the offset
        self._begin()

    def _begin(self) -> None:
        """Forget what was read: the file is read from its beginning."""
        raise NotImplementedError

    def _read(self, block: bytes) -> None:
        raise NotImplementedError

    def poll(self, max_s: float = math.inf) -> bool:
        started_at, has_read = self._clock(), False
        while (block := self._next_block()) != b"":
            if block is None or self._is_closed:
                self.generation += block is None
                self.offset, self._head, self._before = 0, b"", b""
                self._begin()
                continue
            self._read(block)
            has_read = True
            if self._clock() - started_at >= max_s:
                break
        return has_read

    @property
    def read_share(self) -> float:
        return min(1.0, self.offset / self.size) if self.size else 1.0

    def start_at(self, offset: int) -> None:
        with self.path.open("rb") as file:
            self._head = file.read(min(offset, _HEAD_BYTES))
            file.seek(max(0, offset - _COMPARED_BYTES))
            self._before = file.read(min(offset, _COMPARED_BYTES))
        self.offset = offset

    def _next_block(self) -> bytes | None:
        """b"": nothing new. None: the file was truncated or replaced, and is read from its beginning."""
        status = self.path.stat()
        self.size, self.changed_at = status.st_size, status.st_mtime
        if self.size == self.offset:
            return b""
        with self.path.open("rb") as file:
            is_same = self.size > self.offset and file.read(len(self._head)) == self._head
            file.seek(self.offset - len(self._before))
            if not is_same or file.read(len(self._before)) != self._before:
                return None
            block = file.read(_BLOCK_BYTES)
            while self.whole_lines and block and b"\n" not in block:
                more = file.read(_BLOCK_BYTES)
                if not more or len(block) > journal.MAX_LINE_BYTES:
                    return b""
                block += more
        if self.whole_lines:
            block = block[: block.rfind(b"\n") + 1]
        if len(self._head) < _HEAD_BYTES:
            self._head = (self._head + block)[:_HEAD_BYTES]
        self.offset += len(block)
        self._before = (self._before + block)[-_COMPARED_BYTES:]
        return block


class GrowingJournal(_GrowingFile):
    whole_lines = True
    _has_started = False
    _looks_at = 0  # when its looks last changed, in ns

    def _begin(self) -> None:
        self._reader = JournalReader()
        self._indexed = 0  # bytes that the index covers

    def _read(self, block: bytes) -> None:
        for record in journal.parse_records(block.split(b"\n")):
            self._reader.feed(record)

    def poll(self, max_s: float = math.inf) -> bool:
        is_first, self._has_started = not self._has_started, True
        if is_first and (index := journal_index.load(self.path)) is not None:
            with contextlib.suppress(TypeError, ValueError, LookupError, AttributeError):  # damaged
                self._reader = JournalReader.from_index(index)
                self.start_at(index.end)
                self._indexed = index.end
        has_read = super().poll(max_s)
        if self.read_share == 1.0 and self.offset - self._indexed >= journal_index.MIN_BYTES:
            journal_index.save(self.path, self._reader.index(self.offset))
            self._indexed = self.offset
        before, self._looks_at = self._looks_at, self._looks_changed_at()
        return is_first or has_read or self._looks_at != before

    def build(self, live: bool, final: bool) -> tuple[RunLog, ...]:
        if not self._reader.has_records:
            return ()
        return (with_looks(self._reader.build(self._name, live), self.path.parent),)

    def _looks_changed_at(self) -> int:
        try:
            return (self.path.parent / LOOKS_FILE).stat().st_mtime_ns
        except OSError:
            return 0


class GrowingText(_GrowingFile):
    """A log, CSV or lines of JSON."""

    whole_lines = False

    def _begin(self) -> None:
        self._log, self._lines = GrowingLog(), LineSplitter()
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._is_closed = False

    def _read(self, block: bytes) -> None:
        for lines in self._lines.feed(self._decoder.decode(block)):
            self._log.feed(lines)

    def build(self, live: bool, final: bool) -> tuple[RunLog, ...]:
        if not final:
            return self._log.build(self._name, live, final=False)
        if not self._is_closed:
            self._is_closed = True
            for line in self._lines.close():
                self._log.feed(line)
        # A text may speak of runs without quoting a log; and whoever asks wants to know why it is none.
        return self._log.build(self._name, live, final=True) or read_run_logs(self._name)


class WholeFile:
    """A file, or a folder of another trainer's, that is read again when it has changed."""

    def __init__(self, name: str, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.generation, self.read_share, self.changed_at = 0, 1.0, 0.0
        self._name, self._path, self._clock = name, path, clock
        self._seen: object = None
        self._run_logs: tuple[RunLog, ...] = ()
        self._next_read_at = -math.inf

    def poll(self, max_s: float = math.inf) -> bool:
        started_at = self._clock()
        files = sorted(self._path.rglob("*")) if self._path.is_dir() else [self._path]
        states = []
        for one in files:
            with contextlib.suppress(OSError):  # removed meanwhile
                status = one.stat()
                states.append((str(one), status.st_size, status.st_mtime))
        self.changed_at = max((changed for _, _, changed in states), default=0.0)
        if states == self._seen or started_at < self._next_read_at:
            return False
        self._run_logs, self._seen = read_run_logs(self._name), states
        cost_s = self._clock() - started_at
        self._next_read_at = started_at + cost_s / _MAX_TIME_SHARE
        return True

    def build(self, live: bool, final: bool) -> tuple[RunLog, ...]:
        run_logs = self._run_logs
        return (*run_logs[:-1], replace(run_logs[-1], live=live)) if run_logs else ()
