"""What a tracker is: something that is told about a run, record by record, each once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from glassgpt.record.journal import Record

# `step`, or an evaluation of one split; and up to which iteration it was told.
Series = tuple[str, str, bool]
LoggedIters = Mapping[Series, int]


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker has to know to open a run, or to go on with it."""

    directory: Path
    name: str
    project: str
    id: str  # the same in every process of the run
    settings: Mapping[str, Any]  # of the run, as its record says
    already_logged: LoggedIters = field(default_factory=dict)  # what earlier processes told this tracker
    from_iter: int = -1  # the run goes on from here: what was told past it is superseded


class Tracker(Protocol):
    def begin(self, run: TrackedRun) -> LoggedIters:
        """Opens the run. Returns what it has of it already, and keeps: only later records are told."""

    def log(self, record: Record) -> None:
        """A `step` or an `eval`."""

    def end(self, record: Record) -> None:
        """The run has ended; nothing follows."""


def series_of(record: Record) -> Series:
    return record["kind"], str(record.get("split", "")), bool(record.get("closing"))
