"""A run from its settings to its end: `glassgpt.train(config)` and `glass train` both come here."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
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
from glassgpt.data.ladder import ladder_if_cheap
from glassgpt.data.tokenizers import write_tokenizer
from glassgpt.errors import (
    THREAD_START_FAILURE,
    UserError,
    collect_problems,
    describe_os_error,
    is_out_of_memory,
    is_thread_start_failure,
    raise_if_any,
)
from glassgpt.estimate.local_history import MIN_HISTORY_SECONDS, append_row
from glassgpt.flags import check_settings
from glassgpt.recipe import Recipe, find_recipe, override_config
from glassgpt.record import journal
from glassgpt.record.journal import Record, RunSuperseded
from glassgpt.record.ledger import Ledger
from glassgpt.record.machine import release_freed_memory
from glassgpt.record.run_dir import (
    TOKENIZER_DIR,
    LockedRunDir,
    existing_run_dir,
    resume_command,
    training_end_record,
)
from glassgpt.record.sink import Listener, Trackers
from glassgpt.training import journal_records, loop, out_of_memory
from glassgpt.training.checkpoint.checkpoints import verify_checkpoint
from glassgpt.training.distributed import join
from glassgpt.training.distributed.process_group import ALONE, ProcessGroup, RankLost
from glassgpt.training.distributed.rank_watchdog import RANK_LOST_EXIT_CODE
from glassgpt.training.interrupt import StopSignals
from glassgpt.training.loop import Ending
from glassgpt.training.run_request import (
    RunRequest,
    prepare_if_built_in,
    request_from_config,
    resolve_request,
    restarted_request,
    resume_request,
)
from glassgpt.training.save_and_restore import load_initial_state
from glassgpt.training.setup import set_up
from glassgpt.training.train_state import TrainSetup, TrainState


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
    """See `glassgpt.train`. `trackers`: opens the trackers that the settings name."""
    recipe: Recipe | None = None
    overrides, problems = check_settings(changes, TrainConfig)
    problems += _argument_problems(name, listeners)
    with collect_problems(problems):
        if isinstance(config, TrainConfig):
            config = override_config(config, overrides)
        elif isinstance(config, str | Path):
            recipe = find_recipe(str(config))
        else:
            raise UserError(f"train() takes a TrainConfig, or a preset or config file, not {config!r:.100}")
    raise_if_any(problems)
    settings = {**(recipe.settings if recipe else vars(config)), **overrides}
    with _one_run_at_a_time(), StopSignals() as signals:
        group = join()
        with group.share_errors():
            request = restarted_request(group, str(settings.get("out_dir", "")), overrides)
            if request is None and isinstance(config, TrainConfig):
                request = request_from_config(config, name or "run")
            elif request is None:
                request = resolve_request(recipe, overrides)
                request = dataclasses.replace(request, name=name or request.name)
            group.run_rank_zero_first(partial(prepare_if_built_in, request.config))
        return start_run(request, listeners, signals, group=group, trackers=trackers)


def resume(
    out_dir: str | Path, listeners: Sequence[Listener] = (), trackers: Trackers | None = None, **changes: Any
) -> Run:
    """See `glassgpt.resume`."""
    overrides, problems = check_settings(changes, TrainConfig)
    problems += _argument_problems("", listeners)
    if not isinstance(out_dir, str | Path) or not str(out_dir):
        problems.append(f"resume() takes the folder of a run, not {out_dir!r:.100}")
    raise_if_any(problems)
    with _one_run_at_a_time(), StopSignals() as signals:
        group = join()
        with group.share_errors():
            request = resume_request(existing_run_dir(str(out_dir), ""), overrides)
        return start_run(request, listeners, signals, group=group, trackers=trackers)


def _argument_problems(name: object, listeners: object) -> list[str]:
    problems = [] if isinstance(name, str) else [f"name={name!r:.100} is not text"]
    if not isinstance(listeners, list | tuple) or not all(callable(listener) for listener in listeners):
        problems.append(f"listeners={listeners!r:.100} is not a list of functions that take a record")
    return problems


_RUN_LOCK = threading.Lock()


@contextlib.contextmanager
def _one_run_at_a_time() -> Iterator[None]:
    """Runs share torch's default generators, which dropout draws from: only one run at a time. Restores the
    caller's random states at the end."""
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
    request: RunRequest,
    listeners: Sequence[Listener],
    signals: StopSignals,
    process_age_s: float = 0.0,
    group: ProcessGroup = ALONE,
    trackers: Trackers | None = None,
) -> Run:
    """`process_age_s`: how long the process had run before this call, if that belongs to the run."""
    try:
        with group.share_errors():
            finished = group.broadcast_from_rank_zero(lambda: _finished_run(request))
        if finished is not None:
            run = Run(Path(finished.pop("out_dir")), exit_code=0, was_over=True, **finished)
        else:
            ledger = Ledger(age_s=process_age_s)
            run = _set_up_and_train(request, listeners, signals, ledger, group, trackers)
    except BaseException as error:
        group.shut_down(error)
        raise
    group.shut_down()
    return run


