"""Runs that tell a tracker about themselves, and a tracker that keeps what it is told."""

from __future__ import annotations

import csv
import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassgpt.config import TrainConfig
from glassgpt.record import journal, sink
from glassgpt.record.journal import Record
from glassgpt.track import trackers
from glassgpt.track.tracker import Told, TrackedRun
from glassgpt.track.trackers import MAKERS
from glassgpt.training.learner import Learner
from glassgpt.training.session import train

MakeConfig = Callable[..., TrainConfig]


def records(run_dir: Path | str, kind: str | None = None) -> list[Record]:
    """What holds."""
    found = journal.current(journal.read(Path(run_dir) / journal.NAME))
    return [record for record in found if kind in (None, record["kind"])]


def resume(config: TrainConfig, **changes: Any) -> None:
    train(dataclasses.replace(config, init_from="resume", **changes))


def run_until_crash(config: TrainConfig, number: int) -> None:
    """It fails when it comes to update `number`, from 0."""
    original = Learner.update

    def update(learner: Learner, at: int, first_sequence: int) -> None:
        if at == number:
            raise RuntimeError("on purpose")
        original(learner, at, first_sequence)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "update", update)
        with pytest.raises(RuntimeError, match="on purpose"):
            train(config)


def findings(run_dir: Path | str) -> dict[str, Record]:
    return {record["id"]: record for record in records(run_dir, "finding")}


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


class Notebook:
    """A tracker that keeps what it is told; `forgets`: it can take back what was superseded."""

    def __init__(self, forgets: bool = False) -> None:
        self.forgets = forgets
        self.opened: list[TrackedRun] = []
        self.taken: list[Record] = []
        self.ended: list[Record] = []

    def begin(self, run: TrackedRun) -> Told:
        self.opened.append(run)
        if not self.forgets:
            return run.told
        self.taken = [record for record in self.taken if record["iter"] <= run.from_iter]
        return {series: min(last, run.from_iter) for series, last in run.told.items()}

    def take(self, record: Record) -> None:
        self.taken.append(record)

    def end(self, record: Record) -> None:
        self.ended.append(record)

    def losses(self) -> list[tuple[int, str, float]]:
        return [(record["iter"], record.get("split", ""), record["loss"]) for record in self.taken]


def told(run_dir: Path | str) -> list[tuple[int, str, float]]:
    """What the journal says that holds."""
    found = [record for record in records(run_dir) if record["kind"] in ("step", "eval")]
    return [(record["iter"], record.get("split", ""), record["loss"]) for record in found]


def notebook_for_wandb(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    """Takes the place of wandb, which here needs not be installed."""
    made = Notebook()
    monkeypatch.setattr(trackers, "MAKERS", {"csv": MAKERS["csv"], "wandb": lambda: made})
    monkeypatch.setattr(trackers, "find_spec", lambda name: object())
    return made


def failing_once(event: threading.Event) -> Callable[[Notebook, Record], None]:
    """A notebook's `take` that fails at the third update, and not before the event."""

    def take(self: Notebook, record: Record) -> None:
        if record["kind"] == "step" and record["iter"] == 3:
            event.wait(20)
            raise ConnectionError("gone")
        self.taken.append(record)

    return take


def patiently(call: Callable[..., None]) -> Callable[..., None]:
    """So that a listener has heard one record before the next comes: in a test a run is over in no time."""

    def patient(self: sink.Sink, record: Record) -> None:
        call(self, record)
        time.sleep(0.02)

    return patient
