"""RunLog: one training run as its log or journal recorded it, whichever trainer wrote it.

    run_log = read_run_log("train.log")
    median_ms = np.median(run_log.steps.ms[run_log.is_steady()])

`reading.py` makes one from any file. Facts, rules, comparisons and reports read only this. What holds for its
numbers is in the docstring of builder.py.
"""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from glassgpt.config import ConfigValue
from glassgpt.i18n import Message
from glassgpt.runs.checkpoint_looks import CheckpointLook
from glassgpt.runs.curve_statistics import trend
from glassgpt.runs.metric_series import (
    MetricCourse,
    MetricSeries,
    courses,
    is_preference,
    of_lines,
    repeats_loss,
    without_other_models,
)
from glassgpt.runs.trainer import Trainer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MAX_NEGATIVE_SHARE = 0.1  # of the losses, of a loss that measures learning
_LN2_TOLERANCE = 0.002
# A loss that falls between these is a cross-entropy of a choice among tokens; one of a policy is around 0.
_MIN_CROSS_ENTROPY, _MAX_CROSS_ENTROPY, _MIN_TREND_LOSSES = 0.3, math.log(1_000_000), 20

ExitStatus = Literal["finished", "interrupted", "crashed", "oom", "cut"]
ValMetric = Literal["loss", "bits_per_byte"]


