"""Builds a RunLog from what a trainer's reader finds in the lines, in their order.

    builder = RunBuilder(trainer)
    builder.add_step(250, loss=2.0307, ms=26177.52)
    builder.finish()
    run_log = builder.build("train.log", ends_mid_line=False)

A log can print any number. `numbers.clamped` is the last step of `build`, and of reading a journal. After it

- iterations and counts (parameters, tokens, batch sizes, bytes) are 0 to 10^15, or None;
- times, MFU, tokens/s and memory are 0, or 1e-9 to 1e15; in a column NaN, elsewhere None: not known;
- learning rates are 0 to 1e15, or NaN: not known;
- losses and gradient norms are 0, or 1e-100 to 1e100 in size, or infinite, or NaN. `has_loss` is
  False where the line has no loss;
- FLOPs per token and peak FLOP/s are above 0 and at most 1e30, or None;
- settings that are numbers are at most 10^15 in size; others are left out.

So squares and products of these are finite, and nothing above this folder has to guard against overflow.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from glassgpt.config import ConfigValue
from glassgpt.i18n import Message
from glassgpt.runs.log_numbers import MAX_COUNT, clamped
from glassgpt.runs.metric_series import MetricRecorder
from glassgpt.runs.outer_counts import OuterCounter
from glassgpt.runs.run_log import (
    EventKind,
    LogEvent,
    LoggedCheckpoint,
    LoggedEvaluation,
    LoggedProcess,
    LoggedSetup,
    RunLog,
    Steps,
    ValMetric,
    eval_or_save_iterations,
)
from glassgpt.runs.setup_builder import FailedLaunch, SetupBuilder
from glassgpt.runs.step_clock import LineStamps, times_between
from glassgpt.runs.step_rows import StepRows
from glassgpt.runs.trainer import Trainer

_MAX_EVENT_CHARS = 2000
_MIN_ARRAY_STEPS = 8  # fewer are faster one by one
_MAX_EVENTS_PER_KIND, _MAX_FRAMES = 200, 400
_MAX_BATCH_SIZES = 1000  # changes that are kept, of one process
PROMPT = "$"  # of a shell: the text of a command's line
_DIGITS = re.compile(r"\d+")
_OF_ANY_RANK = re.compile(r"Traceback|[Ww]arn|WARN")  # several ranks of one launch print it, at any time
_REPEATED = re.compile(r"(\W)\1+")
FAILURE_KINDS = frozenset({"oom", "traceback", "abort", "kill", "interrupt"})
_LATEST_KINDS = FAILURE_KINDS | {"scaler-overflow"}  # of very many the last are kept, too


def _is_placeholder(loss: float | None) -> bool:
    return loss is not None and loss < 0 and loss % 1 == 0


class _PendingItem(NamedTuple):
    """An evaluation or a checkpoint whose line has no iteration. It gets that of the next step."""

    item: LoggedEvaluation | LoggedCheckpoint
    offset: int  # added to that step's iteration
    fence_count: int  # of the builder, when the line was read


class RunBuilder:
    """Collects what the lines of one trainer say. A reader calls start_process, add_step, add_eval,
    add_checkpoint and add_event in the order of the lines; `finish` at the end of the log, then `build`."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.setup = SetupBuilder()
        self.line = 0  # of the file, from 1
        self.clock = ""  # of this line: when it was printed, if its prefix says so
        self.cell_line = 0  # where a notebook's current cell begins
        self._done_in_cell: int | None = None  # iterations that an earlier cell made, after its last line
        self.has_quoted_lines = False  # the file is a text that quotes log lines, maybe out of order
        self.fence_count = 0  # Markdown's ``` lines so far in such a text: odd inside a code block
        self.in_traceback = False  # a traceback has begun, and its exception has not come yet
        self.is_elsewhere = False  # a traceback of a thread has begun, as in_traceback
        self.is_resuming = False  # the current process resumes, and has not logged a step yet
        self.iterations_done: int | None = None  # see RunLog
        self.has_placeholder_loss = False  # a rank has printed a negative whole number: it computes none
        self.partial_iteration: int | None = None  # of the latest line that is cut too short to be read
        self.has_step_times = True  # False: those of the lines turned out to be of other steps
        self.summary_lines: list[int] = []  # of steps that turned out to be means of others
        self.notes: list[Message] = []  # how the lines were read, where that is not obvious
        # For a trainer whose lines have no iteration: number of the line -> iteration. Empty: not known.
        self.iteration_by_count: dict[int, int] | None = None
        self.iteration_by_eval_line: dict[int, int] = {}  # of evaluations between two of its lines

        self._rows = StepRows()
        self._evals: list[LoggedEvaluation] = []
        self._checkpoints: list[LoggedCheckpoint] = []
        self._checkpoint_names: set[str] = set()  # of those of the latest one's iteration
        self._pending: list[_PendingItem] = []
        self._metrics = MetricRecorder()
        self.holds_step = False  # a reader has a line that may be the first step, or a summary
        self._held_metrics: list[tuple[Mapping[str, float], int]] = []  # after that line
        self.stamps = LineStamps()
        self._events: list[LogEvent] = []
        self._frames: deque[str] = deque(maxlen=_MAX_FRAMES)  # functions of the traceback that is being read
        self._event_counts: Counter[EventKind] = Counter()
        self._event_total = 0

        self._command_settings: Mapping[str, ConfigValue] = {}  # of a later process, if it comes
        self._segments: list[LoggedProcess] = []
        self._setups: list[SetupBuilder] = []  # of the segments that are over
        self._setup_at_end: SetupBuilder | None = None  # of the current segment: a new process was announced
        self._segment_steps = 0  # rows of the current segment
        self._plan: object = None  # planned iterations, as of its latest step
        self._plan_ends: dict[object, int] = {}  # of each plan, the latest iteration
        self._last_iteration: int | None = None  # of the current segment, as the next
        self._last_eval_iteration: int | None = None
        self._process_announced = False  # a new process has printed its header, and no step yet
        self._stage: str | None = None
        self._start_lines: list[int] = []
        self._failed_start_line: int | None = None  # of the first process start since the last step
        self._launch: FailedLaunch | None = None  # the latest command, which has not logged a step yet
        self._has_launch_failed = False
        self._failed_launches: list[FailedLaunch] = []
        self._setup_at_first_step: SetupBuilder | None = None
        self._last_step_line = 0
        self._last_item_line = 0  # of the latest step, evaluation, checkpoint or end
        self._start_line: int | None = None  # of the first line after that of a run's header
        self._blank_line = 0  # the latest
        self._date_line = -1  # the latest that is only a date
        self._opening: str | None = None  # the first line with letters; "": it does not mark a launch
        self._reopened_line = 0  # where it came again, the latest
        self._banner: str | None = None  # what comes after one on the first line, numbers aside
        self._outer_counter = OuterCounter()
        self._last_step_fence_count = 0
        self._fence_counts_with_steps: set[int] = set()

    # --- what readers record ---

    def begin_cell(self) -> None:
        """A notebook's next cell was run: if nothing failed in the one before, that is over."""
        last, planned = self._last_iteration, self.setup.values.get("planned_iterations")
        failed = any(
            event.kind in FAILURE_KINDS for event in self._events if event.line > self._last_step_line
        )
        if self.has_steps and self.cell_line <= self._last_step_line and last is not None and not failed:
            from_zero = self._segments[-1].first_iteration == 0 and self.iteration_by_count is None
            if isinstance(planned, int) and from_zero and last < planned <= last + self._rows.last_gap:
                self.iterations_done = self._done_in_cell = last = planned
            if not isinstance(planned, int) or last >= planned:
                self.add_event("finish", "a later cell was run")
        self.cell_line = self.line

    def start_process(
        self, resumed: bool = False, has_header: bool = True, text: str = "", stage: str | None = None
    ) -> None:
        """A new process begins here. It has its own settings, unless it resumes, or prints no header.

        `text`: the line that says so. `stage`: of a recipe with several, each of which is a run."""
        if self._segment_steps and not self._process_announced:
            self._setup_at_end = self._current_setup()
            if not resumed and has_header:
                self.setup = SetupBuilder()
            self._use_command_settings()
        if has_header:
            self._start_lines.append(self.line)
            self.mark_process_start(text)
        self._process_announced = True
        self._stage = stage
        self.is_resuming = self.is_resuming or resumed
        if self.is_resuming and self._launch is not None:
            self._launch = self._launch._replace(resumed=True)

    def set_stage(self, stage: str) -> None:
        """Of the current process, which said so later than at its start."""
        if self._segments and self._segment_steps and not self._process_announced:
            self._segments[-1] = replace(self._segments[-1], stage=stage)

    def note_line(self, text: str) -> None:
        """A line that is no step, without blanks around it: where the steps begin again, the latest ones tell
        why."""
        if self._date_line == self.line - 1:
            banner = _REPEATED.sub(r"\1", _DIGITS.sub("0", text))
            if self._date_line == 1:
                self._banner = banner
            elif banner == self._banner:  # the file begins so: it is another launch
                self.mark_process_start(PROMPT, self._date_line)
        if self._opening and text[:4] == self._opening[:4]:
            if text == self._opening:
                self._reopened_line = self.line
            if self._has_launch_failed and _DIGITS.sub("0", text) == _DIGITS.sub("0", self._opening):
                self.mark_process_start(PROMPT)
        if not text:
            self._blank_line = self.line
        else:
            if self._opening is None:
                is_none = self.has_steps or _OF_ANY_RANK.search(text) is not None
                self._opening = "" if is_none else text if any(map(str.isalpha, text)) else None
            self._outer_counter.note_line(self.line, text)

    def note_date(self) -> None:
        """A line that is only a date."""
        self._date_line = self.line

    def note_start(self, is_first_line: bool = False) -> None:
        """A line that a program prints before it trains. Those just above are of its header, too, unless it
        is the first one, or the command."""
        if self._start_line is None:
            above = max(self._last_item_line, self._blank_line)
            self._start_line = self.line if is_first_line else above + 1

    def add_command(self, settings: Mapping[str, ConfigValue]) -> None:
        """A command's flags are settings of the process that it starts, never of an earlier one."""
        if self.last_iteration is None:
            self.setup.settings.update(settings)
        else:
            self._command_settings = settings

    def mark_process_start(self, text: str = "", line: int | None = None) -> None:
        """A command was started: events from here on are not the previous process's. `line`: if not this."""
        line = self.line if line is None else line
        self.note_start(is_first_line=True)
        if self.has_quoted_lines:
            return
        if self._failed_start_line is None and self.has_steps:
            self._failed_start_line = line
        header = "".join(character for character in text if not character.isdigit())
        launch = self._launch
        if launch is None:
            self._launch, self._has_launch_failed = FailedLaunch(line, header), False
        elif self._has_launch_failed and header in (launch.header, PROMPT):
            # It prints what that one printed first. Other headers after a failure are of its other ranks.
            self._failed_launches.append(launch._replace(setup=self.setup.build()))
            self._launch, self._has_launch_failed = FailedLaunch(line, header), False

    def add_step(
        self,
        iteration: int,
        loss: float | None = None,
        *,
        ms: float = math.nan,
        mfu: float = math.nan,
        lr: float = math.nan,
        grad_norm: float = math.nan,
        tokens_per_s: float = math.nan,
        line: int | None = None,
    ) -> None:
        """`line`: its number in the file, if that is not the line being read."""
        if iteration > MAX_COUNT:
            return
        # A time outside of its limits counts as not printed already here: see last_step_columns.
        ms = ms if 0 <= ms <= MAX_COUNT else math.nan
        values = (math.nan if loss is None else loss, ms, mfu, lr, grad_norm, tokens_per_s)
        self.has_placeholder_loss |= _is_placeholder(loss)
        is_other_run = self._is_of_other_run(iteration)
        if self.last_iteration is not None and self._last_iteration is not None and not is_other_run:
            is_next_line = self.line <= self._last_step_line + 1
            is_behind = iteration < self._last_iteration and is_next_line
            is_late = iteration <= self._last_iteration and self._rows.replace_placeholder(
                iteration, values[0]
            )
            is_repeated = is_behind and self._rows.has_recent(iteration, values)
            is_reopened = self._segment_steps == 1 and self._reopened_line > self._last_step_line
            if iteration == self._last_iteration and is_reopened:
                self.start_process(has_header=False)  # another launch came to the same iteration
            elif iteration == self._last_iteration or is_late or is_repeated:
                self._last_step_line = self.line
                return  # another rank printed it too, maybe a few lines behind
        line = self.line if line is None else line
        self._enter_segment(iteration, line, is_other_run)
        if self._pending:
            if not self.holds_step:
                self.release_step(iteration)
            self._assign_pending_iterations(iteration)
        if not self._segment_steps:
            self._setup_at_first_step = self.setup.copy()
            tokens = self.setup.build().tokens_per_iteration
            self._segments[-1] = replace(self._segments[-1], tokens_per_iteration=tokens)
        self._rows.append(iteration, len(self._segments) - 1, loss is not None, values, line)
        self._note_steps(1, iteration, line)

    def add_steps(self, columns: Mapping[str, Sequence[float]]) -> None:
        """Steps of consecutive lines, each with a loss, from the line after the current one on: the same as
        `add_step` for each. `columns`: its parameters."""
        count = len(columns["iteration"])
        previous = -1 if self._last_iteration is None else self._last_iteration
        is_plain = (
            count >= _MIN_ARRAY_STEPS
            and self._segment_steps
            and not self._process_announced
            and not self._pending
            and columns["iteration"][0] > previous
            and not self._is_of_other_run(int(columns["iteration"][0]))
            and max(columns["iteration"]) <= MAX_COUNT
        )
        iterations = np.array(columns["iteration"] if is_plain else (), dtype=np.int64)
        is_plain = is_plain and bool((np.diff(iterations) > 0).all())
        if not is_plain:
            for index in range(count):
                self.line += 1
                self.add_step(**{name: column[index] for name, column in columns.items()})  # type: ignore[arg-type]
            return
        self.line += count
        arrays = {name: np.array(column, dtype=float) for name, column in columns.items()}
        del arrays["iteration"]
        if (ms := arrays.get("ms")) is not None:
            ms[~((ms >= 0) & (ms <= MAX_COUNT))] = np.nan
        self._rows.extend(iterations, len(self._segments) - 1, arrays, self.line - count + 1)
        self._note_steps(count, int(iterations[-1]), self.line)

    def _is_of_other_run(self, iteration: int) -> bool:
        """Whether another command than that of the latest step writes this one to the same file."""
        plan = self.setup.values.get("planned_iterations")
        if not self.trainer.lines_name_plan or plan == self._plan or self.last_iteration is None:
            return False
        return iteration <= self.last_iteration or self._plan_ends.get(plan, iteration) < iteration

    def _note_steps(self, count: int, last_iteration: int, line: int) -> None:
        self._last_iteration = last_iteration
        if self._done_in_cell is not None:
            self._done_in_cell = self.iterations_done = None
        if self.trainer.lines_name_plan:
            self._plan = self.setup.values.get("planned_iterations")
            self._plan_ends[self._plan] = last_iteration
        self._segment_steps += count
        self._last_step_line = self._last_item_line = line
        self._failed_start_line = self._launch = self._start_line = None
        self._last_step_fence_count = self.fence_count
        self._fence_counts_with_steps.add(self.fence_count)
        if self._rows.is_full:
            self._rows.thin(eval_or_save_iterations(self.trainer, self._evals, self._checkpoints))

    def add_eval(
        self,
        iteration: int | None,
        val_loss: float | None = None,
        train_loss: float | None = None,
        ms: float | None = None,
        metric: ValMetric = "loss",
        line: int | None = None,
        is_late: bool = False,
    ) -> None:
        """Two lines about one evaluation, each with a value that the other does not have, become one.
        `is_late`: it comes after later steps of the same process."""
        if iteration is not None and iteration > MAX_COUNT:
            return
        line = self.line if line is None else line
        if iteration is not None and iteration == self._last_iteration:
            iteration = self._done_in_cell or iteration
        if iteration is not None and not (is_late and self._segments):
            self._enter_segment(iteration, line)
            self._last_eval_iteration = iteration
        elif not self._segments:
            self._open_segment(self.trainer.first_iteration, line)
        self._last_item_line = max(self._last_item_line, line)
        segment = len(self._segments) - 1
        new = LoggedEvaluation(iteration, segment, val_loss, train_loss, ms, metric=metric, line=line)
        old = self._evals[-1] if self._evals else None
        if old is None or iteration is None or (old.iteration, old.segment) != (iteration, new.segment):
            self._evals.append(new)
        elif (old.val_loss is None or val_loss is None) and (old.train_loss is None or train_loss is None):
            self._evals[-1] = replace(
                old,
                val_loss=old.val_loss if val_loss is None else val_loss,
                train_loss=old.train_loss if train_loss is None else train_loss,
                ms=old.ms if ms is None else ms,
            )
        elif _is_placeholder(old.val_loss) or _is_placeholder(val_loss):
            if _is_placeholder(old.val_loss):  # of a rank that computes none
                self._evals[-1] = new
        elif new != old:  # else another rank printed it too
            self._evals.append(new)

    def add_eval_before_next_step(self, val_loss: float | None, offset: int = 0) -> None:
        """Its iteration is that of the next step's line, plus `offset`."""
        evaluation = LoggedEvaluation(None, 0, val_loss, line=self.line)
        self._pending.append(_PendingItem(evaluation, offset, self.fence_count))

    def add_checkpoint(
        self,
        iteration: int | None = None,
        ms: float | None = None,
        line: int | None = None,
        name: str = "",
    ) -> None:
        """Without an iteration, it gets that of the evaluation just made, else that of the next step.
        `ms`: that training waited; a second line about the same one may say that. `line`: as there. `name`:
        of the file or folder; two at one iteration are two checkpoints."""
        line = self.line if line is None else line
        self._last_item_line = self.line
        evaluation = self._evals[-1] if self._evals else None
        if (
            iteration is None
            and evaluation is not None
            and evaluation.iteration is not None
            and evaluation.segment == len(self._segments) - 1
            and (self._last_iteration is None or self._last_iteration <= evaluation.iteration)
        ):
            iteration = evaluation.iteration
        if iteration is None:
            save = LoggedCheckpoint(None, 0, ms, line=line)
            self._pending.append(_PendingItem(save, 0, self.fence_count))
            return
        save = LoggedCheckpoint(iteration, max(0, len(self._segments) - 1), ms, line=line)
        last = self._checkpoints[-1] if self._checkpoints else None
        is_same = last is not None and (last.iteration, last.segment) == (iteration, save.segment)
        if iteration > MAX_COUNT:
            return
        names = self._checkpoint_names if is_same else set()
        is_other = bool(name and names) and name not in names
        self._checkpoint_names = names | ({name} - {""})
        if last is None or not is_same or is_other or self._process_announced:
            self._checkpoints.append(save)
        elif ms is not None and last.blocking_ms is None:
            self._checkpoints[-1] = replace(last, blocking_ms=ms)

    def add_metrics(self, values: Mapping[str, float], iteration: int | None = None) -> bool:
        """Of the values by their names, those that measure learning besides the loss; other names are left
        out. `iteration`: if not that of the latest step. Whether there was one."""
        if self.awaits_step and iteration is None:
            self._held_metrics.append((values, self.line))
            return False
        at = self.last_iteration if iteration is None else iteration
        return self._metrics.add(values, at, self.line)

    @property
    def awaits_step(self) -> bool:
        """The latest lines are about a step that comes next, or is held."""
        return self.holds_step or any(isinstance(one.item, LoggedEvaluation) for one in self._pending)

    def release_step(self, iteration: int | None) -> None:
        """The line that was held was that step; None: it was a summary, as the metrics after it."""
        for values, line in self._held_metrics if iteration is not None else ():
            self._metrics.add(values, iteration, line)
        self.holds_step, self._held_metrics = False, []

    def drop_pending_checkpoints(self) -> None:
        """They belong to another run."""
        self._pending = [
            pending for pending in self._pending if not isinstance(pending.item, LoggedCheckpoint)
        ]

    def reset_setup(self, setup: SetupBuilder) -> None:
        """To what it was: later lines were about another run."""
        self.setup, self._setup_at_end = setup, None

    def add_batch_size(self, iteration: int, sequences: int) -> None:
        """The global batch size from that iteration on."""
        changes = self._segments[-1].batch_size_changes if self._segments else ()
        if self._segments and (not changes or changes[-1][1] != sequences):
            changes = (*changes[: _MAX_BATCH_SIZES - 1], (iteration, sequences))
            self._segments[-1] = replace(self._segments[-1], batch_size_changes=changes)

    def add_event(self, kind: EventKind, text: str) -> None:
        if self.has_quoted_lines and (
            self.fence_count % 2 == 0 or self.fence_count != self._last_step_fence_count
        ):
            return  # prose, or another code block
        began = self.has_steps or self.has_evals  # an evaluation before the first update counts, too
        if kind in FAILURE_KINDS and (self._launch is not None or not began):
            self._launch = self._launch or FailedLaunch(self.line, "")
            self._has_launch_failed = True
        if kind in FAILURE_KINDS and self.has_steps and self.cell_line > self._last_step_line:
            self._failed_start_line = self._failed_start_line or self.line  # of a later cell, not of the run
            self._start_lines.append(self.line)
        if kind in FAILURE_KINDS or kind == "finish":
            self._last_item_line, self._start_line = self.line, None
        self._event_counts[kind] += 1
        self._event_total += 1
        is_stored = self._event_counts[kind] <= _MAX_EVENTS_PER_KIND or kind in _LATEST_KINDS
        self.in_traceback = kind == "traceback" and is_stored
        if is_stored:
            event = LogEvent(kind, text.strip()[:_MAX_EVENT_CHARS], self.line, self._last_iteration)
            self._events.append(replace(event, frames=tuple(self._frames)) if kind == "oom" else event)
        if kind != "traceback":
            self._frames.clear()
        is_due = is_stored and len(self._events) % 100 == 0
        alike = [one for one in self._events if one.kind == kind] if is_due else []
        if len(alike) > _MAX_EVENTS_PER_KIND:  # the first and the last tell most
            dropped = set(map(id, alike[_MAX_EVENTS_PER_KIND // 2 : -_MAX_EVENTS_PER_KIND // 2]))
            self._events = [one for one in self._events if id(one) not in dropped]

    def add_frame(self, function: str) -> None:
        """Of a traceback, in the order of the file."""
        self._frames.append(function)

    def forget_events(self) -> None:
        self._events.clear()
        self._event_counts.clear()
        self._frames.clear()
        self._event_total, self.in_traceback = 0, False
        self._launch, self._has_launch_failed, self._failed_launches = None, False, []

    def set_exception(self, text: str) -> None:
        """The last line of a traceback is appended to its event: it names the exception."""
        at = max(index for index, event in enumerate(self._events) if event.kind == "traceback")
        self._last_item_line = self.line
        event_text = f"{self._events[at].text} {text.strip()}"[:_MAX_EVENT_CHARS]
        self._events[at] = replace(self._events[at], text=event_text, error_line=self.line)
        self.in_traceback = False
        if "emory" not in text:  # else the frames are those of the event that follows
            self._frames.clear()

    # --- what readers ask ---

    @property
    def has_steps(self) -> bool:
        return len(self._rows) > 0

    @property
    def has_evals(self) -> bool:
        return bool(self._evals)

    @property
    def has_saves(self) -> bool:
        return bool(self._checkpoints) or any(
            isinstance(pending.item, LoggedCheckpoint) for pending in self._pending
        )

    @property
    def non_step_count(self) -> int:
        """How many evaluations, checkpoints and events there are."""
        return len(self._evals) + len(self._checkpoints) + len(self._pending) + self._event_total

    @property
    def is_excerpt(self) -> bool:
        """The text quotes pieces of a log; a whole log in one code block is not an excerpt."""
        return self.has_quoted_lines and (
            len(self._fence_counts_with_steps) > 1
            or any(count % 2 == 0 for count in self._fence_counts_with_steps)
        )

    @property
    def is_process_announced(self) -> bool:
        """A new process has printed its header, and no step yet."""
        return self._process_announced

    @property
    def last_iteration(self) -> int | None:
        """The iteration of the latest step of the current process."""
        return self._last_iteration if self._segment_steps and not self._process_announced else None

    @property
    def last_val_loss(self) -> float | None:
        return self._evals[-1].val_loss if self._evals else None

    @property
    def last_mfu(self) -> float:
        """Of the latest step, as printed; NaN where it has none."""
        return self._rows.last("mfu") if len(self._rows) else math.nan

    @property
    def last_loss(self) -> float:
        """Of the latest step; NaN where it has none."""
        return self._rows.last("loss") if len(self._rows) else math.nan

    @property
    def last_step_columns(self) -> frozenset[str]:
        """Which of "loss" and "ms" the latest step's line had. A line with fewer is cut off."""
        if not len(self._rows):
            return frozenset()
        has_ms = not math.isnan(self._rows.last("ms"))
        return frozenset(("loss",) * self._rows.last_has_loss + ("ms",) * has_ms)

    # --- segments ---

    def _enter_segment(self, iteration: int, line: int, is_other_run: bool = False) -> None:
        """Open a new segment where a process started, or where the iterations go back."""
        previous = self._last_iteration if self._segment_steps else self._last_eval_iteration
        goes_back = is_other_run or (previous is not None and iteration < previous)
        if not self._segments or goes_back or (self._process_announced and self._segment_steps):
            if self._last_iteration is not None:  # the process ended before the step they wait for
                self._assign_pending_iterations(self._last_iteration + 1, self._last_step_fence_count)
            self._open_segment(iteration, line)
        elif self._process_announced:
            # It has evaluated before its first step. A line that it resumes may come after that.
            self._segments[-1] = replace(
                self._segments[-1], has_startup=True, resumed=self.is_resuming, stage=self._stage
            )
            self._process_announced = self.is_resuming = False
            self._launch = None

    def _open_segment(self, iteration: int, line: int) -> None:
        if self._segments:
            self._segments[-1] = replace(self._segments[-1], last_step_line=self._last_step_line)
            setup = self._setup_at_end or self._current_setup()
            is_same = bool(self._setups) and setup == self._setups[-1]
            self._setups.append(self._setups[-1] if is_same else setup)  # shared: there may be very many
            if not self._process_announced and self._command_settings:
                self.setup = SetupBuilder()
                self._use_command_settings()
        self._setup_at_end = None
        starts = self._process_announced or bool(self._segments) or iteration <= self.trainer.first_iteration
        self._segments.append(
            LoggedProcess(
                starts,
                self.is_resuming,
                iteration,
                stage=self._stage,
                first_line=self._header_line(line),
                is_announced=self._process_announced or self._launch is not None or bool(self._start_line),
                outer_count=self._outer_counter.next_count(self._last_step_line),
            )
        )
        self._process_announced = self.is_resuming = False
        self._launch = self._setup_at_first_step = None
        self._segment_steps, self._last_iteration, self._last_eval_iteration = 0, None, None

    def _use_command_settings(self) -> None:
        self.setup.settings.update(self._command_settings)
        self._command_settings = {}

    def _header_line(self, line: int) -> int:
        """Where the segment begins whose first step or evaluation is on this line: with its header, else
        after all that is known of the segment before."""
        if self._launch is not None:
            return min(self._launch.first_line, self._start_line or line)
        if not self._segments or self.has_quoted_lines:
            return line
        return self._start_line or min(self._last_item_line + 1, line)

    def _assign_pending_iterations(self, iteration: int, fence_count: int | None = None) -> None:
        """`fence_count`: only to items that were read at that count."""
        ready = [pending for pending in self._pending if fence_count in (None, pending.fence_count)]
        self._pending = [pending for pending in self._pending if pending not in ready]
        if not self.holds_step:
            self.release_step(iteration)
        for pending in ready:
            at = iteration + pending.offset
            item = replace(pending.item, iteration=at, segment=len(self._segments) - 1)
            if isinstance(item, LoggedCheckpoint):
                self._checkpoints.append(item)
            elif item not in self._evals[-1:]:  # else another rank printed it too
                self._evals.append(item)

    def _current_setup(self) -> SetupBuilder:
        """Of the current segment, as known at its first step, completed from later lines."""
        return (self._setup_at_first_step or self.setup).merged_with(self.setup)

    # --- the result ---

    def finish(self) -> None:
        """The log ends here: pending evaluations and checkpoints get the iteration after the last step."""
        last = self._last_iteration
        self._assign_pending_iterations(self.trainer.first_iteration if last is None else last + 1)

    @property
    def failed_launches(self) -> list[FailedLaunch]:
        """Commands that failed before their first step, in the order of the file."""
        if self._launch is None or not self._has_launch_failed:
            return self._failed_launches
        return [*self._failed_launches, self._launch._replace(setup=self.setup.build())]

    def build(self, name: str, ends_mid_line: bool) -> RunLog:
        """All that was read so far as one; `split_runs` makes runs of it. Does not change the builder."""
        numbers = self.iteration_by_count or {}
        evals = [
            replace(one, iteration=self.iteration_by_eval_line.get(one.line, numbers.get(at or 0, at)))
            if numbers and ((at := one.iteration) is not None or one.line in self.iteration_by_eval_line)
            else one
            for one in self._evals
        ]
        steps, left_out = self._rows.build(
            eval_or_save_iterations(self.trainer, self._evals, self._checkpoints)
        )
        if self.summary_lines:
            rows = ~np.isin(steps.line, self.summary_lines)
            steps = Steps(**{name: column[rows] for name, column in steps.columns().items()})
        if not self.has_step_times:
            steps = replace(steps, ms=np.full(len(steps), np.nan))
        trainer = self.trainer
        if trainer.reads_any_log and not left_out and (between := times_between(steps)) is not None:
            steps, trainer = between, replace(trainer, step_time_is_interval_mean=True)
        if numbers:
            counts = steps.iteration.tolist()
            iteration = np.array([numbers.get(count, count) for count in counts], dtype=np.int64)
            steps = replace(steps, iteration=iteration)
        setup_at_end = self._setup_at_end or self._setup_at_first_step or self.setup
        setups = [*self._setups, setup_at_end.merged_with(self.setup)]
        built: dict[int, LoggedSetup] = {}  # those that segments share, once
        segments = [
            replace(
                segment,
                first_iteration=numbers.get(segment.first_iteration or 0, segment.first_iteration),
                left_out=left_out.get(index, segment.left_out),
                setup=built.get(id(setup)) or built.setdefault(id(setup), setup.build()),
            )
            for index, (segment, setup) in enumerate(zip(self._segments, setups, strict=False))
        ]
        if segments:
            segments[-1] = replace(segments[-1], last_step_line=self._last_step_line)
        return clamped(
            RunLog(
                trainer=trainer,
                name=name,
                steps=steps,
                evals=tuple(evals),
                checkpoints=tuple(self._checkpoints),
                segments=tuple(segments) or (LoggedProcess(has_startup=self._process_announced),),
                events=tuple(self._events),
                event_counts=dict(self._event_counts),
                setup=setups[-1].build(),
                has_iteration_numbers=self.iteration_by_count is None or bool(numbers),
                last_step_line=self._last_step_line,
                process_start_lines=tuple(self._start_lines),
                failed_start_line=self._failed_start_line,
                is_excerpt=self.is_excerpt,
                ends_mid_line=ends_mid_line,
                last_partial_iteration=self.partial_iteration,
                iterations_done=self.iterations_done,
                stamps=self.stamps.build(),
                metrics=self._metrics.series(self.iteration_by_count),
                notes=tuple(self.notes),
            )
        )
