"""The trackers there are, and whether this machine has what they need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

from glassgpt.config import TrainConfig, requested_trackers
from glassgpt.errors import UserError
from glassgpt.track.follower import TrackerFeed
from glassgpt.track.to_csv import CsvFiles
from glassgpt.track.to_tensorboard import TensorBoard
from glassgpt.track.to_trackio import Trackio
from glassgpt.track.to_wandb import Wandb
from glassgpt.track.tracker import Tracker

TRACKER_CLASSES: Mapping[str, Callable[[], Tracker]] = {
    "csv": CsvFiles,
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": Wandb,
}


def make_feeds(config: TrainConfig, run_dir: Path) -> dict[str, TrackerFeed]:
    """For the sink: who is to be told about this run."""
    return {name: make_feed(name, run_dir) for name in requested_trackers(config)}


def make_feed(name: str, run_dir: Path) -> TrackerFeed:
    return TrackerFeed(name, TRACKER_CLASSES[name], run_dir)


def check_installed(names: Iterable[str]) -> None:
    """Before anything is written. Importing them is left to their threads: it takes seconds."""
    missing = [name for name in names if name != "csv" and find_spec(name) is None]
    if missing:
        raise UserError([f'{name} is not installed: pip install "glassgpt[track]"' for name in missing])
