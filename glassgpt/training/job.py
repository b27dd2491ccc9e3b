"""A run, ready to go: everything it needs, and where it stands. setup.py puts it together."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from glassgpt.config import Choice, TrainConfig
from glassgpt.data.dataset import Dataset
from glassgpt.data.shards import TokenArray
from glassgpt.data.tokenizers import Tokenizer
from glassgpt.estimate.batching import BatchPlan
from glassgpt.estimate.meter import LogInterval, RunningMean
from glassgpt.model.gpt import GPT
from glassgpt.record.clock import Ledger, RankTimes
from glassgpt.record.run_dir import LockedRunDir, RunDirInfo
from glassgpt.record.sink import NullSink, Sink
from glassgpt.training.checkpoint.saver import NoSaver, Saver
from glassgpt.training.device import ExecutionConfig
from glassgpt.training.distributed.process_group import ProcessGroup
from glassgpt.training.evaluate import EvalResult, EvalWindows
from glassgpt.training.forecast_check import ForecastCheck
from glassgpt.training.interrupt import StopSignals
from glassgpt.training.learner import Learner
from glassgpt.training.loader import BatchLoader
from glassgpt.training.profiler import UpdateProfiler
from glassgpt.training.run_choices import ComputePlan

RECENT_GRAD_NORMS = 20  # gradient norms kept for the record of a run that fails


@dataclass
class TrainingProgress:
    """What changes as a run goes on, besides weights and optimizer. Part of every checkpoint."""

    iter: int = 0  # updates done
    sequences: int = 0  # seen by them; where the training stream goes on
    val_loss: float | None = None  # of the evaluation at this very iteration, if there was one
    best_val_loss: float = math.inf
    best_iter: int | None = None
    evaluations_without_gain: int = 0
    losses: list[float] = field(default_factory=list)  # since the last log line
    norms: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Sampling:
    """What writes the sample at the end of a run: `start` are the tokens it goes on from, if any were set."""

    tokenizer: Tokenizer | None  # None: another process of the team writes it
    start: list[int]


@dataclass
class Job:
    """A run, ready to go."""

    config: TrainConfig
    choices: list[Choice]  # what was decided besides, and why
    restores_training_state: (
        bool  # from its origin, if it has one: iteration and optimizer, not weights alone
    )
    process_group: ProcessGroup
    stop: StopSignals

    # What it works with.
    compute_plan: ComputePlan
    dataset: Dataset
    tokenizer_digest: str
    splits: Mapping[str, TokenArray]
    loader: BatchLoader
    model: GPT
    learner: Learner

    # What it looks at on the way.
    eval_tokens: int  # of a split, each time
    eval_windows: Mapping[str, EvalWindows]  # these tokens of each split
    sampling: Sampling | None  # how to write the sample at the end, if there shall be one
    profiler: UpdateProfiler

    # Where things are written.
    run_dir_handle: LockedRunDir | RunDirInfo
    sink: Sink | NullSink
    saver: Saver | NoSaver

    # Where the time goes.
    ledger: Ledger
    interval: LogInterval
    forecast_check: ForecastCheck

    # Where it stands; what only this process has to remember comes after the progress.
    progress: TrainingProgress
    early_stop_reference: EvalResult | None = (
        None  # the evaluation that early stopping measures progress from
    )
    last_saved: tuple[int, float | None] | None = None  # iteration and validation loss of the last checkpoint
    recent_grad_norms: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_GRAD_NORMS))
    reported_fallbacks: set[str] = field(default_factory=set)
    reported_ignored_checkpoints: set[str] = field(
        default_factory=set
    )  # checkpoints that somebody else wrote
    eval_cost: RunningMean = field(default_factory=RunningMean)
    save_cost: RunningMean = field(default_factory=RunningMean)
    rank_time: RankTimes | None = None  # of the updates so far, in a team

    @property
    def execution(self) -> ExecutionConfig:
        return self.compute_plan.execution

    @property
    def batch_plan(self) -> BatchPlan:
        return self.compute_plan.batch_plan

    @property
    def run_dir(self) -> Path:
        return self.run_dir_handle.directory

    def resolved_config(self) -> TrainConfig:
        """The settings with what was decided filled in, so that a resumed run decides the same."""
        steps = self.config.gradient_accumulation_steps
        if self.config.batch_tokens is None:  # or another number of processes would make it another update
            steps = self.batch_plan.sequences // self.batch_plan.batch_size
        return dataclasses.replace(
            self.config,
            out_dir="",
            eval_only=False,
            # In a team everybody has a card of its own.
            device=self.execution.device.type if self.process_group.launch_id else str(self.execution.device),
            dtype=self.execution.dtype,  # type: ignore[arg-type]
            compile="on" if self.execution.compile else "off",
            attention=self.execution.attention,  # type: ignore[arg-type]
            kernels="triton" if self.execution.kernels else "plain",
            graph="on" if self.execution.graph else "off",
            batch_size=self.batch_plan.batch_size,
            gradient_accumulation_steps=steps,
            # Which else would count other micro-batches, if another number of processes goes on.
            eval_tokens=self.eval_tokens if self.config.eval_iters is not None else self.config.eval_tokens,
            eval_iters=None,
        )