def _finished_run(request: RunRequest) -> dict[str, Any] | None:
    """The outcome of the run to resume, if it has finished and no setting is changed: nothing is left to do.

    A setting that is left to the program, or is as at an earlier start of the run, is not changed."""
    config, last = request.config, request.own_checkpoint
    if last is None or config.eval_only:
        return None
    end = training_end_record(last.folder / journal.FILE_NAME)
    if not end or end["iter"] != last.iter:
        return None
    progress = last.state["progress"]
    stopped_early = config.patience and progress.get("evaluations_without_gain", 0) >= config.patience
    if end["iter"] < config.max_iters and not stopped_early:
        return None
    for name, value in dataclasses.asdict(config).items():
        unchanged = (last.settings.get(name), last.state["config"].get(name), None, "auto")
        if value not in unchanged and name not in ("out_dir", "init_from", "max_iters", "patience"):
            return None
    try:
        verify_checkpoint(Path(last.description))
    except UserError:  # the last checkpoint is damaged: train from the one before
        return None
    return {
        "out_dir": str(last.folder),
        "reason": end["reason"],
        "iter": end["iter"],
        "best_val_loss": progress.get("best_val_loss", math.inf),
        "best_iter": progress.get("best_iter"),
    }


def _set_up_and_train(
    request: RunRequest,
    listeners: Sequence[Listener],
    signals: StopSignals,
    ledger: Ledger,
    group: ProcessGroup,
    trackers: Trackers | None,
) -> Run:
    signals.is_distributed, signals.is_quiet = bool(group.launch_id), not group.is_rank_zero
    if signals.is_distributed:  # earlier requests are acted on once all ranks agree
        signals.sighup_received = signals.save_requested = False
    with ExitStack() as at_the_end:
        at_the_end.callback(torch.set_num_threads, torch.get_num_threads())  # --threads is for this run
        with group.share_errors(), ledger.phase("startup"):
            try:
                run, state = set_up(request, listeners, ledger, signals, group, trackers)
            except Exception as error:
                if is_out_of_memory(error):
                    raise out_of_memory.startup_out_of_memory_error(error) from error
                raise
            state.forecast_check.tuning_s = request.tuning_s
            for part in (run.run_dir_handle, run.sink, run.saver, run.profiler):  # closed in reverse order
                at_the_end.callback(part.close)
            opening_records = load_initial_state(run, state, request)
            group.check_same_on_all_ranks({"the update to resume from": state.progress.iter})
            if isinstance(run.run_dir_handle, LockedRunDir):
                write_tokenizer(run.run_dir / TOKENIZER_DIR, run.dataset)
                # Evaluating an existing run (--eval_only) does not change its settings.
                if request.resume_dir is None or not run.config.eval_only:
                    run.run_dir_handle.write_config(run.resolved_config())
            # Counting a text's n-grams takes more memory than training a small model, and that only once.
            ladder = ladder_if_cheap(run.dataset) if group.is_rank_zero else None
            release_freed_memory()
            warning = out_of_memory.memory_short_finding(run, state)
            for record in (
                journal_records.run_record(run, state, ladder),
                *opening_records,
                *([warning] if warning else []),
            ):
                run.sink(record)
        run.sink.watch_loop(lambda: (ledger.activity, state.progress.iter))
        group.set_watchdog_callbacks(
            lambda: (ledger.current, state.progress.iter),
            lambda text: _record_end(run, state, "crashed", RANK_LOST_EXIT_CODE, {"error": text}),
        )
        ending = _run_and_record_end(run, state)
    return Run(
        run.run_dir,
        ending.reason,
        ending.exit_code,
        state.progress.iter,
        state.progress.best_val_loss,
        state.progress.best_iter,
    )


def _run_and_record_end(run: TrainSetup, state: TrainState) -> Ending:
    """Runs the loop, and records its end, whatever ends it."""
    try:
        ending = loop.train(run, state)
    except KeyboardInterrupt as error:  # the second Ctrl-C
        run.saver.abandon()
        with contextlib.suppress(UserError):  # a journal that cannot be written must not change the exit code
            _record_end(run, state, "interrupted", getattr(error, "exit_code", 130), None)
        raise
    except BaseException as error:
        cause = run.process_group.root_cause(error)
        # After a lost rank a save cannot finish. A run that was superseded must not touch the checkpoints.
        if isinstance(cause, RankLost | RunSuperseded):
            run.saver.abandon()
        prefix = "" if isinstance(cause, RankLost) else f"{type(cause).__name__}: "
        details = {"error": f"{prefix}{cause}"[:2000]}
        if is_out_of_memory(cause):
            cause = out_of_memory.out_of_memory_error(run, state, cause)
        elif is_thread_start_failure(cause):
            cause = UserError(THREAD_START_FAILURE)
        elif isinstance(cause, OSError):
            cause = UserError(
                f"{describe_os_error(cause)}; committed checkpoints are intact: fix the cause, then resume "
                f"with {resume_command(run.run_dir)}"
            )
        # If it is the journal that cannot be written, this record is lost; the error says why.
        with contextlib.suppress(UserError):
            _record_end(run, state, "crashed", 2 if isinstance(cause, UserError) else 1, details)
        if cause is not error:
            raise cause from error
        raise
    _record_end(run, state, ending.reason, ending.exit_code, ending.details)
    if run.sink.journal_lost_reason:  # only now: everything else is saved
        raise UserError(
            f"{run.run_dir} was moved, removed or replaced as the run ended: {run.sink.journal_lost_reason}"
        )
    return ending


def _record_end(
    run: TrainSetup, state: TrainState, reason: str, exit_code: int, details: Record | None
) -> None:
    run.sink(journal_records.end_record(run, state, reason, exit_code, details))
    is_over = reason in ("finished", "stopped early")
    if is_over and run.config.history == "on" and run.process_group.is_rank_zero:
        row = journal_records.history_row(run, state)
        if row is not None and row.seconds >= MIN_HISTORY_SECONDS:
            append_row(row)