@dataclass(frozen=True)
class Steps:
    """The logged iterations as columns, in the order of the log. NaN: not in the line; but a loss can be NaN
    itself, see `has_loss`."""

    iteration: Ints
    segment: Ints  # index into RunLog.segments
    line: Ints  # its number in the file, from 1; 0: not known
    loss: Floats
    has_loss: Bools
    ms: Floats
    mfu: Floats  # percent
    lr: Floats
    grad_norm: Floats  # infinite: printed as infinite or NaN
    tokens_per_s: Floats
    memory_bytes: Floats | None = None  # peak since the previous line: of the card, else of the process
    tokens: Floats | None = None  # GlassGPT: seen since the start of the run

    def __len__(self) -> int:
        return len(self.iteration)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Those that there are."""
        every = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: column for name, column in every.items() if column is not None}

    def rows(self, begin: int, end: int) -> Steps:
        """As a view."""
        return Steps(**{name: column[begin:end] for name, column in self.columns().items()})


@dataclass(frozen=True, slots=True)
class LoggedEvaluation:
    iteration: int | None  # None: the trainer does not number its lines
    segment: int
    val_loss: float | None  # in RunLog.val_metric
    train_loss: float | None = None
    ms: float | None = None  # its duration
    stderr: float | None = None
    tokens: int | None = None  # evaluated
    metric: ValMetric = "loss"
    line: int = field(default=0, compare=False)  # its number in the file, from 1; 0: not known
    # GlassGPT: by_kind, by_position, passage_losses, … as its record has them; loss_by_class.py reads them.
    parts: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class LoggedCheckpoint:
    iteration: int | None
    segment: int
    blocking_ms: float | None = None  # that training waited
    is_best: bool | None = None
    line: int = field(default=0, compare=False)  # its number in the file, from 1; 0: not known
    start: str = field(default="", compare=False)  # GlassGPT: of the process that saved it


@dataclass(frozen=True)
class LeftOut:
    """Iterations that a very long log has and `Steps` does not: see step_rows.py."""

    lines: int = 0
    timed: int = 0  # of these, with a time
    ms: float = 0.0  # their time

    def __add__(self, other: LeftOut) -> LeftOut:
        return LeftOut(self.lines + other.lines, self.timed + other.timed, self.ms + other.ms)


class OuterCount(NamedTuple):
    """What a line between the steps counts: a phase, a round, a layer."""

    number: int
    total: int | None
    is_of_rounds: bool  # by its word: of phases or rounds, which train one model


@dataclass(frozen=True, slots=True)
class LoggedProcess:
    """One process: a run starts with one, and every resume adds one."""

    has_startup: bool  # the log has its first iteration, whose time includes the start-up
    resumed: bool = False  # the log says so; else it started from scratch, or it is not known
    first_iteration: int | None = None
    tokens_per_iteration: int | None = None  # of this process; a resume may change it
    startup_s: float | None = None  # GlassGPT: from its ledger, compile time included
    left_out: LeftOut = LeftOut()
    stage: str | None = None  # "base", "mid", "sft", "rl": of a recipe with several, on different data
    first_line: int = 0  # where it began, in the file: its header, or its first step
    last_step_line: int = 0
    batch_size_changes: tuple[tuple[int, int], ...] = ()  # (iteration, sequences per batch from there on)
    setup: LoggedSetup | None = None  # as it printed it; None: as the run
    is_announced: bool = True  # a command, a header or a setting; False: only the count of steps begins again
    # Where a line before the steps counts something else (phase 2/133), one more than before the last steps.
    outer_count: OuterCount | None = None
    begins_run: bool = False  # by the planned iterations in its lines
    rounds: int = 1  # of steps, counted from the first one each, that were joined


# kill: by a signal from outside, such as SIGKILL; abort: by the process itself, such as a segmentation fault.
EventKind = Literal["traceback", "oom", "interrupt", "kill", "abort", "finish", "scaler-overflow", "warning",
                    "nonfinite-skip", "program-warning",
                    "perplexity-as-loss"]  # fmt: skip


@dataclass(frozen=True)
class LogEvent:
    kind: EventKind
    text: str  # the line, without control characters
    line: int  # its number in the log, from 1
    iteration: int | None  # of the last step before it
    error_line: int = 0  # of a traceback that names its exception: where it does
    frames: tuple[str, ...] = ()  # the functions of a traceback that ends in it, as far as they are known

    @property
    def quoted_line(self) -> int:
        return self.error_line or self.line


@dataclass(frozen=True)
class LoggedSetup:
    """What the log, a config file or flags say about the run. None: not known."""

    # By TrainConfig's names: n_layer, n_head, n_embd, block_size, batch_size, gradient_accumulation_steps,
    # vocab_size, learning_rate, min_lr, warmup_iters, lr_decay_iters, max_iters, eval_interval, eval_iters,
    # log_interval, dropout, dtype, device, compile, always_save_checkpoint, dataset, …
    settings: Mapping[str, ConfigValue] = field(default_factory=dict)
    run_dir: str | None = None  # GlassGPT's, as it was then
    run_name: str | None = None  # of one of several in a log, as a line before it says
    parameters: int | None = None  # as logged, which may be rounded
    parameters_are_claimed: bool = False  # a flag or a text says so, not the trainer
    trained_parameters: int | None = None  # of the optimizer's groups: exact, positions included
    tokens_per_iteration: int | None = None
    flops_per_token: float | None = None
    device_name: str | None = None
    peak_flops: float | None = None  # of one device: what its MFU calls 100 %
    peak_is_disturbed: bool = False  # it was measured while other programs ran: the MFU is too high
    world_size: int | None = None  # processes, one per device
    # How many of these devices share one model: its layers' matrices, or its layers.
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    data_parallel: int | None = None  # replicas of the model, each with batches of its own
    planned_iterations: int | None = None  # the number of the last one, if the run finishes
    epochs: float | None = None  # passes over the training data, by the last line that says so
    budget_s: float | None = None  # the run ends when it has trained for so long
    remaining_s: float | None = None  # of that, at the last line
    memory_bytes: int | None = None  # of the card
    bytes_per_token: float | None = None  # of the validation text
    resumed_val_loss: float | None = None  # of the checkpoint that the process loaded
    wall_s: float | None = None  # of a whole process, as `time` or the trainer printed it
    prediction_s: float | None = None  # of that, on test data while it trained
    data: Mapping[str, object] = field(default_factory=dict)  # name, hash, tokenizer, tokens per split
    machine: Mapping[str, object] = field(default_factory=dict)  # versions, device, code


@dataclass(frozen=True)
class LoggedForecast:
    """GlassGPT: what was expected before the run, as 80% bands. Empty or None: not known."""

    loss: tuple[tuple[float, float, float], ...] = ()  # update, low and high of the validation loss
    total_s: tuple[float, float] | None = None
    tokens_per_s: tuple[float, float] | None = None
    mfu: tuple[float, float] | None = None  # percent
    # By the speed of the first updates: from which update on, low, high.
    revised_tokens_per_s: tuple[int, float, float] | None = None


@dataclass(frozen=True)
class RunLog:
    """One run. A file may hold several: `reading.read_run_logs` returns each."""

    trainer: Trainer
    name: str  # of its file, for messages
    steps: Steps
    evals: tuple[LoggedEvaluation, ...]
    checkpoints: tuple[LoggedCheckpoint, ...]
    segments: tuple[LoggedProcess, ...]
    events: tuple[LogEvent, ...] = ()  # at most a few hundred of each kind
    event_counts: Mapping[EventKind, int] = field(default_factory=dict)  # of all events
    setup: LoggedSetup = field(default_factory=LoggedSetup)
    val_metric: ValMetric = "loss"
    has_iteration_numbers: bool = True  # False: Steps.iteration only counts the lines
    stage: str | None = None  # "base", "mid", "sft", "rl": of a recipe with several, on different data
    run_name: str | None = None  # of several in a table, a folder or a log
    runs_in_file: int = 1  # this one included; those that failed before their first step, too
    parts: int = 1  # of one process, whose count of steps begins again: this is one of them
    first_line: int = 0  # of the file, that belong to it, from 1; 0: not known
    last_line: int = 0
    has_line_numbers: bool = True  # False: lines are counted in another text, such as a notebook's output
    last_step_line: int = 0  # line number of the last step
    process_start_lines: tuple[int, ...] = ()  # line numbers of process headers
    failed_start_line: int | None = None  # line number of a process that logged no step
    is_excerpt: bool = False  # lines quoted in a text, maybe not all of them
    ends_mid_line: bool = False
    last_partial_iteration: int | None = None  # of the latest line that is cut too short to be read
    # As a closing row or a saved state says: the lines may stop a few iterations before.
    iterations_done: int | None = None
    ledger: Mapping[str, float] | None = None  # GlassGPT: seconds per phase, over all processes
    first_update_ms: float | None = None  # GlassGPT: of the very first update, which no row has
    journal_findings: tuple[Mapping[str, object], ...] = ()  # GlassGPT: findings that training recorded
    profiles: tuple[Mapping[str, Any], ...] = ()  # GlassGPT: profiler records
    samples: tuple[tuple[int, str], ...] = ()  # GlassGPT: iteration and text
    closing_eval: LoggedEvaluation | None = None  # GlassGPT: of the whole validation split, at the end
    looks: tuple[CheckpointLook, ...] = ()  # GlassGPT: what was seen in its checkpoints
    forecast: LoggedForecast = LoggedForecast()
    # GlassGPT: the update whose loss or gradient was not finite, and the gradient norms before it.
    nonfinite_update: tuple[int, tuple[float, ...]] | None = None
    live: bool = False  # the run is in progress
    ended: ExitStatus | None = None  # as a journal records it
    stamps: tuple[tuple[int, float], ...] = ()  # line and seconds, of the whole file: when it was printed
    metrics: tuple[MetricSeries, ...] = ()  # of the whole file; see metric_courses
    columns: Mapping[str, str] = field(default_factory=dict)  # of a table: what is read -> column and unit
    unread_loss_lines: int = 0  # of the file, by the same trainer: with a loss, in a form that is not known
    notes: tuple[Message, ...] = ()  # what reading it left out or assumed

    @property
    def label(self) -> str:
        """What tells it from other runs of the file."""
        return self.run_name or self.stage or self.trainer.name

    @property
    def resume_command(self) -> str:
        """With the folder of the run where the log names it, so that it can be pasted."""
        command, run_dir = self.trainer.resume_command, self.setup.run_dir
        return command.replace("=RUN", f"={shlex.quote(run_dir)}") if run_dir else command

    @cached_property
    def own_metrics(self) -> list[MetricSeries]:
        """Metrics besides the loss, in the lines of this run; without perplexities of losses that it logs."""
        with_loss = self.steps.has_loss
        evals = [(one.iteration, one.val_loss) for one in self.evals]
        known = sorted((at, loss) for at, loss in evals if at is not None and loss is not None)
        pairs = np.array(known, dtype=float).reshape(-1, 2)
        series = of_lines(self.metrics, self.first_line, self.last_line)
        if self.runs_in_file > 1 and len(self.steps) and self.last_step_line and not self.columns:
            first_step = int(self.steps.line[0]), int(self.steps.iteration[0])
            series = without_other_models(series, first_step, self.last_step_line)
        return [
            one
            for one in series
            if not repeats_loss(one, self.steps.iteration[with_loss], self.steps.loss[with_loss])
            and not repeats_loss(one, pairs[:, 0].astype(np.int64), pairs[:, 1])
        ]

    @cached_property
    def metric_courses(self) -> list[MetricCourse]:
        """At most three of them, from the start to the end. Not a perplexity whose name and lines do not tell
        of which data it is, where others are evaluated."""
        evaluated = {one.line for one in self.evals}
        return courses(
            [
                one
                for one in self.own_metrics
                if one.metric.kind != "perplexity"
                or one.metric.is_eval
                or "train" in one.name.lower()
                or not evaluated
                or evaluated.intersection(one.line.tolist())
            ]
        )

    @cached_property
    def loss_measures_learning(self) -> bool:
        """Not in reinforcement learning, nor where it is often below 0: no cross-entropy is. The loss of
        preferences (DPO), which begins at ln 2, does."""
        losses = self.steps.loss[np.isfinite(self.steps.loss)]
        is_negative = bool(len(losses)) and float((losses < 0).mean()) > MAX_NEGATIVE_SHARE
        if is_negative and self.placeholder_loss is None:
            return False
        if self.begins_at_ln2 or is_preference(self.own_metrics):
            return True
        if self.trainer.reads_any_log and len(losses) >= _MIN_TREND_LOSSES:
            low, high = float(losses.min()), float(losses.max())
            if low > _MIN_CROSS_ENTROPY and high < _MAX_CROSS_ENTROPY and trend(losses) == "falls":
                return True  # a reward beside it is of something else, such as the choice of data
        is_reinforcement = any(one.metric.kind in ("reward", "kl") for one in self.own_metrics)
        return self.trainer.loss_measures_learning and not is_reinforcement

    @cached_property
    def begins_at_ln2(self) -> bool:
        """As the loss of preferences (DPO) does."""
        losses = self.steps.loss[np.isfinite(self.steps.loss)]
        return bool(len(losses)) and abs(float(losses[0]) - math.log(2)) < _LN2_TOLERANCE

    @cached_property
    def placeholder_loss(self) -> float | None:
        """What every line has for a loss, where that is none: 0 or below, and always the same."""
        losses = self.steps.loss[self.steps.has_loss]
        is_constant = len(losses) > 1 and losses[0] <= 0 and bool(np.all(losses == losses[0]))
        return float(losses[0]) if is_constant else None

    @property
    def is_saved_state(self) -> bool:
        """Not a log that goes on, but a file that is written with a checkpoint, as trainer_state.json is."""
        return self.iterations_done is not None and bool(self.columns)

    @property
    def evaluates_metrics(self) -> bool:
        """Whether a metric besides the loss is of held-out data."""
        return any(one.metric.is_eval for one in self.own_metrics)

    def events_after_last_step(self) -> list[LogEvent]:
        """Events after the last step, of the same process."""
        end = math.inf if self.failed_start_line is None else self.failed_start_line
        return [event for event in self.events if self.last_step_line < event.line < end]

    def events_of_failed_start(self) -> list[LogEvent]:
        """Events of a later process that logged no step."""
        start = self.failed_start_line
        return [] if start is None else [event for event in self.events if event.line >= start]

    @property
    def left_out(self) -> LeftOut:
        """Logged iterations that are not in `steps`, of all processes."""
        return sum((segment.left_out for segment in self.segments), LeftOut())

    @property
    def iterations_logged(self) -> int:
        return len(self.steps) + self.left_out.lines

    @property
    def length(self) -> tuple[int, int]:
        """By which runs are compared: its iterations, logged or not, and its lines."""
        return self.iteration_count(), self.iterations_logged

    @property
    def batch_size_changes(self) -> tuple[tuple[int, int], ...]:
        """(iteration, sequences per batch from there on), where the log says so."""
        return tuple(change for segment in self.segments for change in segment.batch_size_changes)

    def iteration_count(self) -> int:
        """Iterations from the first to the last line of every process, logged or not."""
        steps = self.steps
        if self.trainer.lines_count_updates:
            return max(0, int(steps.iteration[-1]) - self._initial_iteration) if len(steps) else 0
        same_process = steps.segment[1:] == steps.segment[:-1]
        return len(steps) + int((np.diff(steps.iteration) - 1)[same_process].sum())

    @property
    def _initial_iteration(self) -> int:
        """GlassGPT: updates already done by the checkpoint that the run was initialised from."""
        return (self.segments[0].first_iteration or 0) if self.segments else 0

    def logged_tokens_at(self, iterations: Floats | Ints) -> Floats | None:
        """Tokens seen up to each of these iterations; None where the log does not count tokens.

        Updates before its first line are assumed to have the first process's batch size."""
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
        """As the log counts tokens, which includes a batch size changed by a resume; else iterations x
        tokens."""
        counted = self.logged_tokens_at(iterations)
        if counted is not None or not per_iteration:
            return counted
        return np.asarray(iterations, dtype=np.float64) * per_iteration

    def tokens_of_this_run(self) -> float | None:
        """Tokens of the updates in this log; None where it does not count tokens."""
        ends = (
            self.logged_tokens_at(np.array([self._initial_iteration, self.steps.iteration[-1]]))
            if len(self.steps)
            else None
        )
        return None if ends is None else float(ends[1] - ends[0])

    def process_start_iterations(self) -> Ints:
        """GlassGPT: how many updates were done when each process started."""
        return np.array([part.first_iteration or 0 for part in self.segments], dtype=np.int64)

    def unlogged_before(self) -> Ints:
        """How many iterations without a line come before each logged one, in the same process."""
        at, segment = self.steps.iteration, self.steps.segment
        before = np.concatenate((at[:1] - 1, at[:-1]))
        begins = np.concatenate(([True], np.diff(segment) != 0))[: len(at)]
        # Only a journal records how many updates were done when a process started.
        is_journal = self.trainer.lines_count_updates
        before[begins] = (self.process_start_iterations()[segment] if is_journal else at - 1)[begins]
        # A run from its start, or to its end, whose first line comes after one interval.
        is_whole = self.iterations_done is not None or any(one.iteration == 0 for one in self.evals[:1])
        if is_whole and len(at) > 1 and at[0] <= at[1] - at[0]:
            before[0] = 0
        # The same of one whose first line has a mean: of all iterations so far, where that is its interval.
        has_mean = self.trainer.step_time_is_interval_mean and len(at) > 0 and np.isfinite(self.steps.ms[0])
        interval = at[1] - at[0] if len(at) > 1 else self.setup.settings.get("log_interval")
        if has_mean and at[0] == interval and self.has_iteration_numbers:
            before[0] = 0
        passed: Ints = np.maximum(at - before - 1, 0)
        return passed

    def includes_eval(self) -> Bools:
        """True where an iteration's time includes an evaluation or a save."""
        return (
            self._eval_or_save_rows
            if self.trainer.step_time_includes_eval
            else np.zeros(len(self.steps), dtype=bool)
        )

    def is_at_eval_or_save(self) -> Bools:
        """True where an iteration evaluated or saved, whether or not its logged time includes that."""
        return self._eval_or_save_rows

    def is_steady(self) -> Bools:
        """True for the iterations that a steady step time is computed from.

        Left out are iterations without a time, the first of each process (start-up), and those with an
        evaluation or a save. Two special cases:

        - Step times of some trainers exclude evaluations. Then iterations with one are used, too, unless
          most have none: where lines are as far apart as evaluations, they are nearly all.
        - A resume may change the batch size. Then only processes with the setup's batch size are used, if
          there are any.
        """
        steady = ~self._first_rows & np.isfinite(self.steps.ms)
        if self.has_varying_batch_tokens and len(self.steps):
            batches = (None, self.setup.tokens_per_iteration)
            is_usual = np.array([segment.tokens_per_iteration in batches for segment in self.segments])
            same_batch = steady & is_usual[self.steps.segment]
            steady = same_batch if same_batch.any() else steady
        without_eval = steady & ~self._eval_or_save_rows
        are_most = 2 * np.count_nonzero(without_eval) >= np.count_nonzero(steady)
        is_strict = self.trainer.step_time_includes_eval or are_most
        return without_eval if is_strict else steady

    def is_first_of_process(self) -> Bools:
        """True where an iteration is the first of a process: its time includes the start-up."""
        return self._first_rows

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
        """Whether processes of this log have different numbers of tokens per iteration."""
        return len({segment.tokens_per_iteration for segment in self.segments} - {None}) > 1

    @cached_property
    def _eval_or_save_rows(self) -> Bools:
        """True where an evaluation or a save was made in the iteration."""
        iterations = eval_or_save_iterations(self.trainer, self.evals, self.checkpoints)
        marked = marked_rows(self.steps.iteration, self.steps.segment, iterations)
        marked.setflags(write=False)
        return marked

    def iterations_timed(self) -> Floats:
        """By row, of how many iterations its time is the mean: 1, or all since the line before."""
        if not self.trainer.step_time_is_interval_mean:
            return np.ones(len(self.steps))
        return (1 + self.unlogged_before()).astype(np.float64)

    def log_interval(self) -> int | None:
        """The most frequent distance between two lines; the smaller of two equally frequent ones."""
        return self._log_interval

    @cached_property
    def _log_interval(self) -> int | None:
        steps = self.steps
        if not self.has_iteration_numbers or len(steps) < 2:
            return None
        between = self._distances
        if steps.iteration[0] == 1 and len(between) and between[0] > 1:
            # The very first one may have a line beside every 200th: 1, 200, 400.
            if len(between) == 1:
                return None
            between = between[1:] if between[0] + 1 == between[1] else between
        distances, counts = np.unique(between, return_counts=True)
        return int(distances[np.argmax(counts)]) if len(distances) else None

    @property
    def _distances(self) -> Ints:
        """Between two lines of a process."""
        steps = self.steps
        distances: Ints = np.diff(steps.iteration)[steps.segment[1:] == steps.segment[:-1]]
        return distances

    @property
    def has_regular_interval(self) -> bool:
        """Whether one distance between two lines is at least as frequent as all others together."""
        interval = self.log_interval()
        same = int(np.count_nonzero(self._distances == interval))
        return interval is not None and 2 * same >= len(self._distances)


