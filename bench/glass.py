"""GlassGPT's side: `glass train` in a subprocess, and figures from its journal."""

from __future__ import annotations

import math
import pickle
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.peers import Flags, as_flags
from bench.watch import cache_environment, run_timed
from glassgpt.config import TrainConfig
from glassgpt.record import journal
from glassgpt.record.journal import Record
from glassgpt.record.ledger import Ledger

if TYPE_CHECKING:
    from glassgpt.training.train_state import TrainSetup, TrainState

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
        """Seconds per phase; they sum to the wall time of the process."""
        return dict(self.records_of("end")[-1]["ledger"])

    @property
    def forecast(self) -> dict[str, Any]:
        """Memory, speed and time: forecast and measured."""
        return dict(self.records_of("end")[-1]["forecast"])


def run_glass_train(preset: str, out: Path, caches: Path, settings: Flags) -> GlassRun:
    command = [sys.executable, "-m", "glassgpt", "train", preset, *as_flags({**settings, "out_dir": out})]
    watched = run_timed(command, ROOT, cache_environment(caches))
    return GlassRun(out, watched.wall_s, list(journal.read(out / journal.FILE_NAME)))


def write_random_tokens(folder: Path, vocab_size: int, train: int = 3_000_000, val: int = 40_000) -> Path:
    """In nanoGPT's layout, which needs no preparing."""
    folder.mkdir(exist_ok=True)
    draw = np.random.default_rng(0)
    for split, tokens in (("train", train), ("val", val)):
        draw.integers(0, vocab_size, tokens, dtype=np.uint16).tofile(folder / f"{split}.bin")
    if vocab_size != 50257:  # without it, GPT-2 is taken for granted
        (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": vocab_size}))
    return folder


@contextmanager
def set_up_run(config: TrainConfig) -> Iterator[tuple[TrainSetup, TrainState]]:
    """What `glass train` sets up, in this process, for real updates without its loop."""
    from glassgpt.training.interrupt import StopSignals
    from glassgpt.training.run_request import request_from_config
    from glassgpt.training.setup import set_up

    with StopSignals() as stop:
        run, state = set_up(request_from_config(config), [], Ledger(), stop)
        try:
            yield run, state
        finally:
            for part in (run.saver, run.sink, run.run_dir_handle):
                part.close()


def interval_ms(run: GlassRun, warm_up: int) -> list[float]:
    """Milliseconds per update, by wall clock from one log line to the next, as for the peers.

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
    """Peak of the CUDA allocator; measured the same way for nanoGPT."""
    peaks = [step["memory"].get("allocated_peak") for step in run.records_of("step")]
    return max((int(peak) for peak in peaks if peak is not None), default=None)


def read_choices(run: GlassRun) -> dict[str, str]:
    """What the trainer chose itself, by name."""
    found = (choice for record in run.records_of("run") for choice in record["choices"])
    return {choice["name"]: str(choice["value"]) for choice in found}


def overhead_share(run: GlassRun) -> float:
    """Share of evaluation, checkpoints and logging in the wall time, imports and compiling included."""
    ledger = run.ledger
    return sum(ledger[phase] for phase in OVERHEAD_PHASES) / sum(ledger.values())


def project_overhead_share(run: GlassRun, long: Flags) -> float:
    """The same for a run too long to measure: from the cost of one evaluation, save, log line and update.

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
    """The time of each update; the run must have log_interval=1."""
    return [step["step_ms"] for step in run.records_of("step") if step["iter"] > warm_up and step["step_ms"]]


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest-rank percentile."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]
