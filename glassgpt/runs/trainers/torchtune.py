"""torchtune: a progress bar per epoch, which names the epoch, the update and its loss.

    1|510|Loss: 1.0172749757766724: 100%|█████████▉| 510/512 [06:17<00:01,  1.46it/s]
    Checkpoint saved in 284.91 seconds.

The bar is drawn again when the next update is done, still with the loss of this one. Its rate is a moving
average, in which one slow update shows for many: the clock beside it tells the time, and the rate only that
of an epoch's first update. Its loggers write lines, to stdout or to a file:

    Step 1 | loss:1.0172749757766724 lr:2e-05 tokens_per_second_per_gpu:405.04 peak_memory_active:13.2
"""

from __future__ import annotations

import re

from glassgpt.i18n import say
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.log_numbers import MAX_COUNT, NUMBER, parse_number
from glassgpt.runs.progress_bar import bar_seconds, bar_step_ms
from glassgpt.runs.step_clock import StepClock
from glassgpt.runs.step_line import StepLine
from glassgpt.runs.trainer import Trainer

_BAR = re.compile(
    rf"^(\d{{1,9}})\|(\d{{1,15}})\|Loss: {NUMBER}:?\s.{{0,400}}?\|\s*(\d{{1,15}})/(\d{{1,15}}) "
    r"\[([\d:]{1,12})<[^\]]{0,30}?, {1,4}([\d.]{1,12}|\?)(it/s|s/it)"
)
_LOGGED = StepLine(
    r"^Step (\d{1,15}) \| loss:\S{1,40} (?:\w{1,40}:\S{1,40} ){0,9}"
    r"(?:tokens_per_second_per_gpu|gpu_resources|peak_memory_\w{1,20}|global_grad_norm):",
    {"loss": "loss", "lr": "lr", "tokens_per_second_per_gpu": "device_tokens_per_s", "grad_norm": "grad_norm",
     "global_grad_norm": "grad_norm"},
)  # fmt: skip
_EPOCHS = re.compile(r"^epochs: (\d{1,9})$")
_SAVED = re.compile(r"\b(?:Checkpoint saved in|Saving checkpoint took) (\d{1,9}(?:\.\d{1,9})?) sec")


class TorchtuneReader:
    def __init__(self) -> None:
        self._clock = StepClock(resolution_s=1.0)
        self._bar = 0  # where the epoch's bar is
        self._bar_of_step = 0  # where it was at the latest update
        self._epochs: int | None = None  # as the config says

    def __call__(self, line: str, builder: RunBuilder) -> bool:
        if "|Loss: " in line and (match := _BAR.match(line)):
            self._read_bar(match, builder)
            return True
        if line.startswith("Step ") and _LOGGED.read(line, builder):
            return True
        if "heckpoint" in line:
            if match := _SAVED.search(line):
                builder.add_checkpoint(builder.last_iteration, ms=parse_number(match[1]) * 1000)
                self._clock.add_eval(parse_number(match[1]))
            elif "checkpoint of size " in line:
                builder.add_checkpoint(builder.last_iteration)
        elif match := _EPOCHS.match(line):
            self._epochs = int(match[1])
        return False

    def _read_bar(self, match: re.Match[str], builder: RunBuilder) -> None:
        iteration, at, total = int(match[2]), int(match[4]), int(match[5])
        if at < self._bar:
            self._clock = StepClock(resolution_s=1.0)
        self._bar = at
        if iteration == builder.last_iteration:
            return  # drawn again
        if at == self._bar_of_step:  # an excerpt: its first line was one that is drawn again
            self._clock = StepClock(resolution_s=1.0)
        self._bar_of_step = at
        ms = self._clock.step_ms(iteration, bar_seconds(match[6]))
        if at == 1 and (rate_ms := bar_step_ms(match[7], match[8])) > 0:
            ms = rate_ms
        if self._epochs and self._epochs * total <= MAX_COUNT:
            builder.setup.values["planned_iterations"] = self._epochs * total
        builder.add_step(iteration, parse_number(match[3]), ms=ms)


TRAINER = Trainer(
    "torchtune",
    "torchtune",
    reader=TorchtuneReader,
    identifying_line=re.compile(r"\bRunning \w{1,80} with resolved config:"),
    header=(("resolved config", r"\bRunning \w{1,80} with resolved config:", ""),),
    glossary=(
        ("iteration", "1|{}|", say("glossary.updates_done")),
        ("loss", "Loss: {:.4f}", say("glossary.batch_loss")),
        ("ms", "[elapsed<left] (one takes {:.0f} ms)", say("glossary.interval_time")),
    ),
    step_time_is_interval_mean=True,
    often_finetunes=True,
    resume_command="resume_from_checkpoint=True",
)
