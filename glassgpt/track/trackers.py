"""The trackers there are, and whether this machine has what they need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

from glassgpt.config import TrainConfig, trackers_asked
from glassgpt.errors import UserError
from glassgpt.track.follower import Follower
from glassgpt.track.to_csv import CsvFiles
from glassgpt.track.to_tensorboard import TensorBoard
from glassgpt.track.to_trackio import Trackio
from glassgpt.track.to_wandb import Wandb
from glassgpt.track.tracker import Tracker

MAKERS: Mapping[str, Callable[[], Tracker]] = {
    "csv": CsvFiles,
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": Wandb,
}


def followers(config: TrainConfig, run_dir: Path) -> dict[str, Follower]:
    """For the sink: who is to be told about this run."""
    return {name: follower(name, run_dir) for name in trackers_asked(config)}


def follower(name: str, run_dir: Path) -> Follower:
    return Follower(name, MAKERS[name], run_dir)


def check_installed(names: Iterable[str]) -> None:
    """Before anything is written. Importing them is left to their threads: it takes seconds."""
    missing = [name for name in names if name != "csv" and find_spec(name) is None]
    if missing:
        raise UserError([f'{name} is not installed: pip install "glassgpt[track]"' for name in missing])
