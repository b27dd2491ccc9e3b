"""A run from its settings to its end: `glassgpt.train(config)` and `glass train` both come here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glassgpt.account.clock import Ledger
from glassgpt.account.sink import Listener
from glassgpt.config import TrainConfig, find_problems
from glassgpt.data.tokenizers import tokenizer_files
from glassgpt.errors import UserError
from glassgpt.recipe import Recipe, combine, read_recipe
from glassgpt.train import loop, records
from glassgpt.train.device import choose_device
from glassgpt.train.interrupt import Stop
from glassgpt.train.job import set_up
from glassgpt.train.rundir import CONFIG, check_new, existing_run_dir
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
    """All layers put together, for a new run or for one that goes on. Every problem is reported at once."""
    said = {**recipe.settings, **overrides}
    if said.get("init_from") == "resume":
        return _resolve_resumed(existing_run_dir(said.get("out_dir", ""), recipe.name), overrides)
    config = combine(recipe, overrides, _device_type(recipe, said.get("device", "auto")))
    if config.out_dir:
        check_new(config.out_dir)
    return config


def _device_type(recipe: Recipe, asked: str) -> str | None:
    """Which table of the recipe holds; a device that cannot be had is complained about later."""
    try:
        return choose_device(asked)[0].type if recipe.by_device else None
    except UserError:
        return None


def _resolve_resumed(run_dir: Path, overrides: Mapping[str, Any]) -> TrainConfig:
    """The settings the run was started with, and on top of them what is said now."""
    stored = read_recipe(run_dir / CONFIG)
    settings = dict(stored.settings)
    if "device" in overrides and overrides["device"] != settings.get("device"):
        # Decided for the other device; here they are open again.
        for name in ("dtype", "compile"):
            settings.pop(name, None)
        if "batch_tokens" in settings:
            settings.pop("batch_size", None)
    overrides = {**overrides, "init_from": "resume", "out_dir": str(run_dir)}
    return combine(replace(stored, settings=settings), overrides)


def resume(out_dir: str, listeners: Sequence[Listener] = (), **changes: Any) -> Run:
    """Goes on with a run under its own settings, except for those given, e.g. `max_iters=10_000`."""
    return train(_resolve_resumed(existing_run_dir(out_dir, ""), changes), listeners=listeners)


def train(
    config: TrainConfig,
    name: str = "run",
    listeners: Sequence[Listener] = (),
    process_age_s: float = 0.0,
) -> Run:
    """Trains. `listeners` get every record; the journal in the run's folder has them in any case.

    `process_age_s`: how long the process had lived before it came here, if that belongs to the run.
    """
    problems = find_problems(config)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        problems.append("training in several processes is not there yet: start it without torchrun")
    if problems:
        raise UserError(problems)
    ledger = Ledger(age_s=process_age_s)
    with Stop() as stop, ExitStack() as at_the_end:
        with ledger.phase("startup"):
            job = set_up(config, name, listeners, ledger, stop)
            for part in (job.place, job.sink, job.saver):  # closed in the opposite order
                at_the_end.callback(part.close)
            complaints = restore(job) if config.init_from == "resume" else None
            if complaints is None or not config.eval_only:  # a look at a run does not change its settings
                job.place.write_config(job.resolved_config())
            job.place.copy_tokenizer(tokenizer_files(job.dataset.directory))
            job.sink(records.run_record(job))
            if complaints is not None:
                job.sink(records.resume_record(job, complaints))
        try:
            ending = loop.run(job)
        except KeyboardInterrupt:  # the second Ctrl-C
            job.sink(records.end_record(job, "interrupted", 130, None))
            raise
        except BaseException as error:
            what = {"error": f"{type(error).__name__}: {error}"[:2000]}
            job.sink(records.end_record(job, "crashed", 2 if isinstance(error, UserError) else 1, what))
            raise
        job.sink(records.end_record(job, ending.reason, ending.exit_code, ending.details))
    progress = job.progress
    return Run(
        job.run_dir,
        ending.reason,
        ending.exit_code,
        progress.iter,
        progress.best_val_loss,
        progress.best_iter,
    )
