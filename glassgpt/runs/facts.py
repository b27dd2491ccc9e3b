"""Facts: a run in numbers, as `--json` has them. What the log does not support is None, never a guess.

    Analysis(read_run_log("train.log")).facts.steady_ms

docs/explain.md defines every one; analysis.py computes them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from glassgpt.runs.run_log import ExitStatus, ValMetric


@dataclass(frozen=True)
class Facts:
    iterations_logged: int
    first_iteration: int | None
    last_iteration: int | None
    log_interval: int | None
    tokens_per_iteration: int | None
    parameters: int | None
    steady_ms: float | None  # median over iterations without evaluation, checkpoint or start-up
    steady_p95_ms: float | None
    first_iteration_ms: float | None
    startup_ms: float | None  # the first iteration minus a steady one and its evaluation
    eval_steps: list[int] | None
    # Median over iterations with an evaluation, except a process's first, minus steady_ms.
    eval_overhead_ms: float | None
    checkpoint_steps: list[int] | None
    estimated_total_s: float | None  # logged times; iterations between two lines count as steady_ms
    overhead_share: float | None  # evaluation, checkpoints and start-up over that, 0 to 1
    tokens_per_s: float | None
    mfu_reported_steady: float | None  # percent, median
    flops_per_token: float | None
    achieved_tflops: float | None  # of all devices together
    device_count: int | None
    data_parallel_size: int | None  # replicas of the model; fewer than devices where several share one
    achieved_tflops_per_device: float | None
    val_metric: ValMetric | None
    best_val_loss: float | None
    best_val_step: int | None
    final_val_loss: float | None
    final_train_loss: float | None  # of the last evaluation
    loss_first: float | None
    loss_last: float | None
    nan_step: int | None
    segments: int
    ended: ExitStatus | None
    # Stretches with a step time of their own: first_iteration, last_iteration, steady_ms, iterations, …
    regimes: list[dict[str, object]] = field(default_factory=list)
    regime_total_s: float | None = None  # as estimated_total_s, with the steady time of each regime
    eval_overhead_typical_ms: float | None = None  # of evaluations that nothing interrupted
    seconds_by_phase: dict[str, float] | None = None  # where the time went; the values sum to total_s
    wander_ms: list[float] | None = None  # of a step time that goes up and down without regimes: from, to
    # Means of the first and of the last finite training losses, and of how many lines each.
    loss_ends: dict[str, float] | None = None
    wall_s: float | None = None  # of the whole process, as it says itself
    stamped_s: float | None = None  # from the first to the last line with a time stamp
    total_s: float | None = None  # regime_total_s, or one of these two: see Analysis.total_s
    metrics: list[dict[str, object]] = field(default_factory=list)  # besides the loss: name, first, last, …

    @property
    def begins_late(self) -> bool:
        """The log begins within the run: its first line is far beyond the first iteration."""
        return self.first_iteration is not None and self.first_iteration > 2 * max(1, self.log_interval or 1)

    @property
    def pause_share(self) -> float | None:
        """Start-up, evaluation and checkpoints over all time, without stalls; None where none is timed."""
        phases = self.seconds_by_phase or {}
        names = ("startup_and_eval", "compile", "eval", "checkpoint", "pauses", "startup")
        if not any(name in phases for name in names[:-1]):  # 0 where nothing took longer
            return None if self.overhead_share is None else 0.0
        return sum(phases.get(name, 0.0) for name in names) / sum(phases.values())

    @property
    def stall_share(self) -> float:
        """Time that no line explains, over all time."""
        phases = self.seconds_by_phase or {}
        return phases.get("stall", 0.0) / sum(phases.values()) if phases else 0.0

    def as_dict(self) -> dict[str, object]:
        return dataclasses.asdict(self)
