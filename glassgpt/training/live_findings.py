"""Findings about a run while it trains. Those about its forecast are in forecast_check.py."""

from __future__ import annotations

import math
import os
from pathlib import Path

from glassgpt.config import TrainConfig
from glassgpt.record.clock import RankTimes
from glassgpt.record.finding import finding_record
from glassgpt.record.journal import Record
from glassgpt.record.run_dir import CHECKPOINTS_DIR, resume_command
from glassgpt.schedule import learning_rate

_MIN_WAITING_SHARE = 0.1  # of the time of updates, before a straggler is worth naming
_RATE_SETTINGS = (
    "max_iters", "lr_decay_iters", "learning_rate", "min_lr", "warmup_iters", "decay_lr", "schedule",
)  # fmt: skip


def fallback_finding(iteration: int, name: str, evidence: str) -> Record:
    """`name`: of the speedup that failed, `compile`, `kernels` or `graph`."""
    activity, explanation = {
        "compile": ("compiling", "torch.compile could not build the model here. Only speed is lost."),
        "kernels": ("building kernels", "Triton could not build GlassGPT's own here. Only speed is lost."),
        "graph": (
            "capturing a CUDA graph",
            "An update could not be captured as a CUDA graph. Only speed is lost.",
        ),
    }[name]
    return finding_record(
        iteration,
        f"{name}-failed",
        "warning",
        f"{activity} failed; the run continues without it",
        evidence=evidence,
        explanation=explanation,
        advice=f"--{name}={'plain' if name == 'kernels' else 'off'} skips the attempt",
    )


def hangup_finding(run_dir: Path, iteration: int) -> Record:
    return finding_record(
        iteration,
        "hangup",
        "info",
        "the terminal is gone; the run continues without it",
        evidence="SIGHUP",
        explanation="Closing a terminal sends SIGHUP to its processes. A run does not end because of it.",
        advice=f"`kill {os.getpid()}` stops it with a checkpoint; `glass show {run_dir}` shows it",
    )


def save_requested_finding(
    run_dir: Path, iteration: int, last_saved: tuple[int, float | None] | None
) -> Record:
    saved = "nothing to save" if last_saved is None else f"checkpoint of iter {last_saved[0]:,}"
    return finding_record(
        iteration,
        "save-requested",
        "info",
        f"a checkpoint was requested: {saved}; the run continues",
        evidence="SIGUSR1",
        explanation="Schedulers can send this signal some time before they end a run.",
        advice=f"resume after the job's end: {resume_command(run_dir)}",
    )


def ignored_checkpoints_finding(run_dir: Path, iteration: int, names: list[str]) -> Record:
    return finding_record(
        iteration,
        "checkpoints-ignored",
        "warning",
        "there are checkpoints that this run did not write; it neither counts nor removes them",
        evidence=f"{', '.join(names)} in {run_dir / CHECKPOINTS_DIR}",
        explanation="A checkpoint's identity is the iteration in its state.json. These have another name, or "
        "an iteration that this run has not reached.",
        advice="keep copies outside of that folder, or under non-numeric names",
    )


def straggler_finding(iteration: int, times: RankTimes) -> Record | None:
    """Whether the other ranks lost much time waiting for the slowest one."""
    if times.waiting_share < _MIN_WAITING_SHARE:
        return None
    rank = times.slowest_rank
    return finding_record(
        iteration,
        "straggler",
        "advice",
        f"the others wait for rank {rank}",
        evidence=f"{times.waiting_share:.0%} of the time, on average",
        explanation="The all-reduce of gradients waits for all ranks; the slowest sets the pace.",
        advice=f"look at the machine of rank {rank}: other programs, heat, a slower card or disk",
    )


def rate_jump_finding(config: TrainConfig, previous: TrainConfig, done: int) -> Record | None:
    """Whether a resumed run continues at another learning rate than its `previous` settings would give."""
    if done >= config.max_iters or config.eval_only:
        return None
    last_rate, next_rate = learning_rate(previous, max(0, done - 1)), learning_rate(config, done)
    if math.isclose(learning_rate(previous, done), next_rate, rel_tol=0.01):
        return None
    changed = [
        f"{name} {getattr(previous, name)} -> {getattr(config, name)}"
        for name in _RATE_SETTINGS
        if getattr(previous, name) != getattr(config, name)
    ]
    return finding_record(
        done,
        "rate-jump",
        "advice",
        f"the learning rate jumps from {last_rate:.3g} to {next_rate:.3g} at update {done + 1:,}",
        evidence=", ".join(changed),
        explanation="The schedule is a function of the settings; with other settings it is another curve, "
        "and the run resumes somewhere else on it.",
        advice=f"--learning_rate={last_rate:.3g} --decay_lr=False would continue as before",
    )
