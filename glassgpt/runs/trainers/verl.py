"""verl: reinforcement learning of language models.

    step:1 - global_seqlen/min:6543 - actor/pg_loss:0.012 - actor/grad_norm:0.31 - actor/lr:1e-06
    - critic/rewards/mean:0.21 - perf/throughput:1432.1 - timing_s/step:61.2       (on one line)
    step:20 - val-core/openai/gsm8k/reward/mean@1:0.71

The policy's loss says nothing about learning; the rewards do. Throughput is of one GPU. A time is of a whole
step: generation, the reward and the update.
"""

from __future__ import annotations

import re

from glassgpt.i18n import say
from glassgpt.runs.builder import RunBuilder
from glassgpt.runs.fields import read_metric_values
from glassgpt.runs.log_numbers import NUMBER, parse_number
from glassgpt.runs.step_line import StepLine, add_values
from glassgpt.runs.trainer import Trainer

_PLAIN_NUMBER = r"(?:np\.\w{1,10}\()?"  # newer versions print np.float64(0.21)
_BEGIN = re.compile(r"(?:^|\s)step:(\d{1,15}) - ")
_STEP = StepLine(
    _BEGIN.pattern,
    {
        "actor/(?:pg_loss|loss)": "loss", "actor/lr": "lr", "actor/grad_norm": "grad_norm",
        "timing_s/step": "s", "perf/throughput": "device_tokens_per_s",
    },
    before_number=_PLAIN_NUMBER,
)  # fmt: skip
_PROGRESS = re.compile(rf"\btraining/global_step:{_PLAIN_NUMBER}{NUMBER}")


def read(line: str, builder: RunBuilder) -> bool:
    if "step:" not in line or " - " not in line:
        return False
    if (begin := _BEGIN.search(line)) is None:
        return False
    step, done = _STEP.parse(line, builder), _PROGRESS.search(line)
    iteration = round(parse_number(done[1])) if done else int(begin[1])
    if step is not None:
        add_values(builder, iteration, step.values)
    builder.add_metrics(read_metric_values(line), iteration)
    return step is not None


TRAINER = Trainer(
    "verl",
    "verl",
    reader=read,
    header=(("Total training steps", r"Total training steps: (\d{1,15})", "planned_iterations"),),
    glossary=(
        ("iteration", "step:{}", say("glossary.updates_done")),
        ("loss", "actor/pg_loss:{:.4g}", say("verl.glossary.loss")),
        ("grad_norm", "actor/grad_norm:{:.4g}", say("glossary.gradient_norm")),
        ("lr", "actor/lr:{:.3g}", say("glossary.learning_rate")),
        ("ms", "timing_s/step (one takes {:.0f} ms)", say("verl.glossary.time")),
    ),
    loss_measures_learning=False,
    often_finetunes=True,
    clips_gradients=True,
)
