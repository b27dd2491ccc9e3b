"""All rules of `glass explain`, in order. Findings of equal severity are shown in this order.

To add a rule: write its function in the file of its theme in `rules/`, list it here, and test it on a run
that has the fault and on healthy runs (tests/explain).
"""

from __future__ import annotations

from collections.abc import Callable

from glassgpt.explain.rules.eval_cost import eval_spikes, evaluates_every_step
from glassgpt.explain.rules.gpu_memory import oom
from glassgpt.explain.rules.instability import divergence, loss_spike
from glassgpt.explain.rules.learning import plateau, still_improving, underfit_capacity
from glassgpt.explain.rules.loss_plausibility import init_loss, leaked_data, memorised_data, ppl_vs_loss
from glassgpt.explain.rules.lost_work import (
    best_overwritten,
    crashed,
    failed_start,
    interrupted,
    never_checkpointed,
)
from glassgpt.explain.rules.lr_schedule import horizon_changed, lr_schedule_mismatch
from glassgpt.explain.rules.mfu import mfu_dip_is_eval, mfu_impossible, mfu_wrong_peak
from glassgpt.explain.rules.nonfinite import loss_nan, loss_zero, skipped_steps
from glassgpt.explain.rules.resumes import resume_jump, resume_replays_data
from glassgpt.explain.rules.step_time import batch_changed, jitter, silent_spike, throughput_drift
from glassgpt.explain.rules.val_curve import eval_noise, overfitting
from glassgpt.explain.rules.wall_time import clock_before_sync, startup_compile
from glassgpt.explain.rules.workload import hidden_accumulation, parameters_inferred
from glassgpt.record.finding import Finding
from glassgpt.runs.analysis import Analysis

Rule = Callable[[Analysis], Finding | None]

FAILURE_RULES: tuple[Rule, ...] = (  # of the loss, of the process, or of its checkpoints
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
LEARNING_RULES: tuple[Rule, ...] = (  # trained too long, too short, stuck; or a loss that cannot be one
    overfitting,
    memorised_data,
    leaked_data,
    loss_zero,
    still_improving,
    plateau,
    underfit_capacity,
    init_loss,
    eval_noise,
    ppl_vs_loss,
)
RESUME_RULES: tuple[Rule, ...] = (resume_jump, resume_replays_data, horizon_changed, lr_schedule_mismatch)
TIME_RULES: tuple[Rule, ...] = (  # where the time went, and what the log's clock measured
    eval_spikes,
    evaluates_every_step,
    silent_spike,
    startup_compile,
    clock_before_sync,
    throughput_drift,
    batch_changed,
    jitter,
)
MFU_RULES: tuple[Rule, ...] = (
    mfu_dip_is_eval,
    mfu_wrong_peak,
    mfu_impossible,
    hidden_accumulation,
    parameters_inferred,
)
RULES: tuple[Rule, ...] = (*FAILURE_RULES, *LEARNING_RULES, *RESUME_RULES, *TIME_RULES, *MFU_RULES)
