"""The loop. Everything a run does happens here, in this order:

    evaluate  ->  end?  ->  save  ->  update  ->  log  ->  …

`iter` counts updates done, so an evaluation at iter 500 is of the model after 500 updates. Time is always in
exactly one phase of the ledger, and everything worth knowing goes to the sink as a record.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from dataclasses import dataclass

import torch

from glassgpt.data.tokenizers import write_tokenizer
from glassgpt.errors import UserError
from glassgpt.model.generate import TokenSampler, generate
from glassgpt.record import journal
from glassgpt.record.clock import phase_seconds_between
from glassgpt.record.journal import Record
from glassgpt.record.machine import read_cpu_times
from glassgpt.record.run_dir import TOKENIZER_DIR, LockedRunDir
from glassgpt.training import journal_records, live_findings
from glassgpt.training.evaluate import EvalResult, EvalWindows, evaluate, is_gain
from glassgpt.training.forecast_check import (
    cpu_contention_finding,
    forecast_miss_finding,
    loss_curve_finding,
    pace_finding,
)
from glassgpt.training.job import Job, Sampling
from glassgpt.training.kernel_choice import kernels_built_marker
from glassgpt.training.train_state import checkpoint_state, gather_full_model, local_checkpoint_tensors


@dataclass(frozen=True)
class Ending:
    """Why a run ended, the exit code for it, and what its last record says besides."""

    reason: str
    exit_code: int = 0
    details: Record | None = None


class NonFiniteError(Exception):
    """A loss or gradient was NaN or infinite. The weights are still those before that update."""

    def __init__(self, update: int) -> None:
        super().__init__(update)
        self.update = update


def run(job: Job) -> Ending:
    """Trains until something ends it."""
    try:
        while True:
            with job.ledger.phase("train"):  # waiting for an answer is part of an update
                sync_stop_request(job)
            if evaluation_is_due(job):
                evaluate_splits(job)
            ending = ending_if_due(job)
            if ending:
                log_step(job)  # an end that came between two log lines
            if save_is_due(job, ending):
                save(job)
            if job.stop.hung_up:
                log_hangup(job)
            if job.stop.save_requested:
                log_save_requested(job)
            if ending:
                return close(job, ending)
            if profile_is_due(job):
                profiled_update(job)
            else:
                update(job)
            if log_is_due(job):
                log_step(job)
    except NonFiniteError as error:
        return end_not_finite(job, error.update)


def sync_stop_request(job: Job) -> None:
    """What one process of a team is told, all of them act on."""
    if job.sink.journal_lost_reason:
        rescue_to_new_dir(job)
    was_lost = job.stop.run_dir_lost
    job.process_group.sync_stop_signals(job.stop)
    if job.stop.run_dir_lost and not was_lost:
        job.last_saved = None  # what was saved is in the folder that is lost


def ending_if_stopped(job: Job) -> Ending | None:
    if job.stop.run_dir_lost:
        return Ending("crashed", 2, {"error": "the run's folder was moved, removed or replaced"})
    return Ending("interrupted", job.stop.exit_code) if job.stop.requested else None


def ending_if_due(job: Job) -> Ending | None:
    if job.stop.requested:
        return ending_if_stopped(job)
    if job.config.eval_only:
        return Ending("evaluated")
    if job.progress.iter >= job.config.max_iters:
        return Ending("finished")
    if job.config.patience and job.progress.evaluations_without_gain >= job.config.patience:
        return Ending("stopped early")
    return None


def update(job: Job) -> None:
    """One update. The first one of a process compiles and warms up, and is accounted for as that."""
    first = job.learner.is_first_call("update")
    with job.ledger.phase("compile" if first else "train") as phase:
        job.learner.update(job.progress.iter, job.progress.sequences)
        if first:
            with job.process_group.waiting_for_ranks():
                job.execution.synchronize()
            job.process_group.take_all_reduce_s()  # of no interval: it is part of warming up
            mark_kernels_built(job)
    job.interval.count_update(phase.seconds if first else None)
    job.progress.iter += 1
    job.progress.sequences += job.batch_plan.sequences
    job.progress.val_loss = None
    report_fallbacks(job)


def mark_kernels_built(job: Job) -> None:
    """For the next run to know that Triton has these kernels. A cache that cannot be written has none."""
    if job.execution.kernels and "kernels" not in job.learner.fallbacks:
        place, vocab_size = job.execution, job.compute_plan.model_config.vocab_size
        with contextlib.suppress(OSError):
            kernels_built_marker(job.config, place.device, place.dtype, vocab_size, job.batch_plan).touch()


# --- looking into updates ---


def profile_is_due(job: Job) -> bool:
    return job.profiler.covers(job.progress.iter) and not job.learner.is_first_call("update")


def profiled_update(job: Job) -> None:
    """An update that PyTorch's profiler watches. That slows it, so it does not count for the step time."""
    sync_and_check_finite(job)
    before = job.ledger.seconds()
    with (
        job.ledger.phase("log"),
        job.process_group.without_all_reduce_timing(),
        job.profiler.profile_update(job.progress.iter),
    ):
        update(job)
        sync_and_check_finite(job)
    job.interval.exclude_last_update(before)
    log_profile(job)


