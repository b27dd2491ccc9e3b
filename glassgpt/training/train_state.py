"""A run, ready to train: what is fixed (TrainSetup) and what changes (TrainState). setup.py builds both.

A function that takes a TrainSetup and no TrainState leaves the state of the run as it is.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glassgpt.config import Choice, TrainConfig
from glassgpt.data.dataset import Dataset
from glassgpt.data.shards import TokenArray
from glassgpt.data.tokenizers import Tokenizer
from glassgpt.estimate.batching import BatchPlan, has_closing_eval
from glassgpt.estimate.step_timing import LogInterval, RunningMean
from glassgpt.record.journal import Record
from glassgpt.record.ledger import Ledger, RankTimes
from glassgpt.record.run_dir import LockedRunDir, RunDirInfo
from glassgpt.record.run_requests import RequestWatch
from glassgpt.record.sink import NullSink, Sink
from glassgpt.training.checkpoint.saver import NoSaver, Saver
from glassgpt.training.compute_plan import ComputePlan
from glassgpt.training.device import ExecutionConfig
from glassgpt.training.distributed.process_group import ProcessGroup
from glassgpt.training.evaluate import EvalResult, EvalWindows
from glassgpt.training.forecast_check import ForecastCheck
from glassgpt.training.interrupt import StopSignals
from glassgpt.training.learner import Learner
from glassgpt.training.loader import BatchLoader
from glassgpt.training.loss_parts import LossParts
from glassgpt.training.profiler import UpdateProfiler

RECENT_GRAD_NORMS = 20  # reported when a run ends because of a non-finite loss or gradient


@dataclass
class TrainingProgress:
    """How far a run is. state.json of every checkpoint has it, under these names."""

    iter: int = 0  # updates done
    sequences: int = 0  # trained on by those updates: the position in the training data
    val_loss: float | None = None  # of the evaluation at this iteration, if there was one
    best_val_loss: float = math.inf
    best_iter: int | None = None
    evaluations_without_gain: int = 0
    losses: list[float] = field(default_factory=list)  # since the last log line
    norms: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Sampling:
    """How to generate the sample at the end of a run. `start`: the prompt's tokens, if one was set."""

    tokenizer: Tokenizer | None  # None: rank 0 generates it
    start: list[int]


@dataclass(frozen=True)
class TrainSetup:
    """What a run is made of. Weights and optimizer state are in the learner."""

    config: TrainConfig
    choices: list[Choice]  # decisions that the settings left open, each with its reason
    restores_training_state: bool  # of its initial checkpoint: iteration and optimizer, not only weights
    process_group: ProcessGroup

    # Data, model and optimizer.
    compute_plan: ComputePlan
    dataset: Dataset
    tokenizer_digest: str
    splits: Mapping[str, TokenArray]
    loader: BatchLoader
    learner: Learner

    # Evaluation, sample, profile.
    eval_tokens: int  # of a split, in every evaluation
    eval_windows: Mapping[str, EvalWindows]  # by split
    loss_parts: LossParts  # how evaluations break down their loss
    passage: Mapping[str, Any]  # of the validation split: where it begins, and its tokens' texts
    sampling: Sampling | None  # None: no sample at the end
    profiler: UpdateProfiler

    # Output.
    run_dir_handle: LockedRunDir | RunDirInfo
    sink: Sink | NullSink
    saver: Saver | NoSaver
    ledger: Ledger

    @property
    def execution(self) -> ExecutionConfig:
        return self.compute_plan.execution

    @property
    def batch_plan(self) -> BatchPlan:
        return self.compute_plan.spec.batch

    @property
    def has_closing_eval(self) -> bool:
        return has_closing_eval(self.config, self.eval_tokens, len(self.splits["val"]))

    @property
    def run_dir(self) -> Path:
        return self.run_dir_handle.directory

    def log(self, record: Record | None) -> None:
        """Sends a record, if there is one, to the sink."""
        if record is not None:
            with self.ledger.phase("log"):
                self.sink(record)

    def resolved_config(self) -> TrainConfig:
        """The settings with all decisions filled in, so that a resumed run decides the same."""
        steps = self.config.gradient_accumulation_steps
        if self.config.batch_tokens is None:  # else the update would change with the number of processes
            steps = self.batch_plan.sequences // self.batch_plan.batch_size
        return dataclasses.replace(
            self.config,
            out_dir="",
            eval_only=False,
            # With several processes each has its own card.
            device=self.execution.device.type if self.process_group.launch_id else str(self.execution.device),
            dtype=self.execution.dtype,  # type: ignore[arg-type]
            compile="on" if self.execution.compile else "off",
            attention=self.execution.attention,  # type: ignore[arg-type]
            kernels="triton" if self.execution.kernels else "plain",
            graph="on" if self.execution.graph else "off",
            batch_size=self.batch_plan.batch_size,
            gradient_accumulation_steps=steps,
            # In tokens: eval_iters would mean other tokens with another number of processes.
            eval_tokens=self.eval_tokens if self.config.eval_iters is not None else self.config.eval_tokens,
            eval_iters=None,
        )


@dataclass
class TrainState:
    """What the loop changes. Checkpoints hold `progress`, and with patience `early_stop_reference`."""

    signals: StopSignals
    interval: LogInterval  # since the last log line
    forecast_check: ForecastCheck
    request_watch: RequestWatch = field(default_factory=RequestWatch)
    progress: TrainingProgress = field(default_factory=TrainingProgress)
    early_stop_reference: EvalResult | None = None  # the last evaluation that was a significant gain
    last_saved: tuple[int, float | None] | None = None  # iteration and validation loss of the last checkpoint
    recent_grad_norms: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_GRAD_NORMS))
    reported_fallbacks: set[str] = field(default_factory=set)
    reported_ignored: set[str] = field(default_factory=set)  # checkpoints that this run did not write
    eval_cost: RunningMean = field(default_factory=RunningMean)
    save_cost: RunningMean = field(default_factory=RunningMean)
    rank_time: RankTimes | None = None  # of the updates so far; None with one process
