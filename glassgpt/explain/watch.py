"""A run explained while it trains: a log that grows, a pipe, or the journal of a live run.

    python -u train.py 2>&1 | glass explain - --watch

Lines are read as they come. Explaining the whole log costs more the longer it is, so it is refreshed at most
once a second, and in at most a tenth of the time.
"""

from __future__ import annotations

import contextlib
import os
import queue
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from glassgpt.errors import UserError
from glassgpt.estimate.cards import Card
from glassgpt.explain.explanation import Explanation, explain_runs
from glassgpt.record import journal
from glassgpt.record.finding import Finding
from glassgpt.runs.from_journal import JournalReader
from glassgpt.runs.lines import LogLine, read_blocks, split_block
from glassgpt.runs.overrides import RunOverrides, apply_overrides
from glassgpt.runs.reading import looks_like_journal
from glassgpt.runs.recognise import LogRecognizer
from glassgpt.runs.run_log import LoggedEvaluation
from glassgpt.runs.table_files import GrowingTable, growing_table

_POLL_S = 0.25
_MIN_REFRESH_S = 1.0  # between two refreshes
_MAX_TIME_SHARE = 0.1  # time in refreshes over wall time


@dataclass(frozen=True)
class WatchUpdate:
    """What is new since the last refresh."""

    iteration: int | None
    evaluations: tuple[LoggedEvaluation, ...]
    findings: tuple[Finding, ...]
    explanation: Explanation


class GrowingFile:
    """A file that is read like `tail -F`: at its end it waits for more, until `is_over`.

    `path`: reopen it when another file has that name (log rotation).
    """

    def __init__(
        self,
        file: BinaryIO,
        is_over: Callable[[], bool] = lambda: False,
        sleep: Callable[[float], None] = time.sleep,
        path: Path | None = None,
    ) -> None:
        self._file, self._is_over, self._sleep, self._path = file, is_over, sleep, path

    def read1(self, size: int = -1) -> bytes:
        while True:
            # Both are checked before reading, so that nothing written before the end is missed.
            over, is_replaced = self._is_over(), self._is_replaced()
            if self._file.tell() > os.fstat(self._file.fileno()).st_size:
                self._file.seek(0)  # it was truncated
            if chunk := self._file.read(size):
                return chunk
            if is_replaced and self._path is not None:
                with self._file:  # closes the old file, now read to its end
                    self._file = self._path.open("rb")
                continue
            if over:
                return b""
            self._sleep(_POLL_S)

    read = read1

    def _is_replaced(self) -> bool:
        if self._path is None:
            return False
        try:
            status = self._path.stat()
        except FileNotFoundError:  # renamed; the next file may come
            return False
        return stat.S_ISREG(status.st_mode) and not os.path.samestat(status, os.fstat(self._file.fileno()))


@dataclass
class LogWatcher:
    """Takes lines; each refresh explains them all and returns what is new.

    While lines come, the explanation is about the last run of the file; at the end, about the longest."""

    name: str
    card: Card | None = None
    overrides: RunOverrides = field(default_factory=RunOverrides)
    clock: Callable[[], float] = time.monotonic
    has_unread_lines: bool = False  # lines since the last refresh
    _log: LogRecognizer = field(default_factory=LogRecognizer)
    _journal: JournalReader | None = None  # None: it is a log, or
    _table: GrowingTable | None = None
    _reported_ranks: dict[str, int] = field(default_factory=dict)  # by id, or title
    _reported_evals: set[tuple[int, int, int | None]] = field(default_factory=set)
    _next_refresh_at: float = 0.0
    _has_started: bool = False
    _has_records: bool = False

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
        self.has_unread_lines = True

    def is_due(self) -> bool:
        return self.has_unread_lines and self.clock() >= self._next_refresh_at

    def refresh(self, live: bool = True) -> WatchUpdate | None:
        """None where there is nothing to explain yet."""
        started_at = self.clock()
        self.has_unread_lines = False
        if self._journal is not None and self._has_records:
            run_logs = [self._journal.build(self.name, live)]
        elif self._journal is None and (logs := (self._table or self._log).build(self.name, final=not live)):
            run_logs = [*logs[:-1], replace(logs[-1], live=live)]
        else:
            return None
        run_logs = [apply_overrides(run_log, self.overrides) for run_log in run_logs]
        last = run_logs[-1]
        explanation = explain_runs(run_logs, self.card, main=last if live else None)
        cost_s = self.clock() - started_at
        self._next_refresh_at = started_at + cost_s + max(_MIN_REFRESH_S, cost_s / _MAX_TIME_SHARE)
        new_findings = []
        for finding in explanation.findings:  # a finding that became more severe is reported again
            if finding.severity_level > self._reported_ranks.get(finding.id or finding.title, -1):
                new_findings.append(finding)
        self._reported_ranks |= {one.id or one.title: one.severity_level for one in new_findings}
        evals = {
            (last.first_line, evaluation.segment, evaluation.iteration): evaluation
            for evaluation in last.evals
        }
        new_evals = tuple(done for key, done in evals.items() if key not in self._reported_evals)
        self._reported_evals |= evals.keys()
        return WatchUpdate(explanation.facts.last_iteration, new_evals, tuple(new_findings), explanation)


@dataclass(frozen=True)
class _EndOfStream:
    """The end of a stream, and the error that ended it."""

    error: Exception | None


def follow(
    file: BinaryIO, watcher: LogWatcher, echo: Callable[[str], None] | None = None
) -> Iterator[WatchUpdate]:
    """Updates until the stream ends. Also refreshes while no line comes: the last lines before a run hangs or
    dies are those that matter."""
    for block in _blocks_or_timeouts(read_blocks(file)):
        if block is not None:
            if echo is not None:
                for line in split_block(block):
                    echo(line.text)
            watcher.feed(block)
        if watcher.is_due() and (update := watcher.refresh()):
            yield update
    if update := watcher.refresh(live=False):
        yield update


def _blocks_or_timeouts(blocks: Iterator[str | LogLine]) -> Iterator[str | LogLine | None]:
    """The blocks as they come, and None whenever none has come for a while. A thread reads them."""
    blocks_read: queue.Queue[str | LogLine | _EndOfStream] = queue.Queue(maxsize=16)
    closed = threading.Event()  # the consumer has stopped

    def put(item: str | LogLine | _EndOfStream) -> None:
        while not closed.is_set():
            with contextlib.suppress(queue.Full):
                return blocks_read.put(item, timeout=_POLL_S)

    def read_into_queue() -> None:
        error = None
        try:
            for block in blocks:
                put(block)
        except (OSError, ValueError, UserError) as raised:  # raised again below, in the consumer's thread
            error = raised
        finally:
            put(_EndOfStream(error))

    threading.Thread(target=read_into_queue, daemon=True).start()
    try:
        while True:
            try:
                item = blocks_read.get(timeout=_POLL_S)
            except queue.Empty:
                yield None
                continue
            if not isinstance(item, _EndOfStream):
                yield item
            elif item.error is None:
                return
            else:
                raise item.error
    finally:
        closed.set()
