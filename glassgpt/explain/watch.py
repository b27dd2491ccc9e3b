"""A run explained while it goes on: a log that grows, a pipe, or a live run's journal.

Lines are read as they come. A look at the whole costs more the longer the log is, so looks are made at most
every few seconds, and never take more than a small part of the time.
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
from glassgpt.explain.explanation import Explanation, explain
from glassgpt.explain.rule import Finding
from glassgpt.record import journal
from glassgpt.record.journal import Record
from glassgpt.runs.from_journal import run_log_from_records
from glassgpt.runs.lines import LogLine, read_lines
from glassgpt.runs.open import looks_like_journal
from glassgpt.runs.overrides import RunOverrides, apply_overrides
from glassgpt.runs.recognise import LogRecognizer
from glassgpt.runs.run_log import LoggedEvaluation, RunLog

_POLL_S = 0.25
_MIN_REFRESH_S = 1.0
_MAX_TIME_SHARE = 0.1  # that looks may take
_SEVERITY_RANK = {"info": 0, "advice": 1, "warning": 2, "problem": 3}


@dataclass(frozen=True)
class WatchUpdate:
    """What a look found that the one before had not."""

    iteration: int | None
    evaluations: tuple[LoggedEvaluation, ...]
    findings: tuple[Finding, ...]
    explanation: Explanation


class GrowingFile:
    """A file that is read past its present end: there it waits for more, until `is_over`.

    Where `path` is told and another file has taken that name (a log that was rotated), it goes on with that.
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
            # Both asked first: what was written before the end is still to be read.
            over, replaced = self._is_over(), self._is_replaced()
            if self._file.tell() > os.fstat(self._file.fileno()).st_size:
                self._file.seek(0)  # it was begun again
            if chunk := self._file.read(size):
                return chunk
            if replaced and self._path is not None:
                with self._file:  # which is read to its end
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
            there = self._path.stat()
        except FileNotFoundError:  # renamed; the next one may come
            return False
        return stat.S_ISREG(there.st_mode) and not os.path.samestat(there, os.fstat(self._file.fileno()))


@dataclass
class LogWatcher:
    """Takes lines, and tells at each look what is new."""

    name: str
    card: Card | None = None
    overrides: RunOverrides = field(default_factory=RunOverrides)
    clock: Callable[[], float] = time.monotonic
    has_unread_lines: bool = False  # lines that no look has seen
    _log: LogRecognizer = field(default_factory=LogRecognizer)
    _records: list[Record] | None = None  # of a journal; None: it is a log
    _reported_severities: dict[str, str] = field(
        default_factory=dict
    )  # finding -> the severity it was told with
    _reported_evals: set[tuple[int, int | None]] = field(default_factory=set)
    _next_refresh_at: float = 0.0
    _has_started: bool = False

    def feed(self, line: LogLine) -> None:
        if not self._has_started and line.text.strip():
            self._has_started = True
            self._records = [] if looks_like_journal(line.text.encode()) else None
        if self._records is None:
            self._log.feed(line)
        else:
            self._records += journal.parse_records([line.text.encode()])
        self.has_unread_lines = True

    def is_due(self) -> bool:
        return self.has_unread_lines and self.clock() >= self._next_refresh_at

    def refresh(self, live: bool = True) -> WatchUpdate | None:
        """None where there is nothing to look at yet."""
        begin = self.clock()
        self.has_unread_lines = False
        history = self._build_log(live)
        if history is None:
            return None
        explanation = explain(apply_overrides(history, self.overrides), self.card)
        cost = self.clock() - begin
        self._next_refresh_at = begin + cost + max(_MIN_REFRESH_S, cost / _MAX_TIME_SHARE)
        findings = tuple(finding for finding in explanation.findings if self._is_new(finding))
        self._reported_severities |= {_finding_key(finding): finding.severity for finding in findings}
        moments = {(done.segment, done.iteration): done for done in history.evals}
        new = tuple(done for moment, done in moments.items() if moment not in self._reported_evals)
        self._reported_evals |= moments.keys()
        return WatchUpdate(explanation.facts.last_iteration, new, findings, explanation)

    def _build_log(self, live: bool) -> RunLog | None:
        if self._records is not None:
            return run_log_from_records(self._records, self.name, live) if self._records else None
        history = self._log.build(self.name, final=not live)
        return None if history is None else replace(history, live=live)

    def _is_new(self, finding: Finding) -> bool:
        told = self._reported_severities.get(_finding_key(finding))
        return told is None or _SEVERITY_RANK[finding.severity] > _SEVERITY_RANK[told]


@dataclass(frozen=True)
class _EndOfStream:
    """The end of a stream, and what ended it."""

    error: Exception | None


def _finding_key(finding: Finding) -> str:
    return finding.id or finding.title


def follow(
    file: BinaryIO, watch: LogWatcher, echo: Callable[[str], None] | None = None
) -> Iterator[WatchUpdate]:
    """News until the stream ends. A look is also made when nothing comes any more: what a run says before it
    hangs or dies is what one watches for."""
    for line in _lines_or_timeouts(read_lines(file)):
        if line is not None:
            if echo is not None:
                echo(line.text)
            watch.feed(line)
        if watch.is_due() and (news := watch.refresh()):
            yield news
    if news := watch.refresh(live=False):
        yield news


def _lines_or_timeouts(lines: Iterator[LogLine]) -> Iterator[LogLine | None]:
    """The lines as they come, and None whenever none has come for a while."""
    waiting: queue.Queue[LogLine | _EndOfStream] = queue.Queue(maxsize=10_000)
    nobody_asks = threading.Event()

    def put(item: LogLine | _EndOfStream) -> None:
        while not nobody_asks.is_set():
            with contextlib.suppress(queue.Full):
                return waiting.put(item, timeout=_POLL_S)

    def read() -> None:
        error = None
        try:
            for line in lines:
                put(line)
        except (OSError, ValueError, UserError) as why:  # raised again below, where it is seen
            error = why
        finally:
            put(_EndOfStream(error))

    threading.Thread(target=read, daemon=True).start()
    try:
        while True:
            try:
                item = waiting.get(timeout=_POLL_S)
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
        nobody_asks.set()
