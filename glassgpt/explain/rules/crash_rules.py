"""What went wrong in a run, in the order in which it is told."""

from __future__ import annotations

from glassgpt.explain.rule import Rule
from glassgpt.explain.rules.crash import crashed, failed_start
from glassgpt.explain.rules.divergence import divergence
from glassgpt.explain.rules.gpu_memory import oom
from glassgpt.explain.rules.nonfinite import loss_nan
from glassgpt.explain.rules.saving import best_overwritten, interrupted, never_checkpointed
from glassgpt.explain.rules.skips import skipped_steps
from glassgpt.explain.rules.spikes import loss_spike

RULES: tuple[Rule, ...] = (
    loss_nan,
    divergence,
    loss_spike,
    skipped_steps,
    oom,
    crashed,
    interrupted,
    never_checkpointed,
    best_overwritten,
    failed_start,
)
