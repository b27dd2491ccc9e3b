"""The training loop. Everything a run does happens here, in this order:

    evaluate  ->  end?  ->  save  ->  update  ->  log  ->  ...

`iter` counts updates done, so an evaluation at iter 500 is of the model after 500 updates. Time is always in
exactly one phase of the ledger. Every event goes to the sink as a journal record.

`run` is what is fixed, `state` what changes. A function that takes both may change the state; those that take
the config and the state only decide what is due.

Coming from nanoGPT: `iter_num` is `state.progress.iter`, the micro-step loop is in `Learner.update`,
get_batch() is loader.py, estimate_loss() is evaluate.py, and what is `ddp` there is `run.process_group`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from glassgpt.config import TrainConfig
from glassgpt.errors import UserError
from glassgpt.model.generate import generate
from glassgpt.model.token_sampler import TokenSampler
from glassgpt.record.journal import Record
from glassgpt.record.ledger import RankTimes, phase_seconds_between
from glassgpt.training import journal_records, live_findings, probe
from glassgpt.training.compute_plan import mark_kernels_built
from glassgpt.training.distributed.fsdp import gather_full_model
from glassgpt.training.evaluate import EvalResult, EvalWindows, evaluate, is_gain
from glassgpt.training.forecast_check import forecast_miss_finding, loss_curve_finding, take_speed_findings
from glassgpt.training.interrupt import StopSignals
from glassgpt.training.journal_records import IntervalMeasures
from glassgpt.training.save_and_restore import (
    checkpoint_state,
    checkpoint_tensors,
    rescue_if_run_dir_lost,
    rescue_to_new_dir,
)
from glassgpt.training.train_state import Sampling, TrainSetup, TrainState


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


def train(run: TrainSetup, state: TrainState) -> Ending:
    """Trains until something ends the run."""
    try:
        while True:
            with run.ledger.phase("train"):  # waiting for the other ranks is part of an update
                sync_stop_request(run, state)
            if evaluation_is_due(run.config, state):
                evaluate_splits(run, state)
            ending = ending_if_due(run.config, state)
            if ending:
                log_step(run, state)  # the updates since the last log line
            if save_is_due(run.config, state, ending):
                save(run, state)
            report_signals(run, state)
            if ending:
                return finish(run, state, ending)
            if run.profiler.covers(state.progress.iter) and not run.learner.is_first_call("update"):
                profiled_update(run, state)
            else:
                update(run, state)
            if log_is_due(run.config, state):
                log_step(run, state)
    except NonFiniteError as error:
        return finish_after_nonfinite(run, state, error.update)


# --- update ---


def update(run: TrainSetup, state: TrainState) -> None:
    """One update. The first one of a process compiles and warms up: its time goes to the `compile` phase."""
    is_first = run.learner.is_first_call("update")
    with run.ledger.phase("compile" if is_first else "train") as phase:
        run.learner.update(state.progress.iter, state.progress.sequences)
        if is_first:
            with run.process_group.waiting_for_ranks():
                run.execution.synchronize()
            run.process_group.take_all_reduce_s()  # warm-up: belongs to no log interval
            mark_kernels_built(run.compute_plan, run.learner.fallbacks)
    state.interval.count_update(phase.seconds if is_first else None)
    state.progress.iter += 1
    state.progress.sequences += run.batch_plan.sequences
    state.progress.val_loss = None
    report_fallbacks(run, state)


def sync_and_check_finite(run: TrainSetup, state: TrainState) -> None:
    """Waits for the device, reads losses and gradient norms, and raises if one was not finite."""
    progress = state.progress
    with run.ledger.phase("train"), run.process_group.waiting_for_ranks():  # a GPU may wait for another one
        losses, norms = run.learner.take_losses_and_norms()
        bad_update = run.learner.first_bad_update(progress.iter)
    state.interval.correct_data_wait(run.loader.take_data_wait_s())
    if bad_update is not None:
        # Updates after the bad one were not applied: they do not belong to the run.
        not_applied = progress.iter - bad_update - 1
        applied = max(1, len(losses) - not_applied)
        losses, norms = losses[:applied], norms[:applied]
        progress.iter -= not_applied
        progress.sequences -= not_applied * run.batch_plan.sequences
    progress.losses += losses
    progress.norms += norms
    state.recent_grad_norms.extend(norms)
    if bad_update is not None:
        raise NonFiniteError(bad_update)


def profiled_update(run: TrainSetup, state: TrainState) -> None:
    """An update under PyTorch's profiler. That slows it, so it does not count for the step time."""
    sync_and_check_finite(run, state)
    before = run.ledger.seconds()
    with (
        run.ledger.phase("log"),
        run.process_group.without_all_reduce_timing(),
        run.profiler.profile_update(state.progress.iter),
    ):
        update(run, state)
        sync_and_check_finite(run, state)
    state.interval.exclude_last_update(before)
    log_profile(run, state.progress.iter)


