"""Keras: `model.fit`.

    Epoch 1/10
    281/281 ━━━━━━━━━━━━━━━━━━━━ 5s 9ms/step - accuracy: 0.3746 - loss: 2.8028 - val_loss: 1.9847
    281/281 [==============================] - 5s 9ms/step - loss: 2.8028 - val_loss: 1.9847
    281/281 - 5s - 9ms/step - loss: 2.8028 - val_loss: 1.9847

A bar is redrawn many times; of each epoch its last state is read. The loss is the mean over the epoch so far.
The time is the mean over the epoch without its first batch; in its last state it includes the validation.
Whole seconds per step are too coarse: then it is the epoch's time over its batches. What a callback says of
the epoch (`Epoch 3: val_loss improved from …, saving model to …`) may come before the bar's last state.
A bar without an epoch before it is that of `evaluate` or `predict`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from glassgpt.i18n import say
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.fields import read_metric_values
from glassgpt.runs.log_numbers import MAX_COUNT, NUMBER, parse_number
from glassgpt.runs.step_line import StepLine, add_values
from glassgpt.runs.trainer import Trainer

_EPOCH = re.compile(r"^Epoch (\d{1,9})/(\d{1,9})$")
_BAR = re.compile(r"^(\d{1,9})/(\d{1,9}|Unknown) (?:[━╸╺]{1,80} |\[[=>.]{1,80}\] )?(?:- )?(?=\S)(.{1,600})$")
_TIME = re.compile(r"(?<![\w.])(\d{1,9})(us|ms|s)/step\b")
_EPOCH_TIME = re.compile(r"^(?:- )?(\d{1,9})s\b")  # in the last state; in others it is what is left
_VAL_LOSS = re.compile(rf"- val_loss: {NUMBER}")
_NUMBERS = StepLine("$^", {"loss": "loss", "learning_rate|lr": "lr"})
_SAVED = re.compile(r"^Epoch (\d{1,9}): .{0,200}\bsaving model to ")
_STOPPED = re.compile(r"^Epoch \d{1,9}: early stopping$")
_RESTORED = "Restoring model weights from the end of the best epoch"
_MIN_TIME_RATIO = 0.5  # of an epoch's time to that by its rounded step time
_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


class KerasReader:
    """Keeps the latest state of an epoch's bar until the epoch is over."""

    def __init__(self) -> None:
        self._epoch: tuple[int, int] | None = None  # the one in progress, and how many there are
        self._state: tuple[int, str, int] | None = None  # of its bar: batches, text, line in the file
        self._per_epoch = 0  # batches
        self._counts_samples = False
        self._save: tuple[int, int] | None = None  # of this epoch: its number, line in the file
        self._stop = ""  # the line about early stopping, or about the weights that it restores

    def __call__(self, line: str, builder: RunBuilder) -> bool:
        if line.startswith("Epoch "):
            if match := _EPOCH.match(line):
                self.close(builder)
                self._epoch, self._stop = (int(match[1]), int(match[2])), ""
                if self._epoch[0] == 1:
                    builder.start_process(has_header=False)
            elif match := _SAVED.match(line):
                self._save = int(match[1]), builder.line
                if self._state is None:
                    self._add_save(builder)
            elif _STOPPED.match(line):
                self._read_stop(line, builder)
            return False
        if line.startswith(_RESTORED):
            self._read_stop(line, builder)
            return False
        if "loss: " not in line or not (match := _BAR.match(line)):
            return False
        done, total, text = int(match[1]), match[2], match[3]
        if self._epoch is None:
            return self._per_epoch > 0  # a bar of `evaluate`, after `fit`: ours, and no step
        if "loss" not in _NUMBERS.values(text):
            return False  # cut off
        is_other_bar = total not in (str(self._per_epoch), "Unknown") and self._per_epoch > 0
        if self._state is not None and (is_other_bar or _VAL_LOSS.search(self._state[1])):
            self.close(builder)  # the epoch is over; this is an evaluation's bar
            return True
        self._state = done, text, builder.line
        self._per_epoch = int(total) if total != "Unknown" else max(done, self._per_epoch)
        return True

    def _read_stop(self, line: str, builder: RunBuilder) -> None:
        """Two lines, in this order or the other: the stop is one event, which the second one completes."""
        self.close(builder)
        self._stop = f"{self._stop}. {line}" if self._stop else line
        if "early stopping" in self._stop:
            builder.add_event("finish", self._stop)

    def _add_save(self, builder: RunBuilder) -> None:
        save, self._save = self._save, None
        if save is not None and 0 < save[0] * self._per_epoch < MAX_COUNT:
            builder.add_checkpoint(save[0] * self._per_epoch, line=save[1])

    def close(self, builder: RunBuilder) -> None:
        """The epoch is over, or the log."""
        epoch, state, self._epoch, self._state = self._epoch, self._state, None, None
        if epoch is None or state is None:
            return
        done, text, line = state
        # Before Keras 2.3 a bar counts samples: how many batches there are is not known, only the epochs.
        self._counts_samples = self._counts_samples or "/sample" in text
        if self._counts_samples:
            done = self._per_epoch = 1
            if not builder.trainer.iterations_are_epochs:
                builder.trainer = replace(builder.trainer, iterations_are_epochs=True)
                builder.notes.append(say("table.epochs"))
        iteration = (epoch[0] - 1) * self._per_epoch + done
        if iteration > MAX_COUNT:
            return
        time = None if self._counts_samples else _TIME.search(text)
        builder.setup.values["epochs"] = float(epoch[0])
        builder.setup.values["planned_iterations"] = min(epoch[1] * self._per_epoch, MAX_COUNT)
        values = _NUMBERS.values(text)
        if time:
            values["ms"] = parse_number(time[1]) * _UNITS[time[2]]
        if time and time[2] == "s" and done == self._per_epoch and (spent := _EPOCH_TIME.match(text)):
            mean_ms = parse_number(spent[1]) * 1000 / done
            if mean_ms >= _MIN_TIME_RATIO * values["ms"]:
                values["ms"] = mean_ms
        add_values(builder, iteration, values, line)
        builder.add_metrics(read_metric_values(text), iteration)
        if match := _VAL_LOSS.search(text):
            builder.add_eval(iteration, parse_number(match[1]), line=line)
        self._add_save(builder)


TRAINER = Trainer(
    "keras",
    "Keras",
    reader=KerasReader,
    glossary=(
        ("", "…/… ━━━", say("keras.glossary.batches")),
        ("ms", "{:.0f}ms/step", say("keras.glossary.time")),
        ("loss", "loss: {:.4f}", say("keras.glossary.loss")),
        ("lr", "learning_rate: {:.4g}", say("glossary.learning_rate")),
        ("eval", "val_loss: {val}", say("keras.glossary.val_loss")),
    ),
    step_time_is_interval_mean=True,
    uses_torch=False,
    loss_is_interval_mean=True,
    evaluates_same_tokens=True,
    eval_splits=1,
)
