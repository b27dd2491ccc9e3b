"""A run from its settings to its end: `glassgpt.train(config)` and `glass train` both come here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassgpt.account.clock import Ledger
from glassgpt.account.sink import Listener
from glassgpt.config import TrainConfig
from glassgpt.data.tokenizers import tokenizer_files
from glassgpt.recipe import Recipe, combine, read_recipe
from glassgpt.train import loop, record
from glassgpt.train.device import choose_device
from glassgpt.train.interrupt import Stop
from glassgpt.train.job import set_up
from glassgpt.train.rundir import CONFIG, existing_run_dir
from glassgpt.train.state import restore


@dataclass(frozen=True)
class Run:
    """A run that has ended."""

    out_dir: Path
    reason: str
    exit_code: int
    iter: int
    best_val_loss: float
    best_iter: int | None


def resolve(recipe: Recipe, overrides: Mapping[str, Any]) -> TrainConfig:
    """All layers put together, for a new run or for one that goes on."""
    asked = combine(recipe, overrides)
    if asked.init_from == "resume":
        return _resolve_resumed(recipe, asked, overrides)
    if not recipe.by_device:
        return asked
    device, _ = choose_device(asked.device)
    return combine(recipe, overrides, device.type)


def _resolve_resumed(recipe: Recipe, asked: TrainConfig, overrides: Mapping[str, Any]) -> TrainConfig:
    """The settings the run was started with, and on top of them what is said now."""
    run_dir = existing_run_dir(asked.out_dir, recipe.name)
    stored = read_recipe(run_dir / CONFIG)
    settings = dict(stored.settings)
    if "device" in overrides and overrides["device"] != settings.get("device"):
        # Decided for the other device; here they are open again.
        for name in ("dtype", "compile"):
            settings.pop(name, None)
        if "batch_tokens" in settings:
            settings.pop("batch_size", None)
    resumed = combine(dataclasses.replace(stored, settings=settings), overrides)
    return dataclasses.replace(resumed, init_from="resume", out_dir=str(run_dir))


def train(
    config: TrainConfig,
    name: str = "run",
    listeners: Sequence[Listener] = (),
    process_age_s: float = 0.0,
) -> Run:
    """Trains. `listeners` get every record; the journal in the run's folder has them in any case.

    `process_age_s`: how long the process had lived before it came here, if that belongs to the run.
    """
    ledger = Ledger(age_s=process_age_s)
    with Stop() as stop, ExitStack() as at_the_end:
        with ledger.phase("startup"):
            job = set_up(config, name, listeners, ledger, stop)
            for part in (job.place, job.sink, job.saver):  # closed in the opposite order
                at_the_end.callback(part.close)
            complaints = restore(job) if config.init_from == "resume" else None
            job.place.write_config(job.resolved_config())
            job.place.copy_tokenizer(tokenizer_files(job.dataset.directory))
            job.sink(record.run_record(job))
            if complaints is not None:
                job.sink(record.resume_record(job, complaints))
        try:
            ending = loop.run(job)
        except KeyboardInterrupt:  # the second Ctrl-C
            job.sink(record.end_record(job, "interrupted", 130, None))
            raise
        except BaseException as error:
            what = {"error": f"{type(error).__name__}: {error}"[:2000]}
            job.sink(record.end_record(job, "crashed", 1, what))
            raise
        job.sink(record.end_record(job, ending.reason, ending.exit_code, ending.details))
    progress = job.progress
    return Run(
        job.run_dir,
        ending.reason,
        ending.exit_code,
        progress.iter,
        progress.best_val_loss,
        progress.best_iter,
    )