def log_profile(run: TrainSetup, done: int, at_the_end: bool = False) -> None:
    with run.ledger.phase("log"):
        run.log(run.profiler.stop_if_due(done, at_the_end))
        run.process_group.barrier()


# --- evaluation ---


def evaluation_is_due(config: TrainConfig, state: TrainState) -> bool:
    progress, done = state.progress, state.progress.iter
    due = done % config.eval_interval == 0 or done >= config.max_iters
    # Weights that came without a loss to compare with are evaluated first.
    due = due or (progress.best_iter is None and state.eval_cost.count == 0)
    is_evaluated = progress.val_loss is not None  # before the checkpoint that the run resumed from
    return config.eval_only or (due and not is_evaluated)


def evaluate_splits(run: TrainSetup, state: TrainState) -> None:
    """Evaluates both splits, always on the same tokens. Tracks the best loss and the last real gain."""
    sync_and_check_finite(run, state)
    before = run.ledger.seconds()
    if evaluate_split(run, state, "train", run.eval_windows["train"]) is None:
        return
    result = evaluate_split(run, state, "val", run.eval_windows["val"])
    if result is None:
        return
    progress = state.progress
    progress.val_loss = result.loss
    if result.loss < progress.best_val_loss:
        progress.best_val_loss, progress.best_iter = result.loss, progress.iter
    if is_gain(state.early_stop_reference, result):
        state.early_stop_reference, progress.evaluations_without_gain = result, 0
    else:
        progress.evaluations_without_gain += 1
    state.eval_cost.add(phase_seconds_between(before, run.ledger.seconds())["eval"])


def evaluate_split(
    run: TrainSetup, state: TrainState, split: str, windows: EvalWindows, closing: bool = False
) -> EvalResult | None:
    """Evaluates one split and records the result; None if a signal stopped it."""

    def should_stop() -> bool:
        sync_stop_request(run, state)
        return state.signals.stop_requested

    before = run.ledger.seconds()
    result = evaluate(run.learner, windows, run.ledger, should_stop, run.loss_parts)
    seconds = phase_seconds_between(before, run.ledger.seconds())
    report_fallbacks(run, state)
    if result is not None:
        run.log(journal_records.eval_record(run, state.progress, split, result, seconds, closing))
    return result


# --- checkpoints ---


def save_is_due(config: TrainConfig, state: TrainState, ending: Ending | None) -> bool:
    progress = state.progress
    if config.eval_only or state.last_saved == (progress.iter, progress.val_loss):
        return False
    if ending is not None or state.signals.sighup_received or state.signals.save_requested:
        return True
    if progress.iter == 0:
        return False
    if progress.best_iter == progress.iter:
        return True
    if config.checkpoint_interval is not None:
        return progress.iter % config.checkpoint_interval == 0
    return progress.val_loss is not None and config.always_save_checkpoint


def save(run: TrainSetup, state: TrainState) -> None:
    """Waits for the previous save and for a copy of the tensors. The files are written in the background."""
    sync_and_check_finite(run, state)
    with run.ledger.phase("checkpoint") as phase:
        started = time.perf_counter()
        log_finished_save(run, state, wait=True)
        rescue_if_run_dir_lost(run, state)  # first: the folder may be another run's by now
        tensors, rows = checkpoint_tensors(run, state.early_stop_reference)
        run.saver.save(tensors, checkpoint_state(run, state.progress), started, rows)
        if run.execution.device.type == "cpu":  # the copy may be the peak, if no log line follows
            state.forecast_check.add_memory(probe.memory_now("cpu"))
        run.process_group.barrier()  # rank 0 may have had all of the work
    state.last_saved = (state.progress.iter, state.progress.val_loss)
    state.save_cost.add(phase.seconds)