def log_profile(job: Job, at_the_end: bool = False) -> None:
    with job.ledger.phase("log"):
        log_record(job, job.profiler.record(job.progress.iter, at_the_end))
        job.process_group.barrier()


# --- evaluating ---


def evaluation_is_due(job: Job) -> bool:
    done = job.progress.iter
    due = done % job.config.eval_interval == 0 or done >= job.config.max_iters
    # A process that took over weights without a loss to compare with looks first.
    due = due or (job.progress.best_iter is None and job.eval_cost.count == 0)
    already = job.progress.val_loss is not None  # before the checkpoint that a run was resumed from
    return job.config.eval_only or (due and not already)


def evaluate_splits(job: Job) -> None:
    """Both splits, on the same tokens as ever. Keeps track of the best, and of the last real gain."""
    sync_and_check_finite(job)
    before = job.ledger.seconds()
    result = evaluate_split(job, "train", job.eval_windows["train"]) and evaluate_split(
        job, "val", job.eval_windows["val"]
    )
    if result is None:
        return
    progress = job.progress
    progress.val_loss = result.loss
    if result.loss < progress.best_val_loss:
        progress.best_val_loss, progress.best_iter = result.loss, progress.iter
    if is_gain(job.early_stop_reference, result):
        job.early_stop_reference, progress.evaluations_without_gain = result, 0
    else:
        progress.evaluations_without_gain += 1
    job.eval_cost.add(phase_seconds_between(before, job.ledger.seconds())["eval"])


def evaluate_split(job: Job, split: str, windows: EvalWindows, closing: bool = False) -> EvalResult | None:
    """Evaluates and records; None if the user asked to stop meanwhile."""
    before = job.ledger.seconds()
    result = evaluate(job.learner, windows, job.ledger, should_stop=lambda: sync_and_check_stop(job))
    spent = phase_seconds_between(before, job.ledger.seconds())
    report_fallbacks(job)
    if result is not None:
        log_record(job, journal_records.eval_record(job, split, result, spent, closing))
    return result


def sync_and_check_stop(job: Job) -> bool:
    sync_stop_request(job)
    return job.stop.requested


# --- saving ---


def save_is_due(job: Job, ending: Ending | None) -> bool:
    config, progress = job.config, job.progress
    if config.eval_only or job.last_saved == (progress.iter, progress.val_loss):
        return False
    if ending is not None or job.stop.hung_up or job.stop.save_requested:
        return True
    if progress.iter == 0:
        return False
    if progress.best_iter == progress.iter:
        return True
    if config.checkpoint_interval is not None:
        return progress.iter % config.checkpoint_interval == 0
    return progress.val_loss is not None and config.always_save_checkpoint


