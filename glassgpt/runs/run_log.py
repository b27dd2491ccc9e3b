"""What a log recorded, whoever wrote it: iterations, evaluations, saves, and what was said about the run.

`logs/` makes a History from the console output of any trainer it knows, `own.py` from a GlassGPT journal.
Facts, findings, comparisons and reports read only this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from glassgpt.config import ConfigValue
from glassgpt.runs.trainer import Trainer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

ExitStatus = Literal["finished", "interrupted", "crashed", "oom", "cut"]
ValMetric = Literal["loss", "bits_per_byte"]


@dataclass(frozen=True)
class Steps:
    """The logged iterations as columns, in the order of the log. NaN: the line did not say; but a loss can be
    NaN itself, so `has_loss` tells."""

    iteration: Ints
    segment: Ints  # index into History.segments
    loss: Floats
    has_loss: Bools
    ms: Floats
    mfu: Floats  # percent; never the -100 that some print for "not yet"
    lr: Floats
    grad_norm: Floats
    tokens_per_s: Floats
    memory_bytes: Floats | None = (
        None  # the most in use since the line before: the card's, else the process's
    )
    tokens: Floats | None = None  # GlassGPT: seen since the beginning of the run

    def __len__(self) -> int:
        return len(self.iteration)


@dataclass(frozen=True)
class LoggedEvaluation:
    iteration: int | None  # None: the trainer does not number its lines
    segment: int
    val_loss: float | None  # in History.val_metric
    train_loss: float | None = None
    ms: float | None = None  # where the log says how long it took
    stderr: float | None = None
    tokens: int | None = None  # evaluated
    metric: ValMetric = "loss"


@dataclass(frozen=True)
class LoggedCheckpoint:
    iteration: int | None
    segment: int
    blocking_ms: float | None = None  # that training waited for it
    is_best: bool | None = None


@dataclass(frozen=True)
class Segment:
    """One process: a run begins with one, and every resume or restart in the log adds one."""

    has_startup: bool  # its first logged iteration is the first of a process, so it holds the start-up
    resumed: bool = False  # the log says so; else it began anew, or nothing tells
    first_iteration: int | None = None
    tokens_per_iteration: int | None = None  # as this process said; a resume may accumulate more
    startup_s: float | None = None  # GlassGPT: of its ledger, compiling included


# kill: from outside, with no chance to say why; abort: the process itself, by a fault.
EventKind = Literal["traceback", "oom", "interrupt", "kill", "abort", "finish", "scaler-overflow", "warning"]


@dataclass(frozen=True)
class LogEvent:
    kind: EventKind
    text: str  # the line, cleaned
    line: int  # its number in the log, from 1
    iteration: int | None  # the last one logged before it


@dataclass(frozen=True)
class LoggedSetup:
    """What the log, a config or flags say about the run. None: not said."""

    # By TrainConfig's names: n_layer, n_head, n_embd, block_size, batch_size, gradient_accumulation_steps,
    # vocab_size, learning_rate, min_lr, warmup_iters, lr_decay_iters, max_iters, eval_interval, eval_iters,
    # log_interval, dropout, dtype, device, compile, always_save_checkpoint, dataset, …
    settings: Mapping[str, ConfigValue] = field(default_factory=dict)
    parameters: int | None = None  # as the log says it, which may be rounded
    trained_parameters: int | None = None  # all tensors of the optimizer: exact, positions included
    tokens_per_iteration: int | None = None
    flops_per_token: float | None = None
    device_name: str | None = None
    peak_flops: float | None = None  # that its MFU is measured against
    world_size: int | None = None
    planned_iterations: int | None = None  # the last iteration number of a run that goes to its end
    memory_bytes: int | None = None  # of the card
    bytes_per_token: float | None = None  # of the validation text
    wall_s: float | None = None  # of a whole process, where something else than its iterations told
    data: Mapping[str, object] = field(default_factory=dict)  # name, hash, tokenizer, tokens per split
    machine: Mapping[str, object] = field(default_factory=dict)  # versions, device, code


@dataclass(frozen=True)
class RunLog:
    trainer: Trainer
    name: str  # where it was read from, for people
    steps: Steps
    evals: tuple[LoggedEvaluation, ...]
    saves: tuple[LoggedCheckpoint, ...]
    segments: tuple[Segment, ...]
    events: tuple[LogEvent, ...] = ()  # of each kind the first few hundred
    event_counts: Mapping[EventKind, int] = field(default_factory=dict)  # of all
    setup: LoggedSetup = field(default_factory=LoggedSetup)
    val_metric: ValMetric = "loss"
    numbered: bool = True  # lines say their iteration; else `iteration` only counts them
    last_step_line: int = 0  # where in the log the last iteration was
    process_start_lines: tuple[int, ...] = ()  # where processes introduced themselves
    failed_start_line: int | None = None  # where a process introduced itself that logged no iteration
    is_excerpt: bool = False  # the lines are quotations in a text, maybe not all of them
    ends_mid_line: bool = False  # the log ends in the middle of a line
    last_partial_iteration: int | None = (
        None  # the iteration of the latest line that says too little to be read
    )
    # From which iteration on how many sequences, where lines say so.
    batch_size_changes: tuple[tuple[int, int], ...] = ()
    ledger: Mapping[str, float] | None = None  # GlassGPT: seconds per phase, over all processes
    first_update_ms: float | None = None  # GlassGPT: the first of the first process, which no row holds
    journal_findings: tuple[Mapping[str, object], ...] = ()  # GlassGPT: findings that the run made itself
    profiles: tuple[Mapping[str, Any], ...] = ()  # GlassGPT: looks into some updates, as recorded
    # GlassGPT: the update that ended it by a loss or gradient that was not finite, and the norms up to it.
    nonfinite_update: tuple[int, tuple[float, ...]] | None = None
    live: bool = False  # the run is still going on
    earlier: tuple[RunLog, ...] = ()  # runs of other trainers before it in the same log
    ended: ExitStatus | None = None  # where the record itself says it

    def events_after_last_step(self) -> list[LogEvent]:
        """What happened after the last iteration, to the process that made it."""
        end = math.inf if self.failed_start_line is None else self.failed_start_line
        return [event for event in self.events if self.last_step_line < event.line < end]

    def events_of_failed_start(self) -> list[LogEvent]:
        """What happened to a process that came after, and logged no iteration."""
        begin = self.failed_start_line
        return [] if begin is None else [event for event in self.events if event.line >= begin]

    def iteration_count(self) -> int:
        """From the first to the last line of every process, those without a line included."""
        steps = self.steps
        if self.trainer.lines_count_updates:
            return max(0, int(steps.iteration[-1]) - self._initial_iteration) if len(steps) else 0
        same_process = steps.segment[1:] == steps.segment[:-1]
        return len(steps) + int((np.diff(steps.iteration) - 1)[same_process].sum())

    @property
    def _initial_iteration(self) -> int:
        """GlassGPT: updates that were done before the run began: by the one that it took over."""
        return (self.segments[0].first_iteration or 0) if self.segments else 0

    def logged_tokens_at(self, iterations: Floats | Ints) -> Floats | None:
        """Tokens seen up to those iterations; None where the log does not count them. Those before its first
        line are of the first process's batches: what a run took over was maybe of others."""
        steps = self.steps
        per_update = self.segments[0].tokens_per_iteration if self.segments else None
        if steps.tokens is None or per_update is None or not len(steps):
            return None
        before = steps.tokens[0] - per_update * max(0, int(steps.iteration[0]) - self._initial_iteration)
        at = np.concatenate(([self._initial_iteration], steps.iteration))
        seen = np.concatenate(([before], steps.tokens))
        if before < 0 or not np.isfinite(seen).all() or (np.diff(seen) < 0).any() or (np.diff(at) < 0).any():
            return None
        return np.interp(iterations, at, seen)

    def tokens_seen_at(self, iterations: Floats | Ints, per_iteration: int | None) -> Floats | None:
        """As the log counts them, which knows what a resume changed; else so many in each iteration."""
        counted = self.logged_tokens_at(iterations)
        if counted is not None or not per_iteration:
            return counted
        return np.asarray(iterations, dtype=np.float64) * per_iteration

    def tokens_of_this_run(self) -> float | None:
        """Tokens of the log's own updates; None where it does not count them."""
        ends = (
            self.logged_tokens_at(np.array([self._initial_iteration, self.steps.iteration[-1]]))
            if len(self.steps)
            else None
        )
        return None if ends is None else float(ends[1] - ends[0])

    def process_start_iterations(self) -> Ints:
        """GlassGPT: how many updates were done when each process began."""
        return np.array([part.first_iteration or 0 for part in self.segments], dtype=np.int64)

    def unlogged_before(self) -> Ints:
        """How many iterations passed without a line before each logged one, in the same process."""
        at, segment = self.steps.iteration, self.steps.segment
        before = np.concatenate((at[:1] - 1, at[:-1]))
        begins = np.concatenate(([True], np.diff(segment) != 0))[: len(at)]
        # Only a journal tells how many updates were done when a process began.
        before[begins] = (self.process_start_iterations()[segment] if self.ledger else at - 1)[begins]
        passed: Ints = np.maximum(at - before - 1, 0)
        return passed

    def is_first_of_process(self) -> Bools:
        """True where an iteration is the first of a process, so that its time holds the start-up."""
        return self._first_rows

    def includes_eval(self) -> Bools:
        """True where an iteration's time includes an evaluation or a save."""
        return (
            self._eval_or_save_rows
            if self.trainer.step_time_includes_eval
            else np.zeros(len(self.steps), dtype=bool)
        )

    def is_steady(self) -> Bools:
        """True where an iteration holds no start-up, evaluation or save, and says how long it took.

        Also where a trainer stops its clock while it evaluates, the iteration beside that is not a usual one;
        but it is counted where there are no others. Of processes with unlike batches, those count whose
        batch is the one that the setup tells.
        """
        usual = ~self._first_rows & np.isfinite(self.steps.ms)
        same = usual & self._usual_batch_rows
        usual = same if same.any() else usual
        apart = usual & ~self._eval_or_save_rows
        return apart if self.trainer.step_time_includes_eval or apart.any() else usual

    @cached_property
    def _first_rows(self) -> Bools:
        steps = self.steps
        changes = np.ones(len(steps), dtype=bool)
        changes[1:] = steps.segment[1:] != steps.segment[:-1]
        starts = np.array([segment.has_startup for segment in self.segments], dtype=bool)
        first: Bools = changes & starts[steps.segment] if len(steps) else changes
        first.setflags(write=False)
        return first

    @property
    def has_varying_batch_tokens(self) -> bool:
        """Processes of this log say unlike numbers of tokens per iteration."""
        return len({segment.tokens_per_iteration for segment in self.segments} - {None}) > 1

    @cached_property
    def _usual_batch_rows(self) -> Bools:
        """True where the process said the setup's tokens per iteration, or none."""
        if not self.has_varying_batch_tokens:
            return np.ones(len(self.steps), dtype=bool)
        wanted = (None, self.setup.tokens_per_iteration)
        fits = np.array([segment.tokens_per_iteration in wanted for segment in self.segments], dtype=bool)
        same: Bools = fits[self.steps.segment] if len(self.steps) else np.zeros(0, dtype=bool)
        return same

    @cached_property
    def _eval_or_save_rows(self) -> Bools:
        """True where an evaluation or a save has the number of the iteration."""
        steps, later = self.steps, self.trainer.eval_timed_in_later_step
        if self.trainer.step_time_is_interval_mean:  # without any of that
            return np.zeros(len(steps), dtype=bool)
        numbers: dict[int, list[int]] = {}
        events: list[LoggedEvaluation | LoggedCheckpoint] = [*self.evals, *self.saves]
        for done in events:
            if done.iteration is not None:
                numbers.setdefault(done.segment, []).append(done.iteration + later)
        marked = np.zeros(len(steps), dtype=bool)
        for segment, at in numbers.items():  # whose rows are one stretch
            begin, end = np.searchsorted(steps.segment, (segment, segment + 1))
            marked[begin:end] = np.isin(steps.iteration[begin:end], at)
        marked.setflags(write=False)
        return marked

    def log_interval(self) -> int | None:
        """The most frequent distance between two lines; the smaller of two that are as frequent."""
        steps = self.steps
        if not self.numbered or len(steps) < 2:
            return None
        same_process = steps.segment[1:] == steps.segment[:-1]
        distances, counts = np.unique(np.diff(steps.iteration)[same_process], return_counts=True)
        return int(distances[np.argmax(counts)]) if len(distances) else None
