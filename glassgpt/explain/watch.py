"""A run explained while it trains: a log that grows, a pipe, or the journal of a live run.

    python -u train.py 2>&1 | glass explain - --watch

Lines are read as they come. Explaining the whole log costs more the longer it is, so it is refreshed at most
once a second, and in at most a tenth of the time.
"""

from __future__ import annotations

import contextlib
import math
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
from glassgpt.record.finding import Finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.following import FollowedSource, GrowingJournal, GrowingLog, GrowingText, open_source
from glassgpt.runs.lines import LogLine, read_blocks, split_block
from glassgpt.runs.overrides import RunOverrides, apply_overrides
from glassgpt.runs.progress import Progress, is_growing, progress_of
from glassgpt.runs.run_list import ends_with_lock, is_running
from glassgpt.runs.run_log import LoggedEvaluation, RunLog, longest_run

_POLL_S = 0.25
_MIN_REFRESH_S = 1.0  # between two refreshes
MIN_EXPLAIN_S = 2.0  # between two explanations of a followed run
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
    _log: GrowingLog = field(default_factory=GrowingLog)
    _reported_ranks: dict[str, int] = field(default_factory=dict)  # by id, or title
    _reported_evals: set[tuple[int, int, int | None]] = field(default_factory=set)
    _next_refresh_at: float = 0.0

    def feed(self, block: str | LogLine) -> None:
        """`block`: from `read_blocks`."""
        self._log.feed(block)
        self.has_unread_lines = True

    def is_due(self) -> bool:
        return self.has_unread_lines and self.clock() >= self._next_refresh_at

    def refresh(self, live: bool = True) -> WatchUpdate | None:
        """None where there is nothing to explain yet."""
        started_at = self.clock()
        self.has_unread_lines = False
        run_logs = [
            apply_overrides(one, self.overrides) for one in self._log.build(self.name, live, not live)
        ]
        if not run_logs:
            return None
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


class FollowedRun:
    """A run that is read further whenever the caller polls: live or finished, ours or anybody's log.

        followed = FollowedRun("runs/quickstart")
        while True:
            if followed.poll() or followed.refresh():
                show(followed.run_log, followed.explanation)
            time.sleep(1)

    Polling is cheap; `refresh` explains the run anew, at most every 2 s and in at most a tenth of the time.
    While a file grows, it is about its last run, at the end about the longest.
    """

    def __init__(
        self,
        source: str,
        card: Card | None = None,
        overrides: RunOverrides | None = None,
        is_writing: Callable[[], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`is_writing`: whether the program that writes the log still runs, if the caller knows."""
        self.source, self.card, self.overrides = source, card, overrides or RunOverrides()
        self.explanation: Explanation | None = None
        self.is_live, self._is_final = False, False
        self._is_writing, self._clock, self._wall_clock = is_writing, clock, wall_clock
        self._source: FollowedSource | None = None
        self._run_logs: tuple[RunLog, ...] = ()
        self._main: RunLog | None = None
        self._analysis: Analysis | None = None
        self._is_built = False  # `_run_logs` are of all that was read
        self._switches = 0  # to another run of the file
        self._next_refresh_at = -math.inf

    @property
    def generation(self) -> int:
        """Rises when earlier rows are not valid any more: the file was truncated or replaced, or another run
        began in it."""
        return (self._source.generation if self._source else 0) + self._switches

    @property
    def read_share(self) -> float:
        """Of the file: below 1 while a long one is read for the first time."""
        return self._source.read_share if self._source else 0.0

    @property
    def changed_at(self) -> float:
        """When the file last changed, in seconds since the epoch."""
        return self._source.changed_at if self._source else 0.0

    def poll(self, max_s: float = math.inf) -> bool:
        """Reads what was appended, for at most `max_s`. True if there is more than before, or the run ended.
        UserError where it cannot be read."""
        try:
            self._source = self._source or open_source(self.source, self._clock)
            has_read = self._source.poll(max_s)
        except OSError as error:
            raise UserError(f"{self.source} cannot be read: {error.strerror or error}") from None
        if has_read:
            self._is_built = False
        before = self.is_live, self._is_final
        self.is_live, self._is_final = self._find_state()
        if before != (self.is_live, self._is_final):
            self._is_built = False
        return has_read or before[0] != self.is_live

    def _find_state(self) -> tuple[bool, bool]:
        """Whether the run is in progress, and whether its file is complete. A log may say that its run is
        over, and still grow."""
        if self._is_writing is not None:
            return (is_writing := self._is_writing()), not is_writing
        source = self._source
        if isinstance(source, GrowingJournal) or (
            isinstance(source, GrowingText) and ends_with_lock(source.path)
        ):
            return (is_live := is_running(source.path.parent)), not is_live
        now = self._wall_clock()
        if self.source.startswith("demo:") or not is_growing(self._analysis, None, now, self.changed_at):
            return False, True
        return is_growing(self._analysis, self._latest(True, False), now, self.changed_at), False

    @property
    def run_log(self) -> RunLog | None:
        """All that was read; None where that is no run yet."""
        return self._latest(self.is_live, self._is_final)

    def _latest(self, live: bool, final: bool) -> RunLog | None:
        """Rebuilt only after a poll that read something."""
        if self._source is None:
            return None
        if not self._is_built:
            run_logs = self._source.build(live, final)
            self._run_logs = tuple(apply_overrides(one, self.overrides) for one in run_logs)
            previous, self._main = self._main, None
            if self._run_logs:
                self._main = self._run_logs[-1] if live else longest_run(self._run_logs)
            if previous is not None and self._main is not None and _is_other_run(previous, self._main):
                self._switches += 1
            self._is_built = True
        elif self._main is not None and self._main.live != live:
            *others, last = self._run_logs
            self._run_logs = (*others, replace(last, live=live))
            self._main = self._run_logs[-1] if live else longest_run(self._run_logs)
        return self._main

    @property
    def analysis(self) -> Analysis | None:
        """Of the latest explanation; before the first one, of what was read. It may be a few seconds old:
        finding usual times anew takes long in a long run."""
        run_log = self.run_log
        if run_log is None:
            return None
        is_other = self._analysis is not None and _is_other_run(self._analysis.log, run_log)
        if self._analysis is None or is_other or not len(self._analysis.log.steps):
            self._analysis = Analysis(run_log, self.card)
        return self._analysis

    def progress(self) -> Progress | None:
        run_log, analysis = self.run_log, self.analysis
        if run_log is None or analysis is None:
            return None
        return progress_of(analysis, run_log, self._wall_clock(), self.changed_at)

    def refresh(self, force: bool = False) -> bool:
        """Explains the run anew, if there is more of it and enough time has passed. True if it did."""
        started_at, run_log = self._clock(), self.run_log
        is_new = self.explanation is None or self.explanation.log is not run_log
        if run_log is None or not is_new or (started_at < self._next_refresh_at and not force):
            return False
        self.explanation = explain_runs(self._run_logs, self.card, main=run_log if self.is_live else None)
        self._analysis = self.explanation.analysis
        cost_s = self._clock() - started_at
        self._next_refresh_at = started_at + cost_s + max(MIN_EXPLAIN_S, cost_s / _MAX_TIME_SHARE)
        return True


def _is_other_run(one: RunLog, other: RunLog) -> bool:
    names = [(run_log.first_line, run_log.run_name, run_log.trainer.id) for run_log in (one, other)]
    return names[0] != names[1]


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
