"""A run from its settings to its end: `glassgpt.train(config)` and `glass train` both come here."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
import shlex
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glassgpt.config import TrainConfig
from glassgpt.data.tokenizers import write_tokenizer
from glassgpt.errors import (
    THREAD_START_FAILURE,
    UserError,
    describe_os_error,
    is_out_of_memory,
    is_thread_start_failure,
)
from glassgpt.flags import check_settings
from glassgpt.recipe import Recipe, find_recipe, override_config
from glassgpt.record import journal
from glassgpt.record.clock import Ledger
from glassgpt.record.journal import Record, RunSuperseded
from glassgpt.record.run_dir import TOKENIZER_DIR, LockedRunDir, existing_run_dir, training_end_record
from glassgpt.record.sink import Listener, Trackers
from glassgpt.training import journal_records, loop, out_of_memory
from glassgpt.training.checkpoint.checkpoints import latest_checkpoint, verify_checkpoint
from glassgpt.training.distributed import join
from glassgpt.training.distributed.process_group import ProcessGroup, RankLost
from glassgpt.training.distributed.rank_watchdog import RANK_LOST_EXIT_CODE
from glassgpt.training.interrupt import StopSignals
from glassgpt.training.job import Job
from glassgpt.training.loop import Ending
from glassgpt.training.setup import set_up
from glassgpt.training.task import (
    RunRequest,
    prepare_if_built_in,
    request_from_config,
    resolve_request,
    restarted_request,
    resume_request,
)
from glassgpt.training.train_state import load_initial_state
from glassgpt.training.weight_source import checkpoint_settings


@dataclass(frozen=True)
class Run:
    """A run that has ended."""

    out_dir: Path
    reason: str
    exit_code: int
    iter: int
    best_val_loss: float
    best_iter: int | None
    was_over: bool = False  # it had ended before this call, which did nothing


def train(
    config: TrainConfig | str | Path,
    name: str = "",
    listeners: Sequence[Listener] = (),
    trackers: Trackers | None = None,
    **changes: Any,
) -> Run:
    """`glassgpt.train` has the description; `trackers` opens those that the settings ask for."""
    recipe: Recipe | None = None
    settings, problems = check_settings(changes, TrainConfig)
    problems += _argument_problems(name, listeners)
    try:
        if isinstance(config, TrainConfig):
            config = override_config(config, settings)
        elif isinstance(config, str | Path):
            recipe = find_recipe(str(config))
        else:
            raise UserError(f"train() takes a TrainConfig, or a preset or config file, not {config!r:.100}")
    except UserError as error:
        problems += error.problems
    if problems:
        raise UserError(problems)
    asked = {**(recipe.settings if recipe else vars(config)), **settings}
    with _one_run_at_a_time(), StopSignals() as stop:
        team = join()
        with team.share_errors():
            task = restarted_request(team, str(asked.get("out_dir", "")), settings)
            if task is None and isinstance(config, TrainConfig):
                task = request_from_config(config, name or "run")
            elif task is None:
                task = resolve_request(recipe, settings)
                task = dataclasses.replace(task, name=name or task.name)
            team.run_rank_zero_first(partial(prepare_if_built_in, task.config))
        return start_run(task, listeners if team.is_rank_zero else (), stop, team=team, trackers=trackers)


def resume(
    out_dir: str | Path,
    listeners: Sequence[Listener] = (),
    trackers: Trackers | None = None,
    **changes: Any,
) -> Run:
    settings, problems = check_settings(changes, TrainConfig)
    problems += _argument_problems("", listeners)
    if not isinstance(out_dir, str | Path) or not str(out_dir):
        problems.append(f"resume() takes the folder of a run, not {out_dir!r:.100}")
    if problems:
        raise UserError(problems)
    with _one_run_at_a_time(), StopSignals() as stop:
        team = join()
        with team.share_errors():
            task = resume_request(existing_run_dir(str(out_dir), ""), settings)
        return start_run(task, listeners if team.is_rank_zero else (), stop, team=team, trackers=trackers)


def _argument_problems(name: object, listeners: object) -> list[str]:
    problems = [] if isinstance(name, str) else [f"name={name!r:.100} is not text"]
    if not isinstance(listeners, list | tuple) or not all(callable(listener) for listener in listeners):
        problems.append(f"listeners={listeners!r:.100} is not a list of functions that take a record")
    return problems


_RUN_LOCK = threading.Lock()


@contextlib.contextmanager
def _one_run_at_a_time() -> Iterator[None]:
    """One run at a time: dropout draws from torch's default generators, which all threads share. The caller
    gets their states back as they were."""
    if not _RUN_LOCK.acquire(blocking=False):
        raise UserError("another thread of this process is training: wait for it, or use another process")
    try:
        states = torch.get_rng_state(), np.random.get_state(), random.getstate()
        cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
        seed = torch.initial_seed()
        try:
            yield
        finally:
            torch.set_rng_state(states[0])
            np.random.set_state(states[1])
            random.setstate(states[2])
            if cuda_states is not None:
                torch.cuda.set_rng_state_all(cuda_states)
            else:  # until CUDA is initialized, its generators have the CPU's seed
                torch.cuda.manual_seed_all(seed)
    finally:
        _RUN_LOCK.release()


def start_run(
    task: RunRequest,
    listeners: Sequence[Listener],
    stop: StopSignals,
    process_age_s: float = 0.0,
    team: ProcessGroup | None = None,
    trackers: Trackers | None = None,
) -> Run:
    """`process_age_s`: how long the process had lived before it came here, if that belongs to the run."""
    team = team or ProcessGroup()
    try:
        with team.share_errors():
            before = team.broadcast_from_rank_zero(lambda: _already_finished(task))
        if before is not None:
            run = Run(Path(before.pop("out_dir")), exit_code=0, was_over=True, **before)
        else:
            run = _set_up_and_train(task, listeners, stop, Ledger(age_s=process_age_s), team, trackers)
    except BaseException as error:
        team.shut_down(error)
        raise
    team.shut_down()
    return run


def _already_finished(task: RunRequest) -> dict[str, Any] | None:
    """How the run to resume ended, if it is over and no setting is changed: then there is nothing to do.

    A setting that is left to the program, or is as an earlier start of the run had it, is no change."""
    config, run_dir = task.config, task.resume_dir
    if run_dir is None or config.eval_only:
        return None
    end = training_end_record(run_dir / journal.FILE_NAME)
    point = latest_checkpoint(run_dir)
    if point is None or not end or end["iter"] != point.iter:
        return None
    progress, stored = point.state.get("progress", {}), checkpoint_settings(point)[0]
    had_no_gain = config.patience and progress.get("evaluations_without_gain", 0) >= config.patience
    if point.iter < config.max_iters and not had_no_gain:
        return None
    for name, value in dataclasses.asdict(config).items():
        same = (stored.get(name), point.state.get("config", {}).get(name), None, "auto")
        if value not in same and name not in ("out_dir", "init_from", "max_iters", "patience"):
            return None
    try:
        verify_checkpoint(point.path)
    except UserError:  # its last checkpoint is damaged: redo what is lost
        return None
    best = {"best_val_loss": progress.get("best_val_loss", math.inf), "best_iter": progress.get("best_iter")}
    return {"out_dir": str(run_dir), "reason": end["reason"], "iter": point.iter} | best


def _set_up_and_train(
    task: RunRequest,
    listeners: Sequence[Listener],
    stop: StopSignals,
    ledger: Ledger,
    team: ProcessGroup,
    trackers: Trackers | None,
) -> Run:
    stop.is_distributed, stop.is_quiet = bool(team.launch_id), not team.is_rank_zero
    if stop.is_distributed:  # what this process alone heard before is agreed on with the others first
        stop.hung_up = stop.save_requested = False
    with ExitStack() as at_the_end:
        at_the_end.callback(torch.set_num_threads, torch.get_num_threads())  # --threads is for this run
        with team.share_errors(), ledger.phase("startup"):
            job = _set_up(task, listeners, ledger, stop, team, trackers)
            job.forecast_check.tuning_s = task.tuning_s
            for part in (
                job.run_dir_handle,
                job.sink,
                job.saver,
                job.profiler,
            ):  # closed in the opposite order
                at_the_end.callback(part.close)
            opening = load_initial_state(job, task)
            team.check_same_on_all_ranks({"the update to go on from": job.progress.iter})
            if isinstance(job.run_dir_handle, LockedRunDir):
                write_tokenizer(job.run_dir / TOKENIZER_DIR, job.dataset)
                # A look at a run does not change its settings.
                if task.resume_dir is None or not job.config.eval_only:
                    job.run_dir_handle.write_config(job.resolved_config())
            warning = out_of_memory.memory_short_finding(job)
            for record in (journal_records.run_record(job), *opening, *([warning] if warning else [])):
                job.sink(record)
        team.set_watchdog_callbacks(
            lambda: (ledger.current, job.progress.iter),
            lambda text: _record_end(job, "crashed", RANK_LOST_EXIT_CODE, {"error": text}),
        )
        ending = _run_and_record_end(job)
    progress = job.progress
    return Run(
        job.run_dir,
        ending.reason,
        ending.exit_code,
        progress.iter,
        progress.best_val_loss,
        progress.best_iter,
    )


def _set_up(
    task: RunRequest,
    listeners: Sequence[Listener],
    ledger: Ledger,
    stop: StopSignals,
    team: ProcessGroup,
    trackers: Trackers | None,
) -> Job:
    try:
        return set_up(task, listeners, ledger, stop, team, trackers)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise out_of_memory.startup_out_of_memory_error(error) from error


def _run_and_record_end(job: Job) -> Ending:
    """The loop, and the record of how it ended, in whatever way."""
    try:
        ending = loop.run(job)
    except KeyboardInterrupt as error:  # the second Ctrl-C
        job.saver.abandon()
        with contextlib.suppress(UserError):  # a journal that cannot be written changes no exit code
            _record_end(job, "interrupted", getattr(error, "exit_code", 130), None)
        raise
    except BaseException as error:
        cause = job.process_group.root_cause(error)
        if isinstance(cause, RankLost | RunSuperseded):
            job.saver.abandon()  # a lost rank saves nothing; after a takeover the checkpoints are another's
        name = "" if isinstance(cause, RankLost) else f"{type(cause).__name__}: "
        what = {"error": f"{name}{cause}"[:2000]}
        if is_out_of_memory(cause):
            cause = out_of_memory.out_of_memory_error(job, cause)
        elif is_thread_start_failure(cause):
            cause = UserError(THREAD_START_FAILURE)
        elif isinstance(cause, OSError):
            cause = UserError(
                f"{describe_os_error(cause)}; committed checkpoints are intact: fix the cause, then resume with "
                f"--init_from=resume --out_dir={shlex.quote(str(job.run_dir))}"
            )
        # If it is the journal that cannot be written, this record has no place; the error says so.
        with contextlib.suppress(UserError):
            _record_end(job, "crashed", 2 if isinstance(cause, UserError) else 1, what)
        if cause is not error:
            raise cause from error
        raise
    _record_end(job, ending.reason, ending.exit_code, ending.details)
    if job.sink.journal_lost_reason:  # after all that had to be saved
        raise UserError(
            f"{job.run_dir} was moved, removed or replaced as the run ended: {job.sink.journal_lost_reason}"
        )
    return ending


def _record_end(job: Job, reason: str, exit_code: int, details: Record | None) -> None:
    job.sink(journal_records.end_record(job, reason, exit_code, details))
