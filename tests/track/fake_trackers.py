"""Runs that log to a tracker, and a fake tracker that stores what is logged."""

from __future__ import annotations

import csv
import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny import Crash, crash_before, records

from glassgpt.api import train
from glassgpt.config import TrainConfig
from glassgpt.record import sink
from glassgpt.record.journal import Record
from glassgpt.track import trackers
from glassgpt.track.tracker_feed import LoggedIters, TrackedRun
from glassgpt.track.trackers import TRACKER_CLASSES


def resume(config: TrainConfig, **changes: Any) -> None:
    train(dataclasses.replace(config, init_from="resume", **changes))


def run_until_crash(config: TrainConfig, number: int) -> None:
    """It fails when it comes to update `number`, from 0."""
    with pytest.MonkeyPatch.context() as patch:
        crash_before(patch, number)
        with pytest.raises(Crash):
            train(config)


def findings(run_dir: Path | str) -> dict[str, Record]:
    return {record["id"]: record for record in records(run_dir, "finding")}


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


class FakeTracker:
    """A tracker that stores what is logged. `can_rewind`: it can delete what was superseded."""

    def __init__(self, can_rewind: bool = False) -> None:
        self.can_rewind = can_rewind
        self.opened: list[TrackedRun] = []
        self.records: list[Record] = []
        self.ended: list[Record] = []

    def begin(self, run: TrackedRun) -> LoggedIters:
        self.opened.append(run)
        if not self.can_rewind:
            return run.already_logged
        self.records = [record for record in self.records if record["iter"] <= run.from_iter]
        return {series: min(last, run.from_iter) for series, last in run.already_logged.items()}

    def log(self, record: Record) -> None:
        self.records.append(record)

    def end(self, record: Record) -> None:
        self.ended.append(record)

    def losses(self) -> list[tuple[int, str, float]]:
        return [(record["iter"], record.get("split", ""), record["loss"]) for record in self.records]


def journal_losses(run_dir: Path | str) -> list[tuple[int, str, float]]:
    """The effective losses in the journal."""
    logged = [record for record in records(run_dir) if record["kind"] in ("step", "eval")]
    return [(record["iter"], record.get("split", ""), record["loss"]) for record in logged]


def replace_wandb(monkeypatch: pytest.MonkeyPatch) -> FakeTracker:
    """A fake in place of wandb, which need not be installed."""
    made = FakeTracker()
    monkeypatch.setattr(trackers, "TRACKER_CLASSES", {"csv": TRACKER_CLASSES["csv"], "wandb": lambda: made})
    monkeypatch.setattr(trackers, "find_spec", lambda name: object())
    return made


def fail_at_third_step(event: threading.Event) -> Callable[[FakeTracker, Record], None]:
    """A `log` of FakeTracker that fails at the third update, after the event."""

    def log(self: FakeTracker, record: Record) -> None:
        if record["kind"] == "step" and record["iter"] == 3:
            event.wait(20)
            raise ConnectionError("gone")
        self.records.append(record)

    return log


def with_delay(call: Callable[..., None]) -> Callable[..., None]:
    """So that a listener has got one record before the next comes: a run in a test is very short."""

    def delayed(self: sink.Sink, record: Record) -> None:
        call(self, record)
        time.sleep(0.02)

    return delayed
