"""Findings about a run while it trains. Those about its forecast are in forecast_check.py."""

from __future__ import annotations

import math
import os
from pathlib import Path

from glassgpt.config import TrainConfig
from glassgpt.i18n import say, verbatim
from glassgpt.record.finding import finding_record
from glassgpt.record.journal import Record
from glassgpt.record.ledger import RankTimes
from glassgpt.record.run_dir import CHECKPOINTS_DIR, resume_command
from glassgpt.schedule import learning_rate

_MIN_WAITING_SHARE = 0.1  # of the time of updates, before a straggler is worth naming
_RATE_SETTINGS = (
    "max_iters", "lr_decay_iters", "learning_rate", "min_lr", "warmup_iters", "decay_lr", "schedule",
)  # fmt: skip


def fallback_finding(iteration: int, name: str, evidence: str) -> Record:
    """`name`: of the speedup that failed, `compile`, `kernels` or `graph`."""
    title, explanation = {
        "compile": (say("compile-failed.title"), say("compile-failed.explanation")),
        "kernels": (say("kernels-failed.title"), say("kernels-failed.explanation")),
        "graph": (say("graph-failed.title"), say("graph-failed.explanation")),
    }[name]
    flag = f"--{name}={'plain' if name == 'kernels' else 'off'}"
    return finding_record(
        iteration,
        f"{name}-failed",
        "warning",
        title=title,
        evidence=verbatim(evidence),
        explanation=explanation,
        advice=say("fallback.advice", flag=flag),
    )


def hangup_finding(run_dir: Path, iteration: int) -> Record:
    return finding_record(
        iteration,
        "hangup",
        "info",
        title=say("hangup.title"),
        evidence=say("hangup.evidence"),
        explanation=say("hangup.explanation"),
        advice=say("hangup.advice", pid=os.getpid(), run_dir=str(run_dir)),
    )


def save_requested_finding(
    run_dir: Path, iteration: int, last_saved: tuple[int, float | None] | None, asked_by: str
) -> Record:
    """`asked_by`: who asked through the run's folder; empty: a signal."""
    if last_saved is None:
        title = say("save-requested.title.nothing")
    else:
        title = say("save-requested.title.saved", saved_iteration=last_saved[0])
    return finding_record(
        iteration,
        "save-requested",
        "info",
        title=title,
        evidence=say("save-requested.evidence.request", by=asked_by)
        if asked_by
        else say("save-requested.evidence"),
        explanation=None if asked_by else say("save-requested.explanation"),
        # A signal comes from a scheduler that is about to end the job.
        advice=None if asked_by else say("save-requested.advice", command=resume_command(run_dir)),
    )


def ignored_checkpoints_finding(run_dir: Path, iteration: int, names: list[str]) -> Record:
    return finding_record(
        iteration,
        "checkpoints-ignored",
        "warning",
        title=say("checkpoints-ignored.title"),
        evidence=say("checkpoints-ignored.evidence", names=names, folder=str(run_dir / CHECKPOINTS_DIR)),
        explanation=say("checkpoints-ignored.explanation"),
        advice=say("checkpoints-ignored.advice"),
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
        title=say("straggler.title", rank=rank),
        evidence=say("straggler.evidence", waiting_share=times.waiting_share),
        explanation=say("straggler.explanation"),
        advice=say("straggler.advice", rank=rank),
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
        title=say("rate-jump.title", last_lr=last_rate, next_lr=next_rate, update=done + 1),
        evidence=verbatim(", ".join(changed)),
        explanation=say("rate-jump.explanation"),
        advice=say("rate-jump.advice", last_lr=last_rate),
    )