def longest_run(run_logs: Sequence[RunLog]) -> RunLog:
    """The one with the most iterations, the latest of equals: a file's facts are of this one."""
    return max(reversed(run_logs), key=lambda run_log: run_log.length)


def eval_or_save_iterations(
    trainer: Trainer, evals: Iterable[LoggedEvaluation], checkpoints: Iterable[LoggedCheckpoint]
) -> dict[int, list[int]]:
    """By segment, the iterations whose time may include an evaluation or a save."""
    by_segment: dict[int, list[int]] = {}
    if not trainer.step_time_is_interval_mean:  # else it is of updates alone
        items: Iterable[LoggedEvaluation | LoggedCheckpoint] = itertools.chain(evals, checkpoints)
        for item in items:
            if item.iteration is not None:
                at = item.iteration + trainer.eval_timed_in_later_step
                by_segment.setdefault(item.segment, []).append(at)
    return by_segment


def marked_rows(iteration: Ints, segment: Ints, marked: Mapping[int, Sequence[int]]) -> Bools:
    """True where the iteration is one of those of its segment. The rows of a segment are contiguous."""
    rows = np.zeros(len(iteration), dtype=bool)
    for index, at in marked.items():
        begin, end = np.searchsorted(segment, (index, index + 1))
        rows[begin:end] = np.isin(iteration[begin:end], at)
    return rows
