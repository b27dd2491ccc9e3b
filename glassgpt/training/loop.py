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
from glassgpt.model.generate import generate
from glassgpt.model.sampling import Draws
from glassgpt.record import journal
from glassgpt.record.clock import since
from glassgpt.record.journal import Record
from glassgpt.record.machine import cpu_times
from glassgpt.record.run_dir import TOKENIZER, Place
from glassgpt.training import journal_records, live_findings
from glassgpt.training.evaluate import Evaluation, Windows, evaluate, is_gain
from glassgpt.training.forecast_check import cores_finding, course_finding, miss_finding, pace_finding
from glassgpt.training.job import Job, Sampling
from glassgpt.training.kernel_choice import built_marker
from glassgpt.training.train_state import parts_of, state_of, whole_model


@dataclass(frozen=True)
class Ending:
    """Why a run ended, the exit code for it, and what its last record says besides."""

    reason: str
    exit_code: int = 0
    details: Record | None = None


class NotFinite(Exception):
    """A loss or gradient was NaN or infinite. The weights are still those before that update."""

    def __init__(self, update: int) -> None:
        super().__init__(update)
        self.update = update


def run(job: Job) -> Ending:
    """Trains until something ends it."""
    try:
        while True:
            with job.ledger.phase("train"):  # waiting for an answer is part of an update
                heed(job)
            if evaluation_is_due(job):
                evaluate_splits(job)
            ending = why_end(job)
            if ending:
                log_step(job)  # an end that came between two log lines
            if save_is_due(job, ending):
                save(job)
            if job.stop.hung_up:
                tell_hangup(job)
            if job.stop.save_requested:
                tell_save_requested(job)
            if ending:
                return close(job, ending)
            if profile_is_due(job):
                profiled_update(job)
            else:
                update(job)
            if log_is_due(job):
                log_step(job)
    except NotFinite as error:
        return end_not_finite(job, error.update)


def heed(job: Job) -> None:
    """What one process of a team is told, all of them act on."""
    if job.sink.lost:
        rescue(job)
    was_lost = job.stop.lost_folder
    job.team.heed(job.stop)
    if job.stop.lost_folder and not was_lost:
        job.saved = None  # what was saved is in the folder that is lost


def why_stop(job: Job) -> Ending | None:
    if job.stop.lost_folder:
        return Ending("crashed", 2, {"error": "the run's folder was moved, removed or replaced"})
    return Ending("interrupted", job.stop.exit_code) if job.stop.requested else None


def why_end(job: Job) -> Ending | None:
    if job.stop.requested:
        return why_stop(job)
    if job.config.eval_only:
        return Ending("evaluated")
    if job.progress.iter >= job.config.max_iters:
        return Ending("finished")
    if job.config.patience and job.progress.evaluations_without_gain >= job.config.patience:
        return Ending("stopped early")
    return None


def update(job: Job) -> None:
    """One update. The first one of a process compiles and warms up, and is accounted for as that."""
    first = job.learner.is_first("update")
    with job.ledger.phase("compile" if first else "train") as phase:
        job.learner.update(job.progress.iter, job.progress.sequences)
        if first:
            with job.team.meeting():
                job.placement.synchronize()
            job.team.exchanged_s()  # of no interval: it is part of warming up
            mark_built(job)
    job.interval.update_done(phase.seconds if first else None)
    job.progress.iter += 1
    job.progress.sequences += job.plan.sequences
    job.progress.val_loss = None
    tell_setbacks(job)


def mark_built(job: Job) -> None:
    """For the next run to know that Triton has these kernels. A cache that cannot be written has none."""
    if job.placement.kernels and "kernels" not in job.learner.setbacks:
        place, vocab_size = job.placement, job.equipment.shape.vocab_size
        with contextlib.suppress(OSError):
            built_marker(job.config, place.device, place.dtype, vocab_size, job.plan).touch()


# --- looking into updates ---


def profile_is_due(job: Job) -> bool:
    return job.profiling.covers(job.progress.iter) and not job.learner.is_first("update")


def profiled_update(job: Job) -> None:
    """An update that PyTorch's profiler watches. That slows it, so it does not count for the step time."""
    catch_up(job)
    before = job.ledger.seconds()
    with job.ledger.phase("log"), job.team.uncounted(), job.profiling.watching(job.progress.iter):
        update(job)
        catch_up(job)
    job.interval.leave_out(before)
    tell_profile(job)


