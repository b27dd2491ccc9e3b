"""What is new of a run, for one reader: the events of one open page.

    stream = RunStream(followed, cursor)         # of the view that the page has
    for event in stream.tick():                  # about once a second
        event.name, event.data                   # "append", {"series": …, "rows": …, "cursor": …}

Events: `append` (rows that came since), `supersede` (a resume repeats everything after an update), `reset`
(fetch everything anew), `summary` (the parts of the view that changed), `end`. A cursor says up to which
update the reader has steps and evaluations, and of which reading of the file; it is opaque to the page, which
may come back with it after its connection was lost. Cursors are by update, not by row: a very long run is
thinned, and its rows then move.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from glassgpt.explain.watch import FollowedRun
from glassgpt.runs.run_log import RunLog
from glassgpt.show.page.series import Rows, curves_of, decimate

MAX_TICK_ROWS = 50  # of a series, in one event
SMALL_PART_BYTES = 1000  # of a view: those are sent whenever they change
LARGE_PART_S_PER_KB = 4.0  # so the large ones are at most some 250 bytes/s each
_EVAL_SERIES = frozenset(("train_eval", "val", "bits_per_byte"))
_NOTHING = -(2**62)  # before any update


@dataclass(frozen=True)
class Cursor:
    generation: int = 0  # of FollowedRun
    processes: int = 0  # that had started
    step: int = _NOTHING  # the last update whose line the reader has
    evaluation: int = _NOTHING  # the same for evaluations

    def __str__(self) -> str:
        return f"{self.generation}.{self.processes}.{self.step}.{self.evaluation}"

    @classmethod
    def parse(cls, text: str) -> Cursor | None:
        try:
            generation, processes, step, evaluation = (int(part) for part in text.split("."))
        except ValueError:
            return None
        return cls(generation, processes, step, evaluation)


@dataclass(frozen=True)
class PageEvent:
    name: str
    data: dict[str, Any]
    cursor: str = ""  # for Last-Event-ID


def cursor_of(followed: FollowedRun) -> Cursor:
    """Of a reader that has everything."""
    run_log = followed.run_log
    if run_log is None:
        return Cursor(followed.generation)
    steps, evals = run_log.steps.iteration, [one.iteration for one in run_log.evals]
    return Cursor(
        followed.generation,
        len(run_log.segments),
        int(steps.max()) if len(steps) else _NOTHING,
        max((at for at in evals if at is not None), default=_NOTHING),
    )


def superseding_update(run_log: RunLog, processes: int) -> int | None:
    """The update after which rows of the first processes are not valid any more, as later ones resumed."""
    starts = [part.first_iteration for part in run_log.segments[processes:]]
    known = [start for start in starts if start is not None]
    if not known:
        return None
    # Line N of a journal is after N updates; of most others it is update N itself, and is repeated.
    return min(known) - (not run_log.trainer.lines_count_updates)


def rows_since(run_log: RunLog, cursor: Cursor, points: int = MAX_TICK_ROWS) -> dict[str, Rows]:
    """The rows that a reader lacks, decimated; without the series that have none."""
    new = {}
    for name, curve in curves_of(run_log, since=min(cursor.step, cursor.evaluation)).items():
        after = cursor.evaluation if name in _EVAL_SERIES else cursor.step
        part = curve.after(after)
        if len(part):
            new[name] = decimate(part, points)
    return new


class RunStream:
    """The state of one reader: what it has, by cursor, and the text of each part of the view."""

    def __init__(
        self,
        followed: FollowedRun,
        cursor: str,
        view: dict[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`view`: what the reader has been sent, if that is known."""
        self._followed, self._clock = followed, clock
        self._sent_at: dict[str, float] = {}  # by part of the view
        self._cursor = Cursor.parse(cursor)
        self._view, self._texts = view, _texts(view)
        self._has_ended = False

    @property
    def cursor(self) -> str:
        return str(self._cursor or Cursor())

    def tick(self, view: dict[str, Any] | None = None) -> Iterator[PageEvent]:
        """What is new since the last tick. `view`: the present one."""
        run_log, now = self._followed.run_log, cursor_of(self._followed)
        if run_log is None:
            return
        if self._cursor is None or self._cursor.generation != now.generation:
            self._cursor, self._texts = now, _texts(view)
            yield PageEvent("reset", {}, str(now))
            return
        cursor = self._cursor
        if now.processes > cursor.processes:
            from_iter = superseding_update(run_log, cursor.processes)
            if from_iter is not None and from_iter < max(cursor.step, cursor.evaluation):
                kept = (min(cursor.step, from_iter), min(cursor.evaluation, from_iter))
                cursor = Cursor(cursor.generation, now.processes, *kept)
                self._cursor = cursor
                yield PageEvent("supersede", {"from_iter": from_iter}, str(cursor))
            cursor = replace(cursor, processes=now.processes)
        if (now.step, now.evaluation) != (cursor.step, cursor.evaluation):
            self._cursor = now
            for name, rows in rows_since(run_log, cursor).items():
                yield PageEvent("append", {"series": name, "rows": rows, "cursor": str(now)}, str(now))
        self._cursor = now
        is_new, self._view = view is not self._view, view
        if view is not None and is_new and (changed := self._changed_parts(view)):
            yield PageEvent("summary", changed, str(now))
        if not self._followed.is_live and not self._has_ended:
            self._has_ended = True
            progress = self._followed.progress()
            yield PageEvent("end", {"reason": progress.state if progress else "cut"}, str(now))
        elif self._followed.is_live:
            self._has_ended = False  # resumed

    def _changed_parts(self, view: dict[str, Any]) -> dict[str, Any]:
        """Parts that differ from what the reader has. While the run goes on, of the large ones one at a time,
        the one that has waited longest, and each only once in a while: a caption need not change every
        second."""
        now, texts = self._clock(), _texts(view)
        changed = [name for name, text in texts.items() if text != self._texts.get(name)]
        if self._followed.is_live:
            waits = {name: _wait_s(len(texts[name])) for name in changed}
            due = [name for name in changed if now - self._sent_at.get(name, -math.inf) >= waits[name]]
            large = [name for name in due if waits[name]]
            large.sort(key=lambda name: self._sent_at.get(name, -math.inf))
            changed = [name for name in due if not waits[name] or name in large[:1]]
        for name in changed:
            self._texts[name], self._sent_at[name] = texts[name], now
        return {name: view[name] for name in changed}


def _wait_s(size: int) -> float:
    """The least time between two times that a part of so many bytes is sent."""
    return 0.0 if size < SMALL_PART_BYTES else LARGE_PART_S_PER_KB * size / 1000


def _texts(view: dict[str, Any] | None) -> dict[str, str]:
    return {name: json.dumps(part, sort_keys=True) for name, part in (view or {}).items()}
