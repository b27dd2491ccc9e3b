"""The options of `glass track`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrackOptions:
    """Tell trackers about a run that there is, from its journal.

    What was superseded by a resume is left out. A tracker that was told during the run is told what it lacks.
    """

    # Whom to tell, e.g. csv,tensorboard: any of csv, tensorboard, trackio, wandb.
    to: str = ""
