"""A run explained while it trains: a log that grows, a pipe, or the journal of a live run.

    python -u train.py 2>&1 | glass explain - --watch

Lines are read as they come. Explaining the whole log costs more the longer it is, so it is explained anew at
most every two seconds, and in at most a tenth of the time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from glassgpt.errors import UserError
from glassgpt.estimate.cards import Card
from glassgpt.explain.explanation import Explanation, explain_runs
from glassgpt.record.finding import Finding
from glassgpt.runs.analysis import Analysis
from glassgpt.runs.following import FollowedSource, GrowingJournal, GrowingText, open_source
from glassgpt.runs.overrides import RunOverrides, apply_overrides
from glassgpt.runs.progress import Progress, is_growing, progress_of
from glassgpt.runs.run_list import ends_with_lock, is_running
from glassgpt.runs.run_log import LoggedEvaluation, RunLog, longest_run

MIN_EXPLAIN_S = 2.0  # between two explanations of a followed run
_MAX_TIME_SHARE = 0.1  # time in explanations over wall time


@dataclass(frozen=True)
class WatchUpdate:
    """What is new since the last explanation."""

    iteration: int | None
    evaluations: tuple[LoggedEvaluation, ...]
    findings: tuple[Finding, ...]
    explanation: Explanation


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
        name: str = "",
    ) -> None:
        """`is_writing`: whether the program that writes the log still runs, if the caller knows. `name`: to
        show instead of that of the source, which may be a copy."""
        self.source, self.card, self.overrides = source, card, overrides or RunOverrides()
        self.explanation: Explanation | None = None
        self.is_live, self._is_final = False, False
        self.problem = ""  # why the file cannot be read any more; what was read before stays
        self._name = name
        self._is_writing, self._clock, self._wall_clock = is_writing, clock, wall_clock
        self._source: FollowedSource | None = None
        self._run_logs: tuple[RunLog, ...] = ()
        self._main: RunLog | None = None
        self._analysis: Analysis | None = None
        self._is_built = False  # `_run_logs` are of all that was read
        self._was_polled, self._was_growing, self._has_read_all = False, False, False
        self._switches = 0  # to another run of the file
        self._reported_levels: dict[str, int] = {}  # severity, by id or title
        self._reported_evals: set[tuple[int, int, int | None]] = set()
        self._next_refresh_at = -math.inf

    @property
    def generation(self) -> int:
        """Rises when earlier rows are not valid any more: the file was truncated or replaced, or another run
        began in it."""
        return (self._source.generation if self._source else 0) + self._switches

    @property
    def read_share(self) -> float:
        """Of the file: below 1 while a long one is read for the first time. The torn last line of a run that
        was killed may wait for its end for ever."""
        if self._source is None:
            return 0.0
        return 1.0 if self._has_read_all else self._source.read_share

    @property
    def changed_at(self) -> float:
        """When the file last changed, in seconds since the epoch."""
        return self._source.changed_at if self._source else 0.0

    def poll(self, max_s: float = math.inf) -> bool:
        """Reads what was appended, for at most `max_s`. True if there is more than before, or the run ended.
        UserError where it cannot be read and never could; a log that is rotated comes back: `problem`."""
        has_read, known_problem, self.problem = False, self.problem, ""
        try:
            self._source = self._source or open_source(self.source, self._clock)
            has_read = self._source.poll(max_s)
            self._has_read_all = not has_read
        except (OSError, UserError) as error:
            if isinstance(error, OSError):
                error = UserError(f"{self.source} cannot be read: {error.strerror or error}")
            if not self._was_polled:
                raise error from None
            self.problem = "; ".join(error.problems)
        self._was_polled = True
        if has_read:
            self._is_built = False
        before = self.is_live, self._is_final
        self.is_live, self._is_final = self._find_state()
        if before != (self.is_live, self._is_final):
            self._is_built = False
        return has_read or before[0] != self.is_live or known_problem != self.problem

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
            # Seen to grow, and silent without a line of a run: its trainer may compile for long.
            return False, self._main is not None or not self._was_growing
        self._was_growing = True
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
            run_logs = tuple(apply_overrides(one, self.overrides) for one in run_logs)
            if self._name:
                run_logs = tuple(replace(one, name=self._name) for one in run_logs)
            self._run_logs = run_logs
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

    def news(self) -> WatchUpdate | None:
        """What the latest explanation has and the ones before had not. A finding that became more severe is
        new, too. None where there is no explanation yet."""
        if self.explanation is None:
            return None
        found = {one.id or one.title: one for one in self.explanation.findings}
        findings = [
            one for name, one in found.items() if one.severity_level > self._reported_levels.get(name, -1)
        ]
        self._reported_levels |= {one.id or one.title: one.severity_level for one in findings}
        last = self._run_logs[-1]
        evals = {(last.first_line, one.segment, one.iteration): one for one in last.evals}
        new_evals = tuple(one for key, one in evals.items() if key not in self._reported_evals)
        self._reported_evals |= evals.keys()
        return WatchUpdate(
            self.explanation.facts.last_iteration, new_evals, tuple(findings), self.explanation
        )


def _is_other_run(one: RunLog, other: RunLog) -> bool:
    names = [(run_log.first_line, run_log.run_name, run_log.trainer.id) for run_log in (one, other)]
    return names[0] != names[1]
