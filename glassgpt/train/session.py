"""A run from its settings to its end: `glassgpt.train(config)` and `glass train` both come here."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glassgpt.account.clock import Ledger
from glassgpt.account.journal import Record
from glassgpt.account.sink import Listener
from glassgpt.config import TrainConfig
from glassgpt.data.tokenizers import write_tokenizer
from glassgpt.errors import NO_THREAD, UserError, is_memory, lacks_threads
from glassgpt.problems import find_problems
from glassgpt.train import loop, records, shortage
from glassgpt.train.interrupt import Stop
from glassgpt.train.job import Job
from glassgpt.train.loop import Ending
from glassgpt.train.rundir import TOKENIZER, Place, existing_run_dir
from glassgpt.train.setup import set_up
from glassgpt.train.state import begin
from glassgpt.train.task import Task, begun_by, task_of, to_go_on
from glassgpt.train.team import RankLost, Team, join
from glassgpt.train.watch import LOST_EXIT_CODE


@dataclass(frozen=True)
class Run:
    """A run that has ended."""

    out_dir: Path
    reason: str
    exit_code: int
    iter: int
    best_val_loss: float
    best_iter: int | None


def train(config: TrainConfig, name: str = "run", listeners: Sequence[Listener] = ()) -> Run:
    """Trains. `listeners` get every record; the journal in the run's folder has them in any case."""
    problems = find_problems(config)
    if problems:
        raise UserError(problems)
    with Stop() as stop:
        team = join()
        with team.together():
            task = begun_by(team, config.out_dir, {}) or task_of(config, name)
        return start(task, listeners if team.is_first else (), stop, team=team)


def resume(out_dir: str, listeners: Sequence[Listener] = (), **changes: Any) -> Run:
    """Goes on with a run under its own settings, except for those given, e.g. `max_iters=10_000`."""
    with Stop() as stop:
        team = join()
        with team.together():
            task = to_go_on(existing_run_dir(out_dir, ""), changes)
        return start(task, listeners if team.is_first else (), stop, team=team)


def start(
    task: Task,
    listeners: Sequence[Listener],
    stop: Stop,
    process_age_s: float = 0.0,
    team: Team | None = None,
) -> Run:
    """`process_age_s`: how long the process had lived before it came here, if that belongs to the run."""
    team = team or Team()
    try:
        run = _do(task, listeners, stop, Ledger(age_s=process_age_s), team)
    except BaseException as error:
        team.leave(error)
        raise
    team.leave()
    return run


def _do(task: Task, listeners: Sequence[Listener], stop: Stop, ledger: Ledger, team: Team) -> Run:
    stop.in_team, stop.is_quiet = bool(team.launch), not team.is_first
    with ExitStack() as at_the_end:
        at_the_end.callback(torch.set_num_threads, torch.get_num_threads())  # --threads is for this run
        with team.together(), ledger.phase("startup"):
            job = _set_up(task, listeners, ledger, stop, team)
            job.outcome.tuning_s = task.tuning_s
            for part in (job.place, job.sink, job.saver, job.profiling):  # closed in the opposite order
                at_the_end.callback(part.close)
            opening = begin(job, task)
            team.check_same({"the update to go on from": job.progress.iter})
            if isinstance(job.place, Place):
                write_tokenizer(job.run_dir / TOKENIZER, job.dataset)
                # A look at a run does not change its settings.
                if task.run_dir is None or not job.config.eval_only:
                    job.place.write_config(job.resolved_config())
            warning = shortage.foreseen(job)
            for record in (records.run_record(job), *opening, *([warning] if warning else [])):
                job.sink(record)
        team.watch(
            lambda: (ledger.current, job.progress.iter),
            lambda text: _record_end(job, "crashed", LOST_EXIT_CODE, {"error": text}),
        )
        ending = _see_through(job)
    progress = job.progress
    return Run(
        job.run_dir,
        ending.reason,
        ending.exit_code,
        progress.iter,
        progress.best_val_loss,
        progress.best_iter,
    )


def _set_up(task: Task, listeners: Sequence[Listener], ledger: Ledger, stop: Stop, team: Team) -> Job:
    try:
        return set_up(task, listeners, ledger, stop, team)
    except Exception as error:
        if not is_memory(error):
            raise
        raise shortage.ran_out_at_start(error) from error


def _see_through(job: Job) -> Ending:
    """The loop, and the record of how it ended, in whatever way."""
    try:
        ending = loop.run(job)
    except KeyboardInterrupt as error:  # the second Ctrl-C
        job.saver.abandon()
        _record_end(job, "interrupted", getattr(error, "exit_code", 130), None)
        raise
    except BaseException as error:
        cause = job.team.blame(error)
        if isinstance(cause, RankLost):
            job.saver.abandon()  # who is lost saves nothing
        name = "" if isinstance(cause, RankLost) else f"{type(cause).__name__}: "
        what = {"error": f"{name}{cause}"[:2000]}
        if is_memory(cause):
            cause = shortage.ran_out(job, cause)
        elif lacks_threads(cause):
            cause = UserError(NO_THREAD)
        # If it is the journal that cannot be written, this record has no place; the error says so.
        with contextlib.suppress(UserError):
            _record_end(job, "crashed", 2 if isinstance(cause, UserError) else 1, what)
        if cause is not error:
            raise cause from error
        raise
    _record_end(job, ending.reason, ending.exit_code, ending.details)
    return ending


def _record_end(job: Job, reason: str, exit_code: int, details: Record | None) -> None:
    job.sink(records.end_record(job, reason, exit_code, details))
