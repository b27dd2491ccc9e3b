"""Any other trainer whose lines have an iteration and a loss.

    Step 100/5000, Loss: 2.3456, LR: 3e-4, Time: 0.21s
    epoch 1 iteration 200 train_loss=3.21
    {"step": 200, "loss": 3.21}
    completed step: 9, seconds: 1.341, Tokens/s/device: 36653.244, loss: 3.210
    Training:  20%|##        | 200/1000 [00:10<00:40, 19.8it/s, loss=3.21]
    Epoch 3/10 | train loss 3.21 | val loss 3.30
    Epoch: 003/010 | Batch 0005/0011 | Loss: 6.8617
    Step 400/ 5000; acc: 24.85; ppl: 83.17; xent: 4.42; lr: 0.0002; 4828/6680 tok/s; 237 sec

Nothing is assumed: a time counts only with its unit, or where the rate of a progress bar on the same line
shows which unit it is; an evaluation only with its iteration. A validation loss that lines repeat was made
once. Where lines count only epochs, an iteration is an epoch; where they count batches of an epoch, all
epochs' batches are counted. A line may give the epoch, and the next ones its losses.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.log_numbers import (
    MAX_COUNT,
    NUMBER,
    parse_number,
    search_norm,
    search_number,
)
from glassgpt.runs.trainer import Trainer

_IS = r"[\"']?\s{0,4}[:=]?\s{0,8}[\"']?"  # between a name and its number
_AT = r"\b(?:(?:iter|iteration|step|global_step|num_updates|update)s?\b|(?:it|itr)(?=\s?[:=]))"
_COUNTED = rf"{_AT}[\s:=#\"']{{0,12}}(\d{{1,15}})\b(?:\s*/\s*(\d{{1,15}}))?(?=[\s,:;|\])%(\"'-]|$)"
_LOSS_NAME = (
    r"(?<![\w/.])(?<!val )(?<!valid )(?<!validation )(?<!eval )(?<!test )(?<!dev )(?<!aux )"
    r"(?:(?:(?:train(?:ing)?|avg|mean|lm|ce|total|batch)[ _/.]?)?loss(?:[_/](?:train|step|avg))?"
    r"|xent|训练损失)(?![\w/])"
)
_LOSS = re.compile(rf"{_LOSS_NAME}{_IS}{NUMBER}", re.IGNORECASE)
# Of the whole run, whatever else the line counts.
_GLOBAL_STEP = re.compile(
    r"\b(?:global[ _]step|num_updates)[\s:=#\"']{1,12}(\d{1,15})\b(?!\.)", re.IGNORECASE
)
_IN_EPOCH = re.compile(
    r"\bep(?:och)?\b[\s:=#\"'\[]{0,4}(\d{1,9})(?![\d.])(?:\s*/\s*(\d{1,9})(?!\s*/))?[\s:|,;\[\]-]{1,12}"
    r"(?:\bbatch\b[\s:=#\"'\[]{0,12}(\d{1,15})\b(?:\s*/\s*(\d{1,15}))?|(\d{1,15})\s*/\s*(\d{1,15})\b)",
    re.IGNORECASE,
)
_STEP = re.compile(rf"{_COUNTED}.{{0,400}}?{_LOSS_NAME}{_IS}{NUMBER}", re.IGNORECASE)
_LOSS_FIRST = re.compile(rf"{_LOSS_NAME}{_IS}{NUMBER}.{{0,200}}?{_COUNTED}", re.IGNORECASE)
_BAR = re.compile(
    rf"%\|[^|]{{0,300}}\|\s*(\d{{1,15}})/(\d{{1,15}}) \[[\d:]{{1,12}}<[^\]]{{0,200}}?{_LOSS_NAME}=\s*{NUMBER}"
)
_BAR_TOTAL = re.compile(r"%\|[^|]{0,300}\|\s*(\d{1,15})/(\d{1,15}) \[")
_VAL_NAME = r"(?<![\w.])(?:(?:val|valid|validation|eval|dev|test)[ _/.]?loss|验证损失)(?![\w/])"
_VAL = re.compile(rf"{_AT}[\s:=#\"']{{0,12}}(\d{{1,15}})\b.{{0,400}}?{_VAL_NAME}{_IS}{NUMBER}", re.IGNORECASE)
_VAL_LOSS = re.compile(rf"{_VAL_NAME}{_IS}{NUMBER}", re.IGNORECASE)
_TRAIN_LOSS = re.compile(rf"(?<![\w/.])train(?:ing)?[ _/]loss{_IS}{NUMBER}", re.IGNORECASE)
_EPOCH = re.compile(
    r"\bep(?:ochs?)?\b[\s:=#\"'\[]{0,4}(\d{1,15})(?![\d.])(?:\s*/\s*(\d{1,15}))?", re.IGNORECASE
)
# A line of its own, before the losses of the epoch or of the evaluation.
_EPOCH_TITLE = re.compile(r"^\W*epoch\W{1,8}(\d{1,9})(?:\s*/\s*(\d{1,9}))?\W*$", re.IGNORECASE)
_EVAL_TITLE = re.compile(r"^\W*(?:eval(?:uation)?|val(?:idation)?) results\W*$", re.IGNORECASE)
_VAL_PERPLEXITY = re.compile(rf"^Validation perplexity: {NUMBER}$")  # OpenNMT's, at the step just logged

# fairseq's epoch and its evaluation; the latter's bar has a `/`.
_FAIRSEQ_EPOCH = re.compile(r"\bepoch \d{1,9} \| (?:train )?loss ")
_FAIRSEQ_VALID = re.compile(
    rf"\bvalid on '[^']{{1,80}}' subset \|[^/]{{0,40}}?\b(?:valid[ _])?loss {NUMBER}(?=\s|$)"
)

# As PyTorch's examples and torchtune print.
_SAMPLES = re.compile(
    r"\bEpoch:?\s{0,4}\d{1,9}\s{0,4}\[\s{0,12}\d{1,12}/\d{1,12} \(\s{0,3}[\d.]{1,6}%\)\]"
    rf"\s{{0,8}}Loss:\s?{NUMBER}"
)
_TORCHTUNE = re.compile(rf"(\d{{1,9}})\|(\d{{1,15}})\|Loss: {NUMBER}:?\s")
_EPOCH_LOSS = re.compile(
    rf"\bepochs?\b[\s:=#\"'\[]{{0,4}}(\d{{1,9}})(?![\d.])(?:\s*/\s*(\d{{1,9}}))?.{{0,200}}?{_LOSS_NAME}{_IS}{NUMBER}",
    re.IGNORECASE,
)

_STEP_TIME_NAME = r"(?:step|iter|iteration|batch)[ _]?(?:time|dt)"
_STEP_TIME, _TIME = (
    re.compile(rf"\b(?:{name})\b\W{{0,4}}{NUMBER}\s*(ms|s|sec|seconds)\b", re.IGNORECASE)
    # Beside the batch of an epoch, a mere "time" may be that of the epoch so far.
    for name in (_STEP_TIME_NAME, rf"{_STEP_TIME_NAME}|time|dt|iter_dt|took")
)
_TIME_PER_STEP = re.compile(rf"(?<![\w.]){NUMBER}\s?(ms|s|sec)/(?:it|iter|step|batch)\b", re.IGNORECASE)
_STEPS_PER_S = re.compile(rf"(?<![\w.]){NUMBER}\s?(?:it|iter|step|batche?)s?/s(?:ec)?\b", re.IGNORECASE)
# Names that say their unit, as fields of JSON do.
_TIME_IN_MS = re.compile(
    rf"\b(?:(?:time|dt|(?:step|iter|iteration|batch)_(?:time|dt))_ms|ms_per_(?:step|iter)"
    rf"|elapsed_time_per_iteration_ms){_IS}{NUMBER}"
)
_TIME_IN_S = re.compile(
    rf"\b(?:(?:step|iter|iteration|batch)_(?:time|dt)_s(?:ec)?|(?:s|sec|seconds)_per_(?:step|iter)|seconds){_IS}{NUMBER}"
)
_BARE_TIME = re.compile(rf"(?<![\w.]){NUMBER}\s*ms\b(?!/)")
_TIME_WITHOUT_UNIT = re.compile(rf"\b(?:dt|step_time|iter_time)=\s?{NUMBER}(?![\w.])")
_ELAPSED = re.compile(rf"\b(?:elapsed|total_time)\b\W{{0,4}}{NUMBER}\s*(ms|s|sec|seconds)\b", re.IGNORECASE)
_MAX_UNIT_ERROR = 5.0  # a time and a bar's rate differ by less; the units by 1000

_LR = re.compile(rf"\b(?:lr|learning[ _]rate){_IS}{NUMBER}", re.IGNORECASE)
_NORM = re.compile(rf"\b(?:grad(?:ient)?[ _/]?norm|gnorm|norm){_IS}{NUMBER}", re.IGNORECASE)
_MFU = re.compile(rf"\bmfu{_IS}{NUMBER}\s?(%)?", re.IGNORECASE)
_BATCH = re.compile(r"\bglobal[ _]batch[ _]size\b\W{1,8}(\d{1,9})\b", re.IGNORECASE)
_SPEED = re.compile(
    rf"\b(?:tok(?:en)?s?(?:/|_per_)s(?:ec(?:ond)?)?|tps)\b(?:/device)?{_IS}{NUMBER}([kKM]?)"
    rf"|(?<![\w.]){NUMBER}([kKM]?)\s?tok(?:en)?s?/s(?:ec)?\b",
    re.IGNORECASE,
)
_SAVED = re.compile(
    r"\b(?:saved|saving|wrote|writing) (?:\w{1,20} ){0,2}checkpoint\b|\bcheckpoint saved\b", re.IGNORECASE
)
_END = re.compile(
    r"^\W*(?:(?:training|fine-?tuning) (?:is |has )?(?:completed?|finished|done)"
    r"|(?:finished|completed|done) training)\b",
    re.IGNORECASE,
)
_SCALES = {"ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3, "": 1.0, "k": 1e3, "m": 1e6}


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
        self._epoch: int | None = None
        self._planned_epochs: int | None = None
        self._earlier_iterations = 0  # of the epochs that are over
        self._last_iteration = 0  # as the latest line counts
        self._first_epoch = 1  # how they are counted
        self._first_batch = 1
        self._elapsed: tuple[int, float] | None = None  # iteration, milliseconds so far
        self._counts_epochs = True  # no line has had a step so far
        self._held: _Epoch | None = None  # the first one: a summary, if steps follow
        self._title: re.Match[str] | None = None  # of the epoch or evaluation whose losses come next
        self._count = 0  # of lines that count samples

    def __call__(self, line: str, builder: RunBuilder) -> bool:
        words = line.lower()
        if "loss" not in words and "xent" not in words and "损失" not in words:
            if _END.match(line):
                self.close(builder)
                builder.add_event("finish", line)
            elif "heckpoint" in line and _SAVED.search(line):
                builder.add_checkpoint(builder.last_iteration)
            elif title := _EPOCH_TITLE.match(line) or _EVAL_TITLE.match(line):
                self._title = title
            elif not self._counts_epochs and (match := _VAL_PERPLEXITY.match(line)):
                perplexity = parse_number(match[1])
                builder.add_eval(builder.last_iteration, math.log(perplexity) if perplexity > 0 else None)
                return True
            return False
        if "valid on '" in line:
            return self._read_fairseq_valid(line, builder)
        if "%)]" in line and (sample := _SAMPLES.search(line)):
            # Samples of the epoch, not updates: how many of these there were is not known.
            self._count += 1
            builder.iteration_by_count = {}
            builder.add_step(self._count, parse_number(sample[1]))
            return True
        loss = self._find_step(line, words, builder)
        if loss is None:
            return self._read_without_step(line, builder)
        self._counts_epochs, self._held, self._title = False, None, None
        # Words before patterns: a million lines shall take seconds.
        is_evaluated = any(name in words for name in ("val", "dev", "test", "验证"))
        if is_evaluated and (match := _VAL_LOSS.search(line)):
            self._add_eval(match[1], loss, line, builder)
        return True

    def _find_step(self, line: str, words: str, builder: RunBuilder) -> str | None:
        """The loss, as printed, of a line with an iteration, which is added."""
        counted: tuple[str, str | None, str] | None = None  # iteration, how many, loss
        may_count = "it" in words or "step" in words or "update" in words  # most patterns need not be tried
        if step := (_STEP.search(line) if may_count else None) or _BAR.search(line):
            counted = step[1], step[2], step[3]
        is_global = "global" in words or "num_updates" in words
        loss = _LOSS.search(line) if counted is None or is_global else None
        if loss and is_global and (step := _GLOBAL_STEP.search(line)):
            if _FAIRSEQ_EPOCH.search(line):
                return None
            earlier = int(step[1]) - int(counted[0]) if counted else 0
            self._earlier_iterations = max(earlier, 0)  # what a line that counts in the epoch only lacks
            self._add_step(int(step[1]), parse_number(loss[1]), line, builder)
            return loss[1]
        if counted is None and loss and "ep" in words and (batch := _IN_EPOCH.search(line)):
            self._read_batch(batch, parse_number(loss[1]), line, builder)
            return loss[1]
        if counted is None and (step := _TORCHTUNE.match(line)):
            counted = step[2], None, step[3]
        if counted is None and may_count and (step := _LOSS_FIRST.search(line)):
            counted = step[2], step[3], step[1]
        if counted is None:
            return None
        printed, total, text = counted
        self._read_step(int(printed), int(total) if total else None, parse_number(text), line, builder)
        return text

    def _read_fairseq_valid(self, line: str, builder: RunBuilder) -> bool:
        match, updates = _FAIRSEQ_VALID.search(line), _GLOBAL_STEP.search(line)
        if match is None:
            return False
        at = int(updates[1]) if updates else builder.last_iteration
        if at is not None:
            builder.add_eval(at, parse_number(match[1]))
        return True

    def _read_without_step(self, line: str, builder: RunBuilder) -> bool:
        if "poch" in line.lower() and (epoch := _EPOCH_LOSS.search(line)):
            val_loss = _VAL_LOSS.search(line)
            if self._counts_epochs:
                updates = _GLOBAL_STEP.search(line)
                number = int(updates[1]) if updates else int(epoch[1])
                planned = int(epoch[2]) if epoch[2] and not updates else None
                self._read_epoch(number, planned, epoch[3], val_loss and val_loss[1], line, builder)
            elif val_loss:
                self._add_eval(val_loss[1], epoch[3], line, builder)
            return True
        if evaluation := _VAL.search(line):
            builder.add_eval(self._earlier_iterations + int(evaluation[1]), parse_number(evaluation[2]))
            return True
        return self._title is not None and self._read_titled(self._title, line, builder)

    def _read_titled(self, title: re.Match[str], line: str, builder: RunBuilder) -> bool:
        loss, val_loss = _LOSS.search(line), _VAL_LOSS.search(line)
        if title.re is _EVAL_TITLE:
            self._title = None
            if loss and builder.last_iteration is not None:
                builder.add_eval(builder.last_iteration, parse_number(loss[1]))
            return False
        if not self._counts_epochs:
            return False
        if loss:
            planned = int(title[2]) if title[2] else None
            self._read_epoch(int(title[1]), planned, loss[1], val_loss and val_loss[1], line, builder)
        elif val_loss:
            self.close(builder)
            if builder.last_iteration == int(title[1]):
                builder.add_eval(int(title[1]), parse_number(val_loss[1]))
        return bool(loss or val_loss)

    def _add_eval(self, val_text: str, loss_text: str, line: str, builder: RunBuilder) -> None:
        # A line may show the latest validation loss until there is another.
        val_loss, at = parse_number(val_text), builder.last_iteration
        if at is not None and val_loss != builder.last_val_loss:
            both = _TRAIN_LOSS.search(line)
            is_other = both is not None and both[1] != loss_text
            builder.add_eval(at, val_loss, parse_number(both[1]) if both and is_other else None)

    def _read_batch(self, match: re.Match[str], loss: float, line: str, builder: RunBuilder) -> None:
        epoch, batch, total = int(match[1]), int(match[3] or match[5]), match[4] or match[6]
        if not total or not 0 < int(total) <= MAX_COUNT:
            self._read_step(batch, None, loss, line, builder)
            return
        if not builder.has_steps:
            # Batch 8/8 of the first epoch: they count from 1. An epoch 0 shows its own way.
            self._first_epoch, self._first_batch = min(epoch, 1), min(batch, 1)
        self._first_batch = min(batch, self._first_batch)
        self._last_iteration, self._epoch = batch, epoch
        iteration = max(epoch - self._first_epoch, 0) * int(total) + batch
        self._earlier_iterations = iteration - batch
        self._add_step(iteration, loss, line, builder, is_batch=True)
        if match[2]:
            last_epoch = (
                int(match[2]) - 1 if self._first_epoch == 0 and epoch == int(match[2]) else int(match[2])
            )
            planned = last_epoch * int(total) - 1 + self._first_batch
            builder.setup.values["planned_iterations"] = min(planned, MAX_COUNT)

    def _read_step(
        self, printed: int, total: int | None, loss: float, line: str, builder: RunBuilder
    ) -> None:
        words = line.lower()  # most patterns need not be tried
        if "ep" in words and (match := _EPOCH.search(line)):
            epoch = int(match[1])
            self._planned_epochs = int(match[2]) if match[2] else None
            # Where the count goes back in the next epoch, it is of the epoch; else it is of the whole run.
            if self._epoch is None or epoch < self._epoch or builder.last_iteration is None:
                self._earlier_iterations = 0
            elif epoch == self._epoch + 1 and printed <= self._last_iteration:
                # Equal where of each epoch only the last line is left; one that counts from 0 has one more.
                self._earlier_iterations += self._last_iteration + (printed == 0)
            self._epoch = epoch
        self._last_iteration = printed
        self._add_step(self._earlier_iterations + printed, loss, line, builder)
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
        self, iteration: int, loss: float, line: str, builder: RunBuilder, is_batch: bool = False
    ) -> None:
        words = line.lower()  # most patterns need not be tried
        speed = _SPEED.search(line) if "tok" in words or "tps" in words else None
        mfu = _MFU.search(line) if "mfu" in words else None
        builder.add_step(
            iteration,
            loss,
            ms=self._step_ms(iteration, line, _STEP_TIME if is_batch else _TIME),
            mfu=parse_number(mfu[1]) if mfu and (mfu[2] or parse_number(mfu[1]) > 1) else math.nan,
            lr=search_number(_LR, line) if "lr" in words or "learning" in words else math.nan,
            grad_norm=search_norm(_NORM, line) if "norm" in words else math.nan,
            tokens_per_s=math.nan
            if speed is None
            else parse_number(speed[1] or speed[3]) * _SCALES[(speed[2] or speed[4] or "").lower()],
        )
        if "lobal" in line and (batch := _BATCH.search(line)):
            builder.add_batch_size(iteration, int(batch[1]))

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
        self._held = _Epoch(
            number,
            planned,
            parse_number(loss),
            search_number(_LR, line),
            search_norm(_NORM, line),
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

    def _step_ms(self, iteration: int, line: str, named: re.Pattern[str]) -> float:
        if time := named.search(line) or _TIME_PER_STEP.search(line):
            return parse_number(time[1]) * _SCALES[time[2].lower()]
        if time := _TIME_IN_MS.search(line) or _BARE_TIME.search(line):
            return parse_number(time[1])
        if time := _TIME_IN_S.search(line):
            return parse_number(time[1]) * 1000
        rate = search_number(_STEPS_PER_S, line)
        rate_ms = 1000 / rate if rate > 0 else math.nan
        if time := _TIME_WITHOUT_UNIT.search(line):
            value = parse_number(time[1])
            for ms in (value, value * 1000):
                if rate_ms / _MAX_UNIT_ERROR < ms < rate_ms * _MAX_UNIT_ERROR:
                    return ms
            return math.nan
        if time := _ELAPSED.search(line):
            elapsed, previous = parse_number(time[1]) * _SCALES[time[2].lower()], self._elapsed
            self._elapsed = iteration, elapsed
            if previous is not None and iteration > previous[0] and elapsed > previous[1]:
                return (elapsed - previous[1]) / (iteration - previous[0])
            return math.nan
        return rate_ms


TRAINER = Trainer("unknown", "unknown trainer", reader=GenericReader, reads_any_log=True)
