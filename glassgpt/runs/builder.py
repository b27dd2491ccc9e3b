"""A History in the making: a grammar tells it what the lines say, in their order."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from glassgpt.config import Value
from glassgpt.runs.run_log import Evaluation, Event, EventKind, History, Metric, Save, Segment, Setup, Steps
from glassgpt.runs.trainer import Trainer

_COLUMNS = ("loss", "ms", "mfu", "lr", "grad_norm", "tokens_per_s")
_LONGEST_EVENT = 2000
_MOST_EVENTS = 200  # of a kind
LARGEST = 10**15  # no iteration has a larger number, or takes more milliseconds
LARGEST_LOSS = 1e100  # more is as good as infinite, and squares of it are


@dataclass
class Notes:
    """What the log says about the run, gathered line by line; the last word counts."""

    settings: dict[str, Value] = field(default_factory=dict)
    said: dict[str, int | float | str | None] = field(default_factory=dict)  # fields of Setup
    decayed: int | None = None  # parameters in the optimizer's groups, which are printed apart
    undecayed: int | None = None
    trainable: int = 0
    frozen: int = 0

    def setup(self) -> Setup:
        groups = (self.decayed or 0) + (self.undecayed or 0)
        said = {"trained_parameters": groups or None} | self.said
        return Setup(settings=dict(self.settings), **said)  # type: ignore[arg-type]

    def over(self, later: Notes) -> Notes:
        """These, and what only the later ones say: a script that runs afterwards introduces itself too."""
        return Notes(
            later.settings | self.settings,
            later.said | self.said,
            self.decayed if self.decayed is not None else later.decayed,
            self.undecayed if self.undecayed is not None else later.undecayed,
        )

    def copy(self) -> Notes:
        return replace(self, settings=dict(self.settings), said=dict(self.said))


class Recording:
    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.notes = Notes()
        self._notes_of_run: Notes | None = None  # as they were when its first iteration came
        self.quoted = False  # lines are quoted in a text, maybe out of order
        self.line = 0
        self.begun: int | None = None  # an iteration of whose line there is only a piece
        self.block = 0  # of a text that quotes a log: odd inside a code block
        # For a trainer whose lines only count: line -> iteration. Empty: nothing tells.
        self.numbers: dict[int, int] | None = None
        # Flat, a row after the other: a log may have millions.
        self._places = array("q")  # iteration, segment
        self._rows = array("d")  # _COLUMNS
        self._has_loss = array("b")
        self._segments: list[Segment] = []
        self._evals: list[Evaluation] = []
        self._counts: Counter[EventKind] = Counter()
        self._saves: list[Save] = []
        self._events: list[Event] = []
        self._batches: list[tuple[int, int]] = []
        self._in_traceback = False
        self._announced = False  # a new process has introduced itself
        self._start_lines: list[int] = []
        self._next_start_line: int | None = None  # where the first one since the last iteration did
        self._resumes = False
        self._steps_here = 0  # in the current segment
        self._last: int | None = None  # iteration of the current segment
        self._last_step_line = 0
        self._last_step_block = 0
        self._blocks: set[int] = set()  # with lines about iterations in them
        self._last_eval: int | None = None  # of the current segment
        # For the next iteration to tell their number: what, an offset, the block of the text.
        self._waiting: list[tuple[Evaluation | Save, int, int]] = []

    # --- what lines say ---

    def begins(self, resumed: bool = False, silently: bool = False) -> None:
        """A process introduces itself; what follows belongs to it.

        One that does not go on with the last one's work has its own settings, unless it begins `silently`.
        """
        if self._steps_here and not self._announced and not resumed and not silently:
            self.notes = Notes()
        if not silently:
            self._start_lines.append(self.line)
            self.commanded()
        self._announced = True
        self._resumes = self._resumes or resumed

    def commanded(self) -> None:
        """Another process was started: what befalls it from here on is not the last one's."""
        if self._next_start_line is None and self.has_steps and not self.quoted:
            self._next_start_line = self.line

    def step(
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
        if iteration > LARGEST:
            return
        if self._last is not None and not self._announced and iteration == self._last and self._steps_here:
            return  # another rank says it too
        self._turn_to(iteration)
        if self._waiting:
            self._settle(iteration)
        if not self._steps_here:
            self._notes_of_run = self.notes.copy()
            tokens = self.notes.setup().tokens_per_iteration
            self._segments[-1] = replace(self._segments[-1], tokens_per_iteration=tokens)
        self._places.extend((iteration, len(self._segments) - 1))
        self._has_loss.append(loss is not None)
        if not 0 <= ms <= LARGEST:
            ms = math.nan  # nobody has waited that long; and a clock that was set back says nothing
        if loss is not None and abs(loss) > LARGEST_LOSS:
            loss = math.copysign(math.inf, loss)
        self._rows.extend((math.nan if loss is None else loss, ms, mfu, lr, grad_norm, tokens_per_s))
        self._last = iteration
        self._steps_here += 1
        self._last_step_line = self.line if line is None else line
        self._next_start_line = None
        self._last_step_block = self.block
        self._blocks.add(self.block)

    def evaluated(
        self,
        iteration: int | None,
        val_loss: float | None = None,
        train_loss: float | None = None,
        ms: float | None = None,
        metric: Metric = "loss",
    ) -> None:
        if iteration is not None and iteration > LARGEST:
            return
        if ms is not None and not 0 <= ms <= LARGEST:
            ms = None  # nobody has waited that long
        if iteration is not None:
            self._turn_to(iteration)
            self._last_eval = iteration
        elif not self._segments:
            self._open(self.trainer.first_iteration)
        segment = max(0, len(self._segments) - 1)
        done = Evaluation(iteration, segment, val_loss, train_loss, ms, metric=metric)
        if self._evals and _same_moment(self._evals[-1], done):
            done = _merged(self._evals.pop(), done)
        elif done in self._evals[-1:] and iteration is not None:
            return  # another rank says it too
        self._evals.append(done)

    def batch(self, iteration: int, sequences: int) -> None:
        """The global batch of that iteration."""
        if not self._batches or self._batches[-1][1] != sequences:
            self._batches.append((iteration, sequences))

    def evaluated_before_next(self, val_loss: float | None, offset: int = 0) -> None:
        """The next iteration's line tells the number; `offset` is added to it."""
        self._waiting.append((Evaluation(None, 0, val_loss), offset, self.block))

    def saved(self, iteration: int | None = None) -> None:
        """Without a number: at the evaluation just made, or else in the iteration whose line comes next."""
        evaluation = self._evals[-1] if self._evals else None
        if iteration is None and evaluation and not self._done_since(evaluation):
            iteration = evaluation.iteration
        if iteration is not None and iteration > LARGEST:
            return
        if iteration is None:
            self._waiting.append((Save(None, 0), 0, self.block))
        elif not self._saves or self._saves[-1].iteration != iteration or self._announced:
            self._saves.append(Save(iteration, max(0, len(self._segments) - 1)))

    def drop_waiting_saves(self) -> None:
        """They were another run's."""
        self._waiting = [entry for entry in self._waiting if not isinstance(entry[0], Save)]

    def saved_after_last(self) -> None:
        self.saved(self._last)

    def event(self, kind: EventKind, text: str) -> None:
        if self.quoted and (self.block % 2 == 0 or self.block != self._last_step_block):
            return  # the text says so, about anything
        self._counts[kind] += 1
        self._in_traceback = kind == "traceback" and self._counts[kind] <= _MOST_EVENTS
        if self._counts[kind] <= _MOST_EVENTS:
            self._events.append(Event(kind, text.strip()[:_LONGEST_EVENT], self.line, self._last))

    @property
    def has_steps(self) -> bool:
        return bool(self._rows)

    @property
    def happened(self) -> int:
        """How many evaluations, saves and events there are."""
        return len(self._evals) + len(self._saves) + len(self._waiting) + self._counts.total()

    @property
    def in_traceback(self) -> bool:
        """One has begun, and its exception has not come yet."""
        return self._in_traceback

    def name_exception(self, text: str) -> None:
        """The last line of a traceback says what it is about."""
        at = max(index for index, event in enumerate(self._events) if event.kind == "traceback")
        said = f"{self._events[at].text} {text.strip()}"[:_LONGEST_EVENT]
        self._events[at] = replace(self._events[at], text=said)
        self._in_traceback = False

    @property
    def excerpts(self) -> bool:
        """The text quotes pieces; a whole log in one code block is none."""
        return self.quoted and (len(self._blocks) > 1 or any(block % 2 == 0 for block in self._blocks))

    @property
    def resuming(self) -> bool:
        """A process has said that it resumes, and nothing more yet."""
        return self._resumes

    @property
    def last(self) -> int | None:
        """The iteration of the latest line of this process."""
        return self._last if self._steps_here and not self._announced else None

    @property
    def validated(self) -> float | None:
        """The latest validation loss."""
        return self._evals[-1].val_loss if self._evals else None

    @property
    def last_had(self) -> frozenset[str]:
        """What the latest line said, of loss and ms."""
        if not self._rows:
            return frozenset()
        ms = self._rows[_COLUMNS.index("ms") - len(_COLUMNS)]
        return frozenset(("loss",) * self._has_loss[-1] + ("ms",) * (not math.isnan(ms)))

    # --- segments ---

    def _turn_to(self, iteration: int) -> None:
        """A new segment where a process introduced itself, or where the numbers go back."""
        known = self._last if self._steps_here else self._last_eval
        goes_back = known is not None and iteration < known
        if not self._segments or goes_back or (self._announced and self._steps_here):
            if self._last is not None:  # what waited there for a next iteration, which never came
                self._settle(self._last + 1, self._last_step_block)
            self._open(iteration)
        elif self._announced:  # it evaluated before; only the news that it is a resume may be late
            self._segments[-1] = replace(self._segments[-1], starts=True, resumed=self._resumes)
            self._announced = self._resumes = False

    def _open(self, iteration: int) -> None:
        starts = self._announced or bool(self._segments) or iteration <= self.trainer.first_iteration
        self._segments.append(Segment(starts, self._resumes, iteration))
        self._announced = self._resumes = False
        self._steps_here, self._last, self._last_eval = 0, None, None

    def _settle(self, iteration: int, block: int | None = None) -> None:
        """Give what waits its number; `block`: only what stands in that one."""
        settled = [entry for entry in self._waiting if block in (None, entry[2])]
        self._waiting = [entry for entry in self._waiting if entry not in settled]
        for item, offset, _ in settled:
            item = replace(item, iteration=iteration + offset, segment=len(self._segments) - 1)
            if isinstance(item, Save):
                self._saves.append(item)
            elif item not in self._evals[-1:]:  # else another rank said it too
                self._evals.append(item)

    def _done_since(self, evaluation: Evaluation) -> bool:
        """Whether an iteration past this evaluation's was logged."""
        if evaluation.iteration is None or evaluation.segment != len(self._segments) - 1:
            return True
        return self._last is not None and self._last > evaluation.iteration

    # --- the whole ---

    def history(self, name: str, torn: bool, final: bool = True) -> History:
        """`final`: nothing more comes, so what waits for a next iteration has to do without."""
        if final:
            self._settle(self._last + 1 if self._last is not None else self.trainer.first_iteration)
        evals, metric = _in_one_metric(self._numbered(self._evals))
        return History(
            trainer=self.trainer,
            name=name,
            steps=self._steps(),
            evals=tuple(evals),
            saves=tuple(self._saves),
            segments=tuple(self._segments) or (Segment(starts=self._announced),),
            events=tuple(self._events),
            counts=dict(self._counts),
            setup=(self._notes_of_run or self.notes).over(self.notes).setup(),
            val_metric=metric,
            numbered=self.numbers is None or bool(self.numbers),
            last_step_line=self._last_step_line,
            start_lines=tuple(self._start_lines),
            next_start_line=self._next_start_line,
            quoted=self.excerpts,
            torn=torn,
            begun=self.begun,
            batches=tuple(self._batches),
        )

    def _steps(self) -> Steps:
        numbers = self.numbers or {}
        # Views, for copying the columns out; they must be gone before the arrays can grow again.
        places = np.frombuffer(self._places, dtype=np.int64).reshape(-1, 2)
        rows = np.frombuffer(self._rows, dtype=float).reshape(-1, len(_COLUMNS))
        told = places[:, 0] if not numbers else [numbers.get(count, count) for count in places[:, 0].tolist()]
        return Steps(
            iteration=np.array(told, dtype=np.int64),
            segment=places[:, 1].copy(),
            has_loss=np.array(self._has_loss, dtype=bool),
            **{name: rows[:, index].copy() for index, name in enumerate(_COLUMNS)},
        )

    def _numbered(self, evals: list[Evaluation]) -> list[Evaluation]:
        numbers = self.numbers
        if not numbers:
            return evals
        return [replace(done, iteration=numbers.get(done.iteration or 0, done.iteration)) for done in evals]


def _in_one_metric(evals: list[Evaluation]) -> tuple[list[Evaluation], Metric]:
    """A log of several stages may have two. The one of most evaluations counts."""
    if not evals:
        return [], "loss"
    metric = Counter(done.metric for done in evals).most_common(1)[0][0]
    return [done if done.metric == metric else replace(done, val_loss=None) for done in evals], metric


def _same_moment(old: Evaluation, new: Evaluation) -> bool:
    """Two lines about one evaluation: each says what the other does not."""
    return (
        old.iteration is not None
        and (old.iteration, old.segment) == (new.iteration, new.segment)
        and (old.val_loss is None or new.val_loss is None)
        and (old.train_loss is None or new.train_loss is None)
    )


def _merged(old: Evaluation, new: Evaluation) -> Evaluation:
    return replace(
        old,
        val_loss=old.val_loss if new.val_loss is None else new.val_loss,
        train_loss=old.train_loss if new.train_loss is None else new.train_loss,
        ms=old.ms if new.ms is None else new.ms,
    )
