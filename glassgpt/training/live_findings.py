"""What a run finds out about itself while it goes on, besides how it keeps to its forecast (outcome.py)."""

from __future__ import annotations

import math
import os
from pathlib import Path

from glassgpt.config import TrainConfig
from glassgpt.record.finding import finding_record
from glassgpt.record.journal import Record
from glassgpt.record.run_dir import CHECKPOINTS_DIR
from glassgpt.schedule import learning_rate
from glassgpt.training.job import Job

_MIN_WAITING_SHARE = 0.1  # of the time
_RATE_SETTINGS = (
    "max_iters", "lr_decay_iters", "learning_rate", "min_lr", "warmup_iters", "decay_lr", "schedule",
)  # fmt: skip


def fallback_finding(job: Job, what: str, evidence: str) -> Record:
    """`what` is `compile`, `kernels` or `graph`."""
    doing, explanation = {
        "compile": ("compiling", "torch.compile could not build the model here. Only speed is lost."),
        "kernels": ("building kernels", "Triton could not build GlassGPT's own here. Only speed is lost."),
        "graph": ("recording", "An update could not be recorded as a CUDA graph. Only speed is lost."),
    }[what]
    return finding_record(
        job.progress.iter,
        f"{what}-failed",
        "warning",
        f"{doing} failed; the run goes on without it",
        evidence=evidence,
        explanation=explanation,
        advice=f"--{what}={'plain' if what == 'kernels' else 'off'} skips the attempt",
    )


def hangup_finding(job: Job) -> Record:
    return finding_record(
        job.progress.iter,
        "hangup",
        "info",
        "the terminal is gone; the run goes on without it",
        evidence="SIGHUP",
        explanation="Closing a terminal asks what runs in it to end. A run is worth more than that.",
        advice=f"`kill {os.getpid()}` stops it with a checkpoint; `glass show {job.run_dir}` shows it",
    )


def save_requested_finding(job: Job) -> Record:
    saved = "nothing to save" if job.last_saved is None else f"checkpoint of iter {job.last_saved[0]:,}"
    return finding_record(
        job.progress.iter,
        "save-requested",
        "info",
        f"a checkpoint was requested: {saved}; the run continues",
        evidence="SIGUSR1",
        explanation="Schedulers can send this signal some time before they end a job.",
        advice=f"resume after the job's end: glass train --init_from=resume --out_dir={job.run_dir}",
    )


def run_dir_lost_finding(job: Job, before: Path, reason: str) -> Record:
    return finding_record(
        job.progress.iter,
        "folder-lost",
        "warning",
        f"{before} was moved, removed or replaced; the run ends with a checkpoint in {job.run_dir}",
        evidence=reason,
        explanation="A run writes only where its own journal is. What it wrote before is left as it is.",
        advice=f"go on with  glass train --init_from=resume --out_dir={job.run_dir}",
    )


def ignored_checkpoints_finding(job: Job, names: list[str]) -> Record:
    return finding_record(
        job.progress.iter,
        "checkpoints-ignored",
        "warning",
        "there are checkpoints that this run did not write; it neither counts nor removes them",
        evidence=f"{', '.join(names)} in {job.run_dir / CHECKPOINTS_DIR}",
        explanation="A checkpoint's identity is the iteration in its state.json. These have another name, or "
        "an iteration that this run has not reached.",
        advice="keep copies outside of that folder, or under names that are no numbers",
    )


def straggler_finding(job: Job) -> Record | None:
    """If the others lost much time waiting for one process."""
    sharing = job.rank_time
    if sharing is None or job.execution.shard or sharing.waiting_share < _MIN_WAITING_SHARE:
        return None
    rank = sharing.slowest_rank
    return finding_record(
        job.progress.iter,
        "straggler",
        "advice",
        f"the others wait for rank {rank}",
        evidence=f"{sharing.waiting_share:.0%} of the time, on average",
        explanation="Gradients are averaged when all have come; the slowest sets the pace.",
        advice=f"look at the machine of rank {rank}: other programs, heat, a slower card or disk",
    )


def rate_jump_finding(job: Job, then: TrainConfig) -> Record | None:
    """If the next update has another learning rate than the settings up to now would give it."""
    done = job.progress.iter
    if done >= job.config.max_iters or job.config.eval_only:
        return None
    last, next_rate = learning_rate(then, max(0, done - 1)), learning_rate(job.config, done)
    if math.isclose(learning_rate(then, done), next_rate, rel_tol=0.01):
        return None
    changed = [
        f"{name} {getattr(then, name)} -> {getattr(job.config, name)}"
        for name in _RATE_SETTINGS
        if getattr(then, name) != getattr(job.config, name)
    ]
    return finding_record(
        done,
        "rate-jump",
        "advice",
        f"the learning rate jumps from {last:.3g} to {next_rate:.3g} at update {done + 1:,}",
        evidence=", ".join(changed),
        explanation="The schedule is a function of the settings; with other settings it is another curve, "
        "and the run goes on somewhere else on it.",
        advice=f"--learning_rate={last:.3g} --decay_lr=False would go on as it was",
    )
