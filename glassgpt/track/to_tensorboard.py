"""A run for TensorBoard: event files in its folder, `tensorboard --logdir runs` shows them."""

from __future__ import annotations

from importlib import import_module

from glassgpt.record.journal import Record
from glassgpt.track.metrics import metrics_of
from glassgpt.track.tracker import LoggedIters, TrackedRun

TENSORBOARD_FOLDER = "tensorboard"


class TensorBoard:
    """TensorBoard forgets what lies at or past a file's `purge_step`; a resumed run uses that."""

    def begin(self, run: TrackedRun) -> LoggedIters:
        folder = run.directory / TENSORBOARD_FOLDER
        kept = {series: min(last, run.from_iter) for series, last in run.already_logged.items()}
        purge_step = max(kept.values(), default=-1) + 1 if folder.exists() else None
        writing = import_module("torch.utils.tensorboard")
        self._writer = writing.SummaryWriter(str(folder), purge_step=purge_step)
        if not kept:
            table = "".join(f"| {name} | {value} |\n" for name, value in run.settings.items())
            self._writer.add_text("settings", f"| | |\n|---|---|\n{table}")
        return kept

    def log(self, record: Record) -> None:
        for name, value in metrics_of(record).items():
            self._writer.add_scalar(name, value, record["iter"], record["time"])

    def end(self, record: Record) -> None:
        self._writer.close()
