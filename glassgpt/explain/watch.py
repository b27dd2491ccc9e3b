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
from glassgpt.runs.from_journal import history_of
from glassgpt.runs.lines import Line, read_lines
from glassgpt.runs.open import looks_like_journal
from glassgpt.runs.overrides import Given, with_given
from glassgpt.runs.recognise import Recognizer
from glassgpt.runs.run_log import Evaluation, History

_POLL_S = 0.25
_LOOK_EVERY_S = 1.0
_SHARE_OF_TIME = 0.1  # that looks may take
_RANK = {"info": 0, "advice": 1, "warning": 2, "problem": 3}


@dataclass(frozen=True)
class News:
    """What a look found that the one before had not."""

    iteration: int | None
    evaluations: tuple[Evaluation, ...]
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
class Watch:
    """Takes lines, and tells at each look what is new."""

    name: str
    card: Card | None = None
    given: Given = field(default_factory=Given)
    clock: Callable[[], float] = time.monotonic
    has_news: bool = False  # lines that no look has seen
    _log: Recognizer = field(default_factory=Recognizer)
    _records: list[Record] | None = None  # of a journal; None: it is a log
    _told: dict[str, str] = field(default_factory=dict)  # finding -> the severity it was told with
    _evaluations_told: set[tuple[int, int | None]] = field(default_factory=set)
    _next_look: float = 0.0
    _began: bool = False

    def feed(self, line: Line) -> None:
        if not self._began and line.text.strip():
            self._began = True
            self._records = [] if looks_like_journal(line.text.encode()) else None
        if self._records is None:
            self._log.feed(line)
        else:
            self._records += journal.read_stream([line.text.encode()])
        self.has_news = True

    def is_due(self) -> bool:
        return self.has_news and self.clock() >= self._next_look

    def look(self, live: bool = True) -> News | None:
        """None where there is nothing to look at yet."""
        begin = self.clock()
        self.has_news = False
        history = self._history(live)
        if history is None:
            return None
        explanation = explain(with_given(history, self.given), self.card)
        cost = self.clock() - begin
        self._next_look = begin + cost + max(_LOOK_EVERY_S, cost / _SHARE_OF_TIME)
        findings = tuple(finding for finding in explanation.findings if self._is_new(finding))
        self._told |= {_key(finding): finding.severity for finding in findings}
        moments = {(done.segment, done.iteration): done for done in history.evals}
        new = tuple(done for moment, done in moments.items() if moment not in self._evaluations_told)
        self._evaluations_told |= moments.keys()
        return News(explanation.facts.last_iteration, new, findings, explanation)

    def _history(self, live: bool) -> History | None:
        if self._records is not None:
            return history_of(self._records, self.name, live) if self._records else None
        history = self._log.history(self.name, final=not live)
        return None if history is None else replace(history, live=live)

    def _is_new(self, finding: Finding) -> bool:
        told = self._told.get(_key(finding))
        return told is None or _RANK[finding.severity] > _RANK[told]


@dataclass(frozen=True)
class _Over:
    """The end of a stream, and what ended it."""

    error: Exception | None


def _key(finding: Finding) -> str:
    return finding.id or finding.title


def follow(file: BinaryIO, watch: Watch, echo: Callable[[str], None] | None = None) -> Iterator[News]:
    """News until the stream ends. A look is also made when nothing comes any more: what a run says before it
    hangs or dies is what one watches for."""
    for line in _or_silence(read_lines(file)):
        if line is not None:
            if echo is not None:
                echo(line.text)
            watch.feed(line)
        if watch.is_due() and (news := watch.look()):
            yield news
    if news := watch.look(live=False):
        yield news


def _or_silence(lines: Iterator[Line]) -> Iterator[Line | None]:
    """The lines as they come, and None whenever none has come for a while."""
    waiting: queue.Queue[Line | _Over] = queue.Queue(maxsize=10_000)
    nobody_asks = threading.Event()

    def put(item: Line | _Over) -> None:
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
            put(_Over(error))

    threading.Thread(target=read, daemon=True).start()
    try:
        while True:
            try:
                item = waiting.get(timeout=_POLL_S)
            except queue.Empty:
                yield None
                continue
            if not isinstance(item, _Over):
                yield item
            elif item.error is None:
                return
            else:
                raise item.error
    finally:
        nobody_asks.set()
