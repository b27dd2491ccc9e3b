"""The training loop. Everything a run does happens here, in this order:

    evaluate  ->  end?  ->  save  ->  update  ->  log  ->  ...

`iter` counts updates done, so an evaluation at iter 500 is of the model after 500 updates. Time is always in
exactly one phase of the ledger. Every event goes to the sink as a journal record.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from glassgpt.errors import UserError
from glassgpt.model.generate import TokenSampler, generate
from glassgpt.record.clock import phase_seconds_between
from glassgpt.record.journal import Record
from glassgpt.training import journal_records, live_findings
from glassgpt.training.compute_plan import mark_kernels_built
from glassgpt.training.evaluate import EvalResult, EvalWindows, evaluate, is_gain
from glassgpt.training.forecast_check import forecast_miss_finding, loss_curve_finding, take_speed_findings
from glassgpt.training.job import Job, Sampling
from glassgpt.training.lost_run_dir import rescue_if_run_dir_lost, rescue_to_new_dir
from glassgpt.training.train_state import checkpoint_state, gather_full_model, local_checkpoint_tensors


@dataclass(frozen=True)
class Ending:
    """Why a run ended, its exit code, and further fields of its `end` record."""

    reason: str
    exit_code: int = 0
    details: Record | None = None


class NonFiniteError(Exception):
    """A loss or gradient was NaN or infinite. The weights are still those before that update."""

    def __init__(self, update: int) -> None:
        super().__init__(update)
        self.update = update


def run(job: Job) -> Ending:
    """Trains until something ends the run."""
    try:
        while True:
            with job.ledger.phase("train"):  # waiting for the other ranks is part of an update
                sync_stop_request(job)
            if evaluation_is_due(job):
                evaluate_splits(job)
            ending = ending_if_due(job)
            if ending:
                log_step(job)  # the updates since the last log line
            if save_is_due(job, ending):
                save(job)
            report_signals(job)
            if ending:
                return finish(job, ending)
            if profile_is_due(job):
                profiled_update(job)
            else:
                update(job)
            if log_is_due(job):
                log_step(job)
    except NonFiniteError as error:
        return finish_after_nonfinite(job, error.update)


# --- update ---


def update(job: Job) -> None:
    """One update. The first one of a process compiles and warms up: its time goes to the `compile` phase."""
    is_first = job.learner.is_first_call("update")
    with job.ledger.phase("compile" if is_first else "train") as phase:
        job.learner.update(job.progress.iter, job.progress.sequences)
        if is_first:
            with job.process_group.waiting_for_ranks():
                job.execution.synchronize()
            job.process_group.take_all_reduce_s()  # warm-up: belongs to no log interval
            mark_kernels_built(job.config, job.compute_plan, job.learner.fallbacks)
    job.interval.count_update(phase.seconds if is_first else None)
    job.progress.iter += 1
    job.progress.sequences += job.batch_plan.sequences
    job.progress.val_loss = None
    report_fallbacks(job)


def sync_and_check_finite(job: Job) -> None:
    """Waits for the device, reads losses and gradient norms, and raises if one was not finite."""
    progress = job.progress
    with job.ledger.phase("train"), job.process_group.waiting_for_ranks():  # a GPU may wait for another one
        losses, norms = job.learner.take_losses_and_norms()
        bad_update = job.learner.first_bad_update(progress.iter)
    job.interval.correct_data_wait(job.loader.take_data_wait_s())
    if bad_update is not None:
        # Updates after the bad one were not applied: they do not belong to the run.
        not_applied = progress.iter - bad_update - 1
        applied = max(1, len(losses) - not_applied)
        losses, norms = losses[:applied], norms[:applied]
        progress.iter -= not_applied
        progress.sequences -= not_applied * job.batch_plan.sequences
    progress.losses += losses
    progress.norms += norms
    job.recent_grad_norms.extend(norms)
    if bad_update is not None:
        raise NonFiniteError(bad_update)


def profile_is_due(job: Job) -> bool:
    return job.profiler.covers(job.progress.iter) and not job.learner.is_first_call("update")


def profiled_update(job: Job) -> None:
    """An update under PyTorch's profiler. That slows it, so it does not count for the step time."""
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
        job.log(job.profiler.stop_if_due(job.progress.iter, at_the_end))
        job.process_group.barrier()


# --- evaluation ---


