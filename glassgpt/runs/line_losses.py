"""Which numbers of a line are its training loss and its validation loss, whatever they are called.

    LossFinder().find(read_line("Epoch 5 -- train: 0.52  val: 0.60"), builder)    # the fields 0.52 and 0.60

A line of an unknown trainer may name its losses by their split alone, print several losses, or a perplexity
instead. Which number is taken depends on the lines before, so there is one finder for each log.
"""

from __future__ import annotations

import math
import re

from glassgpt.i18n import say
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.fields import SPLITS, Field, Line
from glassgpt.runs.log_numbers import loss_of_perplexity
from glassgpt.runs.metric_columns import PART_RANK, losses_of_sets, metric_of

# Words of a line whose `train` and `val` are something else.
_OTHER_THAN_LOSS = re.compile(
    r"\b(?:acc|accuracy|err|error|f1|auc|iou|r2|mae|size|samples|examples|batches)\b|(?<!\d)%"
)
_VALIDATION_KINDS = frozenset({"score", "error_rate"})  # of metrics: a line with BLEU, say
_MAX_VAL_TO_TRAIN_LOSS = (
    1.5  # of a number after `validation:`, for it to be a loss; nor less than its inverse
)
_MAX_NOTES = 5
_OF_BARS = {"l", "mse"}
_MIN_SUM_TO_LOG_PERPLEXITY = 2.0  # from this ratio on, a loss is a sum over tokens


