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
from glassgpt.data.shards import Tokens
from glassgpt.data.tokenizers import Tokenizer
from glassgpt.estimate.batching import BatchPlan
from glassgpt.estimate.meter import Interval, Mean
from glassgpt.model.gpt import GPT
from glassgpt.record.clock import Ledger
from glassgpt.record.rank_time import Sharing
from glassgpt.record.run_dir import Place, Site
from glassgpt.record.sink import Sink
from glassgpt.training.checkpoint.saver import Saver
from glassgpt.training.device import Placement
from glassgpt.training.distributed.process_group import Team
from glassgpt.training.evaluate import Evaluation, Windows
from glassgpt.training.forecast_check import Outcome
from glassgpt.training.interrupt import Stop
from glassgpt.training.learner import Learner
from glassgpt.training.loader import Stream
from glassgpt.training.profiler import Profiling
from glassgpt.training.run_choices import Equipment

RECENT = 20  # gradient norms kept for the record of a run that fails


@dataclass
class Progress:
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
    takes_everything: bool  # from its origin, if it has one: iteration and optimizer, not weights alone
    team: Team
    stop: Stop

    # What it works with.
    equipment: Equipment
    dataset: Dataset
    tokenizer_digest: str
    splits: Mapping[str, Tokens]
    stream: Stream
    model: GPT
    learner: Learner

    # What it looks at on the way.
    eval_tokens: int  # of a split, each time
    windows: Mapping[str, Windows]  # these tokens of each split
    sampling: Sampling | None  # how to write the sample at the end, if there shall be one
    profiling: Profiling

    # Where things are written.
    place: Place | Site
    sink: Sink
    saver: Saver

    # Where the time goes.
    ledger: Ledger
    interval: Interval
    outcome: Outcome

    # Where it stands; what only this process has to remember comes after the progress.
    progress: Progress
    reference: Evaluation | None = None  # the evaluation that early stopping measures progress from
    saved: tuple[int, float | None] | None = None  # iteration and validation loss of the last checkpoint
    recent_norms: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    told_setbacks: set[str] = field(default_factory=set)
    told_ignored: set[str] = field(default_factory=set)  # checkpoints that somebody else wrote
    eval_cost: Mean = field(default_factory=Mean)
    save_cost: Mean = field(default_factory=Mean)
    sharing: Sharing | None = None  # of the updates so far, in a team

    @property
    def placement(self) -> Placement:
        return self.equipment.placement

    @property
    def plan(self) -> BatchPlan:
        return self.equipment.plan

    @property
    def run_dir(self) -> Path:
        return self.place.directory

    def resolved_config(self) -> TrainConfig:
        """The settings with what was decided filled in, so that a resumed run decides the same."""
        steps = self.config.gradient_accumulation_steps
        if self.config.batch_tokens is None:  # or another number of processes would make it another update
            steps = self.plan.sequences // self.plan.batch_size
        return dataclasses.replace(
            self.config,
            out_dir="",
            eval_only=False,
            # In a team everybody has a card of its own.
            device=self.placement.device.type if self.team.launch else str(self.placement.device),
            dtype=self.placement.dtype,  # type: ignore[arg-type]
            compile="on" if self.placement.compile else "off",
            attention=self.placement.attention,  # type: ignore[arg-type]
            kernels="triton" if self.placement.kernels else "plain",
            graph="on" if self.placement.graph else "off",
            batch_size=self.plan.batch_size,
            gradient_accumulation_steps=steps,
            # Which else would count other micro-batches, if another number of processes goes on.
            eval_tokens=self.eval_tokens if self.config.eval_iters is not None else self.config.eval_tokens,
            eval_iters=None,
        )