def evaluation_is_due(job: Job) -> bool:
    done = job.progress.iter
    due = done % job.config.eval_interval == 0 or done >= job.config.max_iters
    # Weights that came without a loss to compare with are evaluated first.
    due = due or (job.progress.best_iter is None and job.eval_cost.count == 0)
    is_evaluated = job.progress.val_loss is not None  # before the checkpoint that the run resumed from
    return job.config.eval_only or (due and not is_evaluated)


def evaluate_splits(job: Job) -> None:
    """Evaluates both splits, always on the same tokens. Tracks the best loss and the last real gain."""
    sync_and_check_finite(job)
    before = job.ledger.seconds()
    result = evaluate_split(job, "train", job.eval_windows["train"])
    if result is not None:
        result = evaluate_split(job, "val", job.eval_windows["val"])
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
    """Evaluates one split and records the result; None if a signal stopped it."""

    def should_stop() -> bool:
        sync_stop_request(job)
        return job.signals.stop_requested

    before = job.ledger.seconds()
    result = evaluate(job.learner, windows, job.ledger, should_stop)
    seconds = phase_seconds_between(before, job.ledger.seconds())
    report_fallbacks(job)
    if result is not None:
        job.log(journal_records.eval_record(job, split, result, seconds, closing))
    return result


# --- checkpoints ---


def save_is_due(job: Job, ending: Ending | None) -> bool:
    config, progress = job.config, job.progress
    if config.eval_only or job.last_saved == (progress.iter, progress.val_loss):
        return False
    if ending is not None or job.signals.sighup_received or job.signals.save_requested:
        return True
    if progress.iter == 0:
        return False
    if progress.best_iter == progress.iter:
        return True
    if config.checkpoint_interval is not None:
        return progress.iter % config.checkpoint_interval == 0
    return progress.val_loss is not None and config.always_save_checkpoint


def save(job: Job) -> None:
    """Waits for the previous save and for a copy of the tensors. The files are written in the background."""
    sync_and_check_finite(job)
    with job.ledger.phase("checkpoint") as phase:
        started = time.perf_counter()
        log_finished_save(job, wait=True)
        rescue_if_run_dir_lost(job)  # first: the folder may be another run's by now
        tensors, rows = local_checkpoint_tensors(job)
        job.saver.save(tensors, checkpoint_state(job), started, rows)
        job.process_group.barrier()  # rank 0 may have had all of the work
    job.last_saved = (job.progress.iter, job.progress.val_loss)
    job.save_cost.add(phase.seconds)


def log_finished_save(job: Job, wait: bool = False) -> None:
    """Records the last save, if it has finished."""
    try:
        record = job.saver.poll(wait)
    except UserError:
        if rescue_if_run_dir_lost(job):  # the run saves again, in its new folder
            return
        raise
    job.log(record)
    ignored = [
        name for name in (record or {}).get("ignored", ()) if name not in job.reported_ignored_checkpoints
    ]
    if ignored:
        job.reported_ignored_checkpoints.update(ignored)
        job.log(live_findings.ignored_checkpoints_finding(job, ignored))


# --- log lines ---


def log_is_due(job: Job) -> bool:
    done = job.progress.iter
    first = 1 if job.config.console == "nanogpt" else 0  # nanoGPT counts updates from 0, and logs that one
    return (done - first) % job.config.log_interval == 0 or done >= job.config.max_iters


def log_step(job: Job) -> None:
    sync_and_check_finite(job)
    log_step_record(job)
    is_one_cpu_process = job.execution.device.type == "cpu" and not job.process_group.launch_id
    threads = torch.get_num_threads() if is_one_cpu_process else 1
    for finding in take_speed_findings(job.forecast_check, job.progress.iter, job.run_dir, threads):
        job.log(finding)
    log_finished_save(job)


def log_step_record(job: Job) -> None:
    if job.progress.losses:
        with job.ledger.phase("log"):
            job.sink(journal_records.step_record(job))
        job.progress.losses, job.progress.norms = [], []


def report_fallbacks(job: Job) -> None:
    """Records which speedup failed. Not after Ctrl-C, which reaches the compiler too."""
    for name, evidence in job.learner.fallbacks.items():
        if name not in job.reported_fallbacks and not job.signals.stop_requested:
            job.log(live_findings.fallback_finding(job, name, evidence))
        job.reported_fallbacks.add(name)


# --- signals and the end ---


