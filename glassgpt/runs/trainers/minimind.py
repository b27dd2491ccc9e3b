"""MiniMind: pretraining and fine-tuning, and the loops that print as it does.

    Epoch:[0/19](100/24681) loss:5.251 lr:0.0002000 epoch_Time:98.0min:
    Epoch:[1/2](100/11040), loss: 6.4310, logits_loss: 6.4310, aux_loss: 0.0000, lr: 5e-4, epoch_time: 9.3min

In reinforcement learning the loss comes after the reward:

    Epoch:[1/1](100/1000), Reward: 1.2345, KL_ref: 0.0100, …, Actor Loss: 0.0123, …, Learning Rate: 0.00000030

A line has the epoch and the micro-batch in it, each with its total. Iterations are counted through all
epochs. Old versions count epochs and micro-batches from 0, new ones from 1, and those also print an epoch's
last micro-batch. A log without an epoch 0 is read as a new version's: of an old one whose beginning is
missing, the iterations are an epoch too low. The minutes are an estimate for the rest of the epoch: no line
has the time of an iteration.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from glassgpt.i18n import say
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.fields import read_metric_values
from glassgpt.runs.log_numbers import MAX_COUNT, NUMBER, parse_number
from glassgpt.runs.trainer import Trainer

_STEP = re.compile(
    rf"\bEpoch:\s?\[(\d{{1,9}})/(\d{{1,9}})\]\s?\((\d{{1,15}})/(\d{{1,15}})\),?\s{{0,4}}"
    rf"(?:[^,]{{1,40}}, ){{0,8}}?(?:Actor )?[lL]oss:\s?{NUMBER}(.{{0,400}})"
)
_LR = re.compile(rf"\b(?:lr|LR|learning_rate|Learning Rate):\s?{NUMBER}(?=[\s,;]|$)")
# "Skipping the first … steps": a resume within an epoch.
_SKIPPED = re.compile(r"^Epoch \[\d+/\d+\]: (?:跳过前\d+个step|skip \d+ steps)")
_PARAMETERS = re.compile(r"^(?:LLM可训练总参数量：|(?:Trainable|Model) Params: )([\d.]{1,20})\s?(?:百万|M)")


class MinimindReader:
    """Remembers whether epochs and micro-batches are counted from 0, and the interval between lines."""

    def __init__(self) -> None:
        self._first_epoch = 1
        self._counts_from_0 = False
        self._previous: tuple[int, int] | None = None  # epoch, micro-batch
        self._interval = 0  # not known yet
        self._prints_lr = False

    def __call__(self, line: str, builder: RunBuilder) -> bool:
        if "Epoch:" in line and (match := _STEP.search(line)):
            lr = _LR.search(match[6])
            if not lr and self._prints_lr:
                return False  # cut off
            self._prints_lr = lr is not None
            epoch, epochs, step, per_epoch = (int(group) for group in match.groups()[:4])
            if epochs * per_epoch > MAX_COUNT:
                return False
            self._first_epoch = min(self._first_epoch, epoch)
            self._counts_from_0 = self._counts_from_0 or step == 0
            if self._previous and self._previous[0] == epoch:
                self._interval = max(self._interval, step - self._previous[1])
            self._previous = epoch, step
            is_reinforcement = "Reward" in match[0]
            builder.trainer = _VARIANTS[is_reinforcement, self._counts_from_0]
            builder.setup.values["planned_iterations"] = epochs * per_epoch - self._counts_from_0
            iteration = (epoch - self._first_epoch) * per_epoch + step
            # Where it counts from 0, an epoch's last line is a multiple of the interval between lines.
            left = per_epoch - 1 - step
            is_last_line = self._counts_from_0 and 0 <= left < self._interval
            builder.iterations_done = iteration + left if is_last_line else None
            builder.add_step(iteration, parse_number(match[5]), lr=parse_number(lr[1]) if lr else math.nan)
            builder.add_metrics(read_metric_values(line))
            return True
        if line.startswith("Epoch [") and _SKIPPED.match(line):
            builder.start_process(resumed=True)
        elif line.startswith(("LLM", "Trainable", "Model")) and (match := _PARAMETERS.match(line)):
            builder.setup.values["parameters"] = round(parse_number(match[1]) * 1e6)
        return False


TRAINER = Trainer(
    "minimind",
    "MiniMind",
    reader=MinimindReader,
    identifying_line=re.compile("^LLM可训练总参数量：|" + _SKIPPED.pattern),
    glossary=(
        ("", "Epoch:[…](…)", say("minimind.glossary.epoch")),
        ("loss", "loss: {:.4f}", say("glossary.batch_loss")),
        ("lr", "lr: {:.8f}", say("glossary.learning_rate")),
        ("", "epoch_time: …min", say("minimind.glossary.epoch_time")),
    ),
    steps_are_micro_batches=True,  # accumulation_steps is 8 in pretraining, and no line says it
    often_finetunes=True,
    resume_command="--from_resume 1",
    clips_gradients=True,
)
# By: reinforcement learning, which has no loss that measures learning; an old version, which counts from 0.
_VARIANTS = {
    (False, False): TRAINER,
    (False, True): replace(TRAINER, first_iteration=0),
    (True, False): replace(TRAINER, loss_measures_learning=False),
    (True, True): replace(TRAINER, loss_measures_learning=False, first_iteration=0),
}
