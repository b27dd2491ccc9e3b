"""The trackers: one class for each, and the options of `glass track`. tracker_feed.py has their interface.

A new tracker is one class here, a line in TRACKER_CLASSES and its name in config.TRACKERS.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from glassgpt.config import TrainConfig, requested_trackers
from glassgpt.errors import UserError
from glassgpt.record.journal import Record
from glassgpt.track.tracker_feed import LoggedIters, TrackedRun, Tracker, TrackerFeed, metrics_of


@dataclass(frozen=True)
class TrackOptions:
    """Send a run to experiment trackers, from its journal.

    Records that a resume superseded are left out. A tracker that logged during the run gets what it lacks.
    """

    # Trackers, e.g. csv,tensorboard: any of csv, tensorboard, trackio, wandb.
    to: str = ""


# --- csv ---

# fmt: off
CSV_COLUMNS = {
    "step": ("iter", "time", "process", "loss", "loss_mean", "lr", "grad_norm", "clipped", "tokens",
             "updates", "step_ms", "first_update_ms", "tokens_per_s", "flops_per_s", "mfu", "eta_s"),
    "eval": ("iter", "time", "process", "split", "loss", "stderr", "perplexity", "bits_per_byte", "tokens",
             "whole_split", "closing", "best", "ms"),
}
# fmt: on
CSV_FILES = {"step": "steps.csv", "eval": "evals.csv"}


class CsvFiles:
    """Two tables in the run's folder, for a spreadsheet: steps.csv and evals.csv.

    Every process of the run writes them anew from the journal, so that superseded rows are gone.
    """

    def begin(self, run: TrackedRun) -> LoggedIters:
        self._files: list[IO[str]] = []
        self._writers: dict[str, csv.DictWriter[str]] = {}
        for kind, name in CSV_FILES.items():
            path = run.directory / name
            if path.is_fifo():  # opening one would wait for a reader, maybe for ever
                raise UserError(f"{path} is a pipe, not a file: move it away")
            # Line-buffered, so that it can be read while the run trains. newline="": csv writes line ends.
            file = path.open("w", encoding="utf-8", newline="", buffering=1)
            writer = csv.DictWriter(file, CSV_COLUMNS[kind], extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            self._files.append(file)
            self._writers[kind] = writer
        return {}

    def log(self, record: Record) -> None:
        when = datetime.fromtimestamp(record["time"], UTC)  # in a format that spreadsheets read
        self._writers[record["kind"]].writerow({**record, "time": f"{when:%Y-%m-%d %H:%M:%S}"})

    def end(self, record: Record) -> None:
        for file in self._files:
            file.close()


# --- TensorBoard ---

TENSORBOARD_FOLDER = "tensorboard"


class TensorBoard:
    """Event files in the run's folder: `tensorboard --logdir runs` shows them.

    TensorBoard drops what lies at or past a file's `purge_step`, which a resumed run uses.
    """

    def begin(self, run: TrackedRun) -> LoggedIters:
        folder = run.directory / TENSORBOARD_FOLDER
        retained = {series: min(last, run.from_iter) for series, last in run.already_logged.items()}
        purge_step = max(retained.values(), default=-1) + 1 if folder.exists() else None
        tensorboard = import_module("torch.utils.tensorboard")
        self._writer = tensorboard.SummaryWriter(str(folder), purge_step=purge_step)
        if not retained:
            table = "".join(f"| {name} | {value} |\n" for name, value in run.settings.items())
            self._writer.add_text("settings", f"| | |\n|---|---|\n{table}")
        return retained

    def log(self, record: Record) -> None:
        for name, value in metrics_of(record).items():
            self._writer.add_scalar(name, value, record["iter"], record["time"])

    def end(self, record: Record) -> None:
        self._writer.close()


# --- trackio ---


class Trackio:
    """trackio stores runs in its own folder: `trackio show` opens them in a browser.

    It cannot delete what was logged, so a resumed run logs only what lies past that.
    """

    def begin(self, run: TrackedRun) -> LoggedIters:
        def print_nothing(*_: Any, **__: Any) -> None:
            pass

        trackio = import_module("trackio")
        for module in (trackio, import_module("trackio.run"), import_module("trackio.utils")):
            module.print = print_nothing  # type: ignore[attr-defined]  # it would print between our lines
        self._run = trackio.init(
            project=run.project,
            name=run.name,
            # "never": another run may have this name. "allow": the run may be gone there, and is made anew.
            resume="allow" if run.already_logged else "never",
            config={**run.settings, "id": run.id},
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return run.already_logged

    def log(self, record: Record) -> None:
        self._run.log(metrics_of(record), step=record["iter"])

    def end(self, record: Record) -> None:
        self._run.finish()


# --- Weights & Biases ---


class Wandb:
    """Weights & Biases. wandb's environment variables hold, WANDB_MODE=offline for one.

    It cannot delete what was logged, so a resumed run logs only what lies past that.
    """

    def begin(self, run: TrackedRun) -> LoggedIters:
        wandb = import_module("wandb")
        # It must not ask for a key, print between our lines, or capture the output.
        settings = wandb.Settings(silent=True, console="off", disable_git=True, save_code=False)
        online = os.environ.get("WANDB_MODE", "online") == "online"
        if online and not wandb.api.api_key and not os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
            raise UserError("wandb has no key here: `wandb login` asks for it, WANDB_MODE=offline needs none")
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            id=run.id,
            resume="allow",
            dir=str(run.directory),
            config=dict(run.settings),
            settings=settings,
        )
        return run.already_logged

    def log(self, record: Record) -> None:
        self._run.log(metrics_of(record), step=record["iter"])

    def end(self, record: Record) -> None:
        if record.get("best_iter") is not None:
            self._run.summary.update({name: record[name] for name in ("best_val_loss", "best_iter")})
        self._run.finish(exit_code=record.get("exit_code", 0))


# --- opening them ---

TRACKER_CLASSES: Mapping[str, Callable[[], Tracker]] = {
    "csv": CsvFiles,
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": Wandb,
}


def make_feeds(config: TrainConfig, run_dir: Path) -> dict[str, TrackerFeed]:
    """The listeners for the sink: one for each tracker in --track."""
    return {name: make_feed(name, run_dir) for name in requested_trackers(config)}


def make_feed(name: str, run_dir: Path) -> TrackerFeed:
    return TrackerFeed(name, TRACKER_CLASSES[name], run_dir)


def check_installed(names: Iterable[str]) -> None:
    """Raises if a tracker is missing. It does not import them: that takes seconds, and is done in threads."""
    missing = [name for name in names if name != "csv" and find_spec(name) is None]
    if missing:
        raise UserError([f'{name} is not installed: pip install "glassgpt[track]"' for name in missing])
