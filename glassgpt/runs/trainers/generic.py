"""Any other trainer whose lines have an iteration and a loss.

    Step 100/5000, Loss: 2.3456, LR: 3e-4, Time: 0.21s
    epoch 1 iteration 200 train_loss=3.21
    {"step": 200, "loss": 3.21}
    completed step: 9, seconds: 1.341, Tokens/s/device: 36653.244, loss: 3.210
    Training:  20%|##        | 200/1000 [00:10<00:40, 19.8it/s, loss=3.21]
    Epoch 3/10 | train loss 3.21 | val loss 3.30
    Epoch: 003/010 | Batch 0005/0011 | Loss: 6.8617
    Step 400/ 5000; acc: 24.85; ppl: 83.17; xent: 4.42; lr: 0.0002; 4828/6680 tok/s; 237 sec

Nothing is assumed: an evaluation counts only with its iteration. A validation loss that lines repeat was made
once. Where lines count only epochs, an iteration is an epoch; where they count batches of an epoch, all
epochs' batches are counted. A line may give the epoch, and the next ones its losses. What else lines say is
found by line_values.py.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import NamedTuple

from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.line_values import (
    AT,
    BETWEEN,
    COUNTED,
    LOSS,
    LOSS_NAME,
    MAX_CHARS_BETWEEN,
    FoundStep,
    find_step,
    find_values,
    parse_step_count,
)
from glassgpt.runs.log_numbers import MAX_COUNT, NUMBER, parse_number
from glassgpt.runs.metric_columns import role_of
from glassgpt.runs.prefixes import clock_us
from glassgpt.runs.step_clock import StepClock
from glassgpt.runs.step_form import StepForm
from glassgpt.runs.step_line import add_values
from glassgpt.runs.trainer import Trainer

# All of these are searched in the line in lower case.
# Of the whole run, whatever else the line counts.
_GLOBAL_STEP = re.compile(r"\b(?:global[ _]step|num_updates)[\s:=#\"']{1,12}(\d{1,15})\b(?!\.)")
_IN_EPOCH = re.compile(
    r"\bep(?:och)?\b[\s:=#\"'\[]{0,4}(\d{1,9})(?![\d.])(?:\s*/\s*(\d{1,9})(?!\s*/))?[\s:|,;\[\]-]{1,12}"
    r"(?:\bbatch\b[\s:=#\"'\[]{0,12}(\d{1,15})\b(?:\s*/\s*(\d{1,15}))?|(\d{1,15})\s*/\s*(\d{1,15})\b)"
)
_BAR_TOTAL = re.compile(r"%\|[^|]{0,300}\|\s*(\d{1,15})/(\d{1,15}) \[")
_VAL_NAME = r"(?<![\w.])(?:(?:val|valid|validation|eval|dev|test)[ _/.]?loss|验证损失)(?![\w/])"
_VAL = re.compile(rf"{AT}[\s:=#\"']{{0,12}}(\d{{1,15}})\b.{{0,400}}?{_VAL_NAME}{BETWEEN}{NUMBER}")
_VAL_LOSS = re.compile(rf"{_VAL_NAME}{BETWEEN}{NUMBER}")
_TRAIN_LOSS = re.compile(rf"(?<![\w/.])train(?:ing)?[ _/]loss{BETWEEN}{NUMBER}")
# Not of `Epochs: 30`, which is a setting.
_EPOCH = re.compile(r"\bep(?:och)?\b[\s:=#\"'\[]{0,4}(\d{1,15})(?![\d.])(?:\s*/\s*(\d{1,15}))?")
# A line of its own, before the losses of the epoch or of the evaluation.
_EPOCH_TITLE = re.compile(r"^\W*epoch\W{1,8}(\d{1,9})(?:\s*/\s*(\d{1,9}))?\W*$")
_EVAL_TITLE = re.compile(r"^\W*(?:eval(?:uation)?|val(?:idation)?) results\W*$")
_VAL_ALONE = re.compile(rf"^\W*(?:final |avg |average |mean )?{_VAL_NAME}{BETWEEN}{NUMBER}\W*$")
# Losses that are not called so, of an epoch: `Epoch 5/500 -- train: 0.5243  val: 0.6080`.
_EPOCH_LOSSES = re.compile(
    rf"\bepoch\W{{1,4}}(\d{{1,9}})(?:\s*/\s*(\d{{1,9}}))?(?!.*\bacc).{{0,40}}?\btrain{BETWEEN}{NUMBER}"
    rf".{{0,60}}?\bval(?:id|idation)?{BETWEEN}{NUMBER}"
)
_VAL_PERPLEXITY = re.compile(rf"^validation perplexity: {NUMBER}$")  # OpenNMT's, at the step just logged

# Lines of one form, that the reader has to read before it learns the form anew: compiling one is slow.
_LINES_PER_FORM = 32
_STAMP = ".000"  # how exactly a line's prefix says the time
_MAX_CHARS_BEFORE_SAVED = 8  # later in the line, it is a step's

# fairseq's summary of an epoch.
_FAIRSEQ_EPOCH = re.compile(r"\bepoch \d{1,9} \| (?:train )?loss ")

# As PyTorch's examples and torchtune print.
_SAMPLES = re.compile(
    r"\bepoch:?\s{0,4}\d{1,9}\s{0,4}\[\s{0,12}\d{1,12}/\d{1,12} \(\s{0,3}[\d.]{1,6}%\)\]"
    rf"\s{{0,8}}loss:\s?{NUMBER}"
)
_EPOCH_LOSS = re.compile(
    rf"\bepoch\b[\s:=#\"'\[]{{0,4}}(\d{{1,9}})(?![\d.])(?:\s*/\s*(\d{{1,9}}))?.{{0,200}}?{LOSS_NAME}{BETWEEN}{NUMBER}",
)
_REWARD = re.compile(rf"(?<![\w/])([\w/]{{0,40}}rewards?(?:[/_]\w{{1,30}})?){BETWEEN}{NUMBER}")
# A batch that only its epoch is said of: how many there were is not known.
_BATCH_OF_EPOCH = re.compile(rf"\bepoch\W{{1,4}}\d{{1,9}}(?![\d.])\W{{1,8}}batch[ _]loss{BETWEEN}{NUMBER}")
_VALIDATION = re.compile(
    r"^\W*(?:\w{1,20}\.\w{1,20}\W{1,4})?(?:val|valid|validation|eval|evaluation|test|dev)\b"
)
_PERPLEXITY = re.compile(rf"\b(?:ppl|perplexity){BETWEEN}{NUMBER}")
_MIN_SUMMED_LOSS = 2.0  # over ln(perplexity): such a loss is a sum over tokens
_TOTAL = re.compile(r"\d\s{0,3}/\s{0,3}(\d{1,15})")
_BATCH = re.compile(r"\bglobal[ _]batch[ _]size\b\W{1,8}(\d{1,9})\b")
_SAVED = re.compile(
    r"\b(?:saved|saving|wrote|writing) (?:\w{1,20} ){0,2}(?:checkpoint|model|weights|ckpt)\b(?! card| config)"
    r"|\b(?:checkpoint|model|new best) saved\b"
)
_END = re.compile(
    r"^\W*(?:(?:training|fine-?tuning) (?:is |has )?(?:completed?|finished|done)"
    r"|(?:finished|completed|done) training"
    r"|(?:finished|completed|done)(?: \S{1,60})? in [\d.:]{1,12}\s?[smh])\b",
)


class _Epoch(NamedTuple):
    """A line that counts epochs only."""

    number: int
    planned: int | None
    loss: float
    lr: float
    grad_norm: float
    val_loss: float | None
    line: int


class GenericReader:
    """Keeps track of the epoch: where lines count within an epoch, earlier epochs' iterations are added."""

    def __init__(self) -> None:
        self.form: StepForm | None = None  # of the latest lines: see step_form.py
        self._lines_since_form = 0
        self._text = ""  # of the line, as printed
        self._epoch: int | None = None
        self._epoch_between: int | None = None  # by the latest line between steps
        self._epoch_begun: int | None = None  # the same, when the count began
        self._planned_epochs: int | None = None
        self._earlier_iterations = 0  # of the epochs that are over
        self._last_iteration = 0  # as the latest line counts
        self._first_epoch = 1  # how they are counted
        self._first_batch = 1
        self._clock: StepClock | None = None  # where lines say the time since the start
        self._counts_epochs = True  # no line has had a step so far
        self._held: _Epoch | None = None  # the first one: a summary, if steps follow
        self._title: re.Match[str] | None = None  # of the epoch or evaluation whose losses come next
        self._count = 0  # of lines that count samples

    def __call__(self, text: str, builder: RunBuilder) -> bool:
        line, self._text = text.lower(), text
        if "loss" not in line and "xent" not in line and "损失" not in line:
            if _END.match(line):
                self.close(builder)
                builder.add_event("finish", text)
            elif ("sav" in line or "writ" in line or "wrote" in line) and _SAVED.search(line):
                builder.add_checkpoint(builder.last_iteration)
            elif "epoch" in line and (match := _EPOCH_LOSSES.search(line)):
                self._read_epoch_losses(match, line, builder)
                return True
            elif title := _EPOCH_TITLE.match(line) or _EVAL_TITLE.match(line):
                self._title = title
                self._note_epoch(line)
            elif not self._counts_epochs and (match := _VAL_PERPLEXITY.match(line)):
                perplexity = parse_number(match[1])
                val_loss = math.log(perplexity) if perplexity > 0 else None
                self._add_eval(builder.last_iteration, val_loss, builder)
                return True
            return False
        if "sav" in line and (match := _SAVED.search(line)) and match.start() < _MAX_CHARS_BEFORE_SAVED:
            builder.add_checkpoint(builder.last_iteration)  # whatever loss it names
            return False
        if "valid on '" in line:
            # fairseq's; its bar has a `/`.
            return "subset |" in line and "%|" not in line and self._read_validation(line, builder)
        if "%)]" in line and (sample := _SAMPLES.search(line)):
            # Samples of the epoch, not updates: how many of these there were is not known.
            self._count += 1
            builder.iteration_by_count = {}
            builder.add_step(self._count, parse_number(sample[1]))
            return True
        if "batch" in line and (match := _BATCH_OF_EPOCH.search(line)):
            self._count += 1
            self._counts_epochs, builder.iteration_by_count = False, {}
            builder.add_step(self._count, parse_number(match[1]))
            return True
        if ("bleu" in line or _VALIDATION.match(line)) and self._read_validation(line, builder):
            return True
        loss = self._read_step_line(line, builder)
        if loss is None:
            return self._read_without_step(line, builder)
        self._counts_epochs, self._held, self._title = False, None, None
        # Words before patterns: a million lines shall take seconds.
        is_evaluated = any(name in line for name in ("val", "dev", "test", "验证"))
        if is_evaluated and (match := _VAL_LOSS.search(line)):
            self._add_eval_of_line(match[1], loss, line, builder)
        return True

    def skip_steps(self, columns: dict[str, list[float]]) -> None:
        """Lines of the form were read together. The times since the start become those of steps."""
        self._last_iteration, self._title = int(columns["iteration"][-1]) - self._earlier_iterations, None
        if (elapsed_s := columns.pop("elapsed_s", None)) is not None and self._clock is not None:
            columns["ms"] = list(map(self._clock.step_ms, map(int, columns["iteration"]), elapsed_s))

    def _read_step_line(self, line: str, builder: RunBuilder) -> str | None:
        """The loss, as printed, of a line with an iteration, which is added."""
        step = find_step(line)
        is_global = "global" in line or "num_updates" in line
        loss = LOSS.search(line) if step is None or is_global else None
        if loss and is_global and (count := _GLOBAL_STEP.search(line)):
            if _FAIRSEQ_EPOCH.search(line):
                return None
            earlier = int(count[1]) - parse_step_count(line[slice(*step.iteration)]) if step else 0
            self._earlier_iterations = max(earlier, 0)  # what a line that counts in the epoch only lacks
            self._lines_since_form *= not earlier  # a form has one count
            self._add_step(int(count[1]), FoundStep(count.span(1), loss.span(1)), line, builder)
            return loss[1]
        if step is None and loss and "ep" in line and (batch := _IN_EPOCH.search(line)):
            self._read_batch(batch, loss, line, builder)
            return loss[1]
        if step is None and loss and (count := COUNTED.search(line, loss.end())):
            is_near = count.start() - loss.end() <= MAX_CHARS_BETWEEN
            step = FoundStep(count.span(1), loss.span(1), count[2]) if is_near else None
        if step is None:
            return None
        self._read_step(step, line, builder)
        return line[slice(*step.loss)]

    def _read_validation(self, line: str, builder: RunBuilder) -> bool:
        """A line of an evaluation that calls its loss just so. Beside a sum there is its perplexity."""
        count, loss, perplexity = COUNTED.search(line), LOSS.search(line), _PERPLEXITY.search(line)
        at = parse_step_count(count[1]) if count else builder.last_iteration
        if at is None or loss is None:
            return False
        val_loss = parse_number(loss[1])
        log_perplexity = math.log(max(parse_number(perplexity[1]), 1.0)) if perplexity else math.nan
        if val_loss > _MIN_SUMMED_LOSS * log_perplexity > 0:
            val_loss = log_perplexity
        last = builder.last_iteration
        builder.add_eval(at, val_loss, is_late=last is not None and at < last)
        if self._clock is not None:
            self._clock.add_eval(None)
        return True

    def _read_without_step(self, line: str, builder: RunBuilder) -> bool:
        if "poch" in line and (epoch := _EPOCH_LOSS.search(line)):
            val_loss = _VAL_LOSS.search(line)
            if self._counts_epochs:
                updates = _GLOBAL_STEP.search(line)
                number = int(updates[1]) if updates else int(epoch[1])
                planned = int(epoch[2]) if epoch[2] and not updates else None
                self._read_epoch(number, planned, epoch[3], val_loss and val_loss[1], line, builder)
            elif val_loss:
                self._add_eval_of_line(val_loss[1], epoch[3], line, builder)
            self._note_epoch(line)
            return True
        if evaluation := _VAL.search(line):
            at = self._earlier_iterations + int(evaluation[1])
            self._add_eval(at, parse_number(evaluation[2]), builder)
            return True
        if self._title is not None and self._read_titled(self._title, line, builder):
            return True
        if builder.last_iteration is not None and (alone := _VAL_ALONE.match(line)):
            self._add_eval(builder.last_iteration, parse_number(alone[1]), builder)
        return False

    def _read_epoch_losses(self, match: re.Match[str], line: str, builder: RunBuilder) -> None:
        if self._counts_epochs:
            planned = int(match[2]) if match[2] else None
            self._read_epoch(int(match[1]), planned, match[3], match[4], line, builder)
        elif builder.last_iteration is not None:
            self._add_eval(builder.last_iteration, parse_number(match[4]), builder)
        self._note_epoch(line)

    def _note_epoch(self, line: str) -> None:
        """Of a line between steps, which do not name their epoch."""
        if match := _EPOCH.search(line):
            self._epoch_between = int(match[1])
            self._planned_epochs = int(match[2]) if match[2] else None

    def _read_titled(self, title: re.Match[str], line: str, builder: RunBuilder) -> bool:
        loss, val_loss = LOSS.search(line), _VAL_LOSS.search(line)
        if title.re is _EVAL_TITLE:
            self._title = None
            if loss and builder.last_iteration is not None:
                self._add_eval(builder.last_iteration, parse_number(loss[1]), builder)
            return False
        if not self._counts_epochs:
            return False
        if loss:
            planned = int(title[2]) if title[2] else None
            self._read_epoch(int(title[1]), planned, loss[1], val_loss and val_loss[1], line, builder)
        elif val_loss:
            self.close(builder)
            if builder.last_iteration == int(title[1]):
                self._add_eval(int(title[1]), parse_number(val_loss[1]), builder)
        return bool(loss or val_loss)

    def _add_eval_of_line(self, val_text: str, loss_text: str, line: str, builder: RunBuilder) -> None:
        # A line may show the latest validation loss until there is another.
        val_loss, at = parse_number(val_text), builder.last_iteration
        if at is not None and val_loss != builder.last_val_loss:
            both = _TRAIN_LOSS.search(line)
            is_other = both is not None and both[1] != loss_text
            self._add_eval(at, val_loss, builder, parse_number(both[1]) if both and is_other else None)

    def _add_eval(
        self, at: int | None, val_loss: float | None, builder: RunBuilder, train_loss: float | None = None
    ) -> None:
        builder.add_eval(at, val_loss, train_loss)
        if self._clock is not None:
            self._clock.add_eval(None)

    def _read_batch(self, match: re.Match[str], loss: re.Match[str], line: str, builder: RunBuilder) -> None:
        group = 3 if match[3] else 5
        step, total = FoundStep(match.span(group), loss.span(1)), match[group + 1]
        if not total or not 0 < int(total) <= MAX_COUNT:
            self._read_step(step, line, builder)
            return
        epoch, batch = int(match[1]), int(match[group])
        if not builder.has_steps:
            # Batch 8/8 of the first epoch: they count from 1. An epoch 0 shows its own way.
            self._first_epoch, self._first_batch = min(epoch, 1), min(batch, 1)
        self._first_batch = min(batch, self._first_batch)
        self._last_iteration, self._epoch = batch, epoch
        iteration = max(epoch - self._first_epoch, 0) * int(total) + batch
        self._earlier_iterations = iteration - batch
        self._add_step(iteration, step, line, builder, is_batch=True)
        if match[2]:
            last_epoch = (
                int(match[2]) - 1 if self._first_epoch == 0 and epoch == int(match[2]) else int(match[2])
            )
            planned = last_epoch * int(total) - 1 + self._first_batch
            builder.setup.values["planned_iterations"] = min(planned, MAX_COUNT)

    def _read_step(self, step: FoundStep, line: str, builder: RunBuilder) -> None:
        printed, total = (
            parse_step_count(line[slice(*step.iteration)]),
            parse_step_count(step.total) if step.total else None,
        )
        if "ep" in line and (match := _EPOCH.search(line)):
            epoch = int(match[1])
            self._planned_epochs = int(match[2]) if match[2] else None
            # Where the count goes back in the next epoch, it is of the epoch; else it is of the whole run.
            if self._epoch is None or epoch < self._epoch or builder.last_iteration is None:
                self._earlier_iterations = 0
            elif epoch == self._epoch + 1 and printed <= self._last_iteration:
                # Equal where of each epoch only the last line is left; one that counts from 0 has one more.
                self._earlier_iterations += self._last_iteration + (printed == 0)
            self._epoch = epoch
        elif builder.last_iteration is None:
            self._epoch_begun, self._earlier_iterations = self._epoch_between, 0
        elif printed < self._last_iteration and self._epoch_between is not None:
            # The count begins again, and a line has said that another epoch does: else it is another run.
            is_next = self._epoch_begun is None or self._epoch_between > self._epoch_begun
            ends_epoch = total and 2 * self._last_iteration > total  # the last line is near the total
            self._earlier_iterations += (total if ends_epoch and total else self._last_iteration) * is_next
            self._earlier_iterations *= is_next
            self._epoch_begun = self._epoch_between
        self._last_iteration = printed
        self._add_step(self._earlier_iterations + printed, step, line, builder)
        if total is None and "%|" in line and (bar := _BAR_TOTAL.search(line)):
            total = int(bar[2]) if abs(int(bar[1]) - printed) <= int(bar[2]) / 10 else None
        if total and total <= MAX_COUNT:
            # A total may be that of an epoch, which shows when the second one begins. Recorded after the
            # step, because the setup at the first step has priority over a later one.
            planned = total if not self._earlier_iterations else None
            if self._planned_epochs not in (None, 1):
                planned = (
                    self._planned_epochs * total
                    if self._earlier_iterations and self._planned_epochs
                    else None
                )
            builder.setup.values["planned_iterations"] = planned

    def _add_step(
        self, iteration: int, step: FoundStep, line: str, builder: RunBuilder, is_batch: bool = False
    ) -> None:
        values = {**find_values(line, is_batch), **step.values}
        columns = {name: found.value for name, found in values.items()}
        if columns.get("ms") == 0:  # minGPT's first iteration: not measured
            del columns["ms"]
        elapsed_s, shown = columns.pop("elapsed_s", None), ""
        if elapsed_s is not None:
            shown = line[slice(*values["elapsed_s"].span)]
        elif builder.clock and columns.keys().isdisjoint(("ms", "s", "it_per_s")):
            clock = clock_us(builder.clock)
            elapsed_s, shown = (None, "") if clock is None else (clock / 1e6, _STAMP)
        if elapsed_s is not None:
            if self._clock is None:
                self._clock = StepClock.of_values([shown])
                builder.trainer = replace(builder.trainer, step_time_is_interval_mean=True)
            columns["ms"] = self._clock.step_ms(iteration, elapsed_s)
        add_values(builder, iteration, {"loss": parse_number(line[slice(*step.loss)])} | columns)
        if "lobal" in line and (batch := _BATCH.search(line)):
            builder.add_batch_size(iteration, int(batch[1]))
        if "reward" in line and (match := _REWARD.search(line)) and role_of(match[1]) == "reward":
            builder.add_reward(parse_number(match[2]))
            if builder.trainer.loss_measures_learning:
                builder.trainer = replace(builder.trainer, loss_measures_learning=False)
            return  # each line has one
        self._lines_since_form += 1
        can_be_learned = all(found.is_number for found in values.values()) and len(line) == len(self._text)
        can_be_learned = (
            can_be_learned
            and (elapsed_s is None or shown != _STAMP)
            and line[slice(*step.iteration)].isdecimal()
        )
        if self._lines_since_form >= _LINES_PER_FORM and can_be_learned:
            self._lines_since_form = 0
            spans = {"iteration": step.iteration, "loss": step.loss}
            spans |= {name: found.span for name, found in values.items()}
            offset = iteration - parse_step_count(line[slice(*step.iteration)])
            form = StepForm.learn(self._text, spans, _fixed_spans(line), offset)
            self.form = self.form if form == self.form else form

    def _read_epoch(
        self,
        number: int,
        planned: int | None,
        loss: str,
        val_loss: str | None,
        line: str,
        builder: RunBuilder,
    ) -> None:
        self.close(builder)
        is_first = not builder.has_steps
        values = find_values(line)
        self._held = _Epoch(
            number,
            planned,
            parse_number(loss),
            values["lr"].value if "lr" in values else math.nan,
            values["grad_norm"].value if "grad_norm" in values else math.nan,
            parse_number(val_loss) if val_loss else None,
            builder.line,
        )
        if not is_first:
            self.close(builder)

    def close(self, builder: RunBuilder) -> None:
        """The first line that counts epochs is none of the steps that may follow, but of the run's."""
        held, self._held = self._held, None
        if held is None:
            return
        builder.add_step(held.number, held.loss, lr=held.lr, grad_norm=held.grad_norm, line=held.line)
        if held.planned:
            builder.setup.values["planned_iterations"] = held.planned
        if held.val_loss is not None:
            builder.add_eval(held.number, held.val_loss, line=held.line)


def _fixed_spans(line: str) -> list[tuple[int, int]]:
    """Numbers on which it depends how the others are read."""
    spans = [match.span() for match in _EPOCH.finditer(line)]
    for pattern in (_VAL_LOSS, _BATCH, _TOTAL):
        spans += [match.span(match.lastindex or 0) for match in pattern.finditer(line)]
    return spans


TRAINER = Trainer("unknown", "unknown trainer", reader=GenericReader, reads_any_log=True)
