"""The interface of a tracker, the names of its metrics, and what feeds it with a run's records.

A feed gives a tracker records live or from the journal: in order, each once, no superseded ones.

A resumed run repeats some updates. A tracker that can delete what it logged does so. One that cannot keeps
the first version, and gets only the records past it.

RUN/told/NAME.json has the last iteration that a tracker logged. The journal alone does not tell: a tracker
may lag behind a run that is killed, or fail or hang after the last record.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from glassgpt.config import tracker_names
from glassgpt.files import read_small_file
from glassgpt.record import journal
from glassgpt.record.journal import Record

# A series: `step`, or the evaluations of one split. Its records come in the order of their iterations.
Series = tuple[str, str, bool]
LoggedIters = Mapping[Series, int]  # the last iteration that was logged of each series


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker needs to open a run, or to resume it."""

    directory: Path
    name: str
    project: str
    id: str  # the same in every process of the run
    settings: Mapping[str, Any]  # as in the `run` record
    already_logged: LoggedIters = field(default_factory=dict)  # by earlier processes, to this tracker
    from_iter: int = -1  # the run resumes here: what was logged past it is superseded


class Tracker(Protocol):
    def begin(self, run: TrackedRun) -> LoggedIters:
        """Opens the run. Returns what the tracker already has and keeps: only later records are logged."""

    def log(self, record: Record) -> None:
        """Logs a `step` or an `eval`."""

    def end(self, record: Record) -> None:
        """The run has ended; nothing follows."""


def series_of(record: Record) -> Series:
    return record["kind"], str(record.get("split", "")), bool(record.get("closing"))


# --- metrics: docs/track.md explains each ---

STEP_METRICS = {
    "loss": "train/loss",
    "loss_mean": "train/loss_mean",
    "lr": "lr",
    "grad_norm": "grad_norm",
    "clipped": "clipped",
    "tokens": "tokens",
    "step_ms": "step_ms",
    "tokens_per_s": "tokens_per_s",
    "flops_per_s": "flops_per_s",
    "mfu": "mfu",
    "loss_scale": "loss_scale",
}
MEMORY_METRICS = {
    "rss": "memory/rss",
    "allocated_peak": "memory/allocated_peak",
    "reserved": "memory/reserved",
}
EVAL_METRICS = ("loss", "stderr", "perplexity", "bits_per_byte")
# By split and whether it is the closing evaluation, which is over other tokens and so not on the same curve.
SPLIT_PREFIXES = {("train", False): "train_split", ("val", False): "val", ("val", True): "val_whole"}


def metrics_of(record: Record) -> dict[str, float]:
    """The numbers of a record by the names of their metrics. NaN is a number; unknown values are left out."""
    if record["kind"] == "step":
        memory = record.get("memory")
        memory_metrics = _numbers(memory, MEMORY_METRICS) if isinstance(memory, dict) else {}
        return _numbers(record, STEP_METRICS) | memory_metrics
    if record["kind"] == "eval":
        prefix = SPLIT_PREFIXES.get((str(record.get("split")), bool(record.get("closing"))))
        return _numbers(record, {name: f"{prefix}/{name}" for name in EVAL_METRICS}) if prefix else {}
    return {}


def _numbers(values: Mapping[str, Any], metric_names: Mapping[str, str]) -> dict[str, float]:
    return {
        metric: value
        for name, metric in metric_names.items()
        if isinstance(value := values.get(name), int | float) and not isinstance(value, bool)
    }


# --- the feed ---

DEFAULT_PROJECT = "glassgpt"  # if the settings name none
PROGRESS_FOLDER = "told"


