"""A History in the making: a grammar tells it what the lines say, in their order."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from glassgpt.config import ConfigValue
from glassgpt.runs.run_log import (
    EventKind,
    LogEvent,
    LoggedCheckpoint,
    LoggedEvaluation,
    LoggedSetup,
    RunLog,
    Segment,
    Steps,
    ValMetric,
)
from glassgpt.runs.trainer import Trainer

_COLUMNS = ("loss", "ms", "mfu", "lr", "grad_norm", "tokens_per_s")
_MAX_EVENT_CHARS = 2000
_MAX_EVENTS_PER_KIND = 200  # of a kind
MAX_ITERATION = 10**15  # no iteration has a larger number, or takes more milliseconds
MAX_LOSS = 1e100  # more is as good as infinite, and squares of it are


@dataclass
class SetupBuilder:
    """What the log says about the run, gathered line by line; the last word counts."""

    settings: dict[str, ConfigValue] = field(default_factory=dict)
    values: dict[str, int | float | str | None] = field(default_factory=dict)  # fields of Setup
    decayed_parameters: int | None = None  # parameters in the optimizer's groups, which are printed apart
    undecayed_parameters: int | None = None
    trainable_parameters: int = 0
    frozen_parameters: int = 0

    def build(self) -> LoggedSetup:
        groups = (self.decayed_parameters or 0) + (self.undecayed_parameters or 0)
        said = {"trained_parameters": groups or None} | self.values
        return LoggedSetup(settings=dict(self.settings), **said)  # type: ignore[arg-type]

    def merged_with(self, later: SetupBuilder) -> SetupBuilder:
        """These, and what only the later ones say: a script that runs afterwards introduces itself too."""
        return SetupBuilder(
            later.settings | self.settings,
            later.values | self.values,
            self.decayed_parameters if self.decayed_parameters is not None else later.decayed_parameters,
            self.undecayed_parameters
            if self.undecayed_parameters is not None
            else later.undecayed_parameters,
        )

    def copy(self) -> SetupBuilder:
        return replace(self, settings=dict(self.settings), values=dict(self.values))


class RunBuilder:
    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.setup = SetupBuilder()
        self._setup_at_first_step: SetupBuilder | None = None  # as they were when its first iteration came
        self.has_quoted_lines = False  # lines are quoted in a text, maybe out of order
        self.line = 0
        self.partial_iteration: int | None = None  # an iteration of whose line there is only a piece
        self.fence_count = 0  # of a text that quotes a log: odd inside a code block
        # For a trainer whose lines only count: line -> iteration. Empty: nothing tells.
        self.iteration_by_count: dict[int, int] | None = None
        # Flat, a row after the other: a log may have millions.
        self._row_keys = array("q")  # iteration, segment
        self._rows = array("d")  # _COLUMNS
        self._has_loss = array("b")
        self._segments: list[Segment] = []
        self._evals: list[LoggedEvaluation] = []
        self._counts: Counter[EventKind] = Counter()
        self._saves: list[LoggedCheckpoint] = []
        self._events: list[LogEvent] = []
        self._batches: list[tuple[int, int]] = []
        self._in_traceback = False
        self._process_announced = False  # a new process has introduced itself
        self._start_lines: list[int] = []
        self._failed_start_line: int | None = None  # where the first one since the last iteration did
        self._process_resumes = False
        self._segment_steps = 0  # in the current segment
        self._last_iteration: int | None = None  # iteration of the current segment
        self._last_step_line = 0
        self._last_step_fence = 0
        self._fences_with_steps: set[int] = set()  # with lines about iterations in them
        self._last_eval_iteration: int | None = None  # of the current segment
        # For the next iteration to tell their number: what, an offset, the block of the text.
        self._unnumbered: list[tuple[LoggedEvaluation | LoggedCheckpoint, int, int]] = []

    # --- what lines say ---

    def start_process(self, resumed: bool = False, silently: bool = False) -> None:
        """A process introduces itself; what follows belongs to it.

        One that does not go on with the last one's work has its own settings, unless it begins `silently`.
        """
        if self._segment_steps and not self._process_announced and not resumed and not silently:
            self.setup = SetupBuilder()
        if not silently:
            self._start_lines.append(self.line)
            self.mark_process_start()
        self._process_announced = True
        self._process_resumes = self._process_resumes or resumed

    def mark_process_start(self) -> None:
        """Another process was started: what befalls it from here on is not the last one's."""
        if self._failed_start_line is None and self.has_steps and not self.has_quoted_lines:
            self._failed_start_line = self.line

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
        """`line`: where it was, if that is not the line being read."""
        if iteration > MAX_ITERATION:
            return
        if (
            self._last_iteration is not None
            and not self._process_announced
            and iteration == self._last_iteration
            and self._segment_steps
        ):
            return  # another rank says it too
        self._enter_segment(iteration)
        if self._unnumbered:
            self._assign_iteration(iteration)
        if not self._segment_steps:
            self._setup_at_first_step = self.setup.copy()
            tokens = self.setup.build().tokens_per_iteration
            self._segments[-1] = replace(self._segments[-1], tokens_per_iteration=tokens)
        self._row_keys.extend((iteration, len(self._segments) - 1))
        self._has_loss.append(loss is not None)
        if not 0 <= ms <= MAX_ITERATION:
            ms = math.nan  # nobody has waited that long; and a clock that was set back says nothing
        if loss is not None and abs(loss) > MAX_LOSS:
            loss = math.copysign(math.inf, loss)
        self._rows.extend((math.nan if loss is None else loss, ms, mfu, lr, grad_norm, tokens_per_s))
        self._last_iteration = iteration
        self._segment_steps += 1
        self._last_step_line = self.line if line is None else line
        self._failed_start_line = None
        self._last_step_fence = self.fence_count
        self._fences_with_steps.add(self.fence_count)

    def add_eval(
        self,
        iteration: int | None,
        val_loss: float | None = None,
        train_loss: float | None = None,
        ms: float | None = None,
        metric: ValMetric = "loss",
    ) -> None:
        if iteration is not None and iteration > MAX_ITERATION:
            return
        if ms is not None and not 0 <= ms <= MAX_ITERATION:
            ms = None  # nobody has waited that long
        if iteration is not None:
            self._enter_segment(iteration)
            self._last_eval_iteration = iteration
        elif not self._segments:
            self._open_segment(self.trainer.first_iteration)
        segment = max(0, len(self._segments) - 1)
        done = LoggedEvaluation(iteration, segment, val_loss, train_loss, ms, metric=metric)
        if self._evals and _same_moment(self._evals[-1], done):
            done = _merged(self._evals.pop(), done)
        elif done in self._evals[-1:] and iteration is not None:
            return  # another rank says it too
        self._evals.append(done)

    def add_batch_size(self, iteration: int, sequences: int) -> None:
        """The global batch of that iteration."""
        if not self._batches or self._batches[-1][1] != sequences:
            self._batches.append((iteration, sequences))

    def add_eval_before_next_step(self, val_loss: float | None, offset: int = 0) -> None:
        """The next iteration's line tells the number; `offset` is added to it."""
        self._unnumbered.append((LoggedEvaluation(None, 0, val_loss), offset, self.fence_count))

    def add_save(self, iteration: int | None = None) -> None:
        """Without a number: at the evaluation just made, or else in the iteration whose line comes next."""
        evaluation = self._evals[-1] if self._evals else None
        if iteration is None and evaluation and not self._done_since(evaluation):
            iteration = evaluation.iteration
        if iteration is not None and iteration > MAX_ITERATION:
            return
        if iteration is None:
            self._unnumbered.append((LoggedCheckpoint(None, 0), 0, self.fence_count))
        elif not self._saves or self._saves[-1].iteration != iteration or self._process_announced:
            self._saves.append(LoggedCheckpoint(iteration, max(0, len(self._segments) - 1)))

    def drop_unnumbered_saves(self) -> None:
        """They were another run's."""
        self._unnumbered = [entry for entry in self._unnumbered if not isinstance(entry[0], LoggedCheckpoint)]

    def add_save_at_last_step(self) -> None:
        self.add_save(self._last_iteration)

    def add_event(self, kind: EventKind, text: str) -> None:
        if self.has_quoted_lines and (self.fence_count % 2 == 0 or self.fence_count != self._last_step_fence):
            return  # the text says so, about anything
        self._counts[kind] += 1
        self._in_traceback = kind == "traceback" and self._counts[kind] <= _MAX_EVENTS_PER_KIND
        if self._counts[kind] <= _MAX_EVENTS_PER_KIND:
            self._events.append(
                LogEvent(kind, text.strip()[:_MAX_EVENT_CHARS], self.line, self._last_iteration)
            )

    @property
    def has_steps(self) -> bool:
        return bool(self._rows)

    @property
    def non_step_count(self) -> int:
        """How many evaluations, saves and events there are."""
        return len(self._evals) + len(self._saves) + len(self._unnumbered) + self._counts.total()

    @property
    def in_traceback(self) -> bool:
        """One has begun, and its exception has not come yet."""
        return self._in_traceback

    def set_exception(self, text: str) -> None:
        """The last line of a traceback says what it is about."""
        at = max(index for index, event in enumerate(self._events) if event.kind == "traceback")
        said = f"{self._events[at].text} {text.strip()}"[:_MAX_EVENT_CHARS]
        self._events[at] = replace(self._events[at], text=said)
        self._in_traceback = False

    @property
    def is_excerpt(self) -> bool:
        """The text quotes pieces; a whole log in one code block is none."""
        return self.has_quoted_lines and (
            len(self._fences_with_steps) > 1 or any(block % 2 == 0 for block in self._fences_with_steps)
        )

    @property
    def is_resuming(self) -> bool:
        """A process has said that it resumes, and nothing more yet."""
        return self._process_resumes

    @property
    def last_iteration(self) -> int | None:
        """The iteration of the latest line of this process."""
        return self._last_iteration if self._segment_steps and not self._process_announced else None

    @property
    def last_val_loss(self) -> float | None:
        """The latest validation loss."""
        return self._evals[-1].val_loss if self._evals else None

    @property
    def last_step_columns(self) -> frozenset[str]:
        """What the latest line said, of loss and ms."""
        if not self._rows:
            return frozenset()
        ms = self._rows[_COLUMNS.index("ms") - len(_COLUMNS)]
        return frozenset(("loss",) * self._has_loss[-1] + ("ms",) * (not math.isnan(ms)))

    # --- segments ---

    def _enter_segment(self, iteration: int) -> None:
        """A new segment where a process introduced itself, or where the numbers go back."""
        known = self._last_iteration if self._segment_steps else self._last_eval_iteration
        goes_back = known is not None and iteration < known
        if not self._segments or goes_back or (self._process_announced and self._segment_steps):
            if self._last_iteration is not None:  # what waited there for a next iteration, which never came
                self._assign_iteration(self._last_iteration + 1, self._last_step_fence)
            self._open_segment(iteration)
        elif self._process_announced:  # it evaluated before; only the news that it is a resume may be late
            self._segments[-1] = replace(self._segments[-1], has_startup=True, resumed=self._process_resumes)
            self._process_announced = self._process_resumes = False

    def _open_segment(self, iteration: int) -> None:
        starts = self._process_announced or bool(self._segments) or iteration <= self.trainer.first_iteration
        self._segments.append(Segment(starts, self._process_resumes, iteration))
        self._process_announced = self._process_resumes = False
        self._segment_steps, self._last_iteration, self._last_eval_iteration = 0, None, None

    def _assign_iteration(self, iteration: int, block: int | None = None) -> None:
        """Give what waits its number; `block`: only what stands in that one."""
        settled = [entry for entry in self._unnumbered if block in (None, entry[2])]
        self._unnumbered = [entry for entry in self._unnumbered if entry not in settled]
        for item, offset, _ in settled:
            item = replace(item, iteration=iteration + offset, segment=len(self._segments) - 1)
            if isinstance(item, LoggedCheckpoint):
                self._saves.append(item)
            elif item not in self._evals[-1:]:  # else another rank said it too
                self._evals.append(item)

    def _done_since(self, evaluation: LoggedEvaluation) -> bool:
        """Whether an iteration past this evaluation's was logged."""
        if evaluation.iteration is None or evaluation.segment != len(self._segments) - 1:
            return True
        return self._last_iteration is not None and self._last_iteration > evaluation.iteration

    # --- the whole ---

    def build(self, name: str, torn: bool, final: bool = True) -> RunLog:
        """`final`: nothing more comes, so what waits for a next iteration has to do without."""
        if final:
            self._assign_iteration(
                self._last_iteration + 1 if self._last_iteration is not None else self.trainer.first_iteration
            )
        evals, metric = _in_one_metric(self._numbered(self._evals))
        return RunLog(
            trainer=self.trainer,
            name=name,
            steps=self._steps(),
            evals=tuple(evals),
            saves=tuple(self._saves),
            segments=tuple(self._segments) or (Segment(has_startup=self._process_announced),),
            events=tuple(self._events),
            event_counts=dict(self._counts),
            setup=(self._setup_at_first_step or self.setup).merged_with(self.setup).build(),
            val_metric=metric,
            numbered=self.iteration_by_count is None or bool(self.iteration_by_count),
            last_step_line=self._last_step_line,
            process_start_lines=tuple(self._start_lines),
            failed_start_line=self._failed_start_line,
            is_excerpt=self.is_excerpt,
            ends_mid_line=torn,
            last_partial_iteration=self.partial_iteration,
            batch_size_changes=tuple(self._batches),
        )

    def _steps(self) -> Steps:
        numbers = self.iteration_by_count or {}
        # Views, for copying the columns out; they must be gone before the arrays can grow again.
        places = np.frombuffer(self._row_keys, dtype=np.int64).reshape(-1, 2)
        rows = np.frombuffer(self._rows, dtype=float).reshape(-1, len(_COLUMNS))
        told = places[:, 0] if not numbers else [numbers.get(count, count) for count in places[:, 0].tolist()]
        return Steps(
            iteration=np.array(told, dtype=np.int64),
            segment=places[:, 1].copy(),
            has_loss=np.array(self._has_loss, dtype=bool),
            **{name: rows[:, index].copy() for index, name in enumerate(_COLUMNS)},
        )

    def _numbered(self, evals: list[LoggedEvaluation]) -> list[LoggedEvaluation]:
        numbers = self.iteration_by_count
        if not numbers:
            return evals
        return [replace(done, iteration=numbers.get(done.iteration or 0, done.iteration)) for done in evals]


def _in_one_metric(evals: list[LoggedEvaluation]) -> tuple[list[LoggedEvaluation], ValMetric]:
    """A log of several stages may have two. The one of most evaluations counts."""
    if not evals:
        return [], "loss"
    metric = Counter(done.metric for done in evals).most_common(1)[0][0]
    return [done if done.metric == metric else replace(done, val_loss=None) for done in evals], metric


def _same_moment(old: LoggedEvaluation, new: LoggedEvaluation) -> bool:
    """Two lines about one evaluation: each says what the other does not."""
    return (
        old.iteration is not None
        and (old.iteration, old.segment) == (new.iteration, new.segment)
        and (old.val_loss is None or new.val_loss is None)
        and (old.train_loss is None or new.train_loss is None)
    )


def _merged(old: LoggedEvaluation, new: LoggedEvaluation) -> LoggedEvaluation:
    return replace(
        old,
        val_loss=old.val_loss if new.val_loss is None else new.val_loss,
        train_loss=old.train_loss if new.train_loss is None else new.train_loss,
        ms=old.ms if new.ms is None else new.ms,
    )