def tell_profile(job: Job, at_the_end: bool = False) -> None:
    with job.ledger.phase("log"):
        tell(job, job.profiling.record(job.progress.iter, at_the_end))
        job.team.assemble()


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
    catch_up(job)
    before = job.ledger.seconds()
    result = evaluate_split(job, "train", job.windows["train"]) and evaluate_split(
        job, "val", job.windows["val"]
    )
    if result is None:
        return
    progress = job.progress
    progress.val_loss = result.loss
    if result.loss < progress.best_val_loss:
        progress.best_val_loss, progress.best_iter = result.loss, progress.iter
    if is_gain(job.reference, result):
        job.reference, progress.evaluations_without_gain = result, 0
    else:
        progress.evaluations_without_gain += 1
    job.eval_cost.add(since(before, job.ledger.seconds())["eval"])


def evaluate_split(job: Job, split: str, windows: Windows, closing: bool = False) -> Evaluation | None:
    """Evaluates and records; None if the user asked to stop meanwhile."""
    before = job.ledger.seconds()
    result = evaluate(job.learner, windows, job.ledger, should_stop=lambda: is_stopped(job))
    spent = since(before, job.ledger.seconds())
    tell_setbacks(job)
    if result is not None:
        tell(job, journal_records.eval_record(job, split, result, spent, closing))
    return result


def is_stopped(job: Job) -> bool:
    heed(job)
    return job.stop.requested


# --- saving ---


def save_is_due(job: Job, ending: Ending | None) -> bool:
    config, progress = job.config, job.progress
    if config.eval_only or job.saved == (progress.iter, progress.val_loss):
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
    catch_up(job)
    with job.ledger.phase("checkpoint") as phase:
        started = time.perf_counter()
        tell_saved(job, wait=True)
        is_lost(job)  # before anything is written into what may be another run's folder
        tensors, rows = parts_of(job)
        job.saver.save(tensors, state_of(job), started, rows)
        job.team.assemble()  # the first process may have had all of the work
    job.saved = (job.progress.iter, job.progress.val_loss)
    job.save_cost.add(phase.seconds)


def tell_saved(job: Job, wait: bool = False) -> None:
    """What came of the last save, if it has ended, and what was found beside it."""
    try:
        record = job.saver.poll(wait)
    except UserError:
        if is_lost(job):  # then the run saves again, elsewhere
            return
        raise
    tell(job, record)
    ignored = [name for name in (record or {}).get("ignored", ()) if name not in job.told_ignored]
    if ignored:
        job.told_ignored.update(ignored)
        tell(job, live_findings.ignored_checkpoints(job, ignored))


# --- a folder that is moved, removed or replaced ---


def is_lost(job: Job) -> bool:
    """Whether the run has lost its folder, which the first process looks after."""
    job.sink.check(job.progress.iter)
    if job.sink.lost:
        rescue(job)
    return job.sink.has_moved


def rescue(job: Job) -> None:
    """From now on everything goes into a new folder, and all processes are asked to save there and end."""
    if not isinstance(job.place, Place) or job.config.eval_only:
        raise UserError(f"{job.run_dir} was moved, removed or replaced: {job.sink.lost}")
    before, reason = job.run_dir, job.sink.lost
    with job.ledger.phase("checkpoint"):
        with contextlib.suppress(UserError):  # of a save that failed because of this
            tell(job, job.saver.poll(wait=True))
        job.place.leave_for_rescue()
        job.place.write_config(job.resolved_config())
        write_tokenizer(job.run_dir / TOKENIZER, job.dataset)
        job.sink.move(job.run_dir / journal.NAME)
        job.saver.move(job.run_dir)
    if not job.team.launch:  # else all ranks do it when they have agreed: see `heed`
        job.saved = None
    job.stop.lose_folder()
    tell(job, live_findings.lost_folder(job, before, reason))


# --- logging ---


def log_is_due(job: Job) -> bool:
    done = job.progress.iter
    first = 1 if job.config.console == "nanogpt" else 0  # which counts updates from 0, and logs that one
    return (done - first) % job.config.log_interval == 0 or done >= job.config.max_iters


def log_step(job: Job) -> None:
    catch_up(job)
    tell_step(job)
    threads = 1 if job.placement.device.type != "cpu" or job.team.launch else torch.get_num_threads()
    command = f"glass train --init_from=resume --out_dir={shlex.quote(str(job.run_dir))} --threads=1"
    one_thread = command if threads > 1 else ""
    tell(job, pace_finding(job.outcome, job.progress.iter, one_thread))
    if one_thread:
        tell(job, cores_finding(job.outcome, job.progress.iter, threads, one_thread, cpu_times()))
    tell_saved(job)


