"""Any other trainer whose lines have an iteration and a loss.

    Step 100/5000, Loss: 2.3456, LR: 3e-4, Time: 0.21s
    epoch 1 iteration 200 train_loss=3.21
    {"step": 200, "loss": 3.21}
    completed step: 9, seconds: 1.341, Tokens/s/device: 36653.244, loss: 3.210
    Training:  20%|##        | 200/1000 [00:10<00:40, 19.8it/s, loss=3.21]
    Epoch 3/10 | train loss 3.21 | val loss 3.30
    Epoch: 003/010 | Batch 0005/0011 | Loss: 6.8617
    Step 400/ 5000; acc: 24.85; ppl: 83.17; xent: 4.42; lr: 0.0002; 4828/6680 tok/s; 237 sec
      10000/ 200000: 2.0322

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

from glassgpt.i18n import say
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
from glassgpt.runs.log_numbers import MAX_COUNT, NUMBER, parse_ms, parse_number
from glassgpt.runs.metric_series import read_metric_values
from glassgpt.runs.prefixes import clock_us
from glassgpt.runs.step_clock import StepClock, parse_clock
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
_BATCH_THEN_EPOCH = re.compile(
    r"\b(?:mini-?)?batch\W{1,4}(\d{1,15})(?:\s*/\s*(\d{1,15}))?\W{1,4}(?:of |in |\(|,|\|)?\s{0,4}epoch\b"
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
_EPOCH_END = re.compile(
    r"\bend[- _]of[- _]epoch\W{0,4}(\d{1,9})\b|\bepoch\W{1,4}(\d{1,9})(?:\s*/\s*\d{1,9})?\W{1,4}"
    r"(?:is |was )?(?:done|complete|completed|finished|ended|over)\b"
)
_STEP_TITLE = re.compile(rf"^\W*{AT}\W{{1,8}}(\d{{1,12}})(?:\s*/\s*(\d{{1,12}}))?\W*$")
_EVAL_TITLE = re.compile(r"^\W*(?:eval(?:uation)?|val(?:idation)?) results\W*$")
_VAL_ALONE = re.compile(rf"^\W*(?:final |avg |average |mean )?{_VAL_NAME}{BETWEEN}{NUMBER}\W*$")
# Among other words: `== val loss 4.535 (held-out) ==`, `| end of epoch 2 | time: 24.2s | valid loss 5.15 |`.
# Not of an earlier evaluation, or of other data than those before.
_VAL_IN_WORDS = re.compile(
    r"^(?!.{0,200}\b(?:best|lowest|min|minimum|prev|previous|last|target|threshold|patience|expected|from"
    r"|load\w*|resum\w*|restor\w*|sav\w*|stop\w*|improv\w*|if|when|until)\b).{0,80}?(?<![\w.])"
    rf"(?:val|valid|validation|eval|dev)[ _/.]?loss{BETWEEN}{NUMBER}"
)
# Losses that are not called so, of an epoch: `Epoch 5/500 -- train: 0.5243  val: 0.6080`.
_EPOCH_LOSSES = re.compile(
    rf"\bepoch\W{{1,4}}(\d{{1,9}})(?:\s*/\s*(\d{{1,9}}))?(?!.*\bacc).{{0,40}}?\btrain{BETWEEN}{NUMBER}"
    rf".{{0,60}}?\bval(?:id|idation)?{BETWEEN}{NUMBER}"
)
# The same, of a step: `Step 250 | eval | train 4.1611 | val 4.1206`.
_STEP_LOSSES = re.compile(
    rf"{AT}\W{{1,4}}(\d{{1,15}})\b(?:\s*/\s*\d{{1,15}})?(?!.*(?:\bacc|\berr|\bf1\b|%)).{{0,40}}?\btrain{BETWEEN}{NUMBER}"
    rf"\W{{1,12}}val(?:id|idation)?{BETWEEN}{NUMBER}"
)
# makemore's, which name nothing: `  10000/ 200000: 2.0322`, and at the end `train 2.0674` and `val 2.1056`.
_BARE_STEP = re.compile(r"^\s*(\d{1,15})\s*/\s*(\d{1,15})\s*:\s*(\d+\.\d+|nan|inf)\s*$")
_BARE_LOSS = re.compile(r"^\s*(train|val)[\s:=]{1,8}(\d+\.\d+|nan|inf)\s*$")
# `Start of training: Train Loss: 4.37, Val Loss: 4.36`
_AT_START = re.compile(r"^\W*(?:(?:at |the )*start of training|before training|initial(?:ly)?)\b\D{1,40}\d")
_VAL_PERPLEXITY = re.compile(rf"^validation perplexity: {NUMBER}$")  # OpenNMT's, at the step just logged

# Where a line has no plain loss, the first of its others: `[iter 5] d_adv_loss: 3.18 f_slf_loss: 6.2`.
_OTHER_LOSS = re.compile(
    r"(?<![\w/.])(?!(?:val|valid|validation|eval|test|dev|aux|z|kl|best|min|max|balance|router)[\d_])"
    rf"(\w{{1,30}}_loss){BETWEEN}{NUMBER}"
)
# lerobot's `step:1K`: of how many steps a line is follows from the lines before.
_ROUNDED = re.compile(rf"{AT}[\s:=#]{{0,4}}(\d{{1,6}}(\.\d{{1,3}})?)([km])\b")
_SCALES = {"k": 1000, "m": 1_000_000}

# DeepSpeed-Chat's, and the line after it: `ppl: 1.8085`
_PERPLEXITY_TITLE = re.compile(r"^\W*evaluating perplexity, epoch (\d{1,9})/(\d{1,9})\W*$")
_PERPLEXITY_ALONE = re.compile(rf"^(?:ppl|perplexity): {NUMBER}(?:, loss: {NUMBER})?$")

# Lines of one form, that the reader has to read before it learns a form anew: compiling one is slow.
_LINES_PER_FORM, _MAX_PATTERNS = 32, 64
_MAX_STAMP_ERROR_S = 1.0  # of two stamps in whole seconds
_TIME_OF_DAY = re.compile(r"\b\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?")
_MIN_INTERVALS = 3  # so many times of intervals: all are
_STAMP = ".000"  # how exactly a line's prefix says the time

# As PyTorch's examples and torchtune print.
_SAMPLES = re.compile(
    r"\bepoch:?\s{0,4}\d{1,9}\s{0,4}\[\s{0,12}\d{1,12}/\d{1,12} \(\s{0,3}[\d.]{1,6}%\)\]"
    rf"\s{{0,8}}loss:\s?{NUMBER}"
)
_EPOCH_LOSS = re.compile(
    rf"\bepoch\b[\s:=#\"'\[]{{0,4}}(\d{{1,9}})(?![\d.])(?:\s*/\s*(\d{{1,9}}))?.{{0,200}}?{LOSS_NAME}{BETWEEN}{NUMBER}",
)
_LOSS_AFTER_EPOCHS = re.compile(
    rf"{LOSS_NAME} (?:at|after|in|on|for|of) (?:(?:the )?epoch )?#?(\d{{1,9}})(?: epochs?)?\b\s{{0,4}}[:=]?"
    rf"\s{{0,4}}{NUMBER}"
)
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
    r"\b(?:saved|saving|wrote|writing) (?:\w{1,20} ){0,2}(?:checkpoint|model|weights|ckpt)s?\b"
    r"(?! card| config)"
    r"|\b(?:checkpoint|model|weights|new best)s?\W{1,4}(?:was |is )?saved\b"
    r"|(?<!to )\bsave (?:\w{1,20} ){0,2}(?:checkpoint|model)s? (?:for|at|after) (?:epoch|step|iter)"
    r"|^(?:.{0,60} )?checkpoint \w{1,12} (?:after|at) (?:step|iter|iteration) \d"
)
_SAVE_TIME = re.compile(r"\b(?:in|took) (\d{1,6}(?:\.\d{1,9})?)\s?(ms|s)(?:ec(?:ond)?s?)?\b")
_SAVED_AT = re.compile(r"(?:step|iter|ckpt|checkpoint|epoch|model)s?[_-](\d{1,12})(?!\d|\.\d|/)")  # in a path
_END = re.compile(
    r"^\W*(?:info [\d: -]{10,30})?(?:[\w.]{1,40}\.py:\d{1,6} )?"
    r"(?:end of training|(?:training|fine-?tuning) (?:is |has )?(?:completed?|finished|done)"
    r"|(?:finished|completed|done) training"
    r"|(?:\w{1,20} ){0,2}(?:finished|completed|done)(?: \S{1,60})? in [\d.:]{1,12}\s?"
    r"(?:[smh]|sec(?:ond)?s?|min(?:ute)?s?|hours?))\b",
)


_TARGET = re.compile(r"\btarget (?:\w{1,20} )?loss\b.{0,40}\b(?:reached|achieved|met)\b")


class _Epoch(NamedTuple):
    """A line that counts epochs only."""

    number: int
    planned: int | None
    loss: float
    lr: float
    grad_norm: float
    val_loss: float | None
    line: int
    metrics: dict[str, float]


class GenericReader:
    """Keeps track of the epoch: where lines count within an epoch, earlier epochs' iterations are added."""

    def __init__(self) -> None:
        self.form: StepForm | None = None  # of the latest lines: see step_form.py
        self._patterns: set[str] = set()  # of the forms so far
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
        self._batches = 0  # of an epoch, where lines say it
        self._evaluated_at: int | None = None
        self._val_lines = self._val_changes = 0  # steps with a validation loss; with another than before
        self._clock: StepClock | None = None  # where lines say the time since the start
        self._counts_epochs = True  # no line has had a step so far
        self._held: _Epoch | None = None  # the first one: a summary, if steps follow
        self._title: re.Match[str] | None = None  # of the epoch or evaluation whose losses come next
        self._perplexity_title: re.Match[str] | None = None  # the line before
        self._loss_name: str | None = None  # of those that are not the loss, the one that is taken
        self._gap: int | None = None  # between the steps of two lines, as they say it
        self._bare_total: str | None = None  # of lines that name nothing, where all steps are such
        self._bare_train_loss: float | None = None  # of the evaluation whose validation loss comes next
        self._latest_clock_s: float | None = None  # of the latest step, where its line says a time too
        self._intervals = 0  # lines whose time was that since the line before, by their stamps
        self._count = 0  # of lines that count no updates: samples, or epochs several times

    def __call__(self, text: str, builder: RunBuilder) -> bool:
        line, self._text = text.lower(), text
        title, self._perplexity_title = self._perplexity_title, None
        if title is not None and (match := _PERPLEXITY_ALONE.match(line)):
            self._read_perplexity(title, parse_number(match[1]), builder)
            return True
        if "loss" not in line and "xent" not in line and "损失" not in line:
            if _END.match(line) or self._ends_last_epoch(line):
                self.close(builder)
                builder.add_event("finish", text)
            elif any(word in line for word in ("sav", "writ", "wrote", "checkpoint")) and _SAVED.search(line):
                self._read_save(line, builder)
            elif "epoch" in line and (match := _EPOCH_LOSSES.search(line)):
                self._read_epoch_losses(match, line, builder)
                return True
            elif "train" in line and (match := _STEP_LOSSES.search(line)):
                losses = parse_number(match[3]), builder, parse_number(match[2])
                self._add_eval(self._earlier_iterations + int(match[1]), *losses)
                return True
            elif self._read_bare(line, builder):
                return True
            elif "perplexity, epoch" in line and (match := _PERPLEXITY_TITLE.match(line)):
                self._perplexity_title = match
            elif title := _EPOCH_TITLE.match(line) or _EVAL_TITLE.match(line) or _STEP_TITLE.match(line):
                self._title = title
                self._note_epoch(line)
            elif not self._counts_epochs and (match := _VAL_PERPLEXITY.match(line)):
                perplexity = parse_number(match[1])
                val_loss = math.log(perplexity) if perplexity > 0 else None
                self._add_eval(builder.last_iteration, val_loss, builder)
                return True
            return False
        if "sav" in line and (match := _SAVED.search(line)):
            count = COUNTED.search(line)
            if match.start() < min(line.find("loss"), count.start() if count else MAX_CHARS_BETWEEN):
                self._read_save(line, builder)  # the loss is that of the weights; a step's comes before
                return False
        if "target" in line and _TARGET.search(line):
            builder.add_event("finish", text)
            return False
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
        self._lines_since_form = 0
        if (elapsed_s := columns.pop("elapsed_s", None)) is not None and self._clock is not None:
            columns["ms"] = list(map(self._clock.step_ms, map(int, columns["iteration"]), elapsed_s))

    def _read_step_line(self, line: str, builder: RunBuilder) -> str | None:
        """The loss, as printed, of a line with an iteration, which is added."""
        step = find_step(line)
        is_global = "global" in line or "num_updates" in line
        loss = LOSS.search(line) if step is None or is_global else None
        if loss and is_global and (count := _GLOBAL_STEP.search(line)):
            earlier = int(count[1]) - parse_step_count(line[slice(*step.iteration)]) if step else 0
            self._earlier_iterations = max(earlier, 0)  # what a line that counts in the epoch only lacks
            self._lines_since_form *= not earlier  # a form has one count
            self._add_step(int(count[1]), FoundStep(count.span(1), loss.span(1)), line, builder)
            return loss[1]
        if step is None and loss and "ep" in line and (batch := _IN_EPOCH.search(line)):
            self._read_batch(batch, loss, line, builder)
            return loss[1]
        if step is None and loss and "batch" in line and (batch := _BATCH_THEN_EPOCH.search(line)):
            self._read_step(FoundStep(batch.span(1), loss.span(1), batch[2]), line, builder)
            return loss[1]
        if step is None and loss and (count := COUNTED.search(line, loss.end())):
            is_near = count.start() - loss.end() <= MAX_CHARS_BETWEEN
            step = FoundStep(count.span(1), loss.span(1), count[2]) if is_near else None
        if step is None and loss and (rounded := _ROUNDED.search(line)):
            return self._read_rounded(rounded, loss, line, builder)
        if step is None and "_loss" in line:
            step = self._find_other_loss(line, builder)
        if step is None:
            return None
        self._read_step(step, line, builder)
        return line[slice(*step.loss)]

    def _find_other_loss(self, line: str, builder: RunBuilder) -> FoundStep | None:
        """The first of several losses, none of which is called just so; later only the same one."""
        count, is_new = COUNTED.search(line), self._loss_name is None
        if count is None or (is_new and builder.has_steps):
            return None
        found = list(_OTHER_LOSS.finditer(line, count.end(), count.end() + MAX_CHARS_BETWEEN))
        loss = next((one for one in found if is_new or one[1] == self._loss_name), None)
        if loss is None:
            return None
        if is_new:
            self._loss_name = loss[1]
            others = ", ".join(one[1] for one in found if one is not loss)[:200]
            builder.notes.append(
                say("log.loss_taken", name=loss[1], others=others)
                if others
                else say("log.only_loss", name=loss[1])
            )
        return FoundStep(count.span(1), loss.span(2), count[2])

    def _read_rounded(
        self, rounded: re.Match[str], loss: re.Match[str], line: str, builder: RunBuilder
    ) -> str | None:
        """Where exact lines before say the interval, a rounded count is that of the line before plus it."""
        unit = _SCALES[rounded[3]] / 10 ** max(len(rounded[2] or ".") - 1, 0)
        printed, last = round(float(rounded[1]) * _SCALES[rounded[3]]), builder.last_iteration
        if last is None or self._gap is None:
            return None  # how many steps are between the lines is not known
        at = last + self._gap
        if abs(at - printed) > unit:
            if printed <= last:
                return None
            at = printed
        self._last_iteration = at
        self._add_step(at, FoundStep((0, 0), loss.span(1)), line, builder)
        return loss[1]

    def _read_perplexity(self, title: re.Match[str], perplexity: float, builder: RunBuilder) -> None:
        """Of an epoch, which counts as an iteration where no line counts steps."""
        val_loss = math.log(perplexity) if perplexity > 0 else None
        if builder.has_steps and not builder.trainer.iterations_are_epochs:
            self._add_eval(builder.last_iteration, val_loss, builder)
            return
        if not builder.trainer.iterations_are_epochs:
            builder.trainer = replace(builder.trainer, iterations_are_epochs=True)
            builder.notes.append(say("table.epochs"))
        self._add_eval(int(title[1]), val_loss, builder)

    def _read_bare(self, line: str, builder: RunBuilder) -> bool:
        """A count, its total and a loss, or an evaluation after these, where no step has a named loss."""
        if step := _BARE_STEP.match(line):
            is_like_others = step[2] == self._bare_total
            is_first = not builder.has_steps or (self._bare_total is not None and int(step[1]) <= 1)
            if not (is_like_others or is_first) or int(step[1]) > int(step[2]):
                return False
            self._counts_epochs, self._bare_total, self._bare_train_loss = False, step[2], None
            builder.add_step(int(step[1]), parse_number(step[3]))
            builder.setup.values["planned_iterations"] = int(step[2])
            return True
        loss = _BARE_LOSS.match(line) if self._bare_total is not None else None
        if loss is None:
            return False
        if loss[1] == "train":
            self._bare_train_loss = parse_number(loss[2])
        elif self._bare_train_loss is not None:
            self._add_eval(builder.last_iteration, parse_number(loss[2]), builder, self._bare_train_loss)
            self._bare_train_loss = None
        return True

    def _read_save(self, line: str, builder: RunBuilder) -> None:
        """At the iteration that the line or the file's name says, if the run can be there."""
        last, count = builder.last_iteration, COUNTED.search(line) or _SAVED_AT.search(line)
        at = parse_step_count(count[1]) if count and not self._counts_epochs else None
        is_near = at is not None and last is not None and last <= at <= last + max(1, last // 2)
        spent = _SAVE_TIME.search(line)
        builder.add_checkpoint(at if is_near else last, parse_ms(spent[1], spent[2]) if spent else None)

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
        if self._counts_epochs and "poch" in line and (after := _LOSS_AFTER_EPOCHS.search(line)):
            self._read_epoch(int(after[1]), None, after[2], None, line, builder)
            return True
        if (val_loss := _VAL_LOSS.search(line)) and _AT_START.match(line):
            train_loss = _TRAIN_LOSS.search(line)
            self._add_eval(
                0, parse_number(val_loss[1]), builder, parse_number(train_loss[1]) if train_loss else None
            )
            return True
        if evaluation := _VAL.search(line):
            at = self._earlier_iterations + int(evaluation[1])
            self._add_eval(at, parse_number(evaluation[2]), builder)
            return True
        if self._title is not None and self._read_titled(self._title, line, builder):
            return True
        if builder.last_iteration is not None and (alone := _VAL_ALONE.match(line)):
            self._add_eval(builder.last_iteration, parse_number(alone[1]), builder)
        elif not self._counts_epochs and (among := _VAL_IN_WORDS.match(line)):
            last = self._last_of_epoch(line, builder)
            if last is not None and last != self._evaluated_at:
                self._add_eval(last, parse_number(among[1]), builder)
        return False

    def _last_of_epoch(self, line: str, builder: RunBuilder) -> int | None:
        """The iteration of a line after steps: the latest one's, or that at which the line says its epoch
        ended."""
        end = _EPOCH_END.search(line) if self._batches and "epoch" in line else None
        if end is None or builder.last_iteration is None or int(end[1] or end[2]) != self._epoch:
            return builder.last_iteration
        builder.iterations_done = self._earlier_iterations + self._batches - 1 + self._first_batch
        return builder.iterations_done

    def _read_epoch_losses(self, match: re.Match[str], line: str, builder: RunBuilder) -> None:
        if self._counts_epochs:
            planned = int(match[2]) if match[2] else None
            self._read_epoch(int(match[1]), planned, match[3], match[4], line, builder)
        elif builder.last_iteration is not None:
            self._add_eval(builder.last_iteration, parse_number(match[4]), builder)
        self._note_epoch(line)

    def _ends_last_epoch(self, line: str) -> bool:
        match = _EPOCH_END.search(line) if self._planned_epochs and "epoch" in line else None
        return match is not None and int(match[1] or match[2]) == self._planned_epochs

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
        if title.re is _STEP_TITLE:
            self._title = None
            if loss:
                self._counts_epochs, self._held = False, None
                self._last_iteration = int(title[1])
                self._add_step(self._last_iteration, FoundStep((0, 0), loss.span(1)), line, builder)
                if title[2]:
                    builder.setup.values["planned_iterations"] = int(title[2])
            return bool(loss)
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
        # A line may show the latest validation loss until there is another; unless most lines have another.
        val_loss, at = parse_number(val_text), builder.last_iteration
        is_other, is_usual = val_loss != builder.last_val_loss, 2 * self._val_changes > self._val_lines > 3
        self._val_lines, self._val_changes = self._val_lines + 1, self._val_changes + is_other
        if at is not None and (is_other or is_usual):
            both = _TRAIN_LOSS.search(line)
            has_own = both is not None and both[1] != loss_text
            self._add_eval(at, val_loss, builder, parse_number(both[1]) if both and has_own else None)

    def _add_eval(
        self, at: int | None, val_loss: float | None, builder: RunBuilder, train_loss: float | None = None
    ) -> None:
        self._evaluated_at = at
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
        self._last_iteration, self._epoch, self._batches = batch, epoch, int(total)
        iteration = max(epoch - self._first_epoch, 0) * int(total) + batch
        self._earlier_iterations, builder.iterations_done = iteration - batch, None
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
        self._gap = printed - self._last_iteration if printed > self._last_iteration > 0 else self._gap
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
        elif "s" in columns and builder.clock and not is_batch:
            columns["s"] = self._time_of_step(columns["s"], iteration, builder)
        add_values(builder, iteration, {"loss": parse_number(line[slice(*step.loss)])} | columns)
        if "lobal" in line and (batch := _BATCH.search(line)):
            builder.add_batch_size(iteration, int(batch[1]))
        if builder.add_metrics(read_metric_values(line), iteration):
            return  # a learned form would leave them out
        self._lines_since_form += 1
        can_be_learned = all(found.is_number for found in values.values()) and len(line) == len(self._text)
        can_be_learned = (
            can_be_learned
            and (elapsed_s is None or shown != _STAMP)
            and not self._intervals
            and line[slice(*step.iteration)].isdecimal()
        )
        if self._lines_since_form % _LINES_PER_FORM <= 1 and can_be_learned:
            spans = {"iteration": step.iteration, "loss": step.loss}
            spans |= {name: found.span for name, found in values.items()}
            offset = iteration - parse_step_count(line[slice(*step.iteration)])
            form = StepForm.learn(self._text, spans, _fixed_spans(line), offset)
            # The first line of an epoch has the form of all lines before, but for its fixed numbers.
            is_known = form.pattern in self._patterns
            if form != self.form and (is_known or self._lines_since_form >= _LINES_PER_FORM):
                self._lines_since_form, self.form = 0, form
                self._patterns = (
                    {*self._patterns, form.pattern} if len(self._patterns) < _MAX_PATTERNS else set()
                )

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

    def _read_epoch(
        self,
        number: int,
        planned: int | None,
        loss: str,
        val_loss: str | None,
        line: str,
        builder: RunBuilder,
    ) -> None:
        held = self._held
        if held is not None and held.number == number and held.loss != parse_number(loss):
            # Another loss of the first epoch: a line is a part of an epoch, of unknown length.
            self._count, builder.iteration_by_count = held.number, {}
        self.close(builder)
        if builder.iteration_by_count is not None:
            self._count += 1
            number, planned = self._count, None
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
            read_metric_values(self._text),
        )
        if not is_first:
            self.close(builder)

    def close(self, builder: RunBuilder) -> None:
        """The first line that counts epochs is none of the steps that may follow, but of the run's."""
        held, self._held = self._held, None
        if held is None:
            return
        if not builder.trainer.iterations_are_epochs and builder.iteration_by_count is None:
            builder.trainer = replace(builder.trainer, iterations_are_epochs=True)
            builder.notes.append(say("table.epochs"))
        builder.add_step(held.number, held.loss, lr=held.lr, grad_norm=held.grad_norm, line=held.line)
        if held.planned and builder.iteration_by_count is None:
            builder.setup.values["planned_iterations"] = held.planned
        builder.add_metrics(held.metrics, held.number)
        if held.val_loss is not None:
            builder.add_eval(held.number, held.val_loss, line=held.line)


def _fixed_spans(line: str) -> list[tuple[int, int]]:
    """Numbers on which it depends how the others are read."""
    spans = [match.span() for match in _EPOCH.finditer(line)]
    for pattern in (_VAL_LOSS, _BATCH, _TOTAL):
        spans += [match.span(match.lastindex or 0) for match in pattern.finditer(line)]
    return spans


TRAINER = Trainer("unknown", "unknown trainer", reader=GenericReader, reads_any_log=True)
