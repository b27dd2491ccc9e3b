"""Tells a tracker about a run from its records, live or from the journal: what holds, in order, each once.

A run that is resumed does some updates again. A tracker that can take back what it was told does so. One that
cannot keeps the first telling, and is told again only what lies past it.

What a tracker was told stands in a file of its own, RUN/told/NAME.json: it may be behind the run when that is
killed, or fail or hang after the last record, and then the journal does not know what it never had.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from glassgpt.config import tracker_names
from glassgpt.files import read_small_file
from glassgpt.record import journal
from glassgpt.record.journal import Record
from glassgpt.track.tracker import LoggedIters, Series, TrackedRun, Tracker, series_of

DEFAULT_PROJECT = "glassgpt"  # where the settings name none
LOGGED_FOLDER = "told"


class TrackerFeed:
    """A listener of the sink, for one tracker. The tracker is made in the thread of the listener."""

    def __init__(self, name: str, make: Callable[[], Tracker], run_dir: Path) -> None:
        self._name, self._make, self._run_dir = name, make, run_dir
        self._run: Record | None = None
        self._tracker: Tracker | None = None
        self._already_logged: LoggedIters = {}  # since before this process, or since the tracker was opened
        self._newly_logged: dict[Series, int] = {}  # since then

    def __call__(self, record: Record) -> None:
        if record["kind"] == "run":
            self._run = record
            if record["process"] == 0:
                self._open_tracker(record, list, -1)
            return  # a later process says next from where it goes on
        if record["kind"] == "finding":  # which no tracker is told; another's failure may come before that
            return
        if self._tracker is None and self._run is not None:
            process = self._run["process"]

            def earlier() -> Iterator[Record]:
                yield from (old for old in self._journal() if old.get("process", 0) < process)
                yield record

            from_iter = record["from_iter"] if record["kind"] == "resume" else record["iter"]
            self._open_tracker(self._run, earlier, from_iter)
            return
        self._log(record)

    def last_logged_records(self) -> list[Record]:
        """The last that the tracker was told of each series, by this process or an earlier one."""
        return [
            {"kind": kind, "split": split, "closing": closing, "iter": last}
            for (kind, split, closing), last in {**self._already_logged, **self._newly_logged}.items()
        ]

    def replay(self) -> int:
        """Tells what is in the journal now, as far as the tracker does not have it; how many records."""
        records = list(self._journal())
        run = next(record for record in reversed(records) if record["kind"] == "run")
        told = self._open_tracker(run, lambda: records, -1)
        last = records[-1]
        self._end(last if last["kind"] == "end" else {"kind": "end", "iter": last["iter"], "exit_code": 0})
        return told

    def _journal(self) -> Iterable[Record]:
        return journal.read(self._run_dir / journal.FILE_NAME)

    def _open_tracker(self, run: Record, earlier: Callable[[], Iterable[Record]], from_iter: int) -> int:
        """Opens the tracker, and tells it what it lacks of `earlier` records, read anew at every call."""
        model = run.get("model", {})
        # Which holds also if the tracker cannot be opened.
        noted = self._read_progress()
        self._already_logged = logged_before(earlier(), self._name) if noted is None else noted
        self._save_progress()
        tracked = TrackedRun(
            directory=self._run_dir,
            name=str(run["config"].get("wandb_run_name") or self._run_dir.resolve().name),
            project=str(run["config"].get("wandb_project") or DEFAULT_PROJECT),
            id=run_id(next((record for record in earlier() if record["kind"] == "run"), run)),
            settings={**run["config"], **{f"model.{name}": value for name, value in model.items()}},
            already_logged=self._already_logged,
            from_iter=from_iter,
        )
        self._tracker = self._make()
        self._already_logged = self._tracker.begin(tracked)
        kept = journal.stream_effective_records(earlier)
        return sum(self._log(record) for record in kept if record["kind"] in ("step", "eval"))

    def _log(self, record: Record) -> bool:
        if self._tracker is None:
            return False
        if record["kind"] == "end":
            self._end(record)
        if record["kind"] not in ("step", "eval") or record["iter"] <= self._already_logged.get(
            series_of(record), -1
        ):
            return False
        self._tracker.log(record)
        self._newly_logged[series_of(record)] = record["iter"]
        self._save_progress()
        return True

    def _save_progress(self) -> None:
        """Not waiting for the disk: after a power cut the journal will do."""
        path = self._progress_path
        path.parent.mkdir(exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.last_logged_records()))
        os.replace(temporary, path)

    def _read_progress(self) -> dict[Series, int] | None:
        """None if there is no such file, as of a run from before there was one."""
        try:
            return {
                series_of(last): int(last["iter"])
                for last in json.loads(read_small_file(self._progress_path))
            }
        except (OSError, ValueError, LookupError, TypeError):
            return None

    @property
    def _progress_path(self) -> Path:
        return self._run_dir / LOGGED_FOLDER / f"{self._name}.json"

    def _end(self, record: Record) -> None:
        if self._tracker is not None:
            self._tracker.end(record)
            self._tracker = self._run = None


def logged_before(records: Iterable[Record], name: str) -> dict[Series, int]:
    """As far as the journal knows, if there is no note: how far processes that had this tracker told it each
    series. Where it failed, the journal says how far it was: by then the run may have been far ahead."""
    told: dict[Series, int] = {}
    listening = False
    for record in records:
        if record["kind"] == "run":
            listening = name in tracker_names(record.get("config", {}))
        elif record["kind"] == "finding" and record.get("id") == f"{name}-failed":
            listening = False
            told = {series_of(last): last["iter"] for last in record.get("told", ())}
        elif listening and record["kind"] in ("step", "eval"):
            series = series_of(record)
            told[series] = max(told.get(series, -1), record["iter"])
    return told


def run_id(first: Record) -> str:
    """From the run's first record: the same for all its processes, another for every run."""
    seed = f"{first['time']} {first.get('out_dir')} {first.get('config')}"
    return hashlib.sha256(seed.encode(errors="replace")).hexdigest()[:16]