def catch_up(job: Job) -> None:
    """Waits for the device, reads what it computed since last time, and looks whether all was finite."""
    progress = job.progress
    with job.ledger.phase("train"), job.team.meeting():  # a card may be waiting for another one
        losses, norms = job.learner.take_results()
        bad_update = job.learner.first_bad_update(progress.iter)
    job.interval.split_data_from_train(job.stream.waited_s())
    if bad_update is not None:
        # What came after the bad update was not applied, and does not belong to the run.
        after = progress.iter - bad_update - 1
        kept = max(1, len(losses) - after)
        losses, norms = losses[:kept], norms[:kept]
        progress.iter -= after
        progress.sequences -= after * job.plan.sequences
    progress.losses += losses
    progress.norms += norms
    job.recent_norms.extend(norms)
    if bad_update is not None:
        raise NotFinite(bad_update)


def tell_step(job: Job) -> None:
    if job.progress.losses:
        with job.ledger.phase("log"):
            job.sink(journal_records.step_record(job))
        job.progress.losses, job.progress.norms = [], []


def tell_setbacks(job: Job) -> None:
    """What was to make the run fast and failed. Ctrl-C reaches the compiler too, and that is no failure."""
    for what, evidence in job.learner.setbacks.items():
        if what not in job.told_setbacks and not job.stop.requested:
            tell(job, live_findings.setback(job, what, evidence))
        job.told_setbacks.add(what)


def tell_hangup(job: Job) -> None:
    """The terminal is gone. The run has saved, and goes on without it."""
    job.stop.hung_up = False
    tell(job, live_findings.hangup(job))


def tell_save_requested(job: Job) -> None:
    job.stop.save_requested = False
    tell(job, live_findings.save_requested(job))


def tell(job: Job, what: Record | None) -> None:
    if what is not None:
        with job.ledger.phase("log"):
            job.sink(what)


# --- ending ---


def close(job: Job, ending: Ending) -> Ending:
    """What remains to be done for a run that ends, in whatever way. Being stopped meanwhile is an end too."""
    if ending.exit_code == 0 and not job.config.eval_only:
        tell_profile(job, at_the_end=True)
        if job.config.closing_eval and job.eval_tokens < len(job.splits["val"]) - 1:
            # All of it once, whatever was sampled before.
            evaluate_split(job, "val", job.windows["val"].of_whole_split(), closing=True)
        if job.sampling is not None and not job.stop.requested:
            write_sample(job, job.sampling)
    job.team.be_patient()
    with job.ledger.phase("checkpoint"):
        tell_saved(job, wait=True)
    lost, unsaved = job.team.from_first(lambda: [is_lost(job), job.saved is None])
    if lost:
        job.stop.lost_folder = True
        if unsaved:
            save(job)
            with job.ledger.phase("checkpoint"):
                tell_saved(job, wait=True)
    stopped = why_stop(job)
    if stopped is not None:
        return stopped
    if ending.exit_code == 0 and not job.config.eval_only:
        tell(job, course_finding(job.outcome, job.progress.iter, job.progress.val_loss))
    tell(job, live_findings.straggler(job))
    wall_s = sum(job.ledger.seconds().values())
    tell(
        job,
        miss_finding(job.outcome, job.progress.iter, wall_s, journal_records.is_whole(job, ending.reason)),
    )
    return ending


def write_sample(job: Job, sampling: Sampling) -> None:
    """Text from the model as it is now; looking at it is part of evaluating it."""
    tokenizer, start = sampling.tokenizer, sampling.start
    with job.ledger.phase("eval") as phase:
        model = whole_model(job)  # of a model that is spread, everybody brings a part
        if tokenizer is None:
            return
        # Most tokenizers have a token for "here a text begins"; characters have not.
        beginning = int(job.splits["train"][:1][0]) if tokenizer.eot is None else tokenizer.eot
        draws = Draws(tokenizer.vocab_size, seed=job.config.seed)
        tokens = generate(model, start or [beginning], job.config.sample_tokens, draws)
        text = tokenizer.decode([*start, *tokens])
    tell(job, journal_records.sample_record(job, text, phase.seconds))


def end_not_finite(job: Job, bad_update: int) -> Ending:
    """Shows the bad loss as it is. Nothing is saved: the last checkpoint is from before."""
    tell_step(job)
    job.progress.iter = bad_update  # that update was tried, but not done
    with job.ledger.phase("checkpoint"):
        tell_saved(job, wait=True)
    return Ending("not finite", 3, journal_records.failure(job, bad_update))