def wait_for_save(run: TrainSetup, state: TrainState) -> None:
    with run.ledger.phase("checkpoint"):
        log_finished_save(run, state, wait=True)


def log_finished_save(run: TrainSetup, state: TrainState, wait: bool = False) -> None:
    """Records the last save, if it has finished."""
    try:
        record = run.saver.poll(wait)
    except UserError:
        if rescue_if_run_dir_lost(run, state):  # the run saves again, in its new folder
            return
        raise
    run.log(record)
    ignored = [name for name in (record or {}).get("ignored", ()) if name not in state.reported_ignored]
    if ignored:
        state.reported_ignored.update(ignored)
        run.log(live_findings.ignored_checkpoints_finding(run.run_dir, state.progress.iter, ignored))


def save_again_if_run_dir_lost(run: TrainSetup, state: TrainState) -> None:
    """At the end, when no update follows at which the ranks would agree on it."""
    rescue_if_run_dir_lost(run, state)  # rank 0 does; the others have no journal to check
    is_lost, is_unsaved = run.process_group.broadcast_from_rank_zero(
        lambda: [run.sink.has_moved, state.last_saved is None]
    )
    if is_lost:
        state.signals.run_dir_lost = True
        if is_unsaved:
            save(run, state)
            wait_for_save(run, state)


# --- log lines ---


def log_is_due(config: TrainConfig, state: TrainState) -> bool:
    done = state.progress.iter
    first = 1 if config.console == "nanogpt" else 0  # nanoGPT counts updates from 0, and logs that one
    return (done - first) % config.log_interval == 0 or done >= config.max_iters


def log_step(run: TrainSetup, state: TrainState) -> None:
    sync_and_check_finite(run, state)
    log_step_record(run, state)
    is_one_cpu_process = run.execution.device.type == "cpu" and not run.process_group.launch_id
    threads = torch.get_num_threads() if is_one_cpu_process else 1
    for finding in take_speed_findings(state.forecast_check, state.progress.iter, run.run_dir, threads):
        run.log(finding)
    run.log(journal_records.take_revised_forecast(run, state))
    log_finished_save(run, state)


def log_step_record(run: TrainSetup, state: TrainState) -> None:
    """Closes the log interval, gathers the times of all ranks, and records them. Collective."""
    if not state.progress.losses:
        return
    group, interval = run.process_group, state.interval
    with run.ledger.phase("log"):
        updates, first_s = interval.updates, interval.first_update_s
        seconds, phases = interval.close()
        memory = probe.memory_now(str(run.execution.device))
        state.forecast_check.add(updates * run.batch_plan.tokens, seconds, phases["data"], memory)
        times, rank_memory = None, ()
        if group.launch_id:
            all_reduce_s = min(group.take_all_reduce_s(), seconds)
            own = [seconds - all_reduce_s, all_reduce_s, memory.get("allocated_peak", memory["rss"])]
            compute_s, communication_s, rank_memory = zip(*group.all_gather_rows(own), strict=True)
            times = RankTimes(compute_s, communication_s)
            if updates:
                state.rank_time = times if state.rank_time is None else state.rank_time + times
        measured = IntervalMeasures(updates, seconds, first_s, phases, memory, times, rank_memory)
        run.sink(journal_records.step_record(run, state, measured))
    state.progress.losses, state.progress.norms = [], []


def report_fallbacks(run: TrainSetup, state: TrainState) -> None:
    """Records which speedup failed. Not after Ctrl-C, which reaches the compiler too."""
    for name, evidence in run.learner.fallbacks.items():
        if name not in state.reported_fallbacks and not state.signals.stop_requested:
            run.log(live_findings.fallback_finding(state.progress.iter, name, evidence))
        state.reported_fallbacks.add(name)


# --- signals and the end ---


def sync_stop_request(run: TrainSetup, state: TrainState) -> None:
    """Agrees with the other ranks on signals and requests: all act on them at the same update."""
    if run.process_group.is_rank_zero:
        for request in state.request_watch.take(run.run_dir):
            state.signals.receive_request(request.action, request.by)
            run.log(journal_records.request_record(state.progress.iter, request))
    if run.sink.journal_lost_reason:
        rescue_to_new_dir(run, state)
    was_lost = state.signals.run_dir_lost
    run.process_group.sync_stop_signals(state.signals)
    if state.signals.run_dir_lost and not was_lost:
        state.last_saved = None  # the last checkpoint is in the folder that is lost


