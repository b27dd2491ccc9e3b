"""What went wrong in a run, in the order in which it is told."""

from __future__ import annotations

from glassgpt.insight.findings.crash import crashed, failed_start
from glassgpt.insight.findings.divergence import divergence
from glassgpt.insight.findings.finding import Finder
from glassgpt.insight.findings.memory import oom
from glassgpt.insight.findings.nonfinite import loss_nan
from glassgpt.insight.findings.saving import best_overwritten, interrupted, never_checkpointed
from glassgpt.insight.findings.skips import skipped_steps
from glassgpt.insight.findings.spikes import loss_spike

FINDERS: tuple[Finder, ...] = (
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
