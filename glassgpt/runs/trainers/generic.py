"""Any other trainer whose lines have an iteration or an epoch, and a loss.

    Step 100/5000, Loss: 2.3456, LR: 3e-4, Time: 0.21s
    {"step": 200, "loss": 3.21}
    Training:  20%|##        | 200/1000 [00:10<00:40, 19.8it/s, loss=3.21]
    Epoch 3/10 | train loss 3.21 | val loss 3.30
    [Val] Epoch 3: Loss=3.30, Accuracy=0.31

One idea reads them all. fields.py takes a line apart into numbers and what each is, line_losses.py says which
of them are its losses. Then a line is one of a few things, by the fields that it has:

    a count and a training loss       a step; with a validation loss, an evaluation too
    an epoch and a training loss      an iteration, where nothing else is counted; else a summary
    a validation loss                 an evaluation, at the count of the line, or of the title or step before
    a count, an epoch or a split      a title: the losses on the next lines belong to it
    words alone                       a save, or the end

What the lines before said decides the rest: where lines count the batches of an epoch, all epochs' batches
are counted. Nothing is assumed: a loss without a count, and the best loss so far, are no steps and no
evaluations. A validation loss that lines repeat was made once. Forms that no fields describe are declared.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from glassgpt.i18n import say
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.exit_status import spent_seconds
from glassgpt.runs.fields import SPLITS, Field, Line, read_line, step_values
from glassgpt.runs.line_losses import LossFinder, mean_loss
from glassgpt.runs.log_numbers import MAX_COUNT, loss_of_perplexity
from glassgpt.runs.metric_columns import metric_of, role_of
from glassgpt.runs.progress_bar import BAR_CLOCK, BarStep, ProgressBar, bar_seconds
from glassgpt.runs.run_log import ValMetric
from glassgpt.runs.save_lines import read_save, save_begins
from glassgpt.runs.step_clock import StepClock, parse_clock, stamp_seconds
from glassgpt.runs.step_form import StepForm
from glassgpt.runs.step_line import add_values
from glassgpt.runs.trainer import Trainer

# --- what words alone say, in lower case ---

_EPOCH_END = re.compile(
    r"\bend[- _]of[- _]epoch\W{0,4}(\d{1,9})\b|\bepoch\W{1,4}(\d{1,9})(?:\s*/\s*\d{1,9})?\W{1,4}"
    r"(?:is |was )?(?:done|complete|completed|finished|ended|over)\b"
)
_END = re.compile(
    r"^\W*(?:info [\d: -]{10,30})?(?:[\w.]{1,40}\.py:\d{1,6} )?"
    r"(?:end of training|(?:training|fine-?tuning) (?:is |has )?(?:completed?|finished|done)"
    r"|(?:finished|completed|done) training"
    r"|(?:\w{1,20} ){0,2}(?:finished|completed|done)(?: \S{1,60})? in [\d.:]{1,12}\s?"
    r"(?:[smh]|sec(?:ond)?s?|min(?:ute)?s?|hours?))\b",
)
_TARGET = re.compile(
    r"\btarget (?:\w{1,20} )?loss\b.{0,40}\b(?:reached|achieved|met)\b(?:.{0,20}\bstep (\d{1,12}))?"
)
_AT_START = re.compile(r"^\W*(?:(?:at |the )*start of training|before training|initial(?:ly)?)\b\D{1,40}\d")
_EARLIER = re.compile(r"\b(?:resum(?:ed|ing)|restor(?:ed|ing)|load(?:ed|ing)|early stop(?:ped|ping)?)\b")
# Before a validation loss without a count: it is of an earlier evaluation, or of none.
_NOT_NOW = re.compile(
    r"\b(?:best|lowest|min|minimum|prev|previous|last|target|threshold|patience|expected|from"
    r"|load\w*|resum\w*|restor\w*|sav\w*|stop\w*|improv\w*|if|when|until)\b"
)
_TITLE_WORDS = {
    *SPLITS, "epoch", "step", "iter", "iteration", "ep", "result", "results", "summary", "metrics", "report",
    "starting", "start", "begin", "of", "complete", "completed", "done", "finished", "end", "time", "taken",
    "lr", "learning", "rate", "running", "at", "after", "phase", "losses", "loss", "perplexity",
}  # fmt: skip
_MAX_TITLE_WORDS = 6

_GLOBAL = re.compile(r"global[ _]step|num_updates", re.IGNORECASE)  # of the run, whatever else is counted
_EPOCH_OVER_BATCH = re.compile(r"\b(TRAIN|CV) Batch (\d{1,9})/(\d{1,9})(?= loss )")  # as WeNet prints them
_OF_BATCHES = re.compile(r"\b(\d{1,9})epoch:(train|valid):\d{1,9}-(\d{1,9})batch: ")  # as ESPnet does
_SCORE = re.compile(r"\bScore at iteration (\d{1,12}) is (?=[-\d])")  # as Deeplearning4j does
_CELL = re.compile(r"[-+]?[\d.]{1,25}(?:e[-+]?\d{1,3})?|nan|-?inf|[\d:]{4,12}", re.IGNORECASE)
_SCALES = {"k": 1000, "m": 1_000_000}
_BATCH = re.compile(r"\bglobal[ _]batch[ _]size\b\W{1,8}(\d{1,9})\b", re.IGNORECASE)

# Lines of one form, that the reader has to read before it learns a form anew: compiling one is slow.
_LINES_PER_FORM, _MAX_PATTERNS = 32, 64
_MAX_STAMP_ERROR_S = 1.0  # of two stamps in whole seconds
_TIME_OF_DAY = re.compile(r"\b\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?")
_MIN_UNCOUNTED, _MAX_UNCOUNTED = 3, 10_000  # lines without a count, before one with it
_MIN_INTERVALS = 3  # so many times of intervals: all are


class _Epoch(NamedTuple):
    """A line that counts epochs only."""

    number: int
    planned: int | None
    loss: Field
    val_loss: Field | None
    line: Line
    at: int  # its number in the file
    seconds: float = math.nan  # by the progress bars before the line


class _Uncounted(NamedTuple):
    """A line of an epoch that says no batch, after one that does."""

    epoch: Field
    loss: Field
    line: Line
    at: int  # its number in the file
    clock: str


class GenericReader:
    """Keeps track of the epoch: where lines count within an epoch, earlier epochs' iterations are added."""

    def __init__(self) -> None:
        self.form: StepForm | None = None  # of the latest lines: see step_form.py
        self._patterns: set[str] = set()  # of the forms so far
        self._lines_since_form = 0
        self._epoch: int | None = None
        self._epoch_between: int | None = None  # by the latest line between steps
        self._epoch_begun: int | None = None  # the same, when the count began
        self._planned_epochs: int | None = None
        self._earlier_iterations, self._first_epoch = 0, 0  # of the epochs that are over, and the first
        self._last_iteration = 0  # as the latest line counts
        self._first_epoch = 1  # how they are counted
        self._first_batch = 1
        self._batches = 0  # of an epoch, where lines say it
        self._evaluated_at: int | None = None
        self._losses = LossFinder()
        self._val_lines = self._val_changes = 0  # steps with a validation loss; with another than before
        self._val_loss: Field | None = None  # of the step's line that is being read
        self._clock: StepClock | None = None  # where lines say the time since the start
        self._counts_epochs = True  # no line has had a step so far
        self._held: _Epoch | None = None  # the first one: a summary, if steps follow
        self._title: Field | None = None  # the count that the next losses are of
        self._gap: int | None = None  # between the steps of two lines, as they say it
        self._latest_clock_s: float | None = None  # of the latest step, where its line says a time too
        self._intervals = 0  # lines whose time was that since the line before, by their stamps
        self._count = 0  # of lines that count no updates: samples, or epochs several times
        self._uncounted: list[_Uncounted] = []  # of this epoch, until a count shows what they are
        self._are_batches = False  # these lines: one each
        self._counted_lines = 0, 0  # that are batches: their epoch, how many so far
        self._names: list[str] = []  # of the columns of a table
        self._count_line = ""  # the line before, where it has a count and no loss

        self._bar = ProgressBar()
        self._epoch_bars: tuple[int, dict[str, float]] = 0, {}  # seconds of an epoch's, without a loss

    # --- what a line is ---

    def __call__(self, text: str, builder: RunBuilder) -> bool:
        if " Batch " in text:
            text = _EPOCH_OVER_BATCH.sub(r"\1 epoch \2 batch \3", text, count=1)
        elif "batch: " in text:
            text = _OF_BATCHES.sub(r"\2 epoch \1 batch \3: ", text, count=1)
        elif "Score at iteration " in text:
            text = _SCORE.sub(r"iteration \1 loss ", text, count=1)
        elif self._names or text.lstrip("# ")[:4].lower() in ("epoc", "step", "iter"):
            text = self._with_names(text)
        line, count_line, self._count_line = read_line(text), self._count_line, ""
        if count_line and line.of("loss") and line.of("iteration", "epoch", "batch") is None:
            line = read_line(f"{count_line} | {text}")  # a step on two lines
        text, lower = line.text, line.text.lower()
        loss, val_loss = self._losses.find(line, builder)
        if loss is None and val_loss is None:
            return self._read_words(line, lower, builder)
        first = min(one.span[0] for one in (loss, val_loss, line.of("iteration")) if one is not None)
        if (begin := save_begins(lower)) is not None and begin < first:
            self._read_save(line, lower, builder)  # the loss is that of the weights; a step's comes before
            return False
        if _EARLIER.search(lower, 0, first):
            return False
        if "target" in lower and (match := _TARGET.search(lower)):
            if match[1] and int(match[1]) <= MAX_COUNT:
                builder.iterations_done = int(match[1])
            builder.add_event("finish", text)
            return False
        if loss is None:
            is_eval = val_loss is not None and self._read_eval(line, lower, val_loss, builder)
            if begin is not None:
                self._read_save(line, lower, builder)  # of these weights: `val loss 2.1, saved to best.pt`
            return is_eval
        if val_loss is not None and _AT_START.match(lower):
            self._add_eval(0, val_loss, builder, loss)
            return True
        return self._read_loss(line, loss, val_loss, builder)

    def _with_names(self, text: str) -> str:
        """A row of a table whose columns are apart by blanks, as fastai and numpy print it, with names."""
        cells = text.lstrip("# ").split()
        if cells and role_of(cells[0]) in ("epoch", "iteration"):
            roles = set(map(role_of, cells))
            is_header = not any(map(_CELL.fullmatch, cells)) and roles & {"loss", "val_loss"}
            self._names = cells if is_header else []
        elif self._names and len(cells) == len(self._names) and all(map(_CELL.fullmatch, cells)):
            return " | ".join(f"{name} {cell}" for name, cell in zip(self._names, cells, strict=True))
        return text

    def _read_words(self, line: Line, lower: str, builder: RunBuilder) -> bool:
        """A line without a loss: a save, the end, a title, a bar, or a perplexity."""
        bar, of_bar = BAR_CLOCK.search(line.text) if "100%|" in line.text else None, line.of("epoch")
        if bar and bar[1] == bar[2] and of_bar is not None and of_bar.is_count:
            seconds = self._epoch_bars[1] if of_bar.number == self._epoch_bars[0] else {}
            self._epoch_bars = of_bar.number, seconds | {line.text.partition("%")[0]: bar_seconds(bar[3])}
        is_end = _END.match(lower) or self._ends_last_epoch(lower)
        if is_end:
            self.close(builder)
            builder.add_event("finish", line.text)
            if (wall_s := spent_seconds(line.text)) is not None and builder.has_steps:
                builder.setup.values["wall_s"] = wall_s
        if save_begins(lower) is not None:
            self._read_save(line, lower, builder)
        elif is_end or self._read_title(line):
            return False
        else:
            count = line.of("iteration", "batch")
            self._count_line = line.text if count is not None and count.is_count else ""
            for one in () if self._losses.has_val_loss else line.fields:
                metric = metric_of(one.name) if one.is_metric else None
                splits = {one.split, self._losses.section, "val" if metric and metric.is_eval else ""}
                is_eval = metric and "val" in splits
                if one.role == "val_bpb":
                    return self._read_eval(line, lower, one, builder) or True
                if metric and is_eval and metric.kind == "perplexity":
                    text = str(loss_of_perplexity(one.value))
                    return self._read_eval(line, lower, one._replace(text=text, split=""), builder)
        return False

    def _read_title(self, line: Line) -> bool:
        """A line of nothing but a count, an epoch or a split: what comes next is of it."""
        if not 0 < len(line.words) <= _MAX_TITLE_WORDS:
            return False
        count = line.of("epoch") or line.of("iteration")
        is_epochs = count is not None and count.role == "epoch" and line.words[0] in ("epoch", "ep")
        if is_epochs and line.of("batch") is not None:
            return False  # of a step
        if any(one.is_metric for one in line.fields):
            return False  # a result
        if not (is_epochs or _TITLE_WORDS.issuperset(line.words)):
            return False
        if not is_epochs and any(not (one.role or one.unit or ":" in one.text) for one in line.fields):
            return False
        if (count is not None and count.is_count) or not line.fields:
            self._losses.section = next((SPLITS[word] for word in line.words if word in SPLITS), "")
        if count is not None and count.is_count:
            self._title = count
            self._note_epoch(line)
        return True

    # --- a line with a training loss ---

    def _read_loss(self, line: Line, loss: Field, val_loss: Field | None, builder: RunBuilder) -> bool:
        epoch, batch = line.count_of("epoch"), line.count_of("batch")
        step, title = self._step_or_none(line.count_of("iteration"), builder), self._title
        epoch = epoch if epoch is not None and epoch.is_count else None
        step = step if step is not None and (step.is_count or step.unit in _SCALES) else None
        if "%)]" in line.text and epoch and batch and step is None:
            # Samples of the epoch, not updates: how many of these there were is not known.
            return self._read_uncounted(loss, builder)
        if epoch and not batch and step is None and loss.name.lower() in ("batch loss", "batch_loss"):
            return self._read_uncounted(loss, builder)
        if title is not None and title.role == "iteration":  # amounts: trained 64 micro-batches (32 epochs)
            epoch, batch = (None if one and one.name.lower()[-1:] == "s" else one for one in (epoch, batch))
        is_named = loss.role is not None
        is_other = step is not None and step.is_count and not is_named
        is_after_named = step is not None and (self._losses.has_named_steps or step.split == "val")
        if step is not None and is_other and is_after_named and val_loss:
            self._add_eval(self._earlier_iterations + step.number, val_loss, builder, loss)
            return True
        self._val_loss = val_loss
        is_step = self._read_step_line(line, loss, step, epoch, batch, builder)
        self._val_loss = None
        if is_step:
            self._drop_held(builder)
            self._counts_epochs, self._title, self._losses.section = False, None, ""
            self._losses.has_named_steps |= is_named
            if val_loss is not None:
                self._add_eval_of_line(val_loss, loss, line, builder)
            return True
        if epoch is not None:
            if self._counts_epochs:
                self._read_epoch(epoch, loss, val_loss, line, builder)
            elif val_loss is not None:
                self._last_of_epoch(line.text.lower(), builder)
                self._add_eval_of_line(val_loss, loss, line, builder)
            elif epoch.number == self._epoch or self._are_batches:
                self._read_uncounted_batch(
                    _Uncounted(epoch, loss, line, builder.line, builder.clock), builder
                )
            self._note_epoch(line)
            return True
        if title is not None and title.role == "iteration":
            self._drop_held(builder)
            self._counts_epochs, self._title = False, None
            self._last_iteration = title.number
            self._add_step(title.number, None, loss, line, builder)
            if title.planned:
                builder.setup.values["planned_iterations"] = title.planned
            if val_loss is not None:
                self._add_eval_of_line(val_loss, loss, line, builder)
            return True
        if title is not None and self._counts_epochs:
            self._read_epoch(title, loss, val_loss, line, builder)
            return True
        is_eval = val_loss is not None or (self._losses.names_nothing and not is_named)
        if is_eval and not self._counts_epochs and len(line.words) <= _MAX_TITLE_WORDS:
            self._add_eval(builder.last_iteration, val_loss, builder, loss)
        return is_eval and not is_named

    def _step_or_none(self, step: Field | None, builder: RunBuilder) -> Field | None:
        """The number of `eval 500: val 2.1` is a step, or counts evaluations: then it is behind the steps."""
        is_of_eval = step is not None and step.is_count and step.name.lower() in SPLITS
        if step is None or not is_of_eval or step.number >= max(builder.last_iteration or 0, 2):
            return step
        return step if step.number == 0 and not builder.last_iteration else None

    def _read_uncounted(self, loss: Field, builder: RunBuilder) -> bool:
        self._count += 1
        self._counts_epochs, builder.iteration_by_count = False, {}
        builder.add_step(self._count, loss.value)
        return True

    def _read_uncounted_batch(self, one: _Uncounted, builder: RunBuilder) -> None:
        """Lines that count batches may be few, and those without a count one for each batch. The first of
        them wait until a count equals their number."""
        if not self._are_batches:
            self._uncounted.append(one)
            del self._uncounted[_MAX_UNCOUNTED:]
            return
        epoch, count = self._counted_lines
        self._counted_lines = one.epoch.number, count * (epoch == one.epoch.number) + 1
        number = self._first_batch - 1 + self._counted_lines[1]
        place = one.epoch.span[1]
        batch = one.epoch._replace(
            name="batch", role="batch", text=str(number), span=(place, place), total=str(self._batches or "")
        )
        now = builder.line, builder.clock
        builder.line, builder.clock = one.at, one.clock
        self._read_step_line(one.line, one.loss, None, one.epoch, batch, builder)
        builder.line, builder.clock = now

    def _compare_counts(self, epoch: int, count: int, builder: RunBuilder) -> None:
        """At a line with a count: are the lines before it, which have none, the batches up to it?"""
        if not builder.has_steps:
            self._first_batch = min(count, 1)
        waiting, self._uncounted = self._uncounted, []
        passed = count - self._first_batch
        if self._are_batches or epoch != self._epoch or not passed >= _MIN_UNCOUNTED <= len(waiting):
            return
        self._are_batches = abs(len(waiting) - passed) <= 1
        for one in waiting if self._are_batches else ():
            self._read_uncounted_batch(one, builder)

    def _read_step_line(
        self,
        line: Line,
        loss: Field,
        step: Field | None,
        epoch: Field | None,
        batch: Field | None,
        builder: RunBuilder,
    ) -> bool:
        """Whether the line has a count: then its step is added."""
        if step is not None and step.unit in _SCALES:
            return self._read_rounded(step, loss, line, builder)
        counted = step if step is not None and step.is_count else batch
        if epoch is not None and counted is not None and counted.is_count:
            self._compare_counts(epoch.number, counted.number, builder)
        if step is not None and step.is_count:
            if _GLOBAL.fullmatch(step.name):
                others = [
                    one for one in line.fields
                    if one.role == "iteration" and one.is_count and not _GLOBAL.fullmatch(one.name)
                ]  # fmt: skip
                earlier = step.number - others[0].number if others else 0
                self._earlier_iterations = max(earlier, 0)  # what a line that counts in the epoch only lacks
                self._lines_since_form *= not earlier  # a form has one count
                self._add_step(step.number, step, loss, line, builder)
            else:
                self._read_step(step, loss, epoch, line, builder)
            return True
        if batch is None or not batch.is_count:
            return False
        if epoch is not None and batch.planned and 0 < batch.planned <= MAX_COUNT and epoch.span < batch.span:
            self._read_batch(epoch, batch, loss, line, builder)
        else:
            self._read_step(batch, loss, epoch, line, builder, is_batch=epoch is not None)
        return True

    def _read_rounded(self, step: Field, loss: Field, line: Line, builder: RunBuilder) -> bool:
        """lerobot's `step:1K`. Where exact lines before say the interval, it is the line before plus that."""
        scale, last = _SCALES[step.unit], builder.last_iteration
        if last is None or self._gap is None or not 0 <= step.value <= MAX_COUNT:
            return False  # how many steps are between the lines is not known
        unit, printed = scale / 10 ** len(step.text.partition(".")[2]), round(step.value)
        at = last + self._gap
        if abs(at - printed) > unit:
            if printed <= last:
                return False
            at = printed
        self._last_iteration = at
        self._add_step(at, None, loss, line, builder)
        return True

    def _read_batch(self, epoch: Field, batch: Field, loss: Field, line: Line, builder: RunBuilder) -> None:
        number, count, total = epoch.number, batch.number, batch.planned or 0
        if not builder.has_steps:
            # Batch 8/8 of the first epoch: they count from 1. An epoch 0 shows its own way.
            self._first_epoch, self._first_batch = min(number, 1), min(count, 1)
        self._first_batch = min(count, self._first_batch)
        self._gap = count - self._last_iteration if count > self._last_iteration > 0 else self._gap
        self._last_iteration, self._epoch, self._batches = count, number, total
        iteration = max(number - self._first_epoch, 0) * total + count
        self._earlier_iterations, builder.iterations_done = iteration - count, None
        self._add_step(iteration, batch, loss, line, builder, is_batch=True)
        if epoch.planned is not None:
            is_from_0 = self._first_epoch == 0 and number == epoch.planned
            planned = (epoch.planned - is_from_0) * total - 1 + self._first_batch
            builder.setup.values["planned_iterations"] = min(planned, MAX_COUNT)

    def _read_step(
        self,
        step: Field,
        loss: Field,
        epoch: Field | None,
        line: Line,
        builder: RunBuilder,
        is_batch: bool = False,
    ) -> None:
        printed, total, named = step.number, step.planned, line.of("planned_iterations")
        if total is None and named is not None and named.is_count:
            total = named.number
        if epoch is not None:
            number = epoch.number
            self._planned_epochs = epoch.planned
            # Where the count goes back in the next epoch, it is of the epoch; else it is of the whole run.
            if self._epoch is None or number < self._epoch or builder.last_iteration is None:
                self._earlier_iterations, self._first_epoch = 0, number
            elif number == self._epoch + 1 and printed <= self._last_iteration:
                # Equal where of each epoch only the last line is left; one that counts from 0 has one more.
                is_length = total is not None and total > self._last_iteration
                self._batches = total if is_length and total else 0
                length = total if is_length and total else self._last_iteration + (printed == 0)
                self._earlier_iterations += length
                note = say("log.epoch_length")
                if total is None and self._gap != 1 and note not in builder.notes:
                    builder.notes.append(note)
            self._epoch = number
            if number - self._first_epoch > 1:  # so many are over; of one, the data may be new for a while
                builder.setup.values["epochs"] = float(number - self._first_epoch)
        elif builder.last_iteration is None:
            self._epoch_begun, self._earlier_iterations = self._epoch_between, 0
        elif printed < self._last_iteration and self._epoch_between is not None:
            # The count begins again, and a line has said that another epoch does: else it is another run.
            is_next = self._epoch_begun is None or self._epoch_between > self._epoch_begun
            ends_epoch = total and 2 * self._last_iteration > total  # the last line is near the total
            length = total if ends_epoch and total else self._last_iteration
            length += printed == 0 and self._last_iteration == total  # from 0 to the total: one more
            self._earlier_iterations += length * is_next
            self._earlier_iterations *= is_next
            self._epoch_begun = self._epoch_between
        self._gap = printed - self._last_iteration if printed > self._last_iteration > 0 else self._gap
        builder.iterations_done = None
        self._last_iteration = printed
        self._add_step(self._earlier_iterations + printed, step, loss, line, builder, is_batch)
        if total is None and "%|" in line.text:
            bars = [one for one in line.fields if one.rank == 900 and one.planned and one.is_count]
            bars = [one for one in bars if abs(one.number - printed) <= (one.planned or 0) / 10]
            total = bars[0].planned if bars else None
        if total and total <= MAX_COUNT:
            # A total may be that of an epoch, which shows when the second one begins. Recorded after the
            # step, because the setup at the first step has priority over a later one.
            planned = total if not self._earlier_iterations else None
            if self._planned_epochs not in (None, 1):
                is_of_epoch = self._earlier_iterations and self._planned_epochs
                planned = (self._planned_epochs or 0) * total if is_of_epoch else None
            builder.setup.values["planned_iterations"] = planned

    def _add_step(
        self,
        iteration: int,
        step: Field | None,
        loss: Field,
        line: Line,
        builder: RunBuilder,
        is_batch: bool = False,
        is_new: bool = True,
    ) -> None:
        """`step`: where the line says the iteration, if a form can be learned from it. `is_new`: the line has
        not waited."""
        is_bar = "%|" in line.text
        clock = self._bar.read_clock(line.text, iteration, builder) if is_bar else None
        if is_bar and is_new:
            if self._bar.repeats_loss(BarStep(iteration, step, loss, line, builder.line, is_batch)):
                builder.iterations_done = iteration
                return
            self._release_bar(builder)
        values = step_values(line, is_batch)
        columns = {name: found.value for name, found in values.items()}
        if clock is not None:
            self._bar.measure_step(iteration, clock, columns, builder)
        if columns.get("ms") == 0:  # minGPT's first iteration: not measured
            del columns["ms"]
        elapsed_s, shown, is_stamped = columns.pop("elapsed_s", None), "", False
        if elapsed_s is not None:
            shown = line.text[slice(*values["elapsed_s"].span)]
        elif builder.clock and columns.keys().isdisjoint(("ms", "s", "it_per_s")):
            elapsed_s = stamp_seconds(builder.clock)
            is_stamped = elapsed_s is not None
            shown = ".000" if re.search(r":\d\d[.,]\d", builder.clock) else ""
        if elapsed_s is not None:
            if self._clock is None:
                self._clock = StepClock.of_values([shown])
                builder.trainer = replace(builder.trainer, step_time_is_interval_mean=True)
            columns["ms"] = self._clock.step_ms(iteration, elapsed_s)
        elif "s" in columns and builder.clock and not is_batch:
            columns["s"] = self._time_of_step(columns["s"], iteration, builder)
        add_values(builder, iteration, {"loss": loss.value} | columns)
        if "lobal" in line.text and (batch := _BATCH.search(line.text)):
            builder.add_batch_size(iteration, int(batch[1]))
        if builder.add_metrics(line.metrics, iteration):
            return  # a learned form would leave them out
        self._lines_since_form += 1
        can_be_learned = (
            step is not None
            and step.text.isdecimal()
            and step.span[0] < step.span[1]
            and not is_bar
            and all(found.is_number for found in values.values())
            and not (is_stamped and builder.clock in line.text)
            and not self._intervals
        )
        if self._lines_since_form % _LINES_PER_FORM <= 1 and step is not None and can_be_learned:
            spans = {"iteration": step.span, "loss": loss.span}
            spans |= {name: found.span for name, found in values.items()}
            fixed, offset = _fixed_spans(line), iteration - step.number
            if self._val_loss is not None and self._trained(line, loss) is None and not self._val_loss.unit:
                spans["val_loss"] = self._val_loss.span
                fixed = [span for span in fixed if span != self._val_loss.span]
            form = StepForm.learn(line.text, spans, fixed, offset, is_stamped)
            # The first line of an epoch has the form of all lines before, but for its fixed numbers.
            is_known = form.pattern in self._patterns
            if form != self.form and (is_known or self._lines_since_form >= _LINES_PER_FORM):
                self._lines_since_form, self.form = 0, form
                self._patterns = (
                    {*self._patterns, form.pattern} if len(self._patterns) < _MAX_PATTERNS else set()
                )

    def _release_bar(self, builder: RunBuilder) -> None:
        """Add the steps that the bar has held back."""
        now = builder.line
        for held in self._bar.take_held():
            builder.line = held.at
            self._add_step(
                held.iteration, held.step, held.loss, held.line, builder, held.is_batch, is_new=False
            )
        builder.line = now

    def add_steps(self, columns: dict[str, list[float]], builder: RunBuilder) -> None:
        """Of lines of the form, read together. The times since the start become those of steps."""
        iterations, val_losses = list(map(int, columns["iteration"])), columns.pop("val_loss", None)
        self._last_iteration, self._title = iterations[-1] - self._earlier_iterations, None
        self._lines_since_form = 0
        elapsed_s, clock = columns.pop("elapsed_s", None), self._clock
        goes_on = all(one < other for one, other in pairwise((builder.last_iteration or -1, *iterations)))
        if val_losses is not None and not (goes_on and clock is None):
            for at, value in enumerate(val_losses):  # one by one
                step = {name: column[at] for name, column in columns.items()}
                if elapsed_s is not None and clock is not None:
                    step["ms"] = clock.step_ms(iterations[at], elapsed_s[at])
                builder.line += 1
                builder.add_step(**step)  # type: ignore[arg-type]
                self._add_new_eval(iterations[at], value, None, builder, builder.line)
            return
        if elapsed_s is not None and clock is not None:
            columns["ms"] = list(map(clock.step_ms, iterations, elapsed_s))
        line = builder.line
        builder.add_steps(columns)
        for at, value in enumerate(val_losses or ()):
            self._add_new_eval(iterations[at], value, None, builder, line + 1 + at, is_late=True)

    def _time_of_step(self, seconds: float, iteration: int, builder: RunBuilder) -> float:
        """Where the time of a line equals the gap of the stamps, it is of all iterations since the line
        before."""
        clock, last, before = _TIME_OF_DAY.search(builder.clock), builder.last_iteration, self._latest_clock_s
        self._latest_clock_s = None if clock is None else parse_clock(clock[0])
        if self._latest_clock_s is None or before is None or last is None or iteration <= last:
            return seconds
        gap_s, count = (self._latest_clock_s - before) % 86400, iteration - last
        if abs(gap_s - seconds) <= _MAX_STAMP_ERROR_S and count * seconds > 2 * (gap_s + _MAX_STAMP_ERROR_S):
            self._intervals += 1
            if self._intervals == 1:
                builder.trainer = replace(builder.trainer, step_time_is_interval_mean=True)
            return seconds / count
        return seconds / count if self._intervals >= _MIN_INTERVALS else seconds

    # --- a line that counts epochs ---

    def _read_epoch(
        self, epoch: Field, loss: Field, val_loss: Field | None, line: Line, builder: RunBuilder
    ) -> None:
        held, number, planned = self._held, epoch.number, epoch.planned
        if held is not None and held.number == number and held.loss.value != loss.value:
            # Another loss of the first epoch: a line is a part of an epoch, of unknown length.
            self._count, builder.iteration_by_count = held.number, {}
        self.close(builder)
        if builder.iteration_by_count is not None:
            self._count += 1
            number, planned = self._count, None
        bars, self._epoch_bars = self._epoch_bars[1], (0, {})
        self._held = _Epoch(
            number, planned, loss, val_loss, line, builder.line, sum(bars.values()) or math.nan
        )
        builder.holds_step = True
        if builder.has_steps:
            self.close(builder)

    def close(self, builder: RunBuilder) -> None:
        """The first line that counts epochs is none of the steps that may follow, but of the run's."""
        self._release_bar(builder)
        held, self._held = self._held, None
        if held is None:
            return
        self._count_epochs(builder)
        lr, norm = (
            math.nan if one is None else one.value for one in (held.line.of("lr"), held.line.of("grad_norm"))
        )
        times = {name: found.value for name, found in step_values(held.line).items() if name in ("s", "ms")}
        is_of_step = any("/" in one.unit for one in held.line.fields)  # 12ms/it: not the time of an epoch
        ms = math.nan if is_of_step else times.get("ms", 1000 * times.get("s", held.seconds))
        builder.add_step(held.number, held.loss.value, ms=ms, lr=lr, grad_norm=norm, line=held.at)
        if held.planned and builder.iteration_by_count is None:
            builder.setup.values["planned_iterations"] = held.planned
        builder.release_step(held.number)
        builder.add_metrics(held.line.metrics, held.number)
        if held.val_loss is not None:
            self._losses.has_val_loss |= held.val_loss.split == "val"
            builder.add_eval(held.number, held.val_loss.value, line=held.at)

    def _drop_held(self, builder: RunBuilder) -> None:
        """It was a summary: these lines are the steps."""
        self._held = None
        builder.release_step(None)

    def _count_epochs(self, builder: RunBuilder) -> None:
        if not builder.trainer.iterations_are_epochs and builder.iteration_by_count is None:
            builder.trainer = replace(builder.trainer, iterations_are_epochs=True)
            builder.notes.append(say("table.epochs"))

    def _last_of_epoch(self, lower: str, builder: RunBuilder) -> int | None:
        """The iteration of a line after steps: the latest one's, or that at which the line says its epoch
        ended."""
        end = _EPOCH_END.search(lower) if self._batches and "epoch" in lower else None
        is_end = end is not None and int(end[1] or end[2]) == self._epoch
        # Or the only evaluation since the epoch began, so late that no other line of steps comes.
        is_only = (self._evaluated_at or 0) <= self._earlier_iterations
        gap = self._gap or self._last_iteration
        is_late = is_only and 0 < self._batches - self._last_iteration < gap
        is_again = self._evaluated_at is not None and self._evaluated_at == builder.iterations_done
        if builder.last_iteration is None or not (is_end or is_late or is_again):
            return builder.last_iteration
        builder.iterations_done = self._earlier_iterations + self._batches - 1 + self._first_batch
        return builder.iterations_done

    def _ends_last_epoch(self, lower: str) -> bool:
        match = _EPOCH_END.search(lower) if self._planned_epochs and "epoch" in lower else None
        return match is not None and int(match[1] or match[2]) == self._planned_epochs

    def _note_epoch(self, line: Line) -> None:
        """Of a line between steps, which do not name their epoch."""
        if (epoch := line.of("epoch")) is not None and epoch.is_count:
            self._epoch_between, self._planned_epochs = epoch.number, epoch.planned

    # --- a line with a validation loss and no other ---

    def _read_eval(self, line: Line, lower: str, val_loss: Field, builder: RunBuilder) -> bool:
        step, epoch = self._step_or_none(line.of("iteration"), builder), line.of("epoch")
        last = builder.last_iteration
        val_loss = mean_loss(val_loss, line)
        if step is not None and step.is_count:
            at = step.number + (0 if _GLOBAL.fullmatch(step.name) else self._earlier_iterations)
            self._add_eval(at, val_loss, builder, is_late=last is not None and at < last, line=line)
            return True
        batch = line.of("batch")
        is_part = batch is not None and batch.split != ""  # of the validation
        if is_part or _NOT_NOW.search(lower, 0, val_loss.span[0]) or _END.match(lower):
            return False
        if self._counts_epochs:
            epoch = epoch or self._title
            self.close(builder)
            if epoch is not None and epoch.is_count and builder.iteration_by_count is None:
                if epoch.role == "epoch":
                    self._count_epochs(builder)
                self._add_eval(epoch.number, val_loss, builder, line=line)
                return True
        last = self._last_of_epoch(lower, builder)
        if epoch is not None:
            self._note_epoch(line)
        elif self._title is not None and self._title.role == "iteration":
            last = max(last or 0, self._earlier_iterations + self._title.number)
        if "final" in line.words and val_loss.value == builder.last_val_loss:
            return False  # a summary repeats the last one
        is_alone = len(line.fields) == 1 and len(line.words) <= 4
        is_new = (last, val_loss.value) != (self._evaluated_at, builder.last_val_loss)
        if last is not None and (is_alone or is_new):
            self._add_eval(last, val_loss, builder, line=line)
        return self._losses.names_nothing

    def _add_eval_of_line(self, val_loss: Field, loss: Field, line: Line, builder: RunBuilder) -> None:
        self._losses.has_val_loss |= val_loss.split == "val"
        if builder.last_iteration is not None:
            trained = self._trained(line, loss)
            train_loss = None if trained is None else trained.value
            self._add_new_eval(builder.last_iteration, val_loss.value, train_loss, builder, builder.line)

    def _add_new_eval(
        self,
        at: int,
        val_loss: float,
        train_loss: float | None,
        builder: RunBuilder,
        line: int,
        is_late: bool = False,
    ) -> None:
        """A line may show the latest validation loss until there is another; unless most have another."""
        is_other = val_loss != builder.last_val_loss
        is_usual = 2 * self._val_changes > self._val_lines > 3
        self._val_lines, self._val_changes = self._val_lines + 1, self._val_changes + is_other
        if is_other or is_usual:
            self._evaluated_at = at
            builder.add_eval(at, val_loss, train_loss, line=line, is_late=is_late)
            if self._clock is not None:
                self._clock.add_eval(None)

    @staticmethod
    def _trained(line: Line, loss: Field) -> Field | None:
        """Another training loss of a step's line: that of its evaluation."""
        return next(
            (one for one in line.fields if one.role == "loss" and one.split == "train" and one != loss), None
        )

    def _add_eval(
        self,
        at: int | None,
        val_loss: Field | None,
        builder: RunBuilder,
        train_loss: Field | None = None,
        is_late: bool = False,
        line: Line | None = None,
    ) -> None:
        """`line`: of nothing but this evaluation, with its metrics."""
        self._evaluated_at = at
        is_val = val_loss is not None and val_loss.split == "val" and val_loss.role != "val_bpb"
        self._losses.has_val_loss |= is_val
        value, train_value = (None if one is None else one.value for one in (val_loss, train_loss))
        metric: ValMetric = "bits_per_byte" if val_loss and val_loss.role == "val_bpb" else "loss"
        builder.add_eval(at, value, train_value, metric=metric, is_late=is_late)
        if line is not None:
            builder.add_metrics(line.metrics, at)
        if self._clock is not None:
            self._clock.add_eval(None)

    def _read_save(self, line: Line, lower: str, builder: RunBuilder) -> None:
        step = line.of("iteration")
        number = step.number if step is not None and step.is_count else None
        last = builder.last_iteration
        if last is not None and self._evaluated_at is not None:
            last = max(last, self._evaluated_at)  # evaluations may have lines where steps have none
        read_save(lower, builder, last, number, counts_epochs=self._counts_epochs)


def _fixed_spans(line: Line) -> list[tuple[int, int]]:
    """Numbers on which it depends how the others are read."""
    spans = [one.span for one in line.fields if one.role in ("epoch", "val_loss")]
    spans += [one.total_span for one in line.fields if one.total]
    return spans + [match.span(1) for match in _BATCH.finditer(line.text)]


TRAINER = Trainer("unknown", "unknown trainer", reader=GenericReader, reads_any_log=True)
