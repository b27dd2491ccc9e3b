"""A run for trackio, which keeps runs in a folder of its own: `trackio show` opens them in a browser."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from glassgpt.record.journal import Record
from glassgpt.track.metrics import metrics_of
from glassgpt.track.tracker import LoggedIters, TrackedRun


class Trackio:
    """trackio cannot take anything back: it keeps what it was told, and is told only what lies past that."""

    def begin(self, run: TrackedRun) -> LoggedIters:
        trackio = import_module("trackio")
        for module in (trackio, import_module("trackio.run"), import_module("trackio.utils")):
            module.print = _print_nothing  # type: ignore[attr-defined]  # else: between our lines
        self._run = trackio.init(
            project=run.project,
            name=run.name,
            # Another run may have this name. One that was told may be gone from there: then it is made anew.
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


def _print_nothing(*words: Any, **options: Any) -> None:
    pass
