"""Findings about time: where it went, and what of it the log's clock really saw."""

from __future__ import annotations

from glassgpt.insight.findings.clocks import clock_before_sync
from glassgpt.insight.findings.evalcost import eval_spikes
from glassgpt.insight.findings.every_eval import evaluates_always
from glassgpt.insight.findings.finding import Finder
from glassgpt.insight.findings.pace import batch_changed, jitter, silent_spike, throughput_drift
from glassgpt.insight.findings.startup import startup_compile

FINDERS: tuple[Finder, ...] = (
    eval_spikes,
    evaluates_always,
    silent_spike,
    startup_compile,
    clock_before_sync,
    throughput_drift,
    batch_changed,
    jitter,
)
