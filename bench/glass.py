"""GlassGPT's side: `glass train` as a process of its own, and its journal read."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.peers import Flags, as_flags
from bench.watch import cache_environment, run_timed
from glassgpt.record import journal
from glassgpt.record.journal import Record

ROOT = Path(__file__).resolve().parent.parent
OVERHEAD_PHASES = ("eval", "checkpoint", "log")


@dataclass(frozen=True)
class GlassRun:
    out_dir: Path
    wall_s: float
    records: list[Record]

    def records_of(self, kind: str) -> list[Record]:
        return [record for record in self.records if record["kind"] == kind]

    @property
    def ledger(self) -> dict[str, float]:
        """Seconds per phase, which sum to the process's life."""
        return dict(self.records_of("end")[-1]["ledger"])

    @property
    def forecast(self) -> dict[str, Any]:
        """Memory, speed and time: what was expected, and what came."""
        return dict(self.records_of("end")[-1]["forecast"])


def run_glass_train(preset: str, out: Path, caches: Path, settings: Flags) -> GlassRun:
    command = [sys.executable, "-m", "glassgpt", "train", preset, *as_flags({**settings, "out_dir": out})]
    watched = run_timed(command, ROOT, cache_environment(caches))
    return GlassRun(out, watched.wall_s, list(journal.read(out / journal.FILE_NAME)))


def interval_ms(run: GlassRun, warm_up: int) -> list[float]:
    """Milliseconds of an update, by the clock on the wall, from one log line to the next: as of the peers.

    Intervals with an evaluation or a save in them are left out.
    """
    stops = [record["time"] for kind in ("eval", "checkpoint") for record in run.records_of(kind)]
    logged = [step for step in run.records_of("step") if step["iter"] > warm_up]
    return [
        1000 * (after["time"] - before["time"]) / (after["iter"] - before["iter"])
        for before, after in pairwise(logged)
        if not any(before["time"] < stop <= after["time"] for stop in stops)
    ]


def peak_bytes(run: GlassRun) -> int | None:
    """Of the card's memory, as the allocator counts it: nanoGPT is asked for the same."""
    peaks = [step["memory"].get("allocated_peak") for step in run.records_of("step")]
    return max((int(peak) for peak in peaks if peak is not None), default=None)


def read_choices(run: GlassRun) -> dict[str, str]:
    """What it decided by itself, by name."""
    found = (choice for record in run.records_of("run") for choice in record["choices"])
    return {choice["name"]: str(choice["value"]) for choice in found}


def overhead_share(run: GlassRun) -> float:
    """What evaluating, saving and logging took of the whole process, imports and compiling included."""
    ledger = run.ledger
    return sum(ledger[phase] for phase in OVERHEAD_PHASES) / sum(ledger.values())


def project_overhead_share(run: GlassRun, long: Flags) -> float:
    """The same of a run too long to be run: from the cost of one evaluation, save and line, and of an update.

    `long`: its eval_interval, checkpoint_interval (or None: at every evaluation) and log_interval.
    """
    steps = run.records_of("step")
    update_s: float = statistics.median(step["step_ms"] for step in steps if step["step_ms"]) / 1000
    per_evaluation: dict[int, float] = {}
    for record in run.records_of("eval"):
        if record["iter"] and not record["closing"]:
            per_evaluation[record["iter"]] = per_evaluation.get(record["iter"], 0.0) + record["ms"] / 1000
    evaluation_s = statistics.median(per_evaluation.values())
    save_s = statistics.median(record["blocking_ms"] for record in run.records_of("checkpoint")) / 1000
    line_s = run.ledger["log"] / len(steps)
    every = {name: int(str(value)) for name, value in long.items() if value is not None}
    evaluating = evaluation_s / every["eval_interval"]
    saving = save_s / every.get("checkpoint_interval", every["eval_interval"])
    extra_s: float = evaluating + saving + line_s / every["log_interval"]
    return extra_s / (update_s + extra_s)


def update_times_ms(run: GlassRun, warm_up: int) -> list[float]:
    """Every update's own time; the run must have logged each."""
    return [step["step_ms"] for step in run.records_of("step") if step["iter"] > warm_up and step["step_ms"]]


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent are not above."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]