def save(job: Job) -> None:
    """Waits for the save before, if it still runs, and for a copy of the tensors. The rest is background."""
    sync_and_check_finite(job)
    with job.ledger.phase("checkpoint") as phase:
        started = time.perf_counter()
        log_finished_save(job, wait=True)
        check_run_dir_lost(job)  # before anything is written into what may be another run's folder
        tensors, rows = local_checkpoint_tensors(job)
        job.saver.save(tensors, checkpoint_state(job), started, rows)
        job.process_group.barrier()  # the first process may have had all of the work
    job.last_saved = (job.progress.iter, job.progress.val_loss)
    job.save_cost.add(phase.seconds)


def log_finished_save(job: Job, wait: bool = False) -> None:
    """What came of the last save, if it has ended, and what was found beside it."""
    try:
        record = job.saver.poll(wait)
    except UserError:
        if check_run_dir_lost(job):  # then the run saves again, elsewhere
            return
        raise
    log_record(job, record)
    ignored = [
        name for name in (record or {}).get("ignored", ()) if name not in job.reported_ignored_checkpoints
    ]
    if ignored:
        job.reported_ignored_checkpoints.update(ignored)
        log_record(job, live_findings.ignored_checkpoints_finding(job, ignored))


# --- a folder that is moved, removed or replaced ---


def check_run_dir_lost(job: Job) -> bool:
    """Whether the run has lost its folder, which the first process looks after."""
    job.sink.check_journal(job.progress.iter)
    if job.sink.journal_lost_reason:
        rescue_to_new_dir(job)
    return job.sink.has_moved


def rescue_to_new_dir(job: Job) -> None:
    """From now on everything goes into a new folder, and all processes are asked to save there and end."""
    if not isinstance(job.run_dir_handle, LockedRunDir) or job.config.eval_only:
        raise UserError(f"{job.run_dir} was moved, removed or replaced: {job.sink.journal_lost_reason}")
    before, reason = job.run_dir, job.sink.journal_lost_reason
    with job.ledger.phase("checkpoint"):
        with contextlib.suppress(UserError):  # of a save that failed because of this
            log_record(job, job.saver.poll(wait=True))
        job.run_dir_handle.move_to_rescue_dir()
        job.run_dir_handle.write_config(job.resolved_config())
        write_tokenizer(job.run_dir / TOKENIZER_DIR, job.dataset)
        job.sink.move(job.run_dir / journal.FILE_NAME)
        job.saver.set_run_dir(job.run_dir)
    if not job.process_group.launch_id:  # else all ranks do it when they have agreed: see `heed`
        job.last_saved = None
    job.stop.report_run_dir_lost()
    log_record(job, live_findings.run_dir_lost_finding(job, before, reason))


# --- logging ---


def log_is_due(job: Job) -> bool:
    done = job.progress.iter
    first = 1 if job.config.console == "nanogpt" else 0  # which counts updates from 0, and logs that one
    return (done - first) % job.config.log_interval == 0 or done >= job.config.max_iters


def log_step(job: Job) -> None:
    sync_and_check_finite(job)
    log_step_record(job)
    threads = (
        1 if job.execution.device.type != "cpu" or job.process_group.launch_id else torch.get_num_threads()
    )
    command = f"glass train --init_from=resume --out_dir={shlex.quote(str(job.run_dir))} --threads=1"
    one_thread = command if threads > 1 else ""
    log_record(job, pace_finding(job.forecast_check, job.progress.iter, one_thread))
    if one_thread:
        log_record(
            job,
            cpu_contention_finding(
                job.forecast_check, job.progress.iter, threads, one_thread, read_cpu_times()
            ),
        )
    log_finished_save(job)


def sync_and_check_finite(job: Job) -> None:
    """Waits for the device, reads what it computed since last time, and looks whether all was finite."""
    progress = job.progress
    with (
        job.ledger.phase("train"),
        job.process_group.waiting_for_ranks(),
    ):  # a card may be waiting for another one
        losses, norms = job.learner.take_results()
        bad_update = job.learner.first_bad_update(progress.iter)
    job.interval.correct_data_wait(job.loader.take_data_wait_s())
    if bad_update is not None:
        # What came after the bad update was not applied, and does not belong to the run.
        after = progress.iter - bad_update - 1
        kept = max(1, len(losses) - after)
        losses, norms = losses[:kept], norms[:kept]
        progress.iter -= after
        progress.sequences -= after * job.batch_plan.sequences
    progress.losses += losses
    progress.norms += norms
    job.recent_grad_norms.extend(norms)
    if bad_update is not None:
        raise NonFiniteError(bad_update)


