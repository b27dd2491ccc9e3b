"""All rules of `glass explain`, in order of importance: findings of equal severity are shown in this order.

First what makes the run's numbers worthless (not finite, exploded, implausible), then how it ended and what
that lost, then how well it learnt, then resumes and schedule, then time, then MFU.

Every public function in `rules/` that returns `Finding | None` is a rule. To add one: write it in the file of
its theme, its sentences in the English catalogue (locale/en), and a test on a run that has the fault and on
healthy runs (tests/explain).
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from glassgpt.explain.rules import (
    eval_cost,
    gpu_memory,
    instability,
    learned,
    learning,
    loss_plausibility,
    loss_scale,
    lost_work,
    lr_schedule,
    metrics,
    mfu,
    nonfinite,
    note_claims,
    overfitting,
    plateau,
    resumes,
    stalls,
    step_time,
    val_curve,
    wall_time,
    workload,
)
from glassgpt.record.finding import Finding
from glassgpt.runs.analysis import Analysis

Rule = Callable[[Analysis], Finding | None]


def rules_of(*modules: ModuleType) -> tuple[Rule, ...]:
    """In the order of their definition."""
    return tuple(
        function
        for module in modules
        for name, function in vars(module).items()
        if callable(function)
        and function.__module__ == module.__name__
        and not name.startswith("_")
        and function.__annotations__.get("return") == "Finding | None"
    )


# Of the loss, of the process, or of its checkpoints.
FAILURE_RULES = rules_of(nonfinite, instability, loss_plausibility, loss_scale, gpu_memory, lost_work)
# Trained too long, too short, stuck.
LEARNING_RULES = rules_of(learning, plateau, overfitting, val_curve, metrics, learned, note_claims)
RESUME_RULES = rules_of(resumes, lr_schedule)
# Where the time went, and what the log's clock measured.
TIME_RULES = rules_of(eval_cost, stalls, step_time, wall_time)
MFU_RULES = rules_of(mfu, workload)
RULES = (*FAILURE_RULES, *LEARNING_RULES, *RESUME_RULES, *TIME_RULES, *MFU_RULES)
