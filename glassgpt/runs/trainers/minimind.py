"""MiniMind: pretraining and fine-tuning, and the loops that print as it does.

    Epoch:[0/19](100/24681) loss:5.251 lr:0.0002000 epoch_Time:98.0min:
    Epoch:[1/2](100/11040), loss: 6.4310, logits_loss: 6.4310, aux_loss: 0.0000, lr: 5e-4, epoch_time: 9.3min

A line says the epoch, and the micro-batch in it, both out of how many; the iteration is counted through all
epochs. Old versions count epochs from 0, others from 1: a log that has no epoch 0 is taken for one of the
others, so of an old one whose beginning is missing the numbers are an epoch too low. Old versions count
micro-batches from 0 as well, new ones from 1 and print the last of an epoch. The minutes are an estimate for
the rest of the epoch: no line says what an iteration took.
"""

from __future__ import annotations

import math
import re

from glassgpt.i18n import say
from glassgpt.runs.builder import MAX_ITERATION, RunBuilder
from glassgpt.runs.facts import Facts
from glassgpt.runs.glossary import GlossaryEntry, LastLine, learning_rate, one_loss
from glassgpt.runs.numbers import NUMBER, parse_number
from glassgpt.runs.run_log import RunLog
from glassgpt.runs.trainer import Trainer

_STEP = re.compile(
    rf"\bEpoch:\s?\[(\d{{1,9}})/(\d{{1,9}})\]\s?\((\d{{1,15}})/(\d{{1,15}})\),?\s{{0,4}}loss:\s?{NUMBER}(.{{0,400}})"
)
_LR = re.compile(rf"\blr:\s?{NUMBER}(?=[\s,;]|$)")
# "Skipping the first … steps": a resume within an epoch.
_SKIPPED = re.compile(r"^Epoch \[\d+/\d+\]: 跳过前\d+个step")
_PARAMETERS = re.compile(r"^(?:LLM可训练总参数量：|Trainable Params: )([\d.]{1,20})\s?(?:百万|M)")


class MinimindReader:
    """Remembers from what number epochs and micro-batches are counted, and how far apart lines are."""

    def __init__(self) -> None:
        self._first_epoch = 1
        self._counts_from_0 = False
        self._last: tuple[int, int] | None = None  # epoch, micro-batch
        self._interval = 0  # not known yet
        self._says_lr = False

    def __call__(self, line: str, into: RunBuilder) -> bool:
        if "Epoch:" in line and (match := _STEP.search(line)):
            lr = _LR.search(match[6])
            if not lr and self._says_lr:
                return False  # torn
            self._says_lr = lr is not None
            epoch, epochs, step, per_epoch = (int(group) for group in match.groups()[:4])
            if epochs * per_epoch > MAX_ITERATION:
                return False
            self._follow(epoch, step)
            iteration = (epoch - self._first_epoch) * per_epoch + step
            last_step = self._last_step(per_epoch)
            if last_step is not None:
                into.setup.values["planned_iterations"] = (epochs - 1) * per_epoch + last_step
            into.add_step(iteration, parse_number(match[5]), lr=parse_number(lr[1]) if lr else math.nan)
            return True
        if line.startswith("Epoch [") and _SKIPPED.match(line):
            into.start_process(resumed=True)
        elif line.startswith(("LLM", "Trainable")) and (match := _PARAMETERS.match(line)):
            into.setup.values["parameters"] = round(parse_number(match[1]) * 1e6)
        return False

    def _follow(self, epoch: int, step: int) -> None:
        self._first_epoch = min(self._first_epoch, epoch)
        self._counts_from_0 = self._counts_from_0 or step == 0
        if self._last and self._last[0] == epoch:
            self._interval = max(self._interval, step - self._last[1])
        self._last = epoch, step

    def _last_step(self, per_epoch: int) -> int | None:
        """Of an epoch's lines: where it counts from 0, the last multiple of the interval between lines."""
        if not self._counts_from_0:
            return per_epoch
        return (per_epoch - 1) // self._interval * self._interval if self._interval > 0 else None


def _glossary(last: LastLine, history: RunLog, facts: Facts) -> list[GlossaryEntry]:
    return [
        GlossaryEntry(
            "Epoch:[…](…)",
            say("The epoch, and the number of this micro-batch in it; both out of how many."),
        ),
        GlossaryEntry(last.shown("loss", "loss: {:.4f}"), one_loss()),
        GlossaryEntry(last.shown("lr", "lr: {:.8f}"), learning_rate()),
        GlossaryEntry(
            "epoch_time: …min",
            say("An estimate of the minutes left in this epoch; not the time of an iteration."),
        ),
    ]


TRAINER = Trainer(
    "minimind",
    "MiniMind",
    reader=MinimindReader,
    introduction=re.compile("^LLM可训练总参数量：|" + _SKIPPED.pattern),
    glossary=_glossary,
    first_iteration=0,
    steps_are_micro_batches=True,  # accumulation_steps is 8 in pretraining, and no line says it
    often_finetunes=True,
    resume_command="--from_resume 1",
)
