"""A run for Weights & Biases. What wandb reads from the environment holds, WANDB_MODE=offline for one."""

from __future__ import annotations

import os
from importlib import import_module

from glassgpt.errors import UserError
from glassgpt.record.journal import Record
from glassgpt.track.metrics import metrics_of
from glassgpt.track.tracker import LoggedIters, TrackedRun


class Wandb:
    """wandb cannot take anything back: it keeps what it was told, and is told only what lies past that."""

    def begin(self, run: TrackedRun) -> LoggedIters:
        wandb = import_module("wandb")
        # It must ask nobody for a key, print nothing between our lines, and leave the output alone.
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