class TrackerFeed:
    """A listener of the sink, for one tracker. The tracker is made in the listener's thread."""

    def __init__(self, name: str, make: Callable[[], Tracker], run_dir: Path) -> None:
        self._name, self._make, self._run_dir = name, make, run_dir
        self._progress_path = run_dir / PROGRESS_FOLDER / f"{name}.json"
        self._run: Record | None = None
        self._tracker: Tracker | None = None
        self._already_logged: LoggedIters = {}  # when the tracker was opened
        self._newly_logged: dict[Series, int] = {}  # since then

    def __call__(self, record: Record) -> None:
        if record["kind"] == "run":
            self._run = record
            if record["process"] == 0:
                self._open_tracker(record, list, -1)
            return  # the next record of a later process says from where it resumes
        if record["kind"] == "finding":  # not logged, and it may come before the record above
            return
        if self._tracker is None and self._run is not None:
            process = self._run["process"]

            def earlier_records() -> Iterator[Record]:
                yield from (earlier for earlier in self._journal() if earlier.get("process", 0) < process)
                yield record

            from_iter = record["from_iter"] if record["kind"] == "resume" else record["iter"]
            self._open_tracker(self._run, earlier_records, from_iter)
            return
        self._log(record)

    def last_logged_records(self) -> list[Record]:
        """The last record of each series that was logged, by this process or an earlier one."""
        return [
            {"kind": kind, "split": split, "closing": closing, "iter": last}
            for (kind, split, closing), last in {**self._already_logged, **self._newly_logged}.items()
        ]

    def replay(self) -> int:
        """Logs the records in the journal that the tracker lacks. Returns their number."""
        records = list(self._journal())
        run = next(record for record in reversed(records) if record["kind"] == "run")
        logged = self._open_tracker(run, lambda: records, -1)
        last = records[-1]
        self._end(last if last["kind"] == "end" else {"kind": "end", "iter": last["iter"], "exit_code": 0})
        return logged

    def _journal(self) -> Iterable[Record]:
        return journal.read(self._run_dir / journal.FILE_NAME)

    def _open_tracker(
        self, run: Record, earlier_records: Callable[[], Iterable[Record]], from_iter: int
    ) -> int:
        """Opens the tracker, and logs the earlier records that it lacks. Returns their number."""
        try:
            self._already_logged = {
                series_of(last): int(last["iter"])
                for last in json.loads(read_small_file(self._progress_path))
            }
        except (OSError, ValueError, LookupError, TypeError):  # no such file: a new run, or an old version's
            self._already_logged = logged_before(earlier_records(), self._name)
        self._save_progress()  # before opening, which may fail
        model = run.get("model", {})
        tracked = TrackedRun(
            directory=self._run_dir,
            name=str(run["config"].get("wandb_run_name") or self._run_dir.resolve().name),
            project=str(run["config"].get("wandb_project") or DEFAULT_PROJECT),
            id=run_id(next((record for record in earlier_records() if record["kind"] == "run"), run)),
            settings={**run["config"], **{f"model.{name}": value for name, value in model.items()}},
            already_logged=self._already_logged,
            from_iter=from_iter,
        )
        self._tracker = self._make()
        self._already_logged = self._tracker.begin(tracked)
        records = journal.stream_effective_records(earlier_records(), earlier_records())
        return sum(self._log(record) for record in records if record["kind"] in ("step", "eval"))

    def _log(self, record: Record) -> bool:
        """Whether the record was logged: a `step` or an `eval` that the tracker did not have."""
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
        """Without fsync: after a power cut, `logged_before` derives it from the journal."""
        self._progress_path.parent.mkdir(exist_ok=True)
        temporary = self._progress_path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.last_logged_records()))
        os.replace(temporary, self._progress_path)

    def _end(self, record: Record) -> None:
        if self._tracker is not None:
            self._tracker.end(record)
            self._tracker = self._run = None


def logged_before(records: Iterable[Record], name: str) -> dict[Series, int]:
    """How far earlier processes logged each series, as far as the journal knows. Where the tracker failed, a
    finding says how far it was: by then the run may have been far ahead."""
    logged: dict[Series, int] = {}
    is_tracked = False
    for record in records:
        if record["kind"] == "run":
            is_tracked = name in tracker_names(record.get("config", {}))
        elif record["kind"] == "finding" and record.get("id") == f"{name}-failed":
            is_tracked = False
            logged = {series_of(last): last["iter"] for last in record.get("told", ())}
        elif is_tracked and record["kind"] in ("step", "eval"):
            series = series_of(record)
            logged[series] = max(logged.get(series, -1), record["iter"])
    return logged


def run_id(first: Record) -> str:
    """From the run's first record: the same for all its processes, different for every run."""
    seed = f"{first['time']} {first.get('out_dir')} {first.get('config')}"
    return hashlib.sha256(seed.encode(errors="replace")).hexdigest()[:16]
