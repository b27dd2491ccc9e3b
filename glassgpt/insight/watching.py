"""A run explained while it goes on: a log that grows, a pipe, or a live run's journal.

Lines are read as they come. A look at the whole costs more the longer the log is, so looks are made at most
every few seconds, and never take more than a small part of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from glassgpt.account import journal
from glassgpt.account.hardware import Card
from glassgpt.account.journal import Record
from glassgpt.insight.explain import Explanation, explain
from glassgpt.insight.findings.finding import Finding
from glassgpt.insight.history import Evaluation, History
from glassgpt.insight.logs.reading import Recognizer
from glassgpt.insight.logs.text import Line, read_lines
from glassgpt.insight.own import history_of

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
    """A file that is read past its present end: there it waits for more, for ever."""

    def __init__(self, file: BinaryIO, sleep: Callable[[float], None] = time.sleep) -> None:
        self._file, self._sleep = file, sleep

    def read1(self, size: int = -1) -> bytes:
        while not (chunk := self._file.read(size)):
            self._sleep(_POLL_S)
        return chunk

    read = read1


@dataclass
class Watch:
    """Takes lines or records, and tells at each look what is new."""

    name: str
    card: Card | None = None
    clock: Callable[[], float] = time.monotonic
    _log: Recognizer = field(default_factory=Recognizer)
    _records: list[Record] = field(default_factory=list)
    _told: dict[str, str] = field(default_factory=dict)  # finding -> the severity it was told with
    _evaluations_told: int = 0
    _next_look: float = 0.0

    def feed(self, line: Line) -> None:
        self._log.feed(line)

    def feed_record(self, record: Record) -> None:
        self._records.append(record)

    def is_due(self) -> bool:
        return self.clock() >= self._next_look

    def look(self, live: bool = True) -> News | None:
        """None where there is nothing to look at yet."""
        begin = self.clock()
        history = self._history(live)
        if history is None:
            return None
        explanation = explain(history, self.card)
        cost = self.clock() - begin
        self._next_look = begin + cost + max(_LOOK_EVERY_S, cost / _SHARE_OF_TIME)
        findings = tuple(finding for finding in explanation.findings if self._is_new(finding))
        self._told |= {finding.id: finding.severity for finding in findings}
        evaluations, self._evaluations_told = history.evals[self._evaluations_told :], len(history.evals)
        return News(explanation.facts.last_iteration, evaluations, findings, explanation)

    def _history(self, live: bool) -> History | None:
        if self._records:
            return history_of(self._records, self.name, live)
        history = self._log.history(self.name)
        return None if history is None else replace(history, live=live)

    def _is_new(self, finding: Finding) -> bool:
        told = self._told.get(finding.id)
        return told is None or _RANK[finding.severity] > _RANK[told]


def follow_log(file: BinaryIO, watch: Watch, echo: Callable[[str], None] | None = None) -> Iterator[News]:
    """News until the stream ends."""
    for line in read_lines(file):
        if echo is not None:
            echo(line.text)
        watch.feed(line)
        if watch.is_due() and (news := watch.look()):
            yield news
    if news := watch.look(live=False):
        yield news


def follow_journal(path: Path, watch: Watch, sleep: Callable[[float], None] = time.sleep) -> Iterator[News]:
    """News until the run ends, or nothing runs any more."""
    from glassgpt.insight.runs import is_running

    with path.open("rb") as file:
        rest = b""
        while True:
            chunk = file.read()
            *lines, rest = (rest + chunk).split(b"\n")
            for record in journal.read_stream(lines):
                watch.feed_record(record)
            over = not is_running(path.parent)
            if (chunk or over) and (watch.is_due() or over) and (news := watch.look(live=not over)):
                yield news
            if over:
                return
            sleep(_POLL_S)