def log_step_record(job: Job) -> None:
    if job.progress.losses:
        with job.ledger.phase("log"):
            job.sink(journal_records.step_record(job))
        job.progress.losses, job.progress.norms = [], []


def report_fallbacks(job: Job) -> None:
    """What was to make the run fast and failed. Ctrl-C reaches the compiler too, and that is no failure."""
    for what, evidence in job.learner.fallbacks.items():
        if what not in job.reported_fallbacks and not job.stop.requested:
            log_record(job, live_findings.fallback_finding(job, what, evidence))
        job.reported_fallbacks.add(what)


def log_hangup(job: Job) -> None:
    """The terminal is gone. The run has saved, and goes on without it."""
    job.stop.hung_up = False
    log_record(job, live_findings.hangup_finding(job))


def log_save_requested(job: Job) -> None:
    job.stop.save_requested = False
    log_record(job, live_findings.save_requested_finding(job))


def log_record(job: Job, what: Record | None) -> None:
    if what is not None:
        with job.ledger.phase("log"):
            job.sink(what)


# --- ending ---


def close(job: Job, ending: Ending) -> Ending:
    """What remains to be done for a run that ends, in whatever way. Being stopped meanwhile is an end too."""
    if ending.exit_code == 0 and not job.config.eval_only:
        log_profile(job, at_the_end=True)
        if job.config.closing_eval and job.eval_tokens < len(job.splits["val"]) - 1:
            # All of it once, whatever was sampled before.
            evaluate_split(job, "val", job.eval_windows["val"].of_whole_split(), closing=True)
        if job.sampling is not None and not job.stop.requested:
            generate_final_sample(job, job.sampling)
    job.process_group.extend_timeout()
    with job.ledger.phase("checkpoint"):
        log_finished_save(job, wait=True)
    lost, unsaved = job.process_group.broadcast_from_rank_zero(
        lambda: [check_run_dir_lost(job), job.last_saved is None]
    )
    if lost:
        job.stop.run_dir_lost = True
        if unsaved:
            save(job)
            with job.ledger.phase("checkpoint"):
                log_finished_save(job, wait=True)
    stopped = ending_if_stopped(job)
    if stopped is not None:
        return stopped
    if ending.exit_code == 0 and not job.config.eval_only:
        log_record(job, loss_curve_finding(job.forecast_check, job.progress.iter, job.progress.val_loss))
    log_record(job, live_findings.straggler_finding(job))
    wall_s = sum(job.ledger.seconds().values())
    log_record(
        job,
        forecast_miss_finding(
            job.forecast_check,
            job.progress.iter,
            wall_s,
            journal_records.ran_in_one_process(job, ending.reason),
        ),
    )
    return ending


def generate_final_sample(job: Job, sampling: Sampling) -> None:
    """Text from the model as it is now; looking at it is part of evaluating it."""
    tokenizer, start = sampling.tokenizer, sampling.start
    with job.ledger.phase("eval") as phase:
        model = gather_full_model(job)  # of a model that is spread, everybody brings a part
        if tokenizer is None:
            return
        # Most tokenizers have a token for "here a text begins"; characters have not.
        beginning = int(job.splits["train"][:1][0]) if tokenizer.eot is None else tokenizer.eot
        draws = TokenSampler(tokenizer.vocab_size, seed=job.config.seed)
        tokens = generate(model, start or [beginning], job.config.sample_tokens, draws)
        text = tokenizer.decode([*start, *tokens])
    log_record(job, journal_records.sample_record(job, text, phase.seconds))


def end_not_finite(job: Job, bad_update: int) -> Ending:
    """Shows the bad loss as it is. Nothing is saved: the last checkpoint is from before."""
    log_step_record(job)
    job.progress.iter = bad_update  # that update was tried, but not done
    with job.ledger.phase("checkpoint"):
        log_finished_save(job, wait=True)
    return Ending("not finite", 3, journal_records.nonfinite_details(job, bad_update))
