"""The results of rows: one JSON line each, appended, so that rows may be measured in several sessions."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LossByContext = dict[int, float]  # by context


@dataclass(frozen=True)
class Result:
    """`values` are compared with the threshold: a ratio per round, or a share. All from one command."""

    row: str
    device: str  # "cpu" or "cuda"
    machine: str
    unit: str  # of the two sides' figures
    nanogpt: list[float]
    glassgpt: list[float]
    values: list[float]
    nanogpt_losses: list[LossByContext] = field(default_factory=list)
    glassgpt_losses: list[LossByContext] = field(default_factory=list)
    objection: str = ""  # why it does not count, e.g. a worse loss
    details: dict[str, Any] = field(default_factory=dict)
    time: float = field(default_factory=time.time)

    @property
    def value(self) -> float:
        return statistics.median(self.values)

    @property
    def key(self) -> tuple[str, str]:
        return self.row, self.device


def full_context_loss(losses: LossByContext) -> float:
    """At the model's own context, the longest there is."""
    return losses[max(losses)]


def median_loss(losses: Iterable[LossByContext]) -> float:
    """NaN if any of them is NaN: statistics.median would hide it."""
    own = [full_context_loss(one) for one in losses]
    return math.nan if any(map(math.isnan, own)) else statistics.median(own)


def to_json(result: Result) -> dict[str, Any]:
    return dataclasses.asdict(result) | {"value": result.value}


def append(path: Path, result: Result) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(to_json(result)) + "\n")


def read_latest(path: Path) -> list[Result]:
    """The latest result of each row and device, in file order."""
    found: dict[tuple[str, str], Result] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        document = json.loads(line)
        document.pop("value")
        for side in ("nanogpt_losses", "glassgpt_losses"):  # JSON keys are strings
            document[side] = [{int(context): loss for context, loss in one.items()} for one in document[side]]
        result = Result(**document)
        found.pop(result.key, None)
        found[result.key] = result
    return list(found.values())


def latest(path: Path, row: str, device: str) -> Result | None:
    return next((result for result in read_latest(path) if result.key == (row, device)), None)
