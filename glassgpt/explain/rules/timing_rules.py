"""Findings about time: where it went, and what of it the log's clock really saw."""

from __future__ import annotations

from glassgpt.explain.rule import Rule
from glassgpt.explain.rules.clocks import clock_before_sync
from glassgpt.explain.rules.eval_cost import eval_spikes
from glassgpt.explain.rules.every_eval import evaluates_every_step
from glassgpt.explain.rules.startup import startup_compile
from glassgpt.explain.rules.step_time import batch_changed, jitter, silent_spike, throughput_drift

RULES: tuple[Rule, ...] = (
    eval_spikes,
    evaluates_every_step,
    silent_spike,
    startup_compile,
    clock_before_sync,
    throughput_drift,
    batch_changed,
    jitter,
)
