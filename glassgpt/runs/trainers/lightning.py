"""PyTorch Lightning: its progress bar.

    Epoch 3:  45%|████▌     | 45/100 [00:10<00:12,  4.30it/s, v_num=0, train_loss=2.310, val_loss=2.400]
    Epoch 3/9 ━━━━━━━━━━━━━━━ 45/100 0:00:10 • 0:00:12 4.30it/s v_num: 0 train_loss: 2.310

The bar is redrawn before and after its numbers change; of each batch the last state is read. A validation
loss stays until there is another. The rate is the mean over the epoch so far: where the bar's clock agrees,
the time between two bars follows from it. Batches are counted through all epochs. In versions before 2.0 a
bar's total includes the validation's batches.
"""

from __future__ import annotations

import math
import re

from glassgpt.i18n import say
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.log_numbers import MAX_COUNT, NUMBER, parse_number
from glassgpt.runs.progress_bar import bar_seconds
from glassgpt.runs.step_clock import StepClock
from glassgpt.runs.step_line import StepLine, add_values
from glassgpt.runs.trainer import Trainer

_BAR = re.compile(
    r"\bEpoch (\d{1,9})(?:/(\d{1,9}))?:?\s{1,8}(?:(?:\d{1,3}%)?\|[^|]{0,300}\||[━╸╺ ]{1,300})"
    r"\s{0,4}(\d{1,9})/(\d{1,9}|\?) "
    r"(?:\[([\d:]{1,12})<[\d:?]{1,12},|([\d:]{1,12}) • [\d:-]{1,12})(.{1,600})"
)
_MAX_CLOCK_ERROR_S = 1.0  # it shows whole seconds
_RATE = re.compile(rf"^\s{{0,8}}{NUMBER}\s?(it/s|s/it)")
_NUMBERS = StepLine(
    "$^",
    {
        "train(?:ing)?[_/]?loss_step": "step_loss", "(?:train(?:ing)?[_/]?)?loss": "loss",
        "val(?:id|idation)?[_/]loss(?:_epoch)?": "val_loss", "lr": "lr", "grad_norm": "grad_norm",
    },
)  # fmt: skip
_END = re.compile(r"\bTrainer\.fit\W{1,3}stopped: \W?max_(?:epochs|steps|time)(?:=(\d{1,15}))?")
_SAVED = re.compile(r"\bEpoch \d{1,9}, global step \d{1,15}: .{0,120}, saving model to ")


class LightningReader:
    """Keeps the bar's latest state until the next batch."""

    def __init__(self) -> None:
        self._state: tuple[int, dict[str, float], int] | None = None  # iteration, values, line in the file
        self._epoch = 0
        self._is_other: bool | None = (
            None  # the first bar is of an epoch 1 that begins: Lightning counts from 0
        )
        self._clock: StepClock | None = None  # of the epoch
        self._clock_epoch = 0
        self._earlier = 0  # iterations of epochs that are over, where the bar has no total

    def __call__(self, line: str, builder: RunBuilder) -> bool:
        is_step = False
        if "Epoch " in line and "/" in line:
            for match in _BAR.finditer(line):
                is_step = self._read_bar(match, builder) or is_step
        if "saving model to" in line and _SAVED.search(line):
            self.close(builder)
            builder.add_checkpoint(builder.last_iteration)
        elif "stopped" in line and _END.search(line):
            self.close(builder)
            builder.add_event("finish", line)
        return is_step

    def _read_bar(self, match: re.Match[str], builder: RunBuilder) -> bool:
        epoch, last_epoch, done, total, clock, rich_clock, rest = match.groups()
        if self._is_other is None:
            self._is_other = epoch == "1" and done == "0"
        self._is_other = self._is_other and "v_num" not in rest
        if self._is_other:
            return False
        values = _NUMBERS.values(rest)
        if "step_loss" in values:
            values["loss"] = values.pop("step_loss")
        if total == "?":  # an iterable dataset: what the epochs before had
            if int(epoch) != self._epoch and self._state is not None:
                self._earlier = self._state[0]
            self._epoch = int(epoch)
            iteration = self._earlier + int(done)
        else:
            iteration = int(epoch) * int(total) + int(done)
        if "loss" not in values or int(done) == 0 or iteration > MAX_COUNT:
            return False
        if last_epoch and total != "?":
            builder.setup.values["planned_iterations"] = min((int(last_epoch) + 1) * int(total), MAX_COUNT)
        if rate := _RATE.match(rest):
            values |= self._time(rate, int(done), clock or rich_clock, (int(epoch), iteration))
        if self._state is not None and self._state[0] != iteration:
            self.close(builder)
        self._state = iteration, values, builder.line
        return True

    def _time(self, rate: re.Match[str], done: int, clock: str, at: tuple[int, int]) -> dict[str, float]:
        """Of a step since the bar before; the mean that the bar shows, where its clock does not agree."""
        shown, (epoch, iteration) = parse_number(rate[1]), at
        elapsed_s = done * shown if rate[2] == "s/it" else done / (shown or math.inf)
        clock_s = bar_seconds(clock)
        unit_s = elapsed_s * 10.0 ** -len(rate[1].partition(".")[2]) / (shown or math.inf)
        if not abs(elapsed_s - clock_s) <= _MAX_CLOCK_ERROR_S + unit_s:
            return {"it_per_s" if rate[2] == "it/s" else "s": shown}
        if self._state is not None and self._state[0] == iteration and "ms" in self._state[1]:
            return {"ms": self._state[1]["ms"]}  # the same bar, drawn again
        if self._clock is None or self._clock_epoch != epoch:
            is_first, self._clock, self._clock_epoch = self._clock is None, StepClock(1.0), epoch
            if done == 1 or not is_first:
                self._clock.step_ms(iteration - done, 0.0)
        self._clock.resolution_s = min(1.0, unit_s)
        return {"ms": self._clock.step_ms(iteration, elapsed_s)}

    def close(self, builder: RunBuilder) -> None:
        """Read the latest state: the batch is over, or the log."""
        if self._state is None:
            return
        (iteration, values, line), self._state = self._state, None
        val_loss = values.pop("val_loss", None)
        add_values(builder, iteration, values, line)
        if val_loss is not None and val_loss != builder.last_val_loss:
            builder.add_eval(iteration, val_loss, line=line)


TRAINER = Trainer(
    "lightning",
    "PyTorch Lightning",
    # CSVLogger's metrics.csv, where a value is logged for steps and epochs.
    table_columns=(frozenset({"epoch", "step", "train_loss_step"}),),
    reader=LightningReader,
    header=(("Total params", r"^([\d.]{1,12} ?[KMB]?)\s{1,8}Total params$", "parameters"),),
    glossary=(
        ("", "Epoch …", say("lightning.glossary.epoch")),
        ("ms", "it/s (one takes {:.1f} ms)", say("lightning.glossary.rate")),
        ("loss", "train_loss={:.3f}", say("lightning.glossary.loss")),
        ("eval", "val_loss={val}", say("litgpt.glossary.val_loss")),
    ),
    step_time_is_interval_mean=True,
    eval_splits=1,
)