def report_signals(run: TrainSetup, state: TrainState) -> None:
    """Records signals that asked for a checkpoint. The checkpoint is saved by now, and the run continues."""
    if state.signals.sighup_received:
        state.signals.sighup_received = False
        run.log(live_findings.hangup_finding(run.run_dir, state.progress.iter))
    if state.signals.save_requested:
        asked_by, state.signals.save_requested_by = state.signals.save_requested_by, ""
        state.signals.save_requested = False
        done = state.progress.iter
        run.log(live_findings.save_requested_finding(run.run_dir, done, state.last_saved, asked_by))


def ending_if_stopped(signals: StopSignals) -> Ending | None:
    if signals.run_dir_lost:
        return Ending("crashed", 2, {"error": "the run's folder was moved, removed or replaced"})
    return Ending("interrupted", signals.exit_code) if signals.stop_requested else None


def ending_if_due(config: TrainConfig, state: TrainState) -> Ending | None:
    if stopped := ending_if_stopped(state.signals):
        return stopped
    if config.eval_only:
        return Ending("evaluated")
    if state.progress.iter >= config.max_iters:
        return Ending("finished")
    if config.patience and state.progress.evaluations_without_gain >= config.patience:
        return Ending("stopped early")
    return None


def finish(run: TrainSetup, state: TrainState, ending: Ending) -> Ending:
    """The closing evaluation, the sample, the last checkpoint, the last findings. A signal can stop it."""
    has_trained = ending.exit_code == 0 and not run.config.eval_only
    if has_trained:
        log_profile(run, state.progress.iter, at_the_end=True)
        if run.has_closing_eval:
            evaluate_split(run, state, "val", run.eval_windows["val"].of_whole_split(), closing=True)
        if run.sampling is not None and not state.signals.stop_requested:
            generate_final_sample(run, run.sampling, state.progress.iter)
    run.process_group.extend_timeout()
    wait_for_save(run, state)
    save_again_if_run_dir_lost(run, state)
    if stopped := ending_if_stopped(state.signals):
        return stopped
    check, done = state.forecast_check, state.progress.iter
    if has_trained:
        run.log(loss_curve_finding(check, done, state.progress.val_loss))
    if state.rank_time is not None and not run.execution.shard:
        run.log(live_findings.straggler_finding(done, state.rank_time))
    wall_s = sum(run.ledger.seconds().values())
    is_whole_run = journal_records.ran_in_one_process(run, ending.reason)
    run.log(forecast_miss_finding(check, done, wall_s, is_whole_run))
    return ending


def generate_final_sample(run: TrainSetup, sampling: Sampling, done: int) -> None:
    """A sample of the final model. Its time counts as evaluation."""
    tokenizer, start = sampling.tokenizer, sampling.start
    with run.ledger.phase("eval", activity="sample") as phase:
        model = run.learner.model
        if run.execution.shard:
            model = gather_full_model(model)  # collective: every rank has to call it
        if tokenizer is None:
            return
        # Most tokenizers have an end-of-text token to start from; characters have none.
        first = int(run.splits["train"][:1][0]) if tokenizer.eot is None else tokenizer.eot
        token_sampler = TokenSampler(tokenizer.vocab_size, seed=run.config.seed)
        tokens = generate(model, start or [first], run.config.sample_tokens, token_sampler)
        text = tokenizer.decode([*start, *tokens])
    run.log(journal_records.sample_record(done, text, phase.seconds))


def finish_after_nonfinite(run: TrainSetup, state: TrainState, bad_update: int) -> Ending:
    """Logs the bad loss. Saves nothing: the last checkpoint is from before."""
    log_step_record(run, state)
    state.progress.iter = bad_update  # that update was tried, but not applied
    wait_for_save(run, state)
    # Updates count from 0 inside the program. `bad_iter` counts from 1, as `iter` counts updates done.
    details = {"bad_iter": bad_update + 1, "recent_grad_norms": list(state.recent_grad_norms)}
    return Ending("not finite", 3, details)