class LossFinder:
    """`find` the losses of one line after the other. The reader says what other lines tell of them."""

    def __init__(self) -> None:
        self.section = ""  # the split of the next lines, by a title
        self.has_val_loss = False  # a test loss beside it is another one's
        self.has_named_steps = False  # steps whose loss is called so, not just `train`
        self.names_nothing = False  # makemore's steps: `  10000/ 200000: 2.0322`
        self._loss_name: str | None = None  # of several losses with longer names, the one that is taken
        self._has_perplexities = False  # steps with a perplexity instead of a loss
        self._val_is_alone = False  # evaluations are named by their split alone
        self._steps_have_f1 = False

    def find(self, line: Line, builder: RunBuilder) -> tuple[Field | None, Field | None]:
        """The training loss and the validation loss of a line; None where it has none."""
        found = [
            one for one in line.fields if one.role in ("loss", "val_loss") and one.unit in ("", "k", "m", "b")
        ]
        if not any(one.role == "val_loss" for one in found) and "_loss_" in line.text:
            of_sets = losses_of_sets(one.name for one in line.fields)
            found += [
                one._replace(role="val_loss", rank=PART_RANK, split="val")
                for one in line.fields
                if one.name in of_sets
            ]
        if not found:
            loss, val_loss = self._unnamed_losses(line, builder)
            return loss if loss or val_loss else self._log_perplexity(line, builder), val_loss
        if not any(one.split for one in found):
            split = self.section if line.of("iteration") is None else ""
            if self._has_score_of_validation(line, builder):
                split = "val"
            if split in ("val", "test"):
                found = [one._replace(role="val_loss", split=split) for one in found]
        plain = [one for one in found if one.rank < PART_RANK]
        losses = [one for one in plain if one.role == "loss"]
        val_losses = sorted(
            (one for one in plain if one.role == "val_loss"), key=lambda one: (one.split == "test", one.rank)
        )
        val_loss = val_losses[0] if val_losses else None
        if val_loss is not None and val_loss.split == "test" and self.has_val_loss:
            val_loss = None
        if losses:
            return min(losses, key=lambda one: one.rank), val_loss
        parts = [one for one in found if one.rank >= PART_RANK]
        if val_loss is None and (of_val := [one for one in parts if one.role == "val_loss"]):
            val_loss = of_val[0]
            others = ", ".join(one.name for one in of_val[1:] if one.name != val_loss.name)[:200]
            note = say("log.val_loss_taken", name=val_loss.name, others=others)
            if others and note not in builder.notes and len(builder.notes) < _MAX_NOTES:
                builder.notes.append(note)
        return self._other_loss(line, [one for one in parts if one.role == "loss"], builder), val_loss

    def _has_score_of_validation(self, line: Line, builder: RunBuilder) -> bool:
        """Whether the line has a score that training steps do not print: BLEU, a word error rate. A
        classifier may print an F1 or an AUC at each step: these count where the steps before have none."""
        scores = [
            one.name.lower().endswith(("f1", "auc", "auroc"))
            for one in line.fields
            if one.is_metric and (metric := metric_of(one.name)) and metric.kind in _VALIDATION_KINDS
        ]
        if scores and all(scores):
            self._steps_have_f1 = self._steps_have_f1 or not (builder.has_steps or builder.holds_step)
        return bool(scores) and not (self._steps_have_f1 and all(scores))

    def _unnamed_losses(self, line: Line, builder: RunBuilder) -> tuple[Field | None, Field | None]:
        """Losses that are named by their split alone: `Epoch 5 -- train: 0.52  val: 0.60`. makemore's steps
        have no name: `  10000/ 200000: 2.0322`, and at the end `train 2.0674` and `val 2.1056`."""
        if not line.words and len(line.fields) == 2 and line.fields[0].total and line.fields[1].is_decimal:
            self.names_nothing = self.names_nothing or not builder.has_steps
            return (line.fields[1] if self.names_nothing else None), None
        if "%|" in line.text and (
            short := next(
                (one for one in line.fields if one.name.lower() in _OF_BARS and one.is_decimal), None
            )
        ):
            note = say("log.only_loss", name=short.name)
            if len(short.name) > 1 and note not in builder.notes:
                builder.notes.append(note)
            return short, None  # of a bar, where names are short: L=5.9647
        named = {
            one.split: one
            for one in reversed(line.fields)
            if one.name.lower() in SPLITS and one.is_decimal and not one.unit
        }
        train_loss, val_loss = named.get("train"), named.get("val") or named.get("test")
        is_alone = self.names_nothing and len(line.words) == 1
        if _OTHER_THAN_LOSS.search(line.text.lower()) or any(one.unit == "%" for one in line.fields):
            return None, None
        if val_loss is not None and train_loss is None and not is_alone:
            is_alone = self._is_val_loss(val_loss, builder)
        return (train_loss, val_loss) if is_alone or (train_loss and val_loss) else (None, None)

    def _is_val_loss(self, alone: Field, builder: RunBuilder) -> bool:
        """Whether a number named by its split alone is a loss: `>> validation: 3.966 | best 3.966`. It is
        near the training loss, as a percentage is not, and above 1, as an accuracy is not."""
        ratio = alone.value / (builder.last_loss or math.nan)
        near = 1 / _MAX_VAL_TO_TRAIN_LOSS < ratio < _MAX_VAL_TO_TRAIN_LOSS
        is_first = self.has_named_steps and not self.has_val_loss and near and alone.value > 1
        self._val_is_alone = self._val_is_alone or is_first
        return self._val_is_alone

    def _log_perplexity(self, line: Line, builder: RunBuilder) -> Field | None:
        """The loss of a step that prints its perplexity or bits per byte instead: `Epoch  2, ppl: 22.37`."""
        count = line.of("iteration", "epoch", "batch")
        if count is None or not count.is_count or self.section in ("val", "test"):
            return None
        if builder.has_steps and not self._has_perplexities:
            return None
        for one in line.fields:
            metric = metric_of(one.name) if one.is_metric else None
            if metric is None or metric.is_eval or one.split not in ("", "train"):
                continue
            if metric.kind == "perplexity":
                loss, note = loss_of_perplexity(one.value), say("log.loss_of_perplexity", name=one.name)
            elif metric.kind == "bits_per_byte":
                loss, note = one.value * math.log(2), say("log.loss_of_bits", name=one.name)
            else:
                continue
            builder.notes += [] if self._has_perplexities else [note]
            self._has_perplexities = True
            return one._replace(role="loss", text=str(loss))
        return None

    def _other_loss(self, line: Line, found: list[Field], builder: RunBuilder) -> Field | None:
        """The first of several losses with longer names; on later lines the one of the same name."""
        is_new = self._loss_name is None
        if line.of("iteration", "epoch", "batch") is None or (is_new and builder.has_steps):
            return None
        loss = next((one for one in found if is_new or one.name.lower() == self._loss_name), None)
        if loss is not None and is_new:
            self._loss_name = loss.name.lower()
            others = ", ".join(one.name for one in found if one is not loss)[:200]
            builder.notes.append(
                say("log.loss_taken", name=loss.name, others=others)
                if others
                else say("log.only_loss", name=loss.name)
            )
        return loss


def mean_loss(loss: Field, line: Line) -> Field:
    """The loss of a token: where the loss is a sum, as the perplexity on the line shows, the logarithm of the
    perplexity."""
    ppl = [one for one in line.fields if one.is_metric and one.name.lower().endswith(("ppl", "perplexity"))]
    log_perplexity = loss_of_perplexity(ppl[0].value) if ppl else math.nan
    is_sum = loss.value > _MIN_SUM_TO_LOG_PERPLEXITY * log_perplexity > 0
    return loss._replace(text=str(log_perplexity)) if is_sum else loss