def sync_stop_request(job: Job) -> None:
    """Agrees with the other ranks on signals: all act on them at the same update."""
    if job.sink.journal_lost_reason:
        rescue_to_new_dir(job)
    was_lost = job.signals.run_dir_lost
    job.process_group.sync_stop_signals(job.signals)
    if job.signals.run_dir_lost and not was_lost:
        job.last_saved = None  # the last checkpoint is in the folder that is lost


def report_signals(job: Job) -> None:
    """Records signals that asked for a checkpoint. The checkpoint is saved by now, and the run continues."""
    if job.signals.sighup_received:
        job.signals.sighup_received = False
        job.log(live_findings.hangup_finding(job))
    if job.signals.save_requested:
        job.signals.save_requested = False
        job.log(live_findings.save_requested_finding(job))


def ending_if_stopped(job: Job) -> Ending | None:
    if job.signals.run_dir_lost:
        return Ending("crashed", 2, {"error": "the run's folder was moved, removed or replaced"})
    return Ending("interrupted", job.signals.exit_code) if job.signals.stop_requested else None


def ending_if_due(job: Job) -> Ending | None:
    if stopped := ending_if_stopped(job):
        return stopped
    if job.config.eval_only:
        return Ending("evaluated")
    if job.progress.iter >= job.config.max_iters:
        return Ending("finished")
    if job.config.patience and job.progress.evaluations_without_gain >= job.config.patience:
        return Ending("stopped early")
    return None


def finish(job: Job, ending: Ending) -> Ending:
    """The closing evaluation, the sample, the last checkpoint, the last findings. A signal can stop it."""
    has_trained = ending.exit_code == 0 and not job.config.eval_only
    if has_trained:
        log_profile(job, at_the_end=True)
        if job.config.closing_eval and job.eval_tokens < len(job.splits["val"]) - 1:
            evaluate_split(job, "val", job.eval_windows["val"].of_whole_split(), closing=True)
        if job.sampling is not None and not job.signals.stop_requested:
            generate_final_sample(job, job.sampling)
    job.process_group.extend_timeout()
    with job.ledger.phase("checkpoint"):
        log_finished_save(job, wait=True)
    is_lost, is_unsaved = job.process_group.broadcast_from_rank_zero(
        lambda: [rescue_if_run_dir_lost(job), job.last_saved is None]
    )
    if is_lost:
        job.signals.run_dir_lost = True
        if is_unsaved:
            save(job)
            with job.ledger.phase("checkpoint"):
                log_finished_save(job, wait=True)
    if stopped := ending_if_stopped(job):
        return stopped
    check, done = job.forecast_check, job.progress.iter
    if has_trained:
        job.log(loss_curve_finding(check, done, job.progress.val_loss))
    job.log(live_findings.straggler_finding(job))
    wall_s = sum(job.ledger.seconds().values())
    is_whole_run = journal_records.ran_in_one_process(job, ending.reason)
    job.log(forecast_miss_finding(check, done, wall_s, is_whole_run))
    return ending


def generate_final_sample(job: Job, sampling: Sampling) -> None:
    """A sample of the final model. Its time counts as evaluation."""
    tokenizer, start = sampling.tokenizer, sampling.start
    with job.ledger.phase("eval") as phase:
        model = gather_full_model(job)  # collective: every rank has to call it
        if tokenizer is None:
            return
        # Most tokenizers have an end-of-text token to start from; characters have none.
        first = int(job.splits["train"][:1][0]) if tokenizer.eot is None else tokenizer.eot
        token_sampler = TokenSampler(tokenizer.vocab_size, seed=job.config.seed)
        tokens = generate(model, start or [first], job.config.sample_tokens, token_sampler)
        text = tokenizer.decode([*start, *tokens])
    job.log(journal_records.sample_record(job, text, phase.seconds))


def finish_after_nonfinite(job: Job, bad_update: int) -> Ending:
    """Logs the bad loss. Saves nothing: the last checkpoint is from before."""
    log_step_record(job)
    job.progress.iter = bad_update  # that update was tried, but not applied
    with job.ledger.phase("checkpoint"):
        log_finished_save(job, wait=True)
    # Updates count from 0 inside the program. `bad_iter` counts from 1, as `iter` counts updates done.
    details = {"bad_iter": bad_update + 1, "recent_grad_norms": list(job.recent_grad_norms)}
    return Ending("not finite", 3, details)
