"""verl: reinforcement learning of language models.

    step:1 - global_seqlen/min:6543 - actor/pg_loss:0.012 - actor/grad_norm:0.31 - actor/lr:1e-06
    - critic/rewards/mean:0.21 - perf/throughput:1432.1 - timing_s/step:61.2       (on one line)
    step:20 - val-core/openai/gsm8k/reward/mean@1:0.71
    local_global_step_folder: checkpoints/global_step_50

The policy's loss says nothing about learning; the rewards do. Throughput is of one GPU. A time is of a whole
step: generation, the reward and the update. The numbers of a validation are on the line of the step before
it, which may be cut after so many, or on one of their own.
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
        "timing_s/step": "s", "perf/throughput": "device_tokens_per_s", "perf/total_num_tokens": "tokens",
    },
    before_number=_PLAIN_NUMBER,
)  # fmt: skip
_PROGRESS = re.compile(rf"\btraining/global_step:{_PLAIN_NUMBER}{NUMBER}")
_VALIDATION = re.compile(r" - val[-/]")
_SAVED = re.compile(r"\blocal_global_step_folder: .{0,1000}\bglobal_step_(\d{1,15})\b")
_RESUMED = re.compile(r"(?:\([^()]{1,60}\) )?Setting global step to [1-9]")


def read(line: str, builder: RunBuilder) -> bool:
    if "global" in line and builder.has_steps and (save := _SAVED.search(line)):
        builder.add_checkpoint(int(save[1]))
    elif "Setting global step to" in line and _RESUMED.match(line):
        builder.start_process(resumed=True)
    if "step:" not in line or " - " not in line or (begin := _BEGIN.search(line)) is None:
        return False
    values, done = _STEP.values(line), _PROGRESS.search(line)
    iteration = round(parse_number(done[1])) if done else int(begin[1])
    is_evaluated = _VALIDATION.search(line) is not None
    if not values.keys() & {"loss", "s"}:
        is_step = False
    elif is_step := is_evaluated or "s" in values or "ms" not in builder.last_step_columns:
        if "tokens" in values and values.get("s", 0) > 0:
            values["tokens_per_s"] = values["tokens"] / values["s"]
            values.pop("device_tokens_per_s", None)
        add_values(builder, iteration, values)
    else:
        builder.partial_iteration = iteration
    if is_evaluated:
        builder.add_eval(iteration)  # by rewards
    is_cut = is_evaluated and is_step and "s" not in values
    builder.add_metrics(read_metric_values(line.rpartition(" - ")[0] if is_cut else line), iteration)
    return is_step or is_evaluated


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
